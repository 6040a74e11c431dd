"""Find columns that alone give the label away, and say how each column was tried.

For each value of a column the most frequent label is learned on rows of the first split, and tried
on rows of the last. Numbers and times with many values are binned into quantiles first; a column of
text whose values are numbers, but for a few such as `NA`, is numbers too. Of texts that hardly
return, their first and last words are tried instead, as a class is often a part of a path or an
identifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import F64
from headrace.formats.column_paths import required_path
from headrace.formats.text_columns import as_text
from headrace.stream.audit.near import SplitBlocks
from headrace.stream.audit.units import NUMERAL, NUMERALS

LOOKED_AT = 1 << 19  # rows of each split on which a column is tried
CLASSES = 100  # more distinct values than this are not classes
_BINS = 256  # quantiles of a numeric column
# share of the most frequent class's errors; a column with fewer gives the label away
_TELLING = 0.1
_FIRST = 256
_KNOWN = 0.5  # share of the tried rows whose text was learned; with fewer, little is said
_WORD = r"\p{L}+|\p{N}+"
_WORDS = (0, 1, 2, 3, -1, -2, -3, -4)  # of a text
_ENDS = 200  # letters from either end that words are looked for in
_WORDED = 1 << 16  # rows of each split whose words are looked at

How = Literal["values", "numbers", "words", "unique", "constant", "nested", "too many classes"]


@dataclass(frozen=True, kw_only=True)
class Telling:
    """A column that alone predicts the label.

    accuracy: the share of rows that it predicts correctly. most_frequent: the share of the most
    frequent class. Learned on one split and tested on another. It may be a legitimate feature, so
    it is only reported.
    """

    column: str
    accuracy: float
    most_frequent: float


@dataclass(frozen=True, kw_only=True)
class Tried:
    """How a column was tried as one that gives the label away.

    values, numbers: by its values, or in bins. words: its texts hardly return, and its first and
    last four words were tried. Not really tried: unique and constant, which can tell nothing;
    nested; too many classes, of the label.
    """

    column: str
    how: How


def find_telling(
    splits: Sequence[SplitBlocks], label: str, columns: Sequence[str], null_values: Sequence[str]
) -> tuple[tuple[Telling, ...], tuple[Tried, ...]]:
    """Predict the label from each column alone, by the most frequent class of its value."""
    if len(splits) < 2 or not (splits[0].index.total_rows and splits[-1].index.total_rows):
        return (), ()
    schema = splits[0].index.schema
    flat = [name for name in columns if not pa.types.is_nested(required_path(schema, name).type)]
    how: dict[str, How] = dict.fromkeys(columns, "nested")
    learned, tried = (
        _sample(split, flat, label=label, null_values=null_values)
        for split in (splits[0], splits[-1])
    )
    if learned[label].n_unique() > CLASSES:
        how |= dict.fromkeys(flat, "too many classes")
        return (), _listed(how)
    learned = learned.drop_nulls(label)
    tried = tried.drop_nulls(label)
    if not len(learned) or not len(tried):
        return (), ()
    usual = learned[label].mode().sort()[0]
    base = _fraction(tried[label] == usual)
    telling = []
    for column in flat:
        known, rows = learned.select(column, label), tried.select(column, label)
        guesses, how[column] = _guesses(known, rows)
        accuracy = _fraction(guesses.fill_null(usual) == rows[label])
        if how[column] == "words" or (rows[column].dtype == pl.String and _varies(known[column])):
            how[column] = "words"
            accuracy = max(accuracy, _by_words(known, rows, usual))
        if base < 1 and 1 - accuracy <= _TELLING * (1 - base):
            telling.append(Telling(column=column, accuracy=accuracy, most_frequent=base))
    return tuple(telling), _listed(how)


def _varies(values: pl.Series) -> bool:
    """Return whether texts are more than categories, and not numbers."""
    return values.n_unique() > _BINS and not _as_numbers(values).dtype.is_numeric()


def _by_words(known: pl.DataFrame, tried: pl.DataFrame, usual: str) -> float:
    """Return the largest share of rows that one of the first or last words predicts correctly."""
    known, tried = (
        rows.gather_every(max(1, len(rows) // _WORDED)).with_columns(_ends(rows.columns[0]))
        for rows in (known, tried)
    )
    column, label = known.columns
    best = 0.0
    for number in _WORDS:
        word = pl.col(column).list.get(number, null_on_oob=True)
        guesses, _ = _guesses(known.with_columns(word), tried.with_columns(word))
        best = max(best, _fraction(guesses.fill_null(usual) == tried[label]))
    return best


def _ends(column: str) -> pl.Expr:
    """Return the words of the beginning and the end of each text."""
    texts = pl.col(column).str
    return (
        texts.head(_ENDS)
        .str.extract_all(_WORD)
        .list.concat(texts.tail(_ENDS).str.extract_all(_WORD))
    )


def _listed(how: dict[str, How]) -> tuple[Tried, ...]:
    return tuple(Tried(column=column, how=word) for column, word in how.items())


def _sample(
    split: SplitBlocks, columns: Sequence[str], *, label: str, null_values: Sequence[str]
) -> pl.DataFrame:
    """Read rows from all over a split: the label as text, as any value may be a class, and
    decimals, which polars may lack, as floats.
    """

    def read(table: pa.Table) -> pa.Table:
        for number, column in enumerate(table.schema):
            if column.name == label:
                texts = as_text(table[number], null_values, label)
                table = table.set_column(number, label, texts)
            elif pa.types.is_decimal(column.type):
                table = table.set_column(number, column.name, table[number].cast(pa.float64()))
        return table

    # All columns at once, because text files are parsed again in every read.
    tables = split.map([*columns, label], read, split.spread(LOOKED_AT))
    return pl.DataFrame(pl.from_arrow(pa.concat_tables(tables)))


def _guesses(known: pl.DataFrame, tried: pl.DataFrame) -> tuple[pl.Series, How]:
    """Predict the label of each row of `tried`, null for a value that is not known, and say how.

    Both have one column and the label.
    """
    column, label = known.columns
    known = known.with_columns(_as_numbers(known[column]))
    if known[column].dtype.is_numeric():
        tried = tried.with_columns(_as_numbers(tried[column], numerals=True))
    values = known[column]
    how: How = "values"
    if values.dtype.is_numeric():
        numbers = _floats(values)
        edges = np.unique(numbers[np.isfinite(numbers)])
        if values.n_unique() > _BINS:
            how = "numbers"
            edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, _BINS)))
        binned = np.searchsorted(edges, _nearest(numbers, _floats(tried[column])))
        known = known.with_columns(pl.Series(column, np.searchsorted(edges, numbers)))
        tried = tried.with_columns(pl.Series(column, binned))
    best = known.group_by(column).agg(pl.col(label).mode().sort().first().alias("guess"))
    if len(best) == 1:
        how = "constant"
    guesses = tried.join(best, on=column, how="left", nulls_equal=True, maintain_order="left")
    if how == "values" and guesses["guess"].is_not_null().sum() < _KNOWN * len(tried):
        how = "words" if values.dtype == pl.String else "unique"
    return guesses["guess"], how


def _nearest(known: F64, values: F64) -> F64:
    """Return the known number that is nearest to each value; NaN for NaN.

    A value between two classes that no known one comes close to belongs to the nearer.
    """
    ordered = np.unique(known[np.isfinite(known)])
    if not len(ordered):
        return values
    above = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    below = np.maximum(above - 1, 0)
    is_below = values - ordered[below] < ordered[above] - values
    nearest: F64 = np.where(is_below, ordered[below], ordered[above])
    return np.where(np.isnan(values), values, nearest)


def _as_numbers(values: pl.Series, *, numerals: bool = False) -> pl.Series:
    """Return times, and texts that are numbers but for a few, as numbers; other values as they are.

    numerals: whether texts are known to be numbers.
    """
    if values.dtype.is_temporal():
        return values.to_physical()
    if values.dtype != pl.String:
        return values
    filled = values.filter(values != "")
    for some in () if numerals else (filled.head(_FIRST), filled):  # most columns end at once
        numerals = len(some) > 0 and int(some.str.contains(NUMERAL).sum()) >= NUMERALS * len(some)
        if not numerals:
            return values
    return values.cast(pl.Float64, strict=False) if numerals else values


def _floats(column: pl.Series) -> F64:
    return column.cast(pl.Float64).fill_null(np.nan).to_numpy()


def _fraction(right: pl.Series) -> float:
    return int(right.sum()) / max(1, len(right))
