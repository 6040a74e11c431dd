"""Figures of series: when each entity has data and where it is cut, how complete it is, what was filled, who failed."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from headrace.arrays import F64
from headrace.errors import CorruptShard
from headrace.report import charts, common
from headrace.report.bins import counted, even_edges, spread, time_edges
from headrace.report.facts import RunFacts
from headrace.report.figure import Figure, Tone
from headrace.report.words import listed, many, moment, share
from headrace.series.arrays.axis import Frequency
from headrace.series.config import SPLITS

_MOST_LINES = 40  # more entities are counted over time instead of drawn one by one
_MOST_REPORTS = 4_000
_MOST_COLUMNS, _MOST_REASONS = 16, 10
_MONTH_US = 30.4375 * 86_400e6
_CELLS = {"trained": "observed", "context": "filled", "empty": "still missing"}


def figures(facts: RunFacts) -> list[Figure]:
    """Make the figures, in the order of the page."""
    entities = _entities(facts)
    return [
        _availability_figure(facts, entities),
        _quality_figure(facts),
        *_filled_figures(facts),
        *_target_figures(entities),
        *_disguise_figures(facts),
        common.rows_figure(facts),
        common.shards_figure(facts),
        common.blocks_figure(facts),
    ]


def _entities(facts: RunFacts) -> pl.DataFrame:
    """entities.parquet, with the microseconds SPLIT_from at which each part begins, and the last one ends."""
    path = facts.run.root / "entities.parquet"
    names = ["entity", "rows", "first_time", "val_row", "test_row", *(f"{split}_targets" for split in SPLITS)]
    try:
        frame = pl.from_arrow(pq.read_table(path, columns=names))
    except (OSError, ValueError) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); restore it or prepare the run again") from error
    assert isinstance(frame, pl.DataFrame)
    frequency = Frequency.parse(str(facts.manifest.facts["frequency"]))
    step = frequency.micros or frequency.months * _MONTH_US  # months are drawn as if they were equally long
    first = pl.col("first_time").dt.epoch("us").cast(pl.Float64)
    edges = [pl.lit(0), pl.col("val_row"), pl.col("test_row"), pl.col("rows")]
    return frame.with_columns(
        *((stop - start).alias(f"{split}_rows") for split, start, stop in zip(SPLITS, edges, edges[1:], strict=False)),
        *((first + start * step).alias(f"{split}_from") for split, start in zip(SPLITS, edges, strict=False)),
        *((first + stop * step).alias(f"{split}_until") for split, stop in zip(SPLITS, edges[1:], strict=True)),
    )


def _availability_figure(facts: RunFacts, entities: pl.DataFrame) -> Figure:
    question = "When does each entity have data?"
    parts: dict[str, tuple[F64, F64]] = {
        split: (entities[f"{split}_from"].to_numpy(), entities[f"{split}_until"].to_numpy()) for split in SPLITS
    }
    low, high = float(parts["train"][0].min()), float(parts["test"][1].max())
    answer = (
        f"{many(len(entities), 'entity', 'entities')} from {moment(low)} to "
        f"{moment(high)}, a step of {facts.manifest.facts['frequency']}. Every entity is cut at "
        f"its own observed targets: val begins between {moment(parts['val'][0].min())} and "
        f"{moment(parts['val'][0].max())}, test between {moment(parts['test'][0].min())} and "
        f"{moment(parts['test'][0].max())}."
    )
    if len(entities) <= _MOST_LINES:
        answer += " The paler a part, the less of its target was observed."
        lines = [
            _line(row, split) for row in entities.iter_rows(named=True) for split in SPLITS if row[f"{split}_rows"]
        ]
        chart = charts.spans(lines, unit="", along="time", row_height=20 if len(entities) <= 25 else 14)
        return Figure("availability", question, answer, chart, "plain", "full")
    edges = time_edges(low, high)
    width = float(edges[1] - edges[0])
    columns = {
        split: spread(begins, ends, (ends - begins) / width, edges) for split, (begins, ends) in parts.items()
    }  # as many entities as are there on average
    chart = charts.over_time(edges, columns, of="entities on average", texts=[moment(edge) for edge in edges])
    return Figure("availability", question, answer, chart, "plain", "full")


def _line(row: dict[str, Any], split: str) -> dict[str, Any]:
    """The stretch of a part of an entity."""
    steps, targets = row[f"{split}_rows"], row[f"{split}_targets"]
    begin, end = row[f"{split}_from"], row[f"{split}_until"]
    hint = (
        f"{row['entity']}, {split}: {moment(begin)} to {moment(end)}, target observed in {targets:,} of "
        f"{many(steps, 'step')}"
    )
    weight = 0.25 + 0.75 * targets / steps
    stretch = {"label": row["entity"], "from": begin / 1e3, "to": end / 1e3, "role": split}
    return stretch | {"weight": weight, "hint": hint}


def _quality_figure(facts: RunFacts) -> Figure:
    path = facts.run.root / "quality_summary.json"
    question = "Which entities did not pass?"
    try:
        summary = json.loads(path.read_bytes())
        failed, there = dict(summary["excluded_basins"]), int(summary["original_basins"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); restore it or prepare the run again") from error
    if not failed:
        return Figure("quality", question, f"All {many(there, 'entity', 'entities')} passed.", None, "good")
    # without its numbers, so that entities that failed alike are counted together
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
    reports = _reports(facts.run.root)
    if reports is None:
        answer = f"There are more than {_MOST_REPORTS:,} quality reports, too many to read for a picture."
        return [Figure("filled", question, answer)]
    told = [
        (
            column,
            report["period"]["steps"],
            info["imputed_values_count"],
            info["missing_values_count"],
            info["longest_gap"],
        )
        for report in reports
        for column, info in report.get("imputation_info", {}).items()
    ]
    if not told:
        return []
    sums = pl.sum("steps", "filled", "missing")
    columns = (
        pl.DataFrame(told, ["column", "steps", "filled", "missing", "longest"], orient="row")
        .group_by("column")
        .agg(sums, pl.max("longest"))
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


def _target_figures(entities: pl.DataFrame) -> list[Figure]:
    shares = {}
    for split in SPLITS:
        rows = entities.filter(pl.col(f"{split}_rows") > 0)
        shares[split] = (100 * rows[f"{split}_targets"] / rows[f"{split}_rows"]).to_numpy().astype(np.float64)
    every = np.concatenate(list(shares.values()))
    if not len(every):
        return []
    totals = {split: int(entities[f"{split}_targets"].sum()) for split in SPLITS}
    told = ", ".join(f"{split} {share(count, sum(totals.values()))}" for split, count in totals.items())
    sparse = int((every < 50).sum())
    answer = (
        f"In the middle {np.median(every):.1f} % of a part's steps have an observed target. Of all "
        f"{sum(totals.values()):,} observed targets: {told}."
    )
    if sparse:
        answer += f" {many(sparse, 'part is', 'parts are')} less than half observed."
    edges = even_edges(min(float(every.min()), 99.0), 100.0, whole=False)
    parts = {split: counted(values, edges) for split, values in shares.items()}
    chart = charts.histogram(edges, parts, of="parts of entities", title="% of steps with a target", grows=False)
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


def _reports(root: Path) -> list[dict[str, Any]] | None:
    """All quality reports, from one table or a file each; None where there are very many."""
    table = root / "quality_reports.parquet"
    if table.exists():
        if pq.read_metadata(table).num_rows > _MOST_REPORTS * 5:
            return None
        return [json.loads(text) for text in pq.read_table(table, columns=["report"])["report"].to_pylist()]
    paths = sorted((root / "quality_reports").glob("*.json"))
    return None if len(paths) > _MOST_REPORTS else [json.loads(path.read_bytes()) for path in paths]
