"""Prove a run of series from its output: every file as published, every row where it belongs, no leak."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check, read_receipt
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard
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
    read_summary,
    read_table,
    readable_schema,
    rows_table,
    split_directory,
    stored_columns,
    stored_entities,
    stored_settings,
)
from headrace.storage.places import place_of


def verify_series(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Check files, entities, rows and scalers. O(store shard) of memory a worker.

    A run in an object store is fetched first: its many small files are mapped and compared with each other.
    """
    with place_of(run.root).local_tree() as here:
        local = FinishedRun(here, run.manifest)
        checks = [_files(local)]
        if checks[0].problem is None:
            settings = stored_settings(local)
            try:
                workers = workers or default_workers()
                checks += [_entities(local, settings), _rows(local, settings, workers), _same_values(local, workers)]
                if all(check.problem is None for check in checks):
                    checks += leak_checks(local)
            except CorruptShard as error:
                checks.append(Check("contents", "", str(error)))
    return [replace(each, problem=each.problem and each.problem.replace(str(here), str(run.root))) for each in checks]


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
    path, table = run.root / ENTITIES, read_table(run.root / ENTITIES)
    summary = read_summary(run.root)
    original, excluded, names = summary["original_basins"], summary["excluded_basins"], table["entity"].to_pylist()
    required = max(1, required_targets(settings))
    few = [name for name, own in zip(names, table["train_targets"].to_pylist(), strict=True) if own < required]
    static = names
    if settings.static_features:
        own = read_table(run.root / STATICS)[settings.entity_column]
        static = own.take(table["static_row"]).to_pylist()
    if settings.layout == "packed":
        reported = set(read_table(run.root / REPORTS_TABLE)["entity"].to_pylist())
    else:
        files = {each.name for each in (run.root / REPORTS).glob("*.json")}
        reported = {each for each in (*names, *excluded) if f"{file_name(each)}.json" in files}
    silent = sorted({*names, *excluded} - reported)
    problems = (
        (
            names != summary["retained_basins"] or not excluded.keys().isdisjoint(names),
            f"{path}: holds other entities than {SUMMARY} retains",
        ),
        (
            len(names) + len(excluded) != original,
            f"{run.root / SUMMARY}: retained and excluded entities are not all of {original:,}",
        ),
        (few, f"{path}: {', '.join(few[:1])} trains on fewer than {required:,} targets"),
        (static != names, f"{run.root / STATICS}: has its rows in another order than {ENTITIES} says"),
        (silent, f"{run.root}: {', '.join(silent[:1])} has no quality report"),
    )
    detail = f"{len(names):,} retained of {original:,}, each with its static row and its targets"
    return Check("entities", detail, next((told for wrong, told in problems if wrong), None))


def _rows(run: FinishedRun, settings: Series, workers: int) -> Check:
    """The readable rows of every split are those of the store, on equal steps, in the order of train, val, test."""

    tasks = [partial(_shard_rows, run, settings, *each) for each in stored_entities(run.root).items()]
    found = run_tasks(tasks, workers)
    rows = sum(count for count, _ in found)
    problem = next((told for _, told in found if told is not None), None)
    listed = sum(totals.rows for totals in run.manifest.splits.values())
    if problem is None and rows != listed:
        problem = f"{run.root}: the store holds {rows:,} rows, the splits {listed:,}"
    return Check("rows", f"{rows:,} rows of the store are those of train, val and test, on equal steps", problem)


def _same_values(run: FinishedRun, workers: int) -> Check:
    """Count entities whose scaled values, all of them, are those of an earlier entity: one series under two names."""

    def digests(name: str, entities: list[Entity]) -> list[bytes]:
        matrix, _ = map_store(run.root / name)
        parts = (matrix[each.first_row : each.first_row + each.rows] for each in entities)
        return [blake2b(np.ascontiguousarray(part).data, digest_size=16).digest() for part in parts]

    stored = stored_entities(run.root)
    found = run_tasks([partial(digests, *each) for each in stored.items()], workers)
    first: dict[bytes, str] = {}
    pairs = []
    for entities, own in zip(stored.values(), found, strict=True):
        for each, digest in zip(entities, own, strict=True):
            name = first.setdefault(digest, each.entity)
            pairs += [(name, each.entity)] if name != each.entity else []
    such = f", such as {pairs[0][1]!r} those of {pairs[0][0]!r}" if pairs else ""
    told = f"{len(pairs):,} of {sum(map(len, found)):,} entities have the values of an earlier one{such}"
    return Check("same values", told, kind="count")


def _shard_rows(run: FinishedRun, settings: Series, name: str, entities: list[Entity]) -> tuple[int, str | None]:
    """Count the rows of a shard, and compare them with the readable ones; None if they are the same."""
    shard, packed = run.root / name, settings.layout == "packed"
    schema = readable_schema(settings)
    matrix, metadata = map_store(shard)
    if metadata.get("columns") != stored_columns(settings):
        return 0, f"{shard}: does not name the columns {', '.join(stored_columns(settings))}"
    left: dict[str, pa.Table] = {}  # of the packed file of each split, in the order of entities
    expected = 0
    for each in entities:
        if each.first_row != expected:
            return expected, f"{run.root / ENTITIES}: {each.entity} begins at row {each.first_row}, not {expected}"
        expected += each.rows
        for split, (start, stop) in each.bounds().items():
            stem = shard.stem if packed else file_name(each.entity)
            path = run.root / split_directory(split) / f"{stem}.parquet"
            if start == stop:
                if not packed and path.exists():
                    return expected, f"{path}: is there, and {each.entity} has no rows in {split}"
                continue
            table = left[split] if split in left else read_table(path)
            if packed:
                left[split], table = table.slice(stop - start), table.slice(0, stop - start)
            told = _difference(table, rows_table(settings, schema, each, (start, stop), matrix))
            if told is not None:
                return expected, f"{path}: entity {each.entity}: {told}"
    if expected != len(matrix):
        return expected, f"{shard}: has {len(matrix):,} rows, {ENTITIES} names {expected:,}"
    return expected, None


def _difference(table: pa.Table, stored: pa.Table) -> str | None:
    """Compare readable rows with those of the store; None if they are the same."""
    entity, time, *names = stored.column_names
    if table.num_rows != stored.num_rows:
        return f"has {table.num_rows:,} rows, the store {stored.num_rows:,}"
    if not table[entity].equals(stored[entity]):
        return "its rows are named otherwise"
    if not table[time].equals(stored[time]):
        row = int(np.argmax(table[time].to_numpy() != stored[time].to_numpy()))
        return f"row {row + 1} is not at its step of the axis"
    for name in names:
        if not np.array_equal(table[name].to_numpy(), stored[name].to_numpy(), equal_nan=True):
            return f"column {name} is not that of the store"
    return None
