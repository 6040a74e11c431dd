"""Marks around the parts of messages, so that a rendering tells where they went. Pure.

A mark is written in Unicode noncharacters, U+FDD0 to U+FDEF, which no text for interchange holds and which are no white
space, no letters and no digits to a template that trims or splits. Rows that hold them are refused, so what is found
is ours. A mark stands inside the white space around a text, never around it, and not before or behind a tag that the
template looks for, so `trim`, `startswith("<think>")` and the like see what they would see without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.packing.chats.messages import Message

BEGIN, END, JSON_BEGIN, JSON_END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
GENERATED_BEGIN, GENERATED_END = "\ufdd4", "\ufdd5"
RESERVED = re.compile("[\ufdd0-\ufdef]")
REASONING = ("reasoning_content", "reasoning", "thinking")

_DIGITS = "\ufde0\ufde1\ufde2\ufde3\ufde4\ufde5\ufde6\ufde7\ufde8\ufde9"
_TO_DIGITS = str.maketrans("0123456789", _DIGITS)
_FROM_DIGITS = str.maketrans(_DIGITS, "0123456789")
_MARK = re.compile(f"([{BEGIN}{END}{JSON_BEGIN}{JSON_END}])([{_DIGITS}]+)")
_TAG = re.compile(r"</?[A-Za-z_][\w|.:-]*>")
_HOLE = "\x00"


@dataclass(frozen=True, slots=True)
class Piece:
    """A marked text. owner: its message; part: which of its fields; whole: not a leaf inside arguments."""

    owner: int
    part: str
    text: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A mark in a rendering. at: where, in the text without marks; number: of a piece, or of a JSON text."""

    kind: str
    number: int
    at: int


def json_mark(number: int, text: str) -> str:
    """A text between the marks of the n-th JSON of a rendering; marks inside it are dropped."""
    digits = str(number).translate(_TO_DIGITS)
    return f"{JSON_BEGIN}{digits}{_MARK.sub('', text)}{JSON_END}{digits}"


def tags_of(template: str) -> re.Pattern[str]:
    """A pattern of the tags that a template mentions, and may therefore look for in a message."""
    found = sorted(set(_TAG.findall(template)), key=lambda tag: (-len(tag), tag))
    return re.compile("(" + "|".join(map(re.escape, found)) + ")" if found else r"((?!))")


def shape_of(messages: Sequence[Message], tags: re.Pattern[str]) -> tuple[list[Any], list[str]]:
    """What is alike in conversations that are written alike, and the texts that may differ.

    The texts are numbered as `marked` numbers its whole pieces: contents, reasoning, names of called functions.
    """
    key: list[Any] = []
    texts: list[str] = []
    for message in messages:
        key.append(message["role"])
        for name, value in message.items():
            if name == "role":
                continue
            if value is None:
                key.append((name, None))
            elif name == "content" or name in REASONING:
                core = value.strip()
                if core and "<" not in core:
                    texts.append(core)
                    key.append(name if len(core) == len(value) else (name, value.replace(core, _HOLE, 1)))
                else:
                    key.append((name, _pattern(value, tags, texts)))
            elif name == "tool_calls":
                for call in value:
                    written = [call["function"]["name"], call["function"]["arguments"]]
                    patterns = [_pattern(each, tags, texts) for each in written if isinstance(each, str)]
                    key.append((name, *patterns))
            else:  # ids and the like are of one conversation alone, and most templates leave them out
                key.append(name)
    return key, texts


def _pattern(text: str, tags: re.Pattern[str], texts: list[str]) -> str:
    """A text with its parts between tags as holes; the parts are added to `texts`."""
    found = []
    for place, part in enumerate(tags.split(text)):
        core = "" if place & 1 else part.strip()
        if core:
            texts.append(core)
        found.append(part.replace(core, _HOLE, 1) if core else part)
    return "".join(found)


def marked(messages: Sequence[Message], tags: re.Pattern[str]) -> tuple[list[Message], list[Piece], dict[int, int]]:
    """The messages with marks, what each mark stands for, and whose every part of a tool call is, by `id`."""
    marker = _Marker(tags)
    found = [marker.message(place, message) for place, message in enumerate(messages)]
    leaves = len(marker.pieces)
    for place, message in enumerate(found):  # numbered behind the whole pieces
        for call in message.get("tool_calls", ()):
            function = call["function"]
            if not isinstance(function["arguments"], str):
                function["arguments"] = marker.leaves(place, function["arguments"])
            marker.owners[id(call)] = marker.owners[id(function)] = place
        if "tool_calls" in message:
            marker.owners[id(message["tool_calls"])] = place
    assert all(piece.whole for piece in marker.pieces[:leaves])
    return found, marker.pieces, marker.owners


class _Marker:
    def __init__(self, tags: re.Pattern[str]) -> None:
        self.tags = tags
        self.pieces: list[Piece] = []
        self.owners: dict[int, int] = {}

    def message(self, owner: int, message: Message) -> Message:
        found: Message = {}
        for name, value in message.items():
            if value is not None and (name == "content" or name in REASONING):
                found[name] = self.text(owner, name, value)
            elif name == "tool_calls":
                found[name] = [{**call, "function": self.function(owner, call["function"])} for call in value]
            else:
                found[name] = value
        return found

    def function(self, owner: int, function: Message) -> Message:
        """A called function; arguments that are one text are marked as one."""
        return {
            key: self.text(owner, "tool_calls", value) if isinstance(value, str) else value
            for key, value in function.items()
        }

    def text(self, owner: int, part: str, text: str, *, whole: bool = True) -> str:
        found = []
        for place, each in enumerate(self.tags.split(text)):
            core = "" if place & 1 else each.strip()
            found.append(each.replace(core, self.between(Piece(owner, part, core, whole)), 1) if core else each)
        return "".join(found)

    def between(self, piece: Piece) -> str:
        digits = str(len(self.pieces)).translate(_TO_DIGITS)
        self.pieces.append(piece)
        return f"{BEGIN}{digits}{piece.text}{END}{digits}"

    def leaves(self, owner: int, value: Any) -> Any:
        """Arguments with every text in them marked; a template may write them one by one."""
        if isinstance(value, str):
            return self.text(owner, "arguments", value, whole=False)
        if not isinstance(value, Mapping | list):
            return value
        found: Any = (
            {key: self.leaves(owner, inner) for key, inner in value.items()}
            if isinstance(value, Mapping)
            else [self.leaves(owner, inner) for inner in value]
        )
        self.owners[id(found)] = owner
        return found


def parts_of(value: Any) -> Iterator[Any]:
    """A value and all that it holds."""
    yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from parts_of(inner)


def without_marks(text: str) -> tuple[str, list[Found]]:
    """A rendering without its marks, and where they stood."""
    pieces, found, at, last = [], [], 0, 0
    for match in _MARK.finditer(text):
        pieces.append(text[last : match.start()])
        at += match.start() - last
        last = match.end()
        found.append(Found(match[1], int(match[2].translate(_FROM_DIGITS)), at))
    pieces.append(text[last:])
    return "".join(pieces), found


def without_generated(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A rendering without the marks of `{% generation %}` blocks, and their spans; a block in a block is part of it."""
    parts = re.split(f"([{GENERATED_BEGIN}{GENERATED_END}])", text)
    spans: list[tuple[int, int]] = []
    at, depth, begin = 0, 0, 0
    for part in parts:
        if part == GENERATED_BEGIN:
            depth += 1
            begin = at if depth == 1 else begin
        elif part == GENERATED_END:
            depth -= 1
            if depth == 0 and at > begin:
                spans.append((begin, at))
        else:
            at += len(part)
    return "".join(parts[::2]), spans
