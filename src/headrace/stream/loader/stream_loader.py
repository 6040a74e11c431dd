"""A stream of batches for one rank: this process, and threads that decode ahead.

An epoch is a pass over everything; the rules of passes are those of a torch loop:

- `set_epoch(e)` makes the next pass epoch e; a pass that is taken to its end is followed by the next epoch by itself.
- A new iterator before the end begins the same pass again, so that looking at one batch on one rank moves nothing.
- `load_state_dict` makes the next pass the rest of an epoch; `set_epoch` with that same epoch keeps it so. The state of
  an epoch's end gives an empty pass, as there is nothing left of it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from headrace.dataset.index import SplitIndex
from headrace.errors import SettingsError
from headrace.stream.loader.accelerated import told_to_accelerate
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import (
    check_epoch,
    check_options,
    dropped_rows,
    first_state,
    make_quarantine,
    next_state,
    plan_pass,
    read_pass,
    resumed_state,
    state_after,
    steps_of,
)
from headrace.stream.loader.rebatched import refuse_sharing_again
from headrace.stream.loader.received import Received, warn_of_repeat
from headrace.stream.order.plan import Plan
from headrace.stream.order.share import Remainder
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.agreement import contract_of
from headrace.stream.ranks.topology import Topology, capture, confirm
from headrace.stream.ranks.watch import Noted, Progress, Watch
from headrace.stream.read.batch import Batch
from headrace.stream.read.cache import CacheCounts, CachedBlocks
from headrace.stream.read.reader import KeptSplit, ReadBlock


class StreamLoader:
    """Batches of one rank, every row of the split exactly once over all ranks, the same number on each.

    Rows come in the global order of the epoch: rank r of R takes the places r, r + R, r + 2R, … of it, batch_size at a
    time. What a batch is: see `batch`. A block that cannot be read raises `CorruptShard`, `InputError` or `StoreError`.
    index: the blocks of the split; read_block: decodes one of them, called in threads.
    topology: this rank; None: found out now (see `topology.capture`). Memory: a pool and what is decoded ahead.
    quarantined: with on_bad_block="quarantine", the rows and blocks that the present pass gave up; else None.
    """

    def __init__(
        self, index: SplitIndex, read_block: ReadBlock, options: StreamOptions, *, topology: Topology | None = None
    ) -> None:
        if options.distribution == "dynamic" and type(self) is StreamLoader:
            raise SettingsError(
                'distribution="dynamic" is for one dataset: headrace.open(...).stream(..., distribution="dynamic");'
                ' use "balanced" here'
            )
        if options.pack is not None:
            raise SettingsError("pack= needs the lengths of all rows: use headrace.open(...).stream(..., pack=)")
        self.index = index
        self.options = options
        self.topology = capture() if topology is None else topology
        self.remainder: Remainder = check_options(index, options, consumers=self.topology.world_size)
        self._read_block = read_block
        self._kept = KeptSplit()
        self._received = Received()
        self.quarantined = make_quarantine(index, options, topology=self.topology, worker=0, workers=0)
        self._begin(first_state(index, options, world_size=self.topology.world_size, workers=0))

    def __repr__(self) -> str:
        rank = f"rank {self.topology.rank} of {self.topology.world_size}"
        batches = f"batches of {self.options.batch_size:,}"
        return f"{type(self).__name__}({self.index.split!r}: {batches}, {rank}, epoch {self.epoch})"

    @property
    def epoch(self) -> int:
        """The epoch of the present pass, or of the last one if that is finished."""
        return self._start.epoch

    @property
    def dropped_rows(self) -> int:
        """Rows that remainder="drop" leaves out of the present pass, over all ranks."""
        return dropped_rows(self._start, self.options, topology=self.topology, workers=0)

    @property
    def cache_counts(self) -> CacheCounts:
        """Blocks mapped from the cache and blocks decoded, in this process so far; see `StreamOptions.cache`."""
        return self._read_block.counts if isinstance(self._read_block, CachedBlocks) else CacheCounts()

    def plan(self) -> Plan:
        """The present pass: steps, rows and bytes of every rank."""
        return plan_pass(self.index, self.options, self._start, topology=self.topology, workers=0)

    def __len__(self) -> int:
        """Batches of a whole pass from where it begins: the epoch, or what a loaded state left of it."""
        confirm(self.topology)
        return steps_of(self._start, self.options, topology=self.topology, workers=0)

    def __iter__(self) -> Iterator[Batch]:
        """A pass, from its beginning. Raises `StreamError` if two passes of one loader are read at a time."""
        confirm(self.topology)
        refuse_sharing_again(self, world_size=self.topology.world_size, caller=sys._getframe(1))
        if self._received.has_ended:
            self._begin(self._epoch_state(self._start.epoch + 1))
        if self.options.shuffle or self._start.samples_per_epoch:
            warn_of_repeat(self._received, self.epoch, of="stream")
        self._received.begin()
        progress = Progress(self.index)
        read_block = Noted(self._read_block, progress.reading)
        self.quarantined = make_quarantine(self.index, self.options, topology=self.topology, worker=0, workers=0)
        steps = len(self)
        watch = Watch(self, self._contract(steps), progress, stall_seconds=self.options.stall_seconds)
        batches = watch.over(self._pass_batches(read_block))
        yield from told_to_accelerate(self._received.counted(batches, epoch=self.epoch, steps=steps), steps=steps)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass this epoch, from its beginning; what a loaded state left of it stays so.

        Raises `SettingsError` unless it is an integer of 0 or more.
        """
        check_epoch(epoch)
        if epoch != self._start.epoch or self._received.has_ended:
            self._begin(self._epoch_state(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the batches handed out so far: JSON, the same on every rank."""
        state = state_after(self._start, self._received.batches, self.options, topology=self.topology, workers=0)
        return state.to_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state, in its order, whatever topology or batch size it was saved with.

        Raises `StreamError` if the state is not of this split, seed and shuffle.
        """
        self._begin(resumed_state(values, self.index, self.options, world_size=self.topology.world_size, workers=0))

    def _contract(self, steps: int | None) -> dict[str, Any]:
        """What every rank must say alike before a pass."""
        return contract_of(
            self.index,
            self._said_options,
            self.state_dict(),
            source=type(self).__name__,
            epoch=self.epoch,
            workers=0,
            remainder=self.remainder,
            steps=steps,
        )

    @property
    def _said_options(self) -> StreamOptions:
        return self.options

    def _pass_batches(self, read_block: ReadBlock) -> Generator[Batch, None, None]:
        """The batches of the present pass."""
        return read_pass(
            self.index,
            read_block,
            self.options,
            self._start,
            topology=self.topology,
            worker=0,
            workers=0,
            quarantine=self.quarantined,
            kept=self._kept,
        )

    def _epoch_state(self, epoch: int) -> StreamState:
        world_size = self.topology.world_size
        return next_state(self._start, epoch, self.index, self.options, world_size=world_size, workers=0)

    def _begin(self, state: StreamState) -> None:
        self._start = state
        self._received.forget()
