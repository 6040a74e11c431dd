"""A first look at chats: rows of a few files, their layout, and a mapping where columns have other names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.init.look import evenly
from headrace.errors import InputError, SettingsError
from headrace.formats.listing import list_files
from headrace.packing.chats.layout_names import Layout
from headrace.packing.chats.layouts import Text, Tokens, layout_of, sample_of
from headrace.packing.chats.reader import BrokenRow, Row, read_rows
from headrace.packing.chats.rejects import RowRejected, shown

FILES, ROWS = 16, 2000  # that are looked at: of files, of rows in all

_ROLES = frozenset({"user", "human", "assistant", "gpt", "bot", "model", "system", "prompter", "chatbot"})
_PAIRS = (
    ("question", ("answer", "response", "solution", "answers", "output", "completion")),
    ("problem", ("solution", "answer", "response", "generated_solution", "output")),
    ("query", ("response", "answer", "output", "completion")),
    ("user", ("assistant", "bot", "model", "response")),
    ("human", ("assistant", "gpt", "bot", "model")),
    ("input", ("output", "response", "target", "answer")),
    ("instruction", ("response", "answer", "completion", "target")),
    ("prompt", ("answer", "output", "target", "chosen")),
    ("source", ("target",)),
)
_MATERIALS = ("input", "context")  # what an instruction is about


@dataclass(frozen=True)
class Chats:
    """What was looked at. names, bytes: of all files; rows: of those looked at, `whole` if these are all there are.

    layouts: of the rows, and how many; mapping: what the recipe must be told; lengths: characters, or tokens where
    rows are tokens, of each readable row; rejected: reason → rows.
    """

    root: Path
    names: list[str]
    bytes: int
    rows: list[Row]
    whole: bool
    layouts: Counter[Layout]
    mapping: dict[str, str]
    lengths: list[int]
    rejected: Counter[str]
    first_rejected: dict[str, str]

    @property
    def layout(self) -> Layout:
        """What most rows are."""
        return self.layouts.most_common(1)[0][0]

    @property
    def columns(self) -> list[str]:
        """The columns that all rows have, in the order of the first."""
        rows = [row for row in self.rows if isinstance(row, Mapping)]
        return [name for name in (rows[0] if rows else ()) if all(name in row for row in rows)]

    def values(self, column: str) -> list[Any]:
        """The column of all rows that are objects."""
        return [row[column] for row in self.rows if isinstance(row, Mapping)]


def look_at_chats(source: Sequence[str]) -> Chats:
    """Read some rows of some files. Raises `InputError`, and `SettingsError` where no column holds chats."""
    listing = list_files(source, splits="keep")
    chosen = evenly(len(listing.names), FILES)
    rows: list[Row] = []
    wheres: list[str] = []
    whole = len(chosen) == len(listing.names)
    for place in chosen:
        taken = 0
        for batch in read_rows(listing.path(place), name=listing.names[place], batch_rows=ROWS):
            keep = batch.rows[: max(1, ROWS // len(chosen)) - taken]
            rows += keep
            wheres += [batch.where(at) for at in range(len(keep))]
            taken += len(keep)
            if len(keep) < len(batch.rows):
                whole = False
                break
    if not rows:
        raise SettingsError(f"{source[0]}: holds no rows; give data to look at")
    _refuse_preference(rows, wheres)
    mapping = _mapping(rows, listing.names[0])
    layouts, lengths, rejected, first = _tally(rows, mapping, wheres)
    return Chats(
        listing.root,
        listing.names,
        int(listing.sizes.sum()),
        rows,
        whole,
        layouts,
        mapping,
        lengths,
        rejected,
        first,
    )


def _refuse_preference(rows: Sequence[Row], wheres: Sequence[str]) -> None:
    """Stop before a mapping is proposed: `chosen` and `rejected` look like two columns of answers."""
    for row, where in zip(rows, wheres, strict=True):
        try:
            sample_of(row)
        except RowRejected as wrong:
            if wrong.reason == "preference_data":
                raise SettingsError(f"{where}: {wrong.detail}; write that in a blend file") from None


def _tally(
    rows: Sequence[Row], mapping: Mapping[str, str], wheres: Sequence[str]
) -> tuple[Counter[Layout], list[int], Counter[str], dict[str, str]]:
    """Layouts of the rows, lengths of those that can be read, reasons of the others and where the first of each is."""
    layouts: Counter[Layout] = Counter()
    lengths: list[int] = []
    rejected: Counter[str] = Counter()
    first: dict[str, str] = {}
    for row, where in zip(rows, wheres, strict=True):
        try:
            if isinstance(row, BrokenRow):
                raise RowRejected(row.reason, row.detail)
            layout = layout_of(row, mapping)
            lengths.append(length_of(row, mapping))
            layouts[layout] += 1
        except RowRejected as wrong:
            rejected[wrong.reason] += 1
            first.setdefault(wrong.reason, where)
    return layouts, lengths, rejected, first


def length_of(row: Mapping[str, Any], mapping: Mapping[str, str]) -> int:
    """Tokens of a row of tokens, characters of another. Raises `RowRejected`."""
    sample = sample_of(row, "auto", mapping)
    if isinstance(sample, Tokens):
        return len(sample.ids)
    if isinstance(sample, Text):
        return len(sample.text)
    texts = [each.get("content") for each in sample.messages]
    more = [value for each in sample.messages for key, value in each.items() if key not in ("role", "content")]
    spoken = sum(len(each) if isinstance(each, str) else len(json.dumps(each, default=str)) for each in texts)
    return spoken + len(json.dumps([more, sample.tools or []], ensure_ascii=False, default=str))


def _mapping(rows: Sequence[Row], file: str) -> dict[str, str]:
    """Nothing where most rows are of a known layout; else other names of columns. Raises `SettingsError`."""
    objects = [row for row in rows if isinstance(row, Mapping)]
    if not objects:
        broken = next(row for row in rows if isinstance(row, BrokenRow))
        raise InputError(f"{file}: no row is a JSON object, the first: {broken.detail}; give files of chats")
    if _reads(objects, {}) * 2 > len(objects):
        return {}
    proposals = _proposals(objects)
    best = max(proposals, key=lambda each: _reads(objects, each), default=None)
    if best is not None and _reads(objects, best) * 2 > len(objects):
        return best
    raise SettingsError(
        f"{file}: none of the columns is known to hold chats, there are {shown(list(objects[0]))}; write a blend file "
        f'with "mapping", e.g. {{"user": "problem", "assistant": "solution"}} or {{"messages": "chat"}}'
    )


def _reads(rows: Sequence[Mapping[str, Any]], mapping: Mapping[str, str]) -> int:
    """How many of the rows are read so."""
    good = 0
    for row in rows:
        try:
            length_of(row, mapping)
        except RowRejected:
            continue
        good += 1
    return good


def _proposals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Mappings that could be meant, best first."""
    first = next((row for row in rows if any(value is not None for value in row.values())), rows[0])
    found = [_of_list(name, value) for name, value in first.items()]
    proposals = [each for each in found if each]
    lower = {name.lower(): name for name, value in first.items() if isinstance(value, str)}
    for user, assistants in _PAIRS:
        for assistant in assistants:
            if user in lower and assistant in lower:
                about = next((lower[name] for name in _MATERIALS if name in lower), None)
                if user == "instruction" and about is not None:  # an answer to the instruction alone would be a guess
                    names = {"instruction": lower[user], "input": about, "output": lower[assistant]}
                    proposals.append({name: column for name, column in names.items() if name != column})
                proposals.append({"user": lower[user], "assistant": lower[assistant]})
    if len(lower) == 1:
        proposals.append({"text": next(iter(lower.values()))})
    return proposals


def _of_list(name: str, value: object) -> dict[str, str]:
    """A mapping for a column of messages or of tokens; nothing for others."""
    if isinstance(value, str) and value[:1] == "[":
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return {}
    if all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        return {"input_ids": name}
    if not all(isinstance(each, Mapping) for each in value):
        return {}
    keys = [key for key, inner in value[0].items() if isinstance(inner, str)]
    role = next((key for key in keys if {str(each.get(key)).lower() for each in value} <= _ROLES), None)
    content = next((key for key in keys if key != role), None)
    if role is None or content is None:
        return {}
    given = {"messages": name}
    if role not in ("role", "from"):
        given["role"] = role
    if content not in ("content", "value"):
        given["content"] = content
    return given
