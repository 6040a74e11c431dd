"""Open Parquet files for reading, and keep their footers between blocks.

Reading and parsing a footer costs up to half of reading a narrow row group. With a known footer,
opening a file costs less than a hundredth of decoding a row group of all columns. The footer of a
local file is read again if device, inode, size or times of the file have changed.

In a store, the footer is one request, for the last 64 KiB of the object. The byte ranges of a row
group's columns are known from it; near ones are merged, and several are fetched at a time, so a
block costs one request or a few. Arrow then decodes from memory, on the calling thread. Every
response must carry the footer's tag: an object that was replaced is an error.

Footers of a process take at most 64 MiB; the least recently used are dropped first.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import InputError
from headrace.formats.detect import open_bytes
from headrace.formats.registry import FileType
from headrace.formats.shard import Pages, column_name
from headrace.storage.place import Fact
from headrace.storage.places import place_of

Stamp = tuple[int, int, int, int, int]

_TAIL = 64 << 10
_MOST_FOOTER_BYTES = 64 << 20
_FOOTER_GROWTH = 4  # a parsed footer takes a few times its bytes
_SLACK = 100  # bytes that some old writers left out of a column's length


@dataclass(frozen=True, eq=False)
class Footer:
    """The footer of one version of a file. raw: headrace's column names → the file's own."""

    version: Stamp | Fact
    metadata: pq.FileMetaData
    raw: dict[str, str]

    @property
    def size(self) -> int:
        """The memory used, in bytes, roughly."""
        return int(self.metadata.serialized_size) * _FOOTER_GROWTH


class _Kept:
    """Footers of one process, by path. Thread-safe."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.footers: OrderedDict[str, Footer] = OrderedDict()
        self.bytes = 0

    def get(self, path: str) -> Footer | None:
        with self.lock:
            if path in self.footers:
                self.footers.move_to_end(path)
            return self.footers.get(path)

    def keep(self, path: str, footer: Footer) -> None:
        self.drop(path)
        with self.lock:
            self.footers[path] = footer
            self.bytes += footer.size
            while self.bytes > _MOST_FOOTER_BYTES and len(self.footers) > 1:
                self.bytes -= self.footers.popitem(last=False)[1].size

    def drop(self, path: str) -> None:
        with self.lock:
            before = self.footers.pop(path, None)
            if before is None:
                self.bytes -= 0
            else:
                self.bytes -= before.size


_kept = _Kept()


def forget() -> None:
    """Drop all footers; a forked child calls this, because the parent's lock may be held there."""
    global _kept
    _kept = _Kept()


os.register_at_fork(after_in_child=forget)


def stamp_of(path: Path) -> Stamp:
    """Identify the version of a local file. Raises `FileNotFoundError`."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def fact_of(path: Path) -> Fact:
    """Return the facts of an object as of its footer, which is fetched on this process's first
    request.
    """
    version = _footer(path).version
    assert isinstance(version, Fact)
    return version


def key_values(path: Path, file_type: FileType) -> dict[bytes, bytes]:
    """Read the key-value metadata of a file."""
    with open_file(path, file_type) as file:
        return dict(file.metadata.metadata or {})


def open_file(
    path: Path,
    file_type: FileType,
    pages: Pages = "check",
    *,
    footer: pq.FileMetaData | None = None,
    coded: Sequence[str] = (),
) -> pq.ParquetFile:
    """Open a Parquet file, local or in a store, maybe compressed as a whole.

    Raises `InputError` if it is not one.

    pages: "check" verifies the checksums of pages that have them; "trust" is for bytes that were
    verified otherwise. footer: of a local file, if known. coded: text columns to be read as
    dictionaries, by the file's names.
    """
    with _parquet_errors(path):
        if file_type.compression != "none":
            with open_bytes(path, file_type.compression) as stream:
                return _file(pa.BufferReader(stream.read()), None, pages, coded)
        if place_of(path).reads == "calls":
            return _file(str(path), footer, pages, coded)
    fetched = _fetched_footer(path)
    assert isinstance(fetched.version, Fact)
    source = pa.PythonFile(place_of(path).open(fetched.version), mode="r")
    # fetches a row group's columns together
    return _file(source, fetched.metadata, pages, coded, pre_buffer=True)


def read_group(
    path: Path,
    file_type: FileType,
    group: int,
    columns: Sequence[str],
    pages: Pages,
    content: pa.Buffer | None = None,
) -> pa.Table:
    """Read the named columns of one row group, in that order; decoded on the calling thread.

    content: the bytes of the file, if they are in memory.

    Raises what Arrow raises for a damaged file, and `InputError` if it is not a Parquet file.
    """
    if file_type.compression != "none":
        with open_file(path, file_type, pages) as file:
            raw = _raw_names(file.schema_arrow)
            return _group(file, group, [raw[name] for name in columns], columns)
    footer = _footer(path)
    fact = footer.version
    try:
        file_names = [footer.raw[name] for name in columns]
        source: Any = str(path)
        if content is not None:
            source = pa.BufferReader(content)
        elif isinstance(fact, Fact):  # fetch the bytes that are needed
            if group >= footer.metadata.num_row_groups:
                raise pa.ArrowInvalid(f"it has {footer.metadata.num_row_groups} row groups")
            chunks = place_of(path).read_pieces(
                _column_ranges(footer.metadata, fact.size, group, file_names), fact
            )
            source = pa.PythonFile(place_of(path).open(fact, chunks), mode="r")
        with _file(source, footer.metadata, pages) as file:
            return _group(file, group, file_names, columns)
    except BaseException:
        _kept.drop(str(path))  # read the footer again after any error
        raise


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Convert errors of Arrow and the system about this file to `InputError`, except
    `FileNotFoundError`.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(
            f"is not a complete Parquet file ({error}); the file is cut or damaged, fetch it again",
            path=path,
        ) from error


def _file(
    source: Any,
    footer: pq.FileMetaData | None,
    pages: Pages,
    coded: Sequence[str] = (),
    *,
    pre_buffer: bool = False,
) -> pq.ParquetFile:
    return pq.ParquetFile(
        source,
        metadata=footer,
        page_checksum_verification=pages == "check",
        pre_buffer=pre_buffer,
        read_dictionary=list(coded),
        # Spark writes times as INT96. Arrow would convert them to nanoseconds, which wrap around:
        # 9999-12-31 becomes 1816-03-29.
        coerce_int96_timestamp_unit="us",
    )


def _raw_names(schema: pa.Schema) -> dict[str, str]:
    return {column_name(raw): raw for raw in schema.names}


def _group(
    file: pq.ParquetFile, group: int, file_names: list[str], columns: Sequence[str]
) -> pa.Table:
    table = file.read_row_group(group, columns=file_names, use_threads=False)
    if table.column_names != file_names:  # the file's order
        table = table.select(file_names)
    if file_names == list(columns):
        return table
    return table.rename_columns(list(columns))


def _footer(path: Path) -> Footer:
    known = _kept.get(str(path))
    if place_of(path).reads == "requests":
        return known or _fetched_footer(path)
    stamp = stamp_of(path)
    if known is not None and known.version == stamp:
        return known
    with open_file(path, FileType.named("parquet")) as file:
        footer = Footer(stamp, file.metadata, _raw_names(file.schema_arrow))
    _kept.keep(str(path), footer)
    return footer


def _fetched_footer(path: Path) -> Footer:
    fact, tail = place_of(path).tail(_TAIL)
    with _parquet_errors(path):
        # the rest on demand
        metadata = pq.read_metadata(
            pa.PythonFile(place_of(path).open(fact, [(fact.size - len(tail), tail)]), mode="r")
        )
    footer = Footer(fact, metadata, _raw_names(metadata.schema.to_arrow_schema()))
    _kept.keep(str(path), footer)
    return footer


def _column_ranges(
    metadata: pq.FileMetaData, size: int, group: int, file_names: Sequence[str]
) -> list[tuple[int, int]]:
    """List [start, stop) of every chunk of the named columns in a row group."""
    row_group = metadata.row_group(group)
    ranges = []
    for index in range(row_group.num_columns):
        chunk = row_group.column(index)
        name = chunk.path_in_schema
        if not any(name == column or name.startswith(f"{column}.") for column in file_names):
            continue
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        ranges.append((start, min(size, start + chunk.total_compressed_size + _SLACK)))
    return ranges
