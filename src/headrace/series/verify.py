"""Prove a run of series from its output: files as published, rows in the right splits, and no leak."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.dataset.open import FinishedRun, find_run
from headrace.dataset.verify import Check, read_receipt
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, HeadraceError
from headrace.folds.settings import Rolling
from headrace.report.words import many, many_entities
from headrace.series.arrays.axis import DAY_US
from headrace.series.clean import required_targets
from headrace.series.config import Series
from headrace.series.duplicates import find_copies, series_digest, values_digest
from headrace.series.leaks import SAMPLE, cleaned_again, leak_checks, same_bytes, same_source
from headrace.series.parts import SPLITS
from headrace.series.pipelines.save import FACT, load
from headrace.series.pipelines.settings import chosen_entities
from headrace.series.reuse import REUSED, fitted_by
from headrace.series.store import (
    REPORTS,
    REPORTS_TABLE,
    STORE,
    SUMMARY,
    Entity,
    calendar_rows,
    file_name,
    published_digest,
    read_entities,
    read_summary,
    read_table,
    readable_schema,
    row_times,
    rows_table,
    shared_times,
    split_directory,
    split_rows,
    stored_columns,
    stored_entities,
    stored_settings,
)
from headrace.series.windows.store import ENTITIES, STATICS, map_store
from headrace.storage.places import place_of

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def verify_series(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Check files, entities, rows and scalers. O(store shard) of memory per worker.

    A run in an object store is fetched first, because its many small files are mapped and compared with each other.
    """
    with place_of(run.root).local_tree() as here:
        local = FinishedRun(here, run.manifest)
        checks = [_files(local)]
        if checks[0].problem is None:
            settings = stored_settings(local)
            try:
                workers = workers or default_workers()
                checks += [_entities(local, settings), _rows(local, settings, workers)]
                checks += [*_same_series(local, settings, workers), *_cuts(local, settings)]
                # Such as one flood in the rows of different entities in all splits.
                shared = "; ".join(shared_times(here, settings)) or "no two splits share any, whatever the entity"
                checks.append(Check("calendar time", shared, kind="count"))
                if all(check.problem is None for check in checks):
                    if settings.pipelines_from is None:
                        checks += leak_checks(local)
                    else:
                        checks += [_named_pipelines(local, settings), _scaled_again(local, settings)]
            except CorruptShard as error:
                checks.append(Check("contents", "", str(error)))
    return [replace(each, problem=each.problem and each.problem.replace(str(here), str(run.root))) for each in checks]


def _files(run: FinishedRun) -> Check:
    """Check that the receipts, which vouched for all files before, match the manifest, and no other files exist."""
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
    return Check(
        "files", f"{many(len(known), 'file is the one', 'files are those')} that the manifest vouches for", problem
    )


def _entities(run: FinishedRun, settings: Series) -> Check:
    """Check that retained entities match the summary, and each has its static row and enough targets to train."""
    path, table = run.root / ENTITIES, read_table(run.root / ENTITIES)
    summary = read_summary(run.root)
    original, excluded, names = summary["original_basins"], summary["excluded_basins"], table["entity"].to_pylist()
    required = max(int(settings.pipelines_from is None), required_targets(settings))
    targets = zip(names, table["train_targets"].to_pylist(), strict=True)
    few = [name for name, own in targets if own < required and settings.division.trains(name)]
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
    """Check that the readable rows of every split equal those of the store, on equal steps, in the order of splits."""
    tasks = [partial(_shard_rows, run, settings, *each) for each in stored_entities(run.root).items()]
    found = run_tasks(tasks, workers)
    rows, apart = sum(each[0] for each in found), sum(each[1] for each in found)
    problem = next((told for _, _, told in found if told is not None), None)
    listed = sum(totals.rows for totals in run.manifest.splits.values())
    if problem is None and rows - apart != listed:
        problem = f"{run.root}: the store holds {rows - apart:,} rows of splits, the splits {listed:,}"
    told = f", {apart:,} are in none" if apart else ""
    whose = "those of train, val and test" if settings.division.rolling is None else "those of the cells of folds"
    return Check("rows", f"{rows:,} rows of the store are {whose}{told}, on equal steps", problem)


def _cuts(run: FinishedRun, settings: Series) -> list[Check]:
    """Check dates, distances from cuts and held-out entities, each if requested. O(entities) of memory."""
    table = read_entities(run.root)
    checks = []
    if settings.pipelines_from is None and settings.division.by_dates:
        checks.append(_dates(run, settings, table))
    elif settings.division.reach_us:
        checks.append(_distances(run, settings, table))
    return [*checks, _held_out(run, settings, table)] if settings.division.held_out else checks


def _dates(run: FinishedRun, settings: Series, table: pl.DataFrame) -> Check:
    """Check, in every fold, that each split's rows lie between its cuts, at the requested distance from the next."""
    division = settings.division
    names = table["entity"].to_list()
    dates = np.array([division.dates.get(name, division.cuts or (0, 0)) for name in names], np.int64).reshape(-1, 2)
    folds, step = (settings.folds.n, settings.folds.step_us) if isinstance(settings.folds, Rolling) else (1, 0)
    problem = None
    for fold in range(folds):
        one, two = (dates + fold * step).T
        low: dict[str, Any] = {"train": _LEAST, "val": one, "test": two}
        high: dict[str, Any] = {
            "train": one - division.reach_us,
            "val": two - division.reach_us,
            "test": two + step if step else _MOST,
        }
        for split, (start, stop) in split_rows(table, division.parts, fold).items():
            begins, last = (row_times(settings, table, rows) for rows in (start, stop - 1))
            wrong = (stop > start) & ((begins < low[split]) | (last >= high[split]))
            if wrong.any() and problem is None:
                problem = f"{run.root / ENTITIES}: {split} of {names[int(np.argmax(wrong))]!r} reaches over a cut"
    far = f", {division.reach_us / DAY_US:g} days or more before the next one" if division.reach_us else ""
    told = f" in {folds:,} folds" if step else ""
    return Check("cuts", f"every row of {many_entities(len(names))} is on its side of the cuts{far}{told}", problem)


def _distances(run: FinishedRun, settings: Series, table: pl.DataFrame) -> Check:
    """Check that an entity's splits, cut by shares, are further apart than the requested distance."""
    problem, rows = None, split_rows(table, settings.division.parts)
    for one, other in pairwise(SPLITS):
        both = (rows[one][1] > rows[one][0]) & (rows[other][1] > rows[other][0])
        last, begins = (row_times(settings, table, at) for at in (rows[one][1] - 1, rows[other][0]))
        close = both & (begins - last <= settings.division.reach_us)
        if close.any() and problem is None:
            name = table["entity"][int(np.argmax(close))]
            problem = f"{run.root / ENTITIES}: {one} of {name!r} is too close before its {other}"
    far = f"{settings.division.reach_us / DAY_US:g} days"
    return Check("cuts", f"splits of each of {many_entities(len(table))} are more than {far} apart", problem)


def _held_out(run: FinishedRun, settings: Series, table: pl.DataFrame) -> Check:
    """Check that held-out entities have rows only in their split, and that no others have rows there."""
    sides = [settings.division.side_of(name) for name in table["entity"]]
    held, parts, problem = set(settings.division.held_out.values()), settings.division.parts, None
    for fold in range(len(parts.ranges)):
        for split, (start, stop) in split_rows(table, parts, fold).items():
            for at in np.flatnonzero(stop > start).tolist():
                allowed = sides[at] == split or (sides[at] == "train" and split not in held)
                if not allowed and problem is None:
                    name = table["entity"][at]
                    problem = f"{run.root / ENTITIES}: {name!r} has rows in {split} and is of {sides[at]}"
    counts = Counter[str](sides)
    told = ", ".join(f"{counts[side]:,} of {side}" for side in SPLITS if side == "train" or side in held)
    return Check("held-out entities", f"no entity has rows in the split of others: {told}", problem)


def _same_series(run: FinishedRun, settings: Series, workers: int) -> list[Check]:
    """Count entities whose scaled values all equal those of an earlier entity, and check how the run treated them.

    Entities with the same series have the same rows in the store, but the reverse does not hold: scaling, and rounding
    to float32, make others equal too. Such entities are cleaned again if the source still exists.
    """

    def digests(name: str, entities: list[Entity]) -> list[str]:
        matrix = map_store(run.root / name)[0][:, : len(settings.columns())]
        return [values_digest(matrix[each.first_row : each.first_row + each.rows]) for each in entities]

    stored = stored_entities(run.root)
    found = run_tasks([partial(digests, *each) for each in stored.items()], workers)
    entities = [each for own in stored.values() for each in own]
    known = list(zip(entities, chain.from_iterable(found), strict=True))
    pairs = find_copies((each.entity, digest) for each, digest in known)
    such = next((f", such as {name!r} those of {pairs[name]!r}" for name in pairs), "")
    told = f"{len(pairs):,} of {len(entities):,} entities have the values of an earlier one{such}"
    checks = [Check("same values", told, kind="count")]
    asked = json.loads((run.root / "config.json").read_bytes()).get("duplicates")
    if asked in ("count", "drop"):  # older runs did not look for copies
        equal = find_copies(
            (each.entity, (digest, each.first_time, each.anchor, each.val_row, each.test_row)) for each, digest in known
        )
        checks.append(_copies(run, settings, equal, asked, {each.entity for each in entities}))
    return checks


def _copies(run: FinishedRun, settings: Series, equal: Mapping[str, str], asked: str, retained: Set[str]) -> Check:
    """Check which copies a run names or leaves out. equal: entities whose rows and times an earlier one has."""
    named: dict[str, str] = read_summary(run.root).get("duplicates", {})
    drop, path = asked == "drop", run.root / SUMMARY
    told = "have the values and times of an earlier one"
    name, detail = "duplicates counted", f"{len(named):,} of {len(retained):,} entities {told}"
    if drop:
        name, detail = "no series twice", f"none of {len(retained):,} entities {told}, left out: {len(named):,}"
    problem = None
    counted = int(run.manifest.facts.get("duplicates", {}).get("entities", 0))
    if counted != len(named):
        problem = f"{path}: names {len(named):,} entities that {told}, the manifest counts {counted:,}"
    for entity, original in named.items():
        if drop and (entity in retained or original not in retained):
            problem = f"{path}: {entity!r} should be left out for {original!r}, which should be there"
        elif not drop and equal.get(entity, "") != equal.get(original, original):
            problem = f"{path}: says that {entity!r} has the values and times of {original!r}, and its rows are others"
    unnamed = {entity: original for entity, original in equal.items() if entity not in named}
    if unnamed and problem is None:
        files = same_source(run, settings)
        if isinstance(files, str):
            detail = f"{len(unnamed):,} entities have the stored rows of an earlier one; not compared further, {files}"
            return Check(name, detail, kind="unchecked")
        wanted = {*unnamed, *unnamed.values()}
        again = {name: series_digest(cleaned) for name, cleaned in cleaned_again(settings, files, wanted)}
        missed = find_copies((each, again[each]) for each in (*unnamed.values(), *unnamed) if each in again)
        for entity, original in list(missed.items())[:1]:
            problem = f"{path}: does not say that {entity!r} has the values and times of {original!r}"
    return Check(name, detail, problem, "law" if drop else "count")


def _named_pipelines(run: FinishedRun, settings: Series) -> Check:
    """Check that the pipelines are byte for byte those that the named run fitted, if that run still exists."""
    named, own = run.manifest.facts[REUSED], run.manifest.facts[FACT]
    name, where = "pipelines are of the named run", run.root
    if own != named["pipelines"]:
        return Check(name, "", f"{where}: its pipelines are not those that it says run {named['run']} fitted")
    load(where, own)  # raises if a file has another digest
    assert settings.pipelines_from is not None
    try:
        _, manifest = find_run(settings.pipelines_from, named["run"])
        fitted = fitted_by(manifest)
    except (HeadraceError, OSError) as error:
        return Check(name, f"not compared with run {named['run']}: {error}", kind="unchecked")
    if fitted["run"] != named["run"]:
        told = f"not compared with run {named['run']}: {settings.pipelines_from} holds run {fitted['run']} by now"
        return Check(name, told, kind="unchecked")
    same = many(len(own), "file is byte for byte the one", "files are byte for byte those")
    detail = f"{same} that run {named['run']} fitted"
    problem = f"{where}: its pipelines are not those of run {named['run']} in {settings.pipelines_from}"
    return Check(name, detail, problem if fitted["pipelines"] != own else None)


def _scaled_again(run: FinishedRun, settings: Series) -> Check:
    """Check that some entities of the source, cleaned and scaled again, equal the rows of the store."""
    name, files = "pipelines scaled the rows", same_source(run, settings)
    if isinstance(files, str):
        return Check(name, f"not checked, {files}", kind="unchecked")
    fitted, columns = load(run.root, run.manifest.facts[FACT]).time_series, settings.columns()
    stored = stored_entities(run.root)
    entities = {each.entity: (shard, each) for shard, own in stored.items() for each in own}
    sample = chosen_entities(list(entities), SAMPLE, settings.seed)
    unmasked = len(columns) - len(settings.mask_columns())
    problem, seen = None, set[str]()
    for entity, again in cleaned_again(settings, files, set(sample)):
        shard, own = entities[entity]
        rows = map_store(run.root / shard)[0][own.first_row : own.first_row + own.rows]
        edges = np.array([0, len(again.values)], np.int64)
        scaled = fitted.transform(columns, again.values, edges, [entity])
        masks = np.asarray(again.filled[:, unmasked:], np.float32)
        behind = rows[:, len(columns) + len(settings.calendar_columns()) :]
        if not (same_bytes(rows[:, : len(columns)], scaled) and same_bytes(behind, masks)):
            problem = f"{run.root / shard}: the rows of entity {entity!r} are not those of the source, scaled"
        seen.add(entity)
    for entity in sorted(set(sample) - seen):
        problem = f"{run.root}: entity {entity!r} does not pass again"
    return Check(name, f"{many_entities(len(sample))} cleaned and scaled again: the same rows and masks", problem)


def _shard_rows(run: FinishedRun, settings: Series, name: str, entities: list[Entity]) -> tuple[int, int, str | None]:
    """Return (rows of a shard, rows in no split, first difference from the readable rows; None if equal)."""
    shard, packed = run.root / name, settings.layout == "packed"
    schema = readable_schema(settings)
    matrix, metadata = map_store(shard)
    if metadata.get("columns") != stored_columns(settings):
        return 0, 0, f"{shard}: does not name the columns {', '.join(stored_columns(settings))}"
    values = len(settings.columns())
    left: dict[str, pa.Table] = {}  # the unread rest of each split's packed file, in the order of entities
    expected = apart = 0
    for each in entities:
        if each.first_row != expected:
            return expected, 0, f"{run.root / ENTITIES}: {each.entity} begins at row {each.first_row}, not {expected}"
        expected += each.rows
        made = calendar_rows(settings, each.axis(settings.step))
        if not np.array_equal(matrix[each.first_row : expected, values : values + made.shape[1]], made):
            return expected, 0, f"{shard}: the calendar of entity {each.entity!r} is not that of its times"
        within = each.bounds(settings.division.parts)
        apart += each.rows - sum(stop - start for start, stop in within.values())
        for split, (start, stop) in within.items():
            stem = shard.stem if packed else file_name(each.entity)
            path = run.root / split_directory(split) / f"{stem}.parquet"
            if start == stop:
                if not packed and path.exists():
                    return expected, 0, f"{path}: is there, and {each.entity} has no rows in {split}"
                continue
            table = left[split] if split in left else read_table(path)
            if packed:
                left[split], table = table.slice(stop - start), table.slice(0, stop - start)
            told = _difference(table, rows_table(settings, schema, each, (start, stop), matrix))
            if told is not None:
                return expected, 0, f"{path}: entity {each.entity}: {told}"
    if expected != len(matrix):
        return expected, 0, f"{shard}: has {len(matrix):,} rows, {ENTITIES} names {expected:,}"
    return expected, apart, None


def _difference(table: pa.Table, stored: pa.Table) -> str | None:
    """Return the first difference between readable rows and those of the store; None if they are equal."""
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
