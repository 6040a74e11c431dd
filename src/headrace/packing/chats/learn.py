"""The turns of a conversation, found by rendering it with marks; and by differences where marks would change it.

With marks: the conversation is rendered with a mark at both ends of every text of it. If the rendering without the
marks is the plain rendering, the marks say where every text went, and what stands between them is the template's. The
header and the end-of-turn token of a turn are told by two shorter renderings, one that ends with the generation prompt
before the turn and one that ends with the turn; what was found is remembered by the template's text around it.

By differences: a turn is where the rendering changes if that message alone is changed.

Both are checked, and a conversation for which neither is certain raises `RowRejected`: no mask is guessed.

The model is given everything up to the end of the generation prompt and must produce everything from there through the
token that ends its turn. White space behind that token and the header of the next turn are the template's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.marks import (
    BEGIN,
    JSON_BEGIN,
    JSON_END,
    Found,
    Piece,
    Skeleton,
    Span,
    marked,
    parts_of,
    skeleton_of,
    without_marks,
)
from headrace.packing.chats.messages import Message
from headrace.packing.chats.special_text import Specials
from headrace.packing.chats.template import Template, Trace
from headrace.packing.chats.words import RowRejected

_TOOLS = -1  # the owner of what is written of the tools
_JSON = (JSON_BEGIN, JSON_END)
_MOST_REMEMBERED = 4096  # bounds memory, whatever the chats
_CHANGED = "\ufdef"
_SHORT = 8  # texts of so few characters may stand anywhere by chance
_LEFT = re.compile(r"(\s|</?[\w|.:-]+>)*")  # what may stand beside a changed text: white space and tags


@dataclass
class Learner:
    """Finds the turns of one template's renderings. Not for two threads at once."""

    template: Template
    specials: Specials
    tags: re.Pattern[str]
    _remembered: dict[Any, int | None] = field(default_factory=dict)

    def learn(
        self, chat: Conversation, text: str, trace: Trace, wanted: list[int]
    ) -> tuple[dict[int, Span], Skeleton | None]:
        """Find where in `text`, the plain rendering, the `wanted` messages are trained; a skeleton if others fit it.

        trace: of the plain rendering. Raises `RowRejected` (not_rendered, uncertain_mask, template_error).
        """
        messages, pieces, owners = marked(chat.messages, self.tags)
        rendering = _Rendering(self, chat, messages, pieces, text)
        marks = rendering.with_marks(messages, owners)
        if marks is None:
            turns = {place: rendering.turn_by_difference(place) for place in wanted}
            rendering.check_by_difference()
            return turns, None
        rendering.check_marks(marks)
        turns = {}
        for place in wanted:
            own = marks.of(place)
            turns[place] = rendering.turn_by_marks(place, marks, own) if own else rendering.turn_by_difference(place)
        if not self.template.fixed_prompt or not all(marks.of(place) for place in wanted):
            return turns, None
        return turns, skeleton_of(text, marks.found, pieces, trace.texts, turns)

    def remembered(self, key: Any, find: Callable[[], int | None]) -> int | None:
        """Give what was found for this key before. Only where nothing but the key decides."""
        if key not in self._remembered:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = find()
        return self._remembered[key]


@dataclass
class _Marks:
    """The marks of a whole rendering. owners: per mark the message it belongs to, None for tools."""

    found: list[Found]
    owners: list[int | None]

    def of(self, place: int) -> list[int]:
        """List the marks of this message."""
        return [number for number, owner in enumerate(self.owners) if owner == place]


@dataclass
class _Rendering:
    learner: Learner
    chat: Conversation
    marked: list[Message]
    pieces: list[Piece]
    text: str

    def with_marks(self, messages: list[Message], owners: dict[int, int]) -> _Marks | None:
        """Find the marks of a rendering; None if they change it."""
        tools = {id(part): _TOOLS for part in parts_of(self.chat.tools) if isinstance(part, dict | list)}
        trace = Trace(marked=True, owners={**tools, **owners})
        try:
            text, found = without_marks(self.render(messages, trace=trace))
        except RowRejected:
            return None  # a template may refuse a text for its marks
        if text != self.text:
            return None
        own: list[int | None] = []
        for each in found:
            owner: int | None = self.pieces[each.number].owner if each.kind not in _JSON else trace.owned[each.number]
            if owner is None and own and own[-1] is not None and "tool_calls" in self.chat.messages[own[-1]]:
                owner = own[-1]  # a number, say, among the arguments that stand before it
            own.append(None if owner == _TOOLS else owner)
        return _Marks(found, own)

    def render(self, messages: list[Message], *, trace: Trace | None = None, prompt: bool = False) -> str:
        chat = self.chat
        return self.learner.template.render(
            messages, chat.tools, chat.values, trace=trace or Trace(), generation_prompt=prompt
        )

    def check_marks(self, marks: _Marks) -> None:
        """Refuse a rendering that leaves out a message with a text, or a tool call."""
        present = {
            (self.pieces[each.number].owner, self.pieces[each.number].part)
            for each in marks.found
            if each.kind not in _JSON
        }
        with_json = {owner for each, owner in zip(marks.found, marks.owners, strict=True) if each.kind == JSON_BEGIN}
        for piece in self.pieces:
            if not piece.whole or (piece.owner, piece.part) in present:
                continue
            if piece.part == "content" or (piece.part == "tool_calls" and piece.owner not in with_json):
                raise _missing(self.chat.messages[piece.owner], piece.owner, piece.part)

    def turn_by_marks(self, place: int, marks: _Marks, own: list[int]) -> Span:
        begun = [  # a function's name may well be written twice within its turn
            each.number
            for each in marks.found[own[0] : own[-1] + 1]
            if each.kind == BEGIN and self.pieces[each.number].part != "tool_calls"
        ]
        if own != list(range(own[0], own[-1] + 1)) or len(set(begun)) < len(begun):
            raise _uncertain(place, "which part of the text is its own, as some of it is written twice")
        first, last = marks.found[own[0]].at, marks.found[own[-1]].at
        before = marks.found[own[0] - 1].at if own[0] else 0
        behind = marks.found[own[-1] + 1].at if own[-1] + 1 < len(marks.found) else len(self.text)
        literal, after = self.text[before:first], self.text[last:behind]
        role = self.chat.messages[place - 1]["role"] if place else ""
        learner, specials = self.learner, self.learner.specials
        start = (
            learner.remembered(("start", role, own[0] == 0, literal), lambda: self.start(place, literal, own[0], marks))
            if learner.template.fixed_prompt
            else self.start(place, literal, own[0], marks)  # what was said before may decide
        )
        end = learner.remembered(
            ("end", behind == len(self.text), after), lambda: _end_in(after, self.tail(place), specials)
        )
        if start is None or end is None:
            raise _uncertain(place, "where its turn begins" if start is None else "where its turn ends")
        return before + start, last + end

    def start(self, place: int, literal: str, own: int, marks: _Marks) -> int | None:
        """Find where the model begins in the text before a turn, by rendering up to the generation prompt."""
        before = marks.found[own - 1] if own else None
        try:
            text, found = without_marks(self.render(self.marked[:place], trace=Trace(marked=True), prompt=True))
            last = found[-1] if found else None
            known = (last and (last.kind, last.number)) == (before and (before.kind, before.number))
            lead = text[last.at :] if last else text
            if known and literal.startswith(lead):
                return len(lead)
            plain, _ = without_marks(self.render(self.marked[:place], trace=Trace(marked=True)))
        except RowRejected:
            return self.start_from_probe(literal)
        prompt = text[len(plain) :] if text.startswith(plain) else ""
        if known:
            return _start_in(literal, lead, prompt, self.learner.specials)
        return _start_in(literal, "\x00", prompt, self.learner.specials) if prompt else None

    def start_from_probe(self, literal: str) -> int | None:
        """Find it where nothing can be rendered before the turn, by the generation prompt after any user."""
        probe: list[Message] = [{"role": "user", "content": "x"}]
        try:
            plain, asked = self.render(probe), self.render(probe, prompt=True)
        except RowRejected:
            return None
        prompt = asked[len(plain) :] if asked.startswith(plain) else ""
        return _start_in(literal, "\x00", prompt, self.learner.specials) if prompt else None

    def tail(self, place: int) -> str | None:
        """Find what is behind the turn's last own text in a conversation that ends with it; None if none may end so."""
        try:
            text, found = without_marks(self.render(self.marked[: place + 1], trace=Trace(marked=True)))
        except RowRejected:
            return None
        return text[found[-1].at :] if found else text

    def turn_by_difference(self, place: int) -> Span:
        """Find the turn of a message by what changes with it."""
        specials, before = self.learner.specials, self.chat.messages[:place]
        try:
            begin, end = self.changed(self.text, self.chat.messages, place)
            start = self.start_by_difference(before, begin)
            shorter = self.render(self.chat.messages[: place + 1])
            _, last = self.changed(shorter, self.chat.messages[: place + 1], place)
            stop = _end_in(self.text[end:], shorter[last:], specials)
        except RowRejected as rejected:
            if rejected.reason in ("uncertain_mask", "not_rendered"):
                raise
            raise _uncertain(place, "which part of the text is its own") from None
        if start is None or stop is None:
            raise _uncertain(place, "where its turn begins" if start is None else "where its turn ends")
        return start, end + stop

    def start_by_difference(self, before: list[Message], begin: int) -> int | None:
        """Find where the model begins, at or before `begin`, where its message's own text does."""
        try:
            asked, plain = self.render(before, prompt=True), self.render(before)
        except RowRejected:
            return self.start_from_probe(self.text[:begin])
        if self.text[:begin].startswith(asked):
            return len(asked)
        prompt = asked[len(plain) :] if asked.startswith(plain) else ""
        return _start_in(self.text[:begin], "\x00", prompt, self.learner.specials) if prompt else None

    def changed(self, text: str, messages: list[Message], place: int) -> Span:
        """Find the part of `text`, the rendering of `messages`, that goes with one message."""
        other = self.render([*messages[:place], _changed(messages[place]), *messages[place + 1 :]])
        if other == text:
            raise _missing(messages[place], place, "content")
        begin = _shared_start(text, other)
        most = min(len(text), len(other)) - begin
        shared = _shared_start(text[::-1][:most], other[::-1][:most])
        instead = other[begin : len(other) - shared]
        plain = not messages[place].get("tool_calls")
        others = [message["content"] or "" for message in (*messages[:place], *messages[place + 1 :])]
        if (
            _CHANGED not in instead
            or (plain and (instead.count(_CHANGED) > 1 or not _LEFT.fullmatch(instead.replace(_CHANGED, ""))))
            or any(len(each) > _SHORT and each in instead for each in others)
        ):
            raise _uncertain(place, "which part of the text is its own")
        return begin, len(text) - shared

    def check_by_difference(self) -> None:
        """Refuse a rendering that leaves out a message."""
        for place, message in enumerate(self.chat.messages):
            core = (message["content"] or "").strip()
            if core and core not in self.text:
                self.changed(self.text, self.chat.messages, place)


def _changed(message: Message) -> Message:
    """A message with another text in every field that is its own; arguments keep being an object."""
    found = {**message, "content": _CHANGED}
    if "tool_calls" in message:
        if not (message["content"] or "").strip():
            found["content"] = message["content"]
        found["tool_calls"] = [
            {
                **call,
                "function": {
                    "name": _CHANGED,
                    "arguments": _CHANGED if isinstance(call["function"]["arguments"], str) else {_CHANGED: _CHANGED},
                },
            }
            for call in message["tool_calls"]
        ]
    return found


def _missing(message: Message, place: int, part: str) -> RowRejected:
    what = "a tool call" if part == "tool_calls" else "the content"
    return RowRejected("not_rendered", f"message {place + 1}: the template leaves out {what} of role {message['role']}")


def _uncertain(place: int, what: str) -> RowRejected:
    return RowRejected("uncertain_mask", f"message {place + 1}: no method tells for certain {what}")


def _start_in(literal: str, lead: str, prompt: str, specials: Specials) -> int | None:
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


def _end_in(after: str, tail: str | None, specials: Specials) -> int | None:
    """Where in `after`, the text behind the turn's last own text, its end-of-turn token ends.

    tail: what is behind that text where the conversation ends with this turn, None if that is not known; then only the
    token that ends sequences is an end. None where no rule is certain.
    """
    if tail is None:
        begun = specials.pattern.search(after)
        return begun.end() if begun is not None and begun[0] == specials.eos else None
    shared = _shared_start(after, tail)
    within = specials.spans(after, shared)
    if within:
        return next((end for begin, end in within if after[begin:end] == specials.eos), within[-1][1])
    first, other = specials.pattern.search(after), specials.pattern.search(tail)
    if first is not None and other is not None:  # a last turn may end with another token than one in the middle
        return first.end() if first.start() == other.start() and first.start() <= shared else None
    if other is not None:
        return None
    return len(after[:shared].rstrip())


def _shared_start(first: str, second: str) -> int:
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
