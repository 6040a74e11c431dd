"""A partition as sorted slabs of bounded size: one slab where it fits in memory, else sorted runs on disk, merged.

Runs are sorted pieces of the partition; every 256th key of each is kept, and slabs are cut where those samples say
that one is full. A slab is read as one range of every run and sorted again. Slabs hold whole seconds of an entity, so
only an entity with more measurements in one second than a slab has rows makes a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64
from headrace.histories.addresses import Addresses
from headrace.recipes.histories.piece import ALONE, WITH_PEER, Records, Segment
from headrace.recipes.histories.sort import Entities, distinct_entities, distinct_peers, measurement_order
from headrace.storage.local import storing

RUN = np.dtype([("micros", "<i8"), ("entity", "<u4"), ("peer", "<u4"), ("code", "<u2")])
_EVERY = 256


@dataclass(frozen=True)
class Slab:
    """Consecutive measurements of a partition in order, [N]: entity, peer int64 are places in the partition's."""

    entity: I64
    micros: I64
    peer: I64 | None
    codes: npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Partition:
    """A partition, ready to be read in order. peers: ascending by family and bytes, empty without peers."""

    entities: Entities
    peers: Addresses
    rows: int
    slabs: Callable[[], Iterator[Slab]]


def open_partition(
    segments: list[Segment], *, has_peers: bool, slab_rows: int, temporary: Callable[[], Path]
) -> Partition:
    """Read a partition: at once if it has at most 2 × slab_rows measurements, else through runs in temporary files."""
    dtype = WITH_PEER if has_peers else ALONE
    entities, place = distinct_entities(np.concatenate([each.read_entities() for each in segments]))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum([each.entities for each in segments])])
    of_segment = [place[before[k] : before[k + 1]].astype(np.uint32) for k in range(len(segments))]
    rows = sum(each.records for each in segments)
    if rows <= 2 * slab_rows:
        records = np.empty(rows, dtype)
        at = 0
        for segment, places in zip(segments, of_segment, strict=True):
            mine = segment.read_records(dtype, 0, segment.records)
            mine["entity"] = places[mine["entity"]]
            records[at : at + len(mine)] = mine
            at += len(mine)
        peers, peer = _peers_of(records) if has_peers else (_no_peers(), None)
        slab = _sorted(records, peer)
        return Partition(entities, peers, rows, lambda: iter([slab]))

    peers = _no_peers()
    if has_peers:
        for block in _blocks(segments, of_segment, dtype, slab_rows):
            found, _ = _peers_of(block)
            peers, _ = _distinct(_both(peers, found))
    runs: list[Path] = []
    for block in _blocks(segments, of_segment, dtype, slab_rows):
        peer = _places(peers, block) if has_peers else None
        slab = _sorted(block, peer)
        runs.append(temporary())
        _write_run(runs[-1], slab)
    return Partition(entities, peers, rows, lambda: _merged(runs, has_peers, slab_rows))


def _blocks(
    segments: list[Segment], of_segment: list[npt.NDArray[np.uint32]], dtype: np.dtype[np.void], rows: int
) -> Iterator[Records]:
    """The measurements in pieces of at most `rows`, entities as places in the partition's."""
    held: list[Records] = []
    size = 0
    for segment, places in zip(segments, of_segment, strict=True):
        start = 0
        while start < segment.records:
            mine = segment.read_records(dtype, start, min(rows - size, segment.records - start))
            start += len(mine)
            mine["entity"] = places[mine["entity"]]
            held.append(mine)
            size += len(mine)
            if size == rows:
                yield np.concatenate(held)
                held, size = [], 0
    if held:
        yield np.concatenate(held)


def _sorted(records: Records, peer: I64 | None) -> Slab:
    order = measurement_order(records["entity"], records["micros"], peer, records["code"])
    return Slab(
        records["entity"][order].astype(np.int64),
        records["micros"][order],
        None if peer is None else peer[order],
        records["code"][order],
    )


def _write_run(path: Path, slab: Slab) -> None:
    run = np.empty(len(slab.micros), RUN)
    run["micros"], run["entity"], run["code"] = slab.micros, slab.entity, slab.codes
    run["peer"] = 0 if slab.peer is None else slab.peer
    with storing(path), path.open("xb") as file:
        file.write(run.tobytes())


def _merged(runs: list[Path], has_peers: bool, slab_rows: int) -> Iterator[Slab]:
    """Slabs in order. Keys are (entity, second) as one word: seconds since the earliest of the partition."""
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
            yield _sorted(records, records["peer"].astype(np.int64) if has_peers else None)


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


def _peers_of(records: Records) -> tuple[Addresses, I64]:
    return distinct_peers(
        np.ascontiguousarray(records["family"]),
        np.ascontiguousarray(records["word0"]),
        np.ascontiguousarray(records["word1"]),
    )


def _places(peers: Addresses, records: Records) -> I64:
    """Where each record's peer is among `peers`, which are ascending and hold them all: int64 [N]."""
    found, place = _peers_of(records)
    _, at = _distinct(_both(peers, found))
    return at[len(peers) :][place]
