"""Write shards in pass 2, one task per partition: sorted measurements cut into rows, one shard per
split.

An Arrow file beside each shard holds the facts of every row. Memory: O(slice), plus one row of an
entity that continues in the next slice. At the end `rows.parquet` lists the facts of every big row
of the run, so that planning opens no shard: one row per big row, ordered by shard and position, a
row group per shard. That takes O(rows of a shard) of memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.arrays import I32, I64, U64, Bools, Ints
from headrace.formats.write import HashingFile, Written
from headrace.gate.arrow import open_arrow
from headrace.histories import US_PER
from headrace.histories.codec.addresses import render
from headrace.histories.codec.rows import (
    HEADER_BYTES,
    LARGEST_SPAN,
    Encoded,
    Measurements,
    encode_rows,
    lay_out,
)
from headrace.histories.codec.values import Values, from_words, stored_type, values_bytes
from headrace.histories.config import Histories
from headrace.histories.dictionary import Codes, Dictionary, dictionary_file
from headrace.histories.duplicates import (
    DUPLICATE,
    OUTSIDE,
    Contents,
    Decision,
    keep_compared,
    keep_counted,
)
from headrace.histories.shard_file import EXTENSION, FACTS_SCHEMA, open_shard
from headrace.histories.sort import Partition, Slice, open_partition
from headrace.histories.spill import (
    ALONE,
    WITH_PEER,
    find_parts,
    hash_entities,
    mix_measured,
    multiset_sum,
    record_type,
    spill_path,
)
from headrace.run.context import STAGE_DIRECTORY, TaskFiles

SPLITS = ("train", "test")
_MOST_A_MEASUREMENT = 4 + 2 + 4 + 16  # time, code, peer index, a peer that no other measurement has
_LEAST_A_MEASUREMENT = 4 + 2
_ROUNDING = 16
_FEW = 16
ROWS = "rows.parquet"
ROWS_SCHEMA = pa.schema(
    [
        *list(FACTS_SCHEMA)[:-1],
        pa.field("split", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("measurements_before", pa.int64(), nullable=False),
    ]
)
# Few values, or such as grow: half the size and a third of the time that dictionaries for every
# column take.
_CODED = ["part", "n_measurements", "split", "shard", "bytes"]
_GROWING = ["first_time", "last_time", "position", "measurements_before"]


def directory_of(split: str) -> str:
    """Return the directory of a split's shards, relative to the run."""
    return f"histories/{split}"


def shard_name(split: str, partition: int, format_: str) -> str:
    """Return the path of a partition's shard of a split, relative to the run."""
    return f"{directory_of(split)}/part-{partition:05d}{EXTENSION[format_]}"


def row_sizes_file(split: str, partition: int) -> str:
    """Return the path of the facts of a shard's rows, relative to the run."""
    return f"{STAGE_DIRECTORY}/rows-{split}-{partition:05d}.arrow"


def _open(files: TaskFiles, settings: Histories, shards: int, number: int) -> Partition:
    """Open one partition."""
    paths = [files.run / spill_path(shard) for shard in range(shards)]
    base = ALONE if settings.peer is None else WITH_PEER
    record = record_type(base, len(settings.values))
    entity_codes = peer_codes = None
    if settings.entity_kind == "text":
        entity_codes = Codes(files.run, "entity").addresses
    if settings.peer_kind == "text":
        peer_codes = Codes(files.run, "peer").addresses
    return open_partition(
        find_parts(paths, number, record),
        hash_entities=partial(hash_entities, id_kind=settings.entity_kind, seed=settings.seed),
        record=record,
        slice_rows=settings.slice_rows,
        temporary=lambda: files.temporary(f"{STAGE_DIRECTORY}/run-{number:05d}"),
        entity_codes=entity_codes,
        peer_codes=peer_codes,
    )


def compare_partition(
    files: TaskFiles, settings: Histories, shards: int, number: int
) -> dict[str, Any]:
    """Write the content digests of one partition's entities, in hash order, for the duplicate
    check.
    """
    partition = _open(files, settings, shards, number)
    decision = Decision.of(settings, partition.entities.hashes.in_train(settings.train_ratio))
    contents = Contents(settings, len(decision.in_train))
    for chunk in _complete_rows(partition, settings, files.run):
        contents.add(chunk.rows, chunk.history, chunk.peer, chunk.values)
    keep_compared(files, number, contents, decision)
    return {"rows_in": partition.rows}


def write_partition(
    files: TaskFiles,
    settings: Histories,
    shards: int,
    number: int,
    decision: Decision | None = None,
) -> dict[str, Any]:
    """Write the shards of one partition, and return for each split its shard, counts and blocks.

    decision: which entities are in train and which are dropped. Without it, the hash of an entity
    decides, and none is dropped.
    """
    partition = _open(files, settings, shards, number)
    addresses = partition.entities.addresses
    hashes = partition.entities.hashes
    if decision is None:
        decision = Decision.of(settings, hashes.in_train(settings.train_ratio))
    if settings.entity_kind == "text":
        names = Dictionary(files.run / dictionary_file("entity")).names(addresses)
    else:
        names = render(addresses, settings.entity_kind)
    contents = Contents(settings, len(decision.in_train))
    dropped_sum = outside = 0
    halves = len(decision.in_train) // max(1, len(addresses))  # histories of an entity
    with closing(_Outputs(files, number, settings.format)) as outputs:
        for chunk in _complete_rows(partition, settings, files.run):
            if settings.duplicates != "allow":
                contents.add(chunk.rows, chunk.history, chunk.peer, chunk.values)
            if not decision.written[chunk.history].all():
                order = np.repeat(hashes.order, halves)
                dropped_sum += chunk.sum_of(~decision.written, order)
                outside += int(chunk.lengths[decision.outside[chunk.history]].sum())
            encoded = encode_rows(chunk.rows)
            for split in SPLITS:
                rows = np.flatnonzero(decision.in_split(split)[chunk.history])
                if len(rows):
                    entity_names = names.take(pa.array(chunk.history[rows] // halves))
                    outputs.of(split).write(chunk.rows, entity_names, encoded, rows)
        if settings.duplicates != "allow":
            keep_counted(files, number, contents, decision)
        splits = outputs.finish()
    return {
        "rows_in": partition.rows,
        "dropped": {
            DUPLICATE: int(contents.counts[decision.dropped].sum()),
            OUTSIDE: outside,
        },
        "dropped_sum": dropped_sum,
        "splits": splits,
    }


@dataclass(frozen=True)
class _Chunk:
    """Complete rows, with the history of each, [R], see `Decision`.

    peer, values: of each measurement its `mix_peers`, [N], and the words of its values, [N, K];
    None without.
    """

    rows: Measurements
    history: I64
    peer: U64 | None
    values: U64 | None

    @property
    def lengths(self) -> I64:
        """The number of measurements of each row."""
        return np.diff(self.rows.starts, append=len(self.rows.times))

    def sum_of(self, chosen: Bools, order: U64) -> int:
        """Return the `multiset_sum` of the measurements of the chosen histories.

        order: hashes of the entities of all histories.
        """
        history = np.repeat(self.history, self.lengths)
        at = np.flatnonzero(chosen[history])
        mixed = mix_measured(self.peer, self.values)
        if mixed is not None:
            mixed = mixed[at]
        return multiset_sum(order[history[at]], self.rows.times[at], mixed, self.rows.codes[at])


def _complete_rows(  # noqa: PLR0914 - the borders of rows in a slice
    partition: Partition, settings: Histories, run: Path
) -> Iterator[_Chunk]:
    """Yield complete rows slice by slice.

    The last row of a slice is held back, because the next slice may continue it.
    """
    columns = _ValueColumns(settings, run)
    is_ipv6 = partition.peers.family == 6
    cut = settings.cut
    unit = US_PER[settings.time_unit]
    waiting: Slice | None = None
    next_part = 0  # of the row that waits
    slices = partition.slices()
    current = next(slices, None)
    while current is not None:
        following = next(slices, None)
        if waiting is not None:
            current = waiting.followed_by(current)
        times = current.micros // unit
        key = current.entity
        if cut is not None:
            key = 2 * key.astype(np.int64) + (times >= cut)
        starts = cut_rows(key, times, current.peer, is_ipv6, settings.max_row_bytes, columns.types)
        history = key[starts].astype(np.int64)
        first_rows = np.flatnonzero(np.diff(history, prepend=-1))
        row_counts = np.diff(first_rows, append=len(starts))
        part = np.arange(len(starts)) - np.repeat(first_rows, row_counts)
        part[history == history[0]] += next_part
        complete = len(starts)
        stop = len(times)
        if following is not None:
            complete -= 1
            stop = int(starts[-1])
            later: list[Any] = [
                None if column is None else column.copy() for column in current.rows(stop, None)
            ]
            waiting = Slice(*later)
            next_part = int(part[-1])
        if complete:
            done = current.rows(0, stop)
            rows = Measurements(
                times=times[:stop],
                codes=done.codes,
                peer=done.peer,
                peers=partition.peers,
                starts=starts[:complete],
                entity=partition.entities.addresses.take(
                    current.entity[starts[:complete]].astype(np.int64)
                ),
                entity_kind=settings.entity_kind,
                peer_kind=settings.peer_kind,
                part=part[:complete],
                values=() if done.values is None else columns.read(done.values),
                has_latency=settings.value is not None,
                time_unit=settings.time_unit,
            )
            mixed = None if done.peer is None else partition.mixed[done.peer]
            yield _Chunk(rows, history[:complete], mixed, done.values)
        current = following


class _ValueColumns:
    """The value columns of a run: `types` in rows, and `read` to make them from words."""

    def __init__(self, settings: Histories, run: Path) -> None:
        self._codes = {name: Codes(run, role) for name, role in settings.categories().items()}
        self._names = list(settings.values)
        self.types: list[np.dtype[Any]] = []
        for name, type_name in settings.values.items():
            categories = 0
            if name in self._codes:
                categories = self._codes[name].count
            self.types.append(stored_type(type_name, categories))

    def read(self, words: U64) -> Values:
        """Make columns from words [N, K]."""
        columns: list[npt.NDArray[Any]] = []
        for number, (name, dtype) in enumerate(zip(self._names, self.types, strict=True)):
            column = np.ascontiguousarray(words[:, number])
            if name in self._codes:
                codes = np.zeros(len(column), dtype)
                codes[column != 0] = self._codes[name].of(column[column != 0]) + 1
                columns.append(codes)
            else:
                columns.append(from_words(column, dtype))
        return tuple(columns)


def cut_rows(
    entity: Ints,
    times: I64,
    peer: Ints | None,
    is_ipv6: Bools,
    max_bytes: int,
    types: Sequence[np.dtype[Any]] = (),
) -> I64:
    """Find where rows start: int64 [R].

    entity, times [N]: sorted; peer [N]: indices into `is_ipv6`, or None; types: of the value
    columns. A row ends before the measurement that would take it above `max_bytes`, and before one
    that is too far from the row's first for its clock. A row has at least one measurement. Entities
    that fit whatever their peers take no extra work.
    """
    if not len(entity):
        return np.zeros(0, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(entity[1:] != entity[:-1]) + 1])
    count = np.diff(starts, append=len(entity))
    most_bytes = HEADER_BYTES + _ROUNDING + count * _MOST_A_MEASUREMENT + values_bytes(count, types)
    long = most_bytes > max_bytes
    long |= times[starts + count - 1] - times[starts] > LARGEST_SPAN
    if not long.any():
        return starts
    cuts = [starts]
    for begin, n in zip(starts[long].tolist(), count[long].tolist(), strict=True):
        rows = slice(begin, begin + n)
        own_peer = None if peer is None else peer[rows]
        cuts.append(begin + _cut_entity(times[rows], own_peer, is_ipv6, max_bytes, types))
    return np.unique(np.concatenate(cuts))


def _cut_entity(
    times: I64,
    peer: Ints | None,
    is_ipv6: Bools,
    max_bytes: int,
    types: Sequence[np.dtype[Any]],
) -> I64:
    """Find where the rows of one entity start, in one step per row."""
    begin = 0
    starts = [0]
    window = max(1, max_bytes // _LEAST_A_MEASUREMENT)
    while True:
        stop = min(len(times), begin + window)
        latest = times[begin] + LARGEST_SPAN
        stop = begin + int(np.searchsorted(times[begin:stop], latest, side="right"))
        peers4 = peers6 = np.zeros(stop - begin, np.int32)  # among the first n measurements
        if peer is not None:
            chosen = peer[begin:stop]
            new = np.zeros(len(chosen), np.bool_)
            new[_first_indices(chosen, len(is_ipv6))] = True
            peers6 = np.cumsum(new & is_ipv6[chosen], dtype=np.int32)
            peers4 = np.cumsum(new, dtype=np.int32) - peers6
        size = partial(_row_bytes, peers4=peers4, peers6=peers6, types=types)
        begin += max(1, bisect_right(range(1, stop - begin + 1), max_bytes, key=size))
        if begin >= len(times):
            return np.array(starts, np.int64)
        starts.append(begin)


def _row_bytes(n: int, peers4: I32, peers6: I32, types: Sequence[np.dtype[Any]]) -> int:
    """Return the bytes of a row of the first n measurements."""
    count = np.array([n])
    layout = lay_out(count, peers4[n - 1 : n].astype(np.int64), peers6[n - 1 : n].astype(np.int64))
    return int((layout.length + values_bytes(count, types))[0])


def _first_indices(values: Ints, end: int) -> Ints:
    """Find the first index of each value below `end` that occurs."""
    if _FEW * len(values) < end:
        return np.unique(values, return_index=True)[1]
    first = np.full(end, len(values), np.int32)
    # Of what is written to one index the last stays.
    first[values[::-1]] = np.arange(len(values) - 1, -1, -1, dtype=np.int32)
    return first[first < len(values)]


class _Output:
    """The shard of one split while it is written, with the facts of its rows."""

    def __init__(self, files: TaskFiles, split: str, number: int, format_: str) -> None:
        self._target = shard_name(split, number, format_)
        self._row_sizes_target = row_sizes_file(split, number)
        self._temporary = files.temporary(self._target)
        self._metadata: list[pa.RecordBatch] = []
        self.shard = open_shard(self._temporary, format_)

    def write(self, rows: Measurements, names: pa.Array, encoded: Encoded, chosen: I64) -> None:
        """Write the chosen rows; names: of their entities."""
        begin = rows.starts[chosen]
        end = np.append(rows.starts[1:], len(rows.times))[chosen]
        columns = [
            rows.part[chosen].astype(np.int32),
            end - begin,
            rows.times[begin],
            rows.times[end - 1],
            encoded.offsets[chosen + 1] - encoded.offsets[chosen],
        ]
        metadata = pa.record_batch([names, *map(pa.array, columns)], schema=FACTS_SCHEMA)
        self.shard.write(metadata, encoded, chosen)
        self._metadata.append(metadata)

    def finish(self, files: TaskFiles) -> dict[str, Any]:
        table = pa.Table.from_batches(self._metadata)
        written = self.shard.finish(table.num_rows)
        files.finished(self._temporary, self._target, written)
        files.write_arrow(self._row_sizes_target, table)
        # (rows, offset, length) of each part that can be read alone; in Arrow files, the length is
        # an estimate
        blocks = [[rows, 0, written.bytes * rows // table.num_rows] for rows in self.shard.batches]
        return {
            "rows": table.num_rows,
            "measurements": pc.sum(table["n_measurements"]).as_py(),
            "entities": pc.sum(pc.equal(table["part"], 0)).as_py(),
            "first_time": pc.min(table["first_time"]).as_py(),
            "last_time": pc.max(table["last_time"]).as_py(),
            "blocks": blocks,
        }


class _Outputs:
    """The shards of a partition, one for each split that gets a row."""

    def __init__(self, files: TaskFiles, number: int, format_: str) -> None:
        self._files = files
        self._number = number
        self._format = format_
        self._opened: dict[str, _Output] = {}

    def of(self, split: str) -> _Output:
        """Return the shard of a split, which is opened on its first row."""
        if split not in self._opened:
            self._opened[split] = _Output(self._files, split, self._number, self._format)
        return self._opened[split]

    def finish(self) -> dict[str, Any]:
        """Finish the shards; return the counts and blocks of each, by split."""
        finished = {}
        for split in SPLITS:
            output = self._opened.pop(split, None)
            if output is not None:
                finished[split] = output.finish(self._files)
        return finished

    def close(self) -> None:
        """Close the shards that are not finished."""
        for output in self._opened.values():
            output.shard.close()


def write_rows(files: TaskFiles, shards: Sequence[tuple[str, int]], format_: str) -> int:
    """Write `rows.parquet` and return its number of rows.

    shards: the split and partition of each. `measurements_before` counts within the split, in the
    order of the file.
    """
    temporary = files.temporary(ROWS)
    file = HashingFile(temporary)
    before: dict[str, int] = {}
    rows = 0
    options: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": _CODED,
        "column_encoding": dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"),
        "write_page_checksum": True,
    }
    with file, pq.ParquetWriter(file, ROWS_SCHEMA, **options) as writer:
        for path, split, partition in sorted(
            (shard_name(split, partition, format_), split, partition) for split, partition in shards
        ):
            metadata = open_arrow(files.run / row_sizes_file(split, partition)).table()
            n = metadata["n_measurements"].to_numpy()
            columns = {name: metadata[name] for name in FACTS_SCHEMA.names} | {
                "split": pa.repeat(split, len(n)),
                "shard": pa.repeat(path, len(n)),
                "position": pa.array(np.arange(len(n))),
                "measurements_before": pa.array(before.get(split, 0) + np.cumsum(n) - n),
            }
            arrays = [columns[name] for name in ROWS_SCHEMA.names]
            table = pa.Table.from_arrays(arrays, schema=ROWS_SCHEMA)
            writer.write_table(table, row_group_size=max(1, len(n)))
            before[split] = before.get(split, 0) + int(n.sum())
            rows += len(n)
        writer.close()
        written = Written(rows, file.written, file.digest.sha256, (), file.digest.checksum)
    files.finished(temporary, ROWS, written)
    return rows
