"""Draw the size before and after a rewrite, and the blocks that readers will read. Pure."""

from __future__ import annotations

from headrace.report import charts, common
from headrace.report.figure import Figure
from headrace.report.report_data import ReportData
from headrace.report.words import pluralise, size


def figures(report_data: ReportData) -> list[Figure]:
    """Return the figures in the order of the page."""
    return [
        _size_figure(report_data),
        common.rows_figure(report_data),
    ]


def _size_figure(report_data: ReportData) -> Figure:
    manifest = report_data.manifest
    before = int(manifest.source["bytes"])
    after = sum(totals.bytes for totals in manifest.splits.values())
    shards = sum(totals.shards for totals in manifest.splits.values())
    times = 1.0
    if before:
        times = after / before
    nulls = sum(1 for totals in manifest.schema if totals["nullable"])
    answer = (
        f"{size(before)} in {pluralise(manifest.source['files'], 'file')} became {size(after)} in"
        f" {pluralise(shards, 'shard')} of {pluralise(len(report_data.blocks), 'block')},"
        f" {times:.2f} times the bytes, compression {manifest.metadata.get('compression')}."
        f" {len(manifest.schema) - nulls} of {pluralise(len(manifest.schema), 'column')} hold no"
        " null and are declared so."
    )
    labels = ["before", "after"]
    values = [before, after]
    chart = charts.bars(
        labels, values, labels, unit="on disk", texts=[size(value) for value in values]
    )
    return Figure("size", "What did the rewrite do to the size?", answer, chart)
