"""What `headrace.open` returns: a finished run, and the streams over its splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from headrace.dataset.open import FinishedRun, find_run
from headrace.errors import MissingExtra
from headrace.stream.loader import StreamLoader
from headrace.stream.options import StreamArguments, StreamOptions
from headrace.stream.topology import Topology

if TYPE_CHECKING:
    from headrace.stream.map import MapDataset
    from headrace.stream.torch import StreamingDataset


class Dataset(FinishedRun):
    """A finished run, ready to be streamed. Made by `headrace.open`; read-only."""

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {totals.rows:,}" for name, totals in self.manifest.splits.items())
        return f"Dataset({str(self.root)!r}: {rows} rows)"

    def stream(
        self, split: str, *, batch_size: int, topology: Topology | None = None, **options: Unpack[StreamArguments]
    ) -> StreamLoader:
        """Batches of this rank's share of a split: every row exactly once over all ranks, equal steps on each.

        One process and threads; rank and world size are found out (torch.distributed, else RANK and WORLD_SIZE, else
        one rank) unless `topology` says. Options: see `StreamOptions`. Raises `SettingsError`, `InputError`,
        `StreamError`.
        """
        index = self.split_index(split)
        return StreamLoader(
            index, self.block_reader(split), StreamOptions(batch_size=batch_size, **options), topology=topology
        )

    def torch_dataset(
        self,
        split: str,
        *,
        batch_size: int,
        num_workers: int = 0,
        topology: Topology | None = None,
        **options: Unpack[StreamArguments],
    ) -> StreamingDataset:
        """The same as a torch `IterableDataset` of whole batches, for `DataLoader(dataset, batch_size=None)`.

        num_workers: that of the DataLoader. Raises `MissingExtra` without torch.
        """
        try:
            from headrace.stream.torch import StreamingDataset
        except ImportError as error:
            raise MissingExtra("torch", "torch") from error
        return StreamingDataset(
            self.split_index(split),
            self.block_reader(split),
            StreamOptions(batch_size=batch_size, **options),
            num_workers=num_workers,
            topology=topology,
        )

    def map_dataset(
        self, split: str, *, columns: Sequence[str] | None = None, cache_bytes: int = 1 << 30
    ) -> MapDataset:
        """Random access to a split's rows, for samplers and data that fits in memory; see `MapDataset`.

        Raises `MissingExtra` without torch.
        """
        from headrace.stream.map import MapDataset

        return MapDataset(self.split_index(split), self.block_reader(split), columns=columns, cache_bytes=cache_bytes)


def open_dataset(path: str | Path, *, run: str | None = None) -> Dataset:
    """Open the newest finished run of a dataset directory (or the one named by `run`), or a run directory itself.

    Raises `InputError` if there is no finished run, `CorruptShard` if its manifest or index is damaged.
    """
    return Dataset(*find_run(path, run))
