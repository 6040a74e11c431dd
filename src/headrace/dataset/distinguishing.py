"""Find the columns in which no two rows are the same, so that rows compared by them never repeat.

A row number or another identifier of a row says nothing about its content, but makes every row
unlike any other: comparing by it finds no copy. Such a column is left out of a comparison by
default, if what is left tells rows apart. A text or a measured number in which all rows differ is
content; it is compared, and named. Judged by the first rows of some shards, at most `LOOKED_AT`
together. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.content import NOTHING, row_digests
from headrace.formats.types import is_text

LOOKED_AT = 1 << 15
_LEAST_ROWS = 64  # fewer say nothing
_MANY_ROWS = 1 << 10  # whole numbers of anything but rows repeat among so many
_FIRST = 256
_LEAST_DISTINCT = 0.25  # share of rows that the other columns must tell apart
_DIGITS = r"^[0-9]{1,18}$"
_ONE_WORD = r"^[^\s]*[0-9][^\s]*$"
_MEASURED = r"^[-+]?[0-9.,]+([eE][-+]?[0-9]+)?%?$"
_DATED = r"^[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}"


@dataclass(frozen=True, kw_only=True)
class Distinguishing:
    """Columns in which all rows looked at differ, of those that rows are compared by by default.

    left_out: identifiers, which are not compared. compared: the others. rows: looked at.
    """

    left_out: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    rows: int = 0

    @classmethod
    def recorded(cls, stored: Mapping[str, Any]) -> Distinguishing:
        """Return what a manifest says of a comparison."""
        distinguishing = stored.get("distinguishing", {})
        return cls(
            left_out=tuple(distinguishing.get("left_out", ())),
            compared=tuple(distinguishing.get("compared", ())),
            rows=distinguishing.get("rows", 0),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values that `recorded` reads."""
        return {
            "left_out": list(self.left_out),
            "compared": list(self.compared),
            "rows": self.rows,
        }

    def without(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return names of columns without those that are left out."""
        return tuple(name for name in names if name not in self.left_out)

    def sentences(self) -> list[str]:
        """Say which columns distinguish every row, and what follows."""
        messages = []
        if self.left_out:
            messages.append(
                f"{', '.join(self.left_out)}: no two of {self.rows:,} rows looked at have the same"
                " value, as of an identifier; left out of the comparison of rows"
            )
        if self.compared:
            messages.append(
                f"{', '.join(self.compared)}: no two of {self.rows:,} rows looked at have the same"
                " value; rows are compared by it, so rows that differ in it alone are not the same"
            )
        return messages


def may_distinguish(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Select the columns whose type can be that of an identifier or a text."""
    selected = []
    for name in names:
        number = schema.get_field_index(name)
        if number >= 0:
            type_ = schema.field(number).type
            if pa.types.is_integer(type_) or is_text(type_):
                selected.append(name)
    return selected


def distinguishing(
    schema: pa.Schema, names: Sequence[str], read: Callable[[Sequence[str]], Sequence[pa.Table]]
) -> Distinguishing:
    """Judge columns by some rows of each of several shards.

    read: returns the same rows of each shard, at most `LOOKED_AT` together, with some columns.
    """
    parts = read(may_distinguish(schema, names))
    rows = sum(map(len, parts))
    if rows < _LEAST_ROWS:
        return Distinguishing(rows=rows)
    unique = []
    for name in parts[0].column_names:
        columns = [part[name] for part in parts]
        if _all_differ(columns[:1], _FIRST) and _all_differ(columns, rows):
            unique.append(name)
    identifiers = []
    for name in unique:
        if _identifies([part[name] for part in parts], rows):
            identifiers.append(name)
    others = [name for name in names if name not in identifiers]
    if identifiers and not (others and _distinguish_rows(read(others))):
        identifiers = []
    return Distinguishing(
        left_out=tuple(identifiers),
        compared=tuple(name for name in unique if name not in identifiers),
        rows=rows,
    )


def _all_differ(columns: Sequence[pa.ChunkedArray], rows: int) -> bool:
    """Return whether there are no two equal values, and none is missing, in the first rows."""
    digests = [row_digests(pa.table({"": column.slice(0, rows)})) for column in columns]
    values = np.sort(np.concatenate(digests))
    return bool(len(values) and values[0] != NOTHING and (values[1:] != values[:-1]).all())


def _identifies(columns: Sequence[pa.ChunkedArray], rows: int) -> bool:
    """Return whether distinct values look like identifiers: whole numbers, or words with digits
    that are neither measured numbers nor dates.
    """
    numbers = []
    for column in columns:
        if is_text(column.type):
            column = column.cast(pa.large_string())
            if _all_match(column, _DIGITS):
                column = column.cast(pa.int64())
        numbers.append(column)
    if all(pa.types.is_integer(column.type) for column in numbers):
        return rows >= _MANY_ROWS or all(_is_dense(column) for column in numbers)
    return all(
        is_text(column.type)
        and _all_match(column, _ONE_WORD)
        and not _all_match(column, _MEASURED)
        and not _all_match(column, _DATED)
        for column in numbers
    )


def _all_match(column: pa.ChunkedArray, pattern: str) -> bool:
    for length in (_FIRST, len(column)):  # most columns of text end at once
        matches = pc.match_substring_regex(column.slice(0, length), pattern)
        if not pc.all(matches, min_count=0).as_py():
            return False
    return True


def _is_dense(column: pa.ChunkedArray) -> bool:
    """Return whether distinct whole numbers take up most of their range."""
    least, most = pc.min_max(column).as_py().values()
    return bool(most - least < 2 * len(column))


def _distinguish_rows(parts: Sequence[pa.Table]) -> bool:
    """Return whether rows have many different contents: else most would be the same."""
    values = np.concatenate([row_digests(part) for part in parts])
    filled = values[values != NOTHING]
    return len(np.unique(filled)) >= max(2, _LEAST_DISTINCT * len(values))
