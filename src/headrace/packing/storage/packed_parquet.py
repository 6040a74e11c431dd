"""Packed bins as Parquet that trainers read as it is: three list columns, row groups of a fixed number of bins.

    input_ids      list<int32>   token ids of a bin
    loss_mask      list<uint8>   as many; 1 where the label of the position counts
    seq_start_id   list<int32>   where each sequence starts; the first is 0

Flat buffers become columns through their offsets: no list and no array of Python for a bin. Dictionaries are off:
packed dictionary indices hide from the codec what repeats in tokens, and cost time. Pages are large (8 MiB), so that
the codec sees more of what repeats, and carry checksums. On chats zstd's level 3 saves a tenth of the bytes for about
a fifth more time, level 6 a fifth for twice the time; reading takes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.bins.integers import as_type
from headrace.bins.rows import PackedRows
from headrace.formats.write import Block, HashingFile, Written
from headrace.packing.storage.bin_buffer import BinBuffer

Codec = Literal["zstd", "snappy", "gzip", "lz4", "none"]

CODECS: tuple[Codec, ...] = get_args(Codec)

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("seq_start_id", pa.list_(pa.int32())),
    ]
)

Declared = Literal["nullable", "required"]

REQUIRED = pa.schema(
    [
        pa.field(field.name, pa.list_(pa.field("element", field.type.value_type, nullable=False)), nullable=False)
        for field in SCHEMA
    ]
)
"""The same columns, declared to hold no nulls."""

_PAGE_BYTES = 8 << 20
_BATCH_VALUES = 1 << 14  # encoded at a time
_MOST_TOKENS = (1 << 31) - 1  # of a row group: its offsets are int32


class PackedParquet:
    """Writes one file of packed bins to `path`, which must not exist; use as a context manager and call `finish`.

    The file has its final content when `finish` returns, and is neither synced nor renamed: that is the caller's. On an
    error it is removed. Memory: O(row group). compression_level: of zstd (1 unless given) or gzip.
    declared: "required" says in the schema that there are no nulls, and decodes a quarter faster; the specification's
    schema is "nullable". metadata: key-value texts for the footer.
    Raises `ValueError` for a row group size below 1 or an unknown codec.
    """

    def __init__(
        self,
        path: Path,
        *,
        row_group_size: int = 1000,
        compression: str | None = "zstd",
        compression_level: int | None = None,
        declared: Declared = "nullable",
        metadata: Mapping[str, str] | None = None,
        file: HashingFile | None = None,
    ) -> None:
        self.path = path
        self.row_group_size = checked_row_group_size(row_group_size)
        self.compression = checked_codec(compression)
        checked_level(self.compression, compression_level)
        self.schema = schema_of(declared)
        self.bins = 0
        self.tokens = 0
        self.sequences = 0
        self._buffer = BinBuffer()
        self._blocks: list[Block] = []
        self._file = file or HashingFile(path)
        self._writer = pq.ParquetWriter(
            self._file,
            self.schema.with_metadata(dict(metadata) if metadata else None),
            compression=self.compression,
            compression_level=compression_level,
            data_page_size=_PAGE_BYTES,
            data_page_version="2.0",  # the codec is spared the list borders
            write_batch_size=_BATCH_VALUES,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        )

    def write_bin(self, ids: npt.NDArray[Any], mask: npt.NDArray[Any], starts: npt.NDArray[Any]) -> None:
        """Add one bin; the arrays are copied. Raises `ValueError` if they do not fit together or into the columns."""
        where = f"{self.path}: bin {self.bins}"
        if ids.ndim != 1 or mask.shape != ids.shape or starts.ndim != 1:
            raise ValueError(
                f"{where}: input_ids {ids.shape}, loss_mask {mask.shape}, seq_start_id {starts.shape}; "
                f"give one axis each, and as many mask values as ids"
            )
        self._buffer.add(
            as_type(ids, np.dtype(np.int32), f"{where}: input_ids"),
            as_type(mask, np.dtype(np.uint8), f"{where}: loss_mask"),
            as_type(starts, np.dtype(np.int32), f"{where}: seq_start_id"),
        )
        self._count(1, len(ids), len(starts))
        if len(self._buffer) == self.row_group_size:
            self._flush()

    def write_bins(self, rows: PackedRows) -> None:
        """Add many bins; row groups do not depend on how bins are cut into calls. Whole groups are not copied."""
        at = 0
        while at < len(rows):
            take = min(self.row_group_size - len(self._buffer), len(rows) - at)
            part = rows[at : at + take]
            self._count(take, len(part.ids), len(part.starts))
            if take == self.row_group_size:
                self._emit(part)
            else:
                self._buffer.add_rows(part)
                if len(self._buffer) == self.row_group_size:
                    self._flush()
            at += take

    def finish(self) -> Written:
        """Write what is left and the footer, close the file; its rows, bytes, SHA-256 and row groups."""
        self._flush()
        self._writer.close()
        self._file.close()
        return self._file.holding(self.bins, tuple(self._blocks))

    def abandon(self) -> None:
        """Close and remove the file."""
        self._file.abandon()
        with suppress(pa.ArrowException):
            self._writer.close()
        self._file.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> PackedParquet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()

    def _count(self, bins: int, tokens: int, sequences: int) -> None:
        self.bins += bins
        self.tokens += tokens
        self.sequences += sequences

    def _flush(self) -> None:
        if len(self._buffer):
            self._emit(self._buffer.rows())
            self._buffer.clear()

    def _emit(self, rows: PackedRows) -> None:
        offset = self._file.written
        first = self._blocks[-1].first_row + self._blocks[-1].rows if self._blocks else 0
        if len(rows.ids) > _MOST_TOKENS:
            raise ValueError(
                f"{self.path}: bins {first} to {first + len(rows)} have {len(rows.ids)} tokens, a row group holds "
                f"{_MOST_TOKENS}; choose a smaller row_group_size than {self.row_group_size}"
            )
        self._writer.write_table(columns(rows, self.schema), row_group_size=len(rows))
        self._blocks.append(Block(first, len(rows), offset, self._file.written - offset, None, None))


def columns(rows: PackedRows, schema: pa.Schema = SCHEMA) -> pa.Table:
    """The three columns of packed rows; the tokens are not copied."""
    tokens, starts = pa.array(rows.token_offsets.astype(np.int32)), pa.array(rows.start_offsets.astype(np.int32))
    parts = ((tokens, rows.ids), (tokens, rows.mask), (starts, rows.starts))
    lists = [
        pa.ListArray.from_arrays(offsets, pa.array(values), type=field.type)
        for (offsets, values), field in zip(parts, schema, strict=True)
    ]
    return pa.Table.from_arrays(lists, schema=schema)


def packed_rows(table: pa.Table) -> PackedRows:
    """What `columns` made a table of; views of it where its columns are in one chunk each, as row groups are."""
    ids, mask, starts = (
        table[name].chunk(0) if table[name].num_chunks == 1 else table[name].combine_chunks() for name in SCHEMA.names
    )
    token_offsets, start_offsets = (each.offsets.to_numpy().astype(np.int64) for each in (ids, starts))
    return PackedRows(
        ids.values.to_numpy()[token_offsets[0] : token_offsets[-1]],
        mask.values.to_numpy()[mask.offsets[0].as_py() : mask.offsets[-1].as_py()],
        starts.values.to_numpy()[start_offsets[0] : start_offsets[-1]],
        token_offsets - token_offsets[0],
        start_offsets - start_offsets[0],
    )


def schema_of(declared: Declared) -> pa.Schema:
    """The columns so declared. Raises `ValueError` for another word."""
    if declared not in get_args(Declared):
        raise ValueError(f"declared is {declared!r}; choose one of {', '.join(get_args(Declared))}")
    return REQUIRED if declared == "required" else SCHEMA


def checked_row_group_size(size: int) -> int:
    """The size. Raises `ValueError` below 1."""
    if size < 1:
        raise ValueError(f"row_group_size is {size}; give the bins of a row group, at least 1")
    return size


def checked_level(codec: str | None, level: int | None) -> None:
    """Raises `ValueError` if the codec has no such level."""
    most = {"zstd": 22, "gzip": 9}.get(checked_codec(codec), 0)
    if level is not None and not 1 <= level <= most:
        known = f"1 to {most}" if most else "none"
        raise ValueError(f"compression_level is {level}; levels of {codec}: {known}; leave it out for the codec's own")


def checked_codec(word: str | None) -> Codec:
    """The codec behind a word; None and "" are "none". Raises `ValueError` for an unknown one."""
    for codec in CODECS:
        if codec == (word or "none").lower():
            return codec
    raise ValueError(f"compression is {word!r}; choose one of {', '.join(CODECS)}")
