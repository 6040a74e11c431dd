"""Find copies whose numbers are in other units, such as Fahrenheit, cents or z-scores.

Such a copy differs from its original in every number of a column. Where the quantiles of a column
in the last split are those of the first, stretched and shifted, rows of the two are paired by all
other compared columns, and one affine map is fitted to the pairs. It counts if it explains nearly
all of them, to the digits that are written. Nothing is found if only some rows are in other units,
or if the other columns do not tell rows differ: then other units were not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.arrays import F64, U64, Bools, concatenated
from headrace.formats.column_paths import required_path
from headrace.formats.content import NOTHING, among, row_digests
from headrace.formats.types import is_text
from headrace.stream.audit.near import SplitBlocks
from headrace.stream.audit.units import Grid, Units

_LOOKED_AT = 1 << 15  # rows of each split whose quantiles are compared
_QUANTILES = np.linspace(0.05, 0.95, 19)
_MOVED = 0.1  # of the spread of a column, that its quantiles must differ by
_STRAIGHT = 0.95  # correlation of quantiles that one affine map explains
_LEAST = 32  # pairs, and different numbers in them
_EXPLAINED = 0.9  # share of pairs
_DIGITS = 1 << 20  # of the spread of a column, to which pairs must agree
_COARSEST = 64  # of the spread of a column: steps that are wider agree by chance
_ROUNDED = 0.6  # of the smallest step between numbers that are rounded to it
_WHOLE = 1e-3  # of a step


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Numbers of a column in the later split: those of the earlier one × scale + offset."""

    column: str
    scale: float
    offset: float


@dataclass(frozen=True, kw_only=True)
class OtherUnits:
    """Rows of `split` that are rows of `earlier`, with some columns in other units.

    fraction: of the rows of `split`, 0 to 1.
    """

    earlier: str
    split: str
    conversions: tuple[Conversion, ...]
    rows: int
    fraction: float


def columns_as_written(looked_at: pa.Table, units: Units) -> tuple[str, ...]:
    """Select the compared columns of numbers, dates and nested values, which are compared as
    written; none where other units than rows are compared.
    """
    if units.unit != "row":
        return ()
    texts = {grid.column for grid in units.grids if grid.is_text}
    selected = []
    for name in units.compared:
        type_ = looked_at[name].type
        is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
        is_other = pa.types.is_temporal(type_) or pa.types.is_nested(type_)
        if is_number or is_other or pa.types.is_decimal(type_) or name in texts:
            selected.append(name)
    return tuple(selected)


def find_other_units(
    splits: Sequence[SplitBlocks], units: Units, numbers: Sequence[str]
) -> OtherUnits | None:
    """Look for rows of the first split in the last one; None if none are found.

    numbers: as `columns_as_written`. Reads some rows; of suspicious columns, all compared columns
    twice, with 8 bytes a row.
    """
    if len(splits) < 2:
        return None
    first, last = splits[0], splits[-1]
    if not (first.index.total_rows and last.index.total_rows):
        return None
    moved = _moved(first, last, _measured(first.index.schema, numbers))
    others = [name for name in units.compared if name not in moved]
    if not moved or not others:
        return None
    paired = _paired(first, last, others)
    if len(paired) < _LEAST:
        return None
    numbers_of_first = _numbers_of(first, others, moved, paired)
    numbers_of_last = _numbers_of(last, others, moved, paired)
    conversions = []
    equal = np.ones(len(paired), np.bool_)
    for name, one, other in zip(moved, numbers_of_first, numbers_of_last, strict=True):
        conversion, explained = _convert(name, one, other)
        equal &= explained
        if conversion is not None:
            conversions.append(conversion)
    if not conversions or not equal.any():
        return None
    return OtherUnits(
        earlier=first.name,
        split=last.name,
        conversions=tuple(conversions),
        rows=int(equal.sum()),
        fraction=float(equal.sum()) / last.index.total_rows,
    )


def _floats(table: pa.Table, name: str) -> F64:
    return Grid(name, 1.0, is_text(table[name].type)).floats(table[name])


def _moved(first: SplitBlocks, last: SplitBlocks, numbers: Sequence[str]) -> list[str]:
    """Select the columns whose quantiles one affine map explains that is not the identity."""
    if not numbers:
        return []
    tables = []
    for split in (first, last):
        parts = split.map(numbers, lambda table: table, split.spread(_LOOKED_AT))
        tables.append(pa.concat_tables(parts).slice(0, _LOOKED_AT))
    selected = []
    for name in numbers:
        one, other = (_finite(_floats(table, name)) for table in tables)
        if min(len(np.unique(one)), len(np.unique(other))) < _LEAST:
            continue
        expected, quantiles = np.quantile(one, _QUANTILES), np.quantile(other, _QUANTILES)
        is_moved = np.abs(quantiles - expected).max() > _MOVED * np.ptp(expected)
        if not is_moved or not np.ptp(expected) or not np.ptp(quantiles):
            continue
        straight = (
            np.corrcoef(expected, quantiles)[0, 1],
            np.corrcoef(-expected[::-1], quantiles)[0, 1],  # a negative scale turns them round
        )
        if max(straight) >= _STRAIGHT:
            selected.append(name)
    return selected


def _measured(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Leave out dates and nested values, whose units are not looked at."""
    types = {name: required_path(schema, name).type for name in names}
    return [
        name
        for name, type_ in types.items()
        if not (pa.types.is_temporal(type_) or pa.types.is_nested(type_))
    ]


def _finite(values: F64) -> F64:
    return values[np.isfinite(values)]


def _paired(first: SplitBlocks, last: SplitBlocks, others: Sequence[str]) -> U64:
    """Return the digests that one row of each split has in all other columns, ascending."""
    once = []
    for split in (first, last):
        digests = concatenated(split.map(others, row_digests), np.uint64)
        values, counts = np.unique(digests[digests != NOTHING], return_counts=True)
        once.append(values[counts == 1])
    paired: U64 = once[1][among(once[1], once[0])]
    return paired


def _numbers_of(
    split: SplitBlocks, others: Sequence[str], moved: Sequence[str], paired: U64
) -> F64:
    """Read the numbers of the paired rows, in the order of their digests; [columns, pairs]."""

    def read(table: pa.Table) -> tuple[U64, F64]:
        digests = row_digests(table.select(list(others)))
        rows = among(digests, paired)
        remaining = table.filter(pa.array(rows))
        return digests[rows], np.stack([_floats(remaining, name) for name in moved])

    blocks = split.map([*others, *moved], read)
    digests = np.concatenate([block[0] for block in blocks])
    numbers: F64 = np.concatenate([block[1] for block in blocks], axis=1)
    return numbers[:, np.argsort(digests)]


def _convert(name: str, one: F64, other: F64) -> tuple[Conversion | None, Bools]:
    """Fit one affine map to pairs of numbers; return it, and which pairs it explains.

    None if it explains too few of them, or if they are equal as they are.
    """
    usable = np.isfinite(one) & np.isfinite(other)
    x, y = one[usable], other[usable]
    explained = one == other
    steps = np.diff(np.unique(y))
    if len(steps) < _LEAST:
        return None, explained
    tolerance = float(np.ptp(y)) / _DIGITS
    if _are_multiples(y, float(steps.min())):
        tolerance = max(tolerance, _ROUNDED * float(steps.min()))
    explained[usable] = np.abs(y - x) <= tolerance
    if explained[usable].mean() >= _EXPLAINED:
        return None, explained
    scale, offset = _fit(x, y)
    converted = explained.copy()
    converted[usable] = np.abs(y - scale * x - offset) <= tolerance
    if not scale or converted[usable].mean() < _EXPLAINED:
        return None, explained
    return Conversion(column=name, scale=scale, offset=offset), converted


def _fit(x: F64, y: F64) -> tuple[float, float]:
    """Fit a line through most points: medians first, then least squares of what is near them."""
    order = np.argsort(x)
    half = len(x) // 2
    low, high = order[:half], order[-half:]
    differ = x[high] != x[low]
    if not differ.any():
        return 0.0, 0.0
    scale = float(np.median((y[high] - y[low])[differ] / (x[high] - x[low])[differ]))
    offset = float(np.median(y - scale * x))
    near = np.abs(y - scale * x - offset) <= np.ptp(y) / _COARSEST
    middle = x[near].mean() if near.any() else 0.0
    from_middle = x[near] - middle
    squares = float((from_middle**2).sum())
    if not squares:
        return 0.0, 0.0
    scale = float((from_middle * y[near]).sum()) / squares
    return scale, float(y[near].mean()) - scale * middle


def _are_multiples(values: F64, step: float) -> bool:
    """Return whether numbers are whole multiples of a step, as rounded ones are."""
    multiples = values / step
    fits = np.ptp(values) > _COARSEST * step
    return bool(fits and np.abs(multiples - np.round(multiples)).max() < _WHOLE)
