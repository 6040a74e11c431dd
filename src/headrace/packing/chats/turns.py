"""Find where the turns of a conversation begin, and cut a long one there into pieces that each fit
a bin.

Every piece begins with the head: the system prompt, the tools and everything else that the template
writes before the first turn. The first piece continues with the first turns. Each later piece
repeats as many of the preceding turns as fit a quarter of its room, starting at a user's turn if
possible; repeated turns are not trained. So every trained turn is trained once, in the tokens that
it has in the whole conversation. A turn that does not fit a bin beside the head is left out. Turns
that lead up to an answer and do not fit beside it are left out too, the earliest first.

A border is used only if it is certain. The head is the text that the template writes before a
probing user turn. If there are a system prompt or tools, the rest of the text must not change with
them. So a template that writes either into a later turn has no head, and its conversations are not
cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import numpy as np

from headrace.arrays import U8
from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.marks import Span
from headrace.packing.chats.messages import Message, has_reasoning, without_reasoning
from headrace.packing.chats.probes import ASKED, answer, user

Reasoning = Literal["template", "keep", "every_user_turn", "mask", "drop"]
"""Which reasoning is written: what the template keeps; all of it, or the row is refused; all of it,
with one sequence per user turn; what the template keeps, and none of it is trained; none.
"""
TrainOn = Literal["every_turn", "last_turn"]
"""Which answers are trained: all, or those after the last user's message."""

_LEADING = ("system", "developer")  # roles of messages before the first turn
_OVERLAP = 4  # repeated turns take at most one part in this many of a piece's room


class Border(NamedTuple):
    """The beginning of a turn, in characters or tokens. user: whether it is a user's turn."""

    at: int
    user: bool


class Segment(NamedTuple):
    """The tokens of a piece after the head: [begin, end) of the conversation, trained from
    `trained` on.
    """

    begin: int
    trained: int
    end: int


def sequences_of(
    chat: Conversation, reasoning: Reasoning, train_on: TrainOn = "every_turn"
) -> list[Conversation]:
    """List the conversations that become one sequence each: the whole one, or one per answered user
    turn.

    The latter end with their turn, and only its answer is trained.
    """
    if train_on == "last_turn":
        last = last_user(chat.messages)
        weights = [0] * last + chat.weights[last:]
        return [replace(_reasoned(chat, reasoning), weights=weights)]
    if reasoning != "every_user_turn" or not any(map(has_reasoning, chat.messages)):
        return [_reasoned(chat, reasoning)]
    sequences = []
    users = [index for index, message in enumerate(chat.messages) if message["role"] == "user"]
    for begin, end in pairwise([0, *users[1:], len(chat.messages)]):
        weights = [0] * begin + chat.weights[begin:end]
        if any(weights):
            sequences.append(replace(chat, messages=chat.messages[:end], weights=weights))
    return sequences or [chat]


def _reasoned(chat: Conversation, reasoning: Reasoning) -> Conversation:
    """Return a conversation without reasoning, if none is to be written."""
    if reasoning != "drop" or not any(map(has_reasoning, chat.messages)):
        return chat
    return replace(chat, messages=[without_reasoning(message) for message in chat.messages])


def last_user(messages: Sequence[Message]) -> int:
    """Return the index of the last user's message; 0 if there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "user":
            return index
    return 0


class Write(Protocol):
    """A function that renders messages with a conversation's tools and values; None if the template
    refuses them.
    """

    def __call__(
        self, messages: list[Message], *, with_tools: bool = True, prompt: bool = False
    ) -> str | None: ...


def turn_borders(
    written: Write, chat: Conversation, text: str, spans: Sequence[Span]
) -> list[Border]:
    """Find where turns begin in `text`, the rendering of `chat`, and where the last trained turn
    ends.

    spans: of the trained messages. The first border is the end of the head. Empty if the borders
    are not certain. Renders the conversation up to each turn between two messages that are not
    trained, and some short probes.
    """
    messages = chat.messages
    trained = [index for index, weight in enumerate(chat.weights) if weight]
    roles = [message["role"] for message in messages]
    lead = next((at for at, role in enumerate(roles) if role not in _LEADING), None)
    if lead is None or len(trained) != len(spans) or trained[:1] < [lead]:
        return []
    leading = messages[:lead]
    one = written([*leading, user()]) or ""
    head = _head_length(written, leading, text, one)
    if head is None or not _rest_is_apart(written, chat, lead, text[head:]):
        return []

    prompted = written([*leading, user()], prompt=True) or ""
    prompt = ""
    if prompted.startswith(one):
        prompt = prompted[len(one) :]
    at = {lead: head}
    for index, (_, end) in zip(trained, spans, strict=True):
        at[index + 1] = len(text) - len(text[end:].lstrip())
    for index, (begin, _) in zip(trained, spans, strict=True):
        if prompt and text.endswith(prompt, 0, begin):
            at.setdefault(index, begin - len(prompt))
    for index in range(lead + 1, len(messages)):
        if index not in at and not chat.weights[index]:
            shorter = written(messages[:index])
            if shorter and text.startswith(shorter):
                at[index] = len(shorter)
    return _rising_borders(at, messages)


def _head_length(written: Write, leading: Sequence[Message], text: str, one: str) -> int | None:
    """Find the length of the head: what stands before the first turn of `text`.

    leading: the messages of the head. one: the head and a single user's turn. The head is `one`
    without what another user's turn adds after other turns. Returns None if `text` begins with no
    such head.
    """
    heads = []
    for between in ([user()], [user(), answer()]):
        before = written([*leading, *between])
        after = written([*leading, *between, user()])
        if before and after and after.startswith(before):
            block = after[len(before) :]
            if one.endswith(block):
                heads.append(one[: len(one) - len(block)])
    if leading:
        alone = written([*leading])
        if alone is not None:
            heads.append(alone)
    for head in heads:
        if text.startswith(head):
            return len(head)
    return None


def _rest_is_apart(written: Write, chat: Conversation, lead: int, tail: str) -> bool:
    """Return whether the text after the head stays the same with another head."""
    if not lead and not chat.tools:
        return True
    changed = [{**message, "content": ASKED} for message in chat.messages[:lead]]
    other = written([*changed, *chat.messages[lead:]], with_tools=False)
    return other is not None and other.endswith(tail)


def _rising_borders(at: Mapping[int, int], messages: Sequence[Message]) -> list[Border]:
    """Order the borders, by message, and leave out those that do not rise."""
    turns: list[Border] = []
    for index, where in sorted(at.items()):
        if not turns or where > turns[-1].at:
            is_user = index < len(messages) and messages[index]["role"] == "user"
            turns.append(Border(where, is_user))
    return turns


def cut_at_turns(mask: U8, turns: Sequence[Border], longest: int) -> list[Segment]:
    """Cut a conversation of tokens into pieces of at most `longest` tokens, head included, as the
    module describes.

    mask: 1 where a token is trained. turns: in tokens, ascending; the first one is the end of the
    head.
    """
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0)).tolist()
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    head = turns[0].at
    room = longest - head
    done = head
    segments = list[Segment]()
    if not runs or runs[0][0] < head:
        return []
    following = [*(begin for begin, _ in runs[1:]), len(mask)]
    ends = []
    for (_, end), next_begin in zip(runs, following, strict=True):
        ends.append(next((border.at for border in turns if end <= border.at <= next_begin), end))
    run = 0
    while run < len(runs):
        starts = []
        for border in turns:
            if (
                border.at <= runs[run][0]
                and ends[run] - border.at <= room
                and done - border.at <= room // _OVERLAP
            ):
                starts.append(border)
        if not starts:
            done = ends[run]
            run += 1
            continue
        starts = [border for border in starts if border.at <= done] or starts
        begin = next((border.at for border in starts if border.user), starts[0].at)
        while run + 1 < len(runs) and ends[run + 1] - begin <= room:
            run += 1
        segments.append(Segment(begin, max(begin, done), ends[run]))
        done = ends[run]
        run += 1
    return segments
