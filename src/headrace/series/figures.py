"""Make figures about series: data and cuts of each entity, completeness, filled values, and failed entities."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from headrace.report import charts, common
from headrace.report.bins import counted, even_edges, spread, time_edges
from headrace.report.facts import RunFacts
from headrace.report.figure import Figure, Tone
from headrace.report.words import listed, many, moment, share
from headrace.series.arrays.axis import YEAR_US
from headrace.series.parts import SPLITS
from headrace.series.reuse import REUSED
from headrace.series.store import (
    REPORTS,
    REPORTS_TABLE,
    read_entities,
    read_summary,
    read_table,
    shared_times,
    split_rows,
    stored_settings,
)

_MOST_LINES = 40  # with more entities, counts over time replace a line each
_MOST_REPORTS = 4_000
_MOST_COLUMNS, _MOST_REASONS = 16, 10
_MONTH_US = 30.4375 * 86_400e6
_CELLS = {"trained": "observed", "context": "filled", "empty": "still missing"}


def figures(facts: RunFacts) -> list[Figure]:
    """Make the figures, in page order."""
    parts = _parts(facts)
    return [
        _availability_figure(facts, parts),
        _quality_figure(facts),
        *_filled_figures(facts),
        *_target_figures(parts),
        *_disguise_figures(facts),
        common.rows_figure(facts),
        *common.shards_figures(facts),
        *common.blocks_figures(facts),
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
    val, test = (f"between {moment(ends[each][0].min())} and {moment(ends[each][0].max())}" for each in SPLITS[1:])
    how = "at its own observed targets" if facts.config.get("train_end") is None else "at the same times"
    cuts = f"Every entity is cut {how}: val begins {val}, test {test}."
    shared = shared_times(facts.run.root, stored_settings(facts.run))
    cuts += f" Entities overlap in calendar time: {'; '.join(shared)}." if shared else ""
    if REUSED in facts.manifest.facts:
        cuts = f"All rows are in test, scaled by the pipelines of run {facts.manifest.facts[REUSED]['run']}."
    answer = (
        f"{many(count, 'entity', 'entities')} from {moment(low)} to {moment(high)}, a step of "
        f"{facts.manifest.facts['frequency']}. {cuts}"
    )
    if count <= _MOST_LINES:
        answer += " The paler a part, the less of its target was observed."
        lines = [
            {
                "label": row["entity"],
                "from": row["begin"] / 1e3,
                "to": row["end"] / 1e3,
                "role": split,
                "weight": 0.25 + 0.75 * row["targets"] / row["steps"],
                "hint": f"{row['entity']}, {split}: {moment(row['begin'])} to {moment(row['end'])}, target observed in "
                f"{row['targets']:,} of {many(row['steps'], 'step')}",
            }
            for place in range(count)
            for split, part in parts.items()
            if (row := part.row(place, named=True))["steps"]
        ]
        chart = charts.spans(lines, unit="", along="time", row_height=20 if count <= 25 else 14)
        return Figure("availability", question, answer, chart, "plain", "full")
    edges = time_edges(low, high)
    width = float(edges[1] - edges[0])
    # the average number of entities with data
    columns = {split: spread(begin, end, (end - begin) / width, edges) for split, (begin, end) in ends.items()}
    chart = charts.over_time(edges, columns, of="entities on average", texts=[moment(edge) for edge in edges])
    return Figure("availability", question, answer, chart, "plain", "full")


def _quality_figure(facts: RunFacts) -> Figure:
    question = "Which entities did not pass?"
    summary = read_summary(facts.run.root)
    failed, there = dict(summary["excluded_basins"]), int(summary["original_basins"])
    if not failed:
        return Figure("quality", question, f"All {many(there, 'entity', 'entities')} passed.", None, "good")
    # mask numbers, so that entities that failed alike are counted together
    reasons = Counter(re.sub(r"\d[\d,.]*", "…", reason) for reason in failed.values()).most_common(_MOST_REASONS)
    answer = (
        f"{many(len(failed), 'entity', 'entities')} of {there:,} ({share(len(failed), there)}) "
        f"{'was' if len(failed) == 1 else 'were'} left out: {listed(sorted(failed), 5)}."
    )
    texts = "\n".join([answer, *(f"{count:,}: {reason}" for reason, count in reasons)])
    labels, counts = [reason for reason, _ in reasons], [count for _, count in reasons]
    chart = charts.bars(labels, counts, ["dropped"] * len(labels), unit="entities")
    tone: Tone = "warning" if len(failed) > there / 10 else "plain"
    return Figure("quality", question, texts, chart if len(reasons) > 1 else None, tone)


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
        f"{share(filled, cells)} of all values were carried forward into gaps, "
        f"{share(missing, cells)} are still missing. {len(some):,} of {many(len(columns), 'column')} "
        f"had gaps, most of all {worst['column']}: {share(worst['gaps'], worst['steps'])} of its steps, "
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
        f"{listed(sorted(near), 6)} {'is' if len(near) == 1 else 'are'} almost {target} in another unit. A model that "
        "reads what it must predict scores well and learns nothing: leave them out unless that is meant."
    )
    return [Figure("disguise", "Is a feature the target in disguise?", answer, None, "warning")]
