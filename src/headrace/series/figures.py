"""Make figures about series: data, cuts and holes of each entity, filled values, and failed
entities.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from headrace.arrays import F32, F64, I64, Bools
from headrace.gate.json import parse_object, read_object
from headrace.gate.parquet import open_run_table, read_run_table
from headrace.report import charts, common
from headrace.report.bins import counted, even_edges, spread, time_edges
from headrace.report.figure import Chart, Figure, Tone
from headrace.report.report_data import ReportData
from headrace.report.words import listed, many_entities, moment, percentage, pluralise, verb
from headrace.series.arrays.axis import Axis
from headrace.series.division import SPLITS
from headrace.series.reuse import REUSED
from headrace.series.store import (
    REPORTS,
    REPORTS_SCHEMA,
    REPORTS_TABLE,
    read_entities,
    read_summary,
    row_times,
    shared_times,
    split_rows,
    stored_settings,
)
from headrace.series.windows.store import map_store

_MOST_LINES = 40  # with more entities, counts over time replace a line each
_MOST_BYTES = 1 << 30  # of the store, to be read for the lines
_MOST_REPORTS = 4_000
_MOST_COLUMNS = 16
_MOST_REASONS = 10
_PALER = "Paler = more missing targets."
_CELLS = {"trained": "observed", "context": "filled", "empty": "still missing"}


def figures(report_data: ReportData) -> list[Figure]:
    """Make the figures, in page order."""
    tables = _split_tables(report_data)
    return [
        _availability_figure(report_data, tables),
        *_holes_figures(report_data, tables),
        *_quality_figures(report_data),
        *_filled_figures(report_data),
        *_target_figures(report_data, tables),
        *_disguise_figures(report_data),
        common.rows_figure(report_data),
    ]


def _split_tables(report_data: ReportData) -> dict[str, pl.DataFrame]:
    """Return, for each split, a row per entity: its steps, observed targets, and microseconds from
    `begin` to `end`, that of the step after the `last`.
    """
    entities = read_entities(report_data.run.root)
    settings = stored_settings(report_data.run)
    tables = {}
    for split, rows in split_rows(entities, settings.division.layout).items():
        start, stop = rows
        times = {}
        for name, steps in (("begin", start), ("end", stop), ("last", stop - 1)):
            times[name] = pl.Series(row_times(settings, entities, steps)).cast(pl.Float64)
        tables[split] = entities.select(
            "entity",
            start=pl.Series(start),
            stop=pl.Series(stop),
            steps=pl.Series(stop - start),
            targets=f"{split}_targets",
            **times,
        )
    return tables


def _last_of(table: pl.DataFrame) -> float:
    """Return the time of the last step of any entity; that before the first if there is none."""
    latest = table.filter(pl.col("steps") > 0)["last"].max()
    return float("-inf") if latest is None else float(latest)  # type: ignore[arg-type]  # of floats


def _availability_figure(  # noqa: PLR0914 - two pictures, by the number of entities
    report_data: ReportData,
    tables: Mapping[str, pl.DataFrame],
) -> Figure:
    question = "When does each entity have data?"
    metadata = report_data.manifest.metadata
    starts = {split: table["begin"].to_numpy() for split, table in tables.items()}
    ends = {split: table["end"].to_numpy() for split, table in tables.items()}
    low = float(starts["train"].min())
    high = float(ends["test"].max())
    last = max(_last_of(table) for table in tables.values())
    count = len(starts["train"])
    passed = ", none left out,"
    if read_summary(report_data.run.root)["excluded_entities"]:
        passed = ""
    answer = (
        f"{many_entities(count)}{passed} from {moment(low)} to {moment(last)}, a step of"
        f" {metadata['frequency']}. {_describe_cuts(report_data, tables)}"
    )
    warnings = [*metadata.get("no_rows", []), *metadata.get("long_axes", [])]
    answer = "\n".join([answer, *warnings])
    chart = None
    if count <= _MOST_LINES:
        chart = _grid(report_data, tables, range(count))
    if chart is not None:
        answer += f"\n{_PALER}"
    else:
        edges = time_edges(low, high)
        width = float(edges[1] - edges[0])
        columns = {}  # the average number of entities with data
        for split in tables:
            weights = (ends[split] - starts[split]) / width
            columns[split] = spread(starts[split], ends[split], weights, edges)
        texts = [moment(edge) for edge in edges]
        chart = charts.over_time(edges, columns, of="entities on average", texts=texts)
    tone: Tone = "warning" if warnings else "plain"
    return Figure("availability", question, answer, chart, tone, "full")


def _describe_cuts(report_data: ReportData, tables: Mapping[str, pl.DataFrame]) -> str:
    reused = report_data.manifest.metadata.get(REUSED)
    if reused is not None:
        return f"All rows are in test, scaled by the pipelines of run {reused['run']}."
    how = "at the same times"
    if report_data.config.get("train_end") is None:
        how = "at its own observed targets"
    periods = []
    for split in SPLITS[1:]:
        table = tables[split]
        if table["steps"].sum():
            starts = table.filter(pl.col("steps") > 0)["begin"].to_numpy()
            earliest = moment(starts.min())
            latest = moment(starts.max())
            when = f"on {earliest}" if earliest == latest else f"between {earliest} and {latest}"
            periods.append(f"{split} begins {when}")
    cuts = f"Every entity is cut {how}"
    if periods:
        cuts += f": {', '.join(periods)}"
    shared = shared_times(report_data.run.root, stored_settings(report_data.run))
    if shared:
        cuts += f". Entities overlap in calendar time: {'; '.join(shared)}"
    return f"{cuts}."


def _holes_figures(report_data: ReportData, tables: Mapping[str, pl.DataFrame]) -> list[Figure]:
    """Draw the holes of the entities that have most; nothing if the picture before shows all of
    them.
    """
    lacking = _lacking(tables)
    if len(lacking) <= _MOST_LINES or not lacking.any():
        return []
    worst = np.argsort(-lacking, kind="stable")[:_MOST_LINES].tolist()
    chart = _grid(report_data, tables, worst)
    if chart is None:
        return []
    answer = (
        f"{int((lacking > 0).sum()):,} of {many_entities(len(lacking))} lack observed targets. The"
        f" {len(worst)} that lack the largest share are drawn, up to"
        f" {percentage(float(lacking.max()), 1)} of their steps. {_PALER}"
    )
    return [Figure("holes", "Where are the holes?", answer, chart, "plain", "full")]


def _lacking(tables: Mapping[str, pl.DataFrame]) -> F64:
    """Return the fraction of steps in the splits without an observed target, for each entity:
    float64 [E].
    """
    steps = np.sum([table["steps"].to_numpy() for table in tables.values()], axis=0)
    targets = np.sum([table["targets"].to_numpy() for table in tables.values()], axis=0)
    return np.asarray(1 - targets / np.maximum(steps, 1), np.float64)


def _grid(
    report_data: ReportData, tables: Mapping[str, pl.DataFrame], numbers: Sequence[int]
) -> Chart | None:
    """Draw entity × time: the part of the target's values that are there, counted in the store.

    numbers: rows of entities in entities.parquet. None if that is too much to read, or nothing is
    there to draw.
    """
    root = report_data.run.root
    settings = stored_settings(report_data.run)
    entities = read_entities(root)[list(numbers)]
    row_bytes = 4 * len(settings.stored_columns)
    used = [table for table in tables.values() if table["steps"].sum()]
    if not used or int(entities["rows"].sum()) * row_bytes > _MOST_BYTES:
        return None
    starts = [float(table["begin"].to_numpy().min()) for table in used]
    ends = [float(table["end"].to_numpy().max()) for table in used]
    edges = time_edges(min(starts), max(ends))
    stores: dict[str, F32] = {}
    intervals: list[dict[str, Any]] = []
    for number, row in zip(numbers, entities.iter_rows(named=True), strict=True):
        if row["shard"] not in stores:
            stores[row["shard"]] = map_store(root / row["shard"]).rows
        first = row["first_row"]
        targets = stores[row["shard"]][first : first + row["rows"], 0]
        axis = Axis(settings.step, row["first_time"], row["rows"], row["anchor"])
        bins = np.searchsorted(edges, axis.times(), "right") - 1
        for split, table in tables.items():
            entity = table.row(number, named=True)
            intervals += _intervals(split, entity, edges, bins, ~np.isnan(targets))
    return charts.spans(
        intervals,
        unit="",
        along="time",
        row_height=20 if len(numbers) <= 25 else 14,
        columns=("", "part", "values of the target"),
        names={"empty": "no value"},
    )


def _intervals(
    split: str, entity: Mapping[str, Any], edges: F64, bins: I64, observed: Bools
) -> Iterator[dict[str, Any]]:
    """Yield the intervals of one entity in one split, joining neighbours of which about the same
    part is there.

    bins, observed: of each step of the entity.
    """
    rows = slice(entity["start"], entity["stop"])
    count = len(edges) - 1
    steps = np.bincount(bins[rows], minlength=count)
    values = np.bincount(bins[rows], weights=observed[rows].astype(np.float64), minlength=count)
    used = np.flatnonzero(steps)
    if not len(used):
        return
    thirds = np.ceil(3 * values[used] / steps[used])
    levels = np.where(values[used] == steps[used], 4, thirds)
    for run in np.split(np.arange(len(used)), np.flatnonzero(np.diff(levels)) + 1):
        level = int(levels[run[0]])
        begin = max(edges[used[run[0]]], entity["begin"])
        end = min(edges[used[run[-1]] + 1], entity["end"])
        there = int(values[used[run]].sum())
        of = int(steps[used[run]].sum())
        yield {
            "label": entity["entity"],
            "from": begin / 1e3,
            "to": end / 1e3,
            "role": split if level else "empty",
            "weight": 0.2 * (level + 1) if level else 1.0,
            "hint": (
                f"{entity['entity']}, {split}: {moment(begin)} to {moment(end)}, target there"
                f" in {there:,} of {pluralise(of, 'step')}"
            ),
        }


def _quality_figures(report_data: ReportData) -> list[Figure]:
    """Draw why entities were left out; nothing if all passed."""
    summary = read_summary(report_data.run.root)
    excluded = dict(summary["excluded_entities"])
    original = int(summary["original_entities"])
    if not excluded:
        return []
    failed = len(excluded)
    # Numbers are masked, so that entities that failed alike are counted together.
    alike = Counter(re.sub(r"\d[\d,.]*", "…", reason) for reason in excluded.values())
    reasons = dict(alike.most_common(_MOST_REASONS))
    answer = (
        f"{many_entities(failed)} of {original:,} ({percentage(failed, original)})"
        f" {verb(failed, 'was', 'were')} left out: {listed(sorted(excluded), 5)}."
    )
    lines = [f"{count:,}: {reason}" for reason, count in reasons.items()]
    chart = None
    if len(reasons) > 1:
        roles = ["dropped"] * len(reasons)
        chart = charts.bars(list(reasons), list(reasons.values()), roles, unit="entities")
    tone: Tone = "warning" if failed > original / 10 else "plain"
    answer = "\n".join([answer, *lines])
    return [Figure("quality", "Which entities did not pass?", answer, chart, tone)]


def _filled_figures(report_data: ReportData) -> list[Figure]:
    question = "How much was filled in?"
    columns = _imputed_columns(report_data.run.root)
    if columns is None:
        answer = (
            f"There are more than {_MOST_REPORTS:,} quality reports, too many to read for a"
            " picture."
        )
        return [Figure("filled", question, answer)]
    if not len(columns):
        return []
    with_gaps = columns.filter(pl.col("gaps") > 0)
    if not len(with_gaps):
        answer = f"Nothing: none of {pluralise(len(columns), 'column')} had a gap."
        return [Figure("filled", question, answer, None, "good")]
    steps = float(columns["steps"].sum())
    filled = float(columns["filled"].sum())
    missing = float(columns["missing"].sum())
    carried = "No value was"
    if filled:
        carried = f"{percentage(filled, steps)} of all values were"
    remaining = "none is"
    if missing:
        remaining = f"{percentage(missing, steps)} are"
    worst = with_gaps.row(0, named=True)
    answer = (
        f"{carried} carried forward into gaps, {remaining} still missing. {len(with_gaps):,} of"
        f" {pluralise(len(columns), 'column')} had gaps, most of all {worst['column']}:"
        f" {percentage(worst['gaps'], worst['steps'])} of its steps,"
        f" {pluralise(worst['longest'], 'step')} at a time at most."
    )
    if len(with_gaps) > _MOST_COLUMNS:
        answer += f" The {_MOST_COLUMNS} with most gaps are shown."
    drawn = with_gaps.head(_MOST_COLUMNS)
    bars = {
        "trained": drawn["steps"] - drawn["gaps"],
        "context": drawn["filled"],
        "empty": drawn["missing"],
    }
    values = {role: column.cast(pl.Float64).to_list() for role, column in bars.items()}
    chart = charts.stacked_bars(drawn["column"].to_list(), values, unit="values", names=_CELLS)
    return [Figure("filled", question, answer, chart)]


def _imputed_columns(root: Path) -> pl.DataFrame | None:
    """Sum the imputation of all quality reports by column, most gaps first; None if there are too
    many reports to read.
    """
    paths = sorted((root / REPORTS).glob("*.json"))
    count: float = len(paths)
    if (root / REPORTS_TABLE).exists():
        # A report in the table takes a fifth of the time of a file.
        with open_run_table(root / REPORTS_TABLE) as file:
            count = file.num_rows / 5
    if count > _MOST_REPORTS:
        return None
    if paths:
        reports = [read_object(path) for path in paths]
    else:
        texts = read_run_table(root / REPORTS_TABLE, REPORTS_SCHEMA)["report"].to_pylist()
        reports = [parse_object(text) for text in texts]
    rows = []
    for report in reports:
        for column, info in report.get("imputation_info", {}).items():
            rows.append({"column": column, "steps": report["period"]["steps"], **info})
    if not rows:
        return pl.DataFrame()
    return (
        pl.DataFrame(rows)
        .group_by("column")
        .agg(
            pl.sum("steps"),
            filled=pl.sum("imputed_values_count"),
            missing=pl.sum("missing_values_count"),
            longest=pl.max("longest_gap"),
        )
        .with_columns(gaps=pl.col("filled") + pl.col("missing"))
        .sort("gaps", "column", descending=[True, False])
    )


def _target_figures(report_data: ReportData, tables: Mapping[str, pl.DataFrame]) -> list[Figure]:
    percent = {}
    for split, table in tables.items():
        used = table.filter(pl.col("steps") > 0)
        percent[split] = (100 * used["targets"] / used["steps"]).to_numpy()
    every = np.concatenate(list(percent.values()))
    if not len(every):
        return []
    totals = {split: int(table["targets"].sum()) for split, table in tables.items()}
    total = sum(totals.values())
    parts = ", ".join(f"{split} {percentage(count, total)}" for split, count in totals.items())
    sparse = int((every < 50).sum())
    complete = "Every step has an observed target."
    if every.min() < 100:
        complete = (
            f"In the median part {np.median(every):.1f} % of the steps have an observed target."
        )
    answer = f"{complete} Of all {total:,} observed targets: {parts}."
    if sparse:
        answer += f" {pluralise(sparse, 'part is', 'parts are')} less than half observed."
    rounded = report_data.manifest.metadata.get("rounded_targets", [])
    answer = "\n".join([answer, *rounded])
    chart = None
    if every.min() < 100:
        edges = even_edges(0.0, 100.0, integral=False)
        counts = {split: counted(values, edges) for split, values in percent.items()}
        chart = charts.histogram(
            edges, counts, of="parts of entities", title="% of steps with a target", grows=False
        )
    tone: Tone = "warning" if sparse or rounded else "plain"
    return [Figure("targets", "How complete is the target?", answer, chart, tone)]


def _disguise_figures(report_data: ReportData) -> list[Figure]:
    near_target = sorted(report_data.manifest.metadata["near_target"])
    if not near_target:
        return []
    answer = (
        f"{listed(near_target, 6)} {verb(len(near_target), 'is', 'are')} almost"
        f" {report_data.config['target']} in another unit. Such a feature leaks the target:"
        " leave it out unless it is known at the time of the forecast."
    )
    return [Figure("disguise", "Is a feature the target in disguise?", answer, None, "warning")]
