"""Store pass 1 on disk: the measurements of one source shard as records of fixed size, grouped by partition.

A piece file is a sequence of batches. A batch has its entities, its narrow records and its other records, each ordered
by partition. A measurement whose peer is an IPv4 address or a number is a narrow record of half the size, which counts
its time from the first of the batch. The last batch is followed by the directory of batches (where each begins, the
time that its narrow records count from, and how many entities and records are in the partitions before each), the shape
of the directory, and a number for this layout. A partition reads only its own parts of every piece.

Keyed hashes choose partitions, splits and samples, and prove that no measurement is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.arrays import I64, U16, U64, Bools
from headrace.digest import derive_key
from headrace.errors import CorruptShard
from headrace.histories.codec.addresses import KINDS, Addresses, Kind
from headrace.histories.codec.values import mixed_values
from headrace.keyed_hash import hash_words
from headrace.run.context import STAGE_DIRECTORY

_ODD = np.uint64(0x9E3779B97F4A7C15)
_AT_ONCE = 1 << 15  # measurements hashed at a time, so that they stay in the processor's cache


def piece_file(number: int) -> str:
    """Return the path of a source shard's piece, relative to the run."""
    return f"{STAGE_DIRECTORY}/piece-{number:05d}.bin"


@dataclass(frozen=True)
class EntityHashes:
    """Two hashes of each entity, uint64 [N].

    order: entities are partitioned and sorted by it.
    side: decides train or test.
    """

    order: U64
    side: U64

    def train(self, ratio: float) -> Bools:
        """Return which entities train: those whose `side` is below this share of 2**64."""
        limit = int(ratio * 2.0**64)
        if limit >= 1 << 64:
            return np.ones(len(self.side), np.bool_)
        return np.less(self.side, np.uint64(limit))


def hash_entities(
    entities: Addresses, kind: Kind, seed: int, *, compiled: bool = False, half: Literal["both", "high"] = "both"
) -> EntityHashes:
    """Hash every entity twice: [N].

    compiled: use numba, which gives the same hashes in a tenth of the time.
    half: "high" computes only `order`, which takes three quarters of the compiled time.
    """
    key = derive_key(seed, "histories.entity")
    if compiled:
        from headrace.histories.codec.kernels import hash_addresses

        return EntityHashes(*hash_addresses(key, entities.family, entities.bytes, KINDS.index(kind), half=half))
    words = np.empty((len(entities), 3), np.uint64)
    words[:, 0] = entities.family.astype(np.uint64) | np.uint64(KINDS.index(kind) << 8)
    words[:, 1:] = entities.words()
    return EntityHashes(*hash_words(key, words))


def sampled(shard: str, first_row: int, rows: int, rate: float, seed: int) -> Bools:
    """Return which of the rows first_row..first_row + rows - 1 of a shard are in the sample: bool [rows]."""
    name = int.from_bytes(blake2b(shard.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")
    words = np.empty((rows, 2), np.uint64)
    words[:, 0], words[:, 1] = name, np.arange(first_row, first_row + rows, dtype=np.uint64)
    high, _ = hash_words(derive_key(seed, "histories.sample"), words)
    limit = int(rate * 2.0**64)
    return np.ones(rows, np.bool_) if limit >= 1 << 64 else np.less(high, np.uint64(limit))


def mixed_peers(peers: Addresses) -> U64:
    """Mix every peer to 64 bits, for `multiset_sum`."""
    word0, word1 = peers.words().T
    return _mix(_mix(word0 + peers.family) ^ word1)


def mixed_with(peer: U64 | None, words: U64 | None) -> U64 | None:
    """Mix the words of values into peers from `mixed_peers`; either may be missing."""
    if words is None:
        return peer
    return mixed_values(words) if peer is None else peer ^ mixed_values(words)


def multiset_sum(entity: U64, seconds: I64, peer: U64 | None, codes: npt.NDArray[np.uint16]) -> int:
    """Sum one hash per measurement modulo 2**64; the sum does not depend on the order of measurements.

    entity: order hash of each measurement's entity.
    peer: from `mixed_peers`, or `mixed_with` of values. The sum reveals lost, doubled and changed measurements. The
    hash is keyed through the entity's hash, which does not protect against an attacker. About 15 ns per measurement.
    """
    total = 0
    for first in range(0, len(codes), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        value = entity[part] + _mix(seconds[part].astype(np.uint64) << np.uint64(16) | codes[part])
        if peer is not None:
            value ^= peer[part]
        total += int(_mix(value + _ODD).sum(dtype=np.uint64))  # zeros count too
    return total % (1 << 64)


def _mix(x: U64) -> U64:
    """Mix a word with the finaliser of splitmix64 (Steele, Lea and Flood, 2014), whose avalanche is full."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


ENTITY = np.dtype([("word0", "<u8"), ("word1", "<u8"), ("family", "u1"), ("zero", "u1", 7)])
# entity: index among the batch's entities of the partition; in memory, among all entities of the partition.
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

# since: microseconds from the first of the batch, above 16 bits of code. peer: the first four bytes of an IPv4 address,
# the others being zero.
NARROW = np.dtype([("since", "<u8"), ("entity", "<u4"), ("peer", "<u4")])
_LONGEST_US = 1 << 48  # what `since` can count, nine years

Records = npt.NDArray[np.void]


def record_of(base: np.dtype[np.void], words: int) -> np.dtype[np.void]:
    """Return the record type with this many words of value columns appended, see `codec.values`."""
    return np.dtype([*base.descr, ("more", "<u8", (words,))]) if words else base


_LAYOUT = 0x33_4543454950  # "PIECE3"; a resumed run may have pieces of another version


@dataclass(frozen=True)
class Parsed:
    """The measurements of a chunk, in source order, [M].

    micros: int64, since 1970, UTC.
    codes: uint16.
    entity, peer: int64, indices in entities and peers (None without peers).
    more: uint64 [M, K], words of the value columns, None without.
    texts: by dictionary, the distinct texts of these measurements.
    """

    micros: I64
    codes: U16
    entities: Addresses
    entity: I64
    peers: Addresses | None
    peer: I64 | None
    clamped: int
    more: U64 | None = None
    texts: Mapping[str, pa.Array] = field(default_factory=dict)


def joined(parts: Sequence[Parsed], *, compiled: bool = False) -> Parsed:
    """Join consecutive chunks of a shard. Entities that are in several of them are kept once; texts are left out."""
    if len(parts) == 1:
        return parts[0]
    family, data = (np.concatenate([getattr(each.entities, name) for each in parts]) for name in ("family", "bytes"))
    before = np.cumsum([0, *(len(each.entities) for each in parts)])
    entities = Addresses(family, data)
    entity = np.concatenate([each.entity + first for each, first in zip(parts, before[:-1], strict=True)])
    if compiled and len(entities) < len(entity) // 2:  # else hardly any repeats, and telling them apart is in vain
        from headrace.histories.codec.kernels import distinct

        place, found = distinct(data.view(np.uint64), family.astype(np.uint64)[:, None])
        entities = Addresses(found[:, 2].astype(np.uint8), np.ascontiguousarray(found[:, :2]).view(np.uint8))
        entity = place.astype(np.int64)[entity]
    peers, peer, more = None, None, None
    if parts[0].peers is not None:
        held = [each.peers for each in parts if each.peers is not None]
        peers = Addresses(np.concatenate([each.family for each in held]), np.concatenate([each.bytes for each in held]))
        ends = np.cumsum([0, *map(len, held)])
        peer = np.concatenate(
            [each.peer + first for each, first in zip(parts, ends[:-1], strict=True) if each.peer is not None]
        )
    if parts[0].more is not None:
        more = np.concatenate([each.more for each in parts if each.more is not None])
    micros, codes = (np.concatenate([getattr(each, name) for each in parts]) for name in ("micros", "codes"))
    return Parsed(micros, codes, entities, entity, peers, peer, sum(each.clamped for each in parts), more)


class PieceWriter:
    """Write the piece of one source shard."""

    def __init__(self, file: BinaryIO, partitions: int) -> None:
        self._file, self._partitions = file, partitions
        self._directory: list[I64] = []
        self._checksum = xxhash.xxh3_128()

    def append(self, parsed: Parsed, hashes: U64, *, compiled: bool = False) -> int:
        """Write one batch; return its `multiset_sum`.

        hashes: of the entities.
        compiled: use numba, which writes the same bytes.
        """
        partition = partition_of(hashes, self._partitions)
        more = np.zeros((len(parsed.micros), 0), np.uint64) if parsed.more is None else parsed.more
        base = int(parsed.micros.min())
        if parsed.peers is None or int(parsed.micros.max()) - base >= _LONGEST_US:
            base = -1
        entities: Records | U64
        if compiled:
            from headrace.histories.codec import kernels

            found, columns = parsed.entities, (parsed.entity, parsed.micros, parsed.codes)
            peer = None
            if parsed.peers is not None and parsed.peer is not None:
                peer = (parsed.peer, parsed.peers.family, parsed.peers.bytes)
            mixed = mixed_values(more) if more.shape[1] else np.zeros(0, np.uint64)
            entities, local, held = kernels.placed(partition, found.family, found.bytes, self._partitions)
            of_entities = (partition, local, hashes)
            narrow, wide, counts, total = kernels.grouped(
                of_entities, columns, peer, (more, mixed), base, self._partitions
            )
        else:
            entities, local, held = _placed(parsed.entities, partition, self._partitions)
            narrow, wide, counts, total = _grouped(parsed, hashes, (partition, local), more, base, self._partitions)
        begin = self._file.tell()
        for part in (entities, narrow, wide):
            self._write(part.view(np.uint8).reshape(-1).data)
        zero = np.zeros(1, np.int64)
        row = [begin + zero, base + zero, *(np.cumsum([0, *each]) for each in (held, *counts))]
        self._directory.append(np.concatenate(row).astype("<i8"))
        return total

    def finish(self) -> str:
        """Write the directory; return the XXH3-128 of the whole file."""
        for row in self._directory:
            self._write(row.tobytes())
        self._write(np.array([len(self._directory), self._partitions, _LAYOUT], "<i8").tobytes())
        return self._checksum.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
        self._checksum.update(data)
        self._file.write(data)


def _placed(entities: Addresses, partition: U16, partitions: int) -> tuple[Records, I64, I64]:
    """Compute `kernels.placed` in numpy."""
    by_partition = np.argsort(partition, kind="stable")
    records = np.zeros(len(by_partition), ENTITY)
    records["word0"], records["word1"] = entities.words()[by_partition].T
    records["family"] = entities.family[by_partition]
    held = np.bincount(partition, minlength=partitions)
    local = np.empty(len(by_partition), np.int64)
    local[by_partition] = np.arange(len(by_partition)) - np.repeat(np.cumsum(held) - held, held)
    return records, local, held


def _grouped(
    parsed: Parsed, hashes: U64, of_entities: tuple[U16, I64], more: U64, base: int, partitions: int
) -> tuple[U64, U64, I64, int]:
    """Compute `kernels.grouped` in numpy. hashes, of_entities: of entities, the latter their partition and index."""
    partition, local = of_entities
    of_row, mixed, is_narrow = partition[parsed.entity], None, np.zeros(len(parsed.entity), np.bool_)
    peer = words = None
    if parsed.peers is not None and parsed.peer is not None:
        peer, words, mixed = parsed.peer, parsed.peers.words(), mixed_peers(parsed.peers)[parsed.peer]
        small = (parsed.peers.family == 4) & (words[:, 0] & np.uint64(0xFFFFFFFF) == 0) & (words[:, 1] == 0)
        is_narrow = small[peer] & (base >= 0)
    parts: list[U64] = []
    for kind in (True, False):
        order = np.flatnonzero(is_narrow == kind)
        order = order[np.argsort(of_row[order], kind="stable")]
        records = np.zeros(len(order), NARROW if kind else ALONE if peer is None else WITH_PEER)
        records["entity"] = local[parsed.entity[order]]
        micros, codes = parsed.micros[order], parsed.codes[order]
        if kind:
            records["since"] = (micros - base).astype(np.uint64) << np.uint64(16) | codes
        else:
            records["micros"], records["code"] = micros, codes
        if peer is not None and words is not None and parsed.peers is not None:
            if kind:
                records["peer"] = words[peer[order], 0] >> np.uint64(32)
            else:
                records["word0"], records["word1"] = words[peer[order]].T
                records["family"] = parsed.peers.family[peer[order]]
        own = records.view(np.uint64).reshape(len(order), records.dtype.itemsize // 8)
        parts.append(np.hstack([own, more[order]]))
    mixed = mixed_with(mixed, more if more.shape[1] else None)
    total = multiset_sum(hashes[parsed.entity], parsed.micros // 1_000_000, mixed, parsed.codes)
    counts = [np.bincount(of_row[is_narrow == kind], minlength=partitions) for kind in (True, False)]
    return parts[0], parts[1], np.array(counts), total


@dataclass(frozen=True)
class Segment:
    """The part of a partition in one batch of a piece: byte offsets and counts. base: see `NARROW`."""

    path: Path
    base: int
    entities_at: int
    entities: int
    narrow_at: int
    narrow: int
    wide_at: int
    wide: int

    @property
    def records(self) -> int:
        """The number of all records."""
        return self.narrow + self.wide


Read = Callable[[npt.NDArray[Any], Path, int], None]


def read_entities(segments: Sequence[Segment]) -> Records:
    """Read the `ENTITY` records of all segments, end to end."""
    out = np.empty(sum(each.entities for each in segments), ENTITY)
    at = 0
    with reading() as read:
        for each in segments:
            read(out[at : at + each.entities], each.path, each.entities_at)
            at += each.entities
    return out


@contextmanager
def reading() -> Iterator[Read]:
    """Give a function that fills an array with the bytes of a file from an offset on.

    The file that was read last stays open, because a partition has several parts in each.
    """
    held: dict[Path, int] = {}

    def read(out: npt.NDArray[Any], path: Path, at: int) -> None:
        if path not in held:
            while held:
                os.close(held.popitem()[1])
            held[path] = os.open(path, os.O_RDONLY)  # three times faster than a file object
        left = out.view(np.uint8).reshape(-1).data
        while len(left):
            count = os.preadv(held[path], [left], at)
            if not count:
                raise _cut(path)
            left, at = left[count:], at + count

    try:
        yield read
    finally:
        for descriptor in held.values():
            os.close(descriptor)


def segments(paths: Sequence[Path], partition: int, dtype: np.dtype[np.void]) -> Iterator[Segment]:
    """Yield the segments of a partition, piece by piece; segments without measurements are left out.

    dtype: of the records that are not narrow.
    """
    narrow_bytes = NARROW.itemsize + (dtype["more"].itemsize if "more" in (dtype.names or ()) else 0)
    for path in paths:
        try:
            # Mapped, because only the partition's own numbers are read. numpy.memmap takes ten times as long, and
            # every partition opens the piece of every shard.
            with path.open("rb", buffering=0) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
                rows = _directory(np.frombuffer(mapped, "<i8"), path, partition)
        except ValueError:
            raise _cut(path) from None
        for begin, base, entity, after, entities, narrow, after_narrow, all_narrow, wide, after_wide in rows:
            if after_narrow - narrow + after_wide - wide == 0:
                continue
            narrow_at = begin + entities * ENTITY.itemsize
            yield Segment(
                path,
                base,
                begin + entity * ENTITY.itemsize,
                after - entity,
                narrow_at + narrow * narrow_bytes,
                after_narrow - narrow,
                narrow_at + all_narrow * narrow_bytes + wide * dtype.itemsize,
                after_wide - wide,
            )


def _directory(words: I64, path: Path, partition: int) -> list[list[int]]:
    """Copy the entries of a partition from the directory of a piece.

    Returns, for each batch: where it begins and what its times count from; the entities before the partition's first
    and last, and all of them; the same of narrow records; and the other records before the partition's first and last.
    """
    batches, partitions, layout = words[-3:].tolist()
    if layout != _LAYOUT:
        raise CorruptShard(
            f"{path}: was written by another version of headrace; remove the run's directory and prepare it again"
        )
    width = 2 + 3 * (partitions + 1)
    directory = words[len(words) - 3 - batches * width : -3].reshape(batches, width)
    entity, narrow, wide = (2 + kind * (partitions + 1) for kind in range(3))
    of_entities, of_narrow = (
        [first + partition, first + partition + 1, first + partitions] for first in (entity, narrow)
    )
    found: list[list[int]] = directory[
        :, [0, 1, *of_entities, *of_narrow, wide + partition, wide + partition + 1]
    ].tolist()
    return found


def _cut(path: Path) -> CorruptShard:
    return CorruptShard(f"{path}: ends early; remove the run's directory and prepare it again")


def partition_of(order: npt.NDArray[np.uint64], partitions: int) -> npt.NDArray[np.uint16]:
    """Return the partition of each entity.

    Partitions are equal ranges of the upper half of the hash, so they follow hash order.
    """
    return ((order >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)).astype(np.uint16)
