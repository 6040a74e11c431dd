"""Publish the page of a run. This is the only module of the report that writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.recipe import recipe_of_run
from headrace.report import REPORT, common
from headrace.report.figure import Figure, Page
from headrace.report.page import html_of
from headrace.report.report_data import ReportData, read_run
from headrace.report.words import written
from headrace.storage import local
from headrace.storage.places import local_path_of

_MOST_PICTURES = 6  # more are not looked at


def page_of(report_data: ReportData) -> Page:
    """Make the page of a run, with the common figures if its recipe has none of its own.

    It has at most six pictures. Recipes return their figures with the least important ones last.
    """
    manifest = report_data.manifest
    recipe = recipe_of_run(manifest.recipe)
    by = f"headrace {manifest.libraries.get('headrace', '')}"
    return Page(
        title=f"{manifest.recipe.replace('_', ' ')}: {report_data.output}",
        subtitle=f"run {manifest.run_id}, made {written(report_data.run.finished_at)} by {by}",
        tiles=common.tiles(report_data),
        figures=_first_pictures(recipe.figures(report_data, common.figures)),
        tables=common.tables(report_data),
    )


def _first_pictures(figures: Sequence[Figure]) -> list[Figure]:
    """Leave out the figures whose pictures would be too many."""
    drawn = []
    pictures = 0
    for figure in figures:
        pictures += figure.chart is not None
        if figure.chart is None or pictures <= _MOST_PICTURES:
            drawn.append(figure)
    return drawn


def write_report(path: str | Path, *, run: str | None = None, to: str | Path | None = None) -> Path:
    """Write the report of the finished run at a path; return its location, `report.html` in the run
    or `to`.

    The page is published in one step and replaces an older one: it is not part of the run's
    contents. Raises `InputError` without a finished run, `StoreError` if it cannot be
    written.
    """
    report_data = read_run(path, run)
    target = local_path_of(report_data.run.root / REPORT if to is None else to, "the page's file")
    local.write_over(target, html_of(page_of(report_data)).encode())
    return target
