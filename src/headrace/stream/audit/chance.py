"""Judge which share of rows two splits have in common by chance.

**Few combinations.** Where the values of all compared columns have fewer combinations than there
are rows, as films and ratings do, splits share contents whatever one does. There the share is
compared with what it would be if the same units, entities or rows, were dealt to the splits anew:
`DEALS` times by a keyed hash, the largest share counts. It is not compared with a product of
frequencies, which ignores that an entity's rows are alike.

**Many combinations.** An amount in cents, a count of visits and a yes or no also meet by chance,
and a deal would not tell such a meeting from a copy. If columns were independent, a row would be
met by rows × the product of its values' frequencies. Frequencies are taken among the rows of both
splits that have another content, so a copied row gives no frequency to its own values. The share
is one that is exceeded once in a thousand times. Columns that depend on each other meet more often
than this says, so it excuses too little rather than too much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import exp, sqrt

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64
from headrace.digest import derive_key
from headrace.draws import mix
from headrace.formats.content import NOTHING, among, row_digests
from headrace.stream.audit.near import SplitBlocks
from headrace.stream.audit.units import Units, digest_table, entity_hashes, folded_texts

DEALS = 7
_DEAL = derive_key(0, "leaks by chance")[0]
_SAMPLED = 4096  # contents of a split whose frequencies are counted
_RARE = 0.001
_DEVIATIONS = 3.09  # of the normal distribution, which leave as much above
_MANY = 400.0


def by_chance(
    units: Units, splits: Sequence[SplitBlocks], entity: str | None, null_values: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Return which share of a split's rows has the content of an earlier split by chance, by pair
    of splits. Pairs without such a share are left out.

    entity: the column of entities; rows of one are dealt together.
    """
    if units.unit != "row" or len(splits) < 2:
        return {}
    if units.combinations == "few":
        return _if_dealt(units, splits, entity, null_values)
    if units.combinations == "many" and len(units.compared) > 1:
        return _if_independent(units, splits)
    return {}


def _if_dealt(
    units: Units, splits: Sequence[SplitBlocks], entity: str | None, null_values: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Return the shares if units are dealt anew: the largest of some deals."""
    sizes = [len(units.digests[split.name]) for split in splits]
    side = np.repeat(np.arange(len(splits)), sizes)
    keys = np.arange(len(side), dtype=np.uint64)
    if entity is not None:
        keys = np.concatenate(
            [entity_hashes(split, entity, null_values)[0] for split in splits], dtype=np.uint64
        )
    exact = np.concatenate([units.digests[split.name] for split in splits])
    filled = exact != NOTHING
    contents = exact
    if units.texts:
        contents = np.concatenate([units.rounded[split.name][0] for split in splits])
    _, code = np.unique(contents, return_inverse=True)
    contents_present = np.zeros((len(splits), int(code.max(initial=0)) + 1), np.bool_)
    most: dict[tuple[str, str], float] = {}
    for dealt in _deals(mix(keys + side.astype(np.uint64)), side):
        contents_present[:] = False
        contents_present[dealt[filled], code[filled]] = True
        for early, late in combinations(range(len(splits)), 2):
            rows = dealt == late
            count = int((contents_present[early][code[rows]] & filled[rows]).sum())
            pair = (splits[early].name, splits[late].name)
            most[pair] = max(most.get(pair, 0.0), count / max(1, int(rows.sum())))
    return most


def _deals(keys: U64, side: I64) -> Iterator[I64]:
    """Yield the split of each row after its unit is dealt anew; each split keeps its number of
    units.

    keys: of each row's unit. side: the split of each row.
    """
    units, first, unit = np.unique(keys, return_index=True, return_inverse=True)
    in_order = np.sort(side[first])
    for deal in range(DEALS):
        dealt = np.empty(len(units), np.int64)
        dealt[np.argsort(mix(units ^ np.uint64(_DEAL + deal)))] = in_order
        yield dealt[unit]


def _if_independent(units: Units, splits: Sequence[SplitBlocks]) -> dict[tuple[str, str], float]:
    """Return the shares if columns were independent, of pairs of splits that share contents. Reads
    the compared columns of these splits again.
    """
    fractions = {}
    filled = {name: digests[digests != NOTHING] for name, digests in units.digests.items()}
    known = {name: np.sort(digests) for name, digests in filled.items()}
    for number, late in enumerate(splits):
        sharing = [
            early for early in splits[:number] if among(filled[late.name], known[early.name]).any()
        ]
        if not sharing:
            continue
        rows = len(units.digests[late.name])
        sampled, values = _sample(units, late)
        own_counts = _counts(units, late, values)
        for early in sharing:
            both = np.sort(np.concatenate([known[early.name], known[late.name]]))
            equal = np.searchsorted(both, sampled, "right") - np.searchsorted(both, sampled)
            others = np.maximum(len(both) - equal, 1)
            expected = np.full(len(sampled), float(len(known[early.name])))
            for counts in own_counts + _counts(units, early, values):
                expected *= np.maximum(counts - equal, 0) / others
            mean = float(-np.expm1(-expected).sum()) / max(1, len(sampled)) * rows
            fractions[early.name, late.name] = min(1.0, most_by_chance(mean) / max(1, rows))
    return fractions


def most_by_chance(mean: float) -> float:
    """Return how many rows meet with a chance of one in a thousand or more, if `mean` are
    expected: a quantile of Poisson's distribution, or of the normal one for many.
    """
    if mean > _MANY:
        return mean + _DEVIATIONS * sqrt(mean)
    count = 0
    term = exp(-mean)
    above = 1 - term
    while above > _RARE:
        count += 1
        term *= mean / count
        above -= term
    return float(count)


def _sample(units: Units, split: SplitBlocks) -> tuple[U64, U64]:
    """Choose rows by a keyed hash of their content.

    Returns their digests, uint64 [N], and those of their values, uint64 [columns, N].
    """
    every = np.uint64(max(1, len(units.digests[split.name]) // _SAMPLED))

    def sampled(table: pa.Table) -> U64:
        digests = digest_table(units.grids, units.texts, table)[0]
        selected = (mix(digests ^ np.uint64(_DEAL)) % every == 0) & (digests != NOTHING)
        table = table.filter(pa.array(selected))
        return np.stack([digests[selected], *_value_digests(units, table)])

    empty = np.empty((1 + len(units.compared), 0), np.uint64)
    digests, *values = np.concatenate([empty, *split.map(units.compared, sampled)], axis=1)
    return digests, np.stack(values)


def _value_digests(units: Units, table: pa.Table) -> Iterator[U64]:
    """Digest the values of each column, texts folded: so they meet most often."""
    for name in table.column_names:
        column = table[name]
        if name in units.texts:
            column = folded_texts(column).to_arrow()
        yield row_digests(pa.table({name: column}))


def _counts(units: Units, split: SplitBlocks, values: U64) -> I64:
    """Count the rows of a split that have each of some values of the compared columns.

    values: digests, uint64 [columns, N]. Returns int64 [columns, N].
    """
    tables = []
    for column in values:
        tables.append(np.unique(column, return_inverse=True))

    def counted(table: pa.Table) -> list[I64]:
        counts = []
        for (distinct, _), digests in zip(tables, _value_digests(units, table), strict=True):
            positions = np.searchsorted(distinct, digests)
            positions = positions[distinct[np.minimum(positions, len(distinct) - 1)] == digests]
            counts.append(np.bincount(positions, minlength=len(distinct)))
        return counts

    result = np.zeros(values.shape, np.int64)
    if not values.shape[1]:
        return result
    for counts in split.map(units.compared, counted):
        for row, count, (_, which) in zip(result, counts, tables, strict=True):
            row += count[which]
    return result
