"""Packed bins as records of one size: a bin is one place in a mapped file, read without decoding anything.

For speed where disk does not matter: about five bytes a token, whatever the tokens are, and padding where bins are not
full. Parquet is smaller and other readers know it. All numbers are little-endian.

    0      magic "HRPACK01"
    8      uint32: bytes of the JSON that follows: pack_size, max_sequences, metadata
    …      zeros up to a multiple of 4096
    then   one record a bin, of a multiple of 64 bytes:
             int32                   tokens of the bin, n
             int32                   sequences of the bin, s
             int32 [pack_size]       token ids, 0 from n on
             int32 [max_sequences]   where sequences start, 0 from s on
             uint8 [pack_size]       loss mask, 0 from n on

The number of bins follows from the size of the file; a file of another size is damaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, U8
from headrace.digest import canonical_json
from headrace.errors import CorruptShard, InputError
from headrace.formats.write import HashingFile
from headrace.packing.rows import PackedRows
from headrace.storage import local
from headrace.storage.places import local_path_of

MAGIC = b"HRPACK01"

_PAGE = 4096  # bytes that the data begins at a multiple of, as pages of memory do
_BINS_AT_ONCE = 256


def record_type(pack_size: int, max_sequences: int) -> np.dtype[Any]:
    """One bin as a numpy record. pack_size: most tokens of a bin; max_sequences: most sequences."""
    names = ("tokens", "sequences", "input_ids", "seq_start_id", "loss_mask")
    formats = ("<i4", "<i4", ("<i4", (pack_size,)), ("<i4", (max_sequences,)), ("u1", (pack_size,)))
    offsets = (0, 4, 8, 8 + 4 * pack_size, 8 + 4 * (pack_size + max_sequences))
    size = -(-(offsets[-1] + pack_size) // 64) * 64
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


class BinaryShardWriter:
    """Writes bins as records of one size, and gives the file its name when it is whole; use as a context manager.

    pack_size, max_sequences: the most tokens and sequences of any bin to come (`Bins.loads`, `Bins.counts` know them).
    A file of that name is replaced. Memory: 256 records. Raises `ValueError` for sizes below 1.
    """

    def __init__(
        self,
        output_path: str | os.PathLike[str],
        *,
        pack_size: int,
        max_sequences: int,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        for name, value in (("pack_size", pack_size), ("max_sequences", max_sequences)):
            if value < 1:
                raise ValueError(f"{os.fspath(output_path)}: {name} is {value}; give at least 1")
        self._target = local_path_of(os.fspath(output_path), "output_path")
        self._record = record_type(pack_size, max_sequences)
        self._pack_size, self._max_sequences = pack_size, max_sequences
        self.bins = 0
        local.make_directory(self._target.parent)
        self._temporary = local.temporary_for(self._target)
        self._file = HashingFile(self._temporary)
        self._closed = False
        settings = {"pack_size": pack_size, "max_sequences": max_sequences, "metadata": dict(metadata or {})}
        text = canonical_json(settings)
        head = MAGIC + len(text).to_bytes(4, "little") + text
        self._file.write(head + bytes(-len(head) % _PAGE))

    def write_bins(self, rows: PackedRows) -> None:
        """Add bins. Raises `ValueError` naming the first one that has too many tokens or sequences."""
        if self._closed:
            raise RuntimeError(f"{self._target}: {len(rows)} bins come after the file was closed; open a new writer")
        sizes, counts = np.diff(rows.token_offsets), np.diff(rows.start_offsets)
        large = np.flatnonzero((sizes > self._pack_size) | (counts > self._max_sequences))
        if len(large):
            first = int(large[0])
            raise ValueError(
                f"{self._target}: bin {self.bins + first} has {sizes[first]} tokens in {counts[first]} sequences, a "
                f"record holds {self._pack_size} in {self._max_sequences}; open the writer with larger sizes"
            )
        for at in range(0, len(rows), _BINS_AT_ONCE):
            self._file.write(self._records(rows[at : at + _BINS_AT_ONCE]).view(np.uint8))
        self.bins += len(rows)

    def finalize(self) -> dict[str, Any]:
        """Make the file durable and give it its name; returns format, num_bins, bytes and sha256."""
        if self._closed:
            raise RuntimeError(f"{self._target}: was finalized before; open a new writer")
        self._closed = True
        self._file.close()
        local.replace(self._temporary, self._target)
        return {
            "format": "binary",
            "num_bins": self.bins,
            "bytes": self._file.written,
            "sha256": self._file.digest.sha256,
        }

    def __enter__(self) -> BinaryShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finalize, unless that was done; on an error nothing is left."""
        if kind is None and not self._closed:
            self.finalize()
        if not self._closed:
            self._closed = True
            self._file.close()
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)

    def _records(self, rows: PackedRows) -> npt.NDArray[Any]:
        records = np.zeros(len(rows), self._record)
        sizes, counts = np.diff(rows.token_offsets), np.diff(rows.start_offsets)
        records["tokens"], records["sequences"] = sizes, counts
        tokens = np.arange(self._pack_size) < sizes[:, None]
        records["input_ids"][tokens] = rows.ids
        records["loss_mask"][tokens] = rows.mask
        records["seq_start_id"][np.arange(self._max_sequences) < counts[:, None]] = rows.starts
        return records


@dataclass(frozen=True, slots=True, eq=False)
class BinaryShard:
    """A mapped file of packed bins. records: [bins], see `record_type`; nothing is read before it is looked at."""

    records: npt.NDArray[Any]
    pack_size: int
    max_sequences: int
    metadata: dict[str, str]

    @classmethod
    def open(cls, path: Path | str) -> BinaryShard:
        """Map a file. Raises `InputError` if it is none, `CorruptShard` if it is cut or its header is damaged."""
        where = Path(path)
        try:
            with where.open("rb") as file:
                head = file.read(len(MAGIC) + 4)
                if head[: len(MAGIC)] != MAGIC:
                    raise InputError(f"{where}: begins with {head[:8]!r}, no packed binary file; give another one")
                length = int.from_bytes(head[len(MAGIC) :], "little")
                text = file.read(min(length, 1 << 24))
                size = file.seek(0, os.SEEK_END)
        except OSError as error:
            raise InputError(f"{where}: cannot be read ({error.strerror}); check the path") from error
        try:
            settings = json.loads(text)
            pack_size, most, metadata = settings["pack_size"], settings["max_sequences"], settings["metadata"]
            record = record_type(pack_size, most)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptShard(f"{where}: its header cannot be read ({error!r}); write the file again") from error
        first = -(-(len(head) + length) // _PAGE) * _PAGE
        bins, rest = divmod(size - first, record.itemsize)
        if size < first or rest:
            raise CorruptShard(
                f"{where}: has {size} bytes, that is {rest} more than {bins} records of {record.itemsize} behind "
                f"{first}; the file is cut, write it again"
            )
        if not bins:
            return cls(np.empty(0, record), pack_size, most, metadata)
        mapped = np.memmap(where, record, mode="r", offset=first, shape=(bins,)).view(np.ndarray)
        return cls(mapped, pack_size, most, metadata)

    def __len__(self) -> int:
        return len(self.records)

    def bin(self, number: int) -> tuple[I32, U8, I32]:
        """Tokens, mask and starts of one bin, as views of the file. Raises `IndexError` if there is no such bin."""
        if not 0 <= number < len(self):
            raise IndexError(f"packed binary file: no bin {number}; there are {len(self)}, counted from 0")
        record = self.records[number]
        tokens, sequences = int(record["tokens"]), int(record["sequences"])
        return record["input_ids"][:tokens], record["loss_mask"][:tokens], record["seq_start_id"][:sequences]

    def take(self, bins: I64 | slice) -> PackedRows:
        """Some bins as packed rows, copied."""
        records = self.records[bins]
        sizes, counts = records["tokens"].astype(np.int64), records["sequences"].astype(np.int64)
        tokens = np.arange(self.pack_size) < sizes[:, None]
        starts = np.arange(self.max_sequences) < counts[:, None]
        return PackedRows(
            records["input_ids"][tokens],
            records["loss_mask"][tokens],
            records["seq_start_id"][starts],
            np.concatenate([[0], np.cumsum(sizes)]),
            np.concatenate([[0], np.cumsum(counts)]),
        )
