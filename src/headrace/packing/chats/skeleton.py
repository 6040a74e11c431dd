"""What all conversations of one shape have in common: the template's own texts between the messages' texts. Pure.

A skeleton is learnt from one conversation that was rendered with marks. For the next conversation of the shape the
template is rendered once, without marks, and the skeleton predicts the whole text. If prediction and rendering are
equal, character for character, the skeleton says where the turns are; if not, it says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from headrace.packing.chats.marks import BEGIN, END, JSON_BEGIN, JSON_END, Found, Piece

Span = tuple[int, int]
Place = tuple[int, int]  # a part, and how far behind its beginning

_ENDS = {BEGIN: END, JSON_BEGIN: JSON_END}


@dataclass(frozen=True, slots=True)
class Skeleton:
    """parts: literal texts, and numbers: n ≥ 0 is the n-th text of the messages, -1-n the n-th JSON of the rendering.

    turns: per assistant message its place, and where the trained part begins and ends.
    """

    parts: list[str | int]
    turns: dict[int, tuple[Place, Place]]

    def spans(self, text: str, texts: Sequence[str], jsons: Sequence[str]) -> dict[int, Span] | None:
        """The turns of a rendered conversation; None if the skeleton does not predict its text."""
        try:
            filled = [
                part if isinstance(part, str) else texts[part] if part >= 0 else jsons[-1 - part] for part in self.parts
            ]
        except IndexError:
            return None
        if "".join(filled) != text:
            return None
        starts = [*accumulate(map(len, filled), initial=0)]
        return {
            message: (starts[first[0]] + first[1], starts[last[0]] + last[1])
            for message, (first, last) in self.turns.items()
        }


def skeleton_of(
    text: str, found: Sequence[Found], pieces: Sequence[Piece], jsons: Sequence[str], turns: dict[int, Span]
) -> Skeleton | None:
    """The skeleton of one rendering. None where a text went into it otherwise than whole and as it is."""
    parts: list[str | int] = []
    starts: list[int] = []
    at, place = 0, 0
    while place < len(found):
        first = found[place]
        last = found[place + 1] if place + 1 < len(found) else None
        if last is None or last.number != first.number or _ENDS.get(first.kind) != last.kind:
            return None
        held = text[first.at : last.at]
        if first.kind == BEGIN:
            piece = pieces[first.number]
            if not piece.whole or held != piece.text:
                return None
        elif held != jsons[first.number]:
            return None
        parts += (text[at : first.at], first.number if first.kind == BEGIN else -1 - first.number)
        starts += (at, first.at)
        at, place = last.at, place + 2
    parts.append(text[at:])
    starts.append(at)
    return Skeleton(
        parts, {message: (_place(starts, span[0]), _place(starts, span[1])) for message, span in turns.items()}
    )


def _place(starts: Sequence[int], at: int) -> Place:
    """Counted from a literal, whose length no conversation changes. Literals stand at even numbers."""
    literal = max(place for place in range(0, len(starts), 2) if starts[place] <= at)
    return literal, at - starts[literal]
