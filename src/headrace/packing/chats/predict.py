"""Write conversations from the skeletons of others, without running the template. Pure.

The skeleton of a shape is learnt from the first rendered conversation of that shape. `template_reads` finds in the
source what a template looks for in contents. A conversation without any of that is written like all others of its
shape, so its text is the skeleton's literals with its own contents between them. All others are rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.marks import RESERVED, AnyOf, Span

_MOST_SHAPES = 4096
_MOST_CHARACTERS = 1 << 20  # of a conversation; the template has limits for longer ones


class Predictions:
    """The known skeletons of one template. wanted: texts that it looks for in contents."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self._wanted = AnyOf(wanted)
        self._shapes: dict[Any, tuple[list[str | int], list[tuple[int, int, int, int]]]] = {}

    def shape_of(self, chat: Conversation) -> tuple[Any, list[str]] | None:
        """Return the key of a conversation's shape and its texts; None if the template must render it."""
        contents: list[str] = []
        texts: list[str] = []
        key: list[Any] = [*chat.weights]
        for message in chat.messages:
            content = message["content"]
            text = content.strip()
            if len(message) != 2 or not text:
                return None
            contents.append(content)
            texts.append(text)
            key.append(message["role"])
            if len(text) != len(content):
                begin = content.index(text)
                key += (content[:begin], content[begin + len(text) :])
        joined = "\0".join(contents)
        if len(joined) > _MOST_CHARACTERS or self._wanted.stands_in(joined):
            return None
        if not joined.isascii() and RESERVED.search(joined):
            return None
        if chat.tools or chat.values:
            key.append(repr((chat.tools, chat.values)))
        return tuple(key), texts

    def written(self, key: Any, texts: Sequence[str]) -> tuple[str, list[Span]] | None:
        """Write a conversation of a known shape; return its text and trained spans, or None if the shape is unknown."""
        known = self._shapes.get(key)
        if known is None:
            return None
        parts, turns = known
        filled = [part if isinstance(part, str) else texts[part] for part in parts]
        starts = [*accumulate(map(len, filled), initial=0)]
        return "".join(filled), [(starts[a] + begin, starts[b] + end) for a, begin, b, end in turns]

    def learn(self, key: Any, texts: Sequence[str], parts: Sequence[Any], turns: Sequence[Sequence[int]]) -> None:
        """Store the skeleton of a shape, if it fits these texts."""
        numbers = [part for part in parts if not isinstance(part, str)]
        if all(type(part) is int and 0 <= part < len(texts) for part in numbers):
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[key] = [*parts], [(a, begin, b, end) for a, begin, b, end in turns]
