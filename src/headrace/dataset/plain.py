"""Shards that nobody prepared: files of Parquet, CSV, TSV or JSON lines, indexed when opened.

One split, called "all", or the splits that names of directories and files tell (train, val, test …). The index is built
in parallel – footers for Parquet, one scan for text – and kept in a cache directory under a name made of the files'
names, sizes and times, so a changed file gives a new index. The cache only saves time: where it cannot be written or
read, the index is built again.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.dataset.index import Index, SplitIndex, parse_index, read_index
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.plain_index import ALL, OnProgress, build
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import default_workers
from headrace.errors import CorruptShard, InputError, SettingsError, StoreError
from headrace.formats.detect import kind_of_name
from headrace.formats.headless import REMEDY, is_headless
from headrace.formats.listing import Listing, list_files
from headrace.formats.named_splits import in_order, partition_columns
from headrace.formats.schema import few, type_named
from headrace.formats.source import told_empty
from headrace.printable import printable
from headrace.storage.local import make_directory, write_new
from headrace.storage.remote_path import local_path_of

_INDEX_VERSION = 5
log = logging.getLogger("headrace")


class PlainDataset(IndexedDataset):
    """Plain shards, read-only; made by `open_plain`."""

    def __init__(
        self,
        listing: Listing,
        index: Index,
        contents: str,
        splits: Sequence[str],
        empty_shards: Sequence[str] = (),
    ) -> None:
        super().__init__(listing.root)
        self._listing = listing
        self._index = index
        self._split_rows = _split_rows(index, splits)
        self._contents = contents
        self._empty_shards = tuple(empty_shards)

    @property
    def index(self) -> Index:
        """All blocks."""
        return self._index

    @property
    def contents(self) -> str:
        """A digest of the files' names, sizes and times, and of what their columns were said to be."""
        return self._contents

    def _indexed_as(self, index: SplitIndex) -> I64 | None:
        places = {name: place for place, name in enumerate(self._listing.names)}
        order = [places[name] for name in index.shards]
        return np.stack([self._listing.sizes[order], self._listing.mtimes_ns[order]], axis=1)

    @property
    def empty_shards(self) -> tuple[str, ...]:
        """Names of the files that have no rows, sorted."""
        return self._empty_shards

    @property
    def split_rows(self) -> Mapping[str, int]:
        """Rows of each split: of every row, where names tell no splits."""
        return self._split_rows


def _split_rows(index: Index, splits: Sequence[str]) -> dict[str, int]:
    """Rows of each of the splits, which may have none, in the order given."""
    counted = index.table.group_by("split").aggregate([("rows", "sum")])
    rows = dict(zip(counted["split"].to_pylist(), counted["rows_sum"].to_pylist(), strict=True))
    return {split: int(rows.get(split, 0)) for split in splits}


def default_cache() -> Path:
    """Where indexes are kept unless the caller says otherwise."""
    try:
        return Path.home() / ".cache" / "headrace"
    except RuntimeError:
        raise SettingsError(
            "the cache of indexes has no place: this user has no home directory; set HOME, or give cache_dir"
            " (--cache-dir)"
        ) from None


def cache_directory(asked: str | Path | None, setting: str = "cache_dir") -> Path:
    """The directory that the caller named, or the default one. Raises `SettingsError` for one that is not local."""
    return default_cache() if asked is None else local_path_of(asked, setting)


def open_plain(
    source: str | Path | Sequence[str | Path],
    *,
    types: Mapping[str, str] | None = None,
    null_values: Sequence[str] = (),
    cache_dir: str | Path | None = None,
    workers: int | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> PlainDataset:
    """Open a directory, a file, a glob, or a list of them.

    Of one directory or glob, the splits are those that names tell (see `formats.named_splits`), where they do.
    types: of columns of CSV and TSV files, which are text otherwise; null_values: texts that mean null in those.
    on_progress: hears (files looked at, files) while an index is built.
    Files without rows are skipped, and the log names them. Raises `InputError` if a file cannot be read,
    the files differ in their columns, or none holds anything; `SettingsError` on unknown types.
    """
    entries = [source] if isinstance(source, str | Path) else list(source)
    if not entries:
        raise InputError("open: the list of files is empty; give at least one file, directory or pattern")
    kinds = {name: type_named(word) for name, word in (types or {}).items()}
    listing = list_files(entries, splits="keep")
    asked = [listing.splits, dict(sorted((types or {}).items())), list(null_values)]
    key = sha256_hex(canonical_json([_INDEX_VERSION, listing.digest, asked]))
    cached = cache_directory(cache_dir) / f"index-{key}.parquet"
    with suppress(CorruptShard):  # a file that is missing or damaged is made again
        return _opened(listing, read_index(cached), key)
    data = build(listing, kinds, tuple(null_values), workers or default_workers(), on_progress)
    with suppress(StoreError, CorruptShard, OSError):
        make_directory(cached.parent)
        cached.unlink(missing_ok=True)
        write_new(cached, data, sync="none")
    return _opened(listing, parse_index(data), key)


def _opened(listing: Listing, index: Index, contents: str) -> PlainDataset:
    names = index.schema.names
    kind = kind_of_name(listing.names[0])
    if kind is not None and kind.format in ("csv", "tsv") and is_headless(names):
        file = listing.path(0)
        text = f"{file}: its first line, {few(names)}, was taken for names of columns and looks like data; {REMEDY}"
        warnings.warn(printable(text), UserWarning, stacklevel=3)
    lost = [name for name in partition_columns(listing.names) if name not in names]
    if lost:
        text = (
            f"{listing.root}: names of directories say {few(lost)}, and the files do not; it is not read: write it into"
            " the files if it is needed"
        )
        warnings.warn(printable(text), UserWarning, stacklevel=3)
    holding = set(pc.unique(index.table["shard"]).to_pylist())
    empty = [name for name in listing.names if name not in holding] if len(holding) < len(listing.names) else []
    if empty:
        log.warning("%s", printable(told_empty(empty, len(listing.names), "files")))
    return PlainDataset(listing, index, contents, in_order(listing.splits) or [ALL], empty)
