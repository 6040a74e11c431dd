"""Open a finished run or plain shards, and stream their splits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Never, Unpack

from headrace.arrays import I64
from headrace.dataset.condition import Filter
from headrace.dataset.entities import entity_column
from headrace.dataset.filtered import FilteredRows, FilterReport
from headrace.dataset.html import table_html
from headrace.dataset.index import Index, SplitIndex
from headrace.dataset.indexed import IndexedDataset, ReadBlock, Verify
from headrace.dataset.local_shards import FileCache, stored_bytes
from headrace.dataset.manifest import Manifest, in_usual_order
from headrace.dataset.open import FinishedRun, Fold, find_run, is_prepared
from headrace.dataset.plain import (
    DeclaredTypes,
    PlainDeclared,
    open_plain,
    refuse_plain_settings,
)
from headrace.dataset.split_rows import SplitRows
from headrace.dataset.tables import with_paths
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.formats.common_schema import Drift
from headrace.formats.decoders import Decoder
from headrace.formats.dialect import PLAIN, TextDialect, dialect_of
from headrace.formats.listing import holds_data, no_data
from headrace.storage.cache_room import cache_directory
from headrace.storage.places import local_path_of, path_of, place_of
from headrace.stream.loader.by_length import LengthGroups
from headrace.stream.loader.options import (
    TOKENS,
    Cache,
    LoopArguments,
    StreamArguments,
    StreamOptions,
    check_options,
    stream_options,
)
from headrace.stream.loader.source import StreamSource, row_source, source_of_rows
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.balance import CountedIndex
from headrace.stream.ranks.topology import Topology, resolve_topology
from headrace.stream.read.batch import import_torch
from headrace.stream.workers.options import split_worker_options

if TYPE_CHECKING:
    from headrace.stream.loader.map import MapDataset
    from headrace.stream.loader.torch_dataset import StreamingDataset


class Dataset(IndexedDataset):
    """Splits that are ready to stream. Created by `headrace.open`; read-only.

    manifest: that of a prepared dataset; None for plain shards.
    """

    def __init__(self, source: IndexedDataset, *, cache_dir: Path | None = None) -> None:
        super().__init__(source.root)
        self._source = source
        self._cache_dir = cache_directory(cache_dir)
        self._file_caches: dict[tuple[Path, int], FileCache] = {}
        if isinstance(source, FinishedRun | Fold):
            self.manifest: Manifest | None = source.manifest
        else:
            self.manifest = None

    def __repr__(self) -> str:
        if isinstance(self._source, FilteredRows | Fold):
            return f"Dataset({str(self.root)!r}: {self._source})"
        if self.manifest is not None and self.manifest.folds:
            count = sum(self.split_rows.values())
            return (
                f"Dataset({str(self.root)!r}: {len(self.manifest.folds)} folds of {count:,} rows)"
            )
        rows = ", ".join(f"{name} {count:,}" for name, count in self.split_rows.items())
        return f"Dataset({str(self.root)!r}: {rows} rows)"

    def _repr_html_(self) -> str:
        """Show splits with their rows and columns with their types in notebooks.

        Reads nothing beyond the index.
        """
        splits = [[name, self.split_rows[name]] for name in in_usual_order(self.split_rows)]
        columns = [
            [field.name, str(field.type), "may hold nulls" if field.nullable else ""]
            for field in self.schema
        ]
        return table_html(f"Dataset {self.root}", ["split", "rows"], splits) + table_html(
            "columns", ["name", "type", ""], columns
        )

    @property
    def index(self) -> Index:
        """The blocks of all splits, with columns and types; do not write to it."""
        return self._source.index

    @property
    def contents(self) -> str:
        """A word that changes whenever the rows may have changed."""
        return self._source.contents

    @property
    def split_rows(self) -> Mapping[str, int]:
        """Rows of each split, by name."""
        return self._source.split_rows

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return self._source.splits

    def split_index(self, split: str | None = None) -> SplitIndex:
        """Return the blocks of a split; see `IndexedDataset.split_index`."""
        return self._source.split_index(split)

    def block_reader(
        self,
        split: str | None = None,
        *,
        verify: Verify = "first_touch",
        files: FileCache | None = None,
        decoder: Decoder = "auto",
    ) -> ReadBlock:
        """Return a function (block number in `split_index`, columns or None) → the block's rows as
        an Arrow table.

        verify, files, decoder: see `IndexedDataset.block_reader`. The function is thread-safe; it
        raises `CorruptShard`, `InputError` or `StoreError`.
        """
        return self._source.block_reader(split, verify=verify, files=files, decoder=decoder)

    def __getitem__(self, split: str) -> SplitRows:
        """Return a split's rows in the order of its shards, for other libraries: `to_polars()`,
        `to_pandas()` …

        Raises `InputError` if there is no such split.
        """
        return SplitRows(self._source, self.split_index(split).split)

    def fold(self, number: int) -> Dataset:
        """Return one fold of a run prepared in folds; it has its own splits:
        `fold(3).stream("train", …)`.

        number: counted from 0. Reads only the index of the run. Raises `SettingsError` if there is
        no such fold.
        """
        if not isinstance(self._source, FinishedRun):
            raise SettingsError(
                f"{self!r} is not a complete prepared run",
                setting="fold",
                remedy="choose the fold first, and filter its rows",
            )
        return Dataset(Fold(self._source, number), cache_dir=self._cache_dir)

    def filter(self, condition: Filter | None) -> Dataset:
        """Return the same splits with only the rows that match a condition; None keeps all rows.

        condition: a pyarrow.compute expression, a list of terms that must all hold, such as [("x",
        ">", 3), ("kind", "in", ["a", "b"])], or a list of such lists, one of which must hold. A
        comparison with null does not match. Blocks that statistics rule out are never read; in the
        others, matching rows are counted when a split is first used.
        Raises `SettingsError` for unknown columns and for values of another type.
        """
        if condition is None:
            return self
        if isinstance(self._source, FilteredRows):
            raise SettingsError(
                f"{self} is filtered already",
                setting="filter",
                remedy="pass both conditions together to one filter",
            )
        filtered = Dataset(
            FilteredRows(self._source, condition, cache_dir=self._cache_dir),
            cache_dir=self._cache_dir,
        )
        filtered.manifest = self.manifest
        return filtered

    def filter_report(self, split: str | None = None) -> FilterReport | None:
        """Report what the filter keeps of a split and how many blocks it skips; None without a
        filter.
        """
        if isinstance(self._source, FilteredRows):
            return self._source.report(split)
        return None

    def stream(  # noqa: PLR0913 - each is said by its name
        self,
        split: str | None = None,
        *,
        batch_size: int | None = None,
        workers: int = 0,
        topology: Topology | None = None,
        mesh: Any = None,
        data_dims: str | Sequence[str] | None = None,
        store: Any = None,
        filter: Filter | None = None,  # noqa: A002 - the name users expect
        **options: Unpack[LoopArguments],
    ) -> StreamLoader:
        """Stream this rank's share of a split: every row exactly once over all ranks, with equal
        steps on each.

        A batch is a dict by column of tensors [batch_size, …] of the column's type, and lists of
        str for text columns; see `stream.batch` for other columns and formats. This process reads,
        in threads.

        split: optional if there is only one.
        workers: processes that run the transform, which needs torch; the batches are the same with
        any number of them. They stay between passes, until the stream is dropped or closed; their
        settings (multiprocessing_context, prefetch_factor, worker_init_fn): see `WorkerOptions`.
        topology: rank and world size; None: detected from torch.distributed, else RANK and
        WORLD_SIZE, else one rank. mesh, data_dims: a torch DeviceMesh, and the names of its
        dimensions that share the rows; processes along the others get the same batches, which
        one of them on each machine reads, see `workers.partners`. store: a torch store for
        distribution="dynamic"; None: that of the process group.
        filter: see `filter`. Options: see `StreamOptions`.
        Raises `SettingsError`, `InputError`, `StreamError`.
        """
        rows = self.filter(filter)
        of_workers, others = split_worker_options(workers, options)
        source = rows._source_of(split, stream_options(batch_size, others))
        resolved = resolve_topology(topology, mesh, data_dims)
        return source.stream(workers=of_workers, topology=resolved, store=store)

    def torch_dataset(  # noqa: PLR0913 - each is said by its name
        self,
        split: str | None = None,
        *,
        batch_size: int | None = None,
        num_workers: int = 0,
        topology: Topology | None = None,
        mesh: Any = None,
        data_dims: str | Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002 - the name users expect
        **options: Unpack[StreamArguments],
    ) -> StreamingDataset:
        """Return the stream as a torch `IterableDataset` of whole batches, for `DataLoader(dataset,
        batch_size=None)`.

        num_workers: that of the DataLoader. topology, mesh, data_dims: see `stream`. filter: see
        `filter`. Raises what `stream` raises, and
        `MissingExtra` without torch.
        """
        import_torch()  # before anything is read
        source = self.filter(filter)._source_of(split, stream_options(batch_size, options))
        resolved = resolve_topology(topology, mesh, data_dims)
        return source.torch_dataset(num_workers=num_workers, topology=resolved)

    def _source_of(self, split: str | None, options: StreamOptions) -> StreamSource:
        options = options.for_splits([(self.root, self.split_index(split))])
        if options.mask_entities:
            options = replace(options, entity_column=entity_column(self, options.entity_column))
        open_blocks = partial(self._open_blocks, split)
        return source_of_rows(
            open_blocks, options, contents=self._contents_if_any, cache_dir=self._cache_dir
        )

    def _open_blocks(
        self, split: str | None, options: StreamOptions
    ) -> tuple[SplitIndex, ReadBlock]:
        index = self.split_index(split)
        if options.cost_model is not None and not options.needs_lengths:
            index = self.counted_index(split, options)
        if options.form is not None:
            index = options.form.index_of(index)
        try:
            options.check_columns(index.schema)
        except InputError as error:  # a column of a type that is not read
            # all shards have the columns, so the first one that holds rows does too
            first = self.root / index.shards[0] if index.shards else self.root
            raise error.at(path=first) from None
        return index, self.reader(split, options)

    def counted_index(
        self, split: str | None = None, options: StreamOptions | None = None
    ) -> CountedIndex:
        """Return the blocks of a split of packed rows with the tokens of each row, which balanced
        steps use as costs.

        Tokens are counted once and cached. options: those of a stream, which decide how blocks are
        read. Raises `SettingsError` if rows are not packed.
        """
        index = self.split_index(split)
        options = (options or StreamOptions(batch_size=1)).for_splits([(self.root, index)])
        if options.form is None:
            raise SettingsError(
                f"{setting_name('balance')} orders packed rows by the cost of their sequences, and"
                " these rows are not packed",
                remedy=(
                    "prepare them with PackedSequences, or leave it out. If they are packed,"
                    f" read them with {setting('packed', 'varlen', 'padded')}"
                ),
            )
        contents = self._contents_if_any()
        return options.form.count(
            index, self.reader(split, options), contents=contents, cache_dir=self._cache_dir
        )

    def count_tokens(self, split: str | None, options: StreamOptions) -> I64:
        """Count the tokens that batches have of each row: int64 [rows].

        Counted once and cached. options: those of a stream, which say where the tokens are. Raises
        `SettingsError` if nothing says it.
        """
        if options.form is not None:
            return self.counted_index(split, options).tokens
        index = self.split_index(split)
        source = row_source(options)
        if source is None and TOKENS not in index.schema.names:
            raise SettingsError(
                "these rows have no such column, so nothing says how many tokens a row has",
                setting="unit",
                value="tokens",
                column=TOKENS,
                remedy=(
                    f"give weights of rows, or name the column of tokens with {setting('pack')} or"
                    f" {setting('group_by_length')}"
                ),
            )
        if source is None:
            source = LengthGroups.of(options, TOKENS)
        return source.count_tokens(
            index,
            self.reader(split, options),
            contents=self._contents_if_any(),
            cache_dir=self._cache_dir,
        )

    def _contents_if_any(self) -> str | None:
        """Return `contents`; None if the dataset has no such word, so rows are counted each
        time.
        """
        try:
            return self.contents
        except SettingsError:
            return None

    def reader(self, split: str | None, options: StreamOptions) -> ReadBlock:
        """Return the block reader of a split, which checks blocks and keeps shards as the stream
        options say.
        """
        base = cache_directory(options.cache_dir)
        files = None
        if options.cache == "files":
            if place_of(self.root).reads == "calls":
                raise SettingsError(
                    f"{setting('cache', 'files')} keeps shards of an object store on a disk, and"
                    " these are on one",
                    path=self.root,
                    remedy="leave it out",
                )
            needed = stored_bytes(self.root, self.split_index(split).shards)
            if needed > options.cache_bytes:  # otherwise only a slow epoch would show it
                warnings.warn(
                    f"{self.root}: cache_bytes is {options.cache_bytes:,}, the shards of this split"
                    f" have {needed:,} bytes; those that do not fit are read from the store in"
                    f" every epoch: set cache_bytes={needed} or more",
                    RuntimeWarning,
                    stacklevel=7,
                )
            # kept for later passes, which need not ask about copies that this process has checked
            key = base / "files", options.cache_bytes
            if key not in self._file_caches:
                self._file_caches[key] = FileCache(*key, self.root)
            files = self._file_caches[key]
            files.try_again()
        read = self.block_reader(split, verify=options.verify, files=files, decoder=options.decoder)
        if options.form is not None:
            read = options.form.blocks(read, root=self.root, index=self.split_index(split))
        return read

    def map_dataset(  # noqa: PLR0913 - all are settings
        self,
        split: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        drop_columns: Sequence[str] | None = None,
        cache_bytes: int = 1 << 30,
        cache: Cache = "none",
        cache_dir: str | Path | None = None,
        disk_bytes: int = 1 << 35,
        filter: Filter | None = None,  # noqa: A002 - the name users expect
    ) -> MapDataset:
        """Return random access to a split's rows, for samplers and data that fits in memory; see
        `MapDataset`.

        drop_columns: the columns to leave out instead of `columns`.
        cache: "files" keeps whole shards of an object store as a stream does, below cache_dir and
        within disk_bytes. Raises `MissingExtra` without torch.
        """
        from headrace.stream.loader.map import MapDataset

        rows = self.filter(filter)
        options = StreamOptions(
            batch_size=1,
            columns=columns,
            drop_columns=drop_columns,
            packed="off",
            cache=cache,
            cache_dir=cache_dir,
            cache_bytes=disk_bytes,
        )
        index = rows.split_index(split)
        options = options.for_splits([(rows.root, index)])
        return MapDataset(
            index,
            rows.reader(split, options),
            columns=options.columns,
            cache_bytes=cache_bytes,
        )


def open_dataset(  # noqa: PLR0913 - the arguments are settings
    path: str | Path | Sequence[str | Path] | Any,
    *,
    run: str | None = None,
    types: DeclaredTypes = None,
    dialect: TextDialect | Mapping[str, Any] | str = PLAIN,
    schema_drift: Drift = "error",
    cache_dir: str | Path | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    **others: Never,
) -> Dataset:
    """Open a prepared dataset or plain shards.

    Plain shards are one split, "all", unless names define splits: directories called train, val or
    test below the path, or files such as train-00000-of-00002.parquet. A directory that
    `save_to_disk` of Hugging Face datasets wrote has the splits and files that it lists. The index
    of the shards is the one that `headrace index` published beside them, if it matches the files.
    Otherwise one process of the machine makes it while others wait.

    path: a directory, a file, a glob or a list of Parquet, Arrow, CSV, TSV or JSON lines files; or
    a table of another library (see `headrace.dataset.tables`), which is written into the cache. Any
    path may be in an object store: s3://, gs:// or az:// (extra of that name), with ambient
    credentials.
    run: the run to open in a dataset directory; None: the newest finished one. A run directory
    opens as itself. cache_dir: where the index is kept and mapped by all processes; None:
    ~/.cache/headrace. on_progress: called with (files examined, files) while the index is made.
    types: for plain CSV and TSV files, types of columns, e.g. {"price": "float32"}, or "text" for
    all of them; the others are numbers, dates or times if every value in all files is one, else
    text. dialect: how those are written; see `TextDialect`, or a mapping of its fields.
    schema_drift: plain shards with different schemas; "widen": columns are matched by name, absent
    ones are null, and each has the smallest type that loses nothing. The log lists how they differ.
    Raises `InputError` if there is nothing to open, `CorruptShard` if a manifest or index is
    damaged.
    """
    check_options(others, ("run", "types", "dialect", "schema_drift", "cache_dir"), "headrace.open")
    declared: PlainDeclared = {
        "types": types,
        "dialect": dialect_of(dialect),
        "schema_drift": schema_drift,
    }
    cache_path = None if cache_dir is None else local_path_of(cache_dir, "cache_dir")
    path = with_paths(path, cache_path)
    if isinstance(path, str | PurePath):
        root = path_of(path)
        if run is not None or _is_for_runs(root):
            refuse_plain_settings(root, **declared)
            return Dataset(FinishedRun(*find_run(root, run), texts="typed"), cache_dir=cache_path)
    elif not hasattr(path, "__iter__"):
        raise SettingsError(
            setting="path", value=path, remedy="give a path, a list of paths, or a table"
        )
    elif run is not None:
        raise SettingsError(
            "it names a run of one dataset directory",
            setting="run",
            value=run,
            remedy="leave it out with a list of files",
        )
    plain = open_plain(path, **declared, cache_dir=cache_dir, on_progress=on_progress)
    return Dataset(plain, cache_dir=cache_path)


def _is_for_runs(root: Path) -> bool:
    """Return whether a path is a prepared dataset, or a directory that holds nothing yet.

    Raises `InputError` if it is neither that nor data.
    """
    if is_prepared(root):
        return True
    if place_of(root).reads != "calls":
        return False
    if not root.exists() and not any(sign in str(root) for sign in "*?["):
        raise InputError(
            "no such file or directory",
            path=root,
            remedy="give a prepared dataset, or a file, directory or glob of shards",
        )
    if not root.is_dir() or holds_data(str(root)):
        return False
    if any(root.iterdir()):
        error = no_data(str(root))
        raise InputError(
            f"holds no finished run, and {error.args[0]}", path=root, remedy=error.marked_remedy
        )
    return True
