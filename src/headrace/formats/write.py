"""Write one output shard: row blocks in, digest and index rows out.

A writer buffers rows until a block is full: 65,536 rows or 8 MiB, whichever comes first, fixed by
the first rows. So blocks have one size however the rows arrive. The digest is computed while
writing. The blocks of text formats are byte ranges, which are cut and read here too.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, Bools
from headrace.digest import FileDigest
from headrace.errors import CorruptShard, HeadraceError, InputError, setting
from headrace.formats import records
from headrace.formats.conversion import convert
from headrace.formats.registry import Compression, FileType, compress_block, decompress_block
from headrace.formats.shard import BlockRead, Dialect, Encoding, Sink, Span, WriteSettings
from headrace.gate import RESTORE
from headrace.storage.local import storing
from headrace.storage.places import place_of

BLOCK_ROWS = 65_536
BLOCK_BYTES = 8 << 20

Keys = npt.NDArray[np.int64]
BlockRows: TypeAlias = pa.Table | pa.LargeBinaryArray


@dataclass(frozen=True)
class Block:
    """One block of a written shard.

    offset, length: its byte range; key_min, key_max: range of the row keys given.
    """

    first_row: int
    rows: int
    offset: int
    length: int
    key_min: int | None
    key_max: int | None


@dataclass(frozen=True)
class Written:
    """A finished file, still under its temporary name.

    checksum: XXH3-128, for files that are streamed.
    """

    rows: int
    bytes: int
    digest: str
    blocks: tuple[Block, ...]
    checksum: str = ""


class HashingFile(io.RawIOBase):
    """A file opened for writing whose bytes are digested as they pass.

    file: an open one to write to instead.
    """

    def __init__(self, path: Path, file: Any = None) -> None:
        self._directory = path.parent
        with storing(self._directory):
            if file is None:
                self._file = path.open("xb", buffering=0)
            else:
                self._file = file
        self._abandoned = False
        self._digest = FileDigest()
        self.written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._abandoned:
            return len(view)
        self._digest.update(view)
        done = 0
        with storing(self._directory):
            while done < len(view):
                done += self._file.write(view[done:]) or 0
        self.written += len(view)
        return len(view)

    def tell(self) -> int:
        return self.written

    def close(self) -> None:
        self._file.close()
        super().close()

    def abandon(self) -> None:
        """Discard all further writes, because a Parquet writer cannot be stopped without its
        footer.
        """
        self._abandoned = True

    @property
    def digest(self) -> FileDigest:
        """Return the digest of everything written."""
        return self._digest

    def holding(self, rows: int, blocks: tuple[Block, ...] = ()) -> Written:
        """Describe the file: its rows and blocks, with the bytes and digests of everything written
        so far.
        """
        return Written(rows, self.written, self._digest.sha256, blocks, self._digest.checksum)


class ShardWriter:
    """Writes one output shard under a temporary name.

    Use as a context manager; on an error the file is removed.

    parquet_compression, encoding: for Parquet, see `ParquetSink`. block_rows: rows of a block;
    None: the module's rule.
    """

    def __init__(  # noqa: PLR0913 - all are settings
        self,
        path: Path,
        *,
        file_type: FileType,
        schema: pa.Schema,
        dialect: Dialect | None,
        parquet_compression: str = "lz4",
        encoding: Encoding = "compact",
        block_rows: int | None = None,
    ) -> None:
        self.path = path
        self._file = HashingFile(path)
        settings = WriteSettings(
            schema=schema,
            file_type=file_type,
            dialect=dialect,
            codec=parquet_compression,
            encoding=encoding,
        )
        self._sink: Sink = file_type.format.load().open_sink(self._file, settings)
        self._chunks: list[tuple[BlockRows, Keys | None]] = []
        self._pending = 0
        self._block_rows = block_rows or 0
        self._blocks: list[Block] = []
        self._rows = 0

    def append(self, batch: BlockRows, keys: Keys | None = None) -> None:
        """Add rows: a table of the writer's columns, or records to be copied.

        keys: one int64 a row, for statistics.
        """
        if len(batch) == 0:
            return
        if not self._block_rows:
            self._block_rows = max(
                1, min(BLOCK_ROWS, int(BLOCK_BYTES / max(1.0, batch.nbytes / len(batch))))
            )
        start = 0
        while start < len(batch):
            take = min(self._block_rows - self._pending, len(batch) - start)
            self._chunks.append(
                (batch.slice(start, take), None if keys is None else keys[start : start + take])
            )
            self._pending += take
            start += take
            if self._pending == self._block_rows:
                self._flush()

    def _flush(self) -> None:
        batches = [batch for batch, _ in self._chunks]
        if len(batches) == 1:
            block = batches[0]
        else:
            if isinstance(batches[0], pa.Table):
                block = pa.concat_tables(batches)
            else:
                block = pa.concat_arrays(batches)
        keys = [batch_keys for _, batch_keys in self._chunks if batch_keys is not None]
        offset = self._file.written
        self._sink.write(block)
        self._blocks.append(
            Block(
                first_row=self._rows,
                rows=self._pending,
                offset=offset,
                length=self._file.written - offset,
                key_min=min(int(batch_keys.min()) for batch_keys in keys) if keys else None,
                key_max=max(int(batch_keys.max()) for batch_keys in keys) if keys else None,
            )
        )
        self._rows += self._pending
        self._chunks = []
        self._pending = 0

    def finish(self) -> Written:
        """Write the remaining rows and the footer, and close the file."""
        if self._pending:
            self._flush()
        self._sink.close()
        self._file.close()
        return self._file.holding(self._rows, tuple(self._blocks))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error_type is not None:
            self._file.abandon()
            self._sink.close()
            self._file.close()
            self.path.unlink(missing_ok=True)


def cut_blocks(
    parts: Iterable[tuple[records.Data, I64]],
    offset: int,
    blank: Callable[[records.Data, I64], Bools],
) -> list[Span]:
    """Cut text on record borders into blocks of at most `BLOCK_ROWS` rows.

    parts: consecutive bytes that end on a record, with the positions of their quotes. offset: of
    the first. blank: masks the records that are no rows, given bytes and the ends of records.
    """
    spans: list[Span] = []
    for data, quotes in parts:
        ends = records.record_ends(records.as_bytes(data), quotes)
        rows = np.cumsum(~blank(data, ends))
        count = max(1, -(-int(rows[-1]) // BLOCK_ROWS))
        targets = [int(rows[-1]) * number // count for number in range(1, count)]
        cuts = np.unique(np.searchsorted(rows, targets) + 1)
        start = 0
        rows_before = 0
        for cut in [*cuts.tolist(), len(ends)]:
            stop = int(ends[cut - 1])
            rows_until = int(rows[cut - 1])
            spans.append(Span(len(spans), rows_until - rows_before, offset + start, stop - start))
            start = stop
            rows_before = rows_until
        offset += len(data)
    return spans


@contextmanager
def block_bytes(block: BlockRead) -> Iterator[bytes]:
    """Provide the decompressed bytes of a block; errors of reading and parsing them become
    `CorruptShard`.
    """
    try:
        if block.content is not None:
            data = block.content.to_pybytes()
        else:
            stop = block.offset + block.length
            data = place_of(block.path).read_ranges([(block.offset, stop)])[0]
        if len(data) < block.length:
            raise CorruptShard("the file ends before")
        yield decompress_block(data, block.file_type.compression)
    except FileNotFoundError:
        raise
    except (OSError, zlib.error, pa.ArrowInvalid, HeadraceError) as error:
        if isinstance(error, InputError) and block.rows is None:  # a plain shard, as it was given
            raise
        problem = str(error)
        remedy = RESTORE
        if isinstance(error, HeadraceError):  # has a remedy of its own
            problem = error.marked.removeprefix(f"{block.path}: ")
            remedy = f"or, if it changed, {remedy}"
        raise CorruptShard(problem, path=block.path, row=block.words, remedy=remedy) from error


class TextSink:
    """Writes text blocks: records as they are, or rendered tables; each block is compressed on its
    own.
    """

    def __init__(
        self,
        file: HashingFile,
        header: bytes,
        render: Callable[[pa.Table], bytes],
        compression: Compression,
    ) -> None:
        self._file = file
        self._render = render
        self._compression = compression
        if header:
            file.write(compress_block(header, compression))

    def write(self, batch: BlockRows) -> None:
        """Write a block."""
        if isinstance(batch, pa.Table):
            data = convert(
                batch,
                self._render,
                purpose="text",
                remedy=f"choose {setting('format', 'parquet')} or leave the column out",
            )
        else:
            data = records.joined(batch)
        self._file.write(compress_block(data, self._compression))

    def close(self) -> None:
        """Write an empty member, if a compressed file has no rows."""
        if not self._file.written and self._compression != "none":
            self._file.write(compress_block(b"", self._compression))
