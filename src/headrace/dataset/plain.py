"""Shards that nobody prepared: files of Parquet, CSV, TSV or JSON lines, indexed when opened.

One split, called "all". The index is built in parallel – footers for Parquet, one scan for text – and kept in a cache
directory under a name made of the files' names, sizes and times, so a changed file gives a new index. The cache only
saves time: where it cannot be written or read, the index is built again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.dataset.index import Index, IndexRow, index_bytes, parse_index, read_index
from headrace.dataset.indexed import IndexedDataset
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, InputError, SettingsError, StoreError
from headrace.formats.scan import Span, scan
from headrace.formats.schema import type_named
from headrace.formats.shard import Shard
from headrace.formats.source import common_schema, find_files, survey
from headrace.storage.local import make_directory, write_new

ALL = "all"
_INDEX_VERSION = 1
_Stat = tuple[int, int]


class PlainDataset(IndexedDataset):
    """Plain shards, read-only; made by `open_plain`."""

    def __init__(self, root: Path, index: Index) -> None:
        super().__init__(root)
        self._index = index

    @property
    def index(self) -> Index:
        """All blocks."""
        return self._index

    @property
    def split_rows(self) -> Mapping[str, int]:
        """One split, of every row."""
        return {ALL: int(sum(self._index.table["rows"].to_pylist()))}


def default_cache() -> Path:
    """Where indexes are kept unless the caller says otherwise."""
    return Path.home() / ".cache" / "headrace"


def open_plain(
    source: str | Path | Sequence[str | Path],
    *,
    types: Mapping[str, str] | None = None,
    null_values: Sequence[str] = (),
    cache_dir: str | Path | None = None,
    workers: int | None = None,
) -> PlainDataset:
    """Open a directory, a file, a glob, or a list of them.

    types: of columns of CSV and TSV files, which are text otherwise; null_values: texts that mean null in those.
    Raises `InputError` if a file cannot be read or the files differ in their columns, `SettingsError` on unknown types.
    """
    entries = [source] if isinstance(source, str | Path) else list(source)
    if not entries:
        raise InputError("open: the list of files is empty; give at least one file, directory or pattern")
    kinds = {name: type_named(word) for name, word in (types or {}).items()}
    files = find_files(entries)
    root = Path(str(files[0][0]).removesuffix(files[0][1]))
    stats = [_stat(path) for path, _ in files]
    asked = [dict(sorted((types or {}).items())), list(null_values)]
    names = [[name, *stat] for (_, name), stat in zip(files, stats, strict=True)]
    key = sha256_hex(canonical_json([_INDEX_VERSION, str(root), names, asked]))
    cached = (default_cache() if cache_dir is None else Path(cache_dir)) / f"index-{key}.parquet"
    with suppress(CorruptShard):  # a file that is missing or damaged is made again
        return PlainDataset(root, read_index(cached))
    data = _build(files, stats, kinds, tuple(null_values), workers or default_workers())
    with suppress(StoreError, CorruptShard, OSError):
        make_directory(cached.parent)
        cached.unlink(missing_ok=True)
        write_new(cached, data, sync="none")
    return PlainDataset(root, parse_index(data))


def _stat(path: Path) -> _Stat:
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions") from error
    return stat.st_size, stat.st_mtime_ns


def _build(
    files: Sequence[tuple[Path, str]],
    stats: Sequence[_Stat],
    kinds: Mapping[str, pa.DataType],
    null_values: Sequence[str],
    workers: int,
) -> bytes:
    """The index of these files as bytes, each file looked at in a thread of its own."""

    def task(path: Path, name: str, stat: _Stat) -> Callable[[], tuple[Shard, list[Span]]]:
        def look() -> tuple[Shard, list[Span]]:
            shard = replace(survey(path, name), size=stat[0], mtime_ns=stat[1])
            return shard, scan(shard)

        return look

    tasks = [task(path, name, stat) for (path, name), stat in zip(files, stats, strict=True)]
    found = run_tasks(tasks, workers)
    shards = [_declared(shard, kinds) for shard, _ in found]
    text = {name for shard in shards if shard.dialect is not None for name in shard.schema.names}
    unknown = sorted(set(kinds) - text)
    if unknown:
        raise SettingsError(
            f"types: {unknown[0]!r} is no column of a CSV or TSV file; those have {sorted(text) or 'no columns'}"
        )
    holding = [shard for shard in shards if len(shard.schema)]  # a JSON file without rows says nothing of columns
    schema = common_schema(holding or shards, "error")
    rows = [
        row for shard, spans in zip(shards, (spans for _, spans in found), strict=True) for row in _rows(shard, spans)
    ]
    return index_bytes(rows, schema, null_values)


def _declared(shard: Shard, kinds: Mapping[str, pa.DataType]) -> Shard:
    """The shard with the declared types of its text columns."""
    if shard.dialect is None:
        return shard
    return replace(shard, schema=pa.schema([(each.name, kinds.get(each.name, each.type)) for each in shard.schema]))


def _rows(shard: Shard, spans: Sequence[Span]) -> list[IndexRow]:
    rows, first_row = [], 0
    for span in spans:
        rows.append(
            IndexRow(
                split=ALL,
                shard=shard.name,
                format=shard.kind.extension.removeprefix("."),
                block=span.block,
                first_row=first_row,
                rows=span.rows,
                offset=span.offset,
                length=span.length,
                digest="",
                source_shard=shard.name,
                key_min=None,
                key_max=None,
            )
        )
        first_row += span.rows
    return rows
