"""Sort a partition by content alone: entity, microsecond, peer, code, values.

Entities are ordered by keyed hash, and peers by family and bytes. Measurements that agree in all
fields have the same bytes, so the order does not depend on how the source was sharded. A partition
that fits in memory is one slice. A larger one is sorted in runs on disk, which are then merged.
Every 256th key of each run is kept as a sample, and the samples decide where slices are cut. A
slice is read as one range of every run and sorted again. A slice holds complete seconds of an
entity, so it exceeds its size only if one entity has more measurements in a second than a slice has
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.arrays import I64, U16, U32, U64, Bools, Ints, offsets_from_lengths
from headrace.histories.codec.addresses import NO_ADDRESSES, Addresses, from_words, to_numbers
from headrace.histories.codec.kernels import distinct, replace_entities, widen_records
from headrace.histories.codec.partition_kernels import in_order
from headrace.histories.spill import (
    NARROW,
    EntityHashes,
    Parts,
    Records,
    mix_peers,
    read_records,
    record_type,
    value_words,
    words_of,
)
from headrace.storage.local import storing

RUN = np.dtype(
    [
        ("micros", "<i8"),
        ("entity", "<u4"),
        ("code", "<u2"),
        ("zero", "u1", 2),
        ("peer", "<u4"),
        ("more_zero", "u1", 4),
    ]
)
_SAMPLE_EVERY = 256

ToCodes = Callable[[Addresses], Addresses] | None


def _word_of(records: Records, name: str) -> int:
    """Return the word of a record that a field is in."""
    assert records.dtype.fields is not None
    return int(records.dtype.fields[name][1]) // 8


@dataclass(frozen=True)
class PartitionEntities:
    """The distinct entities of a partition, in hash order: [E]."""

    addresses: Addresses
    hashes: EntityHashes


class Slice(NamedTuple):
    """Consecutive measurements of a partition in sorted order, [N].

    entity, peer: indices into those of the partition; values: the words of value columns, [N, K].
    """

    entity: Ints
    micros: I64
    peer: Ints | None
    codes: U16
    values: U64 | None = None

    def rows(self, start: int, stop: int | None) -> Slice:
        """Return some of the measurements."""
        columns: list[Any] = [None if column is None else column[start:stop] for column in self]
        return Slice(*columns)

    def followed_by(self, later: Slice) -> Slice:
        """Return these measurements and later ones."""
        columns: list[Any] = []
        for earlier, added in zip(self, later, strict=True):
            if earlier is None or added is None:
                columns.append(None)
            else:
                columns.append(np.concatenate([earlier, added]))
        return Slice(*columns)


@dataclass(frozen=True)
class Partition:
    """A partition that is ready to be read in order.

    peers: ascending by family and bytes, empty without peers. Entities and peers that are texts are
    given by their codes.
    mixed: for each peer as it was gathered, see `mix_peers`.
    """

    entities: PartitionEntities
    peers: Addresses
    mixed: U64
    rows: int
    slices: Callable[[], Iterator[Slice]]


@dataclass(frozen=True)
class Peers:
    """The distinct peers, ascending, and their `mix_peers` [P].

    index: for each record an index into `rank` [N]; rank: where each peer is in the order.
    """

    addresses: Addresses
    mixed: U64
    index: Ints
    rank: I64


def open_partition(  # noqa: PLR0913, PLR0914 - what both ways to sort need
    parts: Parts,
    *,
    hash_entities: Callable[[Addresses], EntityHashes],
    record: np.dtype[np.void],
    slice_rows: int,
    temporary: Callable[[], Path],
    entity_codes: ToCodes = None,
    peer_codes: ToCodes = None,
) -> Partition:
    """Open a partition: in memory if it has at most 2 × slice_rows measurements, else through runs
    in temporary files.

    record: dtype of the wide records. entity_codes, peer_codes: functions that return the codes of
    entities and of peers that are texts.
    """
    has_peers = "family" in (record.names or ())
    entities, index = find_entities(parts.entities(), hash_entities)
    rows = int(parts.count[:, 1:].sum())
    count = len(entities.addresses)
    if entity_codes is not None:
        entities = replace(entities, addresses=entity_codes(entities.addresses))
    peers = None
    if rows <= 2 * slice_rows:
        records = next(read_blocks(parts, index, record, 2 * slice_rows), np.empty(0, record))
        if has_peers:
            peers = number_peers(*distinct_addresses(records), peer_codes)
        handover = [records]
        del records
        slices = []
        if rows:
            slices.append(_sort(handover, peers, count))
        return _partition(entities, peers, rows, lambda: iter(slices))

    # Runs are sorted again where they are merged, so that in them a peer is the number it was first
    # met as.
    known = np.zeros((0, 3), np.uint64)
    runs: list[_Run] = []
    for block in read_blocks(parts, index, record, slice_rows):
        if has_peers:
            peer_index, words = distinct_addresses(block)
            everything = np.concatenate([known, words])
            numbers, known = distinct(everything, everything, family_column=2)
            rank = numbers[len(numbers) - len(words) :].astype(np.int64)
            peers = Peers(NO_ADDRESSES, known[:0, 0], peer_index, rank)
        runs.append(_write_run(temporary(), _sort([block], peers, count)))
    if has_peers:
        peers = number_peers(np.arange(len(known)), known, peer_codes)
    run_record = record_type(RUN, value_words(record))
    return _partition(
        entities, peers, rows, lambda: _merge(runs, run_record, peers, slice_rows, count)
    )


def _partition(
    entities: PartitionEntities,
    peers: Peers | None,
    rows: int,
    slices: Callable[[], Iterator[Slice]],
) -> Partition:
    if peers is None:
        return Partition(entities, NO_ADDRESSES, np.zeros(0, np.uint64), rows, slices)
    return Partition(entities, peers.addresses, peers.mixed, rows, slices)


def read_blocks(  # noqa: PLR0914 - the parts of a block
    parts: Parts, entities: U32, dtype: np.dtype[np.void], rows: int
) -> Iterator[Records]:
    """Yield the measurements in chunks of at most `rows`, entities as indices into those of the
    partition.

    Each chunk overwrites the previous one. entities: the index of each entity of each part, end to
    end.
    """
    count = parts.count[:, 1:]
    first_entity = offsets_from_lengths(parts.count[:, 0])[:-1]
    before = np.cumsum(count).reshape(count.shape) - count
    total = int(count.sum())
    narrow = record_type(NARROW, value_words(dtype))
    block = np.empty(min(rows, total), dtype)
    for first in range(0, total, rows):
        begin = np.clip(first - before, 0, count)
        end = np.clip(first + rows - before, 0, count)
        filled = 0
        for column, stored in enumerate((narrow, dtype)):
            chosen = np.flatnonzero(end[:, column] > begin[:, column])
            if not len(chosen):
                continue
            lengths = (end - begin)[chosen, column]
            out = block[filled : filled + int(lengths.sum())]
            filled += len(out)
            records = out
            if stored is narrow:
                records = np.empty(len(out), narrow)
            at = parts.at[chosen, 1 + column] + begin[chosen, column] * stored.itemsize
            read_records(records, parts.paths, parts.file[chosen], at, lengths)
            words = words_of(out)
            firsts = first_entity[chosen]
            if stored is narrow:
                bases = parts.base[chosen]
                widen_records(words_of(records), lengths, firsts, bases, entities, words)
            else:
                replace_entities(words, _word_of(out, "entity"), lengths, firsts, entities)
            del records
        yield block[:filled]


def _sort(handover: list[Records], peers: Peers | None, entities: int) -> Slice:
    """Sort the measurements of some records.

    handover: a list of only these records. They are removed from it, which frees most of the memory
    before the sort.
    """
    records = handover.pop()
    words = [words_of(records)]
    tail = _word_of(records, "entity")
    if not value_words(records.dtype):
        del records
        ranked = None
        if peers is not None:
            ranked = peers.index.astype(np.uint32, copy=False), peers.rank.astype(np.uint32)
        return Slice(*in_order(words, tail, ranked, entities))
    values = records["values"]
    peer = None
    if peers is not None:
        peer = peers.rank[peers.index]
    numbers = np.arange(len(records), dtype=np.uint32)
    entity, micros, by_time, codes = in_order(words, tail, (numbers, numbers), entities)
    assert by_time is not None
    order = _order_ties(by_time.astype(np.int64), entity, micros, peer, codes, values)
    return Slice(entity, micros, None if peer is None else peer[order], codes, values[order])


def _order_ties(
    order: I64, entity: Ints, micros: I64, peer: Ints | None, codes: U16, values: U64
) -> I64:
    """Order measurements of the same entity and time by peer, code and values; sorts `codes` as
    well, in place.

    order [N]: records by entity and time; entity, micros, codes [N]: in that order; peer [N],
    values [N, K]: of records.
    """
    new = _differs(entity) | _differs(micros)
    tied = ~new
    tied[:-1] |= ~new[1:]
    at = np.flatnonzero(tied)
    if not len(at):
        return order
    rows = order[at]
    keys = [values[rows, column] for column in reversed(range(values.shape[1]))]
    keys.append(codes[at])
    if peer is not None:
        keys.append(peer[rows])
    keys.append(np.cumsum(new)[at])
    sorted_ties = np.lexsort(keys)
    order[at] = rows[sorted_ties]
    codes[at] = codes[at][sorted_ties]
    return order


@dataclass(frozen=True)
class _Run:
    """A file of sorted records.

    entity, micros: of every 256th record; first_second, last_second: of all records.
    """

    path: Path
    rows: int
    entity: Ints
    micros: I64
    first_second: int
    last_second: int

    def read(self, dtype: np.dtype[np.void], start: int, stop: int) -> Records:
        """Read some records into memory.

        The file is not mapped, so only the requested records take memory.
        """
        records = np.empty(stop - start, dtype)
        zero = np.zeros(1, np.int64)
        read_records(records, [self.path], zero, zero + start * dtype.itemsize, zero + stop - start)
        return records


def _write_run(path: Path, rows: Slice) -> _Run:
    columns = 0
    if rows.values is not None:
        columns = rows.values.shape[1]
    records = np.zeros(len(rows.micros), record_type(RUN, columns))
    if rows.values is not None:
        records["values"] = rows.values
    if rows.peer is not None:
        records["peer"] = rows.peer
    records["micros"] = rows.micros
    records["entity"] = rows.entity
    records["code"] = rows.codes
    with storing(path), path.open("xb") as file:
        file.write(records.view(np.uint8).data)
    return _Run(
        path,
        len(records),
        rows.entity[::_SAMPLE_EVERY].copy(),
        rows.micros[::_SAMPLE_EVERY].copy(),
        int(rows.micros.min()) // 1_000_000,
        int(rows.micros.max()) // 1_000_000,
    )


def _merge(
    runs: list[_Run], dtype: np.dtype[np.void], peers: Peers | None, slice_rows: int, entities: int
) -> Iterator[Slice]:
    """Yield the slices in order, by keys that hold (entity, second) in one word.

    Seconds count from the earliest of the partition. dtype: of a record of a run; peers: of the
    partition, by their number in runs.
    """
    first_second = min(run.first_second for run in runs)
    last_second = max(run.last_second for run in runs)
    bits = np.uint64((last_second - first_second).bit_length())

    def keys(entity: Ints, micros: I64) -> U64:
        seconds = (micros // 1_000_000 - first_second).astype(np.uint64)
        return entity.astype(np.uint64) << bits | seconds

    samples = [keys(run.entity, run.micros) for run in runs]
    every = max(1, slice_rows // _SAMPLE_EVERY)
    boundaries = np.unique(np.sort(np.concatenate(samples))[::every])[1:]
    cuts = []
    for run, run_samples in zip(runs, samples, strict=True):
        ends = [0]
        for boundary in boundaries:  # between two samples, where the records decide
            sample = int(np.searchsorted(run_samples, boundary))
            start = max(sample - 1, 0) * _SAMPLE_EVERY
            part = run.read(dtype, start, min(sample * _SAMPLE_EVERY, run.rows))
            inside = np.searchsorted(keys(part["entity"], part["micros"]), boundary)
            ends.append(start + int(inside))
        cuts.append([*ends, run.rows])
    paths = [run.path for run in runs]
    for first, last in pairwise(np.array(cuts).T):
        records = np.empty(int((last - first).sum()), dtype)
        read_records(records, paths, np.arange(len(runs)), first * dtype.itemsize, last - first)
        if not len(records):
            continue
        numbered = None
        if peers is not None:
            numbered = replace(peers, index=records["peer"])
        handover = [records]
        del records
        yield _sort(handover, numbered, entities)


def number_peers(index: Ints, words: U64, peer_codes: ToCodes = None) -> Peers:
    """Order distinct peers, as words and family [P, 3], by family and bytes, or by their codes if
    they are texts.
    """
    order = _order_by_bytes(words)
    addresses = from_words(words[order, 2].astype(np.uint8), words[order, :2])
    mixed = mix_peers(addresses)
    rank = _ranks(order)
    if peer_codes is None:
        return Peers(addresses, mixed, index, rank)
    codes = peer_codes(addresses)
    by_code = np.argsort(to_numbers(codes))
    return Peers(codes.take(by_code), mixed[by_code], index, _ranks(by_code)[rank])


def find_entities(
    records: Records, hash_entities: Callable[[Addresses], EntityHashes]
) -> tuple[PartitionEntities, U32]:
    """Find the distinct entities of entity records in hash order, and the index of each record's
    entity: uint32 [N].

    Ties of hashes are ordered by family and bytes.
    """
    index, words = distinct_addresses(records)
    addresses = from_words(words[:, 2].astype(np.uint8), words[:, :2])
    hashes = hash_entities(addresses)
    order = np.argsort(hashes.order)
    if not _differs(hashes.order[order]).all():
        order = np.lexsort((words[:, 1], words[:, 0], words[:, 2], hashes.order))
    hashes = EntityHashes(hashes.order[order], hashes.side[order])
    return PartitionEntities(addresses.take(order), hashes), _ranks(order).astype(np.uint32)[index]


def distinct_addresses(records: Records) -> tuple[Ints, U64]:
    """Find the distinct addresses of records, and the index of each record's address: [N].

    The addresses are in order of first appearance, as both words and the family: uint64 [D, 3].
    """
    assert records.dtype.fields is not None
    shift = records.dtype.fields["family"][1] % 8 * 8
    words = words_of(records)
    return distinct(
        words,
        words,
        column=_word_of(records, "word0"),
        family_column=_word_of(records, "family"),
        shift=shift,
    )


def _order_by_bytes(words: U64) -> I64:
    """Order addresses by family and bytes; most differ in the first word."""
    word0 = np.ascontiguousarray(words[:, 0])
    family = words[:, 2].astype(np.uint8)
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
