"""Define a pass: the rest of an epoch for these ranks, from which loaders, states and plans are
made.

`Passes` begins passes and resumes saved states. One implementation is for rows, another for rows
that are packed while they are streamed. A loader holds one pass at a time and does not know what
its batches are made of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.checks import check_integer
from headrace.dataset.index import SplitIndex
from headrace.errors import SettingsError, StreamError, setting
from headrace.sealed import MOST_EPOCHS
from headrace.stream.loader.options import StreamOptions
from headrace.stream.order.advice import sentence_of, sorted_mixing
from headrace.stream.order.balance import CountedIndex, RowCosts
from headrace.stream.order.epoch import Order
from headrace.stream.order.lanes import (
    Lanes,
    choose_lanes,
    choose_lanes_again,
    estimate_block_bytes,
    fits_in_memory,
    mixes_everything,
)
from headrace.stream.order.layout import (
    BlendIndex,
    begin_mixture,
    order_of_state,
    samples_of_epoch,
    sources_of,
)
from headrace.stream.order.mixed import Leg
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import RankRows, Remainder, resolve_remainder
from headrace.stream.order.remixed import Changed, remixed
from headrace.stream.order.shard_partition import (
    ShardPartition,
    deal_shards,
    local_ranks,
    pack_shards,
)
from headrace.stream.order.state import (
    MOST_CHANGES,
    Change,
    MixtureState,
    StreamState,
    next_border,
)
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import Batch, import_torch
from headrace.stream.read.by_source import SourceCounts
from headrace.stream.read.columns import Columns
from headrace.stream.read.quarantine import Quarantine
from headrace.stream.read.reader import DecodedSplit, ReadBlock, read_share
from headrace.stream.read.transform import TransformContext

log = logging.getLogger("headrace")

_WORTH_A_WARNING = 2.0  # how many times the remaining rows are decoded
_WORTH_A_WORD_BYTES = 1 << 26  # decoded in less than a second
_MOST_COUNTED = 1 << 17  # blocks plus ranks; a plan of this size takes tenths of a second


@dataclass(frozen=True, eq=False)
class Reading:
    """The means to read a pass.

    read_block: decodes a block; called in threads. quarantine: records bad blocks.
    check: raises if another rank has failed; called while waiting for other ranks.
    make: makes batches of a given number of rows from columns; None: as the options say. Packed
    rows are always made as the options say. counts: takes rows and tokens by source, of a blend.
    """

    read_block: ReadBlock
    quarantine: Quarantine | None = None
    check: Callable[[], None] = lambda: None  # a single rank has no others to check
    make: Callable[[Columns, int], Iterator[Any]] | None = None
    counts: SourceCounts | None = None


class Pass(Protocol):
    """The rest of an epoch for these ranks, of any source."""

    @property
    def epoch(self) -> int:
        """The number of the epoch."""

    @property
    def steps(self) -> int | None:
        """Batches that each rank receives, the same for all; None if not known yet."""

    @property
    def batches_done(self) -> int:
        """Batches that each rank took of the epoch before this pass, on any ranks and in any batch
        sizes.
        """

    @property
    def is_partial(self) -> bool:
        """True if part of the epoch was received before."""

    @property
    def dropped_rows(self) -> int:
        """Rows that no rank receives, over all ranks."""

    def state_after(self, batches: int) -> dict[str, Any]:
        """Return the state after this number of batches on every rank, as JSON.

        Raises `StreamError` if the pass has fewer.
        """

    def rows_after(self, batches: int) -> int:
        """Count the rows in this rank's first `batches` batches, without filling rows."""

    def plan(self) -> Plan:
        """Return steps, rows and bytes of every rank."""

    def batches(self, reading: Reading, *, first: int = 0) -> Generator[Batch, None, None]:
        """Yield this rank's batches from number `first` on, before any transform."""

    def context(self, batch: int) -> TransformContext:
        """Return the position in the epoch of this rank's batch with this number."""


class Passes(Protocol):
    """A source of passes over some data in some form, for these ranks; picklable."""

    index: SplitIndex
    options: StreamOptions
    read_block: ReadBlock
    remainder: Remainder

    def begin(self, epoch: int, after: Pass | None = None) -> Pass:
        """Begin an epoch, in the order of the previous pass if these ranks can continue in it."""

    def resume(self, values: Mapping[str, Any], changed: Changed = "nothing") -> Pass:
        """Resume from a saved state; changed: what of its blend may differ.

        Raises `StreamError` if it is of other data, seed or shuffle.
        """

    def full(self, of: Pass) -> Pass:
        """Return the epoch of a pass from its beginning, in the same order."""


MakePasses: TypeAlias = Callable[[SplitIndex, ReadBlock, StreamOptions, Topology], Passes]


@dataclass(frozen=True, eq=False)
class RowPass:
    """The rest of an epoch of rows; see `Pass`. start: the state where it begins."""

    passes: RowPasses
    start: StreamState
    _plan: ClassVar[type[Plan]] = Plan

    @property
    def epoch(self) -> int:
        return self.start.epoch

    @property
    def batches_done(self) -> int:
        return self.start.batches_done

    @property
    def is_partial(self) -> bool:
        return bool(self.start.position)

    @property
    def steps(self) -> int | None:
        passes = self.passes
        return self.start.steps(
            ranks=passes.ranks, batch_size=passes.options.batch_size, remainder=passes.remainder
        )

    @property
    def dropped_rows(self) -> int:
        """Rows that "drop" leaves out, over all ranks."""
        if self.passes.remainder == "drop":
            return self.plan().dropped_rows
        return 0

    def plan(self) -> Plan:
        return self._plan(
            index=self.passes.of_epoch(self.epoch),
            order=self.passes.order(self.start),
            remaining=self.start.remaining,
            world_size=self.passes.ranks,
            batch_size=self.passes.options.batch_size,
            remainder=self.passes.remainder,
            shard_partition=self.start.shard_partition,
            costs=self.passes.costs,
            memory_bytes=self.passes.options.memory_bytes,
        )

    def state_after(self, batches: int) -> dict[str, Any]:
        return self.after(batches).start.to_dict()

    def after(self, batches: int) -> RowPass:
        """Return the rest after this number of batches on every rank.

        Raises `StreamError` if there are fewer.
        """
        passes = self.passes
        start = self.start.after(
            batches,
            ranks=passes.ranks,
            batch_size=passes.options.batch_size,
            remainder=passes.remainder,
        )
        return replace(self, start=start)

    def batches(self, reading: Reading, *, first: int = 0) -> Generator[Batch, None, None]:
        if reading.counts is not None:
            reading.counts.restart(first)
        return read_share(
            self.after(first).plan(),
            reading.read_block,
            self.passes.options,
            topology=self.passes.topology,
            quarantine=reading.quarantine,
            memory=self.passes.memory,
            make=reading.make,
            counts=reading.counts,
        )

    def context(self, batch: int) -> TransformContext:
        options = self.passes.options
        rank_rows = self._rank_rows
        first = batch * options.batch_size
        stop = min(first + options.batch_size, rank_rows.items)
        positions = self.start.remaining.positions(rank_rows.indices(first, stop))
        filling = np.full(stop - first - len(positions), -1, np.int64)
        return TransformContext(
            seed=options.seed,
            epoch=self.epoch,
            step=self.start.position // (self.passes.ranks * options.batch_size) + batch,
            rank=self.passes.topology.rank,
            positions=np.concatenate([positions, filling]),
        )

    def rows_after(self, batches: int) -> int:
        return min(batches * self.passes.options.batch_size, self._rank_rows.rows)

    @cached_property
    def _rank_rows(self) -> RankRows:
        """This rank's share of the remaining rows."""
        return self.plan().rank_rows(self.passes.topology.rank)

    def __getstate__(self) -> dict[str, Any]:
        return {"passes": self.passes, "start": self.start}


class RowPasses:
    """Passes over the rows of a split, as batches of `options.batch_size` rows on each rank.

    read_block: decodes a block; called in threads. Raises at once what would fail at the first
    batch: `SettingsError` for unknown columns and for "exact" on several ranks, `MissingExtra` for
    torch batches without torch.
    """

    def __init__(
        self, index: SplitIndex, read_block: ReadBlock, options: StreamOptions, topology: Topology
    ) -> None:
        self.index = index
        self.read_block = read_block
        self.options = options
        self.topology = topology
        self.remainder: Remainder = resolve_remainder(options.remainder, topology.world_size)
        options.check_columns(index.schema)
        if options.batch_format == "torch":
            import_torch()
        self.memory = DecodedSplit()
        self._order: tuple[StreamState, Order] | None = None
        self._mixing_logged = False
        self._tokens_logged = False

    def declare(self, schema: pa.Schema, columns: Sequence[str] | None) -> None:
        """Set the schema of blocks and the columns to read, from the next pass on."""
        self.index = replace(self.index, schema=schema)
        self.options = replace(self.options, columns=columns)
        self.memory = DecodedSplit()

    @property
    def ranks(self) -> int:
        """The number of ranks, R."""
        return self.topology.world_size

    def of_epoch(self, epoch: int) -> SplitIndex:  # noqa: ARG002 - every epoch has the same rows
        """Return the index with the rows of an epoch."""
        return self.index

    def begin(self, epoch: int, after: Pass | None = None) -> RowPass:
        """Begin an epoch, in the lanes of the previous pass if these ranks divide its groups."""
        check_integer("epoch", epoch, least=0, most=MOST_EPOCHS)
        samples = samples_of_epoch(self.index, self.options.samples_per_epoch)
        state = None
        if isinstance(after, RowPass):
            state = after.start
            state.check_epoch(epoch)
        if (
            state is not None
            and state.shard_partition is None
            and (samples is not None or self._fits(state.fresh(epoch)))
        ):
            fresh = replace(state.fresh(epoch), balance=self._balance)
            return self.at(fresh if self._fits(fresh) else self._changed(fresh))
        partition = partition_of(self.index, self.options, ranks=self.ranks, epoch=epoch)
        if state is not None and state.shard_partition is not None and self._fits(state):
            chosen = Lanes(state.lanes, state.window_rows, state.groups)
        else:
            ranks = self.ranks if partition is None else 1
            chosen = self._lanes(ranks, whole_shards=partition is not None)
        if samples is None:
            rows = self.index.total_rows
        else:
            rows = samples
        begun = self.at(
            self.state_of(
                epoch,
                chosen,
                rows=rows,
                samples_per_epoch=samples,
                mixture=self._mixture(samples),
                shard_partition=partition,
            )
        )
        self._log_mixing(begun)
        self._log_tokens(begun)
        return begun

    def _log_mixing(self, begun: RowPass) -> None:
        """Log once, on one rank, how sorted rows mix."""
        if self.topology.rank or self._mixing_logged or not self.options.shuffle:
            return
        self._mixing_logged = True
        if log.isEnabledFor(logging.INFO):
            in_classes = sorted_mixing(begun.plan())
            if in_classes is not None:
                log.info("split %r: %s", self.index.split, sentence_of(**asdict(in_classes)))

    def _log_tokens(self, begun: RowPass) -> None:
        """Log once, on one rank, the tokens that the sources of a blend are expected to have."""
        counted = isinstance(self.index, BlendIndex) and self.index.tokens is not None
        if self.topology.rank or self._tokens_logged or not counted:
            return
        self._tokens_logged = True
        if log.isEnabledFor(logging.INFO):
            expected = begun.plan().tokens.items()
            text = ", ".join(f"{name} {tokens}" for name, tokens in expected)
            log.info("split %r: expected tokens of the first epoch: %s", self.index.split, text)

    def state_of(self, epoch: int, lanes: Lanes, **more: Any) -> StreamState:
        """Return the state at the beginning of an epoch in these lanes.

        more: other fields of the state.
        """
        return StreamState(
            split=self.index.split,
            index=self.index.identity,
            seed=self.options.seed,
            epoch=epoch,
            shuffle=self.options.shuffle,
            balance=self._balance,
            **lanes._asdict(),
            **more,
        )

    def _mixture(self, samples: int | None) -> MixtureState | None:
        """Return the mixture of a run that begins now; see `StreamState`."""
        return begin_mixture(
            self.index,
            samples_per_epoch=samples,
            global_batch=self.ranks * self.options.rank_step_rows(self.ranks),
        )

    @cached_property
    def costs(self) -> RowCosts | None:
        """The costs that balance steps; None if steps are not balanced."""
        model = self.options.cost_model
        if model and isinstance(self.index, CountedIndex):
            return self.index.costs(model.even_tokens)
        return None

    @property
    def _balance(self) -> tuple[int, int] | None:
        """The global batch and cost model of an epoch that begins now; see `StreamState`."""
        model = self.options.cost_model
        if model is None:
            return None
        return (self.ranks * self.options.batch_size, model.even_tokens)

    def at(self, start: StreamState) -> RowPass:
        """Return the pass that starts at a state."""
        return RowPass(self, start)

    def full(self, of: Pass) -> RowPass:
        assert isinstance(of, RowPass)
        # keeps the changes of order that its ranks made
        return self.at(of.start.epoch_start())

    def resume(self, values: Mapping[str, Any], changed: Changed = "nothing") -> RowPass:
        """Resume from a saved state; if these ranks do not divide its groups, use new lanes from
        the next round on.
        """
        if changed != "nothing":
            values = self.remixed(self.of_changed_blend(values, changed), changed).to_dict()
        return self.at(self.continued(self.checked(values)))

    def order(self, state: StreamState) -> Order:
        """Return the order of a state's epoch; the last one is cached, because building it costs
        O(blocks).
        """
        key = state.epoch_start()
        if self._order is None or self._order[0] != key:
            self._order = key, order_of_state(self.of_epoch(state.epoch), state)
        return self._order[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order": None}

    def checked(self, values: Mapping[str, Any]) -> StreamState:
        """Return a saved state after checking that it belongs to these rows.

        Raises `StreamError`.
        """
        state = StreamState.from_dict(values)
        samples = samples_of_epoch(self.index, self.options.samples_per_epoch)
        mixture = self._mixture(samples)
        if state.samples_per_epoch == samples:
            state.check_blend(mixture)
        state.check_index(self.index)
        if state.mixture is not None and mixture is not None:
            for source in mixture.sources:
                state.mixture.check_source(source)
        state.check_order(
            seed=self.options.seed,
            shuffle=self.options.shuffle,
            samples_per_epoch=samples,
            even_tokens=(
                None if self.options.cost_model is None else self.options.cost_model.even_tokens
            ),
        )
        return state

    def continued(self, state: StreamState) -> StreamState:
        """Return the same position, adapted to these ranks.

        Logs what the change of ranks costs, and warns above a factor of 2.
        """
        if self._fits(state) or state.position == state.rows:
            return state
        # nothing was received: begin on these ranks
        first = state.samples_per_epoch is None or not state.epoch
        unchanged = state.mixture is None or len(state.mixture.mixtures) == 1
        if not state.position and first and unchanged:
            begun = self.begin(state.epoch).start
            if state.mixture is None or begun.mixture is None:
                return begun
            return replace(begun, mixture=replace(state.mixture, legs=()))
        state = self._changed(state)
        if self.topology.rank:  # one rank logs for all
            return state
        message = "split %r: %d ranks go on with %d of %d rows of epoch %d"
        figures = (self.index.split, self.ranks, state.remaining.total, state.rows, state.epoch)
        if len(self.index.rows) + self.ranks > _MOST_COUNTED:
            log.info(message + "; headrace plan --state says how often these are decoded", *figures)
            return state
        plan = RowPass(self, state).plan()
        factor = plan.read_amplification
        message = message + "; over all, these are decoded %.1f times"
        if factor <= _WORTH_A_WARNING or plan.decoded_again_bytes <= _WORTH_A_WORD_BYTES:
            log.info(message, *figures, factor)
        elif state.shard_partition is None:
            remedy = "; resume on a number of ranks that divides %d to decode them once"
            log.warning(message + remedy, *figures, factor, state.groups)
        else:
            log.warning(
                message + "; resume on %d ranks to decode them once",
                *figures,
                factor,
                len(state.shard_partition.rows),
            )
        return state

    def _lanes(self, ranks: int, *, whole_shards: bool) -> Lanes:
        """Choose the lanes of the rows of the index."""
        return choose_lanes(
            self.index,
            shuffle=self.options.shuffle,
            ranks=ranks,
            batch_size=self.options.rank_step_rows(self.ranks),
            lanes=self.options.lanes,
            shuffle_rows=self.options.shuffle_rows,
            memory_bytes=self.options.memory_bytes,
            sources=sources_of(self.index),
            balanced=self.options.balance != "none",
            whole_shards=whole_shards,
        )

    def _changed(self, state: StreamState) -> StreamState:
        """Cut new lanes from the next round boundary on."""
        changes = [change for change in state.changes if change.position < state.position]
        if state.holes or state.shard_partition is not None or len(changes) > MOST_CHANGES - 2:
            return state
        if state.mixture is not None:
            return replace(state, mixture=self._changed_mixture(state, state.mixture))
        if changes and changes[-1].ranks is not None:  # stopped again before the end of its round
            cuts = [change.position for change in state.changes if change.ranks is None]
            later = [position for position in cuts if position >= state.position]
            border = min(later, default=state.rows)
        else:
            border = next_border(state, changes[-1] if changes else None, state.position)
            if state.position < border:
                changes.append(Change(position=state.position, ranks=self.ranks))
        if border < state.rows:
            lanes = choose_lanes_again(
                Lanes(state.lanes, state.window_rows, state.groups),
                shuffle=state.shuffle,
                blocks=round(
                    np.count_nonzero(self.index.rows) * (state.rows - border) / state.rows
                ),
                ranks=self.ranks,
                batch_size=self.options.rank_step_rows(self.ranks),
            )
            changes.append(Change(position=border, **lanes._asdict()))
        return replace(state, changes=tuple(changes))

    def of_changed_blend(self, values: Mapping[str, Any], changed: Changed) -> StreamState:
        """Return the state of a blend that differs from this stream's as one of the same epoch over
        the blocks of this one.

        Raises `StreamError` if more differs than weights and datasets.
        """
        samples = samples_of_epoch(self.index, self.options.samples_per_epoch)
        state = None
        if isinstance(self.index, BlendIndex):
            state = StreamState.from_dict(values)
        if state is None or state.mixture is None:
            raise StreamError(
                f"stream state: {setting('changed', changed)} is for blends, and the state or this"
                " stream is of one dataset",
                setting="changed",
                value=changed,
                remedy="leave it out, or give the dataset as a blend of one from the start",
            )
        rows = self.index.total_rows if samples is None else samples
        if state.rows != rows:
            raise StreamError(
                f"stream state: its epochs have {state.rows:,} rows, those of this stream {rows:,}",
                setting="samples_per_epoch",
                value=rows,
                remedy=f"pass {setting('samples_per_epoch', state.rows)}",
            )
        current = self._mixture(samples)
        for source in () if current is None else current.sources:
            state.mixture.check_source(source)
        return replace(
            state,
            split=self.index.split,
            index=self.index.identity,
            samples_per_epoch=samples,
        )

    def remixed(self, state: StreamState, changed: Changed) -> StreamState:
        """Return a state of `of_changed_blend` with the blend of this stream from its position
        on.
        """
        current = self._mixture(state.samples_per_epoch)
        assert state.mixture is not None
        assert current is not None
        row = state.epoch * state.rows + state.position
        mixture = remixed(state.mixture, current, row=row, changed=changed) if row else current
        is_new = mixture is not state.mixture
        state = replace(state, mixture=mixture)
        if row and is_new:
            self._refuse_tokens()
            lanes = None
            if changed == "datasets":
                lanes = self._lanes(self.ranks, whole_shards=False)
            state = replace(state, mixture=self._changed_mixture(state, mixture, lanes))
        return state

    def _refuse_tokens(self) -> None:
        """Raise `SettingsError` if a stage of a changed blend begins at a token."""
        assert isinstance(self.index, BlendIndex)
        for stage in self.index.mixture.stages:
            if stage.begin.unit == "tokens":
                raise SettingsError(
                    f"a stage begins at {stage.begin}, and a state does not say how many tokens the"
                    " blend had before it changed",
                    setting="schedule",
                    value=str(stage.begin),
                    remedy='write it in rows or a share, such as "3M rows" or "80%"',
                )

    def _changed_mixture(
        self, state: StreamState, mixture: MixtureState, chosen: Lanes | None = None
    ) -> MixtureState:
        """Begin a leg of the run at the position of a state.

        chosen: its lanes; None: those before it, if these ranks can read them.
        """
        begin = state.epoch * state.rows + state.position
        if mixture.mixtures[-1].begin > begin:  # the epoch again from its start: as it was
            return mixture
        mixture = mixture.before(begin)
        if len(mixture.legs) >= MOST_CHANGES:
            return mixture
        lanes = chosen or Lanes(state.lanes, state.window_rows, state.groups)
        if chosen is None and mixture.legs:
            lanes = Lanes(*mixture.legs[-1][1:])
        if not self._serves(lanes, shuffle=state.shuffle, rows=self.index.total_rows):
            lanes = choose_lanes_again(
                lanes,
                shuffle=state.shuffle,
                blocks=int(np.count_nonzero(self.index.rows)) // sources_of(self.index),
                ranks=self.ranks,
                batch_size=self.options.rank_step_rows(self.ranks),
            )
        return replace(mixture, legs=(*mixture.legs, Leg(begin, *lanes)))

    def _fits(self, state: StreamState) -> bool:
        """Check whether these ranks can read a state's lanes without reading those of other
        ranks.
        """
        if state.shard_partition is not None:
            return len(state.shard_partition.rows) == self.ranks
        if state.changes:
            last = state.changes[-1]
            return (last.groups or last.ranks or 1) % self.ranks == 0
        lanes = Lanes(state.lanes, state.window_rows, state.groups)
        if state.mixture is not None and state.mixture.legs:
            lanes = Lanes(*state.mixture.legs[-1][1:])
        rows = state.rows if state.mixture is None else self.index.total_rows
        return self._serves(lanes, shuffle=state.shuffle, rows=rows)

    def _serves(self, lanes: Lanes, *, shuffle: bool, rows: int) -> bool:
        """Check whether these ranks can read lanes of a split of `rows` rows, see `_fits`."""
        if lanes.groups % self.ranks == 0:
            return True
        # otherwise every rank needs all blocks: in each round, or in the only one
        one_round = lanes.lanes * lanes.window_rows >= rows
        in_memory = mixes_everything(lanes, rows) and fits_in_memory(
            int(estimate_block_bytes(self.index).sum()), self.options.memory_bytes
        )
        return shuffle and (one_round or in_memory)


def partition_of(
    index: SplitIndex, options: StreamOptions, *, ranks: int, epoch: int
) -> ShardPartition | None:
    """Return the partition of the shards of an epoch; None for "balanced", in which every rank
    strides over all rows.

    Raises `SettingsError` for blends and for partial epochs, which do not consist of whole shards.
    """
    if options.distribution == "balanced":
        return None
    if isinstance(index, BlendIndex) or options.samples_per_epoch is not None:
        raise SettingsError(
            f"{setting('distribution', options.distribution)} gives out whole shards of one dataset"
            " and whole epochs",
            remedy=(
                f"use {setting('distribution', 'balanced')} with blends and with"
                f" {setting('samples_per_epoch')}"
            ),
        )
    if options.distribution == "round_robin":
        rank = deal_shards(
            index, ranks=ranks, seed=options.seed, epoch=epoch, shuffle=options.shuffle
        )
    else:
        shards = len(index.shards)
        block_bytes = estimate_block_bytes(index)
        shard_bytes = np.bincount(
            index.shard_of_block, weights=block_bytes, minlength=shards
        ).astype(np.int64)
        allowed = None
        if options.distribution == "local":
            allowed = local_ranks(
                index,
                options.locality or {},
                ranks=ranks,
                ranks_per_node=options.ranks_per_node or ranks,
            )
        rank = pack_shards(shard_bytes, ranks=ranks, allowed=allowed)
    rows = np.bincount(rank[index.shard_of_block], weights=index.rows, minlength=ranks).astype(
        np.int64
    )
    return ShardPartition(
        distribution=options.distribution,
        rows=tuple(rows.tolist()),
        assignment=None if options.distribution == "round_robin" else tuple(rank.tolist()),
    )
