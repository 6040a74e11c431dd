"""A partition as sorted slabs of bounded size: one slab where it fits in memory, else sorted runs on disk, merged.

Runs are sorted pieces of the partition; every 256th key of each is kept, and slabs are cut where those samples say
that one is full. A slab is read as one range of every run and sorted again. Slabs hold whole seconds of an entity, so
only an entity with more measurements in one second than a slab has rows makes a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, Ints
from headrace.histories.codec.addresses import Addresses, of_words
from headrace.histories.keyed import EntityHashes
from headrace.histories.piece import ALONE, WITH_PEER, Reading, Records, Segment, read_entities
from headrace.histories.sort import Entities, by_bytes, distinct_entities, distinct_peers, measurement_order
from headrace.storage.local import storing

if TYPE_CHECKING:
    from headrace.histories.codec.order_kernels import Dealt

RUN = np.dtype(
    [("micros", "<i8"), ("entity", "<u4"), ("code", "<u2"), ("zero", "u1", 2), ("peer", "<u4"), ("more_zero", "u1", 4)]
)
_TAIL = {ALONE: 1, WITH_PEER: 3, RUN: 1}  # which word of a record has entity and code
_EVERY = 256


@dataclass(frozen=True)
class Slab:
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
    rows = sum(each.records for each in segments)
    if rows <= 2 * slab_rows:
        peers, slab = _at_once(segments, of_segment, dtype, entities if compiled else None)
        return Partition(entities, peers, rows, lambda: iter([slab]))

    # Runs are sorted again where they are merged, so that in them a peer is the number it was first met as.
    peers, number = _no_peers(), np.zeros(0, np.int64)
    runs: list[Path] = []
    for block in _blocks(segments, of_segment, dtype, slab_rows):
        peer = None
        if has_peers:
            found, peer = _peers_of(block, compiled=compiled)
            peers, number, of_found = _numbered(peers, number, found)
            peer = _Peers(peer.place, of_found[peer.rank])
        runs.append(temporary())
        _write_run(runs[-1], _sorted(block, peer, entities if compiled else None))
    rank = np.argsort(number) if has_peers else None
    return Partition(entities, peers, rows, lambda: _merged(runs, rank, slab_rows, entities if compiled else None))


def _at_once(
    segments: list[Segment],
    of_segment: list[npt.NDArray[np.uint32]],
    dtype: np.dtype[np.void],
    entities: Entities | None,
) -> tuple[Addresses, Slab]:
    """The peers and the measurements of segments, all in memory. entities: as in `_sorted`."""
    (records,) = _blocks(segments, of_segment, dtype, sum(each.records for each in segments))
    peers, peer = _no_peers(), None
    if dtype == WITH_PEER:
        peers, peer = _peers_of(records, compiled=entities is not None)
    if entities is None:
        return peers, _sorted(records, peer, entities)
    dealt = _dealt(records, peer, entities)
    del records, peer  # most of the memory, and not needed where it is sorted
    return peers, _in_order(dealt)


def _blocks(
    segments: list[Segment], of_segment: list[npt.NDArray[np.uint32]], dtype: np.dtype[np.void], rows: int
) -> Iterator[Records]:
    """The measurements in pieces of at most `rows`, entities as places in the partition's. A piece is overwritten by
    the next."""
    block, size = np.empty(rows, dtype), 0
    with Reading() as files:
        for segment, places in zip(segments, of_segment, strict=True):
            start = 0
            while start < segment.records:
                mine = block[size : size + min(rows - size, segment.records - start)]
                files.read(segment.path, segment.records_at + start * dtype.itemsize, mine)
                mine["entity"] = places[mine["entity"]]
                start, size = start + len(mine), size + len(mine)
                if size == rows:
                    yield block
                    size = 0
    if size:
        yield block[:size]


def _dealt(records: Records, peer: _Peers | None, entities: Entities) -> Dealt:
    from headrace.histories.codec.order_kernels import dealt

    peers = None if peer is None else (peer.place.astype(np.uint32, copy=False), peer.rank.astype(np.uint32))
    words = records.view(np.uint64).reshape(-1, records.dtype.itemsize // 8)
    return dealt(words, _TAIL[records.dtype], peers, len(entities.addresses))


def _in_order(dealt: Dealt) -> Slab:
    from headrace.histories.codec.order_kernels import in_order

    return Slab(*in_order(dealt))


@dataclass(frozen=True)
class _Peers:
    """Of each record its place [N], and the peer at each place [P]."""

    place: Ints
    rank: I64


def _sorted(records: Records, peer: _Peers | None, entities: Entities | None) -> Slab:
    """entities: the partition's, where it is done by numba."""
    if entities is not None:
        return _in_order(_dealt(records, peer, entities))
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


def _merged(runs: list[Path], rank: I64 | None, slab_rows: int, entities: Entities | None) -> Iterator[Slab]:
    """Slabs in order. Keys are (entity, second) as one word: seconds since the earliest of the partition.

    rank [P]: of the peers by their number in runs; None without peers. entities: as in `_sorted`.
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
    places = [
        np.array([0, *(_first_at_least(run, keys, border) for border in borders), len(run)], np.int64) for run in mapped
    ]
    for number in range(len(borders) + 1):
        parts = [np.array(run[at[number] : at[number + 1]]) for run, at in zip(mapped, places, strict=True)]
        records = np.concatenate(parts)
        if len(records):
            yield _sorted(records, None if rank is None else _Peers(records["peer"], rank), entities)


def _first_at_least(run: Records, keys: Callable[[Records], npt.NDArray[np.uint64]], border: np.uint64) -> int:
    """Where the keys of a sorted run reach a border; by halving, so a few pages of the file are read."""
    low, high = 0, len(run)
    while low < high:
        middle = (low + high) // 2
        if keys(run[middle : middle + 1])[0] < border:
            low = middle + 1
        else:
            high = middle
    return low


def _no_peers() -> Addresses:
    return Addresses(np.zeros(0, np.uint8), np.zeros((0, 16), np.uint8))


def _both(one: Addresses, other: Addresses) -> Addresses:
    return Addresses(np.concatenate([one.family, other.family]), np.concatenate([one.bytes, other.bytes]))


def _distinct(peers: Addresses) -> tuple[Addresses, I64]:
    words = peers.words()
    return distinct_peers(peers.family, words[:, 0], words[:, 1])


def _peers_of(records: Records, *, compiled: bool) -> tuple[Addresses, _Peers]:
    """The peers of records, each once and ascending; and of each record its place among those."""
    if not compiled:
        peers, place = distinct_peers(
            np.ascontiguousarray(records["family"]),
            np.ascontiguousarray(records["word0"]),
            np.ascontiguousarray(records["word1"]),
        )
        return peers, _Peers(place, np.arange(len(peers)))
    from headrace.histories.codec.order_kernels import peers_of_records

    of_record, found = peers_of_records(records.view(np.uint64).reshape(-1, records.dtype.itemsize // 8))
    word0, word1 = np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1])
    family = found[:, 2].astype(np.uint8)
    order = by_bytes(family, word0, word1)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return of_words(family[order], found[order, :2]), _Peers(of_record, rank)


def _numbered(peers: Addresses, number: I64, found: Addresses) -> tuple[Addresses, I64, I64]:
    """Peers and others together, ascending; the number of each; and the number of each of the others.

    number [P]: of the peers, which keep them; those that are new are numbered behind them. found: ascending.
    """
    both, place = _distinct(_both(peers, found))
    numbers = np.full(len(both), -1)
    numbers[place[: len(peers)]] = number
    new = np.flatnonzero(numbers < 0)
    numbers[new] = len(peers) + np.arange(len(new))
    return both, numbers, numbers[place[len(peers) :]]
