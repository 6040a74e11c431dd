"""Accept other libraries' tables as sources, written once to the cache as Parquet named by their
content.

A table is anything that delivers Arrow record batches: objects with `__arrow_c_stream__` (pyarrow,
polars, DuckDB and others), pyarrow datasets, polars lazy frames, pandas frames, Hugging Face and
xarray datasets, and mappings of these by split. It is read once, front to back, with one row group
in memory, and hashed on the way. Everything after this module sees a directory of shards. Its name
and those of its files hold the digest, and its times are fixed, so equal content is the same
source, regardless of chunks and of the library that held it.

The digest covers names, types and values; null differs from empty and from NaN. Text and lists have
one type whatever their offsets, and categories are their values. A copy takes the space of the
table. Deleting it while nobody reads it costs only time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.formats.types import Target

_SHARD_ROWS = 1 << 20
_GROUP_ROWS = 1 << 16
_BATCH_ROWS = 1 << 13  # for libraries that make batches on demand
_LEFTOVER_S = 3600.0  # an older temporary directory belongs to a killed process
_WRITTEN_NS = 946_684_800_000_000_000  # fixed, because times are part of a source's identity
_FRAMES = {
    "pandas": {"DataFrame"},
    "polars": {"LazyFrame"},
    "datasets": {"Dataset", "IterableDataset"},
    "pyarrow": {"Dataset", "FileSystemDataset", "InMemoryDataset", "UnionDataset"},
    "xarray": {"Dataset", "DataArray"},
}


def is_table(value: object) -> bool:
    """Return whether a value is a table, or tables by split, without importing any library."""
    if (tables := _by_split(value)) is not None:
        return bool(tables) and all(
            isinstance(name, str) and is_table(table) for name, table in tables.items()
        )
    return hasattr(value, "__arrow_c_stream__") or _is_frame(value)


def _is_frame(value: object) -> bool:
    cls = type(value)
    names = _FRAMES.get(cls.__module__.partition(".")[0], ())
    return any(base.__name__ in names for base in cls.__mro__)


def _by_split(value: object) -> Mapping[Any, Any] | None:
    """Return a mapping of tables, None for anything else; an xarray dataset is a mapping of its
    variables.
    """
    if isinstance(value, Mapping) and not _is_frame(value):
        return value
    return None


def with_paths(value: Any, cache_dir: str | Path | None = None) -> Any:
    """Replace every table in a value, also inside lists and mappings, by the directory of its
    copy.
    """
    if is_table(value):
        return keep(value, cache_dir)
    if isinstance(value, Mapping):
        return {name: with_paths(item, cache_dir) for name, item in value.items()}
    if isinstance(value, list | tuple) and any(not isinstance(item, int | float) for item in value):
        return [with_paths(item, cache_dir) for item in value]
    return value


def keep(table: object, cache_dir: str | Path | None = None) -> Path:
    """Write a table, or tables by split, into the cache, and return the directory of its shards.

    cache_dir: as for `headrace.open`. Memory is O(row group). Raises `InputError` for tables
    without columns, invalid names of splits, and types that Parquet cannot hold, and `StoreError`.
    """
    from headrace.formats.names import WORDS, is_split_name
    from headrace.storage import local
    from headrace.storage.cache_room import cache_directory

    named = _by_split(table)
    if named is None:
        splits = {"": table}
    else:
        splits = dict(named)
    strange = [name for name in splits if name and not is_split_name(name)]
    if strange or (named is not None and "" in splits):
        raise InputError(
            f"a table is given as {(strange or [''])[0]!r}, which is not the name of a split",
            remedy=f"use {', '.join(WORDS)}, or give one table",
        )
    home = local.make_directory(cache_directory(cache_dir) / "tables")
    temporary = local.make_directory(local.temporary_for(home / "table"))
    try:
        digest = hashlib.sha256()
        files: list[Path] = []
        for split, split_table in sorted(splits.items()):
            digest.update(f"{split}\0".encode())
            files += _write(split_table, local.make_directory(temporary / split), digest)
        word = digest.hexdigest()[:32]
        target = home / f"table-{word}"
        with local.storing(target):
            for file in files:
                os.utime(file, ns=(_WRITTEN_NS, _WRITTEN_NS))
                file.rename(file.with_name(f"{word}-{file.name}"))
            for directory in {file.parent for file in files}:
                local.sync_directory(directory)
            checksums = _checksums(temporary)
            if target.is_dir() and _checksums(target) != checksums:  # not what was written there
                target.rename(going := local.temporary_for(target))
                shutil.rmtree(going, ignore_errors=True)
            if not target.is_dir():
                try:
                    temporary.rename(target)
                except OSError:
                    if not target.is_dir():  # else another process was faster
                        raise
        with suppress(OSError):  # in a cache of another user
            os.utime(target)  # the time of its use
        return target
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _checksums(copy: Path) -> dict[str, str]:
    """Return the checksum of each shard of a copy."""
    from headrace.digest import checksum_file

    result = {}
    for path in sorted(copy.rglob("*.parquet")):
        result[path.relative_to(copy).as_posix()] = checksum_file(path)
    return result


def remove_unused(
    cache_dir: str | Path | None, older_than_s: float
) -> tuple[tuple[Path, ...], int]:
    """Remove copies not opened for `older_than_s` and leftovers of killed writers; return them, and
    their bytes.
    """
    from headrace.storage import local
    from headrace.storage.cache_room import cache_directory
    from headrace.storage.places import place_of

    home = cache_directory(cache_dir) / "tables"
    removed: list[Path] = []
    before = time.time() - older_than_s
    freed_bytes = 0
    for copy in sorted(home.iterdir()) if home.is_dir() else []:
        leftover = (
            copy.name.startswith(local.TEMP_PREFIX)
            and copy.stat().st_mtime < time.time() - _LEFTOVER_S
        )
        if not copy.is_dir() or not (
            leftover or (copy.name.startswith("table-") and copy.stat().st_mtime < before)
        ):
            continue
        going = local.temporary_for(copy)
        with local.storing(copy):
            copy.rename(going)  # atomic: readers see all of it or nothing
        freed_bytes += place_of(going).delete_below() or 0
        removed.append(copy)
    return tuple(removed), freed_bytes


def _write(table: object, directory: Path, digest: Any) -> list[Path]:
    """Write a table as shards of whole row groups, and add its content to a digest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headrace.formats.plain_types import check_read, plain_schema, settled
    from headrace.formats.types import Target
    from headrace.storage.local import created, storing

    schema, batches = _stream(table)
    if not len(schema):
        raise InputError(
            f"a {type(table).__name__} has no columns", remedy="give a table with some"
        )
    check_read(schema, f"a {type(table).__name__}")
    types = [settled(type_) for type_ in plain_schema(schema.names, schema.types).types]
    target = Target.of(pa.schema(list(zip(schema.names, types, strict=True))))
    if len(set(schema.names)) < len(schema):
        raise InputError(
            f"a {type(table).__name__} has a column name twice, among {schema.names}",
            remedy="rename one of them",
        )
    for name, type_ in zip(schema.names, types, strict=True):
        digest.update(f"{name}\0{type_}\0".encode())
    files: list[Path] = []
    groups = _groups(batches)
    group = next(groups, target.schema.empty_table())
    while group is not None:
        path = directory / f"part-{len(files):05d}.parquet"
        with created(path) as file:
            try:
                writer = pq.ParquetWriter(
                    file, target.schema, compression="zstd", write_page_checksum=True
                )
            except pa.ArrowNotImplementedError as error:
                raise InputError(
                    f"a {type(table).__name__} cannot be kept as Parquet ({error})",
                    remedy="convert it",
                ) from error
            with closing(writer), storing(path):
                rows = 0
                while group is not None and rows < _SHARD_ROWS:
                    group = _converted(table, group, target)
                    for chunk in [chunk for column in group.columns for chunk in column.chunks]:
                        _feed(digest, chunk)
                    writer.write_table(group, row_group_size=_GROUP_ROWS)
                    rows += group.num_rows
                    group = next(groups, None)
            with storing(path):
                file.flush()
                os.fsync(file.fileno())
        files.append(path)
    return files


def _converted(table: object, group: pa.Table, target: Target) -> pa.Table:
    import pyarrow as pa

    from headrace.formats.types import in_schema

    try:
        return in_schema(group, target).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise InputError(
            f"a {type(table).__name__} cannot be read as {target.schema}: {error}",
            remedy="give it values of those types",
        ) from error


def _stream(table: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Read a table as record batches, in the order of its rows."""
    import pyarrow as pa

    library = type(table).__module__.partition(".")[0]
    if library == "pandas" and hasattr(table, "columns"):  # a Series has none
        named = [name for name in table.index.names if name is not None]
        try:
            arrow_table = pa.Table.from_pandas(table, preserve_index=bool(named))
        except (pa.ArrowException, ValueError) as error:
            raise InputError(
                f"a {type(table).__name__} does not go into Arrow: {error}",
                remedy="give each column one type, such as with astype(str)",
            ) from error
        return arrow_table.schema, arrow_table.to_batches()
    if library == "datasets":
        tables = table.with_format("arrow").iter(batch_size=_BATCH_ROWS)
        if table.features is None:
            first = next(iter(tables), None)
        else:
            first = table.features.arrow_schema.empty_table()
        if first is None:
            raise InputError(
                f"a {type(table).__name__} has neither features nor rows",
                remedy="give one with rows",
            )
        batches = table.with_format("arrow").iter(batch_size=_BATCH_ROWS)
        return first.schema, (
            batch
            for batch_table in batches
            for batch in batch_table.cast(first.schema).to_batches()
        )
    if library == "xarray":
        from headrace.formats.grids import tables_of_grid

        slices = tables_of_grid(table)
        first = next(slices)
        return first.schema, (
            batch
            for slice_table in (first, *slices)
            for batch in slice_table.cast(first.schema).to_batches()
        )
    if library == "polars" and not hasattr(table, "__arrow_c_stream__"):
        schema = table.limit(0).collect().to_arrow().schema
        frames = table.collect_batches(maintain_order=True)
        return schema, (batch for frame in frames for batch in frame.to_arrow().to_batches())
    if library == "pyarrow" and hasattr(table, "scanner"):
        reader = table.scanner().to_reader()
    else:
        try:
            reader = pa.RecordBatchReader.from_stream(table)
        except pa.ArrowInvalid as error:  # a column alone, such as a Series
            raise InputError(
                f"a {type(table).__name__} is not a table: {error}",
                remedy="give a table with columns",
            ) from error
    return reader.schema, reader


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Regroup batches into row groups."""
    import pyarrow as pa

    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        begin = 0
        while rows + len(batch) - begin >= _GROUP_ROWS:
            end = begin + _GROUP_ROWS - rows
            yield pa.Table.from_batches([*pending, batch.slice(begin, end - begin)])
            pending = []
            rows = 0
            begin = end
        if begin < len(batch):
            pending.append(batch.slice(begin))
            rows += len(batch) - begin
    if rows:
        yield pa.Table.from_batches(pending)


def _feed(digest: Any, values: pa.Array) -> None:
    """Add the values of an array to a digest: which are valid, and their values, ignoring bytes
    under nulls.
    """
    import numpy as np
    import pyarrow as pa

    type_ = values.type
    digest.update(b"%d\0" % len(values))
    if values.null_count:
        digest.update(np.packbits(values.is_valid().to_numpy(zero_copy_only=False)))
    if pa.types.is_null(type_) or not len(values):
        return
    if pa.types.is_struct(type_):
        for field in values.flatten():
            _feed(digest, field)
    elif pa.types.is_map(type_):
        key = pa.field("key", type_.key_type, nullable=False)
        entries = pa.struct([key, pa.field("value", type_.item_type)])
        _feed_lists(digest, values.cast(pa.list_(entries)))
    elif pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        _feed_lists(digest, values)
    elif (
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
    ):
        _feed_texts(digest, values)
    else:
        _feed_fixed_width(digest, values)


def _feed_lists(digest: Any, values: pa.Array) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    digest.update(pc.fill_null(pc.list_value_length(values), 0).cast(pa.int64()).to_numpy())
    _feed(digest, values.flatten())


def _feed_texts(digest: Any, values: pa.Array) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = values.cast(pa.binary()).cast(pa.large_binary())
    if texts.null_count:
        texts = pc.fill_null(texts, b"")
    offsets = np.frombuffer(texts.buffers()[1], np.int64)
    offsets = offsets[texts.offset : texts.offset + len(texts) + 1]
    digest.update(np.diff(offsets))
    if len(offsets) and texts.buffers()[2] is not None:
        digest.update(memoryview(texts.buffers()[2])[int(offsets[0]) : int(offsets[-1])])


def _feed_fixed_width(digest: Any, values: pa.Array) -> None:
    import numpy as np
    import pyarrow as pa

    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    elif pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    width = values.type.bit_width // 8
    data = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * width :]
    data = data[: len(values) * width]
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        data = np.where(np.repeat(valid, width), data, 0).astype(np.uint8)
    digest.update(data)
