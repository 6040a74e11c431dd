"""Find how numbers in texts are written: their decimal mark, and the mark between thousands.

One dialect holds for a source, so all its columns are evidence. A comma before three digits alone
says nothing: `1,234` is a thousand for some and little more than one for others. It is decided by
the other values, and asked where these do not decide.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.init.look import NULLS, Look, Unsure, numeric_column
from headrace.errors import setting
from headrace.formats.dialect import TextDialect
from headrace.formats.text_columns import nulled, plain_numerals
from headrace.formats.types import is_text

_DECIMAL_COMMA = r",([0-9]{1,2}|[0-9]{4,})\s*$|^\s*[-+]?(0|[0-9]{4,}),[0-9]"
# parts of the dialect, and what shows for certain that a number is written with them
_MARKS = (
    ({"decimal": ","}, _DECIMAL_COMMA),
    ({"decimal": ",", "thousands": "."}, rf"\.[0-9]{{3}}[.,]|{_DECIMAL_COMMA}"),
    ({"decimal": ",", "thousands": " "}, rf"[\s\x{{a0}}\x{{202f}}][0-9]{{3}},|{_DECIMAL_COMMA}"),
    ({"thousands": ","}, r",[0-9]{3}[.,]"),
    ({"thousands": "'"}, r"[0-9]'[0-9]{3}"),
    ({"thousands": " "}, r"[0-9][\s\x{a0}\x{202f}][0-9]{3}"),
)
_COMMA = r"^\s*[-+]?[0-9]+,[0-9]{3}\s*$"
_GROUPED = r"^\s*[-+]?([1-9][0-9]{0,2}(,[0-9]{3})+|[0-9]{1,3})\s*$"
_POINT_GROUPED = _GROUPED.replace(",[", r"\.[")
_POINT = _COMMA.replace(",[", r"\.[")
_PLAIN = r"^\s*[-+]?[0-9]+([.,][0-9]+)*\s*$"
_WITH_UNIT = r"^\s*[($€£]?\s*[-+]?[0-9]+([.,][0-9]+)*\s*([-)%€$£°]|[a-zA-Z]{1,3})?\s*$"
_ORDINAL = r"^[0-9]+(st|nd|rd|th)$"
_BELOW_THOUSAND = r"^\s*[-+]?[0-9]{1,3}\s*$"


def number_marks(
    sample: Look, decimal: str | None, without: Collection[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Return the parts of the dialect that make most columns of text numbers, and these columns.

    decimal: the mark, if it is given. without: columns that are no numbers.

    Raises `Unsure` if a comma may be either mark.
    """
    texts = []
    points = []  # numbers as programs write them, unless the point is a mark of thousands
    for name in sample.texts():
        content = sample.columns[name].content
        if content == "text" and name not in without:
            texts.append(name)
        elif content == "number" and name not in without and _any(sample, name, r"\."):
            points.append(name)
    best: tuple[dict[str, str], list[str]] = {}, []
    for marks, sure in _MARKS:
        if decimal not in (None, marks.get("decimal", ".")):
            continue
        dialect = TextDialect(**marks)
        names = [name for name in (*texts, *points) if are_numbers(sample, name, dialect)]
        is_sure = decimal is not None or any(_any(sample, name, sure) for name in names)
        is_needed = decimal == "," or not set(names) <= set(points)
        if len(names) > len(best[1]) and is_sure and is_needed:
            best = marks, names
    if decimal is not None:
        return best
    if not best[0]:
        _refuse_points_of_thousands(sample, points)
    return _with_thousands(sample, texts, best)


def _refuse_points_of_thousands(sample: Look, points: Sequence[str]) -> None:
    """Raise `Unsure` for numbers below a thousand beside others with a point before three digits
    alone, which no program writes as decimals.
    """
    for name in points:
        is_open = _all(sample, name, _POINT_GROUPED) and _any(sample, name, _BELOW_THOUSAND)
        if is_open and _any(sample, name, _POINT):
            raise _unsure(sample, name, _POINT)


def _with_thousands(
    sample: Look, texts: Sequence[str], best: tuple[dict[str, str], list[str]]
) -> tuple[dict[str, str], list[str]]:
    """Decide about columns in which a comma stands before three digits alone.

    Where all numbers without one are below a thousand, and there are some, the comma marks
    thousands: as a decimal mark it would stand before fewer digits too.
    """
    open_ = []
    grouped = []
    for name in texts:
        is_number = are_numbers(sample, name, TextDialect(thousands=","))
        if is_number and _any(sample, name, _COMMA):
            open_.append(name)
            if _all(sample, name, _GROUPED) and _any(sample, name, _BELOW_THOUSAND):
                grouped.append(name)
    marks, names = best
    if marks.get("decimal") == "," and grouped:
        raise _unsure(sample, grouped[0], _COMMA)
    if not marks and open_:
        if grouped != open_:
            raise _unsure(sample, open_[0], _COMMA)
        return {"thousands": ","}, grouped
    return marks, names


def _unsure(sample: Look, name: str, pattern: str) -> Unsure:
    texts = _values(sample, name)
    example = texts.filter(pc.match_substring_regex(texts, pattern))[0].as_py()
    return Unsure.of(
        f"the mark in {example!r} may be a decimal mark or stand between thousands",
        "decimal",
        [".", ","],
        path=sample.source[0],
        column=name,
        remedy=f"give {setting('decimal', '.')} or {setting('decimal', ',')}",
    )


def odd_numbers(sample: Look, names: Sequence[str]) -> dict[str, str]:
    """Return the columns of text most of whose values are numbers, or numbers with a unit, each
    with the first value that is none.
    """
    odd = {}
    for name in names:
        texts = _values(sample, name)
        texts = texts.filter(pc.invert(pc.match_substring_regex(texts, _ORDINAL)))
        read = pc.match_substring_regex(texts, _WITH_UNIT)
        plain = pc.match_substring_regex(texts, _PLAIN)
        others = texts.filter(pc.invert(plain))
        if len(others) and 2 * (pc.sum(read).as_py() or 0) > len(texts):
            odd[name] = str(others[0].as_py())
    return odd


def are_numbers(sample: Look, name: str, dialect: TextDialect) -> bool:
    """Return whether a column of texts holds only numbers as this dialect writes them."""
    return numeric_column(plain_numerals(_values(sample, name), dialect), ()) is not None


def _values(sample: Look, name: str) -> pa.ChunkedArray:
    """Return the distinct texts of a column, but those that mean missing."""
    chunks = []
    for _, table in sample.tables:
        if name in table.column_names and is_text(table[name].type):
            texts = nulled(table[name], ("", *NULLS)).cast(pa.large_string())
            chunks.append(pc.unique(texts).drop_null())
    return pa.chunked_array(chunks, pa.large_string())


def _any(sample: Look, name: str, pattern: str) -> bool:
    texts = _values(sample, name)
    return bool(pc.any(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


def _all(sample: Look, name: str, pattern: str) -> bool:
    texts = _values(sample, name)
    return bool(pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py())
