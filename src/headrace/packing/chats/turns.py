"""Choose which turns of a conversation are trained, and which reasoning is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from headrace.packing.chats.layouts import Conversation
from headrace.packing.chats.messages import Message, has_reasoning, without_reasoning

Reasoning = Literal["template", "keep", "every_user_turn", "mask", "drop"]
"""Which reasoning is written: what the template keeps; all of it, or the row is refused; all of it,
with one sequence per user turn; what the template keeps, and none of it is trained; none.
"""
TrainOn = Literal["every_turn", "last_turn"]
"""Which answers are trained: all, or those after the last user's message."""


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
