"""Figures of series: when each entity has data and where it is cut, how complete it is, what was filled, who failed."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
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

_SPLITS = ("train", "val", "test")
_MOST_LINES = 40  # more entities are counted over time instead of drawn one by one
_MOST_REPORTS = 4_000
_MOST_COLUMNS, _MOST_REASONS = 16, 10
_MONTH_US = 30.4375 * 86_400e6
_CELLS = {"trained": "observed", "context": "filled", "empty": "still missing"}


def figures(facts: RunFacts) -> list[Figure]:
    """In the order of the page."""
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
    """entities.parquet, with the time in microseconds at which each part begins and the last one ends."""
    path = facts.run.root / "entities.parquet"
    names = ["entity", "rows", "first_time", "val_row", "test_row", *(f"{split}_targets" for split in _SPLITS)]
    try:
        frame = pl.from_arrow(pq.read_table(path, columns=names))
    except (OSError, ValueError) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); restore it or prepare the run again") from error
    assert isinstance(frame, pl.DataFrame)
    frequency = Frequency.parse(str(facts.manifest.facts["frequency"]))
    step = frequency.micros or frequency.months * _MONTH_US  # months are drawn as if they were equally long
    first = pl.col("first_time").dt.epoch("us").cast(pl.Float64)
    return frame.with_columns(
        first.alias("train_from"),
        (first + pl.col("val_row") * step).alias("val_from"),
        (first + pl.col("test_row") * step).alias("test_from"),
        (first + pl.col("rows") * step).alias("until"),
        pl.col("val_row").alias("train_rows"),
        (pl.col("test_row") - pl.col("val_row")).alias("val_rows"),
        (pl.col("rows") - pl.col("test_row")).alias("test_rows"),
    )


def _parts(entities: pl.DataFrame) -> dict[str, tuple[F64, F64]]:
    """split → (begins, ends) of every entity's part, in microseconds."""
    edges = [entities[name].to_numpy() for name in ("train_from", "val_from", "test_from", "until")]
    return {split: (edges[place], edges[place + 1]) for place, split in enumerate(_SPLITS)}


def _availability_figure(facts: RunFacts, entities: pl.DataFrame) -> Figure:
    question = "When does each entity have data?"
    parts = _parts(entities)
    cuts = [parts[split][0] for split in ("val", "test")]
    answer = (
        f"{many(len(entities), 'entity', 'entities')} from {moment(parts['train'][0].min())} to "
        f"{moment(parts['test'][1].max())}, a step of {facts.manifest.facts['frequency']}. Every entity is cut at "
        f"its own observed targets: val begins between {moment(cuts[0].min())} and {moment(cuts[0].max())}, test "
        f"between {moment(cuts[1].min())} and {moment(cuts[1].max())}."
    )
    if len(entities) <= _MOST_LINES:
        answer += " The paler a part, the less of its target was observed."
        rows = _lines(entities, parts)
        chart = charts.spans(rows, unit="", along="time", row_height=20 if len(entities) <= 25 else 14)
        return Figure("availability", question, answer, chart, "plain", "full")
    low, high = float(parts["train"][0].min()), float(parts["test"][1].max())
    edges = time_edges(low, high)
    width = float(edges[1] - edges[0])
    columns = {
        split: spread(begins, ends, (ends - begins) / width, edges) for split, (begins, ends) in parts.items()
    }  # as many entities as are there on average
    chart = charts.over_time(edges, columns, of="entities on average", texts=[moment(edge) for edge in edges])
    return Figure("availability", question, answer, chart, "plain", "full")


def _lines(entities: pl.DataFrame, parts: dict[str, tuple[F64, F64]]) -> list[dict[str, Any]]:
    """A stretch for each part of each entity that has rows."""
    found = []
    for place, row in enumerate(entities.iter_rows(named=True)):
        for split in _SPLITS:
            steps, targets = row[f"{split}_rows"], row[f"{split}_targets"]
            begin, end = (float(each[place]) for each in parts[split])
            if not steps:
                continue
            hint = (
                f"{row['entity']}, {split}: {moment(begin)} to {moment(end)}, target observed in {targets:,} of "
                f"{many(steps, 'step')}"
            )
            weight = 0.25 + 0.75 * targets / steps
            found.append(
                {
                    "label": row["entity"],
                    "from": begin / 1e3,
                    "to": end / 1e3,
                    "role": split,
                    "weight": weight,
                    "hint": hint,
                }
            )
    return found


def _quality_figure(facts: RunFacts) -> Figure:
    """Who was left out, and why?"""
    path = facts.run.root / "quality_summary.json"
    question = "Which entities did not pass?"
    try:
        summary = json.loads(path.read_bytes())
        failed, there = dict(summary["excluded_basins"]), int(summary["original_basins"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); restore it or prepare the run again") from error
    if not failed:
        return Figure("quality", question, f"All {many(there, 'entity', 'entities')} passed.", None, "good")
    reasons = Counter(_kind_of(reason) for reason in failed.values())
    common_ones = reasons.most_common(_MOST_REASONS)
    answer = (
        f"{many(len(failed), 'entity', 'entities')} of {there:,} ({share(len(failed), there)}) "
        f"{'was' if len(failed) == 1 else 'were'} left out: {listed(sorted(failed), 5)}."
    )
    labels = [reason for reason, _ in common_ones]
    texts = "\n".join([answer, *(f"{count:,}: {reason}" for reason, count in common_ones)])
    labels, counts = [reason for reason, _ in common_ones], [count for _, count in common_ones]
    chart = charts.bars(labels, counts, ["dropped"] * len(labels), unit="entities")
    tone: Tone = "warning" if len(failed) > there / 10 else "plain"
    return Figure("quality", question, texts, chart if len(reasons) > 1 else None, tone)


@dataclass
class _Gaps:
    """Of each column over the entities that passed: steps, those that were filled, those still missing."""

    steps: Counter[str] = field(default_factory=Counter)
    filled: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    longest: Counter[str] = field(default_factory=Counter)

    def add(self, report: dict[str, Any]) -> None:
        """Count one quality report."""
        for column, told in report["imputation_info"].items():
            self.steps[column] += int(report["period"]["steps"])
            self.filled[column] += int(told["imputed_values_count"])
            self.missing[column] += int(told["missing_values_count"])
            self.longest[column] = max(self.longest[column], int(told["longest_gap"]))

    def of(self, column: str) -> int:
        """Steps of a column that had no value."""
        return self.filled[column] + self.missing[column]


def _filled_figures(facts: RunFacts) -> list[Figure]:
    """How much was filled, of each column, from the quality reports."""
    question = "How much was filled in?"
    reports = _reports(facts.run.root)
    if reports is None:
        answer = f"There are more than {_MOST_REPORTS:,} quality reports, too many to read for a picture."
        return [Figure("filled", question, answer)]
    gaps = _Gaps()
    for report in reports:
        if report.get("passed_quality_check") and "imputation_info" in report:
            gaps.add(report)
    if not gaps.steps:
        return []
    order = sorted(filter(gaps.of, gaps.steps), key=lambda column: (-gaps.of(column), column))
    if not order:
        return [
            Figure("filled", question, f"Nothing: none of {many(len(gaps.steps), 'column')} had a gap.", None, "good")
        ]
    worst, cells = order[0], gaps.steps.total()
    answer = (
        f"{share(gaps.filled.total(), cells)} of all values were carried forward into gaps, "
        f"{share(gaps.missing.total(), cells)} are still missing. {len(order):,} of {many(len(gaps.steps), 'column')} "
        f"had gaps, most of all {worst}: {share(gaps.of(worst), gaps.steps[worst])} of its steps, "
        f"{many(gaps.longest[worst], 'step')} at a time at most."
    )
    if len(order) > _MOST_COLUMNS:
        answer += f" The {_MOST_COLUMNS} with most gaps are shown."
    shown = order[:_MOST_COLUMNS]
    parts = {
        "trained": [float(gaps.steps[column] - gaps.of(column)) for column in shown],
        "context": [float(gaps.filled[column]) for column in shown],
        "empty": [float(gaps.missing[column]) for column in shown],
    }
    return [Figure("filled", question, answer, charts.stacked_bars(shown, parts, unit="values", names=_CELLS))]


def _target_figures(entities: pl.DataFrame) -> list[Figure]:
    """How complete the target is, of each part of each entity."""
    shares = {}
    for split in _SPLITS:
        rows = entities.filter(pl.col(f"{split}_rows") > 0)
        shares[split] = (100 * rows[f"{split}_targets"] / rows[f"{split}_rows"]).to_numpy().astype(np.float64)
    every = np.concatenate(list(shares.values()))
    if not len(every):
        return []
    totals = {split: int(entities[f"{split}_targets"].sum()) for split in _SPLITS}
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


def _kind_of(reason: str) -> str:
    """A reason without its numbers, so that entities that failed alike are counted together."""
    return re.sub(r"\d[\d,.]*", "…", reason)
