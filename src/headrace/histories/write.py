"""Write shards in pass 2, one task per partition: sorted measurements cut into rows, one shard per split.

An Arrow file beside each shard holds the facts of every row. Memory: O(slab), plus one row of an entity that continues
in the next slab. At the end `rows.parquet` lists the facts of every big row of the run, so that planning opens no
shard: one row per big row, ordered by shard and position, a row group per shard. That takes O(rows of a shard) of
memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.arrays import I32, I64, U64, Ints
from headrace.formats.write import HashingFile, Written
from headrace.histories.codec.addresses import render
from headrace.histories.codec.rows import HEADER_BYTES, LARGEST_SPAN, Encoded, Measurements, blob_bytes, encode_rows
from headrace.histories.codec.values import Values, of_words, stored_type, values_bytes
from headrace.histories.config import Histories
from headrace.histories.dictionary import Codes, Dictionary, dictionary_file
from headrace.histories.duplicates import Contents, Decision, keep_compared, keep_counted
from headrace.histories.piece import (
    ALONE,
    WITH_PEER,
    hash_entities,
    mixed_with,
    multiset_sum,
    parts_of,
    piece_file,
    record_of,
)
from headrace.histories.shard_file import EXTENSION, FACTS_SCHEMA, open_shard
from headrace.histories.sort import Partition, Slab, open_partition
from headrace.run.context import STAGE_DIRECTORY, TaskFiles

SPLITS = ("train", "test")
_MOST_A_MEASUREMENT = 4 + 2 + 4 + 16  # time, code, peer index, a peer of its own
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
# Few values, or such as grow: half the size and a third of the time that dictionaries for every column take.
_CODED = ["part", "n_measurements", "split", "shard", "bytes"]
_GROWING = ["first_time", "last_time", "position", "measurements_before"]


def directory_of(split: str) -> str:
    """Return the directory of a split's shards, relative to the run."""
    return f"histories/{split}"


def shard_name(split: str, number: int, format_: str) -> str:
    """Return the path of a partition's shard of a split, relative to the run."""
    return f"{directory_of(split)}/part-{number:05d}{EXTENSION[format_]}"


def facts_file(split: str, number: int) -> str:
    """Return the path of the facts of a shard's rows, relative to the run."""
    return f"{STAGE_DIRECTORY}/rows-{split}-{number:05d}.arrow"


def _opened(files: TaskFiles, settings: Histories, pieces: int, number: int, *, compiled: bool) -> Partition:
    """Open one partition."""
    paths = [files.run / piece_file(piece) for piece in range(pieces)]
    record = record_of(ALONE if settings.peer is None else WITH_PEER, len(settings.values))
    entity, peer = (
        Codes(files.run, role).addresses if kind == "text" else None
        for role, kind in (("entity", settings.entity_kind), ("peer", settings.peer_kind))
    )
    return open_partition(
        parts_of(paths, number, record),
        hashed=partial(hash_entities, kind=settings.entity_kind, seed=settings.seed, compiled=compiled),
        record=record,
        coded=(entity, peer),
        slab_rows=settings.slab_rows,
        temporary=lambda: files.temporary(f"{STAGE_DIRECTORY}/run-{number:05d}"),
        compiled=compiled,
    )


def compare_partition(
    files: TaskFiles, settings: Histories, pieces: int, number: int, *, compiled: bool = False
) -> dict[str, Any]:
    """Write the content digests of one partition's entities, in hash order, for the duplicate check."""
    partition = _opened(files, settings, pieces, number, compiled=compiled)
    contents = Contents(settings, len(partition.entities.addresses))
    for rows, entity, words in _rows(partition, settings, files.run):
        contents.add(rows, entity, None if rows.peer is None else partition.mixed[rows.peer], words)
    keep_compared(files, number, contents, partition.entities.hashes.train(settings.train_ratio))
    return {"rows_read": partition.rows}


def write_partition(
    files: TaskFiles,
    settings: Histories,
    pieces: int,
    number: int,
    decision: Decision | None = None,
    *,
    compiled: bool = False,
) -> dict[str, Any]:
    """Write the shards of one partition, and return for each split its shard, counts and blocks.

    decision: which entities train and which are dropped. Without it, the hash of an entity decides whether it trains,
    and none is dropped. compiled: sort and encode with numba; the bytes are the same.
    """
    partition = _opened(files, settings, pieces, number, compiled=compiled)
    hashes = partition.entities.hashes
    if decision is None:
        decision = Decision(hashes.train(settings.train_ratio), np.zeros(len(hashes.order), np.bool_))
    of_split = (decision.trains & ~decision.goes, ~(decision.trains | decision.goes))
    contents = Contents(settings, len(hashes.order))
    gone_sum = 0
    if settings.entity_kind == "text":
        names = Dictionary(files.run / dictionary_file("entity")).names(partition.entities.addresses)
    else:
        names = render(partition.entities.addresses, settings.entity_kind, compiled=compiled)
    outputs: dict[str, _Output] = {}
    try:
        for rows, entity, words in _rows(partition, settings, files.run):
            peer = None if rows.peer is None else partition.mixed[rows.peer]
            if settings.duplicates != "allow":
                contents.add(rows, entity, peer, words)
            if decision.goes[entity].any():
                of_each = np.repeat(entity, np.diff(rows.starts, append=len(rows.times)))
                gone, mixed = decision.goes[of_each], mixed_with(peer, words)
                own = None if mixed is None else mixed[gone]
                gone_sum += multiset_sum(hashes.order[of_each[gone]], rows.times[gone], own, rows.codes[gone])
            encoded = encode_rows(rows, compiled=compiled)
            for split, mask in zip(SPLITS, of_split, strict=True):
                places = np.flatnonzero(mask[entity])
                if not len(places):
                    continue
                if split not in outputs:
                    outputs[split] = _Output(files, split, number, settings.format)
                outputs[split].write(rows, names.take(pa.array(entity[places])), encoded, places)
    except BaseException:
        for output in outputs.values():
            output.shard.close()
        raise
    if settings.duplicates != "allow":
        keep_counted(files, number, contents, decision)
    return {
        "rows_read": partition.rows,
        "gone": int(contents.counts[decision.goes].sum()),
        "gone_sum": gone_sum,
        "splits": {split: outputs[split].finish(files) for split in SPLITS if split in outputs},
    }


def _rows(partition: Partition, settings: Histories, run: Path) -> Iterator[tuple[Measurements, I64, U64 | None]]:
    """Yield complete rows slab by slab, with the entity of each row and the words of its values.

    The last row of a slab is held back, because the next slab may continue it.
    """
    columns_of, types = _columns_of_values(settings, run)
    is_6 = partition.peers.family == 6
    rest: Slab | None = None
    next_part = 0  # of the row that waits
    slabs = partition.slabs()
    slab = next(slabs, None)
    while slab is not None:
        following = next(slabs, None)
        whole = slab
        if rest is not None:
            columns: list[Any] = [
                None if a is None else np.concatenate([a, b]) for a, b in zip(rest, slab, strict=True)
            ]
            whole = Slab(*columns)
        times = whole.micros // 1_000_000
        starts = cut_rows(whole.entity, times, whole.peer, is_6, settings.max_row_bytes, types)
        entity = whole.entity[starts].astype(np.int64)
        new = np.flatnonzero(np.diff(entity, prepend=-1))
        part = np.arange(len(starts)) - np.repeat(new, np.diff(new, append=len(starts)))
        part[entity == entity[0]] += next_part
        done, stop = len(starts), len(times)
        if following is not None:
            done, stop = len(starts) - 1, int(starts[-1])
            behind: list[Any] = [None if column is None else column[stop:].copy() for column in whole]
            rest, next_part = Slab(*behind), int(part[-1])
        if done:
            rows = Measurements(
                times=times[:stop],
                codes=whole.codes[:stop],
                peer=None if whole.peer is None else whole.peer[:stop],
                peers=partition.peers,
                starts=starts[:done],
                entity=partition.entities.addresses.take(entity[:done]),
                entity_kind=settings.entity_kind,
                peer_kind=settings.peer_kind,
                part=part[:done],
                values=() if whole.more is None else columns_of(whole.more[:stop]),
                has_latency=settings.value is not None,
            )
            yield rows, entity[:done], None if whole.more is None else whole.more[:stop]
        slab = following


def _columns_of_values(settings: Histories, run: Path) -> tuple[Callable[[U64], Values], list[np.dtype[Any]]]:
    """Return a function that makes value columns from words, and the types of the columns."""
    codes = {name: Codes(run, role) for name, role in settings.categories().items()}
    types = [stored_type(kind, codes[name].count if name in codes else 0) for name, kind in settings.values.items()]

    def columns(words: U64) -> Values:
        found: list[npt.NDArray[Any]] = []
        for number, (name, stored) in enumerate(zip(settings.values, types, strict=True)):
            own = np.ascontiguousarray(words[:, number])
            if name in codes:
                code = np.zeros(len(own), stored)
                code[own != 0] = codes[name].of(own[own != 0]) + 1
                found.append(code)
            else:
                found.append(of_words(own, stored))
        return tuple(found)

    return columns, types


def cut_rows(
    entity: Ints,
    times: I64,
    peer: Ints | None,
    is_6: npt.NDArray[np.bool_],
    max_bytes: int,
    types: Sequence[np.dtype[Any]] = (),
) -> I64:
    """Find where rows begin: int64 [R].

    entity, times [N]: sorted; peer [N]: indices into `is_6`, the families, or None; types: of the value columns. A row
    ends before the measurement that would take it above `max_bytes`, and before one that is too far from the row's
    first for its clock. A row has at least one measurement. Entities that fit whatever their peers take no extra work.
    """
    if not len(entity):
        return np.zeros(0, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(entity[1:] != entity[:-1]) + 1])
    count = np.diff(starts, append=len(entity))
    long = HEADER_BYTES + _ROUNDING + count * _MOST_A_MEASUREMENT + values_bytes(count, types) > max_bytes
    long |= times[starts + count - 1] - times[starts] > LARGEST_SPAN
    if not long.any():
        return starts
    more = [
        begin
        + _cuts(times[begin : begin + n], None if peer is None else peer[begin : begin + n], is_6, max_bytes, types)
        for begin, n in zip(starts[long].tolist(), count[long].tolist(), strict=True)
    ]
    return np.union1d(starts, np.concatenate(more))


def _cuts(
    times: I64, peer: Ints | None, is_6: npt.NDArray[np.bool_], max_bytes: int, types: Sequence[np.dtype[Any]]
) -> I64:
    """Find where the rows of one entity begin, in one step per row."""
    begin, cuts = 0, [0]
    window = max(1, max_bytes // _LEAST_A_MEASUREMENT)
    while True:
        stop = min(len(times), begin + window)
        stop = begin + int(np.searchsorted(times[begin:stop], times[begin] + LARGEST_SPAN, side="right"))
        four = six = np.zeros(0, np.int32)
        if peer is not None:
            mine = peer[begin:stop]
            new = np.zeros(len(mine), np.bool_)
            new[_first_places(mine, len(is_6))] = True
            six = np.cumsum(new & is_6[mine], dtype=np.int32)
            four = np.cumsum(new, dtype=np.int32) - six
        size = partial(_bytes_of, four=four, six=six, types=types)
        begin += max(1, bisect_right(range(1, stop - begin + 1), max_bytes, key=size))
        if begin >= len(times):
            return np.array(cuts, np.int64)
        cuts.append(begin)


def _bytes_of(n: int, four: I32, six: I32, types: Sequence[np.dtype[Any]]) -> int:
    """Return the bytes of a row of the first n measurements; four, six: peers of each family among the first n."""
    peers = (four[n - 1 : n], six[n - 1 : n]) if len(four) else (np.zeros(1, np.int64),) * 2
    count = np.array([n])
    return int((blob_bytes(count, *(each.astype(np.int64) for each in peers)) + values_bytes(count, types))[0])


def _first_places(values: Ints, most: int) -> Ints:
    """Find the first index of each value below `most` that occurs."""
    if _FEW * len(values) < most:
        return np.unique(values, return_index=True)[1]
    first = np.full(most, len(values), np.int32)
    # Of what is written to one place the last stays.
    first[values[::-1]] = np.arange(len(values) - 1, -1, -1, dtype=np.int32)
    return first[first < len(values)]


class _Output:
    """The shard of one split while it is written, with the facts of its rows."""

    def __init__(self, files: TaskFiles, split: str, number: int, format_: str) -> None:
        self.target, self.facts_target = shard_name(split, number, format_), facts_file(split, number)
        self.temporary = files.temporary(self.target)
        self.shard = open_shard(self.temporary, format_)
        self.facts: list[pa.RecordBatch] = []

    def write(self, rows: Measurements, names: pa.Array, encoded: Encoded, places: I64) -> None:
        """Write the rows at these indices; names: of their entities."""
        begin, end = rows.starts[places], np.append(rows.starts[1:], len(rows.times))[places]
        sizes = encoded.offsets[places + 1] - encoded.offsets[places]
        columns = (rows.part[places].astype(np.int32), end - begin, rows.times[begin], rows.times[end - 1], sizes)
        facts = pa.record_batch([names, *map(pa.array, columns)], schema=FACTS_SCHEMA)
        self.shard.write(facts, encoded, places)
        self.facts.append(facts)

    def finish(self, files: TaskFiles) -> dict[str, Any]:
        table = pa.Table.from_batches(self.facts)
        written = self.shard.finish(table.num_rows)
        files.finished(self.temporary, self.target, written)
        files.write_arrow(self.facts_target, table)
        return {
            "rows": table.num_rows,
            "measurements": pc.sum(table["n_measurements"]).as_py(),
            "entities": pc.sum(pc.equal(table["part"], 0)).as_py(),
            "first_time": pc.min(table["first_time"]).as_py(),
            "last_time": pc.max(table["last_time"]).as_py(),
            # (rows, offset, length) of each part that can be read alone; in Arrow files, the length is an estimate
            "blocks": [[rows, 0, written.bytes * rows // table.num_rows] for rows in self.shard.batches],
        }


def write_rows(files: TaskFiles, shards: Sequence[tuple[str, int]], format_: str) -> int:
    """Write `rows.parquet` and return its number of rows.

    shards: the split and partition of each. `measurements_before` counts within the split, in the order of the file.
    """
    temporary = files.temporary(ROWS)
    file = HashingFile(temporary)
    before: dict[str, int] = {}
    rows = 0
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": _CODED, "write_page_checksum": True}
    options["column_encoding"] = dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED")
    with file, pq.ParquetWriter(file, ROWS_SCHEMA, **options) as writer:
        for path, split, number in sorted((shard_name(*each, format_), *each) for each in shards):
            with pa.memory_map(str(files.run / facts_file(split, number))) as source:
                facts = pa.ipc.open_file(source).read_all()
                n = facts["n_measurements"].to_numpy()
                columns = {
                    **{name: facts[name] for name in FACTS_SCHEMA.names},
                    "split": pa.repeat(split, len(n)),
                    "shard": pa.repeat(path, len(n)),
                    "position": pa.array(np.arange(len(n))),
                    "measurements_before": pa.array(before.get(split, 0) + np.cumsum(n) - n),
                }
                arrays = [columns[name] for name in ROWS_SCHEMA.names]
                writer.write_table(pa.Table.from_arrays(arrays, schema=ROWS_SCHEMA), row_group_size=max(1, len(n)))
            before[split] = before.get(split, 0) + int(n.sum())
            rows += len(n)
        writer.close()
        done = Written(rows, file.written, file.digest.sha256, (), file.digest.checksum)
    files.finished(temporary, ROWS, done)
    return rows
