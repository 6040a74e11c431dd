"""Write packed bins as Parquet that trainers read directly: three list columns, row groups of a
fixed number of bins.

    input_ids      list<int32>   token ids of a bin
    loss_mask      list<uint8>   same length; 1 where the label of the position is trained
    seq_start_id   list<int32>   where each sequence starts; the first is 0

If bins hold sequences of several datasets, or the settings ask for it, two more that readers of
bins ignore:

    source         list<string>  the dataset and file that each sequence comes from
    source_row     list<int64>   its row or line there, from 1

Flat buffers become columns through their offsets, without a Python list or array per bin.
Dictionaries are off, because packed dictionary indices hide repeated tokens from the codec, and
cost time. Pages are large (8 MiB), so that the codec sees more repetition, and have checksums. On
chats, zstd's level 3 saves a tenth of the bytes for about a fifth more time, and level 6 a fifth
for twice the time; reading takes the same time.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from headrace.arrays import I64
from headrace.bins.rows import TRACES, PackedRows, as_type
from headrace.errors import CorruptShard, InputError, SettingsError, StoreError, setting
from headrace.formats.write import Block, HashingFile, Written
from headrace.gate import RESTORE
from headrace.storage import local
from headrace.storage.places import is_address, path_of

Codec = Literal["zstd", "snappy", "gzip", "lz4", "none"]
CODECS: tuple[Codec, ...] = get_args(Codec)

Declared = Literal["nullable", "required"]

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("seq_start_id", pa.list_(pa.int32())),
    ]
)
_TRACED = pa.schema(zip(TRACES, (pa.list_(pa.string()), pa.list_(pa.int64())), strict=True))

_PAGE_BYTES = 8 << 20
_BATCH_VALUES = 1 << 14  # values encoded at a time
_MOST_TOKENS = (1 << 31) - 1  # of a row group: its offsets are int32


class ParquetShardWriter:
    """Writer of packed bins, a row group at a time, that publishes the file when it is whole.

    Until `finalize` there is only a temporary name, unique to this writer. It is removed if an
    error leaves the `with` block, or by `abort`. An existing file of the final name is replaced in
    one step. Peak memory: O(row_group_size × bin).
    filesystem: an Arrow file system that `output_path` is a path of; default the local one.
    compression_level: of zstd (1 unless given; higher is smaller and slower) or gzip.
    declared: "required" declares in the schema that there are no nulls, and decodes a quarter
    faster; the specification's schema is "nullable". traced: whether bins hold the origins of their
    sequences. sources: the names that source numbers refer to.
    metadata: key-value texts for the footer, such as pack size, seed and mask alignment.
    temporary: a new local path to write to, for callers that publish the file themselves after
    `finish`. Raises `ValueError` for a row group size below 1, an unknown codec or a level it does
    not have, `SettingsError` for an address (s3://…) as output_path.
    """

    SCHEMA = SCHEMA

    def __init__(  # noqa: PLR0913 - public, arguments are settings
        self,
        output_path: str | os.PathLike[str],
        row_group_size: int = 1000,
        compression: str | None = "zstd",
        filesystem: pafs.FileSystem | None = None,
        *,
        compression_level: int | None = None,
        declared: Declared = "nullable",
        traced: bool = False,
        sources: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        temporary: Path | None = None,
    ) -> None:
        self.output_path = os.fspath(output_path)
        location = _location_of(self.output_path, filesystem)
        if row_group_size < 1:
            raise ValueError(
                f"row_group_size is {row_group_size}; give the bins of a row group, at least 1"
            )
        self.row_group_size = row_group_size
        self.compression = checked_codec(compression, compression_level)
        self.schema = schema_of(declared, traced=traced)
        self.sources = pa.array(sources, pa.string())
        self.filesystem = filesystem
        self.bins = self.tokens = self.sequences = 0
        self._closed = False
        self._buffered: list[PackedRows] = []  # copies of the bins of an unfinished row group
        self._blocks: list[Block] = []
        if filesystem is not None:
            name = PurePosixPath(self.output_path)
            self.tmp_path = str(
                name.with_name(f"{local.TEMP_PREFIX}{name.name}-{secrets.token_hex(8)}")
            )
            with _telling(self.output_path):
                stream = filesystem.open_output_stream(self.tmp_path, compression=None)
            self._file = HashingFile(Path(self.tmp_path), stream)
        else:
            self.output_path = str(location)
            if temporary is None:
                local.make_directory(location.parent)
            self.tmp_path = str(temporary or local.temporary_for(location))
            self._file = HashingFile(Path(self.tmp_path))
        self._writer = pq.ParquetWriter(
            self._file,
            self.schema.with_metadata(dict(metadata) if metadata else None),
            compression=self.compression,
            compression_level=compression_level,
            data_page_size=_PAGE_BYTES,
            data_page_version="2.0",  # the codec then skips the list levels
            write_batch_size=_BATCH_VALUES,
            use_dictionary=["source.list.element"] if traced else False,
            write_statistics=False,
            write_page_checksum=True,
        )

    def write_bin(
        self,
        bin_id: int,
        input_ids: npt.NDArray[Any],
        loss_mask: npt.NDArray[Any],
        seq_start_id: npt.NDArray[Any],
    ) -> None:
        """Add one bin; arrays are copied, so buffers may be reused.

        Bins are stored in the order of calls.

        input_ids: tokens [T], stored as int32. loss_mask: [T], 0 or 1, stored as uint8.
        seq_start_id: where each sequence begins [S], stored as int32. Any integer type whose values
        fit. bin_id: for messages only. Raises `ValueError` if shapes or values do not fit,
        `RuntimeError` after the end.
        """
        self._must_be_open(f"bin {bin_id}")
        where = f"{self.output_path}: bin {self.bins}"
        if input_ids.ndim != 1 or loss_mask.shape != input_ids.shape or seq_start_id.ndim != 1:
            raise ValueError(
                f"{where}: input_ids {input_ids.shape}, loss_mask {loss_mask.shape}, seq_start_id "
                f"{seq_start_id.shape}; give one axis each, and as many mask values as ids"
            )
        wrong = loss_mask[(loss_mask != 0) & (loss_mask != 1)]
        if len(wrong):
            raise ValueError(
                f"{where}: loss_mask holds {wrong[0]}; give 1 where a label is trained, else 0"
            )
        self.write_bins(
            PackedRows.of_bin(
                as_type(input_ids, np.dtype(np.int32), f"{where}: input_ids"),
                as_type(loss_mask, np.dtype(np.uint8), f"{where}: loss_mask"),
                as_type(seq_start_id, np.dtype(np.int32), f"{where}: seq_start_id"),
            )
        )

    def write_bins(self, rows: PackedRows) -> None:
        """Add many bins from flat buffers, which is the fast way.

        Raises `RuntimeError` after the end.

        Row groups do not depend on how bins are divided into calls. Whole groups are not copied.
        """
        self._must_be_open(f"{len(rows)} bins")
        at = 0
        while at < len(rows):
            buffered = self.bins % self.row_group_size
            part = rows[at : at + self.row_group_size - buffered]
            at += len(part)
            self.bins += len(part)
            self.tokens += len(part.ids)
            self.sequences += len(part.starts)
            if len(part) == self.row_group_size:
                self._emit(part)
                continue
            self._buffered.append(PackedRows.concatenate([part]))
            if buffered + len(part) == self.row_group_size:
                self._flush()

    def finish(self) -> Written:
        """Write the remaining bins and the footer, and close the file, without syncing or renaming
        it.

        Returns its rows, bytes, SHA-256 and row groups.
        """
        self._must_be_open("the end")
        self._closed = True
        self._flush()
        self._writer.close()
        self._file.close()
        return self._file.holding(self.bins, tuple(self._blocks))

    def finalize(self) -> dict[str, Any]:
        """Write the remaining bins, make the file durable and give it its final name.

        Returns format, compression, num_bins, row_group_size; num_tokens, num_sequences, bytes,
        sha256 of the file. Raises `RuntimeError` on a second call, `StoreError` if the file system
        fails.
        """
        self._must_be_open("the end")
        try:
            written = self.finish()
            if self.filesystem is None:
                local.replace(Path(self.tmp_path), Path(self.output_path))
            else:
                with _telling(self.output_path):
                    self.filesystem.move(self.tmp_path, self.output_path)
        except BaseException:
            self._remove()
            raise
        return {
            "format": "parquet",
            "compression": self.compression,
            "num_bins": self.bins,
            "row_group_size": self.row_group_size,
            "num_tokens": self.tokens,
            "num_sequences": self.sequences,
            "bytes": written.bytes,
            "sha256": written.digest,
        }

    def abort(self) -> None:
        """Remove the temporary file; does nothing after `finalize`."""
        if not self._closed:
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Finalize, unless that was done; abort on an error."""
        if error_type is not None:
            self.abort()
        elif not self._closed:
            self.finalize()

    def _must_be_open(self, what: str) -> None:
        if self._closed:
            raise RuntimeError(
                f"{self.output_path}: {what} comes after the file was closed; open a new writer"
            )

    def _remove(self) -> None:
        self._closed = True
        self._file.abandon()
        with suppress(pa.ArrowException):
            self._writer.close()
        self._file.close()
        with suppress(OSError, pa.ArrowException):
            if self.filesystem is None:
                Path(self.tmp_path).unlink(missing_ok=True)
            else:
                self.filesystem.delete_file(self.tmp_path)

    def _flush(self) -> None:
        if self._buffered:
            self._emit(PackedRows.concatenate(self._buffered))
            self._buffered = []

    def _emit(self, rows: PackedRows) -> None:
        offset = self._file.written
        first = 0
        if self._blocks:
            first = self._blocks[-1].first_row + self._blocks[-1].rows
        if len(rows.ids) > _MOST_TOKENS:
            raise ValueError(
                f"{self.output_path}: bins {first} to {first + len(rows)} have"
                f" {len(rows.ids)} tokens, a row group holds {_MOST_TOKENS}; choose a smaller"
                f" row_group_size than {self.row_group_size}"
            )
        self._writer.write_table(columns(rows, self.schema, self.sources), row_group_size=len(rows))
        self._blocks.append(
            Block(first, len(rows), offset, self._file.written - offset, None, None)
        )


def _location_of(output_path: str, filesystem: pafs.FileSystem | None) -> Path:
    """Return the path of a file to write. Raises `SettingsError` for one in another file system."""
    location = path_of(output_path)
    if filesystem is not None and (
        is_address(str(location)) or output_path.lower().startswith("file:")
    ):
        raise SettingsError(
            f"is an address, and {setting('filesystem')} is given too",
            path=output_path,
            remedy="give the path inside that file system",
        )
    if filesystem is None and is_address(str(location)):
        raise SettingsError(
            f"is in an object store, and {setting('filesystem')} is not given",
            path=location,
            remedy=(
                "give a file system, e.g. pyarrow.fs.S3FileSystem(), and the path"
                f" {'/'.join(location.parts[1:])} inside it, or write a local file"
            ),
        )
    return location


@contextmanager
def _telling(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StoreError(
            f"cannot write ({error})",
            path=path,
            remedy="check the file system and the rights, run again",
        ) from error


def columns(
    rows: PackedRows, schema: pa.Schema = SCHEMA, sources: pa.Array | None = None
) -> pa.Table:
    """Build the columns of packed rows without copying the tokens.

    sources: names of the sources of traced rows.
    """
    tokens = pa.array(rows.token_offsets.astype(np.int32))
    starts = pa.array(rows.start_offsets.astype(np.int32))
    parts = [
        (tokens, pa.array(rows.ids)),
        (tokens, pa.array(rows.mask)),
        (starts, pa.array(rows.starts)),
    ]
    if sources is not None and TRACES[0] in schema.names:
        parts += [
            (starts, sources.take(pa.array(rows.sources))),
            (starts, pa.array(rows.source_rows)),
        ]
    lists = []
    for (offsets, values), field in zip(parts, schema, strict=False):
        lists.append(pa.ListArray.from_arrays(offsets, values, type=field.type))
    return pa.Table.from_arrays(lists, schema=schema)


def rows_of(table: pa.Table) -> PackedRows:
    """Read the packed rows of a table, whatever the integer types of its columns; views if
    possible.

    Raises `InputError` for nulls, and with the row, from 1, for a mask that is not as long as its
    tokens.
    """
    parts: list[tuple[npt.NDArray[Any], I64]] = []
    for name in SCHEMA.names:
        column = table[name]
        if column.num_chunks == 1:
            lists = column.chunk(0)
        else:
            lists = column.combine_chunks()
        values = lists.flatten()
        if lists.null_count or values.null_count:
            raise InputError("it holds nulls", column=name, remedy="write the file anew")
        offsets = lists.offsets.to_numpy().astype(np.int64)
        parts.append((values.to_numpy(zero_copy_only=False), offsets - offsets[0]))
    (ids, tokens), (mask, masks), (starts, sequences) = parts
    unequal = np.flatnonzero(tokens != masks)
    if len(unequal):
        row = int(unequal[0])
        raise InputError(
            f"it has {tokens[row] - tokens[row - 1]} input_ids and"
            f" {masks[row] - masks[row - 1]} values of loss_mask",
            row=row,
            remedy="write the file anew",
        )
    return PackedRows(ids, mask, starts, tokens, sequences)


def read_parquet(path: Path) -> Iterator[PackedRows]:
    """Read the bins of a shard, a row group at a time, verifying page checksums.

    Raises `CorruptShard`.
    """
    group_words = None
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            kinds = {field.name: field.type for field in file.schema_arrow}
            for field in SCHEMA:
                column_type = kinds.get(field.name, pa.null())
                if (
                    not pa.types.is_list(column_type)
                    or column_type.value_type != field.type.value_type
                ):
                    raise InputError(
                        f"not lists of {field.type.value_type}",
                        column=field.name,
                        value=str(column_type),
                    )
            for group in range(file.metadata.num_row_groups):
                group_words = f"row group {group}"
                yield rows_of(file.read_row_group(group, columns=SCHEMA.names, use_threads=False))
    except (OSError, pa.ArrowException, InputError) as error:
        raise CorruptShard(
            f"cannot be read ({error})",
            path=path,
            row=group_words,
            remedy=RESTORE,
        ) from error


def schema_of(declared: Declared, *, traced: bool = False) -> pa.Schema:
    """Return the schema so declared, with `bins.rows.TRACES` if requested.

    Raises `ValueError` for another word.
    """
    if declared not in get_args(Declared):
        raise ValueError(f"declared is {declared!r}; choose one of {', '.join(get_args(Declared))}")
    schema = pa.schema([*SCHEMA, *(_TRACED if traced else ())])
    if declared == "nullable":
        return schema
    required = []
    for field in schema:
        element = pa.field("element", field.type.value_type, nullable=False)
        required.append(pa.field(field.name, pa.list_(element), nullable=False))
    return pa.schema(required)


def checked_codec(
    word: str | None, level: int | None = None, *, named: Callable[[str], str] = str
) -> Codec:
    """Return the Arrow codec of a word; None and "" mean "none".

    named: how the message writes the names `compression` and `compression_level`.

    Raises `ValueError` for an unknown codec, or a level that it does not have.
    """
    codec = next((codec for codec in CODECS if codec == (word or "none").lower()), None)
    if codec is None:
        raise ValueError(f"{named('compression')} is {word!r}; choose one of {', '.join(CODECS)}")
    most = {"zstd": 22, "gzip": 9}.get(codec, 0)
    if level is not None and not 1 <= level <= most:
        known = "none"
        if most:
            known = f"1 to {most}"
        raise ValueError(
            f"{named('compression_level')} is {level}; levels of {codec}: {known}; leave it out for"
            " the codec's own"
        )
    return codec
