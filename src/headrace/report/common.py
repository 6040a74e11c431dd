"""Make the parts of a page that all recipes share: dropped and kept rows, tiles, tables. Pure."""

from __future__ import annotations

import json
from typing import Any

from headrace.recipe import recipe_of_run
from headrace.report import charts
from headrace.report.figure import Figure, Table, Tone
from headrace.report.report_data import ReportData
from headrace.report.words import listed, percentage, pluralise, size, verb

_MOST_BARS = 14


def figures(report_data: ReportData) -> list[Figure]:
    """Make the figures of a recipe that has none of its own."""
    return [rows_figure(report_data)]


def rows_figure(report_data: ReportData) -> Figure:
    """Draw the number of rows of each split and of each reason to drop rows."""
    manifest = report_data.manifest
    read = int(manifest.source["rows"])
    rows_by_split = report_data.rows_in_splits
    dropped = {reason: rows for reason, rows in manifest.dropped.items() if rows}
    by_size = sorted(dropped, key=lambda reason: (-dropped[reason], reason))
    names = [*report_data.splits, *by_size[:_MOST_BARS]]
    values = [rows_by_split[name] for name in report_data.splits] + [
        dropped[name] for name in by_size[:_MOST_BARS]
    ]
    roles = [*report_data.splits, *["dropped"] * len(by_size[:_MOST_BARS])]
    lost = sum(dropped.values())
    empty = [name for name in report_data.splits if not rows_by_split[name]]
    if lost:
        most = by_size[0]
        answer = (
            f"Of {pluralise(read, 'row')} read {percentage(sum(rows_by_split.values()), read)} are"
            f" in a split. {pluralise(lost, 'row')} {'was' if lost == 1 else 'were'} dropped,"
            f" {'most of them ' if len(dropped) > 1 else ''}for {most}:"
            f" {report_data.reason_in_words(most)}."
        )
    else:
        answer = f"All {pluralise(read, 'row')} read are in a split; none was dropped."
    if empty:
        answer += f" {listed(empty)} {verb(len(empty), 'is', 'are')} empty."
    if sum(rows_by_split.values()) + lost != read:
        answer += f" The counts do not add up to the {read:,} rows read: run `headrace verify`."
    if empty or lost > read / 2 or sum(rows_by_split.values()) + lost != read:
        tone: Tone = "warning"
    elif lost:
        tone = "plain"
    else:
        tone = "good"
    texts = [f"{value:,} · {percentage(value, read)}" for value in values]
    chart = None
    if len(names) > 1:
        chart = charts.bars(names, values, roles, unit="rows", texts=texts)
    return Figure("rows", "Where did the rows go?", answer, chart, tone)


def tables(report_data: ReportData) -> list[Table]:
    """Return the columns, the settings, and what made the run, as tables that are folded away."""
    manifest = report_data.manifest
    columns = []
    for column in manifest.schema:
        columns.append(
            [column["name"], column["type"], "may hold nulls" if column["nullable"] else "no nulls"]
        )
    origin = {
        "run": manifest.run_id,
        "finished": report_data.run.finished_at,
        **{f"library {name}": version for name, version in sorted(manifest.libraries.items())},
        "source fingerprint": manifest.source["fingerprint"],
        "source": (
            f"{pluralise(manifest.source['files'], 'file')}, {size(manifest.source['bytes'])}"
        ),
    }
    for name, value in sorted(manifest.metadata.items()):
        if not isinstance(value, dict | list):
            origin[name] = value
    return [
        Table(f"{pluralise(len(columns), 'column')}", ["name", "type", "nulls"], columns),
        Table(
            "settings",
            ["setting", "value"],
            [[name, _text(value)] for name, value in sorted(report_data.config.items())],
        ),
        Table(
            "how it was made",
            ["", ""],
            [[name.replace("_", " "), _text(value)] for name, value in origin.items()],
        ),
    ]


def tiles(report_data: ReportData) -> list[tuple[str, str]]:
    """Return the figures at the top of the page: rows of each split, and totals dropped, read and
    written.
    """
    manifest = report_data.manifest
    unit = recipe_of_run(manifest.recipe).row
    tile_values = [
        (name, pluralise(manifest.splits[name].rows, unit)) for name in report_data.splits
    ]
    if manifest.folds:  # its splits are cells, which several folds share
        tile_values = [
            ("folds", f"{len(manifest.folds):,}"),
            ("in folds", pluralise(sum(report_data.rows_in_splits.values()), unit)),
        ]
    total = sum(totals.bytes for totals in manifest.splits.values())
    shards = sum(totals.shards for totals in manifest.splits.values())
    return [
        *tile_values,
        ("dropped", pluralise(sum(manifest.dropped.values()), "row")),
        ("read", pluralise(manifest.source["rows"], "row")),
        ("written", f"{size(total)} in {pluralise(shards, 'shard')}"),
    ]


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        if value is None:
            return ""
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return json.dumps(value, ensure_ascii=False, default=str)
