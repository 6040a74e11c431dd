"""A run's facts as a page: figures of its recipe, tiles at the top, tables folded away."""

from __future__ import annotations

from pathlib import Path

from headrace.recipe import load, registration_of_run
from headrace.report import common
from headrace.report.facts import RunFacts
from headrace.report.figure import Figure, Page
from headrace.report.words import written


def page_of(facts: RunFacts) -> Page:
    """The page of any recipe; of one that has no figures of its own, those that all have."""
    manifest = facts.manifest
    figures = registration_of_run(manifest.recipe).figures
    by = f"headrace {manifest.libraries.get('headrace', '')}"
    return Page(
        title=f"{manifest.recipe.replace('_', ' ')}: {_output_of(facts.run.root)}",
        subtitle=f"run {manifest.run_id}, made {written(facts.run.finished_at)} by {by}",
        tiles=common.tiles(facts),
        figures=_of_any(facts) if figures is None else load(figures)(facts),
        tables=common.tables(facts),
    )


def _output_of(run: Path) -> str:
    """The name of the dataset directory that a run lies in."""
    run = run.resolve()
    return run.parent.parent.name if run.parent.name == "runs" else run.name


def _of_any(facts: RunFacts) -> list[Figure]:
    return [common.rows_figure(facts), common.shards_figure(facts), common.blocks_figure(facts)]
