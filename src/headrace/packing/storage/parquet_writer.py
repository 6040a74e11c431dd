"""`ParquetShardWriter`: bins in, one published Parquet shard out; on this machine or on any Arrow file system."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs

from headrace.bins.rows import PackedRows
from headrace.errors import SettingsError, StoreError
from headrace.formats.write import HashingFile
from headrace.packing.storage import packed_parquet
from headrace.packing.storage.packed_parquet import (
    Declared,
    PackedParquet,
    checked_codec,
    checked_level,
    checked_row_group_size,
    schema_of,
)
from headrace.storage import local
from headrace.storage.places import is_address, path_of


class ParquetShardWriter:
    """Writes packed bins, a row group at a time, and gives the file its name when it is whole.

    Until `finalize` there is only a temporary name, unique to this writer; it is removed when an error leaves the
    `with` block, or by `abort`. A file of that name is replaced in one step. Peak memory: O(row_group_size × bin).
    filesystem: an Arrow file system that `output_path` is a path of; default the local one.
    compression_level: of zstd (1 unless given; higher is smaller and slower) or gzip.
    declared: see `PackedParquet`. metadata: key-value texts for the footer, such as pack size, seed and mask alignment.
    Raises `ValueError` for a row group size below 1 or an unknown codec, `SettingsError` for an address (s3://…) as
    output_path.
    """

    SCHEMA = packed_parquet.SCHEMA

    def __init__(
        self,
        output_path: str | os.PathLike[str],
        row_group_size: int = 1000,
        compression: str | None = "zstd",
        filesystem: pafs.FileSystem | None = None,
        *,
        compression_level: int | None = None,
        declared: Declared = "nullable",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.output_path = os.fspath(output_path)
        if filesystem is None:
            self.output_path = str(_local(self.output_path))
        elif is_address(str(path_of(self.output_path))) or self.output_path.lower().startswith("file:"):
            raise SettingsError(
                f"{self.output_path}: is an address beside filesystem=; give the path inside that file system"
            )
        self.row_group_size = checked_row_group_size(row_group_size)
        self.compression = checked_codec(compression)
        self.filesystem = filesystem
        schema_of(declared)  # what is wrong is told before there is a file
        checked_level(compression, compression_level)
        file = None
        if filesystem is None:
            target = Path(self.output_path)
            local.make_directory(target.parent)
            self.tmp_path = str(local.temporary_for(target))
        else:
            name = PurePosixPath(self.output_path)
            self.tmp_path = str(name.with_name(f"{local.TEMP_PREFIX}{name.name}-{secrets.token_hex(8)}"))
            file = HashingFile(Path(self.tmp_path), _opened(filesystem, self.tmp_path))
        self._file = PackedParquet(
            Path(self.tmp_path),
            row_group_size=row_group_size,
            compression=compression,
            compression_level=compression_level,
            declared=declared,
            metadata=metadata,
            file=file,
        )
        self._closed = False

    def write_bin(
        self, bin_id: int, input_ids: npt.NDArray[Any], loss_mask: npt.NDArray[Any], seq_start_id: npt.NDArray[Any]
    ) -> None:
        """Add one bin; the arrays are copied, so scratch buffers may be given. Bins are stored in the order of calls.

        input_ids: tokens [T], stored as int32; loss_mask: [T], 0 or 1, stored as uint8; seq_start_id: where each
        sequence begins [S], stored as int32. Any integers that fit. bin_id: for messages alone.
        Raises `ValueError` if shapes or values do not fit, `RuntimeError` after `finalize` or `abort`.
        """
        self._must_be_open(f"bin {bin_id}")
        self._file.write_bin(input_ids, loss_mask, seq_start_id)

    def write_bins(self, rows: PackedRows) -> None:
        """Add many bins from flat buffers; the fast way. Raises `RuntimeError` after `finalize` or `abort`."""
        self._must_be_open(f"{len(rows)} bins")
        self._file.write_bins(rows)

    def finalize(self) -> dict[str, Any]:
        """Write what is left, make the file durable, give it its name.

        Returns format, compression, num_bins, row_group_size; num_tokens, num_sequences, bytes, sha256 of the file.
        Raises `RuntimeError` the second time, `StoreError` if the file system fails.
        """
        self._must_be_open("the end")
        self._closed = True
        try:
            written = self._file.finish()
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
            "num_bins": self._file.bins,
            "row_group_size": self.row_group_size,
            "num_tokens": self._file.tokens,
            "num_sequences": self._file.sequences,
            "bytes": written.bytes,
            "sha256": written.digest,
        }

    def abort(self) -> None:
        """Leave nothing behind; nothing happens after `finalize`."""
        if not self._closed:
            self._closed = True
            self._remove()

    def __enter__(self) -> ParquetShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finalize, unless that was done; abort on an error."""
        if kind is not None:
            self.abort()
        elif not self._closed:
            self.finalize()

    def _must_be_open(self, what: str) -> None:
        if self._closed:
            raise RuntimeError(f"{self.output_path}: {what} comes after the file was closed; open a new writer")

    def _remove(self) -> None:
        self._file.abandon()
        if self.filesystem is not None:
            with suppress(OSError, pa.ArrowException):
                self.filesystem.delete_file(self.tmp_path)


def _local(place: str) -> Path:
    path = path_of(place)
    if is_address(str(path)):
        raise SettingsError(
            f"{path}: is in an object store; give filesystem=, e.g. pyarrow.fs.S3FileSystem(), and the path "
            f"{'/'.join(path.parts[1:])} inside it, or write a local file"
        )
    return path


def _opened(filesystem: pafs.FileSystem, path: str) -> Any:
    with _telling(path):
        return filesystem.open_output_stream(path, compression=None)


@contextmanager
def _telling(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path}: cannot write ({error}); check the file system and the rights, run again") from error
