"""Print the summary of a finished run of series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.output import cell

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.cli.tables import Detail
    from headrace.dataset.manifest import Manifest

_SHOWN = 5  # left-out entities in the summary


def print_series(console: Console, manifest: Manifest, run: Path, detail: Detail) -> None:
    """Print rows, entities and the frequency, and the reasons for the first entities that are left
    out.
    """
    from rich.table import Table

    from headrace.cli.tables import print_manifest
    from headrace.report.words import listed, many_entities
    from headrace.series.store import SUMMARY, read_summary

    print_manifest(console, manifest, run, detail)
    entities = manifest.metadata["entities"]
    console.print(
        f"{entities['passed']:,} of {many_entities(entities['original'])} on steps of"
        f" {manifest.metadata['frequency']}, columns {listed(manifest.metadata['columns'], 8)}",
        highlight=False,
    )
    if "pipelines_from" in manifest.metadata:
        fitted = manifest.metadata["pipelines_from"]["run"]
        console.print(
            f"scaled by the pipelines of run {fitted}, nothing was fitted", highlight=False
        )
    if not entities["failed"]:
        return
    excluded = read_summary(run)["excluded_entities"]
    table = Table(title="left out", title_justify="left", header_style="bold")
    table.add_column("entity")
    table.add_column("why", overflow="fold")
    for name in list(excluded)[:_SHOWN]:
        table.add_row(cell(name), cell(excluded[name]))
    if len(excluded) > _SHOWN:
        table.add_row("…", f"and {len(excluded) - _SHOWN:,} more in {run / SUMMARY}")
    console.print(table)
