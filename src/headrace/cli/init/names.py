"""Tell whether a line that was taken for the names of columns is a row, by the values below it.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.times import time_format
from headrace.formats.header import value_among_names
from headrace.formats.types import is_text

_ROWS = 2_000  # of a column that are compared
_LEAST = 20  # values that look alike
_LEAST_LETTERS = 3  # of a name that looks like them
_LEAST_HEX = 8
_SENTENCE = re.compile(r"\S+(\s+\S+){4,}[.!]")
_ADDRESS = re.compile(r"https?://\S+|[^@\s]+@[^@\s]+\.\w+")


@dataclass(frozen=True)
class ValueAsName:
    """A name that is rather a value of its column, and what shows it."""

    name: str
    why: str


def value_as_name(contents: Mapping[str, str], tables: Sequence[pa.Table]) -> ValueAsName | None:
    """Return the first name that is rather a value; None if all may be names.

    contents: number, time or another word for each column. tables: text as it stands in the files.
    """
    value = value_among_names(contents)
    if value is not None:
        return ValueAsName(value, f"{value!r} is a {contents[value]}, as the values below it")
    texts = 0
    repeated = []
    for name, content in contents.items():
        if content == "time" and time_format([pa.chunked_array([[name]])]) is not None:
            return ValueAsName(name, f"{name!r} is a time, as the values below it")
        if content in ("number", "time"):
            continue
        texts += 1
        values = _values(name, tables)
        why = _why(name, values)
        if why:
            return ValueAsName(name, f"{name!r} {why}")
        if (values == name).sum() > 1:
            repeated.append(name)
    if 2 * len(repeated) < max(
        1, texts
    ):  # one may be called as one of its values, such as survived
        return None
    return ValueAsName(repeated[0], f"{repeated[0]!r} is also a value of rows below it")


def repeats_names(table: pa.Table) -> bool:
    """Return whether a row of a table of texts is its names again."""
    for at, name in enumerate(table.column_names):
        if not is_text(table.schema.field(at).type):
            return False
        table = table.filter(pc.equal(table.column(at), name))
        if not len(table):
            return False
    return bool(table.num_columns)


def _values(name: str, tables: Sequence[pa.Table]) -> pl.Series:
    """Return the first texts of a column that are not missing."""
    parts = []
    for table in tables:
        if name in table.column_names and is_text(table[name].type):
            parts.append(pl.Series(name, table[name].slice(0, _ROWS), dtype=pl.String))
    if not parts:
        return pl.Series(name, [], dtype=pl.String)
    return pl.concat(parts).drop_nulls()


def _why(name: str, values: pl.Series) -> str:
    """Return what shows that a name is one of these values; "" if nothing does."""
    if len(values) < _LEAST:
        return ""
    if _SENTENCE.fullmatch(name):
        return "is a sentence"
    if _ADDRESS.fullmatch(name):
        return "is an address"
    if _has_shape(name, values):
        return f"is written as the values below it, such as {values[0]!r}"
    return ""


def _has_shape(name: str, values: pl.Series) -> bool:
    """Return whether a name with a digit differs from all values in digits, or in letters and
    digits of a kind, alone.
    """
    if len(name) < _LEAST_LETTERS or not re.search(r"\d", name):
        return False
    numbered = values.str.replace_all(r"\d+", "0") == re.sub(r"\d+", "0", name)
    if numbered.all():
        return True
    if len(name) >= _LEAST_HEX and re.fullmatch(r"[0-9a-fA-F-]+", name):
        return bool(values.str.contains(f"^[0-9a-fA-F-]{{{len(name)}}}$").all())
    spelled = values.str.replace_all("[a-z]", "a").str.replace_all("[A-Z]", "A")
    of_name = re.sub("[A-Z]", "A", re.sub("[a-z]", "a", name))
    return bool((spelled.str.replace_all(r"\d", "0") == re.sub(r"\d", "0", of_name)).all())
