"""Prove a temporal split from its output alone: times on their side of the cutoff, entities and content disjoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow.compute as pc

from headrace.arrays import I64, U64
from headrace.dataset.certificate import LABELS_END
from headrace.dataset.contents import KeptDigests, content_check, place_of_row, split_digests
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers, run_tasks
from headrace.formats.content import row_digests
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled
from headrace.split.allocate import EntitySet, Hashes, hash_entities, hash_nobody
from headrace.split.cutoff import DateBins
from headrace.split.joins.verify import join_checks
from headrace.split.settings import GAP, LABEL_PAST, TemporalSplit
from headrace.split.shards import on_utc
from headrace.split.verify_folds import verify_folds
from headrace.split.verify_near import near_checks

_SIDE = "side"  # the rule of every run, besides those that keep rows away from the cutoff


@dataclass
class _Seen:
    """One split as it was read. dates: rows in each time bin, as the manifest counts them.

    problems: by rule, the first row that is on the wrong side of the cutoff or too close before it.
    """

    entities: Hashes
    rows: int
    dates: list[int] | None
    problems: dict[str, str]

    def shared_with(self, other: Hashes) -> Hashes:
        """Return the entities of this split that are among others, which must be ascending."""
        both = other.places(self.entities) >= 0
        return Hashes(self.entities.high[both], self.entities.low[both])


def verify_split(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Read time, entity and compared columns of every row of the output, and check the laws.

    Memory is O(entities) and O(blocks). If rows are compared, a temporary file takes 8 bytes a row.
    """
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    repeats = run.manifest.facts.get("duplicates")  # None if repeats were not searched, as in a run of an older version
    compared = () if repeats is None else tuple(repeats["content"])
    settings = TemporalSplit(**config)
    joined = join_checks(run, settings, workers or default_workers()) if settings.join else ()
    if settings.folds is not None:
        return [*verify_folds(run, settings, workers or default_workers()), *joined]
    said = run.manifest.facts.get("dates")  # None for a run of an older version
    bins = None if said is None else DateBins(said["first_us"], said["width_us"], len(said["rows"]["train"]))
    workers = workers or default_workers()
    with KeptDigests(settings.splits) as kept:
        seen = {split: _read(run, settings, split, bins, (compared, kept), workers) for split in run.splits}
        found = kept.count()

    rows = sum(each.rows for each in seen.values())
    earlier = " or ".join(settings.splits[:-1])
    said_of = {
        _SIDE: ("dates", f"{rows:,} rows are on their side of {settings.split_date}"),
        GAP: ("gap before the cutoff", f"no row of {earlier} is within {settings.gap} of {settings.split_date}"),
        LABEL_PAST: (LABELS_END, f"no label of {earlier} reaches {settings.split_date} in {settings.label_horizon}"),
    }
    checks = []
    for rule in (_SIDE, *settings.reaches_us()):
        problem = next((each.problems[rule] for each in seen.values() if rule in each.problems), None)
        checks.append(Check(*said_of[rule], problem))
    problem = checks[0].problem
    if said is not None and problem is None:  # report a moved date once
        moved = next((split for split, each in seen.items() if each.dates != said["rows"].get(split)), None)
        told = moved and f"the dates of {moved} are not those that the manifest counts; prepare the run again"
        checks.append(Check("rows by date", f"counted again in {len(said['rows']['train'])} time ranges", told))
    train = seen["train"].entities
    for other in () if settings.entity is None else ("val", "test"):
        detail = f"{len(train):,} train and {len(seen[other].entities):,} {other} entities, none in both"
        problem = _first_row_of(run, settings, other, seen[other].shared_with(train))
        checks.append(Check(f"train and {other} are apart", detail, problem))
    if settings.val_in_test == "drop":
        problem = _first_row_of(run, settings, "test", seen["test"].shared_with(seen["val"].entities))
        checks.append(Check("val and test are apart", "no entity validates and tests", problem))
    if repeats is not None:

        def content() -> dict[str, U64]:
            return {split: split_digests(run, split, workers, compared) for split in settings.splits}

        checks.append(content_check(run, settings.duplicates, repeats, found, content))
        checks += near_checks(run, settings, repeats, workers)
    return [*checks, *joined]


def _read(
    run: FinishedRun,
    settings: TemporalSplit,
    split: str,
    bins: DateBins | None,
    content: tuple[Sequence[str], KeptDigests],
    workers: int,
) -> _Seen:
    """Read a split once. content: the compared columns and the file for digests, None if rows are not compared."""
    compared, kept = content
    index = run.split_index(split)
    cutoff, mixed = settings.cutoff(), run.manifest.facts["date_form"] == "iso_mixed"

    columns = list(dict.fromkeys([settings.time, *([settings.entity] if settings.entity else []), *compared]))
    rules = {_SIDE: 0, **settings.reaches_us()}

    def look(number: int) -> tuple[Hashes, int, I64 | None, dict[str, str]]:
        """Return the distinct entities of a block, its rows, rows in each time bin, and problems."""
        table = run.block_reader(split)(number, columns)
        if compared:
            kept.keep(split, row_digests(table.select(list(compared))))
        hashes = Hashes(np.empty(0, np.uint64), np.empty(0, np.uint64))
        if settings.entity is not None:
            texts = as_text(table[settings.entity], settings.null_values, "entity")
            hashes = hash_entities(pc.unique(texts).drop_null(), settings.seed)
            if texts.null_count:
                nobody = hash_nobody(settings.seed)
                hashes = Hashes(np.append(hashes.high, nobody.high), np.append(hashes.low, nobody.low))
        dates = parse_dates(nulled(table[settings.time], ("", *settings.null_values)), settings.time_format)
        micros, at = dates.micros, np.where(dates.instant, cutoff.instant_us, cutoff.wall_us)
        problems = {}
        for rule, reach in rules.items():
            wrong = (micros == MISSING) | ((micros >= at - reach) if split != "test" else (micros < at))
            if wrong.any():
                where = place_of_row(run, split, int(index.first_row[number]) + int(np.flatnonzero(wrong)[0]))
                problems[rule] = f"{where}: {_told(rule, settings)}"
        if len(micros) != (expected := int(index.rows[number])):
            where = place_of_row(run, split, int(index.first_row[number]))
            problems[_SIDE] = f"{where}: the block has {len(micros):,} rows, the index says {expected:,}"
        if mixed:
            micros = on_utc(micros, ~dates.instant, settings.timezone)
        return hashes, len(micros), None if bins is None else bins.counts(micros), problems

    entities, rows = EntitySet(), 0
    problems: dict[str, str] = {}
    dates = None if bins is None else np.zeros(bins.count, np.int64)
    for start in range(0, len(index.rows), 256):  # bounds the entities that wait to be added
        numbers = range(start, min(start + 256, len(index.rows)))
        for hashes, count, dated, wrong in run_tasks([partial(look, number) for number in numbers], workers):
            entities.add(hashes)
            rows += count
            if dates is not None and dated is not None:
                dates += dated
            problems = wrong | problems
    dated_rows = None if dates is None else dates.tolist()
    return _Seen(entities.ordered(), rows, dated_rows, problems)


def _told(rule: str, settings: TemporalSplit) -> str:
    """Describe what is wrong with the time of a row."""
    if rule == GAP:
        return f"it lies within {settings.gap} before {settings.split_date}, which is the gap"
    if rule == LABEL_PAST:
        return f"its label ends {settings.label_horizon} later, not before {settings.split_date}"
    return f"its date is missing or on the wrong side of {settings.split_date}"


def _first_row_of(run: FinishedRun, settings: TemporalSplit, split: str, leaked: Hashes) -> str | None:
    """Return the first shard and row of a split whose entity is one of the leaked ones; None if none leaked."""
    if not len(leaked) or settings.entity is None:
        return None
    for number in range(len(run.split_index(split).rows)):
        table = run.block_reader(split)(number, [settings.entity])
        texts = as_text(table[settings.entity], settings.null_values, "entity")
        hit = np.zeros(len(texts), np.bool_)
        hit[pc.is_valid(texts).to_numpy()] = leaked.places(hash_entities(texts.drop_null(), settings.seed)) >= 0
        if texts.null_count and leaked.places(hash_nobody(settings.seed))[0] >= 0:
            hit |= pc.is_null(texts).to_numpy()
        if hit.any():
            row = int(np.flatnonzero(hit)[0])
            where = place_of_row(run, split, int(run.split_index(split).first_row[number]) + row)
            return f"{where}: its entity {texts[row].as_py()!r} is in another split too"
    return f"{run.root}: {split} shares {len(leaked):,} entities with another split"
