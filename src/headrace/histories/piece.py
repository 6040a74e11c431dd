"""Pass 1 on disk: the measurements of one source shard as records of fixed size, grouped by partition.

A piece file is batches, each of them the batch's entities and then its records, both ordered by partition; behind the
last batch stand the directory of batches (where each begins, and how many entities and records are in the partitions
before each), its shape, and a number for this layout. A partition reads of every piece only what is its own.
"""

from __future__ import annotations

import os
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
        """One batch; returns its `multiset_sum`. hashes: of the entities. compiled: by numba, the same bytes."""
        if not len(parsed.micros):
            return 0
        partition = partition_of(hashes, self._partitions)
        place = _placed_compiled if compiled else _placed
        entities, local, held = place(parsed.entities, partition, self._partitions)
        group = _grouped_compiled if compiled else _grouped
        records, counts, total = group(parsed, hashes, partition, local, self._partitions)
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
    """Records of the entities, partition by partition, the place of each in its own, and how many each has."""
    by_partition = np.argsort(partition, kind="stable")
    records = np.zeros(len(by_partition), ENTITY)
    words = entities.words()[by_partition]
    records["word0"], records["word1"] = words[:, 0], words[:, 1]
    records["family"] = entities.family[by_partition]
    held = np.bincount(partition, minlength=partitions)
    before = np.cumsum(held) - held
    local = np.empty(len(by_partition), np.int64)
    local[by_partition] = np.arange(len(by_partition)) - before[partition[by_partition]]
    return records, local, held


def _placed_compiled(entities: Addresses, partition: U16, partitions: int) -> tuple[U64, I64, I64]:
    from headrace.histories.codec.gather_kernels import placed

    return placed(partition, entities.family, entities.bytes, partitions)


def _grouped(parsed: Parsed, hashes: U64, partition: U16, local: I64, partitions: int) -> tuple[Records, I64, int]:
    """Records of the measurements, partition by partition, how many each has, and the sum of all.

    hashes, partition, local: of entities.
    """
    of_row = partition[parsed.entity]
    order = np.argsort(of_row, kind="stable")
    records = np.zeros(len(order), ALONE if parsed.peers is None else WITH_PEER)
    records["micros"], records["code"] = parsed.micros[order], parsed.codes[order]
    records["entity"] = local[parsed.entity[order]]
    if parsed.peers is not None and parsed.peer is not None:
        peer, words = parsed.peer[order], parsed.peers.words()
        records["word0"], records["word1"] = words[peer, 0], words[peer, 1]
        records["family"] = parsed.peers.family[peer]
    mixed = None
    if parsed.peers is not None and parsed.peer is not None:
        mixed = mixed_peers(parsed.peers)[parsed.peer]
    total = multiset_sum(hashes[parsed.entity], parsed.micros // 1_000_000, mixed, parsed.codes)
    return records, np.bincount(of_row, minlength=partitions), total


def _grouped_compiled(parsed: Parsed, hashes: U64, partition: U16, local: I64, partitions: int) -> tuple[U64, I64, int]:
    from headrace.histories.codec.gather_kernels import Keyed, grouped

    peer = None
    if parsed.peers is not None and parsed.peer is not None:
        peer = (parsed.peer, parsed.peers.family, parsed.peers.bytes)
    entities = Keyed(partition, local, hashes)
    return grouped(entities, parsed.entity, parsed.micros, parsed.codes, peer, partitions)


@dataclass(frozen=True)
class Segment:
    """What one batch of a piece holds of a partition: byte places and counts."""

    path: Path
    entities_at: int
    entities: int
    records_at: int
    records: int


def read_entities(segments: Sequence[Segment]) -> Records:
    """Records of `ENTITY` of all segments, end to end."""
    out = np.empty(sum(each.entities for each in segments), ENTITY)
    at = 0
    with Reading() as files:
        for each in segments:
            files.read(each.path, each.entities_at, out[at : at + each.entities])
            at += each.entities
    return out


class Reading:
    """Pieces that are being read, one open at a time: segments of one piece stand behind each other."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file = -1

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, path: Path, at: int, out: npt.NDArray[Any]) -> None:
        """Fill `out` with what begins at this byte."""
        self._open(path)
        left = out.view(np.uint8).data
        while len(left):
            count = os.preadv(self._file, [left], at) if at >= 0 else 0
            if not count:
                raise CorruptShard(f"{path}: ends early; remove the run's directory and prepare it again")
            left, at = left[count:], at + count

    def size(self, path: Path) -> int:
        """How many bytes the piece has."""
        self._open(path)
        return os.fstat(self._file).st_size

    def _open(self, path: Path) -> None:
        if path is not self._path:
            self._close()
            self._file, self._path = os.open(path, os.O_RDONLY | os.O_CLOEXEC), path

    def _close(self) -> None:
        if self._path is not None:
            os.close(self._file)
            self._path = None


def segments(paths: Sequence[Path], partition: int, dtype: np.dtype[np.void]) -> Iterator[Segment]:
    """The segments of a partition, piece by piece; those without measurements are left out."""
    with Reading() as files:
        for path in paths:
            yield from _segments(files, path, partition, dtype)


def _segments(files: Reading, path: Path, partition: int, dtype: np.dtype[np.void]) -> Iterator[Segment]:
    # Of a batch's row in the directory a partition reads its own numbers alone, and not those of all the others.
    shape = np.empty(3, "<i8")
    end = files.size(path) - shape.nbytes
    files.read(path, end, shape)
    batches, partitions, layout = shape.tolist()
    if layout != _LAYOUT:
        raise CorruptShard(f"{path}: is of another headrace; remove the run's directory and prepare it again")
    width = 1 + 2 * (partitions + 1)
    begin, entities, records = np.empty(1, "<i8"), np.empty(2, "<i8"), np.empty(2, "<i8")
    last = np.empty(1, "<i8")
    for batch in range(batches):
        row = end - 8 * (batches - batch) * width
        for place, out in ((0, begin), (1 + partition, entities), (1 + partitions, last)):
            files.read(path, row + 8 * place, out)
        files.read(path, row + 8 * (2 + partitions + partition), records)
        if records[1] > records[0]:
            yield Segment(
                path,
                int(begin[0] + entities[0] * ENTITY.itemsize),
                int(entities[1] - entities[0]),
                int(begin[0] + last[0] * ENTITY.itemsize + records[0] * dtype.itemsize),
                int(records[1] - records[0]),
            )


def partition_of(order: npt.NDArray[np.uint64], partitions: int) -> npt.NDArray[np.uint16]:
    """The partition of each entity: equal ranges of the upper half of its hash, so partitions follow hash order."""
    return ((order >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)).astype(np.uint16)
