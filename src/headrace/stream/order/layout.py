"""Build the order of an epoch from an index and settings, and decide which kind of order it is.

Pure.

A number of ranks that divides the groups changes nothing. For other numbers every rank would need
every lane, so the order changes in two steps. The rest of the current round is dealt to the new
ranks group by group (`RoundRemainder`), and no row moves. From the next round boundary on, where
every lane stands at the boundary of a window, the tails of the lanes are laid end to end and cut
into new lanes (`cut_again`). Every remaining row comes once, and the state needs a few integers per
change.

The sources of a blend, or of a part of the rows, continue in later epochs. There a change begins a
leg of the run: what the columns leave of each source, rests of rounds included, is one line and cut
again (`ColumnOrder.undelivered`). Which source has a position does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

import numpy as np

from headrace.arrays import I64, as_array, offsets_from_lengths
from headrace.dataset.index import SplitIndex
from headrace.digest import canonical_json, derive_key, sha256_hex
from headrace.errors import StreamError, setting
from headrace.stream.order.balance import CountedIndex
from headrace.stream.order.epoch import (
    EpochOrder,
    Order,
    OrderSettings,
    Pool,
    Reads,
    block_identities,
    epoch_order,
    expand,
)
from headrace.stream.order.joined import ChainedOrder, EpochPart, lay_partition
from headrace.stream.order.lanes import estimate_block_bytes
from headrace.stream.order.mixed import Leg, MixedOrder, MixedSource
from headrace.stream.order.mixture import Mixture, SourceTokens, check_epoch, check_shares
from headrace.stream.order.remaining import even_parts, split_at
from headrace.stream.order.schedule import Schedule
from headrace.stream.order.shard_partition import deal_shards
from headrace.stream.order.state import (
    Change,
    LaidMixture,
    MixtureState,
    SavedSource,
    StreamState,
)

SMALL_SOURCE_ROWS = 1 << 12  # of larger ones, an own epoch is worth the fixed cost of its order
_SMALL_SOURCE_BYTES = 1 << 22
_DIGITS = 16  # of the identity of a source in a state


@dataclass(frozen=True, kw_only=True)
class BlendIndex(SplitIndex):
    """The blocks of several splits, one after the other, streamed as one.

    parts: the splits. mixture: their names and proportions. tokens: of each split, if the mixture
    needs them.
    """

    parts: tuple[SplitIndex, ...]
    mixture: Mixture
    tokens: tuple[SourceTokens, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each split."""
        return self.mixture.names

    @cached_property
    def identity(self) -> str:
        """A digest of everything that decides the order: the identity of each split, and the
        mixture.
        """
        identities = [part.identity for part in self.parts]
        return sha256_hex(canonical_json([identities, self.mixture.description]))


def sources_of(index: SplitIndex) -> int:
    """Return the number of sources of an epoch."""
    return len(_parts(index))


def samples_of_epoch(index: SplitIndex, samples_per_epoch: int | None) -> int | None:
    """Return S, the rows of an epoch that is not one pass: as requested, or of a blend with
    proportions; else None.

    Raises `SettingsError` if a source has no rows or would contribute none.
    """
    samples = samples_per_epoch
    if samples is None and isinstance(index, BlendIndex) and not index.mixture.is_one_pass:
        samples = index.total_rows or None
    if samples is not None:
        check_shares(_mixture(index), _sizes(index), samples, _tokens(index))
    return samples


def begin_mixture(
    index: SplitIndex, *, samples_per_epoch: int | None, global_batch: int
) -> MixtureState | None:
    """Return what the state of a run keeps of its mixture; None if its epochs are single passes.

    global_batch: its rows at the start, as a stage may begin at a step.
    """
    if samples_per_epoch is None and not isinstance(index, BlendIndex):
        return None
    rows = index.total_rows if samples_per_epoch is None else samples_per_epoch
    mixture = _mixture(index)
    sizes = _sizes(index)
    tokens = _tokens(index)
    laid = LaidMixture(
        begin=0,
        blend=mixture.description,
        sources=tuple(range(len(sizes))),
        stages=mixture.stage_rows(
            epoch_rows=rows, global_batch=global_batch, sizes=sizes, tokens=tokens
        ),
        weights=tuple(mixture.weights_of_rows(sizes, tokens)),
        most=mixture.most_rows(sizes),
    )
    sources = []
    for name, part in zip(mixture.names, _parts(index), strict=True):
        sources.append(SavedSource(name, part.total_rows, part.identity[:_DIGITS]))
    return MixtureState(sources=tuple(sources), mixtures=(laid,))


def schedule_of(index: SplitIndex, mixture: MixtureState, *, epoch_rows: int) -> Schedule:
    """Build the schedule of a run, from the last change of its mixture on.

    Raises `SettingsError` if a stage does not begin after the one before it.
    """
    _mixture(index).check_order(mixture.stages)
    return mixture.schedules(epoch_rows)[-1]


def lay_epoch(
    index: SplitIndex,
    *,
    samples_per_epoch: int | None = None,
    mixture: MixtureState | None = None,
    balance: tuple[int, int] | None = None,
    **settings: Unpack[OrderSettings],
) -> Order:
    """Build the order of an epoch of a split, of a part of it, or of a blend, in O(blocks).

    mixture, balance: see `StreamState`.
    """
    if balance is not None:
        batch, even_tokens = balance
        if not isinstance(index, CountedIndex):
            raise StreamError(
                "stream state: its steps are balanced by the cost of rows, which this stream"
                " does not know",
                remedy=(
                    f"pass {setting('balance', 'flops')}, or the cost model that the saved stream"
                    " had"
                ),
            )
        costs = index.costs(even_tokens)
        run_rows = 1
        if settings["groups"] == 1:
            run_rows = batch
        return epoch_order(
            index.rows, block_identities(index), costs=costs, run_rows=run_rows, **settings
        )
    if mixture is None or (samples_per_epoch is None and not index.total_rows):
        return epoch_order(index.rows, block_identities(index), **settings)
    if not settings["shuffle"]:
        settings["groups"] = settings["lanes"]
    schedule = schedule_of(
        index,
        mixture,
        epoch_rows=index.total_rows if samples_per_epoch is None else samples_per_epoch,
    )
    check_epoch(schedule, settings["epoch"])
    schedules = mixture.schedules(schedule.epoch_rows)
    parts = _lay_legs(schedules, _mixed_sources(index, mixture, settings), mixture.legs, settings)
    if len(parts) == 1:
        return parts[0].order
    return ChainedOrder(parts=tuple(parts), **parts[-1].order.settings)


def is_small_source(part: SplitIndex) -> bool:
    """Return whether every rank holds a source whole, so that its own epochs have no columns."""
    small = part.total_rows <= SMALL_SOURCE_ROWS
    return small and int(estimate_block_bytes(part).sum()) <= _SMALL_SOURCE_BYTES


def _mixed_sources(
    index: SplitIndex, mixture: MixtureState, settings: OrderSettings
) -> tuple[MixedSource, ...]:
    parts = _parts(index)
    names = _mixture(index).names
    firsts = offsets_from_lengths([len(part.rows) for part in parts])
    sources = []
    for state in mixture.sources:
        source_settings: OrderSettings = {**settings}
        # shards of two datasets may have the same names: each source shuffles by a key of its own
        if isinstance(index, BlendIndex):
            purpose = f"source of a blend: {state.name}"
            source_settings["seed"] = derive_key(settings["seed"], purpose)[0]
        if state.name not in names:
            sources.append(_without_blocks(state, source_settings))
            continue
        number = names.index(state.name)
        part = parts[number]
        source = MixedSource(
            name=state.name,
            block_rows=part.rows,
            identities=block_identities(part),
            numbers=np.arange(firsts[number], firsts[number + 1], dtype=np.int64),
            own_rows=part.total_rows,
            settings=source_settings,
            is_small=is_small_source(part),
        )
        sources.append(source)
    return tuple(sources)


def _without_blocks(state: SavedSource, settings: OrderSettings) -> MixedSource:
    """Return a source that a changed blend no longer has."""
    return MixedSource(
        name=state.name,
        block_rows=np.empty(0, np.int64),
        identities=np.empty((0, 3), np.uint64),
        numbers=np.empty(0, np.int64),
        own_rows=state.rows,
        settings=settings,
        is_small=True,
    )


def _lay_legs(
    schedules: Sequence[Schedule],
    sources: tuple[MixedSource, ...],
    changes: Sequence[Leg],
    settings: OrderSettings,
) -> list[EpochPart]:
    """Lay the parts of an epoch, one for each leg that it touches."""
    epoch_rows = schedules[-1].epoch_rows
    first = settings["epoch"] * epoch_rows
    end = first + epoch_rows
    legs = (Leg(0, settings["lanes"], settings["window_rows"], settings["groups"]), *changes)
    of_legs = []
    for leg in legs:
        begun = [schedule for schedule in schedules if schedule.begin <= leg.begin]
        of_legs.append(begun[-1])
    earlier = sum(leg.begin <= first for leg in legs)
    parts: list[EpochPart] = []
    for number in range(earlier, len(legs) + 1):
        leg = legs[number - 1]
        if leg.begin >= end:
            break
        begin = max(leg.begin, first)
        leg_settings: OrderSettings = {
            **settings,
            "lanes": leg.lanes,
            "window_rows": leg.window_rows,
            "groups": leg.groups,
        }
        order = MixedOrder(
            sources=sources,
            schedules=tuple(of_legs[:number]),
            legs=legs[:number],
            begin=begin,
            end=end,
            **leg_settings,
        )
        if parts:
            parts[-1] = parts[-1]._replace(end=begin - first)
        parts.append(EpochPart(begin - first, epoch_rows, order))
    return parts


def order_of_state(index: SplitIndex, state: StreamState) -> Order:
    """Build the order of the epoch of a state."""
    settings = state.order_settings
    shard_partition = state.shard_partition
    if shard_partition is None:
        order = lay_epoch(
            index,
            samples_per_epoch=state.samples_per_epoch,
            mixture=state.mixture,
            balance=state.balance,
            **settings,
        )
        if state.changes:
            return chained(order, state.changes)
        return order
    ranks = len(shard_partition.rows)
    if shard_partition.assignment is not None:
        rank = np.array(shard_partition.assignment, np.int64)
    else:
        rank = deal_shards(
            index, ranks=ranks, seed=state.seed, epoch=state.epoch, shuffle=state.shuffle
        )
    if len(rank) == len(index.shards):
        of_block = rank[index.shard_of_block]
        identities = block_identities(index)
        partition = lay_partition(index.rows, identities, of_block, ranks=ranks, **settings)
        if np.array_equal(partition.bases, shard_partition.bases):
            return partition
    raise StreamError(
        f'stream state: the shards that "{shard_partition.distribution}" gave to its {ranks}'
        " ranks do not have the rows it says",
        remedy="pass what state_dict() gave, unchanged",
    )


def chained(order: Order, changes: Sequence[Change]) -> ChainedOrder:
    """Build the order of an epoch whose ranks changed. `StreamState` has checked the changes.

    Raises `StreamError` if a change cuts the lanes of a blend, or of a part of the rows, again.
    """
    base = order
    begin = 0
    parts = [EpochPart(0, order.rows, order)]
    for number, change in enumerate(changes):
        _, _, last = parts[-1]
        since = change.position - parts[-1].begin
        following: Order
        if change.ranks is not None:
            cuts = [change.position for change in changes[number:] if change.ranks is None]
            end = min([*cuts, order.rows]) - parts[-1].begin
            following = RoundRemainder.of(last, since, end, ranks=change.ranks)
        elif isinstance(base, EpochOrder):
            following = base = cut_again(base, change.position - begin, change)
            begin = change.position
        else:
            raise StreamError(
                f"stream state: at position {change.position} the lanes of a blend or of a part"
                " of the rows are cut again, which they never are",
                remedy="pass what state_dict() gave, unchanged",
            )
        parts[-1] = parts[-1]._replace(end=change.position)
        parts.append(EpochPart(change.position, order.rows, following))
    return ChainedOrder(parts=tuple(parts), **following.settings)


def cut_again(order: EpochOrder, border: int, change: Change) -> EpochOrder:
    """Put the rows that an order leaves from a round border on into new lanes, in O(blocks left +
    lanes).
    """
    delivered = np.minimum(border // order.lanes, order.lane_rows)
    by_start = np.argsort(order.lane_starts, kind="stable")
    starts = (order.lane_starts + delivered)[by_start]
    stops = (order.lane_starts + order.lane_rows)[by_start]
    blocks, firsts, ends = order.rows_between(starts, stops)
    lanes = change.lanes or 1
    settings: OrderSettings = {
        **order.settings,
        "seed": derive_key(order.seed, "cut again", order.epoch, border)[0],
        "lanes": lanes,
        "window_rows": change.window_rows or 1,
        "groups": (change.groups or 1) if order.shuffle else lanes,
    }
    line = offsets_from_lengths(ends - firsts)
    if settings["groups"] == 1:
        run_rows = order.run_rows
    else:
        run_rows = 1
    return EpochOrder(
        blocks=blocks, firsts=firsts, line=line, costs=order.costs, run_rows=run_rows, **settings
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundRemainder(Order):
    """Positions [begin, end) of `base`, usually of one round, dealt to R ranks: each gets a run of
    whole groups.

    Position p belongs to rank p mod R, which takes its R-th part of the groups' rows, laid end to
    end group by group. Each rank has one lane and one group. Positions come from all over the
    round, even if `base` is not shuffled.
    """

    base: Order
    begin: int
    end: int

    @classmethod
    def of(cls, base: Order, begin: int, end: int, *, ranks: int) -> RoundRemainder:
        """Deal the rows to `ranks` ranks.

        A round is one rank's part of a round of `base`, or less at the end.
        """
        round_rows = base.lanes * (base.window_rows if base.shuffle else 1)
        window = max(1, -(-min(end - begin, round_rows) // ranks))
        remainder_settings: OrderSettings = {
            **base.settings,
            "lanes": ranks,
            "groups": ranks,
            "window_rows": window,
            "shuffle": True,
        }
        return cls(base=base, begin=begin, end=end, **remainder_settings)

    @property
    def rows(self) -> int:
        return self.end - self.begin

    def line_of(self, positions: I64) -> I64:
        return self.base.line_of(self._base_positions(positions))

    def locate(self, line_positions: I64) -> tuple[I64, I64]:
        return self.base.locate(line_positions)

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        which, position = self.base.positions_of_rows(blocks, rows)
        inside = (position >= self.begin) & (position < self.end)
        which = which[inside]
        position = position[inside]
        group = position % self.base.groups
        offset = position // self.base.groups
        dealt = self._group_starts[group] + offset - self._first[group]
        rank, turn = split_at(self._rank_starts, dealt)
        return which, rank + turn * self.groups

    def reads(self, first: I64, last: I64) -> Reads:
        rank = first % self.groups
        begin = self._rank_starts[rank] + first // self.groups
        end = self._rank_starts[rank] + last // self.groups + 1
        run, group = expand(begin, end, self._group_starts)
        from_ = np.maximum(begin[run], self._group_starts[group])
        until = np.minimum(end[run], self._group_starts[group + 1]) - 1
        not_empty = from_ <= until
        run = run[not_empty]
        group = group[not_empty]
        from_ = from_[not_empty]
        until = until[not_empty]
        shift = self._first[group] - self._group_starts[group]
        base_reads = self.base.reads(
            (from_ + shift) * self.base.groups + group, (until + shift) * self.base.groups + group
        )
        return Reads(run[base_reads.run], base_reads.block, base_reads.laying)

    def pool_of(self, positions: I64 | range) -> Pool:
        return self.base.pool_of(self._base_positions(as_array(positions)))

    def _base_positions(self, positions: I64) -> I64:
        dealt = self._rank_starts[positions % self.groups] + positions // self.groups
        group, inside = split_at(self._group_starts, dealt)
        return (self._first[group] + inside) * self.base.groups + group

    @cached_property
    def _first(self) -> I64:
        """The index, in its own sequence, of the first remaining row of each group: int64 [D]."""
        group = np.arange(self.base.groups, dtype=np.int64)
        return (self.begin - group + self.base.groups - 1) // self.base.groups

    @cached_property
    def _group_starts(self) -> I64:
        """The place at which each group's rows begin, laid end to end, then their total: int64 [D +
        1].
        """
        group = np.arange(self.base.groups, dtype=np.int64)
        stops = (self.end - group + self.base.groups - 1) // self.base.groups
        return offsets_from_lengths(stops - self._first)

    @cached_property
    def _rank_starts(self) -> I64:
        """The place at which each rank's part of them begins, then their total: int64 [R + 1]."""
        return offsets_from_lengths(even_parts(self.rows, self.groups))


def _parts(index: SplitIndex) -> tuple[SplitIndex, ...]:
    if isinstance(index, BlendIndex):
        return index.parts
    return (index,)


def _sizes(index: SplitIndex) -> tuple[int, ...]:
    return tuple(part.total_rows for part in _parts(index))


def _tokens(index: SplitIndex) -> tuple[int, ...] | None:
    if isinstance(index, BlendIndex) and index.tokens is not None:
        return tuple(tokens.total for tokens in index.tokens)
    return None


def _mixture(index: SplitIndex) -> Mixture:
    if isinstance(index, BlendIndex):
        return index.mixture
    return Mixture.one_pass((index.split,))
