"""Find the types of text columns by the evidence of every value. Pure.

| type | texts that it holds |
|---|---|
| bool | `true` and `false` |
| int64, uint64 | whole numbers in range as decimal text: no sign but `-`, no leading zero |
| float64 | decimal numbers that it keeps: its shortest text is of the same number |
| date | `2024-12-31` |
| datetime | `2024-12-31`, then a space or T, hours and minutes, optionally seconds; no zone |
| datetime_utc | the same with hours and minutes, then `Z` or an offset such as `+02:00` |

The type is the first one that holds all values of all shards; if none does, the column stays text.
So the order and number of shards, chunks and workers do not matter, and one odd value anywhere
counts. Writing a value gives back the same text for bool, whole numbers and dates, the same number
for float64 (1.5 for 1.50), and the same moment for datetime and datetime_utc. Empty fields and null
values are missing and decide nothing. A column with nothing else stays text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import Bools
from headrace.formats.dates import FIRST_US, LAST_US
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.text_columns import as_text, cast_text, nulled, plain_numerals
from headrace.formats.types import TYPES

_TIME_WORDS = ("date", "datetime", "datetime_utc")
WORDS = ("bool", "int64", "uint64", "float64", *_TIME_WORDS)
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
# 2024-12-31, … 23:59, … 23:59:59, … 23:59:59.123456
_LENGTHS = (10, 16, 19, *range(21, 27))
_INSTANT = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
    r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
)
# These stand among the words of a column: until it has a value, and until one is missing.
_NO_VALUE = "nothing"
_NO_GAP = "no gap"
_FIRST = 64
_SPELLED = ("float64", "datetime", "datetime_utc")
_EXACT_DIGITS = 15  # digits that every float64 keeps
_ZERO_BYTES = 5  # the shortest text of a number other than 0 that is nearly 0 has one more
_ALL = (*WORDS, _NO_VALUE, _NO_GAP)
_POWERS = np.array([10**digits for digits in range(1, 19)], np.int64)


class Evidence:
    """The types that hold every value seen so far, by column.

    words: of each column that had rows; the first is its type, none means text. dialect: how
    numbers are written, and which texts are no values. Times of a declared form are text.
    """

    def __init__(self, dialect: TextDialect = PLAIN) -> None:
        self.words: dict[str, tuple[str, ...]] = {}
        self._dialect = dialect
        self._null_values = ("", *dialect.null_values)
        self._all: tuple[str, ...] = _ALL
        if dialect.time_format:
            self._all = tuple(word for word in _ALL if word not in _TIME_WORDS)

    def leave_out(self, names: Iterable[str]) -> None:
        """Take columns for text, whatever their values."""
        self.words |= dict.fromkeys(names, ())

    def undecided(self, names: Iterable[str]) -> list[str]:
        """Select the columns that may still have another type than text."""
        return [name for name in names if self.words.get(name) != ()]

    def add(self, table: pa.Table) -> None:
        """Look at all values of some rows. table: columns of text."""
        for name, column in zip(table.column_names, table.columns, strict=True):
            words = self.words.get(name, self._all)
            values = nulled(column, self._null_values)
            if values.null_count:
                words = tuple(word for word in words if word != _NO_GAP)
                values = values.drop_null()
            if len(values):
                mark = tuple(word for word in words if word == _NO_GAP)
                words = (*_holding(values, words, self._dialect), *mark)
            if table.num_rows:
                self.words[name] = _unless_text(words)

    def join(self, words_of: Mapping[str, Sequence[str]]) -> None:
        """Add what was seen of other rows of the same columns. words_of: their `words`."""
        for name, words in words_of.items():
            known = self.words.get(name, self._all)
            self.words[name] = _unless_text([word for word in known if word in words])

    def types(self) -> dict[str, pa.DataType]:
        """Return the types of the columns that are not text."""
        types = {}
        for name, words in self.words.items():
            if words and _NO_VALUE not in words:
                types[name] = TYPES[words[0]]
        return types

    def gaps(self) -> set[str]:
        """Return the columns that are not text and lack a value in some rows."""
        return {name for name in self.types() if _NO_GAP not in self.words[name]}


def spelled_type(words: Sequence[str]) -> pa.DataType | None:
    """Return the type whose values have several texts, such as 12 and 12.0, if the texts of a
    column may be of it.
    """
    for word in _SPELLED:
        if word in words and words[0] not in ("bool", "int64"):
            return TYPES[word]
    return None


def in_one_form(
    texts: pa.ChunkedArray, type_: pa.DataType, dialect: TextDialect, name: str
) -> pa.ChunkedArray:
    """Write the values of a `spelled_type` in one form each, so that equal values have equal
    texts.
    """
    return as_text(cast_text(plain_numerals(texts, dialect), type_), (), name)


def _unless_text(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words; none if only marks are left, since the column is text."""
    return tuple(words) if {*words} & {*WORDS} else ()


def _holding(
    values: pa.ChunkedArray, words: Sequence[str], dialect: TextDialect
) -> tuple[str, ...]:
    """Return those of the words whose types hold all values."""
    first = _matching(values.slice(0, _FIRST), words, dialect)  # most columns of text end here
    if first and len(values) > _FIRST:
        return _matching(values, first, dialect)
    return first


def _matching(
    values: pa.ChunkedArray, words: Sequence[str], dialect: TextDialect
) -> tuple[str, ...]:
    matching: set[str] = set()
    if "bool" in words and _all(
        pc.is_in(values, value_set=pa.array(["true", "false"], values.type))
    ):
        matching.add("bool")
    if {"int64", "uint64", "float64"} & {*words}:
        matching |= _numbers(plain_numerals(values, dialect), words)
    if "date" in words and _written_again(values, "date") is not None:
        matching |= {"date", "datetime"}
    elif (
        "datetime" in words
        and _read(values, "datetime") is not None
        and _all(
            pc.is_in(pc.binary_length(values), value_set=pa.array(_LENGTHS, pa.int32()))
        )  # of these, Arrow reads no other form
    ):
        matching.add("datetime")
    elif "datetime_utc" in words and _are_instants(values):
        matching.add("datetime_utc")
    return tuple(word for word in words if word in matching)


def _numbers(values: pa.ChunkedArray, words: Sequence[str]) -> set[str]:
    """Return the number types that hold all values."""
    matching: set[str] = set()
    integers = _read(values, "int64") if {"int64", "uint64"} & {*words} else None
    if integers is not None and _is_shortest(values, integers):
        least, most = (bound.as_py() for bound in pc.min_max(integers).values())
        matching.add("int64")
        if least >= 0:
            matching.add("uint64")
        if max(-least, most) <= 10**_EXACT_DIGITS:
            return matching | {"float64"}
    elif "uint64" in words and _written_again(values, "uint64") is not None:
        matching.add("uint64")
    if "float64" in words and _keeps_numbers(values):
        matching.add("float64")
    return matching


def _are_instants(values: pa.ChunkedArray) -> bool:
    """Check whether all values are ISO times with a zone, in a year that a date can have."""
    if not _all(pc.match_substring_regex(values, _INSTANT)):
        return False
    instants = _read(values, "datetime_utc")
    if instants is None:
        return False
    first, last = (bound.as_py() for bound in pc.min_max(instants.cast(pa.int64())).values())
    return bool(first >= FIRST_US and last <= LAST_US)


def _read(values: pa.ChunkedArray, word: str) -> pa.ChunkedArray | None:
    try:
        return cast_text(values, TYPES[word])
    except pa.ArrowInvalid:
        return None


def _all(mask: pa.ChunkedArray) -> bool:
    return bool(pc.all(mask, min_count=0).as_py())


def _is_shortest(texts: pa.ChunkedArray, integers: pa.ChunkedArray) -> bool:
    """Check that integers are written in their shortest form.

    No form of a number is shorter, so it suffices to compare the sums of lengths.
    """
    numbers = integers.to_numpy()
    negative = int(np.count_nonzero(numbers < 0))
    if (numbers == np.iinfo(np.int64).min).any():
        return _all(pc.equal(integers.cast(texts.type), texts))
    digits = np.searchsorted(_POWERS, np.abs(numbers), side="right")
    shortest = int(digits.sum()) + len(numbers) + negative
    return bool(pc.sum(pc.binary_length(texts)).as_py() == shortest)


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
    if not _all(pc.match_substring_regex(values, _NUMBER)):
        return False
    # The others have at most 15 digits and are not nearly zero.
    lossy = _may_lose_digits(values, read)
    if not lossy.any():
        return True
    doubtful = pa.chunked_array([pa.array(lossy)])
    values = values.filter(doubtful)
    again = read.filter(doubtful).cast(values.type)
    in_other_form = pc.not_equal(values, again)
    values = values.filter(in_other_form)
    again = again.filter(in_other_form)
    # The two numbers are close, so equal digits mean equal numbers.
    return _all(pc.equal(_digits(values), _digits(again)))


def _may_lose_digits(texts: pa.ChunkedArray, numbers: pa.ChunkedArray) -> Bools:
    """Mask the numbers with many digits, and those so close to zero that float64 keeps fewer.

    The shortest text of the latter, such as 1e-310, has more bytes than those of most zeros.
    """
    size = pc.binary_length(texts).to_numpy()
    near_zero = np.abs(numbers.to_numpy()) < np.finfo(np.float64).tiny
    mask: Bools = (size > _EXACT_DIGITS) | (near_zero & (size > _ZERO_BYTES))
    return mask


def _digits(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the significant digits of numbers."""
    return pc.utf8_trim(pc.replace_substring_regex(texts, r"[eE].*$|[-.]", ""), "0")
