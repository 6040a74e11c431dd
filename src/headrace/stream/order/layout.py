"""From an index and settings to the order of an epoch: which kind of order it is, is decided here. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Unpack

import numpy as np

from headrace.dataset.index import SplitIndex
from headrace.digest import canonical_json, derive_key, sha256_hex
from headrace.errors import SettingsError, StreamError
from headrace.stream.order.chain import chained
from headrace.stream.order.epoch import Order, OrderSettings, block_identities, epoch_order
from headrace.stream.order.interleave import Interleave, quotas
from headrace.stream.order.joined import MixedOrder, RegionOrder, Source, lay_regions
from headrace.stream.order.regions import Regions, deal_shards
from headrace.stream.order.state import StreamState


@dataclass(frozen=True, kw_only=True)
class BlendIndex(SplitIndex):
    """The blocks of several splits, one after the other, to be streamed as one.

    parts: the splits; names: of each; weights: of each, None: in proportion to their rows.
    """

    parts: tuple[SplitIndex, ...]
    names: tuple[str, ...]
    weights: tuple[float, ...] | None

    @cached_property
    def identity(self) -> str:
        """A digest of what decides the order: the identity of each split, and the weights."""
        weights = None if self.weights is None else [float(weight).hex() for weight in self.weights]
        return sha256_hex(canonical_json([[part.identity for part in self.parts], weights]))


def sources_of(index: SplitIndex) -> int:
    """How many sources an epoch is made of."""
    return len(index.parts) if isinstance(index, BlendIndex) else 1


def samples_of_epoch(index: SplitIndex, samples_per_epoch: int | None) -> int | None:
    """S, the rows of an epoch, where it is no whole pass: as asked, or as many as a blend with weights has; else None.

    Raises `SettingsError` where a source has no rows or would give none.
    """
    weighted = isinstance(index, BlendIndex) and index.weights is not None
    samples = index.total_rows if samples_per_epoch is None and weighted else samples_per_epoch
    if samples is not None:
        _quotas(index, samples)
    return samples


def lay_epoch(index: SplitIndex, *, samples_per_epoch: int | None = None, **settings: Unpack[OrderSettings]) -> Order:
    """The order of one epoch of a split, of a part of it, or of a blend. O(blocks)."""
    if samples_per_epoch is None and not isinstance(index, BlendIndex):
        return epoch_order(index.rows, block_identities(index), **settings)
    lanes, window_rows, shuffle = settings["lanes"], settings["window_rows"], settings["shuffle"]
    groups = settings["groups"] if shuffle else lanes
    counts = _quotas(index, index.total_rows if samples_per_epoch is None else samples_per_epoch)
    parts = _parts(index)
    firsts = np.cumsum([0, *(len(part.rows) for part in parts)])
    sources = []
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        own: OrderSettings = {**settings}
        if len(parts) > 1:  # shards of two datasets may have the same names: each source shuffles by a key of its own
            own["seed"] = derive_key(settings["seed"], "source of a blend", number)[0]
        source = Source(
            block_rows=part.rows,
            identities=block_identities(part),
            numbers=np.arange(firsts[number], firsts[number + 1], dtype=np.int64),
            own_rows=part.total_rows,
            start=settings["epoch"] * count,
            count=count,
            settings=own,
            lanes=lanes,
            window_rows=window_rows,
            groups=groups,
            shuffle=shuffle,
        )
        sources.append(source)
    turns = Interleave(counts=tuple(counts), round_rows=groups)
    return MixedOrder(
        sources=tuple(sources), interleave=turns, lanes=lanes, window_rows=window_rows, groups=groups, shuffle=shuffle
    )


def order_of_state(index: SplitIndex, state: StreamState) -> Order:
    """The order of the epoch that a state is in."""
    if state.regions is not None:
        return _whole_shards(index, state, state.regions)
    order = lay_epoch(index, samples_per_epoch=state.samples_per_epoch, **state.order_settings)
    return chained(order, state.changes) if state.changes else order


def _whole_shards(index: SplitIndex, state: StreamState, regions: Regions) -> RegionOrder:
    ranks = len(regions.rows)
    if regions.assignment is not None:
        rank = np.array(regions.assignment, np.int64)
    else:
        rank = deal_shards(index, ranks=ranks, seed=state.seed, epoch=state.epoch, shuffle=state.shuffle)
    if len(rank) == len(index.shards):
        of_block = rank[index.shard_of_block]
        order = lay_regions(index.rows, block_identities(index), of_block, ranks=ranks, **state.order_settings)
        if np.array_equal(order.bases, regions.bases):
            return order
    raise StreamError(
        f'stream state: the shards that "{regions.distribution}" gave to its {ranks} ranks do not have'
        " the rows it says; pass what state_dict() gave, unchanged"
    )


def _parts(index: SplitIndex) -> tuple[SplitIndex, ...]:
    return index.parts if isinstance(index, BlendIndex) else (index,)


def _quotas(index: SplitIndex, rows: int) -> list[int]:
    parts = _parts(index)
    names = index.names if isinstance(index, BlendIndex) else (index.split,)
    weights = index.weights if isinstance(index, BlendIndex) else None
    shares = [Fraction(part.total_rows if weights is None else weights[number]) for number, part in enumerate(parts)]
    if not sum(shares):
        if not rows:
            return [0] * len(parts)
        raise SettingsError(f"{names[0]}: has no rows, so samples_per_epoch={rows} cannot be taken; leave it out")
    counts = quotas(rows, shares)
    for name, part, count in zip(names, parts, counts, strict=True):
        if count and not part.total_rows:
            raise SettingsError(f"{name}: has no rows, and its weight gives it {count} of {rows}; leave it out")
        if part.total_rows and not count and rows:
            raise SettingsError(
                f"{name}: its share of {rows} rows an epoch is none, so it would never be read; raise its weight or"
                " samples_per_epoch"
            )
    return counts
