"""Prove a run of series from its output: files as published, rows in the right splits, and no
leak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import F32
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard
from headrace.folds.settings import Rolling
from headrace.gate.parquet import LEAST_BUDGET, read_run_table
from headrace.report.words import many_entities, pluralise
from headrace.series.arrays.axis import DAY_US
from headrace.series.clean import find_copies, required_targets, series_digest, values_digest
from headrace.series.division import SPLITS
from headrace.series.leaks import (
    SAMPLE,
    clean_again,
    fold_checks,
    leak_checks,
    same_bytes,
    same_source,
)
from headrace.series.pipelines.save import FACT, load
from headrace.series.pipelines.settings import chosen_entities
from headrace.series.reuse import FITTED_RUNS, REUSED
from headrace.series.settings import Series
from headrace.series.store import (
    REPORTS,
    REPORTS_SCHEMA,
    REPORTS_TABLE,
    SUMMARY,
    Entity,
    calendar_rows,
    file_name,
    read_entities,
    read_summary,
    readable_schema,
    row_times,
    rows_table,
    shared_times,
    split_directory,
    split_rows,
    stored_entities,
    stored_settings,
)
from headrace.series.windows.store import (
    ENTITIES,
    ENTITIES_SCHEMA,
    STATICS,
    map_store,
    read_statics,
)
from headrace.storage.places import place_of

_LIMITS = np.iinfo(np.int64)
_COPY = "have the values and times of an earlier one"
_NAME_BYTES = 600  # in a row, for the name of its entity


def verify_series(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Check files, entities, rows and scalers. O(store shard) of memory per worker.

    A run in an object store is fetched first, because its many small files are mapped and compared
    with each other.
    """
    with place_of(run.root).local_tree() as root:
        checks = []
        try:
            for check in _checks(FinishedRun(root, run.manifest), workers or default_workers()):
                checks.append(check)
        except CorruptShard as error:
            checks.append(Check("contents", "", str(error)))
    named = []
    for check in checks:
        problem = check.problem
        if problem is not None:
            problem = problem.replace(str(root), str(run.root))
        named.append(replace(check, problem=problem))
    return named


def _checks(run: FinishedRun, workers: int) -> Iterator[Check]:
    """Yield the checks in order; those of leaks only if all others hold."""
    checks = []
    settings = stored_settings(run)
    for check in _check_contents(run, settings, workers):
        yield check
        checks.append(check)
    if any(check.problem is not None for check in checks):
        return
    if settings.fits:
        yield from leak_checks(run)
        yield from fold_checks(run, settings)
    else:
        yield _check_pipelines(run, settings)
        yield _check_scaling(run, settings)


def _check_contents(run: FinishedRun, settings: Series, workers: int) -> Iterator[Check]:
    yield _check_entities(run, settings)
    yield _check_rows(run, settings, workers)
    yield from _check_copies(run, settings, workers)
    yield from _check_cuts(run, settings)
    yield _count_shared_times(run, settings)


def _check_entities(run: FinishedRun, settings: Series) -> Check:
    """Check that retained entities match the summary, and each has its static row and enough
    targets to train.
    """
    path = run.root / ENTITIES
    table = read_run_table(path, ENTITIES_SCHEMA)
    names = table["entity"].to_pylist()
    summary = read_summary(run.root)
    original = summary["original_entities"]
    excluded = summary["excluded_entities"]
    detail = f"{len(names):,} retained of {original:,}, each with its static row and its targets"
    problem = None
    required = max(int(settings.fits), required_targets(settings))
    short = []
    for name, targets in zip(names, table["train_targets"].to_pylist(), strict=True):
        if targets < required and settings.division.trains(name):
            short.append(name)
    unreported = sorted({*names, *excluded} - _reported(run, settings, {*names, *excluded}))
    if names != summary["retained_entities"] or not excluded.keys().isdisjoint(names):
        problem = f"{path}: holds other entities than {SUMMARY} retains"
    elif len(names) + len(excluded) != original:
        problem = (
            f"{run.root / SUMMARY}: retained and excluded entities are not all of {original:,}"
        )
    elif short:
        problem = f"{path}: {short[0]} has fewer than {required:,} train targets"
    elif settings.static_features and names != _static_names(run, settings, table):
        problem = f"{run.root / STATICS}: has its rows in another order than {ENTITIES} says"
    elif unreported:
        problem = f"{run.root}: {unreported[0]} has no quality report"
    return Check("entities", detail, problem)


def _static_names(run: FinishedRun, settings: Series, table: pa.Table) -> list[str]:
    """Return the entity of each entity's static row."""
    names = read_statics(run.root)[settings.entity_column]
    static_names: list[str] = names.take(table["static_row"]).to_pylist()
    return static_names


def _reported(run: FinishedRun, settings: Series, names: Set[str]) -> set[str]:
    """Return the entities that have a quality report."""
    if settings.layout == "packed":
        return set(read_run_table(run.root / REPORTS_TABLE, REPORTS_SCHEMA)["entity"].to_pylist())
    files = {path.name for path in (run.root / REPORTS).glob("*.json")}
    result = set()
    for name in names:
        if f"{file_name(name)}.json" in files:
            result.add(name)
    return result


def _count_shared_times(run: FinishedRun, settings: Series) -> Check:
    """Count what splits share, such as one flood in the rows of different entities."""
    lines = shared_times(run.root, settings)
    detail = "; ".join(lines) or "no two splits share any, whatever the entity"
    return Check("calendar time", detail, category="count")


@dataclass(frozen=True)
class _ShardRows:
    """What the rows of a shard are.

    problem: the first difference from the readable rows; None if they are equal.
    """

    rows: int = 0
    in_no_split: int = 0
    problem: str | None = None


def _check_rows(run: FinishedRun, settings: Series, workers: int) -> Check:
    """Check that the readable rows of every split equal those of the store, on equal steps, in the
    order of splits.
    """
    tasks = []
    for name, entities in stored_entities(run.root).items():
        tasks.append(partial(_check_shard, run, settings, run.root / name, entities))
    shards = run_tasks(tasks, workers)
    rows = sum(shard.rows for shard in shards)
    in_no_split = sum(shard.in_no_split for shard in shards)
    problems = [shard.problem for shard in shards if shard.problem is not None]
    problem = problems[0] if problems else None
    listed = sum(totals.rows for totals in run.manifest.splits.values())
    if problem is None and rows - in_no_split != listed:
        problem = (
            f"{run.root}: the store holds {rows - in_no_split:,} rows of splits, the splits"
            f" {listed:,}"
        )
    whose = "those of train, val and test"
    if settings.division.rolling is not None:
        whose = "those of the cells of folds"
    if in_no_split:
        whose += f", {in_no_split:,} are in none"
    return Check("rows", f"{rows:,} rows of the store are {whose}, on equal steps", problem)


def _check_shard(
    run: FinishedRun, settings: Series, shard: Path, entities: list[Entity]
) -> _ShardRows:
    matrix, metadata, _ = map_store(shard)
    if metadata.get("columns") != settings.stored_columns:
        names = ", ".join(settings.stored_columns)
        return _ShardRows(problem=f"{shard}: does not name the columns {names}")
    tables: dict[str, pa.Table] = {}  # the unread rows of each split's packed file
    expected = 0
    in_no_split = 0
    for entity in entities:
        if entity.first_row != expected:
            where = f"{entity.entity} begins at row {entity.first_row}, not {expected}"
            return _ShardRows(expected, problem=f"{run.root / ENTITIES}: {where}")
        expected += entity.rows
        in_no_split += entity.rows
        for start, stop in entity.split_ranges(settings.division.layout).values():
            in_no_split -= stop - start
        problem = _calendar_problem(settings, shard, entity, matrix)
        if problem is None:
            problem = _readable_problem(run, settings, shard, entity, matrix, tables)
        if problem is not None:
            return _ShardRows(expected, problem=problem)
    if expected != len(matrix):
        problem = f"{shard}: has {len(matrix):,} rows, {ENTITIES} names {expected:,}"
        return _ShardRows(expected, problem=problem)
    return _ShardRows(expected, in_no_split)


def _calendar_problem(settings: Series, shard: Path, entity: Entity, matrix: F32) -> str | None:
    first = len(settings.columns)
    last = first + len(settings.calendar_columns)
    stored = entity.of_batch(matrix)[:, first:last]
    if np.array_equal(stored, calendar_rows(settings, entity.axis(settings.step))):
        return None
    return f"{shard}: the calendar of entity {entity.entity!r} is not that of its times"


def _readable_problem(
    run: FinishedRun,
    settings: Series,
    shard: Path,
    entity: Entity,
    matrix: F32,
    tables: dict[str, pa.Table],
) -> str | None:
    """Compare the readable rows of an entity with those of the store.

    tables: the rows of each split's packed file from this entity on.
    """
    schema = readable_schema(settings)
    packed = settings.layout == "packed"
    stem = shard.stem if packed else file_name(entity.entity)
    for split, (start, stop) in entity.split_ranges(settings.division.layout).items():
        path = run.root / split_directory(split) / f"{stem}.parquet"
        if start == stop:
            if not packed and path.exists():
                return f"{path}: is there, and {entity.entity} has no rows in {split}"
            continue
        table = tables.get(split)
        if table is None:
            # Constant columns grow without bounds, so the store says how many bytes there are.
            least = LEAST_BUDGET + 2 * matrix.nbytes + _NAME_BYTES * len(matrix)
            table = read_run_table(path, schema, least=least)
        if packed:
            tables[split] = table.slice(stop - start)
            table = table.slice(0, stop - start)
        stored = rows_table(settings, schema, entity, (start, stop), matrix)
        difference = _difference(table, stored)
        if difference is not None:
            return f"{path}: entity {entity.entity}: {difference}"
    return None


def _difference(table: pa.Table, stored: pa.Table) -> str | None:
    """Return the first difference between readable rows and those of the store; None if they are
    equal.
    """
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


def _check_cuts(run: FinishedRun, settings: Series) -> list[Check]:
    """Check dates, distances from cuts and held-out entities, each if requested. O(entities) of
    memory.
    """
    table = read_entities(run.root)
    division = settings.division
    checks = []
    if settings.fits and division.cuts is not None:
        checks.append(_check_dates(run, settings, table))
    elif division.margin_us:
        checks.append(_check_distances(run, settings, table))
    if division.held_out:
        checks.append(_check_held_out(run, settings, table))
    return checks


def _check_dates(  # noqa: PLR0914 - the limits of each split in each fold
    run: FinishedRun,
    settings: Series,
    table: pl.DataFrame,
) -> Check:
    """Check, in every fold, that each split's rows lie between its cuts, at the requested distance
    from the next.
    """
    division = settings.division
    names = table["entity"].to_list()
    assert division.cuts is not None
    val, test = (np.full(len(names), cut) for cut in division.cuts)
    folds = 1
    step = 0
    if isinstance(settings.folds, Rolling):
        folds = settings.folds.n
        step = settings.folds.step_us
    problem = None
    for fold in range(folds):
        shift = fold * step
        stop = test + shift + step if step else np.full(len(names), _LIMITS.max)
        limits = {
            "train": (np.full(len(names), _LIMITS.min), val + shift - division.margin_us),
            "val": (val + shift, test + shift - division.margin_us),
            "test": (test + shift, stop),
        }
        for split, (first_row, last_row) in split_rows(table, division.layout, fold).items():
            earliest, latest = limits[split]
            first = row_times(settings, table, first_row)
            last = row_times(settings, table, last_row - 1)
            wrong = (last_row > first_row) & ((first < earliest) | (last >= latest))
            if wrong.any() and problem is None:
                name = names[int(np.argmax(wrong))]
                problem = f"{run.root / ENTITIES}: {split} of {name!r} reaches over a cut"
    detail = f"every row of {many_entities(len(names))} is on its side of the cuts"
    if division.margin_us:
        detail += f", {division.margin_us / DAY_US:g} days or more before the next one"
    if step:
        detail += f" in {folds:,} folds"
    return Check("cuts", detail, problem)


def _check_distances(run: FinishedRun, settings: Series, table: pl.DataFrame) -> Check:
    """Check that an entity's splits, cut by shares, are further apart than the requested
    distance.
    """
    problem = None
    rows = split_rows(table, settings.division.layout)
    margin = settings.division.margin_us
    for earlier, later in pairwise(SPLITS):
        start, stop = rows[earlier]
        next_start, next_stop = rows[later]
        both = (stop > start) & (next_stop > next_start)
        last = row_times(settings, table, stop - 1)
        first = row_times(settings, table, next_start)
        close = both & (first - last <= margin)
        if close.any() and problem is None:
            name = table["entity"][int(np.argmax(close))]
            problem = (
                f"{run.root / ENTITIES}: {earlier} of {name!r} is too close before its {later}"
            )
    detail = f"splits of each of {many_entities(len(table))} are more than {margin / DAY_US:g} days"
    return Check("cuts", f"{detail} apart", problem)


def _check_held_out(run: FinishedRun, settings: Series, table: pl.DataFrame) -> Check:
    """Check that held-out entities have rows only in their split, and that no others have rows
    there.
    """
    division = settings.division
    sides = [division.side_of(name) for name in table["entity"]]
    held_out = set(division.held_out.values())
    problem = None
    for fold in range(len(division.layout.ranges)):
        for split, (start, stop) in split_rows(table, division.layout, fold).items():
            for number in np.flatnonzero(stop > start).tolist():
                side = sides[number]
                allowed = side == split or (side == "train" and split not in held_out)
                if not allowed and problem is None:
                    name = table["entity"][number]
                    problem = (
                        f"{run.root / ENTITIES}: {name!r} has rows in {split} and is of {side}"
                    )
    counts = Counter[str](sides)
    words = ", ".join(
        f"{counts[side]:,} of {side}" for side in SPLITS if side == "train" or side in held_out
    )
    detail = f"no entity has rows in the split of others: {words}"
    return Check("held-out entities", detail, problem)


def _check_copies(run: FinishedRun, settings: Series, workers: int) -> list[Check]:
    """Count entities whose scaled values all equal those of an earlier entity, and check how the
    run treated them.

    Entities with the same series have the same rows in the store, but the reverse does not hold:
    scaling, and rounding to float32, make others equal too. Such entities are cleaned again if the
    source still exists.
    """
    stored = stored_entities(run.root)
    tasks = []
    for name, members in stored.items():
        tasks.append(partial(_digests, run.root / name, len(settings.columns), members))
    digests = list(chain.from_iterable(run_tasks(tasks, workers)))
    entities = list(chain.from_iterable(stored.values()))
    values = []
    series = []
    for entity, digest in zip(entities, digests, strict=True):
        where = (entity.first_time, entity.anchor, entity.val_row, entity.test_row)
        values.append((entity.entity, digest))
        series.append((entity.entity, (digest, *where)))
    pairs = find_copies(values)
    detail = f"{len(pairs):,} of {len(entities):,} entities have the values of an earlier one"
    for name, original in list(pairs.items())[:1]:
        detail += f", such as {name!r} those of {original!r}"
    checks = [Check("same values", detail, category="count")]
    if settings.duplicates != "allow":
        retained = {entity.entity for entity in entities}
        checks.append(_check_named_copies(run, settings, find_copies(series), retained))
    return checks


def _digests(path: Path, columns: int, entities: list[Entity]) -> list[str]:
    matrix = map_store(path).rows[:, :columns]
    return [values_digest(entity.of_batch(matrix)) for entity in entities]


def _check_named_copies(
    run: FinishedRun, settings: Series, equal: Mapping[str, str], retained: Set[str]
) -> Check:
    """Check which copies a run names or leaves out.

    equal: entities whose rows and times an earlier one has.
    """
    named: dict[str, str] = read_summary(run.root).get("duplicates", {})
    drop = settings.duplicates == "drop"
    path = run.root / SUMMARY
    if drop:
        name = "no series twice"
        detail = f"none of {len(retained):,} entities {_COPY}, left out: {len(named):,}"
    else:
        name = "duplicates counted"
        detail = f"{len(named):,} of {len(retained):,} entities {_COPY}"
    problem = None
    counted = int(run.manifest.metadata.get("duplicates", {}).get("entities", 0))
    if counted != len(named):
        problem = (
            f"{path}: names {len(named):,} entities that {_COPY}, the manifest counts {counted:,}"
        )
    for entity, original in named.items():
        if drop and (entity in retained or original not in retained):
            problem = (
                f"{path}: {entity!r} should be left out for {original!r}, which should be there"
            )
        elif not drop and equal.get(entity, "") != equal.get(original, original):
            problem = (
                f"{path}: says that {entity!r} has the values and times of {original!r}, and its"
                " rows are others"
            )
    unnamed = {entity: equal[entity] for entity in equal if entity not in named}
    if unnamed and problem is None:
        files = same_source(run, settings)
        if isinstance(files, str):
            detail = (
                f"{len(unnamed):,} entities have the stored rows of an earlier one; not compared"
                f" further, {files}"
            )
            return Check(name, detail, category="unchecked")
        digests = {}
        for entity, cleaned in clean_again(settings, files, {*unnamed, *unnamed.values()}):
            digests[entity] = series_digest(cleaned)
        again = [
            (entity, digests[entity])
            for entity in (*unnamed.values(), *unnamed)
            if entity in digests
        ]
        for entity, original in find_copies(again).items():
            problem = (
                f"{path}: does not say that {entity!r} has the values and times of {original!r}"
            )
            break
    return Check(name, detail, problem, "law" if drop else "count")


def _check_pipelines(run: FinishedRun, settings: Series) -> Check:
    """Check that the pipelines are byte for byte those that the named run fitted, if that run still
    exists.
    """
    name = "pipelines are of the named run"
    named = run.manifest.metadata[REUSED]
    digests = run.manifest.metadata[FACT]
    fitting_run = f"run {named['run']}"
    if digests != named["pipelines"]:
        message = f"{run.root}: its pipelines are not those that it says {fitting_run} fitted"
        return Check(name, "", message)
    load(run.root, digests)  # raises if a file has another digest
    assert settings.pipelines_from is not None
    fitting = FITTED_RUNS.find_again(settings.pipelines_from, named["run"])
    if isinstance(fitting, str):
        return Check(name, fitting, category="unchecked")
    same = pluralise(len(digests), "file is byte for byte the one", "files are byte for byte those")
    problem = None
    if fitting.record["pipelines"] != digests:
        problem = (
            f"{run.root}: its pipelines are not those of {fitting_run} in {settings.pipelines_from}"
        )
    return Check(name, f"{same} that {fitting_run} fitted", problem)


def _check_scaling(run: FinishedRun, settings: Series) -> Check:
    """Check that some entities of the source, cleaned and scaled again, equal the rows of the
    store.
    """
    name = "pipelines scaled the rows"
    files = same_source(run, settings)
    if isinstance(files, str):
        return Check(name, f"not checked, {files}", category="unchecked")
    columns = settings.columns
    fitted = load(run.root, run.manifest.metadata[FACT]).time_series
    entities: dict[str, tuple[str, Entity]] = {}
    for shard, members in stored_entities(run.root).items():
        for entity in members:
            entities[entity.entity] = (shard, entity)
    sample = set(chosen_entities(list(entities), SAMPLE, settings.seed))
    values = len(columns)
    problem = None
    seen = set()
    for entity_name, again in clean_again(settings, files, sample):
        shard, entity = entities[entity_name]
        rows = entity.of_batch(map_store(run.root / shard).rows)
        offsets = np.array([0, len(again.values)], np.int64)
        scaled = fitted.transform(columns, again.values, offsets, [entity_name])
        if not same_bytes(rows[:, :values], scaled):
            problem = (
                f"{run.root / shard}: the rows of entity {entity_name!r} are not those of the"
                " source, scaled"
            )
        seen.add(entity_name)
    for entity_name in sorted(sample - seen):
        problem = f"{run.root}: entity {entity_name!r} does not pass again"
    detail = f"{many_entities(len(sample))} cleaned and scaled again: the same rows"
    return Check(name, detail, problem)
