"""What text formats share: byte ranges as blocks, reading one with its errors, and writing blocks
one after another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, Bools
from headrace.errors import CorruptShard, HeadraceError
from headrace.formats import records
from headrace.formats.detect import compress_block, decompress_block
from headrace.formats.registry import Compression
from headrace.formats.shard import BlockRead, Span
from headrace.formats.write import BLOCK_ROWS, BlockRows, HashingFile
from headrace.storage.places import place_of


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
        data = place_of(block.path).read_ranges([(block.offset, block.offset + block.length)])[0]
        if len(data) < block.length:
            raise CorruptShard("the file ends before")
        yield decompress_block(data, block.file_type.compression)
    except FileNotFoundError:
        raise
    except (OSError, zlib.error, pa.ArrowInvalid, HeadraceError) as error:
        message = str(error).removeprefix(f"{block.path}: ")
        # ours include a remedy
        changed = ""
        if isinstance(error, HeadraceError):
            changed = "or, if it changed, "
        raise CorruptShard(
            f"{block}: {message}; {changed}restore the file or prepare the run again"
        ) from error


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
            data = self._render(batch)
        else:
            data = records.joined(batch)
        self._file.write(compress_block(data, self._compression))

    def close(self) -> None:
        """Write an empty member, if a compressed file has no rows."""
        if not self._file.written and self._compression != "none":
            self._file.write(compress_block(b"", self._compression))
