"""What a stream is made of, whether of one dataset or of a blend, and the loaders that are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.arrays import I32
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology

if TYPE_CHECKING:
    from headrace.stream.loader.torch_dataset import StreamingDataset


@dataclass(frozen=True)
class Parts:
    """The blocks of a split, what reads them, and the options with packed= decided.

    lengths: tokens of every row, int32 [N], where rows are packed while they are streamed; else None.
    """

    index: SplitIndex
    read_block: ReadBlock
    options: StreamOptions
    lengths: I32 | None = None


def loader_of(parts: Parts, topology: Topology | None) -> StreamLoader:
    """Batches of one rank, in this process. Raises `SettingsError` for options that cannot work together."""
    read = parts.index, parts.read_block, parts.options
    if parts.lengths is None:
        return StreamLoader(*read, topology=topology)
    from headrace.stream.packed.loader import PackingLoader

    return PackingLoader(*read, lengths=parts.lengths, topology=topology)


def torch_dataset_of(parts: Parts, *, num_workers: int, topology: Topology | None) -> StreamingDataset:
    """The same for a DataLoader. Raises `MissingExtra` without torch."""
    from headrace.stream.loader.torch_dataset import StreamingDataset

    read = parts.index, parts.read_block, parts.options
    if parts.lengths is None:
        return StreamingDataset(*read, num_workers=num_workers, topology=topology)
    from headrace.stream.packed.torch_dataset import PackingDataset

    return PackingDataset(*read, lengths=parts.lengths, num_workers=num_workers, topology=topology)
