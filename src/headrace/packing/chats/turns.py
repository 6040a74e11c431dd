"""Where a turn begins to be the model's and where it ends. Pure rules over the texts around a message.

The model is given everything up to the end of the generation prompt and must produce everything from there through the
token that ends its turn. White space behind that token and the header of the next turn are the template's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Specials:
    """The special tokens of a tokenizer as a pattern, and the one that ends a sequence."""

    pattern: re.Pattern[str]
    eos: str | None

    @classmethod
    def of(cls, tokens: Sequence[str], eos: str | None) -> Specials:
        """From the texts of the tokens."""
        longest_first = sorted({*tokens} - {""}, key=lambda token: (-len(token), token))
        return cls(re.compile("|".join(map(re.escape, longest_first)) or r"(?!)"), eos or None)

    def spans(self, text: str, until: int | None = None) -> list[tuple[int, int]]:
        """Where special tokens stand in a text, those that end by `until`."""
        most = len(text) if until is None else until
        return [match.span() for match in self.pattern.finditer(text) if match.end() <= most]


def start_in(literal: str, lead: str, prompt: str, specials: Specials) -> int | None:
    """Where in `literal`, the text between the part before and the turn's first own text, the model begins.

    lead: what a rendering that ends with the generation prompt has in this place; prompt: the generation prompt alone,
    "" if the template writes none. None where no rule is certain.
    """
    if literal.startswith(lead):
        return len(lead)
    if lead.startswith(literal):  # the prompt says more than this turn has, such as an opened reasoning block
        return len(literal)
    for end in [len(prompt), *sorted((end for end in _borders(prompt, specials) if end < len(prompt)), reverse=True)]:
        at = literal.rfind(prompt[:end]) if end else -1
        if at >= 0:
            return at + end
    return None


def end_in(after: str, tail: str | None, specials: Specials) -> int | None:
    """Where in `after`, the text behind the turn's last own text, its end-of-turn token ends.

    tail: what is behind that text where the conversation ends with this turn, None if that is not known; then only the
    token that ends sequences is an end. None where no rule is certain.
    """
    if tail is None:
        begun = specials.pattern.search(after)
        return begun.end() if begun is not None and begun[0] == specials.eos else None
    shared = shared_start(after, tail)
    within = specials.spans(after, shared)
    if within:
        return next((end for begin, end in within if after[begin:end] == specials.eos), within[-1][1])
    first, other = specials.pattern.search(after), specials.pattern.search(tail)
    if first is not None and other is not None:  # a last turn may end with another token than one in the middle
        return first.end() if first.start() == other.start() and first.start() <= shared else None
    if other is not None:
        return None
    return len(after[:shared].rstrip())


def shared_start(first: str, second: str) -> int:
    """How many characters two texts begin with alike."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _borders(prompt: str, specials: Specials) -> list[int]:
    """Ends of special tokens and of lines: where a shorter prompt may end."""
    lines = [match.end() for match in re.finditer("\n", prompt)]
    return sorted({*(end for _, end in specials.spans(prompt)), *lines})
