"""Render conversations as text with the spans that the model must produce.

The model is given everything up to the end of the generation prompt. It must produce everything
from there through the token that ends its turn. White space after that token and the header of the
next turn belong to the template.

The template renders a whole conversation once. Turns are found by the first of these methods that
is certain:

- `{% generation %}` blocks, if the template has them.
- A skeleton of the conversation's shape, if it predicts the text exactly.
- Marks at both ends of every text. If the rendering without them is the plain rendering, they show
  where every text went. Two shorter renderings show the header and the end-of-turn token: one ends
  with the generation prompt before the turn, the other with the turn. A skeleton is kept for the
  next conversation of this shape.
- Differences, if marks change the rendering: a turn is what changes when that message alone is
changed.

If none is certain, `RowRejected` is raised. A mask is never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeGuard

from headrace.packing.chats.certificate import Certificate, certificate_of, constant_prompt
from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.marks import (
    BEGIN,
    END,
    JSON_BEGIN,
    JSON_END,
    RESERVED,
    Mark,
    MarkedText,
    Skeleton,
    Span,
    Specials,
    marked,
    parts_of,
    shape_of,
    shared_start,
    skeleton_of,
    tags_of,
    without_generated,
    without_marks,
)
from headrace.packing.chats.messages import REASONING_KEYS, Message, with_json_arguments
from headrace.packing.chats.probes import THOUGHT, answer, user
from headrace.packing.chats.rejections import RowRejected, preview
from headrace.packing.chats.template import Template, Trace
from headrace.packing.chats.turns import Reasoning, TrainOn, sequences_of
from headrace.packing.chats.words import WHOLE, Moved, characters_of, is_flag, texts_in

_ADDRESS = " at 0x"
# bounds on memory
_MOST_SHAPES = 4096
_MOST_REMEMBERED = 4096
_MOST_SKELETONS = 8  # kept for one shape
_TOOLS = -1  # the owner of the text that is written for tools
_CHANGED = "\ufdef"
_SHORT = 8  # characters; shorter texts may occur anywhere by chance
_MOST_KEYS = 1 << 16  # of a message
_READ_KEYS = frozenset(("role", "content", "tool_calls", *REASONING_KEYS))
_CLOSING = r"\s*(?:{}|</?[\w|.:-]+>)?\s*"  # what ends reasoning, of special tokens and tags
_REASONING_TAGS = ("<think>", "</think>")  # they divide reasoning under any template
_PARTS_OF_CALLS = {"tool_calls": "a tool call", "arguments": "an argument of a tool call"}
_LEFT = re.compile(r"(\s|</?[\w|.:-]+>)*")  # allowed beside a changed text: white space and tags

# Forms of messages with tool calls, because templates differ in what they expect: the content of a
# message without one, and arguments as an object or as JSON. Normalised messages have the first
# form.
_FORMS = [(empty, arguments) for empty in ("", None) for arguments in ("object", "text")]
_ASKS_FOR_NONE = re.compile(r"content(['\"]\])? is (not )?none", re.IGNORECASE)


@dataclass(slots=True)
class Rendered:
    """A text and its trained spans: [begin, end) in characters, in order, none empty.

    moves: texts whose fate is not what the weight of their message says. tools_removed: characters
    of the tools that the template leaves out.
    """

    text: str
    spans: list[Span]
    moves: list[Moved] = field(default_factory=list)
    tools_removed: int = 0


class ChatRenderer:
    """Renderer of conversations with the templates of one tokenizer.

    Not thread-safe: use one per thread.
    """

    def __init__(
        self,
        templates: Mapping[str, Template],
        specials: Specials,
        reasoning: Reasoning = "template",
        train_on: TrainOn = "every_turn",
    ) -> None:
        self._reasoning = reasoning
        self._train_on = train_on
        self._turns = {
            name: Turns(template, specials, reasoning) for name, template in templates.items()
        }

    def render(self, chat: Conversation) -> list[Rendered]:
        """Render a conversation as one sequence, or one per answered user turn with
        reasoning="every_user_turn".

        A conversation with nothing to train on has a text without spans. Raises `RowRejected`.
        """
        turns = self._turns["tool_use" if chat.tools and "tool_use" in self._turns else "default"]
        result = []
        for part in sequences_of(chat, self._reasoning, self._train_on):
            rendered = turns.render(part)
            if self._reasoning == "keep":
                _refuse_lost_reasoning(rendered)
            result.append(rendered)
        return result

    @cached_property
    def certificates(self) -> dict[str, Certificate | None]:
        """Probe each template; see `certificate`."""
        return {name: certificate_of(turns) for name, turns in self._turns.items()}


def _refuse_lost_reasoning(rendered: Rendered) -> None:
    for move in rendered.moves:
        if move.field == "reasoning_content" and move.fate == "removed":
            raise RowRejected(
                "not_rendered", f"message {move.owner + 1}: the template leaves out its reasoning"
            )


def _tools_left_out(count: int) -> RowRejected:
    return RowRejected(
        "not_rendered", f"the template would leave out all tools of the conversation, {count}"
    )


def _is_in(part: str, text: str) -> bool:
    """Return whether a rendering holds a text, as it is or in JSON."""
    part = part.strip()
    if part in text:
        return True
    return any(json.dumps(part, ensure_ascii=ascii_)[1:-1] in text for ascii_ in (False, True))


def _in_form(chat: Conversation, empty: str | None, arguments: str) -> Conversation:
    messages = []
    for message in chat.messages:
        if "tool_calls" in message:
            message = {**message, "content": message["content"] or empty}
            if arguments == "text":
                message = with_json_arguments(message, ensure_ascii=False)
        messages.append(message)
    return replace(chat, messages=messages)


class Turns:
    """One template, and what was learnt from its renderings. Not thread-safe."""

    def __init__(
        self, template: Template, specials: Specials, reasoning: Reasoning = "template"
    ) -> None:
        self.template = template
        self.specials = specials
        self.masks_reasoning = reasoning == "mask"
        self.tags = tags_of(template.source, _REASONING_TAGS if self.masks_reasoning else ())
        self.closing = re.compile(_CLOSING.format(specials.pattern.pattern))
        asks = _ASKS_FOR_NONE.search(template.source) is not None
        self._forms = sorted(_FORMS, key=lambda form: asks and form[0] is not None)
        self._skeletons: dict[Any, list[Skeleton]] = {}
        self._remembered: dict[Any, int | None] = {}
        self._keys_read: dict[tuple[str, str], bool] = {}

    @cached_property
    def reasoning_key(self) -> str:
        """The key under which the template reads reasoning; the usual one if it reads none."""
        for key in REASONING_KEYS:
            try:
                text = self.template.render(
                    [user(), answer(**{key: THOUGHT})], None, {}, trace=Trace()
                )
            except RowRejected:
                continue
            if THOUGHT in text:
                return key
        return REASONING_KEYS[0]

    def written(self, messages: list[Message], *, prompt: bool = False) -> str:
        """Render messages without tools and marks. Raises `RowRejected`."""
        text = self.template.render(messages, None, {}, trace=Trace(), generation_prompt=prompt)
        return without_generated(text)[0]

    @cached_property
    def constant_prompt(self) -> str:
        """The generation prompt, if the template writes it whether it is requested or not."""
        return constant_prompt(self)

    def render(self, chat: Conversation) -> Rendered:
        """Render a conversation, and find what the template leaves out of its tools."""
        rendered = self._in_any_form(chat)
        if chat.tools:
            rendered.tools_removed = self._removed_of_tools(chat, rendered.text)
        return rendered

    def _removed_of_tools(self, chat: Conversation, text: str) -> int:
        """Count the characters of the tools that are not in a rendering.

        Raises `RowRejected` if none are.
        """
        removed = sum(len(part) for part in texts_in(chat.tools) if not _is_in(part, text))
        if 2 * removed > characters_of(chat.tools) and not self._reads_tools(chat, text):
            raise _tools_left_out(len(chat.tools or ()))
        return removed

    def _reads_tools(self, chat: Conversation, text: str) -> bool:
        """Return whether a conversation without its tools has another rendering."""
        try:
            return self._in_any_form(replace(chat, tools=None)).text != text
        except RowRejected:
            return True

    def _in_any_form(self, chat: Conversation) -> Rendered:
        """Render a conversation, with tool calls in the first form that the template accepts."""
        if self.reasoning_key != REASONING_KEYS[0]:
            chat = replace(chat, messages=[self._renamed(message) for message in chat.messages])
        if chat.tools and not self.template.writes_tools:
            raise _tools_left_out(len(chat.tools))
        if not any("tool_calls" in message for message in chat.messages):
            return self._with_spans(chat)
        wrong: list[RowRejected] = []
        for form in self._forms:
            try:
                return self._with_spans(_in_form(chat, *form))
            except RowRejected as rejected:
                if rejected.reason not in ("template_error", "not_rendered"):
                    raise
                wrong.append(rejected)
        raise wrong[0]

    def _renamed(self, message: Message) -> Message:
        """Return a message with its reasoning under the key that the template reads."""
        if REASONING_KEYS[0] not in message:
            return message
        message = dict(message)
        message[self.reasoning_key] = message.pop(REASONING_KEYS[0])
        return message

    def _with_spans(self, chat: Conversation) -> Rendered:
        trace = Trace()
        text = self.template.render(chat.messages, chat.tools, chat.values, trace=trace)
        # A function or iterator that a template writes shows its memory address, which differs in
        # every run.
        if _ADDRESS in text and _ADDRESS not in repr((chat.messages, chat.tools, chat.values)):
            before = text[: text.index(_ADDRESS)][-40:]
            raise RowRejected(
                "template_error", f"the template writes an object, not a text: {preview(before)}"
            )
        if self.template.has_generation_blocks:
            source_text = json.dumps([chat.messages, chat.tools], ensure_ascii=False, default=str)
            _check_reserved(source_text)
            text, blocks = without_generated(text)
            return self._in_blocks(chat, text, trace, blocks)
        _check_reserved(text)
        trained = [index for index, weight in enumerate(chat.weights) if weight]
        rendered = self._find(chat, text, trace, trained)
        for (_, last), (begin, end) in pairwise([(0, 0), *rendered.spans]):
            if not last <= begin < end:
                raise RowRejected(
                    "uncertain_mask",
                    f"the turns found overlap or are empty: {sorted(rendered.spans)}",
                )
        return rendered

    def _in_blocks(
        self, chat: Conversation, text: str, trace: Trace, spans: list[Span]
    ) -> Rendered:
        """Return the rendering whose trained parts are `{% generation %}` blocks."""
        answers = [
            index for index, message in enumerate(chat.messages) if message["role"] == "assistant"
        ]
        # blocks must be matched with messages
        if any(not chat.weights[index] for index in answers):
            if len(answers) != len(spans):
                raise RowRejected(
                    "uncertain_mask",
                    f"{len(spans)} generation blocks for {len(answers)} assistant messages,"
                    " some of them not trained",
                )
            spans = [
                span for index, span in zip(answers, spans, strict=True) if chat.weights[index]
            ]
        shape, texts = shape_of(chat.messages, self.tags)
        key = self._key(shape, chat)
        known = self._known(key, texts, trace, text)
        if known is not None:
            return known if self.masks_reasoning else replace(known, spans=spans)
        rendering = Rendering(self, chat, text)
        takes_marks = rendering.takes_marks()
        if takes_marks and spans:
            rendering.check_marks()
        spans = rendering.without_reasoning(spans)
        if not takes_marks:
            return Rendered(text, spans, moves=rendering.moves_by_search())
        moves = rendering.moves_by_marks(spans)
        self._learn(key, rendering, trace, spans, moves)
        return Rendered(text, spans, moves=moves)

    def _key(self, shape: Sequence[Any], chat: Conversation) -> Any:
        values = repr(chat.values) if chat.values else ""
        return (*shape, *chat.weights, bool(chat.tools), values)

    def _known(self, key: Any, texts: list[str], trace: Trace, text: str) -> Rendered | None:
        """Return the rendering that a skeleton of this shape predicts, if it is `text`."""
        for skeleton in self._skeletons.get(key, ()):
            known = skeleton.filled(texts, trace.texts)
            if known is not None and known[0] == text:
                return Rendered(text, known[1], moves=skeleton.moved(texts))
        return None

    def _learn(
        self,
        key: Any,
        rendering: Rendering,
        trace: Trace,
        spans: Sequence[Span],
        moves: Sequence[Moved],
    ) -> None:
        """Keep the skeleton of a rendering that takes marks."""
        learnt = skeleton_of(
            rendering.text, rendering.marks, rendering.marked_texts, trace.texts, spans, moves
        )
        if learnt is not None:
            if len(self._skeletons) >= _MOST_SHAPES:
                self._skeletons.clear()
            skeletons = self._skeletons.setdefault(key, [])
            skeletons[:] = [*skeletons[-_MOST_SKELETONS + 1 :], learnt]

    def _find(self, chat: Conversation, text: str, trace: Trace, trained: list[int]) -> Rendered:
        """Find the spans of the `trained` messages in `text`, the plain rendering, and learn a
        skeleton.

        Raises `RowRejected` (not_rendered, uncertain_mask, template_error).
        """
        shape, texts = shape_of(chat.messages, self.tags)
        key = self._key(shape, chat)
        known = self._known(key, texts, trace, text)
        if known is not None:
            return known
        rendering = Rendering(self, chat, text)
        if not rendering.takes_marks():
            turns = [rendering.turn_by_difference(index) for index in trained]
            if trained:
                rendering.check_by_difference()
            turns = rendering.without_reasoning(turns)
            return Rendered(text, turns, moves=rendering.moves_by_search())
        if trained:
            rendering.check_marks()
        owners = set(rendering.owner)
        turns = []
        for index in trained:
            turns.append(
                rendering.turn_by_marks(index)
                if index in owners
                else rendering.turn_by_difference(index)
            )
        turns = rendering.without_reasoning(turns)
        moves = rendering.moves_by_marks(turns)
        if self.template.fixed_prompt and owners.issuperset(trained):
            self._learn(key, rendering, trace, turns, moves)
        return Rendered(text, turns, moves=moves)

    def reads_key(self, chat: Conversation, index: int, key: str) -> bool:
        """Return whether the template reads a key of messages of this role, as far as this
        conversation shows.
        """
        role = chat.messages[index]["role"]
        if (role, key) not in self._keys_read:
            message = dict(chat.messages[index])
            changed = [*chat.messages]
            message[key] = _CHANGED
            changed[index] = message
            try:
                texts = [
                    self.template.render(messages, chat.tools, chat.values, trace=Trace())
                    for messages in (chat.messages, changed)
                ]
                self._keys_read[role, key] = texts[0] != texts[1]
            except RowRejected:
                self._keys_read[role, key] = True  # it looks at the value
        return self._keys_read[role, key]

    def remembered(self, key: Any, find: Callable[[], int | None]) -> int | None:
        """Return the cached result for this key.

        Use it only if nothing but the key decides the result.
        """
        if key not in self._remembered:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = find()
        return self._remembered[key]


def _check_reserved(text: str) -> None:
    if not text.isascii() and (match := RESERVED.search(text)):
        raise RowRejected(
            "reserved_character",
            f"U+{ord(match[0]):04X}: {preview(text[max(0, match.start() - 20) :], 50)}",
        )


class _WrittenReasoning(NamedTuple):
    """Reasoning in a rendering: its message, its end, and the beginning of the text after it."""

    owner: int
    end: int
    most: int


class Rendering:
    """A conversation and its plain rendering, in which turns are searched.

    found: the marks of a marked rendering, in order. owner: the message of each mark, None for
    tools.
    """

    def __init__(self, turns: Turns, chat: Conversation, text: str) -> None:
        self.turns = turns
        self.chat = chat
        self.text = text
        self.messages, self.marked_texts, self._parts = marked(chat.messages, turns.tags)
        self.marks: list[Mark] = []
        self.owner: list[int | None] = []
        self._inside: list[list[int]] = []

    def takes_marks(self) -> bool:
        """Render with marks and keep their positions; return False if marks change the
        rendering.
        """
        tools = {}
        for part in parts_of(self.chat.tools):
            if isinstance(part, dict | list):
                tools[id(part)] = _TOOLS
        trace = Trace(marked=True, owners={**tools, **self._parts})
        try:
            text, marks = without_marks(self._render(self.messages, trace))
        except RowRejected:
            return False  # a template may refuse a text for its marks
        if text != self.text:
            return False
        owners: list[int | None] = []
        for mark in marks:
            json_text = mark.sign in (JSON_BEGIN, JSON_END)
            if json_text:
                owner = trace.owned[mark.number]
                inside = trace.inside[mark.number]
                if owner is None and inside:
                    owner = self.marked_texts[inside[0]].owner
            else:
                owner = self.marked_texts[mark.number].owner
            if (
                owner is None
                and owners
                and owners[-1] is not None
                and "tool_calls" in self.chat.messages[owners[-1]]
            ):
                owner = owners[-1]  # e.g. a number among the arguments before it
            owners.append(None if owner == _TOOLS else owner)
        self.marks = marks
        self.owner = owners
        self._inside = trace.inside
        return True

    def moves_by_marks(self, spans: Sequence[Span]) -> list[Moved]:
        """Return the texts whose fate is not what the weight of their message says."""
        at: dict[int, int] = {}
        for mark in self.marks:
            if mark.sign == BEGIN:
                at.setdefault(mark.number, mark.at)
            elif mark.sign == JSON_BEGIN:
                for number in self._inside[mark.number]:
                    at.setdefault(number, mark.at)
        moves = []
        for number, marked_text in enumerate(self.marked_texts):
            if marked_text.part != "content" and marked_text.part not in REASONING_KEYS:
                continue
            fate = "removed"
            if number in at:
                inside = any(begin <= at[number] < end for begin, end in spans)
                fate = "trained" if inside else "context"
            moves += self._moved(number, marked_text, fate)
        return moves + self._unread_keys()

    def moves_by_search(self) -> list[Moved]:
        """Return the same where marks change the rendering: a text that is not in it is removed if
        it is reasoning. Others are there in another form, which `check_by_difference` saw to.
        """
        moves = []
        for number, marked_text in enumerate(self.marked_texts):
            if not marked_text.reasoning:
                continue
            if marked_text.text not in self.text:
                moves += self._moved(number, marked_text, "removed")
            elif self.turns.masks_reasoning:
                moves += self._moved(number, marked_text, "context")
        return moves + self._unread_keys()

    def without_reasoning(self, spans: list[Span]) -> list[Span]:
        """Return spans that begin after their reasoning and the tag that closes it, if reasoning is
        not trained.

        Raises `RowRejected` if that place is not certain.
        """
        if not self.turns.masks_reasoning:
            return spans
        reasoning = self._reasoning_by_marks() if self.marks else self._reasoning_by_search()
        result = []
        for begin, end in spans:
            inside = [part for part in reasoning if begin <= part.end <= end]
            if len({part.owner for part in inside}) > 1:
                raise _uncertain(inside[-1].owner, "where its reasoning ends")
            for part in inside:
                closing = self.turns.closing.match(self.text, part.end, min(part.most, end))
                begin = closing.end() if closing else part.end
            result.append((begin, end))
        return result

    def _reasoning_by_marks(self) -> list[_WrittenReasoning]:
        result = []
        ends = [mark.at for mark in self.marks[1:]] + [len(self.text)]
        for mark, most in zip(self.marks, ends, strict=True):
            if mark.sign == JSON_BEGIN:
                for number in self._inside[mark.number]:
                    if self._is_reasoning(number):
                        raise _uncertain(
                            self.marked_texts[number].owner, "where its reasoning in JSON ends"
                        )
            elif mark.sign == END and self._is_reasoning(mark.number):
                owner = self.marked_texts[mark.number].owner
                result.append(_WrittenReasoning(owner, mark.at, most))
        return result

    def _reasoning_by_search(self) -> list[_WrittenReasoning]:
        result = []
        for number, marked_text in enumerate(self.marked_texts):
            if not self._is_reasoning(number) or marked_text.text not in self.text:
                continue
            if self.text.count(marked_text.text) > 1:
                raise _uncertain(marked_text.owner, "where its reasoning is")
            end = self.text.index(marked_text.text) + len(marked_text.text)
            result.append(_WrittenReasoning(marked_text.owner, end, len(self.text)))
        return result

    def _is_reasoning(self, number: int) -> bool:
        marked_text = self.marked_texts[number]
        is_answer = self.chat.messages[marked_text.owner]["role"] == "assistant"
        return marked_text.reasoning and is_answer

    def _moved(self, number: int, marked_text: MarkedText, fate: str) -> list[Moved]:
        expected = "trained" if self.chat.weights[marked_text.owner] else "context"
        if fate == expected:
            return []
        name = "content"
        if marked_text.reasoning and self.chat.messages[marked_text.owner]["role"] == "assistant":
            name = "reasoning_content"
        return [Moved(marked_text.owner, name, fate, marked_text.covered, number)]

    def _unread_keys(self) -> list[Moved]:
        """Return the keys of messages that the template does not read."""
        moves = []
        for owner, message in enumerate(self.chat.messages):
            for number, (key, value) in enumerate(message.items()):
                if key in _READ_KEYS or not (characters_of(value) or is_flag(key, value)):
                    continue
                if not self.turns.reads_key(self.chat, owner, key):
                    unique = -1 - number - _MOST_KEYS * owner
                    moves.append(Moved(owner, key, "unread", WHOLE, unique))
        return moves

    def _render(
        self, messages: list[Message], trace: Trace | None = None, *, prompt: bool = False
    ) -> str:
        tools = self.chat.tools
        values = self.chat.values
        text = self.turns.template.render(
            messages, tools, values, trace=trace or Trace(), generation_prompt=prompt
        )
        if self.turns.template.has_generation_blocks:
            return without_generated(text)[0]
        return text

    def check_marks(self) -> None:
        """Raise `RowRejected` if the rendering leaves out the text of a message, or a tool call."""
        written = set()
        with_json = set()
        for mark, owner in zip(self.marks, self.owner, strict=True):
            if mark.sign == BEGIN:
                written.add(mark.number)
            elif mark.sign == JSON_BEGIN:
                with_json.add(owner)
                written.update(self._inside[mark.number])
        some = set()
        for number in written:
            some.add((self.marked_texts[number].owner, self.marked_texts[number].part))
        for number, marked_text in enumerate(self.marked_texts):
            if number in written:
                continue
            owner = marked_text.owner
            if not marked_text.complete:
                raise self._missing(owner, marked_text.part)
            others_are = (owner, marked_text.part) in some
            if marked_text.part == "content" and not (others_are and marked_text.reasoning):
                raise self._missing(owner, marked_text.part)
            if marked_text.part == "tool_calls" and (others_are or owner not in with_json):
                raise self._missing(owner, marked_text.part)

    def turn_by_marks(self, index: int) -> Span:
        """Find the turn of a message by its marks."""
        marks_of_turn = [number for number, owner in enumerate(self.owner) if owner == index]
        marks_of_turn = self._without_echo(index, marks_of_turn)
        first = marks_of_turn[0]
        last = marks_of_turn[-1]
        begun = [  # without tool calls: a function's name may be written twice within its turn
            mark.number
            for mark in self.marks[first : last + 1]
            if mark.sign == BEGIN and self.marked_texts[mark.number].part != "tool_calls"
        ]
        if marks_of_turn != list(range(first, last + 1)) or len(set(begun)) < len(begun):
            raise _uncertain(
                index, "which part of the text is its own, as some of it is written twice"
            )
        before = None
        if first:
            before = self.marks[first - 1]
        if last + 1 < len(self.marks):
            next_mark = self.marks[last + 1].at
        else:
            next_mark = len(self.text)
        begin = 0
        if before:
            begin = before.at
        end = self.marks[last].at
        literal = self.text[begin : self.marks[first].at]
        after = self.text[end:next_mark]
        role = ""
        if index:
            role = self.chat.messages[index - 1]["role"]

        def find_start() -> int | None:
            return self._start(literal, self.messages[:index], before, marked=True)

        def find_end() -> int | None:
            try:
                text, marks = without_marks(
                    self._render(self.messages[: index + 1], Trace(marked=True))
                )
            except RowRejected:
                return self._end(after, None, index)
            return self._end(after, text[marks[-1].at :] if marks else text, index)

        if self.turns.template.fixed_prompt:  # otherwise earlier contents may decide
            start = self.turns.remembered(("start", role, first == 0, literal), find_start)
        else:
            start = find_start()
        following = self._following_role(index)
        stop = self.turns.remembered(
            ("end", following, next_mark == len(self.text), after), find_end
        )
        return _turn(index, begin, start, end, stop)

    def _without_echo(self, index: int, marks_of_turn: list[int]) -> list[int]:
        """Leave out marks of a called function's name that the header of its result repeats.

        A turn has the marks that it has where the conversation ends with it.
        """
        if self._following_role(index) != "tool":
            return marks_of_turn
        try:
            _, marks = without_marks(self._render(self.messages[: index + 1], Trace(marked=True)))
        except RowRejected:
            return marks_of_turn
        echoed = [_kind_of(self.marks[number]) for number in marks_of_turn]
        expected = []
        for mark in marks[marks_of_turn[0] :]:
            if _kind_of(mark) in echoed:  # a last turn may have reasoning that an earlier one lacks
                expected.append(_kind_of(mark))
        if expected and echoed[: len(expected)] == expected:
            return marks_of_turn[: len(expected)]
        return marks_of_turn

    def turn_by_difference(self, index: int) -> Span:
        """Find the turn of a message by the text that changes with it."""
        messages = self.chat.messages
        try:
            begin, end = self._changed_part(self.text, messages, index)
            start = self._start(self.text[:begin], messages[:index], None, marked=False)
            shorter = self._render(messages[: index + 1])
            _, last = self._changed_part(shorter, messages[: index + 1], index)
        except RowRejected as rejected:
            if rejected.reason in ("uncertain_mask", "not_rendered"):
                raise
            raise _uncertain(index, "which part of the text is its own") from None
        return _turn(index, 0, start, end, self._end(self.text[end:], shorter[last:], index))

    def _following_role(self, index: int) -> str:
        if index + 1 < len(self.chat.messages):
            role: str = self.chat.messages[index + 1]["role"]
            return role
        return ""

    def _end(self, after: str, tail: str | None, index: int) -> int | None:
        """Find where a turn ends in `after`, the text after its last own text; see `_end_in`."""
        if tail is not None:
            tail = tail.removesuffix(self.turns.constant_prompt)
        return _end_in(after, tail, self.turns.specials, self._following_role(index))

    def _start(
        self, literal: str, messages: list[Message], before: Mark | None, *, marked: bool
    ) -> int | None:
        """Find where the model begins in `literal`, the text between the mark before a turn and the
        turn's own text.

        messages: those before the turn. They are rendered up to the generation prompt. If they
        cannot be rendered, the generation prompt after a single user message is searched instead.
        """
        lead = None
        try:
            prompted, marks = without_marks(
                self._render(messages, Trace(marked=marked), prompt=True)
            )
            last = None
            if marks:
                last = marks[-1]
            if (last and (last.sign, last.number)) == (before and (before.sign, before.number)):
                if last:
                    lead = prompted[last.at :]
                else:
                    lead = prompted
            if lead is not None and literal.startswith(lead):
                return len(lead)
            plain, _ = without_marks(self._render(messages, Trace(marked=marked)))
        except RowRejected:
            lead = None
            try:
                plain = self._render([user()])
                prompted = self._render([user()], prompt=True)
            except RowRejected:
                return None
        prompt = ""
        if prompted.startswith(plain):
            prompt = prompted[len(plain) :]
        # the prompt is longer, e.g. it opens the reasoning
        if lead is not None and lead.startswith(literal):
            return len(literal)
        return _end_of_prompt(literal, prompt, self.turns.specials)

    def _changed_part(self, text: str, messages: list[Message], index: int) -> Span:
        """Find the part of `text`, the rendering of `messages`, that depends on one message."""
        other = self._render([*messages[:index], _changed(messages[index]), *messages[index + 1 :]])
        if other == text:
            raise self._missing(index, "content")
        begin = shared_start(text, other)
        most = min(len(text), len(other)) - begin
        shared = shared_start(text[::-1][:most], other[::-1][:most])
        instead = other[begin : len(other) - shared]
        plain = not messages[index].get("tool_calls")
        others = [
            message["content"] or "" for message in (*messages[:index], *messages[index + 1 :])
        ]
        if (
            _CHANGED not in instead
            or (
                plain
                and (
                    instead.count(_CHANGED) > 1
                    or not _LEFT.fullmatch(instead.replace(_CHANGED, ""))
                )
            )
            or any(len(content) > _SHORT and content in instead for content in others)
        ):
            raise _uncertain(index, "which part of the text is its own")
        return begin, len(text) - shared

    def check_by_difference(self) -> None:
        """Raise `RowRejected` if the rendering leaves out a message."""
        for index, message in enumerate(self.chat.messages):
            core = (message["content"] or "").strip()
            if core and core not in self.text:
                self._changed_part(self.text, self.chat.messages, index)

    def _missing(self, index: int, part: str) -> RowRejected:
        what = "the content"
        if part in _PARTS_OF_CALLS:
            what = _PARTS_OF_CALLS[part]
        role = self.chat.messages[index]["role"]
        return RowRejected(
            "not_rendered", f"message {index + 1}: the template leaves out {what} of role {role}"
        )


def _kind_of(mark: Mark) -> tuple[str, int]:
    """Return what a mark stands for in any rendering; texts in JSON are numbered anew in each."""
    return mark.sign, -1 if mark.sign in (JSON_BEGIN, JSON_END) else mark.number


def _changed(message: Message) -> Message:
    """Return a message with another text in each of its own fields; arguments that are an object
    stay one.
    """
    changed = {**message, "content": _CHANGED}
    if "tool_calls" in message:
        if not (message["content"] or "").strip():
            changed["content"] = message["content"]
        calls = []
        for call in message["tool_calls"]:
            arguments: Any = {_CHANGED: _CHANGED}
            if isinstance(call["function"]["arguments"], str):
                arguments = _CHANGED
            calls.append({**call, "function": {"name": _CHANGED, "arguments": arguments}})
        changed["tool_calls"] = calls
    return changed


def _uncertain(index: int, what: str) -> RowRejected:
    return RowRejected("uncertain_mask", f"message {index + 1}: no method tells for certain {what}")


def _end_of_prompt(literal: str, prompt: str, specials: Specials) -> int | None:
    """Find where `literal` ends with the prompt, or with its longest beginning that ends at a line
    or a special token.
    """
    ends = {len(prompt)}
    ends.update(match.end() for match in re.finditer("\n", prompt))
    ends.update(end for _, end in specials.spans(prompt))
    for end in sorted(ends - {0}, reverse=True):
        at = literal.rfind(prompt[:end])
        if at >= 0:
            return at + end
    return None


def _turn(index: int, begin: int, start: int | None, end: int, stop: int | None) -> Span:
    """Return the span from `begin` + `start` to `end` + `stop`.

    Raises `RowRejected` if `start` or `stop` is None.
    """
    if start is None or stop is None:
        raise _uncertain(index, "where its turn begins" if start is None else "where its turn ends")
    return begin + start, end + stop


def _is_next(match: re.Match[str] | None, text: str, at: int) -> TypeGuard[re.Match[str]]:
    """Return whether a match begins after at most white space from a position on."""
    return match is not None and match.start() >= at and not text[at : match.start()].strip()


def _end_in(after: str, tail: str | None, specials: Specials, following: str = "") -> int | None:
    """Find where the end-of-turn token ends in `after`, the text after the turn's last own text;
    None if not certain.

    tail: the text at that point in a conversation that ends with this turn, None if unknown. In
    that case only the token that ends sequences counts as an end. following: the role of the next
    message. Where a template ends turns with nothing, the token that begins a turn of another role
    is what a model must produce to stop.
    """
    first = specials.pattern.search(after)
    if tail is None:
        return first.end() if first is not None and first[0] in specials.ends else None
    shared = shared_start(after, tail)
    within = specials.spans(after, shared)
    if within:
        return next(
            (end for begin, end in within if after[begin:end] in specials.ends), within[-1][1]
        )
    other = specials.pattern.search(tail)
    end: int | None = len(after[:shared].rstrip())
    # a last turn may end with another token than a middle one
    if other is not None:
        end = None
        if first is not None and first.start() == other.start() <= shared:
            end = first.end()
    elif following not in ("", "assistant") and _is_next(first, after, shared):
        end = first.end()
    return end
