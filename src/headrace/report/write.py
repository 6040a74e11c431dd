"""Make the page of a run from its facts, draw it and publish it. The one module of the report that writes."""

from __future__ import annotations

from pathlib import Path

from headrace.recipe import load, registration_of_run
from headrace.report import REPORT, common
from headrace.report.facts import RunFacts, read_run
from headrace.report.figure import Page
from headrace.report.page import draw, html_of
from headrace.report.words import written
from headrace.storage import local
from headrace.storage.places import local_path_of, place_of


def page_of(facts: RunFacts) -> Page:
    """Make the page of any recipe; of one that has no figures of its own, with those that all have."""
    manifest, run = facts.manifest, place_of(facts.run.root).real()
    output = run.parent.parent.name if run.parent.name == "runs" else run.name
    figures = registration_of_run(manifest.recipe).figures
    by = f"headrace {manifest.libraries.get('headrace', '')}"
    return Page(
        title=f"{manifest.recipe.replace('_', ' ')}: {output}",
        subtitle=f"run {manifest.run_id}, made {written(facts.run.finished_at)} by {by}",
        tiles=common.tiles(facts),
        figures=common.figures(facts) if figures is None else load(figures)(facts),
        tables=common.tables(facts),
    )


def write_report(path: str | Path, *, run: str | None = None, to: str | Path | None = None) -> Path:
    """Write the report of the finished run behind a path; where it lies: `report.html` in the run, or `to`.

    The page appears whole or not at all, and replaces an older one: it is not part of the run's contents. Raises
    `InputError` without a finished run, `MissingExtra` without vl-convert, `StoreError` if it cannot be written.
    """
    facts = read_run(path, run)
    return publish(page_of(facts), facts.run.root / REPORT if to is None else to)


def publish(page: Page, to: str | Path) -> Path:
    """Draw a page and give it its name in one step."""
    target = local_path_of(to, "the page's file")
    local.write_over(target, html_of(page, draw).encode())
    return target
