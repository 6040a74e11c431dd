"""Choose for every row the latest feature of its entity that was known at its time. Pure.

Entity and time of a feature form one 64-bit key. One sort orders features by entity and by the time from which they
were known, and a binary search finds the last known feature for each row. But that is not always the feature to join:
among all known features it is the one of the latest event, because a late correction of an old event must not hide a
newer event. So features are also ranked by (entity, event, ...). The running maximum of the rank, in the order in which
features became known, is the rank of the feature to join. Ranks ascend with the entity, so the maximum never carries
over from another entity.

Cost: about 20 ns per feature, 50 ns if some are known later than their event, and 100 bytes per feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64
from headrace.split.sorting import in_order, repeated

_KEY_BITS = 63


@dataclass(frozen=True)
class Timed:
    """Features [N]: entity number, event time in microseconds, and the time from which each is known, if separate."""

    entity: I64
    event: I64
    known: I64 | None = None


def latest_known(
    features: Timed, entity: I64, time: I64, max_age_us: int | None, ranked: Callable[[I64], I64]
) -> tuple[I64, int]:
    """Return the index of each row's feature [R], -1 for none, and the number of rows whose only feature is too old.

    entity, time: of the rows. ranked: ranks features [M], given by index, by their values; this decides between
    features of one event that became known at the same time. Among those that became known at different times the last
    one counts.
    """
    found = np.full(len(time), -1, np.int64)
    if not len(time) or not len(features.event):
        return found, 0
    event, known = features.event, features.known
    pairs = [(entity, time), (features.entity, event)]
    pairs += [] if known is None else [(features.entity, np.maximum(event, known))]
    (of_row, of_event, *of_usable), shift = _keys(pairs)

    by_event, ordered = in_order(of_event)  # _settle orders equal keys
    best = None
    _settle(by_event, ordered, known, ranked)
    if known is not None:
        rank = np.empty(len(by_event), np.int64)
        rank[by_event] = np.arange(len(by_event))
        order, ordered = in_order(of_usable[0])
        best = np.maximum.accumulate(rank[order])
    rows, asked = in_order(of_row)  # ascending searches keep the features in the CPU cache
    last = np.searchsorted(ordered, asked, side="right") - 1
    own = (last >= 0) & (ordered[last] >> shift == asked >> shift)
    rows, last = rows[own], last[own]
    chosen = by_event[last if best is None else best[last]]
    if max_age_us is None:
        found[rows] = chosen
        return found, 0
    young = time[rows] - event[chosen] <= max_age_us
    found[rows[young]] = chosen[young]
    return found, int(len(young) - np.count_nonzero(young))


def reachable(features: Timed, entity: I64, time: I64, max_age_us: int | None) -> tuple[I64, int, int]:
    """List the indices of features that rows get, ascending, and of all that tie with these except for their values.

    Also returns how many rows get a feature, and how many have only one that is too old.
    """
    ties = [np.empty(0, np.int64)]

    def ranked(places: I64) -> I64:
        ties.append(places)  # those of one entity and time are adjacent
        return np.zeros(len(places), np.int64)

    found, too_old = latest_known(features, entity, time, max_age_us, ranked)
    found = found[found >= 0]
    chosen = np.zeros(len(features.event), np.bool_)
    chosen[found] = True
    tied = np.concatenate(ties)
    if len(tied):
        keys = [features.entity, features.event] + ([] if features.known is None else [features.known])
        begins = np.flatnonzero(np.any([np.diff(key[tied], prepend=~key[tied[0]]) != 0 for key in keys], axis=0))
        groups = np.logical_or.reduceat(chosen[tied], begins)
        chosen[tied] = np.repeat(groups, np.diff(begins, append=len(tied)))
    return np.flatnonzero(chosen), len(found), too_old


def _keys(pairs: Sequence[tuple[I64, I64]]) -> tuple[list[U64], np.uint64]:
    """Combine entity and time of each pair into one key that sorts by both; also return the entity's shift in bits."""
    entities, times = [entity for entity, _ in pairs], [time for _, time in pairs]
    first, last = min(int(each.min()) for each in times), max(int(each.max()) for each in times)
    bits = (last - first).bit_length()
    if bits + int(max(each.max() for each in entities)).bit_length() > _KEY_BITS:
        distinct = np.unique(np.concatenate(times))
        times, first, bits = [np.searchsorted(distinct, each) for each in times], 0, len(distinct).bit_length()
    shift, keys = np.uint64(bits), []
    for entity, time in zip(entities, times, strict=True):
        key = entity.view(np.uint64) << shift
        key |= (time - first).view(np.uint64)
        keys.append(key)
    return keys, shift


def _settle(order: I64, keys: U64, known: I64 | None, ranked: Callable[[I64], I64]) -> None:
    """Sort features of one entity and event by when they became known, then by their values; in place."""
    places = repeated(keys[1:] == keys[:-1])
    if not len(places):
        return
    rows, keys = order[places], keys[places]
    later = np.zeros(len(rows), np.int64) if known is None else known[rows]
    if known is not None:
        turn = np.lexsort((later, keys))
        rows, keys, later = rows[turn], keys[turn], later[turn]
    again = repeated((keys[1:] == keys[:-1]) & (later[1:] == later[:-1]))
    if len(again):
        tied = rows[again]
        rows[again] = tied[np.lexsort((ranked(tied), later[again], keys[again]))]
    order[places] = rows


def ranks(values: pa.Table) -> I64:
    """Rank rows by their values, column by column [N]; missing is least, numbers sort by size, text by its bytes."""
    import polars as pl  # a split without joins need not load it

    columns = [pl.Series(str(number), _ordered(column)) for number, column in enumerate(values.columns)]
    found = np.empty(values.num_rows, np.int64)
    if columns:
        order = (
            pl.DataFrame(columns).select(pl.arg_sort_by([each.name for each in columns], nulls_last=False)).to_series()
        )
        found[order.to_numpy()] = np.arange(len(found))
    return found


def _ordered(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Map floats to integers of the same order, in which 0.0 and -0.0 differ although a sort treats them as equal."""
    if not pa.types.is_floating(column.type):
        return column
    size = column.type.bit_width
    missing = np.asarray(column.is_null().to_numpy(), np.bool_)
    numbers = column.to_numpy().astype(f"f{size // 8}").view(f"i{size // 8}")
    numbers = numbers ^ ((numbers >> (size - 1)) & np.iinfo(numbers.dtype).max)
    return pa.array(numbers, mask=missing)


def without_order(columns: Sequence[pa.Field]) -> pa.Field | None:
    """Return the first column whose values have no order and so could not break ties."""
    kinds = (
        *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal128),
        *(pa.types.is_temporal, pa.types.is_string, pa.types.is_large_string),
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
    )
    return next((field for field in columns if not any(kind(field.type) for kind in kinds)), None)
