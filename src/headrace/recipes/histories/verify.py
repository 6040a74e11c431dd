"""Prove histories from their output alone: every measurement once, in time order, with codes that `encode` gives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
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
from headrace.recipes.histories.piece import partition_of
from headrace.recipes.histories.rows_file import ROWS
from headrace.recipes.histories.shard_file import read_blobs
from headrace.storage.fetched import local_copy

_HELD, _HELD_ROWS = 1 << 20, 1 << 12  # measurements and rows that are hashed at once


@dataclass(frozen=True)
class _Found:
    """What one shard holds. problem: the first row that is not as it must be."""

    measurements: int
    sum: int
    problem: str | None


def verify_histories(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Decode every row of the output and check the laws. O(some rows) of memory a worker, and the facts of all."""
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    settings = Histories(**config)
    facts = run.manifest.facts
    path = run.root / ROWS
    if not path.is_file() or sha256_file(path) != facts["rows_digest"]:
        return [Check("rows", ROWS, f"{path}: is not the file the manifest names")]
    with local_copy(path) as here, pq.ParquetFile(here, page_checksum_verification=True) as file:
        rows = file.read(use_threads=False)
    places = _groups(rows)

    def checked(shard: str, start: int, stop: int) -> Callable[[], _Found]:
        return lambda: _check_shard(run, settings, shard, rows.slice(start, stop - start))

    found = run_tasks([checked(*place) for place in places], workers or default_workers())
    problem = next((each.problem for each in found if each.problem is not None), None)
    measurements = sum(each.measurements for each in found)
    total = sum(each.sum for each in found) % (1 << 64)
    expected = sum(facts["source_rows"].values())
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
    stops = np.append(starts[1:], rows.num_rows)[: len(starts)]
    names = shards.dictionary.to_pylist()
    return [
        (names[number], int(start), int(stop)) for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]


def _check_shard(run: FinishedRun, settings: Histories, shard: str, facts: pa.Table) -> _Found:
    checker = _ShardCheck(settings, int(run.manifest.facts["partitions"]), shard, facts)
    try:
        with local_copy(run.root / shard) as file:
            return _check_file(run, checker, shard, file)
    except FileNotFoundError:
        return checker.found(f"{run.root / shard}: is missing")


def _check_file(run: FinishedRun, checker: _ShardCheck, shard: str, file: Path) -> _Found:
    try:
        for place, blob in enumerate(read_blobs(file)):
            where = f"{run.root / shard}: row {place + 1}"
            problem = checker.take(decode_row(blob, where))
            if problem is not None:
                return checker.found(f"{run.root / shard}: {problem}")
        problem = checker.settle() or checker.settle()
    except CorruptShard as error:
        return checker.found(str(error).replace(str(file), str(run.root / shard)))
    return checker.found(None if problem is None else f"{run.root / shard}: {problem}")


class _ShardCheck:
    """The running check of one shard: rows are compared one by one, and hashed many at once."""

    def __init__(self, settings: Histories, partitions: int, shard: str, facts: pa.Table) -> None:
        self._settings, self._partitions = settings, partitions
        self._number = int(re.findall(r"\d+", shard)[-1])
        self._facts = facts.to_pylist()
        self._rows: list[RowColumns] = []
        self._held = self._settled = self._measurements = self._sum = 0
        self._last_order = -1
        self._before: tuple[str, int, int] | None = None  # entity, part and last time of the row before

    def take(self, row: RowColumns) -> str | None:
        """The next row; what is wrong with it or one before it."""
        self._rows.append(row)
        self._held += row.n
        return self.settle() if self._held >= _HELD or len(self._rows) >= _HELD_ROWS else None

    def found(self, problem: str | None) -> _Found:
        """What was checked so far."""
        return _Found(self._measurements, self._sum, problem)

    def settle(self) -> str | None:
        """Check what is held; the last call finds rows that are missing."""
        rows, self._rows, self._held = self._rows, [], 0
        facts = self._facts[self._settled : self._settled + len(rows)]
        if len(facts) < len(rows):
            return f"row {self._settled + len(facts) + 1}: is not in {ROWS}"
        if not rows:
            missing = len(self._facts) - self._settled
            return f"has {self._settled} rows, {ROWS} has {len(self._facts)} of it" if missing else None
        entities = Addresses(
            np.array([row.entity_family for row in rows], np.uint8), np.stack([row.entity_bytes for row in rows])
        )
        hashes = hash_entities(entities, self._settings.entity_kind, self._settings.seed)
        names = render(entities, self._settings.entity_kind)
        trains = hashes.train(self._settings.train_ratio).tolist()
        inside = partition_of(hashes.order, self._partitions) == self._number
        problem = None
        for place, row in enumerate(rows):
            problem = self._row_problem(row, names[place], trains[place], int(hashes.order[place]), facts[place])
            if problem is None and not inside[place]:
                problem = f"its entity {names[place]} belongs to another partition"
            if problem is not None:
                return f"row {self._settled + place + 1}: {problem}"
        self._sum += _sum_of(rows, hashes.order)
        self._measurements += sum(row.n for row in rows)
        self._settled += len(rows)
        return None

    def _row_problem(
        self, row: RowColumns, name: str, trains: bool, order: int, facts: dict[str, object]
    ) -> str | None:
        told = tuple(facts[each] for each in ("src_id", "part", "n_measurements", "first_time", "last_time", "split"))
        holds = (name, row.part, row.n, row.first_time, row.last_time, "train" if trains else "test")
        if told != holds:
            return f"holds {holds}, {ROWS} says {told}"
        before, self._before = self._before, (name, row.part, row.last_time)
        last_order, self._last_order = self._last_order, order
        if before is None or before[0] != name:
            if order < last_order:  # hash order: an entity that comes again would be out of place
                return f"its entity {name} is out of order, so it may come twice"
            if row.part != 0:
                return f"is part {row.part} of {name}, and the parts before are missing"
        elif row.part != before[1] + 1:
            return f"is part {row.part} of {name} behind part {before[1]}"
        elif row.first_time < before[2]:
            return f"begins at {row.first_time}, the part before ends at {before[2]}"
        wrong = np.flatnonzero(~is_canonical(row.codes))
        if len(wrong):
            return (
                f"measurement {int(wrong[0]) + 1} has code {int(row.codes[wrong[0]])}, which no latency is encoded as"
            )
        return None


def _sum_of(rows: list[RowColumns], order: npt.NDArray[np.uint64]) -> int:
    n = [row.n for row in rows]
    peer = None
    if rows[0].peers is not None:
        peers = Addresses(
            np.concatenate([row.peer_family for row in rows]), np.concatenate([row.peer_bytes for row in rows])
        )
        before = np.cumsum([0, *(len(row.peer_family) for row in rows)])
        mixed = mixed_peers(peers)
        places = [
            row.peers.astype(np.int64) + start
            for row, start in zip(rows, before.tolist(), strict=False)
            if row.peers is not None
        ]
        peer = mixed[np.concatenate(places)]
    times = np.concatenate([row.times for row in rows])
    return multiset_sum(np.repeat(order, n), times, peer, np.concatenate([row.codes for row in rows]))
