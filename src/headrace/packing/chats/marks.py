"""Marks around the parts of messages, so that a rendering tells where they went, and skeletons made of that. Pure.

A mark is written in Unicode noncharacters, U+FDD0 to U+FDEF, which no text for interchange holds and which are no white
space, no letters and no digits to a template that trims or splits. Rows that hold them are refused, so what is found
is ours. A mark stands inside the white space around a text, never around it, and not before or behind a tag that the
template looks for, so `trim`, `startswith("<think>")` and the like see what they would see without it.

A skeleton is what all conversations of one shape have in common: the template's own texts between the messages' texts.
It is learnt from one conversation that was rendered with marks. For the next conversation of the shape the template is
rendered once, without marks, and the skeleton predicts the whole text. If prediction and rendering are equal, character
for character, the skeleton says where the turns are; if not, it says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from headrace.packing.chats.messages import REASONING_KEYS, Message

Span = tuple[int, int]
"""Begin and end in a text, in characters."""

Place = tuple[int, int]  # a part of a skeleton, and how far behind its beginning

BEGIN, END, JSON_BEGIN, JSON_END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
GENERATED_BEGIN, GENERATED_END = "\ufdd4", "\ufdd5"
RESERVED = re.compile("[\ufdd0-\ufdef]")

_DIGITS = "\ufde0\ufde1\ufde2\ufde3\ufde4\ufde5\ufde6\ufde7\ufde8\ufde9"
_TO_DIGITS = str.maketrans("0123456789", _DIGITS)
_FROM_DIGITS = str.maketrans(_DIGITS, "0123456789")
_MARK = re.compile(f"([{BEGIN}{END}{JSON_BEGIN}{JSON_END}])([{_DIGITS}]+)")
_TAG = re.compile(r"</?[A-Za-z_][\w|.:-]*>")
_HOLE = "\x00"
_ENDS = {BEGIN: END, JSON_BEGIN: JSON_END}


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
    """Put a text between the marks of the n-th JSON of a rendering; marks inside it are dropped."""
    digits = str(number).translate(_TO_DIGITS)
    return f"{JSON_BEGIN}{digits}{_MARK.sub('', text)}{JSON_END}{digits}"


def tags_of(template: str) -> re.Pattern[str]:
    """Make a pattern of the tags that a template mentions, and may therefore look for in a message."""
    found = sorted(set(_TAG.findall(template)), key=lambda tag: (-len(tag), tag))
    return re.compile("(" + "|".join(map(re.escape, found)) + ")" if found else r"((?!))")


def shape_of(messages: Sequence[Message], tags: re.Pattern[str]) -> tuple[list[Any], list[str]]:
    """Find what is alike in conversations that are written alike, and the texts that may differ.

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
            elif name == "content" or name in REASONING_KEYS:
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
    """Mark the messages; what each mark stands for, and whose every part of a tool call is, by `id`."""
    marker = _Marker(tags)
    found = [marker.message(owner, message) for owner, message in enumerate(messages)]
    for owner, message in enumerate(found):  # numbered behind the whole pieces
        for call in message.get("tool_calls", ()):
            function = call["function"]
            if not isinstance(function["arguments"], str):
                function["arguments"] = marker.leaves(owner, function["arguments"])
            marker.owners[id(call)] = marker.owners[id(function)] = owner
        if "tool_calls" in message:
            marker.owners[id(message["tool_calls"])] = owner
    return found, marker.pieces, marker.owners


class _Marker:
    def __init__(self, tags: re.Pattern[str]) -> None:
        self.tags = tags
        self.pieces: list[Piece] = []
        self.owners: dict[int, int] = {}

    def message(self, owner: int, message: Message) -> Message:
        """Mark the texts of a message; of a call the name, and arguments that are one text."""
        found: Message = dict(message)
        for name, value in message.items():
            if value is not None and (name == "content" or name in REASONING_KEYS):
                found[name] = self.text(owner, name, value)
            elif name == "tool_calls":
                found[name] = [
                    {
                        **call,
                        "function": {
                            key: self.text(owner, name, inner) if isinstance(inner, str) else inner
                            for key, inner in call["function"].items()
                        },
                    }
                    for call in value
                ]
        return found

    def text(self, owner: int, part: str, text: str, *, whole: bool = True) -> str:
        found = []
        for place, each in enumerate(self.tags.split(text)):
            core = "" if place & 1 else each.strip()
            if core:
                digits = str(len(self.pieces)).translate(_TO_DIGITS)
                self.pieces.append(Piece(owner, part, core, whole))
                each = each.replace(core, f"{BEGIN}{digits}{core}{END}{digits}", 1)
            found.append(each)
        return "".join(found)

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
    """Walk a value and all that it holds."""
    yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from parts_of(inner)


def without_marks(text: str) -> tuple[str, list[Found]]:
    """Take the marks out of a rendering, and say where they stood."""
    pieces, found, at, last = [], [], 0, 0
    for match in _MARK.finditer(text):
        pieces.append(text[last : match.start()])
        at += match.start() - last
        last = match.end()
        found.append(Found(match[1], int(match[2].translate(_FROM_DIGITS)), at))
    pieces.append(text[last:])
    return "".join(pieces), found


def without_generated(text: str) -> tuple[str, list[Span]]:
    """Take out the marks of `{% generation %}` blocks, and find their spans; a block in a block is part of it."""
    parts = re.split(f"([{GENERATED_BEGIN}{GENERATED_END}])", text)
    spans: list[Span] = []
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


@dataclass(frozen=True, slots=True)
class Skeleton:
    """parts: literal texts, and numbers: n ≥ 0 is the n-th text of the messages, -1-n the n-th JSON of the rendering.

    turns: per assistant message its place, and where the trained part begins and ends.
    """

    parts: list[str | int]
    turns: dict[int, tuple[Place, Place]]

    def spans(self, text: str, texts: Sequence[str], jsons: Sequence[str]) -> dict[int, Span] | None:
        """Find the turns of a rendered conversation; None if the skeleton does not predict its text."""
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
    """Make the skeleton of one rendering. None where a text went into it otherwise than whole and as it is."""
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
