"""Infer types of text columns of CSV and TSV files from all rows: a type is proposed if it holds every value.

| type | texts that it holds |
|---|---|
| bool | `true` and `false` |
| int64, uint64 | whole numbers in range as decimal text: no sign but `-`, no leading zero, so that 007 stays text |
| float64 | decimal numbers that it keeps: its shortest text is of the same number, as for all of up to 15 digits |
| date | `2024-12-31` |
| datetime | `2024-12-31`, then a space or T, hours and minutes, seconds and up to six digits of them, or not; no zone |

The first of them that holds all values of all shards is the type; where none does, the column stays text. So neither
the order nor the number of shards, chunks and workers matters, and one odd value anywhere counts. bool, whole numbers
and dates are written again as the same text, float64 as the same number (1.5 for 1.50), datetime as the same moment.
Missing are empty fields and null values. A column of nothing else stays text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.local import default_workers, run_tasks
from headrace.formats.schema import TYPES
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import nulled

_WORDS = ("bool", "int64", "uint64", "float64", "date", "datetime")
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
_LENGTHS = pa.array([10, 16, 19, *range(21, 27)], pa.int32())  # 2024-12-31, … 23:59, … 23:59:59, … 23:59:59.123456
_FIRST = 64
_EXACT_DIGITS = 15  # that every float64 keeps


def infer_types(
    files: Sequence[tuple[Path, str]],
    *,
    signature: Sequence[str] | None = None,
    null_values: Sequence[str] = (),
    keep: Collection[str] = (),
    workers: int | None = None,
) -> dict[str, str]:
    """Return column → word of its type, sorted, for the text columns that have another type than text.

    files: paths and names; those that are not CSV or TSV are left out, with their columns. keep: columns that are not
    looked at. Reads every row once, O(chunk) of memory per worker. Raises `InputError` for files that cannot be read.
    """
    tasks = [partial(_of_shard, path, name, signature, null_values, keep) for path, name in files]
    found: dict[str, tuple[str, ...]] = {}
    typed: set[str] = set()
    for columns in run_tasks(tasks, workers or default_workers()):
        for name, words in columns.items():
            if words is None:
                typed.add(name)
            else:
                found[name] = tuple(word for word in found.get(name, _WORDS) if word in words)
    return {name: words[0] for name, words in sorted(found.items()) if words and name not in typed}


def _of_shard(
    path: Path, name: str, signature: Sequence[str] | None, null_values: Sequence[str], keep: Collection[str]
) -> Mapping[str, tuple[str, ...] | None]:
    """Return the words that hold all values of each column that has some; None for columns of other formats."""
    shard = survey(path, name, signature)
    if shard.dialect is None:
        return dict.fromkeys(shard.schema.names)
    held: dict[str, tuple[str, ...]] = {}
    for chunk in read_chunks(shard):
        open_ = [each for each in shard.schema.names if each not in keep and held.get(each) != ()]
        table = chunk.table(open_)
        for each in open_:
            values = nulled(table[each], ("", *null_values)).drop_null()
            if len(values):
                held[each] = _holding(values, held.get(each, _WORDS))
    return held


def _holding(values: pa.ChunkedArray, words: Sequence[str]) -> tuple[str, ...]:
    """Return those of the words whose types hold all values."""
    held: set[str] = set()
    if "bool" in words and _all(pc.is_in(values, value_set=pa.array(["true", "false"], values.type))):
        held.add("bool")
    whole = _written_again(values, "int64") if {"int64", "uint64", "float64"} & {*words} else None
    if whole is not None:
        least, most = (each.as_py() for each in pc.min_max(whole).values())
        held |= {"int64", "uint64"} if least >= 0 else {"int64"}
        if max(-least, most) <= 10**_EXACT_DIGITS:
            held.add("float64")
    elif "uint64" in words and _written_again(values, "uint64") is not None:
        held.add("uint64")
    if "float64" in words and "float64" not in held and _keeps_numbers(values):
        held.add("float64")
    if "date" in words and _written_again(values, "date") is not None:
        held |= {"date", "datetime"}
    elif "datetime" in words and _are_moments(values):
        held.add("datetime")
    return tuple(word for word in words if word in held)


def _read(values: pa.ChunkedArray, word: str) -> pa.ChunkedArray | None:
    try:
        values.slice(0, _FIRST).cast(TYPES[word])  # Arrow makes an error of each value that does not fit, which is slow
        return values.cast(TYPES[word])
    except pa.ArrowInvalid:
        return None


def _all(found: pa.ChunkedArray) -> bool:
    return bool(pc.all(found, min_count=0).as_py())


def _written_again(values: pa.ChunkedArray, word: str) -> pa.ChunkedArray | None:
    """Return values of a type if they are written again as they were; else None."""
    read = _read(values, word)
    return read if read is not None and _all(pc.equal(read.cast(values.type), values)) else None


def _keeps_numbers(values: pa.ChunkedArray) -> bool:
    """Tell whether float64 keeps every number: its shortest text is of the same number."""
    read = _read(values, "float64")
    if read is None or not _all(pc.is_finite(read)):
        return False
    again = read.cast(values.type)
    other = pc.not_equal(again, values)  # texts of other forms, such as 1.50, or of other numbers
    values, again = values.filter(other), again.filter(other)
    # Both are near each other, so equal digits are one number.
    return _all(pc.match_substring_regex(values, _NUMBER)) and _all(pc.equal(_digits(values), _digits(again)))


def _digits(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the significant digits of numbers."""
    return pc.utf8_trim(pc.replace_substring_regex(texts, r"[eE].*$|[-.]", ""), "0")


def _are_moments(values: pa.ChunkedArray) -> bool:
    """Tell whether all are dates and times; Arrow reads no other form of these lengths."""
    return _read(values, "datetime") is not None and _all(pc.is_in(pc.binary_length(values), value_set=_LENGTHS))
