"""Prove histories from their output alone: every measurement once, in time order, with codes that `encode` gives.

Rows are read and checked many at a time (`piece_laws`); those that are not all right once more, one by one, for the
first that is wrong and the words for it (`row_laws`). A microsecond or two a row, and about 50 ns a measurement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import sha256_file
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard
from headrace.histories.codec.rows import RowColumns, decode_row
from headrace.histories.config import Histories
from headrace.histories.piece_laws import check_piece
from headrace.histories.recipe import is_worth_compiling
from headrace.histories.row_laws import FACTS, Partition, RowBefore, first_problem
from headrace.histories.rows_file import ROWS
from headrace.histories.shard_file import MOST, Blobs, Most, read_pieces
from headrace.storage.places import place_of


@dataclass(frozen=True)
class Found:
    """What one shard holds. problem: the first row that is not as it must be."""

    measurements: int
    sum: int
    problem: str | None


def verify_histories(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Decode every row of the output and check the laws. O(the facts of a shard, or its largest row) of memory a
    worker."""
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    settings = Histories(**config)
    told = run.manifest.facts
    path = run.root / ROWS
    if not path.is_file() or sha256_file(path) != told["rows_digest"]:
        return [Check("rows", ROWS, f"{path}: is not the file the manifest names")]
    with place_of(path).local_copy() as here, _opened(here) as file:
        rows = file.metadata.num_rows
        compiled = is_worth_compiling(rows)

        def checked(place: Place) -> Callable[[], Found]:
            number = int(re.findall(r"\d+", place.shard)[-1])
            partition = Partition(settings, number, int(told["partitions"]), compiled)
            return lambda: check_shard(run.root / place.shard, partition, _facts(here, file.metadata, place))

        found = run_tasks([checked(place) for place in _places(file)], workers or default_workers())
    problem = next((each.problem for each in found if each.problem is not None), None)
    measurements = sum(each.measurements for each in found)
    total = sum(each.sum for each in found) % (1 << 64)
    expected = sum(told["source_rows"].values())
    once = None
    if problem is None and (measurements, total) != (expected, told["multiset_sum"]):
        once = (
            f"{run.root}: the rows hold {measurements:,} measurements with sum {total:016x}, the source had "
            f"{expected:,} with sum {told['multiset_sum']:016x}"
        )
    return [
        Check("rows", f"{rows:,} rows are as {ROWS} says, times ascend in and across parts", problem),
        Check("exactly once", f"{measurements:,} measurements are those of the source, sum {total:016x}", once),
    ]


@dataclass(frozen=True)
class Place:
    """Where the facts of a shard's rows are in `rows.parquet`: so many rows, behind others, of these row groups."""

    shard: str
    groups: range
    behind: int
    rows: int


def _opened(path: Path, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(path, metadata=metadata, page_checksum_verification=True, read_dictionary=["shard"])


def _places(file: pq.ParquetFile) -> list[Place]:
    """Every shard in `rows.parquet`."""
    column = file.read(["shard"], use_threads=False).unify_dictionaries()["shard"].combine_chunks()
    if not len(column):
        return []
    shard = column.indices.to_numpy()
    starts = np.flatnonzero(np.diff(shard, prepend=-1))
    stops = np.append(starts[1:], len(shard))
    names = column.dictionary.take(pa.array(shard[starts])).to_pylist()
    ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
    first, last = (np.searchsorted(ends, row, side="right") for row in (starts, stops - 1))
    behind = starts - np.where(first > 0, ends[first - 1], 0)
    columns = (each.tolist() for each in (first, last + 1, behind, stops - starts))
    return [
        Place(name, range(begin, end), before, rows)
        for name, begin, end, before, rows in zip(names, *columns, strict=True)
    ]


def _facts(path: Path, metadata: pq.FileMetaData, place: Place) -> pa.Table:
    """What `rows.parquet` says of the rows of a shard. O(row groups it is in) of memory: one, as it is written."""
    with _opened(path, metadata) as file:
        table = file.read_row_groups(list(place.groups), [*FACTS, "bytes"], use_threads=False)
    return table.slice(place.behind, place.rows).combine_chunks()


def check_shard(path: Path, partition: Partition, facts: pa.Table, most: Most = MOST) -> Found:
    """Every row of a shard against the laws. The first that is wrong is the problem, however many are checked at once.

    facts: what `rows.parquet` says of its rows; most: how much is checked at once.
    """
    checker = _ShardCheck(path, partition, facts)
    try:
        with place_of(path).local_copy() as file:
            try:
                problem = checker.first_problem(read_pieces(file, facts["bytes"].to_numpy(), most))
            except CorruptShard as error:
                problem = str(error).replace(str(file), str(path))
    except FileNotFoundError:
        problem = f"{path}: is missing"
    return Found(checker.measurements, checker.sum, problem)


class _ShardCheck:
    """The running check of one shard."""

    def __init__(self, path: Path, partition: Partition, facts: pa.Table) -> None:
        self._path, self._partition, self._facts = path, partition, facts
        self._checked = self.measurements = self.sum = 0
        self._before: RowBefore | None = None

    def first_problem(self, pieces: Iterator[Blobs]) -> str | None:
        """Of all rows. Raises `CorruptShard` for one that cannot be read or decoded."""
        for piece in pieces:
            problem = self._problem(piece)
            if problem is not None:
                return f"{self._path}: {problem}"
        told = self._facts.num_rows
        if self._checked < told:
            return f"{self._path}: has {self._checked} rows, {ROWS} has {told} of it"
        return None

    def _problem(self, piece: Blobs) -> str | None:
        (facts,) = self._facts.slice(self._checked, len(piece.sizes)).combine_chunks().to_batches() or [None]
        right = None if facts is None else check_piece(piece, self._partition, facts, self._before)
        if right is None:
            return self._worded(piece)
        self._checked += len(piece.sizes)
        self._before = right.last
        self.measurements += right.measurements
        self.sum += right.sum
        return None

    def _worded(self, piece: Blobs) -> str:
        """The first problem in a piece that is not right."""
        rows: list[RowColumns] = []
        unreadable: CorruptShard | None = None
        for number, blob in enumerate(piece, self._checked + 1):
            try:
                rows.append(decode_row(blob, f"{self._path}: row {number}"))
            except CorruptShard as error:
                unreadable = error
                break
        facts = self._facts.slice(self._checked, len(rows)).to_pylist()
        found = first_problem(rows, self._partition, facts, self._before)
        if found is not None:
            return f"row {self._checked + found[0] + 1}: {found[1]}"
        if unreadable is not None:
            raise unreadable
        return f"row {self._checked + 1} or one read with it is damaged; restore the file or prepare the run again"
