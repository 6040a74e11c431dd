"""Describe what a stream reads, and open it as a loader or as a torch dataset.

Rows of a dataset, of a blend, of any `RowSource`, and numbered items all become a `StreamSource`.
The loaders know nothing else about their data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from headrace.dataset.index import SplitIndex
from headrace.stream.loader.by_length import LengthGroups
from headrace.stream.loader.options import RowSource, StreamOptions
from headrace.stream.loader.passes import MakePasses
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology, capture
from headrace.stream.read.batch import import_torch
from headrace.stream.read.reader import ReadBlock
from headrace.stream.workers.options import WorkerOptions

if TYPE_CHECKING:
    from headrace.stream.loader.torch_dataset import StreamingDataset

OpenBlocks: TypeAlias = Callable[[StreamOptions], tuple[SplitIndex, ReadBlock]]


@dataclass(frozen=True, eq=False)
class StreamSource:
    """The blocks that a stream reads, its settings, and how passes are made; None: over
    plain rows.
    """

    index: SplitIndex
    read_block: ReadBlock
    options: StreamOptions
    passes: MakePasses | None = None

    def stream(
        self, *, workers: WorkerOptions, topology: Topology | None, store: Any = None
    ) -> StreamLoader:
        """Create a loader, with worker processes if asked.

        Raises `MissingExtra` for workers without torch.
        """
        options, topology = self._for_ranks(topology)
        if not workers.workers:
            return StreamLoader(
                self.index,
                self.read_block,
                options,
                self.passes,
                topology=topology,
                store=store,
            )
        import_torch()
        from headrace.stream.loader.worker_stream import WorkerStream

        return WorkerStream(
            self.index,
            self.read_block,
            options,
            self.passes,
            workers=workers,
            topology=topology,
            store=store,
        )

    def _for_ranks(self, topology: Topology | None) -> tuple[StreamOptions, Topology | None]:
        """Return the options for these ranks, which are detected now if they decide a size."""
        if self.options.global_batch_size is None:
            return self.options, topology
        if topology is None:
            topology = capture()
        return self.options.for_ranks(topology.world_size), topology

    def torch_dataset(self, *, num_workers: int, topology: Topology | None) -> StreamingDataset:
        """Create a torch dataset of whole batches. Raises `MissingExtra` without torch."""
        import_torch()
        from headrace.stream.loader.torch_dataset import StreamingDataset

        options, topology = self._for_ranks(topology)
        return StreamingDataset(
            self.index,
            self.read_block,
            options,
            self.passes,
            num_workers=num_workers,
            topology=topology,
        )


def row_source(options: StreamOptions) -> RowSource | None:
    """Return the `RowSource` of the options; None for plain rows."""
    if options.grouped_column is not None:
        return LengthGroups.of(options, options.grouped_column)
    return cast("RowSource | None", options.pack)  # a number became a source when it was checked


def source_of_rows(
    open_blocks: OpenBlocks,
    options: StreamOptions,
    *,
    contents: Callable[[], str | None] = lambda: None,
    cache_dir: Path | None = None,
) -> StreamSource:
    """Return the source of a split's rows, by way of the `RowSource` of the options if they name
    one.

    open_blocks: opens the blocks as given options say. contents, cache_dir: see `RowSource`;
    contents is called only if a row source asks for it.
    """
    source = row_source(options)
    if source is None:
        index, read_block = open_blocks(options)
        return StreamSource(index, read_block, options)
    index, read_block = open_blocks(replace(options, packed="off"))
    passes = source.passes_of(index, read_block, options, contents=contents(), cache_dir=cache_dir)
    return StreamSource(index, read_block, options, passes)
