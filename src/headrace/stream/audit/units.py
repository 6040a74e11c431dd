"""Digest what splits are compared by, and judge what they share.

Units are rows, sequences of packed rows, or entities of histories. Contents are compared by 64-bit
hashes of all compared values, which collide for one in 10^19 pairs of different units.

**Rounded numbers.** A copy may differ from its original by noise, or by how a number is written.
So rows are compared once more, with their numbers rounded down to 2^-20 of the spread of their
column, and once with cells that are shifted by half: two numbers that are much closer than a cell
are in the same one of at least one grid, unless several columns meet a border at once. Texts are
compared then without case, blanks around them and Unicode form, as the names of entities are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64, U64, concatenated
from headrace.dataset.distinguishing import LOOKED_AT, Distinguishing, distinguishing
from headrace.formats.column_paths import with_paths
from headrace.formats.content import NOTHING, among, row_digests
from headrace.formats.text_columns import as_text
from headrace.formats.types import is_text
from headrace.near.words import folded
from headrace.recipe import recipe_of_run
from headrace.stream.audit.near import STARTS, TOKEN_IDS, SplitBlocks, sequence_digests
from headrace.stream.loader.dataset import Dataset

PACKED = (TOKEN_IDS, "loss_mask", STARTS)
_EXAMPLES = 5
_CELLS = 1 << 20  # of the spread of a column
_SHIFTS = (0.0, 0.5)
NUMERAL = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
NUMERALS = 0.9  # share of a column of text that makes its numbers worth rounding
_FIRST = 256
_LONG_TEXT = 32  # bytes; longer texts have endless combinations


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Rows of `split` whose content is also in an earlier split.

    fraction: of the rows of `split`, 0 to 1. rounded: further rows that are only if numbers are
    rounded and texts folded; rounded_fraction: of the rows of `split`.
    by_chance: the fraction that chance gives, see `chance`; None if it gives none.

    examples: up to five pairs of rows, SHARD:ROW in the earlier split and in this one; rows count
    from 0.
    """

    earlier: str
    split: str
    rows: int
    fraction: float
    examples: tuple[tuple[str, str], ...]
    rounded: int = 0
    rounded_fraction: float = 0.0
    by_chance: float | None = None

    @property
    def excess(self) -> float:
        """The fraction with rounded numbers, above what chance gives, 0 to 1."""
        every = self.fraction + self.rounded_fraction
        return max(0.0, every - (self.by_chance or 0.0))


@dataclass(frozen=True)
class Grid:
    """The cells that the numbers of a column are rounded to. is_text: numbers are written as
    text.
    """

    column: str
    step: float
    is_text: bool

    def floats(self, column: pa.ChunkedArray) -> F64:
        """Return the numbers of a column, NaN for missing values and texts that are none."""
        if self.is_text:
            texts = pl.Series(pl.from_arrow(column))
            return texts.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        numbers = column.cast(pa.float64(), safe=False)
        values: F64 = pc.fill_null(numbers, np.nan).to_numpy()
        return values

    def cells(self, column: pa.ChunkedArray, shift: float) -> F64:
        """Return the cell of each value, NaN for a missing one."""
        cells: F64 = np.floor(self.floats(column) / self.step + shift)
        return cells


@dataclass(frozen=True, kw_only=True)
class Units:
    """What splits are compared by: a digest of each row, sequence or other unit of each split.

    compared: names of the compared columns. read: the columns that are read for it.
    distinguishing: columns that distinguish every row. constant: columns with one value in the rows
    looked at. grids: of the numbers that are compared rounded too. texts: columns that are compared
    folded too. combinations: how many contents
    the compared columns can make: fewer than there are rows, more, or "endless" if texts are
    compared that are written and not chosen. digests, rounded: by split; the latter two arrays
    with grids, one with texts alone, none with neither.
    first_row: the first row of each unit, by split, if a unit is several rows.
    """

    unit: str
    packed: bool
    compared: Sequence[str]
    read: Sequence[str]
    distinguishing: Distinguishing = field(default_factory=Distinguishing)
    constant: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    texts: tuple[str, ...] = ()
    combinations: Literal["few", "many", "endless"] = "endless"
    digests: Mapping[str, U64] = field(default_factory=dict)
    rounded: Mapping[str, Sequence[U64]] = field(default_factory=dict)
    first_row: Mapping[str, I64] = field(default_factory=dict)

    def shared(self, earlier: SplitBlocks, later: SplitBlocks, by_chance: float | None) -> Shared:
        """Compare two splits."""
        known = self.digests[earlier.name]
        digests = self.digests[later.name]
        has_content = digests != NOTHING
        is_shared = among(digests, np.sort(known)) & has_content
        hit = np.flatnonzero(is_shared)
        rounded = np.zeros(len(digests), np.bool_)
        of_both = (self.rounded.get(split.name, ()) for split in (earlier, later))
        for cells, other_cells in zip(*of_both, strict=True):
            rounded |= among(other_cells, np.sort(cells))
        rounded &= has_content & ~is_shared
        examples = []
        if len(hit) and not self.packed:
            order = np.argsort(known, kind="stable")
            first = order[np.searchsorted(known[order], digests[hit[:_EXAMPLES]])]
            for early, late in zip(first.tolist(), hit[:_EXAMPLES].tolist(), strict=True):
                examples.append((self._location(earlier, early), self._location(later, late)))
        return Shared(
            earlier=earlier.name,
            split=later.name,
            rows=len(hit),
            fraction=len(hit) / max(1, len(digests)),
            examples=tuple(examples),
            rounded=int(rounded.sum()),
            rounded_fraction=int(rounded.sum()) / max(1, len(digests)),
            by_chance=by_chance,
        )

    def _location(self, split: SplitBlocks, unit: int) -> str:
        row = int(self.first_row[split.name][unit]) if self.first_row else unit
        return split.location(row)


def digest_units(
    dataset: Dataset,
    splits: Sequence[SplitBlocks],
    content: Sequence[str],
    features: Sequence[str],
    looked_at: pa.Table,
) -> Units:
    """Digest the units of each split.

    content: the columns to compare; none: those of the recipe, or `features`. looked_at: some rows
    with these columns.
    """
    if is_packed(dataset) and not content:
        read = (TOKEN_IDS, STARTS)
        digests = {}
        for split in splits:
            parts = split.map(read, sequence_digests)
            digests[split.name] = concatenated(parts, np.uint64)
        return Units(unit="sequence", packed=True, compared=read[:1], read=read, digests=digests)
    recipe = None
    if not content and dataset.manifest is not None:
        recipe = recipe_of_run(dataset.manifest.recipe)
    if recipe is not None and recipe.content_unit is not None:
        contents = {
            split.name: recipe.contents(dataset, split.name, split.workers) for split in splits
        }
        return Units(
            unit=recipe.content_unit,
            packed=False,
            compared=next(iter(contents.values())).columns,
            read=features,
            digests={name: part.digests for name, part in contents.items()},
            first_row={name: part.first_rows for name, part in contents.items()},
        )
    return _digest_rows(_plan(dataset, splits, content, features, looked_at), splits)


def is_packed(dataset: Dataset) -> bool:
    """Return whether rows are packed sequences."""
    return set(PACKED) <= set(dataset.schema.names)


def _plan(
    dataset: Dataset,
    splits: Sequence[SplitBlocks],
    content: Sequence[str],
    features: Sequence[str],
    looked_at: pa.Table,
) -> Units:
    """Choose how rows are compared, by some of them."""
    names = tuple(content or features)
    recorded: Mapping[str, Any] = {}
    if dataset.manifest is not None:
        recorded = dataset.manifest.metadata.get("duplicates") or {}
    if content:
        chosen = Distinguishing()
    elif "distinguishing" in recorded:
        chosen = Distinguishing.recorded(recorded)
    else:
        chosen = distinguishing(looked_at.schema, names, lambda some: [looked_at.select(some)])
    compared = chosen.without(names)
    counts = {name: _distinct_values(looked_at[name]) for name in names}
    rows = sum(split.index.total_rows for split in splits)
    grids = []
    for name in compared:
        grid = _grid_of(name, looked_at[name])
        if grid is not None:
            grids.append(grid)
    combinations: Literal["few", "many", "endless"] = "many"
    if prod(counts[name] or sys.maxsize for name in compared) <= rows:
        combinations = "few"
    elif any(_is_written(looked_at[name]) for name in compared):
        combinations = "endless"
    return Units(
        unit="row",
        packed=False,
        compared=compared,
        read=compared,
        distinguishing=chosen,
        constant=tuple(name for name, count in counts.items() if count == 1),
        grids=tuple(grids),
        texts=_texts_of(looked_at, compared, grids),
        combinations=combinations,
    )


def _texts_of(
    looked_at: pa.Table, compared: Sequence[str], grids: Sequence[Grid]
) -> tuple[str, ...]:
    """Select the compared columns of text that are not numbers."""
    numbers = {grid.column for grid in grids}
    return tuple(name for name in compared if name not in numbers and is_text(looked_at[name].type))


def first_rows(splits: Sequence[SplitBlocks], columns: Sequence[str]) -> pa.Table:
    """Read rows of the first block of the first and of the last split, `LOOKED_AT` at most."""
    some = list(dict.fromkeys((0, len(splits) - 1)))
    rows = LOOKED_AT // len(some)
    parts = []
    for number in some:
        if len(splits[number].index.rows):
            parts += splits[number].map(columns, lambda table: table.slice(0, rows), range(1))
    if not parts:
        return with_paths(splits[0].index.schema, columns).empty_table()
    return pa.concat_tables(parts)


def _distinct_values(column: pa.ChunkedArray) -> int | None:
    """Count distinct values, a missing one included; None if there is no end of them: of nested
    values, floats and long texts, and where most rows have their own.
    """
    if pa.types.is_nested(column.type) or not len(column):
        return None
    count = len(np.unique(row_digests(pa.table({"": column}))))
    if count == 1:
        return count
    if count > len(column) // 2 or pa.types.is_floating(column.type):
        return None
    return None if _is_written(column) else count


def _is_written(column: pa.ChunkedArray) -> bool:
    """Return whether values are long texts, bytes or nested: no two are equal by chance."""
    type_ = column.type
    if pa.types.is_nested(type_) or pa.types.is_fixed_size_binary(type_):
        return True
    if not (is_text(type_) or pa.types.is_binary(type_) or pa.types.is_large_binary(type_)):
        return False
    return (pc.mean(pc.binary_length(column)).as_py() or 0) > _LONG_TEXT


def _grid_of(name: str, column: pa.ChunkedArray) -> Grid | None:
    """Choose the cells for a column of measured numbers; None for other columns."""
    is_numeral = is_text(column.type)
    if is_numeral:
        filled = pc.drop_null(column)
        matches = pc.match_substring_regex(filled.slice(0, _FIRST), NUMERAL)
        if (pc.mean(matches).as_py() or 0) < NUMERALS:
            return None
        if not pc.any(pc.match_substring_regex(filled, r"[0-9][.eE]")).as_py():
            return None  # whole numbers have one form, and codes such as 007 are no numbers
    elif not pa.types.is_floating(column.type):
        return None
    grid = Grid(name, 1.0, is_numeral)
    values = grid.floats(column)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, middle, high = np.quantile(values, (0.01, 0.5, 0.99))
    spread = high - low
    if not spread:
        spread = abs(middle) or 1.0
    return replace(grid, step=float(spread) / _CELLS)


def _digest_rows(units: Units, splits: Sequence[SplitBlocks]) -> Units:
    """Digest the rows of each split, with rounded numbers and folded texts too if there are any."""
    digests = {}
    rounded = {}
    for split in splits:
        parts = split.map(units.compared, partial(digest_table, units.grids, units.texts))
        rows = [np.empty((1 + len(_shifts(units.grids, units.texts)), 0), np.uint64), *parts]
        exact, *cells = np.concatenate(rows, axis=1)
        digests[split.name] = exact
        rounded[split.name] = cells
    return replace(units, digests=digests, rounded=rounded)


def _shifts(grids: Sequence[Grid], texts: Sequence[str]) -> tuple[float, ...]:
    """Return the shifts of grids that rows are compared with; one is enough for texts alone."""
    if grids:
        return _SHIFTS
    return _SHIFTS[: bool(texts)]


def folded_texts(column: pa.ChunkedArray) -> pl.Series:
    """Return texts without case, blanks around them and Unicode form."""
    return folded(pl.Series(pl.from_arrow(column))).str.strip_chars()


def digest_table(grids: Sequence[Grid], texts: Sequence[str], table: pa.Table) -> U64:
    """Digest rows: exactly, and if there are grids or texts also with numbers rounded to either of
    two and texts folded.

    uint64 [1, 2 or 3, rows].
    """
    shifts = _shifts(grids, texts)
    if not shifts:
        return row_digests(table)[None]
    changed = {*(grid.column for grid in grids), *texts}
    others = [name for name in table.column_names if name not in changed]
    base = row_digests(table.select(others))
    first = pa.array(base, mask=base == NOTHING)
    exact: list[Any] = [table[grid.column] for grid in grids]
    exact += [table[name] for name in texts]
    plain: list[Any] = [folded_texts(table[name]).to_arrow() for name in texts]
    digests = np.empty((1 + len(shifts), len(table)), np.uint64)
    for number, columns in enumerate(
        (
            exact,
            *([*(grid.cells(table[grid.column], at) for grid in grids), *plain] for at in shifts),
        )
    ):
        arrays = [first, *columns]
        names = [str(index) for index in range(len(arrays))]
        digests[number] = row_digests(pa.table(arrays, names))
    return digests


def entity_hashes(
    split: SplitBlocks, entity: str, null_values: Sequence[str], columns: Sequence[str] = ()
) -> list[U64]:
    """Hash the entity of each row of a split, and the values of other columns in plain spelling; 0
    for a missing one. uint64 [rows] each.
    """

    def hashed(table: pa.Table) -> list[U64]:
        hashes = []
        for name in (entity, *columns):
            texts = pl.Series(pl.from_arrow(as_text(table[name], null_values, name)))
            if name != entity:
                texts = folded(texts).str.strip_chars()
            value = texts.hash(seed=0).to_numpy()
            hashes.append(np.where(texts.is_null().to_numpy(), np.uint64(NOTHING), value))
        return hashes

    blocks = split.map([entity, *columns], hashed)
    none = [np.empty(0, np.uint64)]
    return [np.concatenate(none + list(parts)) for parts in zip(*blocks, strict=True)] or [
        *none * (1 + len(columns))
    ]
