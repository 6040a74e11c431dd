"""Infer types of text columns of CSV and TSV files from all rows: a type is proposed if it holds
every value.

| type | texts that it holds | |---|---| | bool | `true` and `false` | | int64, uint64 | whole
numbers in range as decimal text: no sign but `-`, no leading zero, so that 007 stays text | |
float64 | decimal numbers that it keeps: its shortest text is of the same number, as for all of up
to 15 digits | | date | `2024-12-31` | | datetime | `2024-12-31`, then a space or T, hours and
minutes, optionally seconds and up to six digits of them; no zone |

The type is the first one that holds all values of all shards; if none does, the column stays text.
So the order and number of shards, chunks and workers do not matter, and one odd value anywhere
counts. Writing a value gives back the same text for bool, whole numbers and dates, the same number
for float64 (1.5 for 1.50), and the same moment for datetime. Empty fields and null values are
missing. A column with nothing else stays text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.local import default_workers, run_tasks
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import nulled
from headrace.formats.types import TYPES

_WORDS = ("bool", "int64", "uint64", "float64", "date", "datetime")
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
# 2024-12-31, … 23:59, … 23:59:59, … 23:59:59.123456
_LENGTHS = pa.array([10, 16, 19, *range(21, 27)], pa.int32())
_FIRST = 64
_EXACT_DIGITS = 15  # digits that every float64 keeps


def infer_types(
    files: Sequence[tuple[Path, str]],
    *,
    signature: Sequence[str] | None = None,
    null_values: Sequence[str] = (),
    keep: Collection[str] = (),
    workers: int | None = None,
) -> dict[str, str]:
    """Return column → type word, sorted, for the text columns for which another type than text
    fits.

    files: paths and names; files other than CSV or TSV are left out, with their columns. keep:
    columns to skip. Reads every row once, O(chunk) of memory per worker. Raises `InputError` for
    files that cannot be read.
    """

    def look(path: Path, name: str) -> Mapping[str, tuple[str, ...] | None]:
        """Return the words that hold all values of each column with values; columns of other
        formats map to None.
        """
        shard = survey(path, name, signature)
        if shard.dialect is None:
            return dict.fromkeys(shard.schema.names)
        words_of: dict[str, tuple[str, ...]] = {}
        for chunk in read_chunks(shard):
            open_ = [
                name for name in shard.schema.names if name not in keep and words_of.get(name) != ()
            ]
            table = chunk.table(open_)
            for column in open_:
                values = nulled(table[column], ("", *null_values)).drop_null()
                if len(values):
                    words_of[column] = _holding(values, words_of.get(column, _WORDS))
        return words_of

    tasks = [partial(look, path, name) for path, name in files]
    words_of: dict[str, tuple[str, ...]] = {}
    typed: set[str] = set()
    for columns in run_tasks(tasks, workers or default_workers()):
        for name, words in columns.items():
            if words is None:
                typed.add(name)
            else:
                words_of[name] = tuple(word for word in words_of.get(name, _WORDS) if word in words)
    return {
        name: words[0] for name, words in sorted(words_of.items()) if words and name not in typed
    }


def _holding(values: pa.ChunkedArray, words: Sequence[str]) -> tuple[str, ...]:
    """Return those of the words whose types hold all values."""
    matching: set[str] = set()
    if "bool" in words and _all(
        pc.is_in(values, value_set=pa.array(["true", "false"], values.type))
    ):
        matching.add("bool")
    integers = None
    if {"int64", "uint64", "float64"} & {*words}:
        integers = _written_again(values, "int64")
    if integers is not None:
        least, most = (bound.as_py() for bound in pc.min_max(integers).values())
        if least >= 0:
            matching |= {"int64", "uint64"}
        else:
            matching |= {"int64"}
        if max(-least, most) <= 10**_EXACT_DIGITS:
            matching.add("float64")
    elif "uint64" in words and _written_again(values, "uint64") is not None:
        matching.add("uint64")
    if "float64" in words and "float64" not in matching and _keeps_numbers(values):
        matching.add("float64")
    if "date" in words and _written_again(values, "date") is not None:
        matching |= {"date", "datetime"}
    elif (
        "datetime" in words
        and _read(values, "datetime") is not None
        and _all(
            pc.is_in(pc.binary_length(values), value_set=_LENGTHS)
        )  # of these, Arrow reads no other form
    ):
        matching.add("datetime")
    return tuple(word for word in words if word in matching)


def _read(values: pa.ChunkedArray, word: str) -> pa.ChunkedArray | None:
    try:
        # try a few first: Arrow's error for each bad value is slow
        values.slice(0, _FIRST).cast(TYPES[word])
        return values.cast(TYPES[word])
    except pa.ArrowInvalid:
        return None


def _all(mask: pa.ChunkedArray) -> bool:
    return bool(pc.all(mask, min_count=0).as_py())


def _written_again(values: pa.ChunkedArray, word: str) -> pa.ChunkedArray | None:
    """Return the values as a type if writing them gives the same texts; else None."""
    read = _read(values, word)
    if read is not None and _all(pc.equal(read.cast(values.type), values)):
        return read
    return None


def _keeps_numbers(values: pa.ChunkedArray) -> bool:
    """Return whether float64 keeps every number, so that its shortest text is of the same
    number.
    """
    read = _read(values, "float64")
    if read is None or not _all(pc.is_finite(read)):
        return False
    again = read.cast(values.type)
    other = pc.not_equal(again, values)  # texts of another form, such as 1.50, or another number
    values = values.filter(other)
    again = again.filter(other)
    # The two numbers are close, so equal digits mean equal numbers.
    return _all(pc.match_substring_regex(values, _NUMBER)) and _all(
        pc.equal(_digits(values), _digits(again))
    )


def _digits(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the significant digits of numbers."""
    return pc.utf8_trim(pc.replace_substring_regex(texts, r"[eE].*$|[-.]", ""), "0")
