"""Make figures about series: data, cuts and holes of each entity, filled values, and failed entities."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from headrace.arrays import F32, F64, I64, Bools
from headrace.errors import SettingsError
from headrace.report import charts, common
from headrace.report.bins import counted, even_edges, spread, time_edges
from headrace.report.facts import RunFacts
from headrace.report.figure import Chart, Figure, Tone
from headrace.report.words import listed, many, many_entities, moment, share, verb
from headrace.series.arrays.axis import YEAR_US, times_at
from headrace.series.parts import SPLITS
from headrace.series.pipelines.save import FACT, load
from headrace.series.reuse import REUSED
from headrace.series.store import (
    REPORTS,
    REPORTS_TABLE,
    read_entities,
    read_summary,
    read_table,
    shared_times,
    split_rows,
    stored_columns,
    stored_settings,
)
from headrace.series.windows.store import STATICS, map_store

_MOST_LINES = 40  # with more entities, counts over time replace a line each
_MOST_BYTES = 1 << 30  # of the store, to be read for the lines
_MOST_DOTS = 2_000
_DEGREES = tuple(re.compile(rf"(^|_)({words})$", re.IGNORECASE) for words in ("lat|latitude", "lon|lng|long|longitude"))
_PALER = "The paler an interval, the less of its target is there."
_MOST_REPORTS = 4_000
_MOST_COLUMNS, _MOST_REASONS = 16, 10
_MONTH_US = 30.4375 * 86_400e6
_CELLS = {"trained": "observed", "context": "filled", "empty": "still missing"}


def figures(facts: RunFacts) -> list[Figure]:
    """Make the figures, in page order."""
    parts = _parts(facts)
    return [
        _availability_figure(facts, parts),
        *_holes_figures(facts, parts),
        *_map_figures(facts, parts),
        *_quality_figures(facts),
        *_filled_figures(facts),
        *_target_figures(parts),
        *_disguise_figures(facts),
        common.rows_figure(facts),
    ]


def _parts(facts: RunFacts) -> dict[str, pl.DataFrame]:
    """Return, for each split, a row per entity: its steps, observed targets, and microseconds from `begin` to `end`."""
    entities, settings = read_entities(facts.run.root), stored_settings(facts.run)
    frequency = settings.step
    # draws months and business days as if they were equally long
    step = frequency.micros or frequency.months * _MONTH_US or YEAR_US / frequency.steps_per_year
    first = pl.col("first_time").cast(pl.Float64)
    return {
        split: entities.select(
            "entity",
            start=start,
            stop=stop,
            steps=stop - start,
            targets=f"{split}_targets",
            begin=first + start * step,
            end=first + stop * step,
        )
        for split, ends in split_rows(entities, settings.division.parts).items()
        for start, stop in [tuple(map(pl.Series, ends))]
    }


def _availability_figure(facts: RunFacts, parts: Mapping[str, pl.DataFrame]) -> Figure:
    question = "When does each entity have data?"
    ends = {split: (part["begin"].to_numpy(), part["end"].to_numpy()) for split, part in parts.items()}
    low, high, count = float(ends["train"][0].min()), float(ends["test"][1].max()), len(ends["train"][0])
    begins = [
        f"{split} begins between {moment(ends[split][0].min())} and {moment(ends[split][0].max())}"
        for split in SPLITS[1:]
        if parts[split]["steps"].sum()
    ]
    how = "at its own observed targets" if facts.config.get("train_end") is None else "at the same times"
    cuts = f"Every entity is cut {how}{': ' if begins else ''}{', '.join(begins)}."
    shared = shared_times(facts.run.root, stored_settings(facts.run))
    cuts += f" Entities overlap in calendar time: {'; '.join(shared)}." if shared else ""
    if REUSED in facts.manifest.facts:
        cuts = f"All rows are in test, scaled by the pipelines of run {facts.manifest.facts[REUSED]['run']}."
    passed = "" if read_summary(facts.run.root)["excluded_basins"] else ", none left out,"
    answer = (
        f"{many_entities(count)}{passed} from {moment(low)} to {moment(high)}, a step of "
        f"{facts.manifest.facts['frequency']}. {cuts}"
    )
    none = facts.manifest.facts.get("no_rows", [])
    answer = "\n".join([answer, *none])
    chart = _grid(facts, parts, range(count)) if count <= _MOST_LINES else None
    if chart is not None:
        answer += f"\n{_PALER}"
    else:
        edges = time_edges(low, high)
        width = float(edges[1] - edges[0])
        # the average number of entities with data
        columns = {split: spread(begin, end, (end - begin) / width, edges) for split, (begin, end) in ends.items()}
        chart = charts.over_time(edges, columns, of="entities on average", texts=[moment(edge) for edge in edges])
    return Figure("availability", question, answer, chart, "warning" if none else "plain", "full")


def _holes_figures(facts: RunFacts, parts: Mapping[str, pl.DataFrame]) -> list[Figure]:
    """Draw the holes of the entities that have most; nothing if the picture before shows all of them."""
    lacking = _lacking(parts)
    if len(lacking) <= _MOST_LINES or not lacking.any():
        return []
    worst = np.argsort(-lacking, kind="stable")[:_MOST_LINES]
    chart = _grid(facts, parts, worst.tolist())
    if chart is None:
        return []
    some = int((lacking > 0).sum())
    answer = (
        f"{some:,} of {many_entities(len(lacking))} lack observed targets. The {len(worst)} that lack the "
        f"largest share are drawn, up to {share(float(lacking.max()), 1)} of their steps. {_PALER}"
    )
    return [Figure("holes", "Where are the holes?", answer, chart, "plain", "full")]


def _lacking(parts: Mapping[str, pl.DataFrame]) -> F64:
    """Return the share of steps in the splits without an observed target, for each entity: float64 [E]."""
    steps, targets = (
        np.sum([part[name].to_numpy() for part in parts.values()], axis=0) for name in ("steps", "targets")
    )
    return np.asarray(1 - targets / np.maximum(steps, 1), np.float64)


def _grid(facts: RunFacts, parts: Mapping[str, pl.DataFrame], shown: Sequence[int]) -> Chart | None:
    """Draw entity × time: the part of the target's values that are there, counted in the store.

    shown: places of entities in entities.parquet. None if that is too much to read, or nothing is there to draw.
    """
    root, settings = facts.run.root, stored_settings(facts.run)
    table = read_entities(root)
    own = table[list(shown)]
    width = 4 * len(stored_columns(settings))
    ends = np.array([(part["begin"].min(), part["end"].max()) for part in parts.values() if part["steps"].sum()])
    if not len(ends) or int(own["rows"].sum()) * width > _MOST_BYTES:
        return None
    edges = time_edges(float(ends[:, 0].min()), float(ends[:, 1].max()))
    stores: dict[str, tuple[F32, Mapping[str, Any]]] = {}
    lines: list[dict[str, Any]] = []
    from_end = (own["anchor"] == "end").to_numpy()
    for number, (place, row) in enumerate(zip(shown, own.iter_rows(named=True), strict=True)):
        if row["shard"] not in stores:
            stores[row["shard"]] = map_store(root / row["shard"])
        values, metadata = stores[row["shard"]]
        column = metadata["columns"].index(settings.target)
        there = ~np.isnan(values[row["first_row"] : row["first_row"] + row["rows"], column])
        at = np.arange(row["rows"])
        first, anchor = np.full(len(at), row["first_time"]), np.full(len(at), from_end[number])
        bins = np.searchsorted(edges, times_at(settings.step, first, anchor, at), "right") - 1
        for split, part in parts.items():
            lines += _cells(split, part.row(place, named=True), edges, bins, there)
    columns, names = ("", "part", "values of the target"), {"empty": "no value"}
    return charts.spans(
        lines, unit="", along="time", row_height=20 if len(shown) <= 25 else 14, columns=columns, names=names
    )


def _cells(split: str, part: Mapping[str, Any], edges: F64, bins: I64, there: Bools) -> Iterator[dict[str, Any]]:
    """Yield the intervals of one entity in one split, joining neighbours of which about the same share is there.

    bins, there: of each step of the entity.
    """
    start, stop = part["start"], part["stop"]
    steps, values = (
        np.bincount(bins[start:stop], weights=weights, minlength=len(edges) - 1)
        for weights in (None, there[start:stop].astype(np.float64))
    )
    held = np.flatnonzero(steps)
    levels = np.where(values[held] == steps[held], 4, np.ceil(3 * values[held] / np.maximum(steps[held], 1)))
    for run in np.split(np.arange(len(held)), np.flatnonzero(np.diff(levels)) + 1) if len(held) else ():
        level = int(levels[run[0]])
        begin, end = max(edges[held[run[0]]], part["begin"]), min(edges[held[run[-1]] + 1], part["end"])
        count, of = int(values[held[run]].sum()), int(steps[held[run]].sum())
        yield {
            "label": part["entity"],
            "from": begin / 1e3,
            "to": end / 1e3,
            "role": split if level else "empty",
            "weight": 0.2 * (level + 1) if level else 1.0,
            "hint": f"{part['entity']}, {split}: {moment(begin)} to {moment(end)}, target there in {count:,} of "
            f"{many(of, 'step')}",
        }


def _map_figures(facts: RunFacts, parts: Mapping[str, pl.DataFrame]) -> list[Figure]:
    """Draw entities where they are, if two static features are degrees of latitude and longitude."""
    columns = facts.manifest.facts.get("static_columns") or []
    named = [[name for name in columns if pattern.search(name)] for pattern in _DEGREES]
    lacking = _lacking(parts)
    if not all(named) or not lacking.any() or len(lacking) > _MOST_DOTS:
        return []
    names = [named[0][0], named[1][0]]
    table = pl.DataFrame(read_table(facts.run.root / STATICS))
    entities = table[stored_settings(facts.run).entity_column].to_list()
    offsets = np.arange(len(entities) + 1, dtype=np.int64)
    try:
        fitted = load(facts.run.root, facts.manifest.facts[FACT]).static_features
        degrees = fitted.inverse_transform(names, table.select(names).to_numpy(), offsets, entities)
    except SettingsError:  # a scaler without an inverse
        return []
    there = dict(zip(entities, degrees.tolist(), strict=True))
    order = parts["train"]["entity"].to_list()
    norths, easts = np.array([there[name] for name in order], np.float64).T
    if not (np.isfinite(norths) & np.isfinite(easts)).all() or abs(norths).max() > 90 or abs(easts).max() > 360:
        return []
    hints = [
        f"{name}: {share(lack, 1)} of its steps have no observed target"
        for name, lack in zip(order, lacking, strict=True)
    ]
    worst = int(np.argmax(lacking))
    answer = (
        f"{int((lacking > 0).sum()):,} of {many_entities(len(order))} lack observed targets, most of all "
        f"{order[worst]}: {share(float(lacking[worst]), 1)} of its steps. The larger a dot, the more is missing."
    )
    chart = charts.places(order, easts, norths, lacking, axes=(names[1], names[0]), what="missing targets", hints=hints)
    return [Figure("map", "Where do entities lack targets?", answer, chart)]


def _quality_figures(facts: RunFacts) -> list[Figure]:
    """Draw why entities were left out; nothing if all passed."""
    question = "Which entities did not pass?"
    summary = read_summary(facts.run.root)
    failed, there = dict(summary["excluded_basins"]), int(summary["original_basins"])
    if not failed:
        return []
    # mask numbers, so that entities that failed alike are counted together
    reasons = Counter(re.sub(r"\d[\d,.]*", "…", reason) for reason in failed.values()).most_common(_MOST_REASONS)
    answer = (
        f"{many_entities(len(failed))} of {there:,} ({share(len(failed), there)}) "
        f"{verb(len(failed), 'was', 'were')} left out: {listed(sorted(failed), 5)}."
    )
    texts = "\n".join([answer, *(f"{count:,}: {reason}" for reason, count in reasons)])
    labels, counts = [reason for reason, _ in reasons], [count for _, count in reasons]
    chart = charts.bars(labels, counts, ["dropped"] * len(labels), unit="entities")
    tone: Tone = "warning" if len(failed) > there / 10 else "plain"
    return [Figure("quality", question, texts, chart if len(reasons) > 1 else None, tone)]


def _filled_figures(facts: RunFacts) -> list[Figure]:
    question = "How much was filled in?"
    root = facts.run.root
    paths = sorted((root / REPORTS).glob("*.json"))
    count = pq.read_metadata(root / REPORTS_TABLE).num_rows / 5 if (root / REPORTS_TABLE).exists() else len(paths)
    if count > _MOST_REPORTS:
        answer = f"There are more than {_MOST_REPORTS:,} quality reports, too many to read for a picture."
        return [Figure("filled", question, answer)]
    texts = [path.read_bytes() for path in paths] or read_table(root / REPORTS_TABLE, ["report"])["report"].to_pylist()
    told = [
        {"column": column, "steps": report["period"]["steps"], **info}
        for report in map(json.loads, texts)
        for column, info in report.get("imputation_info", {}).items()
    ]
    if not told:
        return []
    filled_, missing_ = pl.col("imputed_values_count"), pl.col("missing_values_count")
    columns = (
        pl.DataFrame(told)
        .group_by("column")
        .agg(pl.sum("steps"), filled=filled_.sum(), missing=missing_.sum(), longest=pl.max("longest_gap"))
        .with_columns(gaps=pl.col("filled") + pl.col("missing"))
        .sort("gaps", "column", descending=[True, False])
    )
    some = columns.filter(pl.col("gaps") > 0)
    if not len(some):
        answer = f"Nothing: none of {many(len(columns), 'column')} had a gap."
        return [Figure("filled", question, answer, None, "good")]
    cells, filled, missing = (float(columns[name].sum()) for name in ("steps", "filled", "missing"))
    worst = some.row(0, named=True)
    answer = (
        f"{share(filled, cells) + ' of all values were' if filled else 'No value was'} carried forward into gaps, "
        f"{share(missing, cells) + ' are' if missing else 'none is'} still missing. {len(some):,} of "
        f"{many(len(columns), 'column')} had gaps, most of all {worst['column']}: "
        f"{share(worst['gaps'], worst['steps'])} of its steps, "
        f"{many(worst['longest'], 'step')} at a time at most."
    )
    if len(some) > _MOST_COLUMNS:
        answer += f" The {_MOST_COLUMNS} with most gaps are shown."
    shown = some.head(_MOST_COLUMNS)
    cells_of = {"trained": shown["steps"] - shown["gaps"], "context": shown["filled"], "empty": shown["missing"]}
    parts = {role: each.cast(pl.Float64).to_list() for role, each in cells_of.items()}
    chart = charts.stacked_bars(shown["column"].to_list(), parts, unit="values", names=_CELLS)
    return [Figure("filled", question, answer, chart)]


def _target_figures(parts: Mapping[str, pl.DataFrame]) -> list[Figure]:
    share_of = (100 * pl.col("targets") / pl.col("steps")).alias("share")
    shares = {
        split: part.filter(pl.col("steps") > 0).select(share_of)["share"].to_numpy() for split, part in parts.items()
    }
    every = np.concatenate(list(shares.values()))
    if not len(every):
        return []
    totals = {split: int(part["targets"].sum()) for split, part in parts.items()}
    told = ", ".join(f"{split} {share(count, sum(totals.values()))}" for split, count in totals.items())
    sparse = int((every < 50).sum())
    answer = (
        f"In the median part {np.median(every):.1f} % of the steps have an observed target. Of all "
        f"{sum(totals.values()):,} observed targets: {told}."
    )
    if sparse:
        answer += f" {many(sparse, 'part is', 'parts are')} less than half observed."
    edges = even_edges(min(float(every.min()), 99.0), 100.0, whole=False)
    counts = {split: counted(values, edges) for split, values in shares.items()}
    chart = charts.histogram(edges, counts, of="parts of entities", title="% of steps with a target", grows=False)
    return [Figure("targets", "How complete is the target?", answer, chart, "warning" if sparse else "plain")]


def _disguise_figures(facts: RunFacts) -> list[Figure]:
    near = facts.manifest.facts.get("near_target") or {}
    if not near:
        return []
    target = facts.config.get("target")
    answer = (
        f"{listed(sorted(near), 6)} {verb(len(near), 'is', 'are')} almost {target} in another unit. A model that "
        "reads what it must predict scores well and learns nothing: leave them out unless that is meant."
    )
    return [Figure("disguise", "Is a feature the target in disguise?", answer, None, "warning")]
