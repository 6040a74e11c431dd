"""Special tokens in texts: where a template writes them, and where somebody typed them into a message. Pure.

A user who types `<|im_end|>` has typed ten characters; a tokenizer that reads the rendering makes them the token that
ends a turn. So such texts are rendered as stand-ins, two characters that no row holds and no template looks for, and
put back afterwards: then it is known where in the rendering they are. Rows without such texts pay one search.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.marks import Span
from headrace.packing.chats.words import RowRejected, shown

_MARK, _FIRST = "\uffff", 0xF0000  # a noncharacter, and which token it stands for in a private one
_STAND_IN = re.compile(f"{_MARK}([{chr(_FIRST)}-\U0010ffff])")


class Specials:
    """The special tokens of one tokenizer as a pattern; eos: the one that ends a sequence."""

    def __init__(self, tokens: Sequence[str], eos: str | None = None) -> None:
        self.tokens = sorted({*tokens} - {""}, key=lambda token: (-len(token), token))
        self._number = {token: number for number, token in enumerate(self.tokens)}
        self.pattern = re.compile("|".join(map(re.escape, self.tokens)) or r"(?!)")
        self.eos = eos or None

    def spans(self, text: str, until: int | None = None) -> list[Span]:
        """Find where special tokens stand in a text, those that end by `until`."""
        most = len(text) if until is None else until
        return [match.span() for match in self.pattern.finditer(text) if match.end() <= most]

    def first_in(self, chat: Conversation) -> str | None:
        """Find one that stands in the messages, the tools or the template's values; None if none does."""
        return self._first(chat.messages) or self._first(chat.tools) or self._first(chat.values)

    def hidden(self, chat: Conversation) -> Conversation:
        """Put stand-ins into the conversation. Raises `RowRejected` if it holds their characters."""
        messages, tools, values = (self._hidden(each) for each in (chat.messages, chat.tools, chat.values))
        return Conversation(messages, chat.weights, tools, values)

    def restored(self, text: str, spans: Sequence[Span]) -> tuple[str, list[Span], list[Span]]:
        """Put the texts back into a rendering: (text, spans in it, where the texts stand). Raises `RowRejected`."""
        parts: list[str] = []
        plain: list[Span] = []
        borders, shifts, last, at = [0], [0], 0, 0  # behind a border in `text`, places move by its shift
        for match in _STAND_IN.finditer(text):
            token = self.tokens[ord(match[1]) - _FIRST]
            parts += [text[last : match.start()], token]
            at += match.start() - last + len(token)
            last = match.end()
            plain.append((at - len(token), at))
            borders.append(last)
            shifts.append(at - last)
        whole = "".join([*parts, text[last:]])
        if _MARK in whole:
            raise RowRejected("special_text", "the template takes the text of a special token apart")

        def moved(place: int) -> int:
            return place + shifts[bisect_right(borders, place) - 1]

        return whole, [(moved(begin), moved(end)) for begin, end in spans], plain

    def _first(self, value: Any) -> str | None:
        if type(value) is str:
            match = self.pattern.search(value)
            return None if match is None else match[0]
        if isinstance(value, Mapping):
            inner = (*value.keys(), *value.values())
        elif isinstance(value, list | tuple):
            inner = tuple(value)
        else:
            return None
        return next((found for each in inner if (found := self._first(each)) is not None), None)

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            if _MARK in value:
                raise RowRejected("reserved_character", f"U+{ord(_MARK):04X}: {shown(value)}")
            return self.pattern.sub(lambda match: _MARK + chr(_FIRST + self._number[match[0]]), value)
        if isinstance(value, Mapping):
            return {self._hidden(key): self._hidden(inner) for key, inner in value.items()}
        return [self._hidden(inner) for inner in value] if isinstance(value, list | tuple) else value
