"""Store pass 1 on disk: the measurements of one source shard as records of fixed size, grouped by
partition.

A spill file is a sequence of batches. A batch has its entities, its narrow records and its wide
records, each ordered by partition. A measurement whose peer is an IPv4 address or a number is a
narrow record of half the size, which counts its time from the first of the batch. The last batch is
followed by the directory of batches (where each starts, the time that its narrow records count
from, and how many entities and records are in the partitions before each), the shape of the
directory, and a number for this layout. A partition reads only its parts of every file.

Keyed hashes choose partitions, splits and samples, and prove that no measurement is lost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.arrays import I64, U16, U64, Bools, offsets_from_lengths
from headrace.digest import derive_key
from headrace.draws import GAMMA, mix
from headrace.errors import CorruptShard
from headrace.gate.mapped import map_bytes
from headrace.histories import ID_KINDS, IdKind
from headrace.histories.codec.addresses import (
    NO_ADDRESSES,
    Addresses,
    concatenate,
    from_native_words,
)
from headrace.histories.codec.kernels import (
    NO_BASE,
    distinct,
    group_entities,
    group_measurements,
    hash_addresses,
)
from headrace.histories.codec.values import mix_values
from headrace.keyed_hash import hash_words
from headrace.run.context import STAGE_DIRECTORY

_AT_ONCE = 1 << 15  # measurements hashed at a time, so that they stay in the processor's cache


def spill_path(shard: int) -> str:
    """Return the path of a source shard's spill file, relative to the run."""
    return f"{STAGE_DIRECTORY}/spill-{shard:05d}.bin"


@dataclass(frozen=True)
class EntityHashes:
    """Two hashes of each entity, uint64 [N].

    order: entities are partitioned and sorted by it.
    side: decides train or test.
    """

    order: U64
    side: U64

    def in_train(self, ratio: float) -> Bools:
        """Return which entities are in train: those whose `side` is below this fraction of
        2**64.
        """
        return _below_fraction(self.side, ratio)


def hash_entities(
    entities: Addresses, id_kind: IdKind, seed: int, *, half: Literal["both", "high"] = "both"
) -> EntityHashes:
    """Hash every entity twice: [N].

    half: "high" computes only `order`, which takes three quarters of the time.
    """
    key = derive_key(seed, "histories.entity")
    above = ID_KINDS.index(id_kind)
    return EntityHashes(*hash_addresses(key, entities.family, entities.bytes, above, half=half))


def sample_rows(shard: str, first_row: int, rows: int, rate: float, seed: int) -> Bools:
    """Return which of the rows first_row..first_row + rows - 1 of a shard are in the sample: bool
    [rows].
    """
    encoded = shard.encode("utf-8", "surrogateescape")
    words = np.empty((rows, 2), np.uint64)
    words[:, 0] = int.from_bytes(blake2b(encoded, digest_size=8).digest(), "little")
    words[:, 1] = np.arange(first_row, first_row + rows, dtype=np.uint64)
    high, _ = hash_words(derive_key(seed, "histories.sample"), words)
    return _below_fraction(high, rate)


def _below_fraction(words: U64, fraction: float) -> Bools:
    limit = int(fraction * 2.0**64)
    if limit >= 1 << 64:
        return np.ones(len(words), np.bool_)
    return np.less(words, np.uint64(limit))


def mix_peers(peers: Addresses) -> U64:
    """Mix every peer to 64 bits, for `multiset_sum`."""
    word0, word1 = peers.words().T
    return mix(mix(word0 + peers.family) ^ word1)


def mix_measured(peer: U64 | None, values: U64 | None) -> U64 | None:
    """Mix the words of values [N, K] into peers from `mix_peers`; either may be missing."""
    if values is None:
        return peer
    if peer is None:
        return mix_values(values)
    return peer ^ mix_values(values)


def multiset_sum(entity: U64, times: I64, mixed: U64 | None, codes: U16) -> int:
    """Sum one hash per measurement modulo 2**64; the sum does not depend on the order of
    measurements.

    entity: order hash of each measurement's entity. mixed: from `mix_measured`.
    The sum reveals lost, doubled and changed measurements. The hash is keyed through the entity's
    hash, which does not protect against an attacker. About 15 ns per measurement.
    """
    total = 0
    for first in range(0, len(codes), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        value = entity[part] + mix(times[part].astype(np.uint64) << np.uint64(16) | codes[part])
        if mixed is not None:
            value ^= mixed[part]
        total += int(mix(value + np.uint64(GAMMA)).sum(dtype=np.uint64))  # zeros count too
    return total % (1 << 64)


ENTITY = np.dtype([("word0", "<u8"), ("word1", "<u8"), ("family", "u1"), ("zero", "u1", 7)])
# The wide records. entity: index among the batch's entities of the partition; in memory, among all
# entities of it.
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

# since: microseconds from the first of the batch, above 16 bits of code. peer: the first four bytes
# of an IPv4 address, the others being zero.
NARROW = np.dtype([("since", "<u8"), ("entity", "<u4"), ("peer", "<u4")])
_LONGEST_US = 1 << 48  # what `since` can count, nine years

Records = npt.NDArray[np.void]


def record_type(base: np.dtype[np.void], words: int) -> np.dtype[np.void]:
    """Return the record type with this many words of value columns appended, see `codec.values`."""
    if not words:
        return base
    return np.dtype([*base.descr, ("values", "<u8", (words,))])


def value_words(record: np.dtype[np.void]) -> int:
    """Return the number of words of value columns in a record type."""
    if "values" not in (record.names or ()):
        return 0
    return int(record["values"].shape[0])


def words_of(records: Records) -> U64:
    """View records as words: uint64 [N, W]."""
    return records.view(np.uint64).reshape(len(records), records.dtype.itemsize // 8)


_LAYOUT = 0x35_4543454950  # a resumed run may have files of another version


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """The measurements of a chunk, in source order, [M].

    micros: int64, since 1970, UTC.
    codes: uint16. clamped: how many latencies are above the largest code.
    entity, peer: int64, indices in entities and peers (None without peers).
    values: uint64 [M, K], words of the value columns, None without.
    texts: by dictionary, the distinct texts of these measurements.
    """

    micros: I64
    codes: U16
    clamped: int
    entities: Addresses
    entity: I64
    peers: Addresses | None = None
    peer: I64 | None = None
    values: U64 | None = None
    texts: Mapping[str, pa.Array] = field(default_factory=dict)


def join_chunks(chunks: Sequence[Parsed]) -> Parsed:
    """Join consecutive chunks of a shard.

    Entities that are in several of them are kept once; texts are left out.
    """
    if len(chunks) == 1:
        return chunks[0]
    entities = concatenate([chunk.entities for chunk in chunks])
    entity = _shift([chunk.entity for chunk in chunks], [len(chunk.entities) for chunk in chunks])
    if len(entities) < len(entity) // 2:  # else hardly any repeats, and finding them is in vain
        index, words = distinct(
            entities.bytes.view(np.uint64), entities.family.astype(np.uint64)[:, None]
        )
        entities = from_native_words(words)
        entity = index.astype(np.int64)[entity]
    all_peers = [chunk.peers for chunk in chunks if chunk.peers is not None]
    all_peer = [chunk.peer for chunk in chunks if chunk.peer is not None]
    values = [chunk.values for chunk in chunks if chunk.values is not None]
    return Parsed(
        micros=np.concatenate([chunk.micros for chunk in chunks]),
        codes=np.concatenate([chunk.codes for chunk in chunks]),
        clamped=sum(chunk.clamped for chunk in chunks),
        entities=entities,
        entity=entity,
        peers=concatenate(all_peers) if all_peers else None,
        peer=_shift(all_peer, [len(peers) for peers in all_peers]) if all_peers else None,
        values=np.concatenate(values) if values else None,
    )


def _shift(indices: Sequence[I64], sizes: Sequence[int]) -> I64:
    """Concatenate indices into arrays of these sizes, as indices into those arrays end to end."""
    firsts = offsets_from_lengths(sizes)[:-1]
    return np.concatenate([index + first for index, first in zip(indices, firsts, strict=True)])


class SpillWriter:
    """Write the spill file of one source shard."""

    def __init__(self, file: BinaryIO, partitions: int, unit: int) -> None:
        """unit: microseconds of a stored time."""
        self._file = file
        self._partitions = partitions
        self._unit = unit
        self._directory: list[I64] = []
        self._checksum = xxhash.xxh3_128()

    def append(self, parsed: Parsed, hashes: U64) -> int:
        """Write one batch; return its `multiset_sum`. hashes: order hashes of the entities."""
        partition = partition_of(hashes, self._partitions)
        values = np.zeros((len(parsed.micros), 0), np.uint64)
        mixed = np.zeros(0, np.uint64)
        if parsed.values is not None:
            values = parsed.values
            mixed = mix_values(values)
        peers = parsed.peers or NO_ADDRESSES
        peer = np.zeros(0, np.int64)
        if parsed.peer is not None:
            peer = parsed.peer
        base = int(parsed.micros.min())
        if not len(peer) or int(parsed.micros.max()) - base >= _LONGEST_US:
            base = NO_BASE
        entities, local, entity_counts = group_entities(
            partition,
            parsed.entities.family,
            parsed.entities.bytes.view(np.uint64),
            self._partitions,
        )
        narrow, wide, counts, total = group_measurements(
            partition,
            local,
            hashes,
            parsed.entity,
            parsed.micros,
            parsed.codes,
            peer,
            peers.family,
            peers.bytes.view(np.uint64),
            values,
            mixed,
            base,
            self._partitions,
            self._unit,
        )
        row = [np.array([self._file.tell(), base])]
        for records in (entities, narrow, wide):
            self._write(records.view(np.uint8).reshape(-1).data)
        row += [offsets_from_lengths(lengths) for lengths in (entity_counts, *counts)]
        self._directory.append(np.concatenate(row).astype("<i8"))
        return int(total)

    def finish(self) -> str:
        """Write the directory; return the XXH3-128 of the complete file."""
        for row in self._directory:
            self._write(row.tobytes())
        self._write(np.array([len(self._directory), self._partitions, _LAYOUT], "<i8").tobytes())
        return self._checksum.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
        self._checksum.update(data)
        self._file.write(data)


@dataclass(frozen=True)
class Parts:
    """Locate the records of one partition in every batch of every spill file that has measurements
    of it, [S].

    file: index in paths. base: see `NARROW`.
    at, count: int64 [S, 3], the byte offset and the number of entities, of narrow records and of
    wide records.
    """

    paths: Sequence[Path]
    file: I64
    base: I64
    at: I64
    count: I64

    def entities(self) -> Records:
        """Read the `ENTITY` records of all parts, end to end."""
        records = np.empty(int(self.count[:, 0].sum()), ENTITY)
        read_records(records, self.paths, self.file, self.at[:, 0], self.count[:, 0])
        return records


def find_parts(paths: Sequence[Path], partition: int, dtype: np.dtype[np.void]) -> Parts:
    """Find the parts of a partition, file by file. dtype: of the wide records."""
    entries = [np.zeros((0, 11), np.int64)]
    for path in paths:
        try:
            # Mapped, because only the partition's numbers are read.
            entries.append(_read_directory(map_bytes(path).data.view("<i8"), path, partition))
        except ValueError:
            raise _ends_early(path) from None
    rows = np.concatenate(entries)
    file_of_row = np.repeat(np.arange(len(paths)), [len(entry) for entry in entries[1:]])
    # of entities, narrow and wide: before the partition, up to its end, in all
    counts = rows[:, 2:].reshape(-1, 3, 3)
    narrow = record_type(NARROW, value_words(dtype))
    sizes = np.array([ENTITY.itemsize, narrow.itemsize, dtype.itemsize])
    batch_bytes = counts[:, :, 2] * sizes
    count = counts[:, :, 1] - counts[:, :, 0]
    at = rows[:, :1] + np.cumsum(batch_bytes, axis=1) - batch_bytes + counts[:, :, 0] * sizes
    chosen = np.flatnonzero(count[:, 1:].any(axis=1))
    return Parts(paths, file_of_row[chosen], rows[chosen, 1], at[chosen], count[chosen])


def _read_directory(words: I64, path: Path, partition: int) -> I64:
    """Copy the entries of a partition from the directory of a spill file: int64 [batches, 11].

    These are where a batch starts and what its times count from; and of its entities, narrow
    records and wide records how many are in the partitions before, how many with this one, and how
    many in all.
    """
    batches, partitions, layout = words[-3:].tolist()
    if layout != _LAYOUT:
        raise CorruptShard(
            "was written by another version of headrace",
            path=path,
            remedy="remove the run's directory and prepare it again",
        )
    width = 2 + 3 * (partitions + 1)
    columns = [0, 1]
    for first in range(2, width, partitions + 1):
        columns += [first + partition, first + partition + 1, first + partitions]
    directory = words[len(words) - 3 - batches * width : -3].reshape(batches, width)
    entries: I64 = directory[:, columns]
    return entries


def read_records(records: Records, paths: Sequence[Path], file: I64, at: I64, count: I64) -> None:
    """Fill an array with records of files, end to end.

    file, at, count: int64 [S], of each range of records its file, byte offset and number.
    """
    data = records.view(np.uint8).reshape(-1).data
    sizes = (count * records.itemsize).tolist()
    begin = 0
    opened = descriptor = -1
    try:
        for number, offset, size in zip(file.tolist(), at.tolist(), sizes, strict=True):
            if number != opened:
                if descriptor >= 0:
                    os.close(descriptor)
                    descriptor = -1  # the next one may not open
                # A descriptor is three times faster than a file object.
                descriptor = os.open(paths[number], os.O_RDONLY)
                opened = number
            end = begin + size
            while begin < end:
                length = os.preadv(descriptor, [data[begin:end]], offset)
                if not length:
                    raise _ends_early(paths[number])
                begin += length
                offset += length
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _ends_early(path: Path) -> CorruptShard:
    return CorruptShard(
        "ends early", path=path, remedy="remove the run's directory and prepare it again"
    )


def partition_of(order: U64, partitions: int) -> U16:
    """Return the partition of each entity.

    Partitions are equal ranges of the upper half of the hash, so they follow hash order.
    """
    return ((order >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)).astype(np.uint16)
