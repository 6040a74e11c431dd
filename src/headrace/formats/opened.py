"""Parquet files that stay open between blocks.

Opening a file costs about a tenth of decoding a row group: the footer is read and parsed, its schema is made an Arrow
one. A reader that is not in use is kept for the next block of its file, 64 of them in a process, least recently used
first out; of more files than that the footers are kept. Two threads never share a reader. A file that was replaced or
changed is opened again: device, inode, size and modification time must be those it was opened with.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.delimited import column_name
from headrace.formats.detect import Kind, open_bytes
from headrace.formats.remote_parquet import open_remote
from headrace.formats.whole import INT96_UNIT, Pages, whole_parquet
from headrace.storage.places import place_of

Stamp = tuple[int, int, int, int, int]

_MOST_IDLE = 64
_MOST_FOOTER_BYTES = 16 << 20
_FOOTER_GROWTH = 4  # a parsed footer takes a few times its bytes


@dataclass(frozen=True, eq=False)
class OpenParquet:
    """An open file. raw: headrace's column names → the file's own."""

    file: pq.ParquetFile
    raw: dict[str, str]
    stamp: Stamp

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """The columns of one row group, named as asked; decoded on the calling thread."""
        own = [self.raw[name] for name in columns]
        table = self.file.read_row_group(group, columns=own, use_threads=False)
        if table.column_names != own:  # the file's order
            table = table.select(own)
        return table if own == list(columns) else table.rename_columns(list(columns))


class _Idle:
    """Readers that nobody uses now, and footers, of one process."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.readers: OrderedDict[tuple[str, Pages, int], OpenParquet] = OrderedDict()
        self.footers: OrderedDict[str, tuple[Stamp, pq.FileMetaData]] = OrderedDict()
        self.footer_bytes = 0
        self.given = 0

    def take(self, path: str, pages: Pages, stamp: Stamp) -> OpenParquet | None:
        with self.lock:
            for key in [each for each in self.readers if each[0] == path and each[1] == pages]:
                reader = self.readers.pop(key)
                if reader.stamp == stamp:
                    return reader
        return None

    def give(self, path: str, pages: Pages, reader: OpenParquet) -> None:
        with self.lock:
            self.given += 1
            self.readers[path, pages, self.given] = reader
            if len(self.readers) > _MOST_IDLE:
                self.readers.popitem(last=False)

    def footer(self, path: str, stamp: Stamp) -> pq.FileMetaData | None:
        with self.lock:
            found = self.footers.get(path)
            if found is None or found[0] != stamp:
                return None
            self.footers.move_to_end(path)
            return found[1]

    def keep_footer(self, path: str, stamp: Stamp, footer: pq.FileMetaData) -> None:
        with self.lock:
            before = self.footers.pop(path, None)
            self.footer_bytes -= 0 if before is None else before[1].serialized_size * _FOOTER_GROWTH
            self.footers[path] = stamp, footer
            self.footer_bytes += footer.serialized_size * _FOOTER_GROWTH
            while self.footer_bytes > _MOST_FOOTER_BYTES:
                _, (_, oldest) = self.footers.popitem(last=False)
                self.footer_bytes -= oldest.serialized_size * _FOOTER_GROWTH


_idle = _Idle()


def _forget() -> None:
    """A forked child opens its own files: a lock or a reader of the parent may be in the middle of something."""
    global _idle
    _idle = _Idle()


os.register_at_fork(after_in_child=_forget)


def stamp_of(path: Path) -> Stamp:
    """What tells whether a file is still the one that was looked at. Raises `FileNotFoundError`."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@contextmanager
def opened(path: Path, kind: Kind, pages: Pages = "check") -> Iterator[OpenParquet]:
    """A reader of the file for this thread alone, kept for the next block if nothing is raised.

    pages: "check" verifies the checksums of pages that have them; "trust" is for bytes that were verified otherwise.
    A file compressed as a whole is decompressed into memory and not kept, nor is an object of a store.
    Raises `InputError` if it is no Parquet file.
    """
    if kind.compression != "none" or place_of(path).reads == "requests":
        with open_file(path, kind) as file:
            yield OpenParquet(file, _names(file), (0, 0, 0, 0, 0))
        return
    idle, name, stamp = _idle, str(path), stamp_of(path)
    reader = idle.take(name, pages, stamp)
    if reader is None:
        file = open_file(path, kind, pages, idle.footer(name, stamp))
        reader = OpenParquet(file, _names(file), stamp)
        idle.keep_footer(name, stamp, file.metadata)
    try:
        yield reader
    except BaseException:
        with suppress(OSError):
            reader.file.close()
        raise
    idle.give(name, pages, reader)


def open_file(
    path: Path,
    kind: Kind,
    pages: Pages = "check",
    footer: pq.FileMetaData | None = None,
    coded: Sequence[str] = (),
) -> pq.ParquetFile:
    """A Parquet file that may be compressed as a whole. Raises `InputError` if it is none.

    coded: columns of text to be read as dictionaries, by the file's names. Nothing is buffered ahead: a reader would
    keep the bytes of its last row group for as long as it is kept.
    """
    options: dict[str, Any] = {
        "page_checksum_verification": pages == "check",
        "pre_buffer": False,
        "read_dictionary": list(coded),
        "coerce_int96_timestamp_unit": INT96_UNIT,
    }
    if kind.compression == "none" and place_of(path).reads == "requests":
        return open_remote(path, pages=pages, coded=coded)
    with whole_parquet(path):
        if kind.compression == "none":
            return pq.ParquetFile(str(path), metadata=footer, **options)
        with open_bytes(path, kind.compression) as stream:
            return pq.ParquetFile(pa.BufferReader(stream.read()), **options)


def _names(file: pq.ParquetFile) -> dict[str, str]:
    return {column_name(each): each for each in file.schema_arrow.names}
