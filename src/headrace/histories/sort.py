"""Sort a partition by content alone: entity, microsecond, peer, code, values.

Entities are ordered by keyed hash, and peers by family and bytes. Measurements that agree in all fields have the same
bytes, so the order does not depend on how the source was sharded. A partition that fits in memory is one slab. A larger
one is sorted in runs on disk, which are then merged. Every 256th key of each run is kept as a sample, and the samples
decide where slabs are cut. A slab is read as one range of every run and sorted again. A slab holds whole seconds of an
entity, so it exceeds its size only if one entity has more measurements in a second than a slab has rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace.arrays import I64, U16, U32, U64, Bools, Ints, borders_of, number_rows
from headrace.histories.codec.addresses import Addresses, as_numbers, of_words
from headrace.histories.piece import (
    NARROW,
    EntityHashes,
    Parts,
    Records,
    mixed_peers,
    read_records,
    record_of,
    words_of,
    words_of_values,
)
from headrace.storage.local import storing

RUN = np.dtype(
    [("micros", "<i8"), ("entity", "<u4"), ("code", "<u2"), ("zero", "u1", 2), ("peer", "<u4"), ("more_zero", "u1", 4)]
)
_EVERY = 256


def _byte_of(records: Records, name: str) -> int:
    """Return the byte offset of a field in a record."""
    assert records.dtype.fields is not None
    return int(records.dtype.fields[name][1])


Coded = Callable[[Addresses], Addresses] | None


@dataclass(frozen=True)
class Entities:
    """The distinct entities of a partition, in hash order: [E]."""

    addresses: Addresses
    hashes: EntityHashes


class Slab(NamedTuple):
    """Consecutive measurements of a partition in sorted order, [N].

    entity, peer: indices into those of the partition; more: the words of value columns, [N, K].
    """

    entity: Ints
    micros: I64
    peer: Ints | None
    codes: U16
    more: U64 | None = None


@dataclass(frozen=True)
class Partition:
    """A partition that is ready to be read in order.

    peers: ascending by family and bytes, empty without peers. Entities and peers that are texts are given by their
    codes.
    mixed: for each peer as it was gathered, see `mixed_peers`.
    """

    entities: Entities
    peers: Addresses
    mixed: U64
    rows: int
    slabs: Callable[[], Iterator[Slab]]


def open_partition(
    parts: Parts,
    *,
    hashed: Callable[[Addresses], EntityHashes],
    record: np.dtype[np.void],
    slab_rows: int,
    temporary: Callable[[], Path],
    coded: tuple[Coded, Coded] = (None, None),
    compiled: bool = False,
) -> Partition:
    """Open a partition: in memory if it has at most 2 × slab_rows measurements, else through runs in temporary files.

    hashed: function that returns the hashes of entities; record: dtype of the wide records; coded: functions that
    return the codes of entities and of peers that are texts. compiled: sort with numba; the order is the same.
    """
    has_peers = "family" in (record.names or ())
    entities, place = distinct_entities(parts.entities(), hashed, compiled=compiled)
    rows, count = int(parts.count[:, 1:].sum()), len(entities.addresses)
    if coded[0] is not None:
        entities = replace(entities, addresses=coded[0](entities.addresses))
    peers, mixed, peer = Addresses(np.zeros(0, np.uint8), np.zeros((0, 16), np.uint8)), np.zeros(0, np.uint64), None
    if rows <= 2 * slab_rows:
        records = next(_blocks(parts, place, record, 2 * slab_rows, compiled=compiled), np.empty(0, record))
        if has_peers:
            peers, peer = distinct_peers(records, compiled=compiled)
            peers, mixed, peer = _in_code_order(peers, peer, coded[1])
        held = [(records, peer)]
        del records, peer
        slabs = [_sorted(held, count, compiled=compiled)] if rows else []
        return Partition(entities, peers, mixed, rows, lambda: iter(slabs))

    # Runs are sorted again where they are merged, so that in them a peer is the number it was first met as.
    known = np.zeros((0, 3), np.uint64)
    runs: list[_Run] = []
    for block in _blocks(parts, place, record, slab_rows, compiled=compiled):
        if has_peers:
            place_of, found = distinct_addresses(block, compiled=compiled)
            numbers, known = _distinct(np.concatenate([known, found]), compiled=compiled)
            peer = Peers(place_of, numbers[len(numbers) - len(found) :].astype(np.int64))
        runs.append(_write_run(temporary(), _sorted([(block, peer)], count, compiled=compiled)))
    rank = None
    if has_peers:
        peers, peer = _by_address(np.arange(len(known)), known)
        peers, mixed, numbered = _in_code_order(peers, peer, coded[1])
        rank = numbered.rank
    merged = partial(_merged, runs, record_of(RUN, words_of_values(record)), rank, slab_rows, count, compiled=compiled)
    return Partition(entities, peers, mixed, rows, merged)


def _in_code_order(peers: Addresses, peer: Peers, coded: Coded) -> tuple[Addresses, U64, Peers]:
    """Order peers by their codes if they are texts, and return the `mixed_peers` of each."""
    mixed = mixed_peers(peers)
    if coded is None:
        return peers, mixed, peer
    codes = coded(peers)
    order = np.argsort(as_numbers(codes))
    return codes.take(order), mixed[order], Peers(peer.place, _ranks(order)[peer.rank])


def _blocks(parts: Parts, places: U32, dtype: np.dtype[np.void], rows: int, *, compiled: bool) -> Iterator[Records]:
    """Yield the measurements in chunks of at most `rows`, entities as indices into those of the partition.

    Each chunk overwrites the previous one. places: the index of each entity of each part, end to end.
    """
    count, first_entity = parts.count[:, 1:], borders_of(parts.count[:, 0])[:-1]
    before = np.cumsum(count).reshape(count.shape) - count
    total, kinds = int(count.sum()), (record_of(NARROW, words_of_values(dtype)), dtype)
    block = np.empty(min(rows, total), dtype)
    for first in range(0, total, rows):
        begin, end = (np.clip(each - before, 0, count) for each in (first, first + rows))
        out = block
        for kind, own in enumerate(kinds):
            mine = np.flatnonzero(end[:, kind] > begin[:, kind])
            if not len(mine):
                continue
            skipped, held = begin[mine, kind], (end - begin)[mine, kind]
            into, out = out[: int(held.sum())], out[int(held.sum()) :]
            records = into if kind else np.empty(len(into), own)
            at = parts.at[mine, 1 + kind] + skipped * own.itemsize
            read_records(records, parts.paths, parts.piece[mine], at, held)
            _place(records, held, first_entity[mine], parts.base[mine], places, into, compiled=compiled)
            del records
        yield block[: len(block) - len(out)]


def _place(records: Records, held: I64, first: I64, base: I64, places: U32, out: Records, *, compiled: bool) -> None:
    """Write records of parts as wide ones, with entities by their index in the partition. records may be `out`.

    held, first, base: [S], of each part the number of records, the first of its entities in places, see `NARROW`.
    """
    if compiled:
        from headrace.histories.codec import kernels

        if records is out:
            kernels.entities_placed(words_of(out), _byte_of(out, "entity") // 8, held, first, places)
        else:
            kernels.widened(words_of(records), held, first, base, places, words_of(out))
        return
    out["entity"] = places[np.repeat(first, held) + records["entity"]]
    if records is out:
        return
    out["micros"] = (records["since"] >> np.uint64(16)).astype(np.int64) + np.repeat(base, held)
    out["code"] = records["since"] & np.uint64(0xFFFF)
    out["word0"], out["word1"] = records["peer"].astype(np.uint64) << np.uint64(32), 0
    out["family"], out["zero"] = 4, 0
    if words_of_values(out.dtype):
        out["more"] = records["more"]


@dataclass(frozen=True)
class Peers:
    """The distinct peers [P], and for each record an index into them [N]."""

    place: Ints
    rank: I64


def _sorted(held: list[tuple[Records, Peers | None]], entities: int, *, compiled: bool) -> Slab:
    """Sort the measurements of some records.

    held: a list of only these records. They are removed from it, which frees most of the memory before the sort.
    """
    records, peer = held.pop()
    more = records["more"] if words_of_values(records.dtype) else None
    if compiled:
        from headrace.histories.codec.partition_kernels import in_order

        tail, words = _byte_of(records, "entity") // 8, [words_of(records)]
        if more is None:
            del records
            peers = None if peer is None else (peer.place.astype(np.uint32, copy=False), peer.rank.astype(np.uint32))
            return Slab(*in_order(words, tail, peers, entities))
    of_record = None if peer is None else peer.rank[peer.place]
    entity: Ints
    if compiled and more is not None:
        place = np.arange(len(records), dtype=np.uint32)
        entity, micros, found, codes = in_order(words, tail, (place, place), entities)
        assert found is not None
        order = _ties_in_order(found.astype(np.int64), entity, micros, of_record, codes, more)
    else:
        order = measurement_order(records["entity"], records["micros"], of_record, records["code"], more)
        entity, micros = records["entity"][order].astype(np.int64), records["micros"][order]
        codes = records["code"][order]
    of_order = None if of_record is None else of_record[order]
    return Slab(entity, micros, of_order, codes, None if more is None else more[order])


def _ties_in_order(order: I64, entity: Ints, micros: I64, peer: Ints | None, codes: U16, more: U64) -> I64:
    """Order measurements of the same entity and time by peer, code and values; sorts `codes` as well, in place.

    order [N]: records by entity and time; entity, micros, codes [N]: in that order; peer [N], more [N, K]: of records.
    """
    new = _differs(entity) | _differs(micros)
    tied = ~new
    tied[:-1] |= ~new[1:]
    at = np.flatnonzero(tied)
    if not len(at):
        return order
    rows, group = order[at], np.cumsum(new)[at]
    values = [more[rows, column] for column in reversed(range(more.shape[1]))]
    behind = np.lexsort((*values, codes[at], *([] if peer is None else [peer[rows]]), group))
    order[at], codes[at] = rows[behind], codes[at][behind]
    return order


@dataclass(frozen=True)
class _Run:
    """A file of sorted records. entity, micros: of every 256th record; begin, end: its first and last second."""

    path: Path
    rows: int
    entity: Ints
    micros: I64
    begin: int
    end: int

    def read(self, dtype: np.dtype[np.void], start: int, stop: int) -> Records:
        """Read some records into memory. The file is not mapped, so only the requested records take memory."""
        records, here = np.empty(stop - start, dtype), np.zeros(1, np.int64)
        read_records(records, [self.path], here, here + start * dtype.itemsize, here + stop - start)
        return records


def _write_run(path: Path, slab: Slab) -> _Run:
    run = np.zeros(len(slab.micros), record_of(RUN, 0 if slab.more is None else slab.more.shape[1]))
    if slab.more is not None:
        run["more"] = slab.more
    run["micros"], run["entity"], run["code"] = slab.micros, slab.entity, slab.codes
    run["peer"] = 0 if slab.peer is None else slab.peer
    with storing(path), path.open("xb") as file:
        file.write(run.view(np.uint8).data)
    seconds = int(slab.micros.min()) // 1_000_000, int(slab.micros.max()) // 1_000_000
    return _Run(path, len(run), slab.entity[::_EVERY].copy(), slab.micros[::_EVERY].copy(), *seconds)


def _merged(
    runs: list[_Run], dtype: np.dtype[np.void], rank: I64 | None, slab_rows: int, entities: int, *, compiled: bool
) -> Iterator[Slab]:
    """Yield the slabs in order, by keys that hold (entity, second) in one word.

    Seconds count from the earliest of the partition. dtype: of a record of a run; rank [P]: of the peers by their
    number in runs; None without peers.
    """
    begin = min(run.begin for run in runs)
    bits = np.uint64((max(run.end for run in runs) - begin).bit_length())

    def keys(entity: Ints, micros: I64) -> U64:
        seconds = (micros // 1_000_000 - begin).astype(np.uint64)
        return entity.astype(np.uint64) << bits | seconds

    of_runs = [keys(run.entity, run.micros) for run in runs]
    borders = np.unique(np.sort(np.concatenate(of_runs))[:: max(1, slab_rows // _EVERY)])[1:]
    places = []
    for run, samples in zip(runs, of_runs, strict=True):
        ends = []
        for border in borders:  # between two samples, where the records tell
            above = int(np.searchsorted(samples, border))
            start = max(above - 1, 0) * _EVERY
            part = run.read(dtype, start, min(above * _EVERY, run.rows))
            ends.append(start + int(np.searchsorted(keys(part["entity"], part["micros"]), border)))
        places.append([0, *ends, run.rows])
    for first, last in pairwise(np.array(places).T):
        records = np.empty(int((last - first).sum()), dtype)
        read_records(records, [run.path for run in runs], np.arange(len(runs)), first * dtype.itemsize, last - first)
        if len(records):
            peer = None if rank is None else Peers(records["peer"], rank)
            held = [(records, peer)]
            del records, peer
            yield _sorted(held, entities, compiled=compiled)


def distinct_peers(records: Records, *, compiled: bool) -> tuple[Addresses, Peers]:
    """Find the distinct addresses of records, ascending by family and bytes."""
    return _by_address(*distinct_addresses(records, compiled=compiled))


def _by_address(place: Ints, words: U64) -> tuple[Addresses, Peers]:
    """Put distinct addresses in order of family and bytes."""
    order = _by_bytes(words)
    return of_words(words[order, 2].astype(np.uint8), words[order, :2]), Peers(place, _ranks(order))


def distinct_entities(
    records: Records, hashed: Callable[[Addresses], EntityHashes], *, compiled: bool = False
) -> tuple[Entities, U32]:
    """Find the distinct entities of entity records in hash order, and the index of each record's entity: uint32 [N].

    hashed: function that returns the hashes of entities; ties are ordered by family and bytes.
    compiled: find them with numba; entities and indices are the same.
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
    """Find the distinct addresses of records, and the index of each record's address: [N].

    The addresses are in order of first appearance, as both words and the family: uint64 [D, 3].
    """
    if compiled:
        from headrace.histories.codec.kernels import distinct

        # Which word of a record an address begins in, and which has its family, so far above the lowest bit.
        family = _byte_of(records, "family")
        where = {"column": _byte_of(records, "word0") // 8, "family_column": family // 8, "shift": family % 8 * 8}
        return distinct(words_of(records), words_of(records), **where)
    return _distinct(np.column_stack([records["word0"], records["word1"], records["family"]]), compiled=False)


def _distinct(words: U64, *, compiled: bool) -> tuple[Ints, U64]:
    """Find the distinct rows of addresses, [N, 3], as `distinct_addresses` does."""
    if compiled:
        from headrace.histories.codec.kernels import distinct

        return distinct(words, words, family_column=2)
    number = number_rows(*words.T)
    first = np.unique(number, return_index=True)[1]
    order = np.argsort(first)
    return _ranks(order)[number], words[first[order]]


def measurement_order(entity: Ints, micros: I64, peer: Ints | None, codes: U16, more: U64 | None = None) -> I64:
    """Return indices that sort measurements by entity, time, peer, code and values: int64 [N]."""
    import polars as pl

    columns = [entity, micros, *([] if peer is None else [peer]), codes, *([] if more is None else more.T)]
    frame = pl.DataFrame({str(number): np.ascontiguousarray(column) for number, column in enumerate(columns)})
    return frame.select(pl.arg_sort_by(frame.columns)).to_series().to_numpy().astype(np.int64)


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


def _ranks(order: I64) -> I64:
    """Invert an order."""
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _differs(values: Ints) -> Bools:
    """Mark values that differ from the one before: bool [N], true for the first."""
    new = np.ones(len(values), np.bool_)
    new[1:] = values[1:] != values[:-1]
    return new
