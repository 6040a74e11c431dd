"""Let ranks claim blocks when they are ready, so a slow rank reads fewer rows:
distribution="dynamic", experimental.

    dataset = headrace.open("out")
    stream = dataset.stream("train", batch_size=256, shuffle=True, distribution="dynamic")
    for batch in stream:
        if batch["valid"].any(): ...

Every row is delivered once over all ranks, and every rank gets the same number of batches. Which
rank gets a row depends on their speed, so no run repeats another's order. Choose it for work that
is not synchronised at every batch: evaluation, embedding, local updates. A loop with a collective
at every batch also works, at the pace of its slowest rank. A batch holds rows of one or two blocks,
so this mixes less than "balanced" does.

A rank that finds no claim left finishes its rows and looks up how many batches the claims of each
rank make. It then fills up to the largest of these numbers with batches that have no valid row. The
number of batches is known only then, so there is no `len`.

The ranks coordinate through a store: that of torch.distributed's default group, or `store=`. Passes
are collective: every rank starts the same passes. So is `state_dict` during or after a pass: every
rank calls it after the same number of batches. Memory: the block that is being delivered and the
next one.

The line of an epoch is its blocks end to end, in shuffled order (see `order`). Rows inside a block
are permuted by a key of that block alone. The remaining line is cut at block boundaries, so a claim
is one block, or a run of small ones of about a batch. The last blocks are cut finer, because a rank
that claims one of them late makes the others wait. After a stop, the remaining rows are again
ranges of the line, whichever rank had claimed them. Cost is O(blocks).

    <pass>/here/<rank>         counts the processes that read as this rank
    <pass>/start               the state at which the pass starts, the same on every rank
    <pass>/next                a counter: the rank that adds 1 to it has the claim of that number
    <pass>/rows/<rank>         counts the rows that a rank has claimed
    <pass>/entered             counts these rows over all ranks, so <pass>/rows is complete once it
                               reaches their total
    <pass>/left                a rank that left before all blocks were claimed, and its state if
                               that differs
    <pass>/state/<n>/<rank>    what a rank had claimed and not delivered at the n-th call of
                               state_dict
"""

from __future__ import annotations

import json
import logging
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64
from headrace.checks import check_integer
from headrace.dataset.index import SplitIndex
from headrace.digest import canonical_json, derive_key, sha256_hex
from headrace.errors import SettingsError, StreamError, setting, setting_name
from headrace.keyed_hash import permutation
from headrace.sealed import MOST_EPOCHS, kind_of
from headrace.stream.loader.options import IN_ARROW, StreamOptions
from headrace.stream.loader.passes import Pass, Reading, RowPass, RowPasses
from headrace.stream.order.epoch import (
    EpochOrder,
    LocatedRows,
    block_identities,
    distinct_numbers,
    epoch_order,
    span_rows,
)
from headrace.stream.order.lanes import Lanes
from headrace.stream.order.layout import BlendIndex
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remaining, split_at
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.group import default_group, separate_connection, text_of
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.ahead import prefetched
from headrace.stream.read.batch import Batch, make_batches
from headrace.stream.read.columns import Columns, cut, from_table, gather, join
from headrace.stream.read.quarantine import Quarantine, filling_rows
from headrace.stream.read.reader import (
    ReadBlock,
    decode_block,
    full_batches,
    mark_real,
    reading_real,
)
from headrace.stream.read.transform import TransformContext

log = logging.getLogger("headrace")

_LAST_PARTS = 4  # small claims at the end shorten the wait for the last rank
_LOOK_S = 0.01
_TIMEOUT_S = 1800.0  # the same as for torch's own collectives
_KIND = "dynamic stream"
_ONE_LANE = Lanes(1, 1, 1)  # the line of an epoch is claimed from its beginning to its end
_DYNAMIC = setting("distribution", "dynamic")
_BALANCED = setting("distribution", "balanced")
_MADE: Counter[tuple[str, str, int, int]] = Counter()


def claim_boundaries(
    order: EpochOrder, remaining: Remaining, *, batch_size: int, ranks: int
) -> I64:
    """Return int64 [claims+1], strictly rising from 0: claim i is places [borders[i], borders[i+1])
    of what remains.
    """
    if not remaining.total:
        return np.zeros(1, np.int64)
    boundaries = np.unique(remaining.counts_below(order.line))
    last = max(0, len(boundaries) - 1 - ranks)
    finer = [boundaries[: last + 1]]
    for start, stop in zip(
        boundaries[last:-1].tolist(), boundaries[last + 1 :].tolist(), strict=True
    ):
        parts = max(1, min(_LAST_PARTS, (stop - start) // batch_size))
        finer.append(start + (stop - start) * np.arange(1, parts + 1, dtype=np.int64) // parts)
    boundaries = np.concatenate(finer)
    # Keep the first border between two multiples of a batch, so that small blocks are claimed in
    # runs.
    needed = np.diff(boundaries // batch_size) > 0
    needed[-1] = True
    return np.concatenate([[0], boundaries[1:][needed]]).astype(np.int64)


def claim_rows(order: EpochOrder, identities: U64, line_positions: I64) -> LocatedRows:
    """Return the locations of the rows at these places of the line, in the order of delivery."""
    along, rows = split_at(order.line, line_positions)
    for at, of_block in distinct_numbers(along) if order.shuffle else ():
        key = derive_key(
            order.seed, "claimed block", order.epoch, *map(int, identities[order.blocks[at]])
        )
        rows[of_block] = permutation(key, int(order.line[at + 1] - order.line[at]))[rows[of_block]]
    return span_rows(order.blocks[along], rows)


def left_of(
    remaining: Remaining, boundaries: I64, *, claimed: int, undelivered: Iterable[tuple[int, int]]
) -> Remaining:
    """Return what no rank has received: claims from number `claimed` on, and [start, stop) parts of
    earlier ones.
    """
    parts = sorted((start, stop) for start, stop in undelivered if start < stop)
    parts.append((int(boundaries[claimed]), int(boundaries[-1])))
    starts, stops = np.array(parts, np.int64).T
    return remaining.keep(starts, stops)


class LocalStore:
    """A replacement for a torch store when there is one rank."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = Lock()
        self.set = self._values.__setitem__
        self.get = self._values.__getitem__

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount
            return int(self._values[key])

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def compare_set(self, key: str, _expected: str, desired: str) -> Any:
        with self._lock:
            return self._values.setdefault(key, desired)


@dataclass(eq=False, kw_only=True)
class Claims:
    """The claims of one rank in one pass, each entered in the store at once with its rows.

    So a rank that finds no claim left learns the number of batches of every rank without waiting
    for slow ranks, even while they are in a collective.
    store: any of torch.distributed. prefix: the name of the pass, equal on all ranks. boundaries:
    see `claim_boundaries`. check: raises if another rank has failed. Batches may be made before the
    loop takes them, so claims learn only at a state request what was received.
    """

    store: Any
    prefix: str
    topology: Topology
    epoch: int
    boundaries: I64
    batch_size: int
    check: Callable[[], None]
    _undelivered: deque[tuple[int, int]] = field(default_factory=deque)  # claimed but not received
    _claimed: int = 0
    _claiming: Lock = field(default_factory=Lock)
    # total rows made after each batch
    _rows_made: array[int] = field(default_factory=lambda: array("q", [0]))
    _rows_received: int = 0  # rows of batches that the loop is known to have received
    _calls: int = 0  # of `left_over`

    def arrive(self, start: str) -> None:
        """Register this rank.

        Raises `StreamError` if another process has the same rank, or if another rank starts from a
        different state.
        """
        if (processes := int(self.store.add(f"{self.prefix}/here/{self.topology.rank}", 1))) > 1:
            raise StreamError(
                f"{self.topology}: {processes} processes of this job are that rank, and with"
                f" {_DYNAMIC} each of them would get other rows",
                remedy=(
                    f"use {_BALANCED}, which gives all processes of a rank the same"
                    " batches, or give each process a rank of its own"
                ),
            )
        agreed = text_of(self.store.compare_set(f"{self.prefix}/start", "", start))
        if agreed != start:
            self.leave(start)
            raise self._starts_elsewhere(start, agreed)

    def leave(self, differing_start: str = "") -> None:
        """Publish that this rank leaves before all blocks are claimed, so its number of batches
        stays unknown.
        """
        if not self._all_entered():
            self.store.set(f"{self.prefix}/left", json.dumps([self.topology.rank, differing_start]))

    def take(self) -> Iterator[tuple[int, int]]:
        """Claim parts one by one, each when it is requested: places [start, stop) of what
        remains.
        """
        while True:
            with self._claiming:
                number = int(self.store.add(f"{self.prefix}/next", 1)) - 1
                if number >= len(self.boundaries) - 1:
                    return
                start = int(self.boundaries[number])
                stop = int(self.boundaries[number + 1])
                self._claimed += 1
                self._undelivered.append((start, stop))
                self.store.add(f"{self.prefix}/rows/{self.topology.rank}", stop - start)
                self.store.add(f"{self.prefix}/entered", stop - start)
            yield start, stop

    def await_steps(self) -> int:
        """Return the number of batches that every rank gives, once no claim is left."""
        left = f"{self.prefix}/left"
        self._await(
            lambda: self.store.check([left]) or self._all_entered(), "the claims of every rank"
        )
        if self.store.check([left]):
            rank, start = json.loads(text_of(self.store.get(left)))
            if start:
                raise self._starts_elsewhere(text_of(self.store.get(f"{self.prefix}/start")), start)
            raise StreamError(
                f"{self.topology}: rank {rank} left epoch {self.epoch} before its end, with"
                " blocks that only it has",
                remedy=(
                    "end a pass on all ranks after the same number of batches, and resume all from"
                    " one state"
                ),
            )
        most = 0
        for rank in range(self.topology.world_size):
            most = max(most, int(self.store.add(f"{self.prefix}/rows/{rank}", 0)))
        return -(-most // self.batch_size)

    def record(self, rows: int) -> None:
        """Record a batch of this many rows of the claims, in the order of `take`."""
        self._rows_made.append(self._rows_made[-1] + rows)

    def rows_after(self, batches: int) -> int:
        """Count the rows in the first `batches` batches."""
        return self._rows_made[min(batches, len(self._rows_made) - 1)]

    def left_over(self, batches: int, remaining: Remaining) -> Remaining:
        """Return what no rank has received, this one having received `batches` batches.

        Waits for every rank's call.
        """
        self._calls += 1
        keys = [
            f"{self.prefix}/state/{self._calls}/{rank}" for rank in range(self.topology.world_size)
        ]
        rows = self.rows_after(batches) - self._rows_received
        self._rows_received += rows
        # held until all ranks have called, so no claim is missed or counted twice
        with self._claiming:
            while rows:
                start, stop = self._undelivered.popleft()
                part = min(rows, stop - start)
                rows -= part
                if start + part < stop:
                    self._undelivered.appendleft((start + part, stop))
            self.store.set(
                keys[self.topology.rank], json.dumps([self._claimed, list(self._undelivered)])
            )
            self._await(
                lambda: self.store.check(keys), f"call {self._calls} of state_dict on every rank"
            )
        answers = [json.loads(text_of(self.store.get(key))) for key in keys]
        unreceived = [(start, stop) for _, parts in answers for start, stop in parts]
        return left_of(
            remaining,
            self.boundaries,
            claimed=sum(claimed for claimed, _ in answers),
            undelivered=unreceived,
        )

    def _starts_elsewhere(self, start: str, other: str) -> StreamError:
        return StreamError(
            f"{self.topology}: this pass starts at {start}, another rank's at {other}",
            remedy="load the same state and set the same epoch on every rank",
        )

    def _all_entered(self) -> bool:
        return int(self.store.add(f"{self.prefix}/entered", 0)) == int(self.boundaries[-1])

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        began = time.monotonic()
        while not ready():
            self.check()
            waited_s = time.monotonic() - began
            if waited_s > _TIMEOUT_S:
                raise StreamError(
                    f"{self.topology}: waited {waited_s:.0f} s for {what}",
                    remedy="start the same passes and call state_dict on every rank",
                )
            time.sleep(_LOOK_S)


def _check_options(index: SplitIndex, options: StreamOptions, topology: Topology) -> None:
    """Refuse what does not go together with claims."""
    if isinstance(index, BlendIndex):
        raise SettingsError(f"{_DYNAMIC} is for one dataset", remedy=f"use {_BALANCED} with blends")
    if topology.partners > 1:
        raise SettingsError(
            f"{_DYNAMIC}: {topology.partners} processes read as one rank, and each would get"
            " other rows",
            remedy=f"use {_BALANCED}, which gives all processes of a rank the same batches",
        )
    for name in ("lanes", "shuffle_rows", "samples_per_epoch"):
        if getattr(options, name) is not None:
            raise SettingsError(
                f"{setting(name, getattr(options, name))}, and {_DYNAMIC} gives every row once,"
                " blocks and the rows inside them shuffled",
                remedy=f"leave it out, or use {_BALANCED}",
            )
    if options.remainder not in (None, "pad"):
        raise SettingsError(
            f"{setting('remainder', options.remainder)} and {_DYNAMIC} do not go together:"
            " ranks that run out of rows fill their batches",
            remedy=f'leave {setting("remainder")} out, and see batch["valid"]',
        )


class DynamicPasses(RowPasses):
    """Passes over the rows of a split: every row once over all ranks, and the same number of
    batches on each.

    store: a torch.distributed store; None: that of the default process group, which several ranks
    need.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        topology: Topology,
        store: Any = None,
    ) -> None:
        _check_options(index, options, topology)
        # States, seeds and columns work as in any stream of rows; only the assignment to ranks
        # differs.
        super().__init__(index, read_block, replace(options, remainder="pad"), topology)
        group = None
        if store is None and topology.world_size > 1:
            group = default_group()
        if store is not None:
            self.store = separate_connection(store)
        elif topology.world_size == 1:
            self.store = LocalStore()
        elif group is None:
            raise SettingsError(
                f"{_DYNAMIC} on {topology.world_size} ranks needs a store that they share",
                remedy=f"initialise torch.distributed first, or pass {setting('store')}",
            )
        elif group.processes != topology.world_size:
            raise SettingsError(
                f"{_DYNAMIC}: {setting_name('topology')} says {topology}, the process group has"
                f" {group.processes} processes",
                remedy=(
                    f"use {_BALANCED} where several of them are one rank, as each would get other"
                    f" rows. Pass {setting('store')} of those that read where some read nothing"
                ),
            )
        else:
            self.store = group.store
        self.identities = block_identities(index)
        self.names = options.check_columns(index.schema)
        self.arrow = options.batch_format in IN_ARROW
        stream_key = index.split, index.identity, topology.world_size, topology.rank
        # ranks build their streams in the same order, so equal numbers mean the same stream
        _MADE[stream_key] += 1
        split = f"{index.split}/{index.identity[:16]}"
        self.name = f"headrace/dynamic/{split}/{topology.world_size}/{_MADE[stream_key]}"
        self.begun = 0  # passes read so far

    def begin(self, epoch: int, after: Pass | None = None) -> DynamicPass:  # noqa: ARG002 - no order to continue
        check_integer("epoch", epoch, least=0, most=MOST_EPOCHS)
        return self.at(self.state_of(epoch, _ONE_LANE, rows=self.index.total_rows))

    def at(self, start: StreamState) -> DynamicPass:
        return DynamicPass(self, start)

    def checked(self, values: Mapping[str, Any]) -> StreamState:
        if kind_of(values) == "stream":
            raise StreamError(
                f"stream state: it is not of {_DYNAMIC}, and its positions are in another order",
                remedy=f"load it into a stream with {_BALANCED}, or start the epoch again",
            )
        state = super().checked(StreamState.from_dict(values, _KIND).to_dict())
        return replace(state, **_ONE_LANE._asdict())

    def continued(self, state: StreamState) -> StreamState:
        """Return the state unchanged: the current ranks claim what it left."""
        return state


class DynamicPass(RowPass):
    """The rest of an epoch, to be claimed; see `Pass`.

    claims: those of this rank, once the pass is read.
    """

    passes: DynamicPasses
    claims: Claims | None = None

    # reachable even after the interpreter has cleared this module
    _is_finalizing = staticmethod(sys.is_finalizing)

    @property
    def steps(self) -> None:
        """None: the number is unknown until the last block is claimed."""
        return None

    def plan(self) -> Plan:
        """Raise `StreamError`: there is no plan."""
        raise StreamError(
            f'split "{self.passes.index.split}": {_DYNAMIC} decides who reads what while it reads',
            remedy=f"plan with {_BALANCED}",
        )

    def state_after(self, batches: int) -> dict[str, Any]:
        """Return what no rank has received yet: JSON, equal on all ranks.

        Collective once a batch was received.

        Every rank calls it after the same number of batches. The state resumes on any number of
        ranks with any batch size.
        """
        if self.claims is None or not batches:
            return self.start.to_dict(_KIND)
        left = self.claims.left_over(batches, self.start.remaining)
        return self.start.at(left, batches=batches).to_dict(_KIND)

    def rows_after(self, batches: int) -> int:
        if self.claims is None:
            return 0
        return self.claims.rows_after(batches)

    def context(self, batch: int) -> TransformContext:
        """Return the context of this rank's batch; its rows have no positions, because claims are
        not repeatable.
        """
        options = self.passes.options
        rank = self.passes.topology.rank
        return TransformContext(
            seed=options.seed, epoch=self.epoch, step=batch, rank=rank, positions=None
        )

    def batches(self, reading: Reading, *, first: int = 0) -> Generator[Batch, None, None]:
        """Yield this rank's batches; an early end is published to the other ranks."""
        assert not first, "nothing is known about the first batches of others"
        passes, start, topology, size = (
            self.passes,
            self.start,
            self.passes.topology,
            self.passes.options.batch_size,
        )
        passes.begun += 1
        log.info(
            "%s: epoch %d is claimed block by block: its order will not repeat",
            topology,
            self.epoch,
        )
        order = epoch_order(passes.index.rows, passes.identities, **start.order_settings)
        self.claims = None
        claims = Claims(
            store=passes.store,
            prefix=f"{passes.name}/{passes.begun}",
            topology=topology,
            epoch=self.epoch,
            boundaries=claim_boundaries(
                order, start.remaining, batch_size=size, ranks=topology.world_size
            ),
            batch_size=size,
            check=reading.check,
        )
        claims.arrive(sha256_hex(canonical_json([start.to_dict(_KIND), size]))[:16])
        self.claims = claims
        read_block, names = reading_real(
            reading.read_block, passes.names, passes.options, reading.quarantine
        )
        claimed = self._read(read_block, names, order, claims)
        delivered = 0
        finished = False
        try:
            with closing(prefetched(claimed, thread_name="headrace-claim")) as read:
                for real, columns in full_batches(read, size):
                    for batch in self._filled(names, [columns], real, reading.quarantine):
                        claims.record(min(size, real))
                        delivered = delivered + 1
                        real = real - size
                        yield batch
            for _ in range(claims.await_steps() - delivered):
                yield from self._filled(names, [], 0, reading.quarantine)
            finished = True
        finally:
            # at shutdown Python has already cleared the modules
            if not self._is_finalizing() and not finished:
                with suppress(RuntimeError):  # the store may be gone already
                    claims.leave()

    def _read(
        self, read_block: ReadBlock, names: Sequence[str], order: EpochOrder, claims: Claims
    ) -> Iterator[tuple[int, Columns]]:
        """Yield the number and the rows of each claim of this rank."""
        passes, reader = self.passes, str(self.passes.topology)
        for first, last in claims.take():
            positions = self.start.remaining.positions(np.arange(first, last, dtype=np.int64))
            claimed = claim_rows(order, passes.identities, positions)
            decoded = {}
            for block, _, _ in claimed.spans:
                decoded[block] = decode_block(
                    passes.index, read_block, block, names, reader, arrow=passes.arrow
                )
            chunks = [cut(decoded[block], low, high) for block, low, high in claimed.spans]
            yield len(claimed.index), gather(chunks, claimed.index)

    def _filled(
        self, names: Sequence[str], parts: list[Columns], real: int, quarantine: Quarantine | None
    ) -> Iterator[Batch]:
        """Yield batches of these rows; the last one, or the only one if there are no rows, is
        filled up.
        """
        passes, options = self.passes, self.passes.options
        if real:
            filling = -real % options.batch_size
        else:
            filling = options.batch_size
        if filling:
            table = filling_rows(passes.index.schema, passes.names, filling)
            # a filling row is neither of a bad block nor masked
            for name in names[len(passes.names) :]:
                table = table.append_column(name, pa.array(np.ones(filling, np.bool_)))
            parts = [
                *parts,
                gather(
                    [
                        from_table(
                            table,
                            arrow=passes.arrow,
                            where="filling rows",
                            gaps=passes.index.gaps,
                        )
                    ],
                    None,
                ),
            ]
        rows = mark_real(join(parts), np.arange(real + filling) < real, quarantine)
        return make_batches(
            rows, options.batch_size, options.batch_format, options.padding, options.form
        )
