"""Draw the figures of histories: sizes of entities and rows, their times, and the contexts made of
them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from headrace.arrays import F64, Bools
from headrace.errors import CorruptShard
from headrace.gate import RESTORE
from headrace.histories import US_PER
from headrace.histories.contexts.contexts import open_contexts
from headrace.report import charts, common
from headrace.report.bins import counted, covering, edges_for, span_edges, time_edges
from headrace.report.figure import Figure
from headrace.report.report_data import ReportData
from headrace.report.words import listed, moment, percentage, pluralise, size, span, verb

_MOST_ROWS = 5_000_000
_MOST_CONTEXT_ROWS = 5_000  # small rows are read to find how they share contexts
_SAMPLE = 64


def figures(report_data: ReportData) -> list[Figure]:
    """Draw the figures, in the order of the page."""
    rows = _rows(report_data)
    return [
        *_timeline_figures(report_data, rows),
        common.rows_figure(report_data),
        *_size_figures(report_data, rows),
        *_context_figures(report_data),
    ]


def _rows(report_data: ReportData) -> pl.DataFrame | None:
    """Read `rows.parquet` without the names; the rows of an entity are adjacent.

    Times are seconds since 1970.

    None if there are no rows, or too many for a picture.
    """
    path = report_data.run.root / "rows.parquet"
    if sum(totals.rows for totals in report_data.manifest.splits.values()) > _MOST_ROWS:
        return None
    names = ["split", "part", "n_measurements", "first_time", "last_time", "bytes"]
    try:
        rows = pl.read_parquet(path, columns=names)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise CorruptShard(f"cannot be read ({error})", path=path, remedy=RESTORE) from error
    if not len(rows):
        return None
    per_second = US_PER["s"] // US_PER[report_data.config["time_unit"]]
    return rows.with_columns(pl.col("first_time", "last_time") / per_second)


def _of_splits(report_data: ReportData, rows: pl.DataFrame) -> dict[str, Bools]:
    """Return which rows are in each split: bool [R]."""
    return {split: (rows["split"] == split).to_numpy() for split in report_data.splits}


def _timeline_figures(report_data: ReportData, rows: pl.DataFrame | None) -> list[Figure]:
    if rows is None:
        return []
    starts = rows["first_time"].to_numpy().astype(np.float64) * 1e6
    ends = rows["last_time"].to_numpy().astype(np.float64) * 1e6
    edges = time_edges(float(starts.min()), float(ends.max()))
    parts = {}
    lines = []
    for split, mask in _of_splits(report_data, rows).items():
        if mask.any():
            parts[split] = covering(starts[mask], ends[mask], edges)
            lines.append(f"{split} from {moment(starts[mask].min())} to {moment(ends[mask].max())}")
    division = f"Splits are cut at {report_data.config['train_end']}."
    if report_data.config["train_end"] is None:
        division = "Splits are by entity, so both may cover all times."
    answer = (
        f"{'; '.join(lines)}. {division} A row counts in every interval from its first measurement"
        " to its last."
    )
    chart = charts.over_time(edges, parts, of="rows", texts=[moment(edge) for edge in edges])
    return [Figure("timeline", "Which times do the rows cover?", answer, chart, "plain", "full")]


def _size_figures(report_data: ReportData, rows: pl.DataFrame | None) -> list[Figure]:
    if rows is None:
        answer = f"There are more than {_MOST_ROWS:,} big rows, too many to read for a picture."
        return [Figure("entities", "How large are the entities?", answer)]
    return [_sizes_figure(report_data, rows), _spans_figure(report_data, rows)]


def _sizes_figure(report_data: ReportData, rows: pl.DataFrame) -> Figure:
    """Draw how many measurements the entities of each split have."""
    starts = np.flatnonzero(rows["part"].to_numpy() == 0)
    sizes = np.add.reduceat(rows["n_measurements"].to_numpy(), starts).astype(np.float64)
    several = int(np.count_nonzero(np.diff(starts, append=len(rows)) > 1))
    names = pl.scan_parquet(report_data.run.root / "rows.parquet").select("src_id")
    largest = names.slice(int(starts[np.argmax(sizes)]), 1).collect().item()
    subject = "None is"
    if several:
        subject = pluralise(several, "entity is", "entities are")
    of_all = percentage(float(sizes.max()), float(sizes.sum()))
    answer = (
        f"{pluralise(len(sizes), 'entity', 'entities')}: median"
        f" {np.median(sizes):,.0f} measurements, {sizes.max():,.0f} at most (of {largest},"
        f" {of_all} of all). {subject} cut into several rows."
    )
    edges, grows = edges_for(sizes)
    of_rows = _of_splits(report_data, rows)
    parts = {split: counted(sizes[mask[starts]], edges) for split, mask in of_rows.items()}
    title = "measurements of an entity"
    chart = charts.histogram(edges, parts, of="entities", title=title, grows=grows)
    return Figure("entities", "How large are the entities?", answer, chart)


def _spans_figure(report_data: ReportData, rows: pl.DataFrame) -> Figure:
    """Draw how much time the rows of each split cover."""
    long = (rows["last_time"] - rows["first_time"]).to_numpy().astype(np.float64)
    answer = (
        f"Median {span(float(np.median(long)))}, {span(float(long.max()))} at most; "
        f"{pluralise(int((long == 0).sum()), 'row')} of a single moment. The median row "
        f"takes {size(float(np.median(rows['bytes'].to_numpy())))}."
    )
    long = np.maximum(long, 1.0)
    edges, grows = span_edges(long)
    of_rows = _of_splits(report_data, rows)
    parts = {split: counted(long[mask], edges) for split, mask in of_rows.items()}
    texts = [span(float(edge)) for edge in edges]
    chart = charts.histogram(
        edges, parts, of="rows", title="from first to last", grows=grows, texts=texts
    )
    return Figure("time-spans", "How much time does a row cover?", answer, chart)


def _context_figures(report_data: ReportData) -> list[Figure]:
    """Describe the contexts of an epoch with the default options."""
    question = "What will training see of it?"
    totals = report_data.manifest.splits
    rows = {split: totals[split].rows for split in report_data.splits if totals[split].rows}
    if not rows:
        return []
    if max(rows.values()) > _MOST_CONTEXT_ROWS:
        answer = (
            "There are too many rows to make contexts for a picture; `headrace histories plan"
            f" {report_data.run.root}` does."
        )
        return [Figure("contexts", question, answer)]
    shares: dict[str, list[float]] = {"trained": [], "empty": []}
    per_row = {}
    seen = []
    lines = []
    for split in rows:
        contexts = open_contexts(report_data.run.root, split, verify="never")
        plan = contexts.plan(sample=_SAMPLE)
        per_row[split] = np.diff(contexts.index.ends, prepend=0).astype(np.float64)
        tokens = plan.contexts * contexts.options.context_tokens
        shares["trained"].append((1 - plan.padding) * tokens)
        shares["empty"].append(plan.padding * tokens)
        seen.append(f"{percentage(plan.coverage, 1)} of {split}")
        lines.append(
            f"{split}: {pluralise(plan.contexts, 'context')} of"
            f" {contexts.options.context_tokens:,} tokens, {percentage(plan.padding, 1)} padding"
        )
    answer = (
        f"Of the measurements, an epoch sees {listed(seen)}. {'; '.join(lines)}; estimated from"
        f" {_SAMPLE} contexts with the default options."
    )
    names = {"trained": "measurements", "empty": "padding"}
    chart = charts.stacked_bars(list(rows), shares, unit="tokens", names=names)
    drawn = [Figure("contexts", question, answer, chart)]
    of_rows = _contexts_of_rows(per_row)
    if of_rows is not None:
        drawn.append(of_rows)
    return drawn


def _contexts_of_rows(per_row: Mapping[str, F64]) -> Figure | None:
    """Draw how many contexts the large rows of each split give, if they differ."""
    sampled = {split: counts for split, counts in per_row.items() if len(counts)}
    every = np.concatenate([np.empty(0), *sampled.values()])
    if not len(every) or every.min() == every.max():
        return None
    answer = (
        f"{pluralise(len(every), 'row')} larger than a context"
        f" {verb(len(every), 'is', 'are')} sampled: {every.mean():,.1f} contexts a row on"
        f" average, {every.max():,.0f} at most. Smaller rows share contexts."
    )
    edges, grows = edges_for(every)
    parts = {split: counted(counts, edges) for split, counts in sampled.items()}
    title = "contexts of a row in an epoch"
    chart = charts.histogram(edges, parts, of="rows", title=title, grows=grows)
    return Figure("contexts-of-rows", "How many contexts does a large row give?", answer, chart)
