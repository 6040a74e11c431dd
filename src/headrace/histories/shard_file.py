"""Write and read shards of rows: ArrayRecord files of one row per record, or Arrow files to be
memory-mapped.

ArrayRecord files are uncompressed with groups of one record, which suits random access. Writer
options are fixed, so the same rows give the same bytes. Arrow files have the row's facts as columns
beside its blob. A record batch ends with the row that brings it to 8 MiB or to 4,096 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U8, offsets_from_lengths
from headrace.digest import digest_file
from headrace.errors import CorruptShard, MissingExtra
from headrace.formats.write import HashingFile, Written
from headrace.gate import RESTORE
from headrace.gate.arrow import ArrowFile, mapped_file
from headrace.gate.mapped import Mapped
from headrace.histories.codec.rows import Encoded
from headrace.storage.local import failed, storing

EXTENSION = {"array_record": ".array_record", "arrow": ".arrow"}
ROW_SCHEMA = pa.schema(
    [
        pa.field("src_id", pa.string(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("n_measurements", pa.int64(), nullable=False),
        pa.field("first_time", pa.int64(), nullable=False),
        pa.field("last_time", pa.int64(), nullable=False),
        pa.field("measurements", pa.large_binary(), nullable=False),
    ]
)
_OPTIONS = "group_size:1,uncompressed,max_parallelism:1"
_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 4096


FACTS_SCHEMA = pa.schema([*list(ROW_SCHEMA)[:-1], pa.field("bytes", pa.int64(), nullable=False)])


def open_shard(path: Path, format_: str) -> _ArrowFile | _ArrayRecordFile:
    """Open a new shard under a temporary name.

    Raises `MissingExtra` without the array-record package.

    Its `write` takes the next rows by their indices, and their facts, of `FACTS_SCHEMA`. `finish`
    closes the file; then `batches` has the number of rows of each part that can be read alone.
    """
    if format_ == "arrow":
        return _ArrowFile(path)
    return _ArrayRecordFile(path)


@dataclass(frozen=True)
class Blobs:
    """Rows that were read together.

    data: their blobs end to end, uint8. sizes: int64 [R], bytes of each.
    """

    data: U8
    sizes: I64


@dataclass(frozen=True, kw_only=True)
class ReadLimit:
    """Limits of one read: rows, and bytes unless a single row has more."""

    rows: int
    bytes: int

    def cut(self, sizes: I64) -> list[tuple[int, int]]:
        """Cut rows of these sizes into reads, as (first row, last row + 1) of each."""
        ends = offsets_from_lengths(sizes)
        reads = []
        first = 0
        while first < len(sizes):
            fitting = int(np.searchsorted(ends, ends[first] + self.bytes, side="right")) - 1
            last = max(first + 1, min(fitting, first + self.rows))
            reads.append((first, last))
            first = last
        return reads


READ_LIMIT = ReadLimit(rows=8192, bytes=2 << 20)


def read_blobs(
    path: Path, expected: I64 | None = None, limit: ReadLimit = READ_LIMIT
) -> Iterator[Blobs]:
    """Read the rows of a shard of either format, many at a time.

    Raises `CorruptShard` if it cannot be read.

    expected: bytes of the rows that the shard should have, so that no read exceeds the limit when a
    few rows are large. Without it, reads have that size on average. If a row cannot be read, those
    before it are yielded first.
    """
    if path.name.endswith(EXTENSION["arrow"]):
        yield from _read_arrow(path, limit)
        return
    reader = open_array_record(path, max_parallelism=1)
    try:
        # a truncated file opens as one without records
        if not reader.ok() or not reader.num_records():
            raise unreadable(path, ValueError("it has no records"))
        rows = reader.num_records()
        average = -(-path.stat().st_size // rows)
        sizes = np.full(rows, average, np.int64)
        if expected is not None:
            sizes[: len(expected)] = expected[:rows]
        for first, last in limit.cut(sizes):
            yield from _read(reader, path, first, last)
    finally:
        with suppress(RuntimeError):  # closing a damaged file raises again
            reader.close()


def _read(reader: Any, path: Path, first: int, last: int) -> Iterator[Blobs]:
    """Read rows of an ArrayRecord file together; if one of them cannot be read, those before it one
    by one.
    """
    try:
        blobs = reader.read(first, last)  # one call costs as much as a hundred small rows
    except (ValueError, RuntimeError, OSError, IndexError) as error:
        if last - first == 1:
            raise unreadable(path, error) from error
        for row in range(first, last):
            yield from _read(reader, path, row, row + 1)
    else:
        sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
        yield Blobs(np.frombuffer(b"".join(blobs), np.uint8), sizes)


class _ArrayRecordFile:
    def __init__(self, path: Path) -> None:
        module = _array_record()
        self._path = path
        with storing(path):
            # raises clear errors of permission or space; the library does not
            path.touch(exist_ok=False)
        self._writer = module.ArrayRecordWriter(str(path), _OPTIONS)

    def write(self, metadata: pa.RecordBatch, encoded: Encoded, rows: I64) -> None:  # noqa: ARG002 - blobs contain them
        try:
            for blob in encoded.blobs(rows):
                self._writer.write(blob)
        except RuntimeError as error:
            raise failed(self._path, error) from error

    def finish(self, rows: int) -> Written:
        self.close()
        self.batches = [rows]
        digest = digest_file(self._path)
        return Written(rows, self._path.stat().st_size, digest.sha256, (), digest.checksum)

    def close(self) -> None:
        try:
            self._writer.close()
        except RuntimeError as error:
            raise failed(self._path, error) from error


class _ArrowFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = HashingFile(path)
        self._writer = pa.ipc.new_file(self._file, ROW_SCHEMA)
        self._metadata: list[pa.RecordBatch] = []
        self._blobs: list[pa.LargeBinaryArray] = []
        self.batches: list[int] = []
        self._bytes = 0

    def write(self, metadata: pa.RecordBatch, encoded: Encoded, rows: I64) -> None:
        blobs = encoded.column(rows)
        ends = offsets_from_lengths(encoded.offsets[rows + 1] - encoded.offsets[rows])
        start = 0
        while start < len(rows):
            room = _BATCH_ROWS - sum(map(len, self._blobs))
            free = ends[start] + _BATCH_BYTES - self._bytes
            full = start + 1 + int(np.searchsorted(ends[start + 1 :], free))
            stop = min(start + room, full, len(rows))
            self._metadata.append(metadata.slice(start, stop - start))
            self._blobs.append(blobs.slice(start, stop - start))
            self._bytes += int(ends[stop] - ends[start])
            if stop in (start + room, full):
                self._flush()
            start = stop
        if self._blobs:  # the other rows need not stay in memory
            self._blobs = [
                pa.concat_arrays(self._blobs).take(pa.array(np.arange(sum(map(len, self._blobs)))))
            ]

    def finish(self, rows: int) -> Written:
        if self._blobs:
            self._flush()
        self.close()
        return self._file.holding(rows)

    def close(self) -> None:
        with storing(self._path):
            self._writer.close()
            self._file.close()

    def _flush(self) -> None:
        metadata = pa.Table.from_batches(self._metadata).drop_columns("bytes").combine_chunks()
        columns = [metadata.column(name).chunk(0) for name in metadata.column_names]
        batch = pa.record_batch([*columns, pa.concat_arrays(self._blobs)], schema=ROW_SCHEMA)
        with storing(self._path):
            self._writer.write_batch(batch)
        self.batches.append(len(batch))
        self._metadata = []
        self._blobs = []
        self._bytes = 0


def _read_arrow(path: Path, limit: ReadLimit) -> Iterator[Blobs]:
    for blobs in mapped_blobs(path):
        _, offsets, values = blobs.buffers()
        # a batch without rows may lack its one offset
        ends = np.zeros(1, np.int64)
        if len(blobs):
            ends = np.frombuffer(offsets, np.int64)[blobs.offset : blobs.offset + len(blobs) + 1]
        data = np.frombuffer(values or b"", np.uint8)
        for first, last in limit.cut(np.diff(ends)):
            yield Blobs(data[ends[first] : ends[last]], np.diff(ends[first : last + 1]))


def mapped_blobs(path: Path, mapped: Mapped | None = None) -> Iterator[pa.LargeBinaryArray]:
    """Yield the blobs of each record batch of an Arrow shard, views of the mapped file.

    Raises `CorruptShard`.

    mapped: the file, if it is mapped already.
    """
    mapped = mapped or mapped_file(path)
    file = ArrowFile(mapped.buffer, path, mapped.identity)
    if not file.is_file or not file.schema.equals(ROW_SCHEMA):
        raise unreadable(path, ValueError("its columns are not those of rows"))
    index = ROW_SCHEMA.get_field_index("measurements")
    for number in range(file.batch_count):
        blobs = file.batch(number, [index]).column(0)
        if blobs.null_count:
            raise unreadable(path, ValueError("a row has no measurements"))
        yield blobs


def open_array_record(path: Path, *, max_parallelism: int) -> Any:
    """Open an ArrayRecord file without read-ahead: the package's defaults read 16 MB and start
    threads.

    Raises `CorruptShard`, `MissingExtra`.
    """
    module = _array_record()
    if not path.is_file():
        raise CorruptShard("is missing", path=path, remedy=RESTORE)
    try:
        options = f"readahead_buffer_size:0,max_parallelism:{max_parallelism}"
        return module.ArrayRecordReader(str(path), options)
    except (ValueError, RuntimeError, OSError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> CorruptShard:
    """Return the error for a shard that cannot be read."""
    return CorruptShard(f"cannot be read ({error})", path=path, remedy=RESTORE)


def _array_record() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError:
        raise MissingExtra("array_record", "histories") from None
    return array_record_module
