"""Prove histories from their output alone: every measurement once, in time order, with codes that `encode` gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import sha256_file
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard
from headrace.histories.addresses import Addresses, render
from headrace.histories.latency import is_canonical
from headrace.histories.rows import RowColumns, decode_row
from headrace.recipes.histories.config import Histories
from headrace.recipes.histories.keyed import hash_entities, mixed_peers, multiset_sum
from headrace.recipes.histories.rows_file import ROWS
from headrace.recipes.histories.shard_file import read_blobs


@dataclass(frozen=True)
class _Found:
    """What one shard holds. problem: the first row that is not as it must be."""

    measurements: int
    sum: int
    problem: str | None


def verify_histories(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Decode every row of the output and check the laws. O(one row) of memory a worker, and the facts of a shard."""
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    settings = Histories(**config)
    facts = run.manifest.facts
    path = run.root / ROWS
    if not path.is_file() or sha256_file(path) != facts["rows_digest"]:
        return [Check("rows", ROWS, f"{path}: is not the file the manifest names")]
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        rows = file.read(use_threads=False)
    places = _groups(rows)

    def checked(shard: str, start: int, stop: int) -> Callable[[], _Found]:
        return lambda: _check_shard(run, settings, shard, rows.slice(start, stop - start))

    found = run_tasks([checked(*place) for place in places], workers or default_workers())
    problem = next((each.problem for each in found if each.problem is not None), None)
    measurements = sum(each.measurements for each in found)
    total = sum(each.sum for each in found) % (1 << 64)
    expected = sum(facts["measurements"].values())
    once = None
    if problem is None and (measurements, total) != (expected, facts["multiset_sum"]):
        once = (
            f"{run.root}: the rows hold {measurements:,} measurements with sum {total:016x}, the source had "
            f"{expected:,} with sum {facts['multiset_sum']:016x}"
        )
    return [
        Check("rows", f"{rows.num_rows:,} rows are as {ROWS} says, times ascend in and across parts", problem),
        Check("exactly once", f"{measurements:,} measurements are those of the source, sum {total:016x}", once),
    ]


def _groups(rows: pa.Table) -> list[tuple[str, int, int]]:
    """(shard, first row, row behind the last) of every shard in `rows.parquet`."""
    shards = rows["shard"].combine_chunks().dictionary_encode()
    starts = np.flatnonzero(np.diff(shards.indices.to_numpy(), prepend=-1))
    stops = np.append(starts[1:], rows.num_rows)
    names = shards.dictionary.to_pylist()
    return [
        (names[number], int(start), int(stop)) for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]


def _check_shard(run: FinishedRun, settings: Histories, shard: str, facts: pa.Table) -> _Found:
    measurements = total = 0
    last: tuple[str, int, int] | None = None  # entity, part, last time of the row before
    records = facts.to_pylist()
    try:
        place = -1
        for place, blob in enumerate(read_blobs(run.root / shard)):
            where = f"{run.root / shard}: row {place + 1}"
            if place >= len(records):
                return _Found(measurements, total, f"{where}: is not in {ROWS}, which has {len(records)} rows of it")
            row = decode_row(blob, where)
            problem, last = _problem(row, records[place], settings, last)
            if problem is not None:
                return _Found(measurements, total, f"{where}: {problem}")
            measurements += row.n
            total += _sum_of(row, settings)
        if place + 1 != len(records):
            problem = f"{run.root / shard}: has {place + 1} rows, {ROWS} has {len(records)} of it"
            return _Found(measurements, total, problem)
    except CorruptShard as error:
        return _Found(measurements, total, str(error))
    return _Found(measurements, total, None)


def _entity(row: RowColumns) -> Addresses:
    return Addresses(np.array([row.entity_family], np.uint8), row.entity_bytes.reshape(1, 16))


def _problem(
    row: RowColumns, facts: dict[str, object], settings: Histories, last: tuple[str, int, int] | None
) -> tuple[str | None, tuple[str, int, int]]:
    entity = _entity(row)
    (name,) = render(entity, row.entity_kind)
    now = (name, row.part, row.last_time)
    told = tuple(facts[each] for each in ("src_id", "part", "n_measurements", "first_time", "last_time"))
    holds = (name, row.part, row.n, row.first_time, row.last_time)
    if told != holds:
        return f"holds {holds}, {ROWS} says {told}", now
    before = last if last is not None and last[0] == name else None
    if row.part != (0 if before is None else before[1] + 1):
        return f"is part {row.part} of {name} behind part {None if before is None else before[1]}", now
    if before is not None and row.first_time < before[2]:
        return f"begins at {row.first_time}, the part before ends at {before[2]}", now
    trains = hash_entities(entity, settings.entity_kind, settings.seed).train(settings.train_ratio)[0]
    if facts["split"] != ("train" if trains else "test"):
        return f"its entity {name} belongs to {'train' if trains else 'test'}, it lies in {facts['split']}", now
    wrong = np.flatnonzero(~is_canonical(row.codes))
    if len(wrong):
        return (
            f"measurement {int(wrong[0]) + 1} has latency code {int(row.codes[wrong[0]])}, which none is encoded as",
            now,
        )
    return None, now


def _sum_of(row: RowColumns, settings: Histories) -> int:
    order = hash_entities(_entity(row), settings.entity_kind, settings.seed).order
    peer = None
    if row.peers is not None:
        peer = mixed_peers(Addresses(row.peer_family, row.peer_bytes))[row.peers]
    return multiset_sum(np.repeat(order, row.n), row.times, peer, row.codes)
