"""A stream of batches for one rank: this process, and threads that decode ahead.

An epoch is a pass over everything, as in a torch loop:

- `set_epoch(e)` makes the next pass epoch e; a pass that is taken to its end is followed by the next epoch by itself.
- A new iterator before the end begins the same pass again, so that looking at one batch on one rank moves nothing.
- `load_state_dict` makes the next pass the rest of an epoch; `set_epoch` with that same epoch keeps it so. The state of
  an epoch's end gives an empty pass, as there is nothing left of it.

Batches are counted as they are received, so that a state says what the loop has, and not what was made ahead for it.
Two passes of one loader that are read by turns would be one count of both: the older one raises instead. What a pass is
made of is the business of its source, see `passes`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from headrace.checks import check_integer
from headrace.dataset.index import SplitIndex
from headrace.errors import SettingsError, StreamError
from headrace.sealed import MOST_EPOCHS
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import MakePasses, Pass, Passes, Reading, RowPasses
from headrace.stream.loader.rebatched import refuse_sharing_again, told_to_accelerate
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remainder
from headrace.stream.ranks.stats import Progress, StreamStats
from headrace.stream.ranks.topology import Topology, capture, confirm
from headrace.stream.ranks.watch import Watch
from headrace.stream.read.batch import Batch
from headrace.stream.read.cache import CacheCounts, CachedBlocks
from headrace.stream.read.memory import ahead_of_the_loop
from headrace.stream.read.quarantine import Quarantine
from headrace.stream.read.reader import ReadBlock
from headrace.stream.read.transform import name_of, transformed

if TYPE_CHECKING:
    from headrace.packing.on_the_fly.settings import PackingReport

log = logging.getLogger("headrace")

_ALIKE = (  # options that are equal on all ranks
    "batch_size", "seed", "shuffle", "samples_per_epoch", "distribution", "batch_format", "lists", "on_bad_block",
)  # fmt: skip
Given = TypeVar("Given")
Parts: TypeAlias = tuple[SplitIndex, ReadBlock, StreamOptions, MakePasses | None]  # the arguments of a `StreamLoader`


class Received:
    """Counts the batches of its present pass that a loader has handed out. batches: received since that pass began.

    has_ended: whether the last batch of the pass was received, after which the next pass is another one. is_over:
    whether the loop has also asked for more and been told that there is none.
    """

    def __init__(self) -> None:
        self._pass = 0
        self.has_warned = False
        self.forget()

    def forget(self) -> None:
        """The next pass begins elsewhere; one that is under way is not counted any more, and raises."""
        self.begin()
        self.has_ended = self.is_over = False

    def begin(self) -> None:
        """A pass begins now, from its beginning: none of it was received."""
        self._pass += 1
        self.batches = 0

    def counted(
        self, batches: Generator[Given, None, None], *, epoch: int, steps: int | None = None
    ) -> Generator[Given, None, None]:
        """The batches of the pass that began last, counted as they are received, and closed with this generator.

        steps: how many they will be, so that the last one ends the pass: a loop that knows len() may never ask for
        more. None: nobody knows yet. Raises `StreamError` at the next batch after `begin` or `forget`.
        """
        counted = self._pass
        with closing(batches):
            for batch in batches:
                if counted != self._pass:
                    raise StreamError(
                        f"epoch {epoch}: a newer pass of this stream has begun, and one state cannot count two;"
                        " finish one before the next, or make a second stream"
                    )
                self.batches += 1
                self.has_ended = self.batches == steps
                yield batch
        if counted == self._pass:
            self.has_ended = self.is_over = True


class StreamLoader:
    """Batches of one rank, every row of the split exactly once over all ranks, the same number on each.

    Rows come in the global order of the epoch: rank r of R takes the places r, r + R, r + 2R, … of it, batch_size at a
    time. What a batch is: see `batch`. A block that cannot be read raises `CorruptShard`, `InputError` or `StoreError`.
    index: the blocks of the split; read_block: decodes one of them, called in threads.
    passes: makes the passes where they are not over rows, but over bins that `pack=` makes of rows, or over items.
    store: of torch.distributed, for distribution="dynamic"; None: that of the default group.
    topology: this rank; None: found out now (see `topology.capture`). Memory: a pool and what is decoded ahead.
    quarantined: with on_bad_block="quarantine", the rows and blocks that the present pass gave up; else None.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        passes: MakePasses | None = None,
        *,
        topology: Topology | None = None,
        store: Any = None,
    ) -> None:
        self.topology = capture() if topology is None else topology
        self.passes: Passes
        if passes is not None:
            self.passes = passes(index, read_block, options, self.topology)
        elif options.source is not None:
            raise SettingsError("pack= needs the lengths of all rows: use headrace.open(...).stream(..., pack=)")
        elif options.distribution == "dynamic":
            from headrace.stream.loader.dynamic import DynamicPasses

            self.passes = DynamicPasses(index, read_block, options, self.topology, store)
        else:
            self.passes = RowPasses(index, read_block, options, self.topology)
        self._received = Received()
        self._begin(self.passes.begin(0))
        self.quarantined = self.make_quarantine()

    def __repr__(self) -> str:
        batches = f"batches of {self.options.batch_size:,}"
        return f"{type(self).__name__}({self.index.split!r}: {batches}, {self.topology}, epoch {self.epoch})"

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
        """The rule for the last, incomplete step."""
        return self.passes.remainder

    @property
    def is_shuffled(self) -> bool:
        """True if every epoch has an order of its own."""
        return bool(self.options.shuffle or self.options.samples_per_epoch)

    @property
    def present(self) -> Pass:
        """The present pass, or the last one if that is finished."""
        return self._present

    @property
    def epoch(self) -> int:
        """The epoch of the present pass, or of the last one if that is finished."""
        return self._present.epoch

    @property
    def partial_epoch(self) -> bool:
        """True if the present pass is what a loaded state left of an epoch."""
        return self._present.is_partial

    @property
    def dropped_rows(self) -> int:
        """Rows that nobody receives in the present pass, over all ranks: what "drop", or packing, leaves out."""
        return self._present.dropped_rows

    @property
    def received(self) -> int:
        """Batches that the loop received since the present pass began."""
        return self._received.batches

    @property
    def cache_counts(self) -> CacheCounts:
        """Blocks mapped from the cache and blocks decoded, in this process so far; see `StreamOptions.cache`."""
        read_block = self.passes.read_block
        return read_block.counts if isinstance(read_block, CachedBlocks) else CacheCounts()

    def __len__(self) -> int:
        """Batches of a whole pass from where it begins: the epoch, or what a loaded state left of it."""
        confirm(self.topology)
        if self._present.steps is None:
            raise TypeError(
                'distribution="dynamic": how many batches there are is known when the last block is claimed'
            )
        return self._present.steps

    def plan(self) -> Plan:
        """Return the present pass: steps, rows and bytes of every rank."""
        return self.present.plan()

    def report(self) -> PackingReport:
        """Return the present pass in numbers, over all ranks. Raises `SettingsError` where rows are not packed."""
        report = getattr(self._present, "report", None)
        if report is None:
            raise SettingsError("report: it is of rows that are packed while they are streamed; set pack=")
        found: PackingReport = report()
        return found

    def stats(self) -> StreamStats:
        """Return what the present pass, or the last one, has cost its loop so far: seconds, rows, blocks read."""
        return self.progress.stats(self._present.rows_after(self.progress.steps))

    def __iter__(self) -> Iterator[Batch]:
        """A pass, from its beginning. Raises `StreamError` if two passes of one loader are read at a time."""
        confirm(self.topology)
        refuse_sharing_again(self, world_size=self.topology.world_size, caller=sys._getframe(1))
        self.begin_next()
        self.warn_of_repeat()
        yield from self.counted(self.read())

    def read(self) -> Generator[Batch, None, None]:
        """The batches of the present pass from its beginning, watched but not counted."""
        progress = self.progress = Progress(self.index)
        watch = self.watch(progress)
        self.quarantined = self.make_quarantine()
        reading = Reading(progress.noted(self.passes.read_block), self.quarantined, watch.check)
        yield from watch.over(self.delivered(self._present.batches(reading)))

    def counted(self, batches: Generator[Given, None, None], *, steps: int | None = None) -> Iterator[Given]:
        """The batches of the present pass from its beginning, counted as the loop receives them.

        steps: how many there are; None: the batches of the pass.
        """
        self._received.begin()
        steps = self._present.steps if steps is None else steps
        return told_to_accelerate(self._received.counted(batches, epoch=self.epoch, steps=steps), steps=steps)

    def begin_next(self) -> None:
        """Go on to the next epoch if the last pass was taken to its end."""
        if self._received.has_ended:
            self._begin(self.passes.begin(self.epoch + 1, self._present))

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass this epoch, from its beginning; what a loaded state left of it stays so.

        Raises `SettingsError` unless it is an integer of 0 or more.
        """
        check_integer("epoch", epoch, least=0, most=MOST_EPOCHS)
        if epoch != self.epoch or self._received.has_ended:
            self._begin(self.passes.begin(epoch, self._present))

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is after the batches handed out so far: JSON, the same on every rank."""
        return self.state_after(self._received.batches)

    def state_after(self, batches: int) -> dict[str, Any]:
        """Return the state after so many batches of the present pass on every rank.

        Raises `StreamError` beyond its end.
        """
        return self._present.state_after(batches)

    def epoch_start(self) -> dict[str, Any]:
        """Return the state at the beginning of the present epoch, in the order that the stream has now."""
        return self.passes.whole(self._present).state_after(0)

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state, whatever ranks or batch size it was saved with.

        Raises `StreamError` if the state is not of these data, this seed and shuffle.
        """
        self._begin(self.passes.resume(values))

    def contract(self, *, workers: int = 0) -> dict[str, Any]:
        """Return what every rank must say alike before the present pass: rows, batches, positions. workers: of a
        DataLoader. Options that only change how fast a rank reads are left out.
        """
        index, options, state = self.index, self.options, self._present.state_after(0)
        start = state.get("start", state)  # a stream that packs rows nests the state of the rows
        return {
            "source": type(self._present).__name__,
            "split": index.split,
            "index": index.identity,
            "rows": index.total_rows,
            "filter": index.condition,
            "num_workers": workers,
            "remainder": self.remainder,
            "epoch": self.epoch,
            **{name: getattr(options, name) for name in _ALIKE},
            **{name: start.get(name) for name in ("position", "lanes", "window_rows")},
            "columns": list(index.schema.names if options.columns is None else options.columns),
            "transform": options.transform and name_of(options.transform),  # ranks have different objects
            "mask": options.mask_digest,
            "packed": repr(options.packed),
            "pack": repr(options.pack),
            "batches": state.get("batches"),
            "steps": self._present.steps,
            "state": state.get("digest"),
        }

    def watch(self, progress: Progress, *, workers: int = 0) -> Watch:
        """Return what stands beside a pass: ranks agree before, and what stops one rank is known on all."""
        return Watch(self, self.contract(workers=workers), progress, stall_seconds=self.options.stall_seconds)

    def delivered(self, batches: Generator[Batch, None, None]) -> Generator[Any, None, None]:
        """The batches of the present pass as the loop receives them.

        Where they are transformed, pinned or copied to a device, a thread does it ahead of the loop. Batches that need
        none of it are views of a pool, and a thread would cost more than making them.
        """
        options = self.options
        if options.transform is not None:
            name, context = str(self.topology), self._present.context
            batches = transformed(batches, options.transform, reader=name, context=context)
        elif options.memory == "pageable" and options.device is None:
            return batches
        return ahead_of_the_loop(batches, options)

    def make_quarantine(self) -> Quarantine | None:
        """Make the place where a pass puts its bad blocks; None if they raise."""
        if self.options.on_bad_block != "quarantine":
            return None
        return Quarantine(
            index=self.index,
            limit=self.options.quarantine_limit,
            reader=str(self.topology),
            batch_size=self.options.batch_size,
        )

    def warn_of_repeat(self) -> None:
        """Warn, once, where a pass was left inside and begins again in the same order; one batch is but a look."""
        received = self._received
        if not self.is_shuffled or received.has_warned or received.has_ended or received.batches < 2:
            return
        received.has_warned = True
        log.warning(
            "epoch %d: was left after %d batches and begins again, with the same batches; for another order call"
            " set_epoch(epoch) before each loop over the stream, for the rest load_state_dict(state_dict())",
            self.epoch,
            received.batches,
        )

    def _begin(self, present: Pass) -> None:
        self._present = present
        self.progress = Progress()
        self._received.forget()
