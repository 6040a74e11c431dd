"""Prove a temporal split from its output alone: every time on its side of the cutoff, no entity on both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers, run_tasks
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled
from headrace.split.allocate import Allocation, EntitySet, Hashes, hash_entities, hash_nobody
from headrace.split.cutoff import DateBins
from headrace.split.settings import TemporalSplit
from headrace.split.shards import on_utc


@dataclass
class _Seen:
    """One split as it was read. dates: rows in each stretch of time, as the manifest counts them."""

    entities: Hashes
    rows: int
    dates: list[int] | None
    problem: str | None

    def shared_with(self, other: Hashes) -> Hashes:
        """Entities of this split that are among others, which are in ascending order."""
        both = Allocation(other, len(other)).side_of(self.entities) == 0
        return Hashes(self.entities.high[both], self.entities.low[both])


def verify_split(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Read time and entity of every row of the output and check both laws. O(entities) of memory."""
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    settings = TemporalSplit(**config)
    said = run.manifest.facts.get("dates")  # None for a run of an older version
    bins = None if said is None else DateBins(said["first_us"], said["width_us"], len(said["rows"]["train"]))
    seen = {split: _read(run, settings, split, bins, workers or default_workers()) for split in run.splits}

    rows = sum(each.rows for each in seen.values())
    problem = next((each.problem for each in seen.values() if each.problem is not None), None)
    checks = [Check("dates", f"{rows:,} rows are on their side of {settings.split_date}", problem)]
    if said is not None and problem is None:  # a date that moved is told once
        moved = next((split for split, each in seen.items() if each.dates != said["rows"].get(split)), None)
        told = moved and f"the dates of {moved} are not those that the manifest counts; prepare the run again"
        checks.append(Check("rows by date", f"counted again in {len(said['rows']['train'])} stretches of time", told))
    train = seen["train"].entities
    for other in ("val", "test"):
        detail = f"{len(train):,} train and {len(seen[other].entities):,} {other} entities, none in both"
        problem = _first_row_of(run, settings, other, seen[other].shared_with(train))
        checks.append(Check(f"train and {other} are apart", detail, problem))
    if settings.val_in_test == "drop":
        problem = _first_row_of(run, settings, "test", seen["test"].shared_with(seen["val"].entities))
        checks.append(Check("val and test are apart", "no entity validates and tests", problem))
    return checks


def _read(run: FinishedRun, settings: TemporalSplit, split: str, bins: DateBins | None, workers: int) -> _Seen:
    index = run.split_index(split)
    cutoff, mixed = settings.cutoff(), run.manifest.facts["date_form"] == "iso_mixed"

    def look(number: int) -> tuple[Hashes, int, I64 | None, str | None]:
        """Distinct entities of a block, its rows, rows in each stretch of time, and what is wrong."""
        table = run.block_reader(split)(number, [settings.time, settings.entity])
        texts = as_text(table[settings.entity], settings.null_values, "entity")
        hashes = hash_entities(pc.unique(texts).drop_null(), settings.seed)
        if texts.null_count:
            nobody = hash_nobody(settings.seed)
            hashes = Hashes(np.append(hashes.high, nobody.high), np.append(hashes.low, nobody.low))
        dates = parse_dates(nulled(table[settings.time], ("", *settings.null_values)), settings.time_format)
        micros, at = dates.micros, np.where(dates.instant, cutoff.instant_us, cutoff.wall_us)
        wrong = (micros == MISSING) | ((micros >= at) if split != "test" else (micros < at))
        problem = None
        if wrong.any():
            where = _place(run, split, number, int(np.flatnonzero(wrong)[0]))
            problem = f"{where}: its date is on the wrong side of {settings.split_date}, or is none"
        if len(micros) != (expected := int(index.rows[number])):
            where = _place(run, split, number, 0)
            problem = f"{where}: the block has {len(micros):,} rows, the index says {expected:,}"
        if mixed:
            micros = on_utc(micros, ~dates.instant, settings.timezone)
        return hashes, len(micros), None if bins is None else bins.counts(micros), problem

    entities, rows, problem = EntitySet(), 0, None
    dates = None if bins is None else np.zeros(bins.count, np.int64)
    for start in range(0, len(index.rows), 256):  # so that few blocks' entities wait to be added
        numbers = range(start, min(start + 256, len(index.rows)))
        for hashes, count, dated, wrong in run_tasks([partial(look, number) for number in numbers], workers):
            entities.add(hashes)
            rows += count
            if dates is not None and dated is not None:
                dates += dated
            problem = problem or wrong
    return _Seen(entities.ordered(), rows, None if dates is None else dates.tolist(), problem)


def _first_row_of(run: FinishedRun, settings: TemporalSplit, split: str, leaked: Hashes) -> str | None:
    """The first shard and row of a split whose entity is one of the leaked ones; None where none leaked."""
    if not len(leaked):
        return None
    wanted = Allocation(leaked, len(leaked))
    for number in range(len(run.split_index(split).rows)):
        table = run.block_reader(split)(number, [settings.entity])
        texts = as_text(table[settings.entity], settings.null_values, "entity")
        hit = np.zeros(len(texts), np.bool_)
        hit[pc.is_valid(texts).to_numpy()] = wanted.side_of(hash_entities(texts.drop_null(), settings.seed)) == 0
        if texts.null_count and wanted.side_of(hash_nobody(settings.seed))[0] == 0:
            hit |= pc.is_null(texts).to_numpy()
        if hit.any():
            row = int(np.flatnonzero(hit)[0])
            return f"{_place(run, split, number, row)}: its entity {texts[row].as_py()!r} is in another split too"
    return f"{run.root}: {split} shares {len(leaked):,} entities with another split"


def _place(run: FinishedRun, split: str, number: int, row: int) -> str:
    index = run.split_index(split)
    shard = int(index.shard_of_block[number])
    same = np.flatnonzero((index.shard_of_block == shard) & (index.block < index.block[number]))
    return f"{run.root / index.shards[shard]}: row {int(index.rows[same].sum()) + row + 1}"
