"""Prove a temporal split from its output alone: every date on its side, no entity on both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers, run_tasks
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled
from headrace.split.allocate import Allocation, EntitySet, Hashes, hash_entities, hash_nobody
from headrace.split.config import TemporalSplit
from headrace.split.date_counts import DateBins
from headrace.split.split import on_utc


@dataclass
class _Seen:
    """What was read of one split."""

    entities: Hashes
    rows: int
    dates: list[int] | None = None
    problem: str | None = None
    samples: list[str] = field(default_factory=list)


def settings_of(run: FinishedRun) -> TemporalSplit:
    """The settings a run was made with."""
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    return TemporalSplit(**config)


def verify_split(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Read date and entity of every row of the output and check both laws. O(entities) of memory."""
    settings = settings_of(run)
    seen = {split: _read(run, settings, split, workers or default_workers()) for split in run.splits}
    checks = [_dates_check(settings, seen)]
    if _bins_of(run) is not None and checks[0].problem is None:  # a date that moved is told once
        checks.append(_counts_check(run, seen))
    train = Allocation(seen["train"].entities, len(seen["train"].entities))
    for other in ("val", "test"):
        both = train.side_of(seen[other].entities) == 0
        detail = (
            f"{len(seen['train'].entities):,} train and {len(seen[other].entities):,} {other} entities, none in both"
        )
        problem = _first_row_of(run, settings, other, _chosen(seen[other].entities, both)) if both.any() else None
        checks.append(Check(f"train and {other} are apart", detail, problem))
    if settings.val_in_test == "drop":
        val = Allocation(seen["val"].entities, len(seen["val"].entities))
        both = val.side_of(seen["test"].entities) == 0
        problem = _first_row_of(run, settings, "test", _chosen(seen["test"].entities, both)) if both.any() else None
        checks.append(Check("val and test are apart", "no entity validates and tests", problem))
    return checks


def _chosen(hashes: Hashes, mask: npt.NDArray[np.bool_]) -> Hashes:
    return Hashes(hashes.high[mask], hashes.low[mask])


def _dates_check(settings: TemporalSplit, seen: dict[str, _Seen]) -> Check:
    rows = sum(each.rows for each in seen.values())
    problem = next((each.problem for each in seen.values() if each.problem is not None), None)
    return Check("dates", f"{rows:,} rows are on their side of {settings.split_date}", problem)


def _bins_of(run: FinishedRun) -> DateBins | None:
    """The stretches of time in which the manifest counts rows; None for a run of an older version."""
    dates = run.manifest.facts.get("dates")
    if dates is None:
        return None
    return DateBins(dates["first_us"], dates["width_us"], len(dates["rows"]["train"]))


def _counts_check(run: FinishedRun, seen: dict[str, _Seen]) -> Check:
    said = run.manifest.facts["dates"]["rows"]
    wrong = [split for split, each in seen.items() if each.dates != said.get(split)]
    problem = (
        f"the dates of {wrong[0]} are not those that the manifest counts; prepare the run again" if wrong else None
    )
    return Check("rows by date", f"counted again in {len(said['train'])} stretches of time", problem)


def _read(run: FinishedRun, settings: TemporalSplit, split: str, workers: int) -> _Seen:
    index = run.split_index(split)
    cutoff, bins, mixed = settings.cutoff(), _bins_of(run), run.manifest.facts["date_form"] == "iso_mixed"

    def look(number: int) -> Callable[[], tuple[Hashes, int, I64 | None, str | None]]:
        def work() -> tuple[Hashes, int, I64 | None, str | None]:
            hashes, micros, instant = _keys(run, settings, split, number)
            at = np.where(instant, cutoff.instant_us, cutoff.wall_us)
            wrong = (micros >= at) if split != "test" else (micros < at)
            wrong |= micros == MISSING
            problem = None
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                where = _place(run, split, number, row)
                problem = f"{where}: its date is on the wrong side of {settings.split_date}, or is none"
            if len(micros) != (expected := int(index.rows[number])):
                where = _place(run, split, number, 0)
                problem = f"{where}: the block has {len(micros):,} rows, the index says {expected:,}"
            if mixed:
                micros = on_utc(micros, ~instant, settings.timezone)
            return hashes, len(micros), None if bins is None else bins.counts(micros), problem

        return work

    entities, rows, problem = EntitySet(), 0, None
    dates = None if bins is None else np.zeros(bins.count, np.int64)
    for start in range(0, len(index.rows), 256):
        numbers = range(start, min(start + 256, len(index.rows)))
        for hashes, count, dated, wrong in run_tasks([look(number) for number in numbers], workers):
            entities.add(hashes)
            rows += count
            if dates is not None and dated is not None:
                dates += dated
            problem = problem or wrong
    return _Seen(entities.ordered(), rows, None if dates is None else dates.tolist(), problem)


def _keys(
    run: FinishedRun, settings: TemporalSplit, split: str, number: int
) -> tuple[Hashes, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Distinct entities of a block, the microseconds of every row, and which of these are instants."""
    table = run.block_reader(split)(number, [settings.date_column, settings.group_column])
    dates = parse_dates(nulled(table[settings.date_column], ("", *settings.null_values)), settings.date_format)
    texts = as_text(table[settings.group_column], settings.null_values, "group_column")
    hashes = hash_entities(pc.unique(texts).drop_null(), settings.seed)
    if texts.null_count:
        nobody = hash_nobody(settings.seed)
        hashes = Hashes(np.append(hashes.high, nobody.high), np.append(hashes.low, nobody.low))
    return hashes, dates.micros, dates.instant


def _first_row_of(run: FinishedRun, settings: TemporalSplit, split: str, leaked: Hashes) -> str:
    """The first shard and row of a split whose entity is one of the leaked ones."""
    order = np.lexsort((leaked.low, leaked.high))
    wanted = Allocation(Hashes(leaked.high[order], leaked.low[order]), len(leaked))
    for number in range(len(run.split_index(split).rows)):
        table = run.block_reader(split)(number, [settings.group_column])
        texts = as_text(table[settings.group_column], settings.null_values, "group_column")
        known = texts.drop_null()
        hit = np.zeros(len(texts), np.bool_)
        hit[pc.is_valid(texts).to_numpy()] = wanted.side_of(hash_entities(known, settings.seed)) == 0
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
