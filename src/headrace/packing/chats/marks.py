"""Mark the parts of messages, so that a rendering shows where they went. Pure.

Also make skeletons of renderings, and replace special tokens that were typed into a message with
stand-ins.

A mark is written in Unicode noncharacters, U+FDD0 to U+FDEF. No text for interchange holds them,
and to a template that trims or splits they are not white space, letters or digits. Rows that hold
them are refused, so every mark found is ours. A mark goes inside the white space around a text,
never around it, and never before or after a tag that the template looks for. So `trim`,
`startswith("<think>")` and the like behave as they would without marks.

A skeleton is what all conversations of one shape have in common: the template's own texts between
the messages' texts. It is learnt from one conversation that was rendered with marks. The next
conversation of the shape is rendered once, without marks, and the skeleton predicts the whole text.
If prediction and rendering are equal, character for character, the skeleton says where the turns
are; otherwise it is not used.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any, NamedTuple

from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.messages import REASONING_KEYS, Message
from headrace.packing.chats.rejections import RowRejected, preview
from headrace.packing.chats.words import Moved, reasoning_length

Span = tuple[int, int]
"""Begin and end in a text, in characters."""

BEGIN = "\ufdd0"
END = "\ufdd1"
JSON_BEGIN = "\ufdd2"
JSON_END = "\ufdd3"
GENERATED_BEGIN = "\ufdd4"
GENERATED_END = "\ufdd5"
RESERVED = re.compile("[\ufdd0-\ufdef]")

_DIGITS = "\ufde0\ufde1\ufde2\ufde3\ufde4\ufde5\ufde6\ufde7\ufde8\ufde9"
_TO_DIGITS = str.maketrans("0123456789", _DIGITS)
_FROM_DIGITS = str.maketrans(_DIGITS, "0123456789")
_MARK = re.compile(f"([{BEGIN}{END}{JSON_BEGIN}{JSON_END}])([{_DIGITS}]+)")
_TAG = re.compile(r"</?[A-Za-z_][\w|.:-]*>")
_HOLE = "\x00"
_ENDS = {BEGIN: END, JSON_BEGIN: JSON_END}
# a stand-in: a noncharacter, then a private character that numbers the token
_STANDS = "\uffff"
_FIRST = 0xF0000
_STAND_IN = re.compile(f"{_STANDS}([{chr(_FIRST)}-\U0010ffff])")


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A marked text.

    owner: its message. part: its field. complete: whether it is a field, not a leaf inside
    arguments. covered: characters of the field that this text stands for, with the white space and
    tags beside it. reasoning: whether it is reasoning.
    """

    owner: int
    part: str
    text: str
    complete: bool
    covered: int = 0
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark in a rendering.

    at: its position in the text without marks. number: of a marked_text, or of a JSON text.
    """

    sign: str
    number: int
    at: int


def json_mark(number: int, text: str) -> str:
    """Enclose the n-th JSON text of a rendering in marks."""
    digits = str(number).translate(_TO_DIGITS)
    return f"{JSON_BEGIN}{digits}{text}{JSON_END}{digits}"


def marked_numbers(text: str) -> list[int]:
    """Return the numbers of the marks that begin inside a text."""
    numbers = []
    for sign, digits in _MARK.findall(text):
        if sign == BEGIN:
            numbers.append(int(digits.translate(_FROM_DIGITS)))
    return numbers


def unmarked(text: str) -> str:
    """Remove the marks inside a text."""
    return _MARK.sub("", text)


class AnyOf:
    """A search for any of several texts.

    It looks for single characters first, which is much faster.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted({*texts} - {""}, key=lambda text: (-len(text), text))
        counts = Counter(chain.from_iterable(map(set, self._texts)))
        self._hints = sorted(
            {
                min(text, key=lambda sign: (sign.isalnum(), -counts[sign], sign))
                for text in self._texts
            }
        )
        self.pattern = re.compile("|".join(map(re.escape, self._texts)) or r"(?!)")

    def stands_in(self, text: str) -> bool:
        """Return whether the text holds any of the texts."""
        return any(map(text.__contains__, self._hints)) and self.pattern.search(text) is not None


def tags_of(template: str, more: Iterable[str] = ()) -> re.Pattern[str]:
    """Build a pattern of the tags that a template mentions, and may therefore look for in a
    message, and of more tags.
    """
    tags = sorted({*_TAG.findall(template), *more}, key=lambda tag: (-len(tag), tag))
    return re.compile(f"({'|'.join(map(re.escape, tags)) or '(?!)'})")


def shape_of(messages: Sequence[Message], tags: re.Pattern[str]) -> tuple[list[Any], list[str]]:
    """Return the key that conversations of the same shape share, and the texts that may differ
    between them.

    The texts are numbered as `marked` numbers its whole field_texts: contents, reasoning, names of
    called functions.
    """
    key: list[Any] = []
    texts: list[str] = []

    def hole(core: str) -> str:
        texts.append(core)
        return _HOLE

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
                    key.append(
                        name if len(core) == len(value) else (name, value.replace(core, _HOLE, 1))
                    )
                else:
                    key.append((name, _filled(value, tags, hole)))
            elif name == "tool_calls":
                for call in value:
                    written = [call["function"]["name"], call["function"]["arguments"]]
                    key.append(
                        (
                            name,
                            *(
                                _filled(text, tags, hole)
                                for text in written
                                if isinstance(text, str)
                            ),
                        )
                    )
            else:  # ids differ in each conversation, and most templates leave them out
                key.append(name)
    return key, texts


def _filled(text: str, tags: re.Pattern[str], fill: Callable[[str], str]) -> str:
    """Replace the parts of a text between tags, but keep the white space around them."""
    filled = []
    for number, part in enumerate(tags.split(text)):
        if number & 1:
            core = ""
        else:
            core = part.strip()
        filled.append(part.replace(core, fill(core), 1) if core else part)
    return "".join(filled)


@dataclass
class _Marker:
    """Marks the texts of messages.

    marked_texts: the text of each mark. owners: the message that owns each part of a tool call, by
    the part's `id`.
    """

    tags: re.Pattern[str]
    marked_texts: list[MarkedText] = field(default_factory=list)
    owners: dict[int, int] = field(default_factory=dict)

    def mark(self, owner: int, part: str, text: str, *, complete: bool = True) -> str:
        first = len(self.marked_texts)

        def between_marks(core: str) -> str:
            digits = str(len(self.marked_texts)).translate(_TO_DIGITS)
            self.marked_texts.append(MarkedText(owner, part, core, complete))
            return f"{BEGIN}{digits}{core}{END}{digits}"

        filled = _filled(text, self.tags, between_marks)
        self._cover(first, text)
        return filled

    def _cover(self, first: int, text: str) -> None:
        """Note which part of a field each of its marked texts stands for."""
        field_texts = self.marked_texts[first:]
        starts = []
        at = 0
        for marked_text in field_texts:
            at = text.index(marked_text.text, at)
            starts.append(at)
            at += len(marked_text.text)
        ends = [*starts[1:], len(text)]
        reasoning = 0
        if field_texts and field_texts[0].part == "content":
            reasoning = reasoning_length(text)
        for number, marked_text in enumerate(field_texts):
            self.marked_texts[first + number] = replace(
                marked_text,
                covered=ends[number] - (starts[number] if number else 0),
                reasoning=marked_text.part in REASONING_KEYS or starts[number] < reasoning,
            )

    def mark_texts(self, owner: int, message: Message) -> None:
        """Mark the texts of a message, and the texts of its tool calls as far as they are whole."""
        for name, value in message.items():
            if value is not None and (name == "content" or name in REASONING_KEYS):
                message[name] = self.mark(owner, name, value)
            elif name == "tool_calls":
                message[name] = [{**call, "function": dict(call["function"])} for call in value]
                for call in message[name]:
                    for key, text in call["function"].items():
                        if isinstance(text, str):
                            call["function"][key] = self.mark(owner, "tool_calls", text)

    def mark_calls(self, owner: int, calls: list[dict[str, Any]]) -> None:
        """Mark the arguments of tool calls that are objects, and record who owns the calls."""
        for call in calls:
            function = call["function"]
            if not isinstance(function["arguments"], str):
                function["arguments"] = self._leaves(owner, function["arguments"])
            self.owners[id(call)] = owner
            self.owners[id(function)] = owner
        self.owners[id(calls)] = owner

    def _leaves(self, owner: int, value: Any) -> Any:
        """Mark every text in arguments, because a template may write them one by one."""
        if isinstance(value, str):
            return self.mark(owner, "arguments", value, complete=False)
        if isinstance(value, Mapping):
            copy: Any = {key: self._leaves(owner, inner) for key, inner in value.items()}
        elif isinstance(value, list):
            copy = [self._leaves(owner, inner) for inner in value]
        else:
            return value
        self.owners[id(copy)] = owner
        return copy


def marked(
    messages: Sequence[Message], tags: re.Pattern[str]
) -> tuple[list[Message], list[MarkedText], dict[int, int]]:
    """Mark the messages; return them, the text of each mark, and the owner of every part of a tool
    call, by `id`.
    """
    marker = _Marker(tags)
    copies = [dict(message) for message in messages]
    for owner, message in enumerate(copies):
        marker.mark_texts(owner, message)
    for owner, message in enumerate(copies):  # numbered after the whole field_texts
        if "tool_calls" in message:
            marker.mark_calls(owner, message["tool_calls"])
    return copies, marker.marked_texts, marker.owners


def parts_of(value: Any) -> Iterator[Any]:
    """Yield a value and all values inside it."""
    yield value
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from parts_of(inner)


def without_marks(text: str) -> tuple[str, list[Mark]]:
    """Remove the marks from a rendering, and return their positions."""
    parts = []
    marks = []
    at = 0
    last = 0
    for match in _MARK.finditer(text):
        parts.append(text[last : match.start()])
        at += match.start() - last
        last = match.end()
        marks.append(Mark(match[1], int(match[2].translate(_FROM_DIGITS)), at))
    parts.append(text[last:])
    return "".join(parts), marks


def without_generated(text: str) -> tuple[str, list[Span]]:
    """Remove the marks of `{% generation %}` blocks and return their spans; nested blocks belong to
    the outer one.
    """
    parts = re.split(f"([{GENERATED_BEGIN}{GENERATED_END}])", text)
    spans: list[Span] = []
    at = 0
    depth = 0
    begin = 0
    for part in parts:
        if part == GENERATED_BEGIN:
            depth += 1
            if depth == 1:
                begin = at
        elif part == GENERATED_END:
            depth -= 1
            if depth == 0 and at > begin:
                spans.append((begin, at))
        else:
            at += len(part)
    return "".join(parts[::2]), spans


class Skeleton(NamedTuple):
    """The literal texts of a shape, the slots between them, and the trained parts of its turns.

    parts: literal texts, and an empty one for each slot between them. slots: n ≥ 0 is the n-th text
    of the messages, -1-n the n-th JSON of the rendering. turns: where each begins and ends, in the
    order of messages: part, offset in it, part, offset in it.
    """

    parts: list[str]
    slots: list[int]
    turns: list[tuple[int, int, int, int]]
    moves: list[Moved]
    """Texts with an unusual fate; for numbered ones, the characters beside the text itself."""

    def moved(self, texts: Sequence[str]) -> list[Moved]:
        """Return the texts with an unusual fate in a conversation with these texts."""
        result = []
        for move in self.moves:
            if move.number >= 0:
                move = move._replace(characters=move.characters + len(texts[move.number]))
            result.append(move)
        return result

    def filled(
        self, texts: Sequence[str], jsons: Sequence[str] = ()
    ) -> tuple[str, list[Span]] | None:
        """Write the conversation with these texts, and find its turns; None if it has other
        slots.
        """
        values = [*texts, *jsons[::-1]]  # so that -1 is the first JSON
        filled = self.parts.copy()
        try:
            filled[1::2] = [values[number] for number in self.slots]
        except IndexError:
            return None
        starts = [*accumulate(map(len, filled), initial=0)]
        return "".join(filled), [
            (starts[a] + begin, starts[b] + end) for a, begin, b, end in self.turns
        ]


def skeleton_of(
    text: str,
    marks: Sequence[Mark],
    marked_texts: Sequence[MarkedText],
    jsons: Sequence[str],
    turns: Sequence[Span],
    moves: Sequence[Moved],
) -> Skeleton | None:
    """Make the skeleton of one rendering; None if a text was not written whole and unchanged."""
    if len(marks) % 2:
        return None
    parts: list[str] = []
    slots: list[int] = []
    starts: list[int] = []  # of literals, which have fixed lengths and even indices in parts
    at = 0
    for first, last in zip(marks[::2], marks[1::2], strict=True):
        if last.number != first.number or _ENDS.get(first.sign) != last.sign:
            return None
        marked_text = None
        if first.sign == BEGIN:
            marked_text = marked_texts[first.number]
        if text[first.at : last.at] != (
            marked_text.text if marked_text else jsons[first.number]
        ) or (marked_text and not marked_text.complete):
            return None
        parts += (text[at : first.at], "")
        slots.append(first.number if marked_text else -1 - first.number)
        starts.append(at)
        at = last.at
    parts.append(text[at:])
    starts.append(at)

    def locate(at: int) -> tuple[int, int]:
        literal = bisect_right(starts, at) - 1
        return 2 * literal, at - starts[literal]

    beside = []
    for move in moves:
        if move.number >= 0:
            text_size = len(marked_texts[move.number].text)
            move = move._replace(characters=move.characters - text_size)
        beside.append(move)
    return Skeleton(parts, slots, [(*locate(begin), *locate(end)) for begin, end in turns], beside)


class Specials:
    """The special tokens of one tokenizer as a pattern.

    ends: those that end generation. bos: the one that begins a sequence.

    A user who types `<|im_end|>` has typed ten characters, but a tokenizer that reads the rendering
    turns them into the token that ends a turn. So such texts are rendered as stand-ins, two
    characters that no row holds and no template looks for, and put back afterwards. Their positions
    are then known. Rows without such texts cost one search.
    """

    def __init__(
        self, tokens: Sequence[str], ends: Iterable[str] = (), bos: str | None = None
    ) -> None:
        self.tokens = sorted({*tokens} - {""}, key=lambda token: (-len(token), token))
        self._number = {token: number for number, token in enumerate(self.tokens)}
        self._any = AnyOf(self.tokens)
        self.pattern = self._any.pattern
        self.ends = frozenset(ends) - {""}
        self.bos = bos or ""

    def spans(self, text: str, until: int | None = None) -> list[Span]:
        """Find the spans of special tokens in a text that end at or before `until`."""
        if until is None:
            most = len(text)
        else:
            most = until
        result = []
        for match in self.pattern.finditer(text):
            if match.end() <= most:
                result.append(match.span())
        return result

    def hidden(self, chat: Conversation) -> Conversation:
        """Replace special tokens with stand-ins.

        Raises `RowRejected` if the conversation holds their characters.
        """
        messages, tools, values = (
            self._hidden(value) for value in (chat.messages, chat.tools, chat.values)
        )
        return replace(chat, messages=messages, tools=tools, values=values)

    def restored(self, text: str, spans: Sequence[Span]) -> tuple[str, list[Span], list[Span]]:
        """Put the special tokens back: (text, `spans` in it, spans of the tokens).

        Raises `RowRejected`.
        """
        parts: list[str] = []
        plain: list[Span] = []
        # positions after a border in `text` move by its shift
        ends = [0]
        shifts = [0]
        last = 0
        at = 0
        for match in _STAND_IN.finditer(text):
            token = self.tokens[ord(match[1]) - _FIRST]
            parts += [text[last : match.start()], token]
            at += match.start() - last + len(token)
            last = match.end()
            plain.append((at - len(token), at))
            ends.append(last)
            shifts.append(at - last)
        complete = "".join([*parts, text[last:]])
        if _STANDS in complete:
            raise RowRejected("special_text", "the template splits the text of a special token")

        def moved(position: int) -> int:
            return position + shifts[bisect_right(ends, position) - 1]

        return complete, [(moved(begin), moved(end)) for begin, end in spans], plain

    def first_in_chat(self, chat: Conversation) -> str | None:
        """Find the first special token in the texts of a conversation, including its tools and
        values.
        """
        if not chat.tools and not chat.values:
            contents = []
            for message in chat.messages:
                if len(message) == 2:
                    contents.append(message["content"])
            if len(contents) == len(chat.messages) and not self._any.stands_in("\0".join(contents)):
                return None
        return self.first_in((chat.messages, chat.tools, chat.values))

    def first_in(self, value: Any) -> str | None:
        """Find the first special token in a text, or in the texts of a collection; None if there is
        none.
        """
        if type(value) is str:
            match = self.pattern.search(value) if self._any.stands_in(value) else None
            return None if match is None else match[0]
        inner = (*value.keys(), *value.values()) if isinstance(value, Mapping) else value
        if isinstance(inner, list | tuple):
            for part in inner:
                special = self.first_in(part)
                if special is not None:
                    return special
        return None

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            if _STANDS in value:
                raise RowRejected("reserved_character", f"U+{ord(_STANDS):04X}: {preview(value)}")
            return self.pattern.sub(
                lambda match: _STANDS + chr(_FIRST + self._number[match[0]]), value
            )
        if isinstance(value, Mapping):
            return {self._hidden(key): self._hidden(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(inner) for inner in value]
        return value


def shared_start(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
