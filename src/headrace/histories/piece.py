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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.arrays import I64, U8, U16, U64, Bools, borders_of, ranges
from headrace.digest import derive_key
from headrace.draws import GAMMA, mix
from headrace.errors import CorruptShard
from headrace.histories.codec.addresses import KINDS, Addresses, Kind, end_to_end, of_words
from headrace.histories.codec.values import mixed_values
from headrace.keyed_hash import hash_words
from headrace.run.context import STAGE_DIRECTORY

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
        return _in_share(self.side, ratio)


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
    return _in_share(high, rate)


def _in_share(words: U64, share: float) -> Bools:
    limit = int(share * 2.0**64)
    return np.ones(len(words), np.bool_) if limit >= 1 << 64 else np.less(words, np.uint64(limit))


def mixed_peers(peers: Addresses) -> U64:
    """Mix every peer to 64 bits, for `multiset_sum`."""
    word0, word1 = peers.words().T
    return mix(mix(word0 + peers.family) ^ word1)


def mixed_with(peer: U64 | None, words: U64 | None) -> U64 | None:
    """Mix the words of values into peers from `mixed_peers`; either may be missing."""
    if words is None:
        return peer
    return mixed_values(words) if peer is None else peer ^ mixed_values(words)


def multiset_sum(entity: U64, seconds: I64, peer: U64 | None, codes: U16) -> int:
    """Sum one hash per measurement modulo 2**64; the sum does not depend on the order of measurements.

    entity: order hash of each measurement's entity.
    peer: from `mixed_peers`, or `mixed_with` of values. The sum reveals lost, doubled and changed measurements. The
    hash is keyed through the entity's hash, which does not protect against an attacker. About 15 ns per measurement.
    """
    total = 0
    for first in range(0, len(codes), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        value = entity[part] + mix(seconds[part].astype(np.uint64) << np.uint64(16) | codes[part])
        if peer is not None:
            value ^= peer[part]
        total += int(mix(value + np.uint64(GAMMA)).sum(dtype=np.uint64))  # zeros count too
    return total % (1 << 64)


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


def words_of_values(record: np.dtype[np.void]) -> int:
    """Return the number of words of value columns in a record type."""
    return record["more"].shape[0] if "more" in (record.names or ()) else 0


def words_of(records: Records) -> U64:
    """View records as words: uint64 [N, W]."""
    return records.view(np.uint64).reshape(len(records), records.dtype.itemsize // 8)


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
    entities = end_to_end([each.entities for each in parts])
    before = borders_of([len(each.entities) for each in parts])
    entity = np.concatenate([each.entity + first for each, first in zip(parts, before[:-1], strict=True)])
    if compiled and len(entities) < len(entity) // 2:  # else hardly any repeats, and telling them apart is in vain
        from headrace.histories.codec.kernels import distinct

        place, found = distinct(entities.bytes.view(np.uint64), entities.family.astype(np.uint64)[:, None])
        entities = Addresses(found[:, 2].astype(np.uint8), np.ascontiguousarray(found[:, :2]).view(np.uint8))
        entity = place.astype(np.int64)[entity]
    peers, peer, more = None, None, None
    if parts[0].peers is not None:
        held = [each.peers for each in parts if each.peers is not None]
        peers = end_to_end(held)
        ends = borders_of([*map(len, held)])
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
        mixed = mixed_values(more) if more.shape[1] else np.zeros(0, np.uint64)
        found, base = parsed.entities, int(parsed.micros.min())
        peers = Addresses(np.zeros(0, np.uint8), np.zeros((0, 16), np.uint8)) if parsed.peers is None else parsed.peers
        peer = np.zeros(0, np.int64) if parsed.peer is None else parsed.peer
        if not len(peer) or int(parsed.micros.max()) - base >= _LONGEST_US:
            base = -1
        if compiled:
            from headrace.histories.codec.kernels import grouped, placed
        else:
            grouped, placed = _grouped, _placed
        entities, local, held = placed(partition, found.family, found.bytes.view(np.uint64), self._partitions)
        narrow, wide, counts, total = grouped(
            partition, local, hashes, parsed.entity, parsed.micros, parsed.codes,
            peer, peers.family, peers.bytes.view(np.uint64), more, mixed, base, self._partitions,
        )  # fmt: skip
        begin = self._file.tell()
        for part in (entities, narrow, wide):
            self._write(part.view(np.uint8).reshape(-1).data)
        zero = np.zeros(1, np.int64)
        row = [begin + zero, base + zero, *(np.cumsum([0, *each]) for each in (held, *counts))]
        self._directory.append(np.concatenate(row).astype("<i8"))
        return int(total)

    def finish(self) -> str:
        """Write the directory; return the XXH3-128 of the whole file."""
        for row in self._directory:
            self._write(row.tobytes())
        self._write(np.array([len(self._directory), self._partitions, _LAYOUT], "<i8").tobytes())
        return self._checksum.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
        self._checksum.update(data)
        self._file.write(data)


def _placed(partition: U16, family: U8, words: U64, partitions: int) -> tuple[U64, I64, I64]:
    """Compute `kernels.placed` in numpy."""
    by_partition = np.argsort(partition, kind="stable")
    held = np.bincount(partition, minlength=partitions)
    local = np.empty(len(by_partition), np.int64)
    local[by_partition] = ranges(0, held)
    return np.column_stack([words.byteswap(), family])[by_partition], local, held


def _grouped(
    partition: U16, local: I64, hashes: U64, entity: I64, micros: I64, codes: U16, peer: I64, peer_family: U8,
    peer_words: U64, more: U64, mixed: U64, base: int, partitions: int,
) -> tuple[U64, U64, I64, int]:  # fmt: skip
    """Compute `kernels.grouped` in numpy."""
    words, is_narrow = peer_words.byteswap(), np.zeros(len(entity), np.bool_)
    if len(peer):
        small = (peer_family == 4) & (words[:, 0] & np.uint64(0xFFFFFFFF) == 0) & (words[:, 1] == 0)
        is_narrow = small[peer] & (base >= 0)
        of_peers = mixed_peers(of_words(peer_family, words))[peer]
        mixed = of_peers ^ mixed if len(mixed) else of_peers
    of_row, parts = partition[entity], list[U64]()
    for kind in (True, False):
        order = np.flatnonzero(is_narrow == kind)
        order = order[np.argsort(of_row[order], kind="stable")]
        records = np.zeros(len(order), NARROW if kind else WITH_PEER if len(peer) else ALONE)
        records["entity"] = local[entity[order]]
        if kind:
            records["since"] = (micros[order] - base).astype(np.uint64) << np.uint64(16) | codes[order]
            records["peer"] = words[peer[order], 0] >> np.uint64(32)
        else:
            records["micros"], records["code"] = micros[order], codes[order]
            if len(peer):
                records["word0"], records["word1"] = words[peer[order]].T
                records["family"] = peer_family[peer[order]]
        parts.append(np.hstack([words_of(records), more[order]]))
    total = multiset_sum(hashes[entity], micros // 1_000_000, mixed if len(mixed) else None, codes)
    counts = [np.bincount(of_row[is_narrow == kind], minlength=partitions) for kind in (True, False)]
    return parts[0], parts[1], np.array(counts), total


@dataclass(frozen=True)
class Parts:
    """Locate the records of one partition in every batch of every piece that has measurements of it, [S].

    piece: index in paths. base: see `NARROW`.
    at, count: int64 [S, 3], the byte offset and the number of entities, of narrow records and of the others.
    """

    paths: Sequence[Path]
    piece: I64
    base: I64
    at: I64
    count: I64

    def entities(self) -> Records:
        """Read the `ENTITY` records of all parts, end to end."""
        out = np.empty(int(self.count[:, 0].sum()), ENTITY)
        read_records(out, self.paths, self.piece, self.at[:, 0], self.count[:, 0])
        return out


def parts_of(paths: Sequence[Path], partition: int, dtype: np.dtype[np.void]) -> Parts:
    """Find the parts of a partition, piece by piece. dtype: of the records that are not narrow."""
    found = [np.zeros((0, 11), np.int64)]
    for path in paths:
        try:
            # Mapped, because only the partition's own numbers are read. numpy.memmap takes ten times as long, and
            # every partition opens the piece of every shard.
            with path.open("rb", buffering=0) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
                found.append(_directory(np.frombuffer(mapped, "<i8"), path, partition))
        except ValueError:
            raise _cut(path) from None
    rows, piece = np.concatenate(found), np.repeat(np.arange(len(paths)), [len(each) for each in found[1:]])
    before = rows[:, 2:].reshape(-1, 3, 3)  # of each kind: in the partitions before, with this one, and in all
    sizes = np.array([ENTITY.itemsize, record_of(NARROW, words_of_values(dtype)).itemsize, dtype.itemsize])
    whole, count = before[:, :, 2] * sizes, before[:, :, 1] - before[:, :, 0]
    at = rows[:, :1] + np.cumsum(whole, axis=1) - whole + before[:, :, 0] * sizes
    some = np.flatnonzero(count[:, 1:].any(axis=1))
    return Parts(paths, piece[some], rows[some, 1], at[some], count[some])


def _directory(words: I64, path: Path, partition: int) -> I64:
    """Copy the entries of a partition from the directory of a piece: int64 [batches, 11].

    These are where a batch begins and what its times count from; and of its entities, narrow records and other records
    how many are in the partitions before, how many with this one, and how many in all.
    """
    batches, partitions, layout = words[-3:].tolist()
    if layout != _LAYOUT:
        raise CorruptShard(
            f"{path}: was written by another version of headrace; remove the run's directory and prepare it again"
        )
    width = 2 + 3 * (partitions + 1)
    of_kind = [partition, partition + 1, partitions]
    columns = [0, 1, *(2 + kind * (partitions + 1) + each for kind in range(3) for each in of_kind)]
    directory = words[len(words) - 3 - batches * width : -3].reshape(batches, width)
    found: I64 = directory[:, columns]
    return found


def read_records(out: Records, paths: Sequence[Path], piece: I64, at: I64, count: I64) -> None:
    """Fill an array with records of files, end to end.

    piece, at, count: int64 [S], of each range of records its file, byte offset and number.
    """
    data, begin, held, file = out.view(np.uint8).reshape(-1).data, 0, -1, -1
    try:
        for number, offset, size in zip(piece.tolist(), at.tolist(), (count * out.itemsize).tolist(), strict=True):
            if number != held:
                if file >= 0:
                    os.close(file)
                    file = -1  # the next one may not open
                held, file = number, os.open(paths[number], os.O_RDONLY)  # three times faster than a file object
            end = begin + size
            while begin < end:
                got = os.preadv(file, [data[begin:end]], offset)
                if not got:
                    raise _cut(paths[number])
                begin, offset = begin + got, offset + got
    finally:
        if file >= 0:
            os.close(file)


def _cut(path: Path) -> CorruptShard:
    return CorruptShard(f"{path}: ends early; remove the run's directory and prepare it again")


def partition_of(order: U64, partitions: int) -> U16:
    """Return the partition of each entity.

    Partitions are equal ranges of the upper half of the hash, so they follow hash order.
    """
    return ((order >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)).astype(np.uint16)
