"""What `headrace.open` returns: a finished run or plain shards, and the streams over their splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from headrace.dataset.index import Index
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import Manifest
from headrace.dataset.open import FinishedRun, find_run, is_prepared
from headrace.dataset.plain import open_plain
from headrace.errors import InputError, MissingExtra, SettingsError
from headrace.formats.detect import kind_of_name
from headrace.stream.loader import StreamLoader
from headrace.stream.options import StreamArguments, StreamOptions
from headrace.stream.topology import Topology

if TYPE_CHECKING:
    from headrace.stream.map import MapDataset
    from headrace.stream.torch import StreamingDataset


class Dataset(IndexedDataset):
    """Splits ready to be streamed. Made by `headrace.open`; read-only.

    manifest: of a prepared dataset; None for plain shards.
    """

    def __init__(self, source: IndexedDataset) -> None:
        super().__init__(source.root)
        self._source = source
        self.manifest: Manifest | None = source.manifest if isinstance(source, FinishedRun) else None

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {count:,}" for name, count in self.split_rows.items())
        return f"Dataset({str(self.root)!r}: {rows} rows)"

    @property
    def index(self) -> Index:
        """All blocks."""
        return self._source.index

    @property
    def split_rows(self) -> Mapping[str, int]:
        """Rows of each split."""
        return self._source.split_rows

    def stream(
        self,
        split: str | None = None,
        *,
        batch_size: int,
        topology: Topology | None = None,
        **options: Unpack[StreamArguments],
    ) -> StreamLoader:
        """Batches of this rank's share of a split: every row exactly once over all ranks, equal steps on each.

        split: may be left out where there is only one. One process and threads; rank and world size are found out
        (torch.distributed, else RANK and WORLD_SIZE, else one rank) unless `topology` says. Options: see
        `StreamOptions`. Raises `SettingsError`, `InputError`, `StreamError`.
        """
        index = self.split_index(split)
        return StreamLoader(
            index, self.block_reader(split), StreamOptions(batch_size=batch_size, **options), topology=topology
        )

    def torch_dataset(
        self,
        split: str | None = None,
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
        self, split: str | None = None, *, columns: Sequence[str] | None = None, cache_bytes: int = 1 << 30
    ) -> MapDataset:
        """Random access to a split's rows, for samplers and data that fits in memory; see `MapDataset`.

        Raises `MissingExtra` without torch.
        """
        from headrace.stream.map import MapDataset

        return MapDataset(self.split_index(split), self.block_reader(split), columns=columns, cache_bytes=cache_bytes)


def open_dataset(
    path: str | Path | Sequence[str | Path],
    *,
    run: str | None = None,
    types: Mapping[str, str] | None = None,
    null_values: Sequence[str] = (),
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Open a prepared dataset, or plain shards: a directory, a file, a glob or a list of Parquet, CSV, TSV, JSON lines.

    Of a dataset directory the newest finished run, or the one named by `run`; a run directory is opened itself.
    Plain shards are one split, "all"; the index made of them is kept in `cache_dir` (None: ~/.cache/headrace).
    types, null_values: what columns of plain CSV and TSV files are, e.g. {"price": "float32"}; text otherwise.
    Raises `InputError` if there is nothing to open, `CorruptShard` if a manifest or index is damaged.
    """
    if isinstance(path, str | Path):
        root = Path(path).expanduser()
        empty = root.is_dir() and not any(kind_of_name(each.name) for each in root.iterdir() if each.is_file())
        if run is not None or is_prepared(root) or empty:
            if types or null_values:
                raise SettingsError(
                    f"{root}: types= and null_values= are for plain text shards; this is a prepared dataset, declare"
                    " them when preparing"
                )
            return Dataset(FinishedRun(*find_run(root, run)))
        if not root.exists() and not any(sign in str(path) for sign in "*?["):
            raise InputError(
                f"{root}: no such file or directory; give a prepared dataset, or a file, directory or glob of shards"
            )
    elif run is not None:
        raise SettingsError(f"run={run!r} names a run of one dataset directory; leave it out with a list of files")
    return Dataset(open_plain(path, types=types, null_values=null_values, cache_dir=cache_dir))
