"""Prove a run of series from its output: every file as published, every row where it belongs, no leak."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.arrays import F32, I64
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check, read_receipt
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard
from headrace.series.arrays.axis import Frequency
from headrace.series.clean import required_targets
from headrace.series.config import Series
from headrace.series.leaks import leak_checks
from headrace.series.store import (
    ENTITIES,
    REPORTS,
    REPORTS_TABLE,
    STATICS,
    STORE,
    SUMMARY,
    Entity,
    file_name,
    map_store,
    published_digest,
    split_directory,
    stored_entities,
    stored_settings,
)
from headrace.storage.places import place_of


def verify_series(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Check files, entities, rows and scalers. O(store shard) of memory a worker.

    A run in an object store is fetched first: its many small files are mapped and compared with each other.
    """
    with place_of(run.root).local_tree() as here:
        found = _verify_here(FinishedRun(here, run.manifest), workers or default_workers())
    return [replace(each, problem=each.problem and each.problem.replace(str(here), str(run.root))) for each in found]


def _verify_here(run: FinishedRun, workers: int) -> list[Check]:
    checks = [_files(run)]
    if checks[-1].problem is None:
        settings = stored_settings(run.root)
        try:
            checks += [_entities(run, settings), _rows(run, settings, workers)]
            if all(check.problem is None for check in checks):
                checks += leak_checks(run)
        except CorruptShard as error:
            checks.append(Check("contents", "", str(error)))
    return checks


def _files(run: FinishedRun) -> Check:
    """The receipts, by which all files were checked before, are those of the manifest, and no other files lie there."""
    records = [
        each
        for stage in ("write", "finish")
        for path in sorted((run.root / "receipts").glob(f"{stage}-*.json"))
        if (receipt := read_receipt(path)) is not None
        for each in receipt["files"]
    ]
    known = {str(each["path"]): str(each["digest"]) for each in records}
    if published_digest(known.items()) != run.manifest.facts["receipts_digest"]:
        return Check(
            "files", "receipts", f"{run.root / 'receipts'}: do not name the files that the manifest vouches for"
        )
    found = [path for directory in (STORE, REPORTS) for path in sorted((run.root / directory).glob("[!.]*"))]
    strange = next((path for path in found if path.relative_to(run.root).as_posix() not in known), None)
    problem = None if strange is None else f"{strange}: is not part of this run"
    return Check("files", f"{len(known):,} files are those that the manifest vouches for", problem)


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
    required = max(1, required_targets(settings, frequency))
    few = np.flatnonzero(table["train_targets"].to_numpy() < required)
    if problem is None and len(few):
        problem = f"{path}: {names[int(few[0])]} trains on fewer than {required:,} targets"
    if problem is None and settings.static_features:
        statics = _read(run.root / STATICS)
        own = statics[settings.entity_column].to_pylist()
        if [own[row] for row in table["static_row"].to_pylist()] != names:
            problem = f"{run.root / STATICS}: has its rows in another order than {ENTITIES} says"
    every = {*names, *summary["excluded_basins"]}
    if settings.layout == "packed":
        told = set(_read(run.root / REPORTS_TABLE)["entity"].to_pylist())
    else:
        files = {path.name for path in (run.root / REPORTS).glob("*.json")}
        told = {each for each in every if f"{file_name(each)}.json" in files}
    silent = sorted(every - told)
    if problem is None and silent:
        problem = f"{run.root}: {silent[0]} has no quality report"
    return Check("entities", detail, problem)


def _rows(run: FinishedRun, settings: Series, workers: int) -> Check:
    """The readable rows of every split are those of the store, on equal steps, in the order of train, val, test."""

    def checked(shard: str, entities: list[Entity]) -> Callable[[], tuple[int, str | None]]:
        return lambda: _shard_rows(run, settings, run.root / shard, entities)

    found = run_tasks([checked(*each) for each in stored_entities(run.root).items()], workers)
    rows = sum(count for count, _ in found)
    problem = next((told for _, told in found if told is not None), None)
    listed = sum(totals.rows for totals in run.manifest.splits.values())
    if problem is None and rows != listed:
        problem = f"{run.root}: the store holds {rows:,} rows, the splits {listed:,}"
    return Check("rows", f"{rows:,} rows of the store are those of train, val and test, on equal steps", problem)


def _shard_rows(run: FinishedRun, settings: Series, shard: Path, entities: list[Entity]) -> tuple[int, str | None]:
    """Count the rows of a shard, and compare them with the readable ones; None if they are the same."""
    frequency = Frequency.parse(str(run.manifest.facts["frequency"]))
    names = [*settings.columns(), *settings.mask_columns()]
    matrix, metadata = map_store(shard)
    if metadata.get("columns") != names:
        return 0, f"{shard}: does not name the columns {', '.join(names)}"
    packed: dict[str, pa.Table] = {}  # what is left of the packed file of each split, in the order of entities
    expected = 0
    for each in entities:
        if each.first_row != expected:
            return expected, f"{run.root / ENTITIES}: {each.entity} begins at row {each.first_row}, not {expected}"
        expected += each.rows
        times = each.axis(frequency).times()
        for split, (start, stop) in each.bounds().items():
            stem = shard.stem if settings.layout == "packed" else file_name(each.entity)
            path = run.root / split_directory(split) / f"{stem}.parquet"
            if start == stop:
                if settings.layout == "files" and path.exists():
                    return expected, f"{path}: is there, and {each.entity} has no rows in {split}"
                continue
            table = packed[split] if split in packed else _read(path)
            if settings.layout == "packed":
                packed[split], table = table.slice(stop - start), table.slice(0, stop - start)
            rows = matrix[each.first_row + start : each.first_row + stop]
            told = _difference(table, each.entity, times[start:stop], rows, names, settings)
            if told is not None:
                return expected, f"{path}: entity {each.entity}: {told}"
    if expected != len(matrix):
        return expected, f"{shard}: has {len(matrix):,} rows, {ENTITIES} names {expected:,}"
    return expected, None


def _difference(
    table: pa.Table, entity: str, times: I64, rows: F32, names: Sequence[str], settings: Series
) -> str | None:
    """Compare readable rows with those of the store; None if they are the same."""
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
