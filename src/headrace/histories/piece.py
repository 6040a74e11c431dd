"""Keep pass 1 on disk: the measurements of one source shard as records of fixed size, grouped by partition.

A piece file is batches, each of them the batch's entities and then its records, both ordered by partition; behind the
last batch stand the directory of batches (where each begins, and how many entities and records are in the partitions
before each), its shape, and a number for this layout. A partition reads of every piece only what is its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.arrays import I64, U16, U64
from headrace.errors import CorruptShard
from headrace.histories.codec.addresses import Addresses
from headrace.histories.keyed import mixed_peers, multiset_sum
from headrace.histories.parse import Parsed

ENTITY = np.dtype([("word0", "<u8"), ("word1", "<u8"), ("family", "u1"), ("zero", "u1", 7)])
# entity: place among the batch's entities of the partition; in memory, among all the partition's.
ALONE = np.dtype([("micros", "<i8"), ("entity", "<u4"), ("code", "<u2"), ("zero", "u1", 2)])
WITH_PEER = np.dtype(
    [
        ("micros", "<i8"),
        ("word0", "<u8"),
        ("word1", "<u8"),
        ("entity", "<u4"),
        ("code", "<u2"),
        ("family", "u1"),
        ("zero", "u1"),
    ]
)

Records = npt.NDArray[np.void]
_LAYOUT = 0x32_4543454950  # "PIECE2"; a run that is gone on with may have pieces of another headrace


class PieceWriter:
    """Writes the piece of one source shard."""

    def __init__(self, file: BinaryIO, partitions: int) -> None:
        self._file, self._partitions = file, partitions
        self._directory: list[I64] = []
        self._checksum = xxhash.xxh3_128()

    def append(self, parsed: Parsed, hashes: U64, *, compiled: bool = False) -> int:
        """Write one batch; returns its `multiset_sum`. hashes: of the entities. compiled: by numba, the same bytes."""
        partition = partition_of(hashes, self._partitions)
        entities: Records | U64
        records: Records | U64
        if compiled:
            from headrace.histories.codec import kernels

            found, columns = parsed.entities, (parsed.entity, parsed.micros, parsed.codes)
            peer = None
            if parsed.peers is not None and parsed.peer is not None:
                peer = (parsed.peer, parsed.peers.family, parsed.peers.bytes)
            entities, local, held = kernels.placed(partition, found.family, found.bytes, self._partitions)
            records, counts, total = kernels.grouped((partition, local, hashes), *columns, peer, self._partitions)
        else:
            entities, local, held = _placed(parsed.entities, partition, self._partitions)
            records, counts, total = _grouped(parsed, hashes, partition, local, self._partitions)
        begin = self._file.tell()
        self._write(entities.view(np.uint8).reshape(-1).data)
        self._write(records.view(np.uint8).reshape(-1).data)
        zero = np.zeros(1, np.int64)
        row = [begin + zero, zero, np.cumsum(held), zero, np.cumsum(counts)]
        self._directory.append(np.concatenate(row).astype("<i8"))
        return total

    def finish(self) -> str:
        """Write the directory; returns the XXH3-128 of all that was written."""
        for row in self._directory:
            self._write(row.tobytes())
        self._write(np.array([len(self._directory), self._partitions, _LAYOUT], "<i8").tobytes())
        return self._checksum.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
        self._checksum.update(data)
        self._file.write(data)


def _placed(entities: Addresses, partition: U16, partitions: int) -> tuple[Records, I64, I64]:
    """Compute `kernels.placed`."""
    by_partition = np.argsort(partition, kind="stable")
    records = np.zeros(len(by_partition), ENTITY)
    records["word0"], records["word1"] = entities.words()[by_partition].T
    records["family"] = entities.family[by_partition]
    held = np.bincount(partition, minlength=partitions)
    local = np.empty(len(by_partition), np.int64)
    local[by_partition] = np.arange(len(by_partition)) - np.repeat(np.cumsum(held) - held, held)
    return records, local, held


def _grouped(parsed: Parsed, hashes: U64, partition: U16, local: I64, partitions: int) -> tuple[Records, I64, int]:
    """Compute `kernels.grouped`. hashes, partition, local: of entities."""
    of_row = partition[parsed.entity]
    order = np.argsort(of_row, kind="stable")
    records = np.zeros(len(order), ALONE if parsed.peers is None else WITH_PEER)
    records["micros"], records["code"] = parsed.micros[order], parsed.codes[order]
    records["entity"] = local[parsed.entity[order]]
    mixed = None
    if parsed.peers is not None and parsed.peer is not None:
        peer = parsed.peer[order]
        records["word0"], records["word1"] = parsed.peers.words()[peer].T
        records["family"] = parsed.peers.family[peer]
        mixed = mixed_peers(parsed.peers)[parsed.peer]
    total = multiset_sum(hashes[parsed.entity], parsed.micros // 1_000_000, mixed, parsed.codes)
    return records, np.bincount(of_row, minlength=partitions), total


@dataclass(frozen=True)
class Segment:
    """What one batch of a piece holds of a partition: byte places and counts."""

    path: Path
    entities_at: int
    entities: int
    records_at: int
    records: int


def read_entities(segments: Sequence[Segment]) -> Records:
    """Read records of `ENTITY` of all segments, end to end."""
    out = np.empty(sum(each.entities for each in segments), ENTITY)
    at = 0
    for each in segments:
        read_into(out[at : at + each.entities], each.path, each.entities_at)
        at += each.entities
    return out


def read_into(out: npt.NDArray[Any], path: Path, at: int) -> None:
    """Fill `out` with what begins at this byte of a piece."""
    left = out.view(np.uint8).data
    with path.open("rb", buffering=0) as file:
        file.seek(at)
        while len(left):
            count = file.readinto(left)
            if not count:
                raise _cut(path)
            left = left[count:]


def segments(paths: Sequence[Path], partition: int, dtype: np.dtype[np.void]) -> Iterator[Segment]:
    """Find the segments of a partition, piece by piece; those without measurements are left out."""
    for path in paths:
        try:
            # Mapped, as only the partition's own numbers are read; a plain array is sliced faster than a memmap.
            words = np.memmap(path, "<i8", "r").view(np.ndarray)
            batches, partitions, layout = words[-3:].tolist()
            if layout != _LAYOUT:
                raise CorruptShard(f"{path}: is of another headrace; remove the run's directory and prepare it again")
            width = 1 + 2 * (partitions + 1)
            directory = words[len(words) - 3 - batches * width : -3].reshape(batches, width)
        except ValueError:
            raise _cut(path) from None
        begin, entities, all_entities = (
            directory[:, 0],
            directory[:, 1 + partition :][:, :2],
            directory[:, 1 + partitions],
        )
        records = directory[:, 2 + partitions + partition :][:, :2]
        for batch in np.flatnonzero(records[:, 1] > records[:, 0]).tolist():
            (first_entity, last_entity), (first, last) = entities[batch].tolist(), records[batch].tolist()
            records_at = int(begin[batch] + all_entities[batch] * ENTITY.itemsize)
            yield Segment(
                path,
                int(begin[batch]) + first_entity * ENTITY.itemsize,
                last_entity - first_entity,
                records_at + first * dtype.itemsize,
                last - first,
            )


def _cut(path: Path) -> CorruptShard:
    return CorruptShard(f"{path}: ends early; remove the run's directory and prepare it again")


def partition_of(order: npt.NDArray[np.uint64], partitions: int) -> npt.NDArray[np.uint16]:
    """Choose the partition of each entity by equal ranges of the upper half of its hash: they follow hash order."""
    return ((order >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)).astype(np.uint16)
