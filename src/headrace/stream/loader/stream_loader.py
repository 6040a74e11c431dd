"""A stream of batches of rows for one rank: this process, and threads that decode ahead."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, TypeAlias

from headrace.arrays import I32
from headrace.dataset.index import SplitIndex
from headrace.errors import SettingsError
from headrace.stream.loader.base import BaseLoader
from headrace.stream.loader.items import ItemIndex, ItemPasses
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import Pass, Passes, Reading, RowPasses
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remainder
from headrace.stream.packed.plan import PackingReport
from headrace.stream.ranks.topology import Topology, capture
from headrace.stream.ranks.watch import Progress, Watch
from headrace.stream.read.batch import Batch
from headrace.stream.read.cache import CacheCounts, CachedBlocks
from headrace.stream.read.memory import ahead_of_the_loop
from headrace.stream.read.quarantine import Quarantine
from headrace.stream.read.reader import ReadBlock
from headrace.stream.read.transform import transformed

_ALIKE = (  # options that are equal on all ranks
    "batch_size", "seed", "shuffle", "samples_per_epoch", "distribution", "batch_format", "lists", "on_bad_block",
)  # fmt: skip
Parts: TypeAlias = tuple[SplitIndex, ReadBlock, StreamOptions, I32 | None]  # the arguments of a `StreamLoader`


class StreamLoader(BaseLoader[Passes, Pass]):
    """Batches of one rank, every row of the split exactly once over all ranks, the same number on each.

    Rows come in the global order of the epoch: rank r of R takes the places r, r + R, r + 2R, … of it, batch_size at a
    time. What a batch is: see `batch`. A block that cannot be read raises `CorruptShard`, `InputError` or `StoreError`.
    index: the blocks of the split; read_block: decodes one of them, called in threads.
    lengths: tokens of every row, int32 [N], where `options.pack` packs rows into bins; each row with tokens is in one.
    store: of torch.distributed, for distribution="dynamic"; None: that of the default group.
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
        store: Any = None,
    ) -> None:
        topology = capture() if topology is None else topology
        passes: Passes
        if isinstance(index, ItemIndex):
            passes = ItemPasses(index, options, topology)
        elif options.pack is not None:
            if lengths is None:
                raise SettingsError("pack= needs the lengths of all rows: use headrace.open(...).stream(..., pack=)")
            from headrace.stream.packed.passes import PackingPasses

            passes = PackingPasses(index, read_block, options, lengths=lengths, topology=topology)
        elif options.distribution == "dynamic":
            from headrace.stream.loader.dynamic.passes import DynamicPasses

            passes = DynamicPasses(index, read_block, options, topology, store)
        else:
            passes = RowPasses(index, read_block, options, topology)
        super().__init__(passes, topology)
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
        """What becomes of the last, incomplete step."""
        return self.passes.remainder

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

    def read(self) -> Generator[Batch, None, None]:
        """The batches of the present pass from its beginning, watched but not counted."""
        progress = self.progress = Progress(self.index)
        watch = self.watch(progress)
        self.quarantined = self.make_quarantine()
        batches = self.present.batches(Reading(progress.noted(self.passes.read_block), self.quarantined, watch.check))
        yield from watch.over(self.delivered(batches))

    def contract(self, *, workers: int = 0) -> dict[str, Any]:
        """What every rank must say alike before the present pass: rows, batches, positions, formats. workers: of a
        DataLoader. Options that only change how fast a rank reads are left out.
        """
        index, options, state = self.index, self.options, self.state_after(0)
        start = state.get("start", state)  # a stream that packs rows nests the state of the rows
        transform: Any = options.transform
        while isinstance(transform, partial):
            transform = transform.func
        if transform is not None and not hasattr(transform, "__qualname__"):
            transform = type(transform)
        return {
            "source": type(self.present).__name__,
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
            "transform": transform
            and f"{transform.__module__}.{transform.__qualname__}",  # ranks have different objects
            "packed": repr(options.packed),
            "pack": repr(options.pack),
            "batches": state.get("batches"),
            "steps": self.present.steps,
            "state": state.get("digest"),
        }

    def watch(self, progress: Progress, *, workers: int = 0) -> Watch:
        """What stands beside a pass: ranks agree on it before, and what stops one rank is known on all."""
        return Watch(self, self.contract(workers=workers), progress, stall_seconds=self.options.stall_seconds)

    def delivered(self, batches: Generator[Batch, None, None]) -> Generator[Any, None, None]:
        """The batches of the present pass as the loop receives them.

        Where they are transformed, pinned or copied to a device, a thread does it ahead of the loop. Batches that need
        none of it are views of a pool, and a thread would cost more than making them.
        """
        options = self.options
        if options.transform is not None:
            name, context = str(self.topology), self.present.context
            batches = transformed(batches, options.transform, reader=name, context=context)
        elif options.memory == "pageable" and options.device is None:
            return batches
        return ahead_of_the_loop(batches, options)

    def make_quarantine(self) -> Quarantine | None:
        """Where a pass puts its bad blocks; None if they raise."""
        if self.options.on_bad_block != "quarantine":
            return None
        return Quarantine(
            index=self.index,
            limit=self.options.quarantine_limit,
            reader=str(self.topology),
            batch_size=self.options.batch_size,
        )

    @property
    def is_shuffled(self) -> bool:
        """Whether every epoch has an order of its own."""
        return bool(self.options.shuffle or self.options.samples_per_epoch)
