"""Sort a partition by content alone: entity, microsecond, peer, code.

Entities are ordered by keyed hash, peers by family and bytes, and measurements that agree in all four are the same
bytes; so the order does not depend on how the source was sharded. A partition that fits in memory is one slab. A larger
one is sorted in runs on disk, which are merged: every 256th key of each run is kept, and slabs are cut where those
samples say that one is full. A slab is read as one range of every run and sorted again. Slabs hold whole seconds of an
entity, so only an entity with more measurements in one second than a slab has rows makes a larger one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U16, U64, Ints
from headrace.histories.codec.addresses import Addresses, of_words
from headrace.histories.piece import ALONE, ENTITY, WITH_PEER, EntityHashes, Records, Segment, read_entities, read_into
from headrace.storage.local import storing

RUN = np.dtype(
    [("micros", "<i8"), ("entity", "<u4"), ("code", "<u2"), ("zero", "u1", 2), ("peer", "<u4"), ("more_zero", "u1", 4)]
)
_TAIL = {ALONE: 1, WITH_PEER: 3, RUN: 1}  # which word of a record has entity and code
# Which word of a record an address begins in, and which has its family, so far above the lowest bit.
_ADDRESS = {
    ENTITY: {"column": 0, "family_column": 2, "shift": 0},
    WITH_PEER: {"column": 1, "family_column": 3, "shift": 48},
}
_EVERY = 256


@dataclass(frozen=True)
class Entities:
    """The distinct entities of a partition, in hash order: [E]."""

    addresses: Addresses
    hashes: EntityHashes


class Slab(NamedTuple):
    """Consecutive measurements of a partition in order, [N]: entity, peer are places in the partition's."""

    entity: Ints
    micros: I64
    peer: Ints | None
    codes: npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Partition:
    """A partition, ready to be read in order. peers: ascending by family and bytes, empty without peers."""

    entities: Entities
    peers: Addresses
    rows: int
    slabs: Callable[[], Iterator[Slab]]


def open_partition(
    segments: list[Segment],
    *,
    hashed: Callable[[Addresses], EntityHashes],
    has_peers: bool,
    slab_rows: int,
    temporary: Callable[[], Path],
    compiled: bool = False,
) -> Partition:
    """Read a partition: at once if it has at most 2 × slab_rows measurements, else through runs in temporary files.

    hashed: gives the hashes of entities. compiled: sorted by numba, the same order.
    """
    dtype = WITH_PEER if has_peers else ALONE
    entities, place = distinct_entities(read_entities(segments), hashed, compiled=compiled)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum([each.entities for each in segments])])
    of_segment = [place[before[k] : before[k + 1]] for k in range(len(segments))]
    rows, count = sum(each.records for each in segments), len(entities.addresses)
    peers, peer = Addresses(np.zeros(0, np.uint8), np.zeros((0, 16), np.uint8)), None
    if rows <= 2 * slab_rows:
        (records,) = _blocks(segments, of_segment, dtype, rows)
        if has_peers:
            peers, peer = distinct_peers(records, compiled=compiled)
        held = [(records, peer)]
        del records, peer
        slab = _sorted(held, count, compiled=compiled)
        return Partition(entities, peers, rows, lambda: iter([slab]))

    # Runs are sorted again where they are merged, so that in them a peer is the number it was first met as.
    number = np.zeros(0, np.int64)
    runs: list[Path] = []
    for block in _blocks(segments, of_segment, dtype, slab_rows):
        if has_peers:
            found, peer = distinct_peers(block, compiled=compiled)
            peers, number, of_found = _numbered(peers, number, found)
            peer = Peers(peer.place, of_found[peer.rank])
        runs.append(temporary())
        _write_run(runs[-1], _sorted([(block, peer)], count, compiled=compiled))
    rank = np.argsort(number) if has_peers else None
    return Partition(entities, peers, rows, lambda: _merged(runs, rank, slab_rows, count, compiled=compiled))


def _blocks(
    segments: list[Segment], of_segment: list[npt.NDArray[np.uint32]], dtype: np.dtype[np.void], rows: int
) -> Iterator[Records]:
    """Yield the measurements in pieces of at most `rows`, entities as places in the partition's.

    Each piece is overwritten by the next.
    """
    block, size = np.empty(rows, dtype), 0
    for segment, places in zip(segments, of_segment, strict=True):
        start = 0
        while start < segment.records:
            mine = block[size : size + min(rows - size, segment.records - start)]
            read_into(mine, segment.path, segment.records_at + start * dtype.itemsize)
            mine["entity"] = places[mine["entity"]]
            start, size = start + len(mine), size + len(mine)
            if size == rows:
                yield block
                size = 0
    if size:
        yield block[:size]


@dataclass(frozen=True)
class Peers:
    """Of each record its place [N], and the peer at each place [P]."""

    place: Ints
    rank: I64


def _sorted(held: list[tuple[Records, Peers | None]], entities: int, *, compiled: bool) -> Slab:
    """Sort the measurements of some records. held: those alone; they are taken out, which frees most of the memory
    before it is sorted."""
    records, peer = held.pop()
    if compiled:
        from headrace.histories.codec.partition_kernels import in_order

        peers = None if peer is None else (peer.place.astype(np.uint32, copy=False), peer.rank.astype(np.uint32))
        tail, words = _TAIL[records.dtype], [_words(records)]
        del records
        return Slab(*in_order(words, tail, peers, entities))
    of_record = None if peer is None else peer.rank[peer.place]
    order = measurement_order(records["entity"], records["micros"], of_record, records["code"])
    return Slab(
        records["entity"][order].astype(np.int64),
        records["micros"][order],
        None if of_record is None else of_record[order],
        records["code"][order],
    )


def _write_run(path: Path, slab: Slab) -> None:
    run = np.zeros(len(slab.micros), RUN)
    run["micros"], run["entity"], run["code"] = slab.micros, slab.entity, slab.codes
    run["peer"] = 0 if slab.peer is None else slab.peer
    with storing(path), path.open("xb") as file:
        file.write(run.tobytes())


def _merged(runs: list[Path], rank: I64 | None, slab_rows: int, entities: int, *, compiled: bool) -> Iterator[Slab]:
    """Slabs in order. Keys are (entity, second) as one word: seconds since the earliest of the partition.

    rank [P]: of the peers by their number in runs; None without peers.
    """
    mapped = [np.memmap(path, RUN, "r") for path in runs]
    begin = min(int(run["micros"].min()) for run in mapped) // 1_000_000
    end = max(int(run["micros"].max()) for run in mapped) // 1_000_000
    bits = np.uint64((end - begin).bit_length())

    def keys(records: Records) -> npt.NDArray[np.uint64]:
        seconds = (records["micros"] // 1_000_000 - begin).astype(np.uint64)
        return records["entity"].astype(np.uint64) << bits | seconds

    samples = np.sort(np.concatenate([keys(run[::_EVERY]) for run in mapped]))
    borders = np.unique(samples[:: max(1, slab_rows // _EVERY)])[1:]
    places = []
    for run in mapped:  # borders are found by halving, so a few pages of a run are read
        ends = (bisect_left(range(len(run)), border, key=partial(_key, run, keys)) for border in borders)
        places.append([0, *ends, len(run)])
    for number in range(len(borders) + 1):
        parts = [np.array(run[at[number] : at[number + 1]]) for run, at in zip(mapped, places, strict=True)]
        records = np.concatenate(parts)
        if len(records):
            peer = None if rank is None else Peers(records["peer"], rank)
            yield _sorted([(records, peer)], entities, compiled=compiled)


def _key(run: Records, keys: Callable[[Records], U64], at: int) -> np.uint64:
    key: np.uint64 = keys(run[at : at + 1])[0]
    return key


def _numbered(peers: Addresses, number: I64, found: Addresses) -> tuple[Addresses, I64, I64]:
    """Peers and others together, ascending; the number of each; and the number of each of the others.

    number [P]: of the peers, which keep them; those that are new are numbered behind them. found: ascending.
    """
    records = np.zeros(len(peers) + len(found), ENTITY)
    records["word0"], records["word1"] = np.concatenate([peers.words(), found.words()]).T
    records["family"] = np.concatenate([peers.family, found.family])
    both, of_both = distinct_peers(records, compiled=False)
    place = of_both.rank[of_both.place]
    numbers = np.full(len(both), -1)
    numbers[place[: len(peers)]] = number
    new = np.flatnonzero(numbers < 0)
    numbers[new] = len(peers) + np.arange(len(new))
    return both, numbers, numbers[place[len(peers) :]]


def distinct_peers(records: Records, *, compiled: bool) -> tuple[Addresses, Peers]:
    """Find the addresses of records, each once and ascending by family and bytes."""
    place, words = distinct_addresses(records, compiled=compiled)
    order = _by_bytes(words)
    return of_words(words[order, 2].astype(np.uint8), words[order, :2]), Peers(place, _ranks(order))


def distinct_entities(
    records: Records, hashed: Callable[[Addresses], EntityHashes], *, compiled: bool = False
) -> tuple[Entities, npt.NDArray[np.uint32]]:
    """Find the entities of entity records, each once in hash order; and each record's place among them, uint32 [N].

    hashed: gives the hashes of entities; two with one hash are ordered by what they are. compiled: told apart by numba,
    the same entities and places.
    """
    place, words = distinct_addresses(records, compiled=compiled)
    found = of_words(words[:, 2].astype(np.uint8), words[:, :2])
    hashes = hashed(found)
    order = np.argsort(hashes.order)
    if not _differs(hashes.order[order]).all():
        order = np.lexsort((words[:, 1], words[:, 0], words[:, 2], hashes.order))
    hashes = EntityHashes(hashes.order[order], hashes.side[order])
    return Entities(found.take(order), hashes), _ranks(order).astype(np.uint32)[place]


def distinct_addresses(records: Records, *, compiled: bool = False) -> tuple[Ints, U64]:
    """Tell the addresses of records apart: of each its place among those that differ, [N]; and those, in any order:
    both words and the family, uint64 [D, 3]."""
    if compiled:
        from headrace.histories.codec.kernels import distinct

        return distinct(_words(records), _words(records), **_ADDRESS[records.dtype])
    words = np.column_stack([records["word0"], records["word1"], records["family"]])
    order = np.lexsort((words[:, 1], words[:, 0], records["family"]))
    ascending = words[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (ascending[1:] != ascending[:-1]).any(axis=1)
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    return place, ascending[new]


def measurement_order(entity: Ints, micros: I64, peer: Ints | None, codes: U16) -> I64:
    """Sort measurements: their places in order of entity, time, peer and code: int64 [N]."""
    import polars as pl

    columns = {"entity": entity, "micros": micros, "code": codes} | ({} if peer is None else {"peer": peer})
    frame = pl.DataFrame({name: np.ascontiguousarray(column) for name, column in columns.items()})
    by = ["entity", "micros", *([] if peer is None else ["peer"]), "code"]
    return frame.select(pl.arg_sort_by(by)).to_series().to_numpy().astype(np.int64)


def _by_bytes(words: U64) -> I64:
    """Order addresses by family and bytes; most differ in the first word."""
    word0, family = np.ascontiguousarray(words[:, 0]), words[:, 2].astype(np.uint8)
    order = np.argsort(word0)
    order = order[np.argsort(family[order], kind="stable")]
    same = ~_differs(word0[order]) & ~_differs(family[order])
    if same.any():
        same[:-1] |= same[1:]
        at = np.flatnonzero(same)
        rows = order[at]
        order[at] = rows[np.lexsort((words[rows, 1], word0[rows], family[rows]))]
    return order


def _words(records: Records) -> U64:
    return records.view(np.uint64).reshape(-1, records.dtype.itemsize // 8)


def _ranks(order: I64) -> I64:
    """Invert an order."""
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _differs(values: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Mark values that are not the one before: bool [N], true at the first."""
    new = np.ones(len(values), np.bool_)
    new[1:] = values[1:] != values[:-1]
    return new
