"""Prove a run of series from its output: every file as published, every row where it belongs, no leak."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.arrays import F32, I64
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import sha256_file
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard
from headrace.run.receipts import FileRecord, Receipt
from headrace.series.arrays.axis import Axis, Frequency
from headrace.series.config import SPLITS, Series
from headrace.series.finish import ENTITIES, REPORTS_TABLE, STATICS, SUMMARY
from headrace.series.leaks import leak_checks
from headrace.series.quality import file_name
from headrace.series.recipe import published_digest, published_files
from headrace.series.store_file import STORE, metadata_of
from headrace.series.stored import stored_settings
from headrace.series.write_batch import REPORTS, SERIES_DIRECTORY, split_directory
from headrace.storage.places import place_of


def verify_series(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Check files, entities, rows and scalers. O(store shard) of memory a worker.

    A run in an object store is fetched first: its many small files are mapped and compared with each other.
    """
    with place_of(run.root).local_tree() as here:
        found = _verify_here(FinishedRun(here, run.manifest), workers or default_workers())
    return [replace(each, problem=each.problem and each.problem.replace(str(here), str(run.root))) for each in found]


def _verify_here(run: FinishedRun, workers: int) -> list[Check]:
    checks = [_files(run, workers)]
    if checks[-1].problem is None:
        settings = stored_settings(run)
        try:
            checks += [_entities(run, settings), _rows(run, settings, workers)]
            if all(check.problem is None for check in checks):
                checks += leak_checks(run)
        except CorruptShard as error:
            checks.append(Check("contents", "", str(error)))
    return checks


def _files(run: FinishedRun, workers: int) -> Check:
    """What the index does not list – store, reports, tables, pipelines – is as its receipts say, and nothing else."""
    try:
        receipts = _receipts(run.root)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Check("files", "receipts", f"{run.root / 'receipts'}: cannot be read ({error})")
    if published_digest(receipts) != run.manifest.facts["receipts_digest"]:
        return Check(
            "files", "receipts", f"{run.root / 'receipts'}: do not name the files that the manifest vouches for"
        )
    records = published_files(receipts)
    others = [each for each in records if not each.path.startswith(f"{SERIES_DIRECTORY}/")]

    def checked(record: FileRecord) -> Callable[[], str | None]:
        path = run.root / record.path

        def look() -> str | None:
            if not path.is_file():
                return f"{path}: is missing"
            return (
                None if sha256_file(path) == record.digest else f"{path}: its bytes are not those that were published"
            )

        return look

    problem = next((each for each in run_tasks([checked(each) for each in others], workers) if each is not None), None)
    known = {each.path for each in records}
    for directory in (STORE, REPORTS):
        found = sorted(path.relative_to(run.root).as_posix() for path in (run.root / directory).glob("[!.]*"))
        strange = next((each for each in found if each not in known), None)
        problem = problem or (None if strange is None else f"{run.root / strange}: is not part of this run")
    return Check("files", f"{len(others):,} files of store, quality and pipelines have their bytes", problem)


def _receipts(root: Path) -> list[Receipt]:
    """The receipts of the stages that published files."""
    found = []
    for stage in ("write", "finish"):
        for path in sorted((root / "receipts").glob(f"{stage}-*.json")):
            record = json.loads(path.read_bytes())
            files = tuple(FileRecord(**each) for each in record["files"])
            found.append(Receipt(record["stage"], record["number"], record["subject"], files, record["result"]))
    return found


def _entities(run: FinishedRun, settings: Series) -> Check:
    """Retained entities are those of the summary; each has its static row; each trains on what was asked."""
    path = run.root / ENTITIES
    table = _read(path)
    frequency = Frequency.parse(str(run.manifest.facts["frequency"]))
    summary = json.loads((run.root / SUMMARY).read_bytes())
    names = table["entity"].to_pylist()
    detail = f"{len(names):,} retained of {summary['original_basins']:,}, each with its static row and its targets"
    problem = None
    if names != summary["retained_basins"] or set(names) & set(summary["excluded_basins"]):
        problem = f"{path}: holds other entities than {SUMMARY} retains"
    elif len(names) + len(summary["excluded_basins"]) != summary["original_basins"]:
        problem = f"{run.root / SUMMARY}: retained and excluded entities are not all of {summary['original_basins']:,}"
    required = max(1, int(settings.min_train_years * frequency.steps_per_year))
    few = np.flatnonzero(table["train_targets"].to_numpy() < required)
    if problem is None and len(few):
        problem = f"{path}: {names[int(few[0])]} trains on fewer than {required:,} targets"
    if problem is None and settings.static_features:
        statics = _read(run.root / STATICS)
        own = statics[settings.entity_column].to_pylist()
        if [own[row] for row in table["static_row"].to_pylist()] != names:
            problem = f"{run.root / STATICS}: has its rows in another order than {ENTITIES} says"
    if problem is None:
        problem = _reported(run, settings, names, summary)
    return Check("entities", detail, problem)


def _reported(run: FinishedRun, settings: Series, names: Sequence[str], summary: dict[str, object]) -> str | None:
    """Every entity, retained or not, has a report."""
    every = {*names, *summary["excluded_basins"]}  # type: ignore[misc]  # a JSON object
    if settings.layout == "packed":
        told = set(_read(run.root / REPORTS_TABLE)["entity"].to_pylist())
    else:
        files = {path.name for path in (run.root / REPORTS).glob("*.json")}
        told = {each for each in every if f"{file_name(each)}.json" in files}
    silent = sorted(every - told)
    return f"{run.root}: {silent[0]} has no quality report" if silent else None


def _rows(run: FinishedRun, settings: Series, workers: int) -> Check:
    """The readable rows of every split are those of the store, on equal steps, in the order of train, val, test."""
    table = _read(run.root / ENTITIES)
    shards = table["shard"].to_pylist()
    starts = [0, *(place for place in range(1, len(shards)) if shards[place] != shards[place - 1]), len(shards)]

    def checked(start: int, stop: int) -> Callable[[], tuple[int, str | None]]:
        return lambda: _shard_rows(run, settings, table.slice(start, stop - start))

    pairs = pairwise(starts)
    found = run_tasks([checked(*pair) for pair in pairs if pair[0] < pair[1]], workers)
    rows = sum(count for count, _ in found)
    problem = next((told for _, told in found if told is not None), None)
    listed = sum(totals.rows for totals in run.manifest.splits.values())
    if problem is None and rows != listed:
        problem = f"{run.root}: the store holds {rows:,} rows, the splits {listed:,}"
    return Check("rows", f"{rows:,} rows of the store are those of train, val and test, on equal steps", problem)


def _shard_rows(run: FinishedRun, settings: Series, entities: pa.Table) -> tuple[int, str | None]:
    shard = run.root / str(entities["shard"][0].as_py())
    frequency = Frequency.parse(str(run.manifest.facts["frequency"]))
    with pa.memory_map(str(shard)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
        names = [*settings.columns(), *settings.mask_columns()]
        if (metadata_of(batch.schema) or {}).get("columns") != names:
            return 0, f"{shard}: does not name the columns {', '.join(names)}"
        values = batch.column("values")
        matrix = values.flatten().to_numpy().reshape(-1, values.type.list_size)
        packed = _PackedParts(run, shard) if settings.layout == "packed" else None
        expected = 0
        first_times = entities["first_time"].cast(pa.int64()).to_pylist()
        for each, first_time in zip(entities.to_pylist(), first_times, strict=True):
            name, first_row = str(each["entity"]), int(each["first_row"])
            if first_row != expected:
                return expected, f"{run.root / ENTITIES}: {name} begins at row {first_row}, not {expected}"
            expected += int(each["rows"])
            times = Axis(frequency, first_time, each["rows"], each["anchor"]).times()
            edges = [0, each["val_row"], each["test_row"], each["rows"]]
            for split, start, stop in zip(SPLITS, edges, edges[1:], strict=False):
                path = run.root / split_directory(split) / f"{file_name(name)}.parquet"
                if start == stop:
                    if packed is None and path.exists():
                        return expected, f"{path}: is there, and {name} has no rows in {split}"
                    continue
                table = _read(path) if packed is None else packed.take(split, stop - start)
                rows = matrix[first_row + start : first_row + stop]
                told = _difference(table, name, times[start:stop], rows, names, settings)
                if told is not None:
                    return expected, f"{path if packed is None else packed.path(split)}: entity {name}: {told}"
        if expected != len(matrix):
            return expected, f"{shard}: has {len(matrix):,} rows, {ENTITIES} names {expected:,}"
    return expected, None


class _PackedParts:
    """The packed files of a batch, read in the order of its entities."""

    def __init__(self, run: FinishedRun, shard: Path) -> None:
        self._run, self._stem = run, shard.stem
        self._tables: dict[str, pa.Table] = {}
        self._taken: dict[str, int] = {}

    def path(self, split: str) -> Path:
        """The file of a split."""
        return self._run.root / split_directory(split) / f"{self._stem}.parquet"

    def take(self, split: str, rows: int) -> pa.Table:
        """The next rows of a split."""
        if split not in self._tables:
            self._tables[split], self._taken[split] = _read(self.path(split)), 0
        first = self._taken[split]
        self._taken[split] = first + rows
        return self._tables[split].slice(first, rows)


def _difference(
    table: pa.Table, entity: str, times: I64, rows: F32, names: Sequence[str], settings: Series
) -> str | None:
    """How readable rows differ from those of the store; None if they do not."""
    if table.num_rows != len(rows):
        return f"has {table.num_rows:,} rows, the store {len(rows):,}"
    if pc.unique(table[settings.entity_column]).to_pylist() != [entity]:
        return "its rows are named otherwise"
    own = table[settings.time].cast(pa.int64()).to_numpy()
    if not np.array_equal(own, times):
        return f"row {int(np.argmax(own != times)) + 1} is not at its step of the axis"
    for place, name in enumerate(names):
        if not np.array_equal(table[name].to_numpy(), rows[:, place], equal_nan=True):
            return f"column {name} is not that of the store"
    return None


def _read(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); restore it or prepare the run again") from error
