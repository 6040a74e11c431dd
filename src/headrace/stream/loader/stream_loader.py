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
from typing import Any, TypeAlias

from headrace.arrays import I32
from headrace.checks import check_integer
from headrace.dataset.index import SplitIndex
from headrace.errors import SettingsError
from headrace.sealed import MOST_EPOCHS
from headrace.stream.loader.accelerated import told_to_accelerate
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import Pass, Passes, RowPasses, reader_name
from headrace.stream.loader.rebatched import refuse_sharing_again
from headrace.stream.loader.received import Received, warn_of_repeat
from headrace.stream.order.plan import Plan
from headrace.stream.order.share import Remainder
from headrace.stream.packed.plan import PackingReport
from headrace.stream.ranks.beginnings import Agreement, agreement, contract_of
from headrace.stream.ranks.progress import Noted, Progress
from headrace.stream.ranks.stall import Said
from headrace.stream.ranks.topology import Topology, capture, confirm
from headrace.stream.ranks.watch import Watch
from headrace.stream.read.batch import Batch
from headrace.stream.read.cache import CacheCounts, CachedBlocks
from headrace.stream.read.memory import pinned_batches
from headrace.stream.read.quarantine import Quarantine
from headrace.stream.read.reader import ReadBlock
from headrace.stream.read.transform import transformed

Parts: TypeAlias = tuple[SplitIndex, ReadBlock, StreamOptions, I32 | None]  # the arguments of a `StreamLoader`


class StreamLoader:
    """Batches of one rank, every row of the split exactly once over all ranks, the same number on each.

    Rows come in the global order of the epoch: rank r of R takes the places r, r + R, r + 2R, … of it, batch_size at a
    time. What a batch is: see `batch`. A block that cannot be read raises `CorruptShard`, `InputError` or `StoreError`.
    index: the blocks of the split; read_block: decodes one of them, called in threads.
    lengths: tokens of every row, int32 [N], where `options.pack` packs rows into bins; each row with tokens is in one.
    topology: this rank; None: found out now (see `topology.capture`). Memory: a pool and what is decoded ahead.
    quarantined: with on_bad_block="quarantine", the rows and blocks that the present pass gave up; else None.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        lengths: I32 | None = None,
        *,
        topology: Topology | None = None,
    ) -> None:
        self.topology = capture() if topology is None else topology
        self.passes = passes_of(index, read_block, options, lengths=lengths, topology=self.topology)
        self._received, self._said = Received(), Said()
        self.quarantined = self.make_quarantine()
        self._begin(self.passes.begin(0))

    def __repr__(self) -> str:
        batches = f"batches of {self.options.batch_size:,}"
        return (
            f"{type(self).__name__}({self.index.split!r}: {batches}, {reader_name(self.topology)}, epoch {self.epoch})"
        )

    @property
    def index(self) -> SplitIndex:
        """The blocks that are read."""
        return self.passes.index

    @property
    def options(self) -> StreamOptions:
        """The settings of the stream."""
        return self.passes.options

    @property
    def remainder(self) -> Remainder:
        """What becomes of the last, incomplete step."""
        return self.passes.remainder

    @property
    def epoch(self) -> int:
        """The epoch of the present pass, or of the last one if that is finished."""
        return self.present.epoch

    @property
    def present(self) -> Pass:
        """The present pass, or the last one if that is finished."""
        return self._present

    @property
    def received(self) -> int:
        """Batches that the loop received since the present pass began."""
        return self._received.batches

    @property
    def partial_epoch(self) -> bool:
        """Whether the present pass is what a loaded state left of an epoch."""
        return self.present.is_partial

    @property
    def dropped_rows(self) -> int:
        """Rows that nobody receives in the present pass, over all ranks: what "drop", or packing, leaves out."""
        return self.present.dropped_rows

    @property
    def cache_counts(self) -> CacheCounts:
        """Blocks mapped from the cache and blocks decoded, in this process so far; see `StreamOptions.cache`."""
        read_block = self.passes.read_block
        return read_block.counts if isinstance(read_block, CachedBlocks) else CacheCounts()

    def plan(self) -> Plan:
        """The present pass: steps, rows and bytes of every rank."""
        return self.present.plan()

    def report(self) -> PackingReport:
        """The present pass in numbers, over all ranks. Raises `SettingsError` where rows are not packed."""
        report = getattr(self.present, "report", None)
        if report is None:
            raise SettingsError("report: it is of rows that are packed while they are streamed; set pack=")
        found: PackingReport = report()
        return found

    def __len__(self) -> int:
        """Batches of a whole pass from where it begins: the epoch, or what a loaded state left of it."""
        confirm(self.topology)
        return self.present.steps

    def __iter__(self) -> Iterator[Batch]:
        """A pass, from its beginning. Raises `StreamError` if two passes of one loader are read at a time."""
        confirm(self.topology)
        refuse_sharing_again(self, world_size=self.topology.world_size, caller=sys._getframe(1))
        self.begin_next()
        self.warn_of_repeat()
        progress = Progress()
        self.quarantined = self.make_quarantine()
        batches = self.present.batches(Noted(self.passes.read_block, progress.reading), quarantine=self.quarantined)
        yield from self.counted(self.watch(progress).over(self.delivered(batches)))

    def begin_next(self) -> None:
        """Go on to the next epoch if the last pass was taken to its end."""
        if self._received.has_ended:
            self._begin(self.passes.begin(self.epoch + 1, self.present))

    def counted(self, batches: Generator[Batch, None, None]) -> Iterator[Batch]:
        """The batches of the present pass from its beginning, counted as the loop receives them."""
        self._received.begin()
        steps = self.present.steps
        return told_to_accelerate(self._received.counted(batches, epoch=self.epoch, steps=steps), steps=steps)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass this epoch, from its beginning; what a loaded state left of it stays so.

        Raises `SettingsError` unless it is an integer of 0 or more.
        """
        check_integer("epoch", epoch, least=0, most=MOST_EPOCHS)
        if epoch != self.epoch or self._received.has_ended:
            self._begin(self.passes.begin(epoch, self.present))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the batches handed out so far: JSON, the same on every rank."""
        return self.state_after(self._received.batches)

    def state_after(self, batches: int) -> dict[str, Any]:
        """The state after so many batches of the present pass on every rank. Raises `StreamError` beyond its end."""
        return self.present.state_after(batches)

    def epoch_start(self) -> dict[str, Any]:
        """The state at the beginning of the present epoch, in the order that the stream has now."""
        return self.passes.whole(self.present).state_after(0)

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state, whatever ranks or batch size it was saved with.

        Raises `StreamError` if the state is not of this split, seed and shuffle.
        """
        self._begin(self.passes.resume(values))

    def agreement(self, *, workers: int = 0) -> Agreement | None:
        """What ranks compare before the present pass; None on one rank. workers: of a DataLoader."""
        contract = contract_of(
            self.index,
            self.options,
            self.state_after(0),
            source=type(self.present).__name__,
            epoch=self.epoch,
            workers=workers,
            remainder=self.remainder,
            steps=self.present.steps,
        )
        return agreement(self.topology, self, contract)

    def watch(self, progress: Progress, *, workers: int = 0) -> Watch:
        """What stands beside a pass: ranks agree on it before, and what stops one rank is known on all."""
        return Watch(
            self.index,
            self.topology,
            progress,
            epoch=self.epoch,
            stall_seconds=self.options.stall_seconds,
            agree=self.agreement(workers=workers),
            said=self._said,
        )

    def delivered(self, batches: Generator[Batch, None, None]) -> Generator[Any, None, None]:
        """The batches as the loop receives them: transformed, and in pinned memory, if the options ask for it."""
        if self.options.transform is not None:
            batches = transformed(batches, self.options.transform, reader=reader_name(self.topology))
        return pinned_batches(batches) if self.options.memory == "pinned" else batches

    def make_quarantine(self) -> Quarantine | None:
        """Where a pass puts its bad blocks; None if they raise."""
        if self.options.on_bad_block != "quarantine":
            return None
        return Quarantine(
            index=self.index,
            limit=self.options.quarantine_limit,
            reader=reader_name(self.topology),
            batch_size=self.options.batch_size,
        )

    def warn_of_repeat(self) -> None:
        """Warn where a pass was left inside and begins again in the same order."""
        if self.options.shuffle or self.options.samples_per_epoch:
            warn_of_repeat(self._received, self.epoch, of="stream")

    def _begin(self, present: Pass) -> None:
        self._present = present
        self._received.forget()


def passes_of(
    index: SplitIndex, read_block: ReadBlock, options: StreamOptions, *, lengths: I32 | None, topology: Topology
) -> Passes:
    """Passes over the rows of a split as they are, or packed. Raises `SettingsError` for options without their data."""
    if options.distribution == "dynamic":
        raise SettingsError(
            'distribution="dynamic" is for one dataset in the process of its rank, without DataLoader workers:'
            ' headrace.open(...).stream(..., distribution="dynamic"); use "balanced" here'
        )
    if options.pack is None:
        return RowPasses(index, read_block, options, topology)
    if lengths is None:
        raise SettingsError("pack= needs the lengths of all rows: use headrace.open(...).stream(..., pack=)")
    from headrace.stream.packed.passes import PackingPasses

    return PackingPasses(index, read_block, options, lengths=lengths, topology=topology)
