"""Tell a first line of delimited text that is a row from one that names the columns. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

REMEDY = "write a line of names before it"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_TIME = re.compile(
    r"\d{4}[-/.]\d\d?[-/.]\d\d?([ T]\d\d?:\d\d.*)?|\d\d?[-/.]\d\d?[-/.]\d{4}( .*)?"
    r"|\d\d?:\d\d(:\d\d.*)?"
)
_NO_NUMBER = re.compile(r"[-+]?(nan|inf)", re.IGNORECASE)
_YEARS = range(1600, 2401)
_LEAST_STEPS = 3  # numbers at equal distances
_LEAST_SORTED = 8  # numbers that grow or fall
_EQUAL = 1e-6  # share of a step


def is_value(name: str) -> bool:
    """Return whether a name looks like a number or a time."""
    return any(pattern.fullmatch(name) for pattern in (_NUMBER, _TIME, _NO_NUMBER))


def hint(names: Sequence[str], remedy: str = REMEDY) -> str:
    """Return a hint that the header is missing if one of these column names looks like data; else
    "".
    """
    suspect = next(filter(is_value, names), None)
    if suspect is None:
        return ""
    return f"; if {suspect!r} is data, the file has no header: {remedy}"


def value_among_names(contents: Mapping[str, str]) -> str | None:
    """Return the first name that is a value as those of its column: a time above times, or a
    number above numbers; None if there is none.

    Numbers that count, years, equal steps and many sorted numbers are names, as those of wide
    tables are. contents: number, time or another word for each column, by its name, in file order.
    """
    numbers = []
    for name, content in contents.items():
        if content == "number" and _NUMBER.fullmatch(name):
            numbers.append(name)
        elif content == "time" and _TIME.fullmatch(name):
            return name
    if numbers and not _are_names([float(name) for name in numbers]):
        return numbers[0]
    return None


def row_for_names(path: Path, schema: pa.Schema) -> str | None:
    """Return a warning if a first line that was taken for names looks like a row of these types;
    else None.
    """
    contents = {}
    for field in schema:
        contents[field.name] = _content(field.type)
    value = value_among_names(contents)
    if value is None:
        return None
    return (
        f"{path}: its first line was read as column names, but {value!r} looks like data; {REMEDY}"
    )


def _content(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return "number"
    if pa.types.is_temporal(type_):
        return "time"
    return "other"


def _are_names(numbers: Sequence[float]) -> bool:
    """Return whether numbers in this order may be the names of columns."""
    steps = [after - before for before, after in pairwise(numbers)]
    if not (all(step > 0 for step in steps) or all(step < 0 for step in steps)):
        return False
    if all(number in _YEARS for number in numbers) or len(numbers) >= _LEAST_SORTED:
        return True
    if numbers[0] in (0, 1) and all(step == 1 for step in steps):
        return True
    are_equal = all(abs(step - steps[0]) <= _EQUAL * abs(steps[0]) for step in steps)
    return len(numbers) >= _LEAST_STEPS and are_equal
