"""Account for every text of a row: where each of its characters ended up. Pure.

A row's texts are its string values, wherever they lie, other than the names of roles and types.
Each has a type and a fate, and the fates of a row add up to all of its characters:

- trained, context: written by the template, inside or outside the parts that are trained.
- removed: read, and left out by the template, or by `reasoning`.
- cut: written, and not in a bin because the sequence did not fit.
- unread: nothing reads it: a column, or a key of a message that the template does not look at.
- left_out: the row gives no sequence.

The renderer reports only texts whose fate is not what the weight of their message says, so most
rows cost the lengths of their texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TEXT_TYPES = ("content", "reasoning", "calls", "results", "tools", "prompt", "keys", "columns")
FATES = ("trained", "context", "removed", "cut", "unread", "left_out")
FAULTS = {
    "reasoning_removed": "the template leaves out reasoning of the last turn",
    "unread_key": "words lie under a key of a message that nothing reads",
    "unread_prompt": "the words of a prompt column are in no message",
}
"""Losses of words that change what a model learns."""

PROMPT_COLUMNS = ("prompt", "system", "system_prompt")
PART_KEYS = "parts of content"  # the field of keys of typed parts, which nothing reads
_THINK_END = "</think>"
_WORD = re.compile(r"[^\W\d_]{2,}")
_LONGEST_NAME = 8  # characters, in a script that may not separate words
WHOLE = 1 << 62  # characters of a text that moved as a whole


class SourceText(NamedTuple):
    """A text of a row.

    field: the key of the normalised message that holds it.
    """

    text_type: str
    characters: int
    field: str


class Moved(NamedTuple):
    """A text whose fate is not what the weight of its message says.

    owner: its message. number: its number in the conversation, the same in every sequence of a row.
    """

    owner: int
    field: str
    fate: str
    characters: int
    number: int


class Fate(NamedTuple):
    """Characters of one type with one fate."""

    text_type: str
    fate: str
    characters: int


@dataclass(slots=True)
class RowWords:
    """The account of one row. faults: words of `FAULTS`, each with what was lost."""

    fates: list[Fate] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Words:
    """The account of many rows: characters and parts, by type and fate."""

    characters: Counter[tuple[str, str]] = field(default_factory=Counter)
    parts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, fates: Sequence[Fate]) -> None:
        """Add the account of a row."""
        characters = self.characters
        parts = self.parts
        for text_type, fate, count in fates:
            characters[text_type, fate] += count
            parts[text_type, fate] += 1

    def record(self) -> list[tuple[str, str, int, int]]:
        """Return type, fate, characters and parts, in the order of types and fates."""
        result = []
        for text_type in TEXT_TYPES:
            for fate in FATES:
                if self.parts[text_type, fate]:
                    key = (text_type, fate)
                    result.append((text_type, fate, self.characters[key], self.parts[key]))
        return result


def summed_words(records: Sequence[Sequence[Sequence[Any]]]) -> dict[str, dict[str, list[int]]]:
    """Add up the records of tasks: {type: {fate: [characters, parts]}}."""
    total = Words()
    for record in records:
        for text_type, fate, characters, parts in record:
            total.characters[text_type, fate] += characters
            total.parts[text_type, fate] += parts
    result: dict[str, dict[str, list[int]]] = {}
    for text_type, fate, characters, parts in total.record():
        result.setdefault(text_type, {})[fate] = [characters, parts]
    return result


def words_by_kind(fates: Sequence[Fate]) -> dict[str, dict[str, list[int]]]:
    """Return the account of one row: {type: {fate: [characters, parts]}}."""
    words = Words()
    words.add(fates)
    return summed_words([words.record()])


def sentence_of(account: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """Describe an account in one line: the characters of each fate, by type if lost."""
    phrases = []
    for fate in FATES:
        by_type = {
            text_type: fates[fate][0] for text_type, fates in account.items() if fate in fates
        }
        total = sum(by_type.values())
        if not total:
            continue
        phrase = f"{total:,} {fate.replace('_', ' ')}"
        if fate not in ("trained", "context", "left_out"):
            listed = ", ".join(
                f"{text_type} {count:,}" for text_type, count in by_type.items() if count
            )
            phrase += f" ({listed})"
        phrases.append(phrase)
    return f"characters: {', '.join(phrases) or 'none'}"


def reasoning_length(content: str) -> int:
    """Return how many characters of a content are reasoning between tags, with the white space
    after it.
    """
    end = content.rfind(_THINK_END)
    if end < 0:
        return 0
    end += len(_THINK_END)
    remainder = content[end:]
    return end + len(remainder) - len(remainder.lstrip())


def texts_of_content(role: str, content: str) -> list[SourceText]:
    """Return the texts of a message's content."""
    size = len(content)
    if role == "tool":
        return [SourceText("results", size, "content")]
    if role == "assistant" and _THINK_END in content:
        reasoning = reasoning_length(content)
        return [
            SourceText("reasoning", reasoning, "reasoning_content"),
            SourceText("content", size - reasoning, "content"),
        ]
    return [SourceText("content", size, "content")]


def characters_of(value: Any) -> int:
    """Count the characters of all texts in a value, other than names of types."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(characters_of(inner) for key, inner in value.items() if key != "type")
    if isinstance(value, list | tuple):
        return sum(map(characters_of, value))
    return 0


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a value, other than names of types and roles."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ("type", "role", "from"):
                yield from texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)


def holds_words(value: Any) -> bool:
    """Return whether a value holds a text of several words, unlike an identifier, name or date."""
    for text in texts_in(value):
        if len(_WORD.findall(text)) > 1 and len(text.split()) > 1:
            return True
        if not text.isascii() and len(text) > _LONGEST_NAME:
            return True
    return False


def fates_of_messages(
    texts: Sequence[Sequence[SourceText]],
    sequences: Sequence[tuple[Sequence[int], Sequence[Moved]]],
    without_reasoning: bool = False,
) -> list[Fate]:
    """Return the fates of the texts of messages.

    without_reasoning: whether reasoning was left out before rendering.

    sequences: of the row, each as the weights of its messages, which are the first of the row, and
    the texts that moved. A text is trained if one sequence trains it, else context if one holds it.
    """
    moved = _merged(sequences)
    weights = [0] * len(texts)
    for sequence_weights, _ in sequences:
        for owner, weight in enumerate(sequence_weights):
            weights[owner] = max(weights[owner], weight)
    result = []
    for owner, entries in enumerate(texts):
        for text_type, characters, name in entries:
            fate = "trained" if weights[owner] else "context"
            if name == PART_KEYS:
                fate = "unread"
            elif name == "reasoning_content" and without_reasoning:
                fate = "removed"
            if moved:
                claimed = _claimed(text_type, characters, moved.get((owner, name), {}))
                result += claimed
                characters -= sum(part.characters for part in claimed)
                if claimed and not characters:
                    continue
            result.append(Fate(text_type, fate, characters))
    return result


def _claimed(text_type: str, characters: int, moved: Mapping[str, int]) -> list[Fate]:
    """Return the parts of a text that moved, at most all of it."""
    result = []
    for fate, count in moved.items():
        claimed = min(count, characters)
        characters -= claimed
        if claimed:
            result.append(Fate(text_type, fate, claimed))
    return result


def lost_reasoning(
    sequences: Sequence[tuple[Sequence[int], Sequence[Moved]]],
) -> list[Moved]:
    """Return the reasoning that no sequence of a row holds."""
    moves = []
    for number, (_, moved) in enumerate(sequences):
        for move in moved:
            if move.field == "reasoning_content" and move.fate == "removed":
                moves.append((number, move))
    removed = Counter(move.number for _, move in moves)
    result = []
    for _, move in moves:
        holding = sum(move.owner < len(weights) for weights, _ in sequences)
        if removed[move.number] == holding:
            result.append(move)
    return result


def _merged(
    sequences: Sequence[tuple[Sequence[int], Sequence[Moved]]],
) -> dict[tuple[int, str], dict[str, int]]:
    """Return the characters that moved, by owner, field and fate, over all sequences of a row."""
    by_number: dict[int, dict[int, Moved]] = {}
    for number, (_, moves) in enumerate(sequences):
        for move in moves:
            by_number.setdefault(move.number, {})[number] = move
    result: dict[tuple[int, str], dict[str, int]] = {}
    for by_sequence in by_number.values():
        move = next(iter(by_sequence.values()))
        fates = []
        for number, (weights, _) in enumerate(sequences):
            if number in by_sequence:
                fates.append(by_sequence[number].fate)
            elif move.owner < len(weights):
                fates.append("trained" if weights[move.owner] else "context")
        fate = min(fates, key=FATES.index)
        by_fate = result.setdefault((move.owner, move.field), {})
        by_fate[fate] = by_fate.get(fate, 0) + move.characters
    return result


def cut_fates(fates: Sequence[Fate], trained: int, context: int) -> list[Fate]:
    """Move characters to "cut", from the last texts on.

    trained, context: characters of the trained and other tokens that are in no bin.
    """
    left = {"trained": trained, "context": context}
    result = []
    for text_type, fate, characters in reversed(fates):
        claimed = min(left.get(fate, 0), characters)
        if claimed:
            left[fate] -= claimed
            result.append(Fate(text_type, "cut", claimed))
        if characters > claimed or not characters:
            result.append(Fate(text_type, fate, characters - claimed))
    return result[::-1]


def unread_columns(row: Mapping[str, Any], read: Collection[str]) -> list[Fate]:
    """Return the texts of the columns that no layout reads."""
    result = []
    for name, value in row.items():
        if name in read:
            continue
        if type(value) is str:
            result.append(Fate("columns", "unread", len(value)))
        elif isinstance(value, Mapping | list | tuple):
            characters = characters_of(value)
            if characters:
                result.append(Fate("columns", "unread", characters))
    return result
