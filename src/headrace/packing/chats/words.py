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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TEXT_TYPES = (
    "content",
    "reasoning",
    "calls",
    "results",
    "tools",
    "prompt",
    "keys",
    "parts",
    "columns",
)
FATES = ("trained", "context", "removed", "cut", "unread", "left_out")
FAULTS = {
    "reasoning_removed": "the template leaves out reasoning of the last turn",
    "unread_key": "words or a flag of training lie under a key of a message that nothing reads",
    "unread_prompt": "the words of a prompt column are in no message, nor in the text",
}
"""Losses of words that change what a model learns."""

PROMPT_COLUMNS = ("prompt", "system", "system_prompt", "functions")
ROLE_AND_TYPE = frozenset(("role", "from", "type"))  # keys whose names are no texts
_THINK_END = "</think>"
_WORD = re.compile(r"[^\W\d_]{2,}")
_FLAG = re.compile("mask|train|learn|loss|weight|ignore", re.IGNORECASE)
_LONGEST_NAME = 8  # characters, in a script that may not separate words
WHOLE = 1 << 62  # characters of a text that moved as a whole


class SourceText(NamedTuple):
    """A text of a row.

    field: the key of the normalised message that holds it. Of texts of type "parts", which nothing
    reads, it is the key of the typed part if that holds words, else "".
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
    """The account of one row.

    texts, weights: of its messages, whose texts have the fate that their weight says. known: fates
    of all other texts. faults: words of `FAULTS`, each with what was lost.
    """

    known: list[Fate] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    texts: Sequence[Sequence[SourceText]] = ()
    weights: Sequence[int] = ()

    @property
    def fates(self) -> list[Fate]:
        """The fates of all texts."""
        return [*self.known, *fates_of_messages(self.texts, [(self.weights, ())])]

    def remove(self, text_type: str, characters: int) -> None:
        """Move characters of a text beside the messages from "context" to "removed"."""
        known = []
        for fate in self.known:
            if fate.text_type == text_type and fate.fate == "context":
                known += _cut([fate], 0, characters, "removed")
            else:
                known.append(fate)
        self.known = known

    def cut(self, trained: int, context: int) -> None:
        """Move characters to "cut", from the last texts on.

        trained, context: characters of the trained and other tokens that are in no bin.
        """
        self.known = _cut(self.fates, trained, context)
        self.texts = ()
        self.weights = ()


@dataclass(slots=True)
class Words:
    """The account of many rows: characters and parts, by type and fate."""

    characters: Counter[tuple[str, str]] = field(default_factory=Counter)
    parts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, rows: Iterable[RowWords]) -> None:
        """Add the accounts of rows."""
        sizes = defaultdict[tuple[str, str], list[int]](list)
        by_weight = (defaultdict[str, list[int]](list), defaultdict[str, list[int]](list))
        for row in rows:
            for text_type, fate, size in row.known:
                sizes[text_type, fate].append(size)
            for entries, weight in zip(row.texts, row.weights, strict=True):
                by_type = by_weight[weight]
                for text_type, size, _ in entries:
                    by_type[text_type].append(size)
        for fate, by_type in zip(("context", "trained"), by_weight, strict=True):
            for text_type, more in by_type.items():
                sizes[text_type, "unread" if text_type == "parts" else fate] += more
        for key, values in sizes.items():
            self.characters[key] += sum(values)
            self.parts[key] += len(values)

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


def words_by_kind(row: RowWords) -> dict[str, dict[str, list[int]]]:
    """Return the account of one row: {type: {fate: [characters, parts]}}."""
    words = Words()
    words.add([row])
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


def empty_in_words(answers: int) -> str:
    """Say that trained answers have no words."""
    return f"{answers:,} trained answers are empty, which teaches a model to stop at once"


def transcripts_in_words(transcripts: int, texts: int) -> str:
    """Say that plain texts look like chats."""
    return (
        f"{transcripts:,} of {texts:,} plain texts look like chats, and all of each is trained,"
        " also what users say; give them as messages to train the answers alone"
    )


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
    """Count the characters of all texts in a value; see `texts_in`."""
    if isinstance(value, str):
        return len(value)
    return sum(map(len, texts_in(value)))


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a value, other than names of types and roles."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not (key in ROLE_AND_TYPE and isinstance(inner, str)):
                yield from texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)


def is_flag(key: str, value: Any) -> bool:
    """Return whether a value says, by its name, that its message is trained or not."""
    return isinstance(value, bool | int | float) and value in (0, 1) and bool(_FLAG.search(key))


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
    longest = max((len(sequence_weights) for sequence_weights, _ in sequences), default=0)
    weights = [0] * len(texts)
    for sequence_weights, _ in sequences:
        for owner, weight in enumerate(sequence_weights):
            weights[owner] = max(weights[owner], weight)
    result = []
    for owner, entries in enumerate(texts):
        for text_type, characters, name in entries:
            if text_type == "parts":
                result.append(Fate(text_type, "unread", characters))
                continue
            fate = "trained" if weights[owner] else "context"
            if owner >= longest:
                fate = "left_out"
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


def left_out(row: Any) -> RowWords:
    """Return the account of a row without a sequence."""
    values = row.values() if isinstance(row, Mapping) else [row]
    lost = sum(map(characters_of, values))
    return RowWords([Fate("columns", "left_out", lost)] if lost else [])


def joined(sequences: Sequence[RowWords], sizes: Sequence[int], row: Mapping[str, Any]) -> RowWords:
    """Join the accounts of sequences that begin with the same prompt.

    sizes: how many of the last characters of each sequence only it stands for; of the first, all
    are taken. row: their source; its characters that no sequence stands for are unread.
    """
    result = RowWords()
    for number, (words, characters) in enumerate(zip(sequences, sizes, strict=True)):
        fates = words.fates
        result.known += _last(fates, characters) if number else fates
        result.faults |= words.faults
    total = sum(map(characters_of, row.values()))
    # a line break between an instruction and its input is in no column
    result.known = _last(result.known, total)
    unread = total - sum(fate.characters for fate in result.known)
    if unread:
        result.known.append(Fate("columns", "unread", unread))
    return result


def _last(fates: Sequence[Fate], characters: int) -> list[Fate]:
    """Return the fates of the last characters."""
    result = []
    for fate in reversed(fates):
        if characters <= 0:
            break
        result.append(fate._replace(characters=min(fate.characters, characters)))
        characters -= fate.characters
    return result[::-1]


def _cut(fates: Sequence[Fate], trained: int, context: int, instead: str = "cut") -> list[Fate]:
    """Move characters to another fate, from the last texts on.

    trained, context: how many of those that are trained, and of the others.
    """
    left = {"trained": trained, "context": context}
    result = []
    for text_type, fate, characters in reversed(fates):
        claimed = min(left.get(fate, 0), characters)
        if claimed:
            left[fate] -= claimed
            result.append(Fate(text_type, instead, claimed))
        if characters > claimed or not characters:
            result.append(Fate(text_type, fate, characters - claimed))
    return result[::-1]
