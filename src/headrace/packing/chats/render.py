"""Conversations as text, with the spans that the model must produce.

The template renders a whole conversation once. Where the turns are is told by `{% generation %}` blocks if the template
has them, else by a skeleton of the conversation's shape if it predicts the text exactly, else by `learn`, which renders
with marks and leaves a skeleton for the next conversation of this shape. What is trained of a turn is everything behind
the generation prompt through the token that ends the turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.learn import Learner
from headrace.packing.chats.marks import RESERVED, Skeleton, Span, shape_of, tags_of, without_generated
from headrace.packing.chats.messages import reasons
from headrace.packing.chats.special_text import Specials
from headrace.packing.chats.template import Template, Trace
from headrace.packing.chats.words import Reasoning, RowRejected, shown

_ADDRESS = " at 0x"
_MOST_SHAPES = 4096  # bounds memory, whatever the chats
_MOST_SKELETONS = 8  # of one shape


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text and its trained spans: [begin, end) in characters, in order, none empty."""

    text: str
    spans: list[Span]


class ChatRenderer:
    """Renders conversations with one tokenizer's templates. Each thread has its own."""

    def __init__(
        self, templates: Mapping[str, Template], specials: Specials, reasoning: Reasoning = "template"
    ) -> None:
        self._reasoning = reasoning
        self._turns = {name: _Turns(template, specials) for name, template in templates.items()}

    def render(self, chat: Conversation) -> list[Rendered]:
        """Render one conversation as one sequence, or with reasoning="every_user_turn" one per answered user turn.

        A conversation without anything to train on has a text without spans. Raises `RowRejected`.
        """
        turns = self._turns["tool_use" if chat.tools and "tool_use" in self._turns else "default"]
        if self._reasoning == "template" or not any(reasons(message) for message in chat.messages):
            return [turns.render(chat)]
        return [turns.render(part) for part in list(_user_turns(chat)) or [chat]]


def _user_turns(chat: Conversation) -> Iterator[Conversation]:
    """The conversation up to the end of each user turn that has a trained answer; only that answer is trained."""
    users = [place for place, message in enumerate(chat.messages) if message["role"] == "user"]
    bounds = [0, *users[1:], len(chat.messages)] if users else [0, len(chat.messages)]
    for begin, end in pairwise(bounds):
        weights = [0] * begin + chat.weights[begin:end]
        if any(weights):
            yield Conversation(chat.messages[:end], weights, chat.tools, chat.values)


# How messages with tool calls are given to a template, for templates expect one or another: the content where there is
# none, and arguments as an object or as JSON. Normalised messages are of the first form.
_FORMS: list[tuple[str | None, Literal["object", "text"]]] = [
    ("", "object"),
    ("", "text"),
    (None, "object"),
    (None, "text"),
]
_ASKS_FOR_NONE = re.compile(r"content(['\"]\])? is (not )?none", re.IGNORECASE)


def _in_form(chat: Conversation, empty: str | None, arguments: Literal["object", "text"]) -> Conversation:
    messages = []
    for message in chat.messages:
        if "tool_calls" in message:
            calls = message["tool_calls"]
            if arguments == "text":
                functions = [
                    {**call["function"], "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False)}
                    for call in calls
                ]
                calls = [{**call, "function": function} for call, function in zip(calls, functions, strict=True)]
            message = {**message, "content": message["content"] or empty, "tool_calls": calls}
        messages.append(message)
    return Conversation(messages, chat.weights, chat.tools, chat.values)


class _Turns:
    """One template, and what is known of its renderings."""

    def __init__(self, template: Template, specials: Specials) -> None:
        self._template = template
        self._tags = tags_of(template.source)
        asks = _ASKS_FOR_NONE.search(template.source) is not None
        self._forms = sorted(_FORMS, key=lambda form: asks and form[0] is not None)
        self._learner = Learner(template, specials, self._tags)
        self._skeletons: dict[Any, list[Skeleton]] = {}

    def render(self, chat: Conversation) -> Rendered:
        """Render a conversation. Tool calls are written as the template can read them."""
        if chat.tools and not self._template.writes_tools:
            raise RowRejected(
                "not_rendered", f"the template knows no tools and would leave out {len(chat.tools)} of them"
            )
        if not any("tool_calls" in message for message in chat.messages):
            return self._render(chat)
        first: RowRejected | None = None
        for form in self._forms:
            try:
                return self._render(_in_form(chat, *form))
            except RowRejected as rejected:
                if rejected.reason not in ("template_error", "not_rendered"):
                    raise
                first = first or rejected
        assert first is not None
        raise first

    def _render(self, chat: Conversation) -> Rendered:
        trace = Trace()
        text = self._template.render(chat.messages, chat.tools, chat.values, trace=trace)
        _check_addresses(text, chat)
        if self._template.has_generation_blocks:
            return self._generated(chat, text)
        _check_reserved(text)
        wanted = [place for place, weight in enumerate(chat.weights) if weight]
        if not wanted:
            return Rendered(text, [])
        turns = self._known(chat, text, trace, wanted)
        spans, last = [], 0
        for place in wanted:
            span = turns[place]
            if not last <= span[0] < span[1]:
                raise RowRejected("uncertain_mask", f"the turns found overlap or are empty: {sorted(turns.values())}")
            spans.append(span)
            last = span[1]
        return Rendered(text, spans)

    def _known(self, chat: Conversation, text: str, trace: Trace, wanted: list[int]) -> dict[int, Span]:
        shape, texts = shape_of(chat.messages, self._tags)
        key = (*shape, *chat.weights, bool(chat.tools), repr(chat.values) if chat.values else "")
        skeletons = self._skeletons.get(key, ())
        for skeleton in skeletons:
            if (turns := skeleton.spans(text, texts, trace.texts)) is not None:
                return turns
        turns, learnt = self._learner.learn(chat, text, trace, wanted)
        if learnt is not None:
            if len(self._skeletons) >= _MOST_SHAPES:
                self._skeletons.clear()
            kept = self._skeletons.setdefault(key, [])
            kept[:] = [*kept[-_MOST_SKELETONS + 1 :], learnt]
        return turns

    def _generated(self, chat: Conversation, marked: str) -> Rendered:
        """The blocks the template marks itself; told apart by message only where some are not to be trained."""
        _check_reserved(json.dumps([chat.messages, chat.tools], ensure_ascii=False, default=str))
        text, spans = without_generated(marked)
        answers = [place for place, message in enumerate(chat.messages) if message["role"] == "assistant"]
        if any(not chat.weights[place] for place in answers):
            if len(answers) != len(spans):
                raise RowRejected(
                    "uncertain_mask",
                    f"{len(spans)} generation blocks for {len(answers)} assistant messages, some of them not trained",
                )
            spans = [span for place, span in zip(answers, spans, strict=True) if chat.weights[place]]
        return Rendered(text, spans)


def _check_addresses(text: str, chat: Conversation) -> None:
    """A function or an iterator that a template writes has its address in its text, another one in every run."""
    if _ADDRESS in text and _ADDRESS not in repr((chat.messages, chat.tools, chat.values)):
        at = text.index(_ADDRESS)
        raise RowRejected(
            "template_error", f"the template writes an object, not a text: {shown(text[max(0, at - 40) : at])}"
        )


def _check_reserved(text: str) -> None:
    if not text.isascii() and (found := RESERVED.search(text)):
        raise RowRejected(
            "reserved_character", f"U+{ord(found[0]):04X}: {shown(text[max(0, found.start() - 20) :], 50)}"
        )
