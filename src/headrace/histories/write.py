"""Pass 2, a task per partition: its measurements in order, cut into rows, encoded all at once, one shard per split.

Beside the shards stands an Arrow file with the facts of every row, from which `rows.parquet` is made. O(slab) of
memory, and one row of an entity that goes on in the next slab.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.formats import arrow
from headrace.formats.detect import Kind
from headrace.formats.shard import Shard
from headrace.histories.codec.addresses import texts
from headrace.histories.codec.rows import Encoded, Measurements, encode_rows
from headrace.histories.config import Histories
from headrace.histories.cut import cut_rows
from headrace.histories.gather import piece_file
from headrace.histories.keyed import hash_entities
from headrace.histories.piece import ALONE, WITH_PEER, segments
from headrace.histories.shard_file import EXTENSION, FACTS_SCHEMA, ROW_SCHEMA, ShardFile, open_shard
from headrace.histories.slabs import Partition, Slab, open_partition
from headrace.run.arrow_file import write_arrow
from headrace.run.context import STAGE_DIRECTORY, TaskFiles

SPLITS = ("train", "test")


def directory_of(split: str) -> str:
    """Where a split's shards lie, relative to the run."""
    return f"histories/{split}"


def shard_name(split: str, number: int, format_: str) -> str:
    """Path of a partition's shard of a split, relative to the run."""
    return f"{directory_of(split)}/part-{number:05d}{EXTENSION[format_]}"


def facts_file(split: str, number: int) -> str:
    """Path of the facts of a shard's rows, relative to the run."""
    return f"{STAGE_DIRECTORY}/rows-{split}-{number:05d}.arrow"


def write_partition(
    files: TaskFiles, settings: Histories, pieces: int, number: int, *, compiled: bool = False
) -> dict[str, Any]:
    """Write the shards of one partition. The result has per split its shard, its counts and its blocks.

    compiled: sorted and encoded by numba, the same bytes.
    """
    paths = [files.run / piece_file(piece) for piece in range(pieces)]
    has_peers = settings.peer is not None
    mine = list(segments(paths, number, WITH_PEER if has_peers else ALONE))
    if not mine:
        return {"rows_read": 0, "splits": {}}
    partition = open_partition(
        mine,
        hashed=partial(hash_entities, kind=settings.entity_kind, seed=settings.seed, compiled=compiled),
        has_peers=has_peers,
        slab_rows=settings.slab_rows,
        temporary=lambda: files.temporary(f"{STAGE_DIRECTORY}/run-{number:05d}"),
        compiled=compiled,
    )
    trains = partition.entities.hashes.train(settings.train_ratio)
    names = texts(partition.entities.addresses, settings.entity_kind, compiled=compiled)
    outputs: dict[str, _Output] = {}
    try:
        for rows, entity in _rows(partition, settings):
            encoded = encode_rows(rows, compiled=compiled)
            for split, mask in zip(SPLITS, (trains[entity], ~trains[entity]), strict=True):
                places = np.flatnonzero(mask)
                if not len(places):
                    continue
                if split not in outputs:
                    outputs[split] = _Output.begin(files, settings, split, number)
                facts = _facts(rows, names.take(pa.array(entity[places])), encoded, places)
                outputs[split].write(facts, encoded, places)
    except BaseException:
        for output in outputs.values():
            output.abandon()
        raise
    return {
        "rows_read": partition.rows,
        "splits": {split: outputs[split].finish(files) for split in SPLITS if split in outputs},
    }


def _facts(rows: Measurements, names: pa.Array, encoded: Encoded, places: I64) -> pa.RecordBatch:
    """Of the rows at these places; names: of their entities."""
    begin, end = rows.starts[places], np.append(rows.starts[1:], len(rows.times))[places]
    columns = [
        names,
        pa.array(rows.part[places].astype(np.int32)),
        pa.array(end - begin),
        pa.array(rows.times[begin]),
        pa.array(rows.times[end - 1]),
        pa.array(encoded.offsets[places + 1] - encoded.offsets[places]),
    ]
    return pa.record_batch(columns, schema=FACTS_SCHEMA)


def _rows(partition: Partition, settings: Histories) -> Iterator[tuple[Measurements, I64]]:
    """Complete rows, slab by slab, and the entity of each. The last row of a slab waits for what may follow."""
    is_6 = partition.peers.family == 6
    rest: Slab | None = None
    next_part = 0  # of the row that waits
    slabs = partition.slabs()
    slab = next(slabs, None)
    while slab is not None:
        following = next(slabs, None)
        whole = slab if rest is None else _joined(rest, slab)
        times = whole.micros // 1_000_000
        starts = cut_rows(whole.entity, times, whole.peer, is_6, settings.max_row_bytes)
        entity = whole.entity[starts].astype(np.int64)
        new = np.flatnonzero(np.diff(entity, prepend=-1))
        part = np.arange(len(starts)) - np.repeat(new, np.diff(new, append=len(starts)))
        part[entity == entity[0]] += next_part
        done, stop = len(starts), len(times)
        if following is not None:
            done, stop = len(starts) - 1, int(starts[-1])
            rest, next_part = _from(whole, stop), int(part[-1])
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
            )
            yield rows, entity[:done]
        slab = following


def _joined(one: Slab, other: Slab) -> Slab:
    peer = None if one.peer is None or other.peer is None else np.concatenate([one.peer, other.peer])
    return Slab(
        np.concatenate([one.entity, other.entity]),
        np.concatenate([one.micros, other.micros]),
        peer,
        np.concatenate([one.codes, other.codes]),
    )


def _from(slab: Slab, start: int) -> Slab:
    peer = None if slab.peer is None else slab.peer[start:].copy()
    return Slab(slab.entity[start:].copy(), slab.micros[start:].copy(), peer, slab.codes[start:].copy())


@dataclass
class _Output:
    """The shard of one split, and the facts of its rows."""

    target: str
    facts_target: str
    temporary: Path
    shard: ShardFile
    format: str
    facts: list[pa.RecordBatch] = field(default_factory=list)

    @staticmethod
    def begin(files: TaskFiles, settings: Histories, split: str, number: int) -> _Output:
        target, facts_target = shard_name(split, number, settings.format), facts_file(split, number)
        temporary = files.temporary(target)
        return _Output(target, facts_target, temporary, open_shard(temporary, settings.format), settings.format)

    def write(self, facts: pa.RecordBatch, rows: Encoded, places: I64) -> None:
        self.shard.write(facts, rows, places)
        self.facts.append(facts)

    def abandon(self) -> None:
        self.shard.close()

    def finish(self, files: TaskFiles) -> dict[str, Any]:
        table = pa.Table.from_batches(self.facts)
        files.finished(self.temporary, self.target, self.shard.finish(table.num_rows))
        write_arrow(files, self.facts_target, table)
        return {
            "rows": table.num_rows,
            "measurements": pc.sum(table["n_measurements"]).as_py(),
            "entities": pc.sum(pc.equal(table["part"], 0)).as_py(),
            "first_time": pc.min(table["first_time"]).as_py(),
            "last_time": pc.max(table["last_time"]).as_py(),
            "blocks": self._blocks(table.num_rows),
        }

    def _blocks(self, rows: int) -> list[list[int]]:
        """(rows, offset, length) of what can be read on its own: a record batch, or a whole ArrayRecord shard."""
        stat = self.temporary.stat()
        if self.format != "arrow":
            return [[rows, 0, stat.st_size]]
        kind = Kind("arrow", "none")
        shard = Shard(
            path=self.temporary,
            name=self.target,
            size=stat.st_size,
            mtime_ns=stat.st_mtime_ns,
            kind=kind,
            schema=ROW_SCHEMA,
        )
        return [list(span) for span in arrow.batch_spans(shard)]
