"""Print a run of series for people."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.cli.output import cell
from headrace.cli.tables import Detail, print_manifest
from headrace.dataset.manifest import Manifest
from headrace.errors import HeadraceError
from headrace.report.words import listed

_SHOWN = 5


def print_series(console: Console, manifest: Manifest, run: Path, detail: Detail) -> None:
    """Print rows, entities and the frequency, and why the first of the entities that are left out are."""
    print_manifest(console, manifest, run, detail)
    entities = manifest.facts["entities"]
    console.print(
        f"{entities['passed']:,} of {entities['original']:,} entities on steps of {manifest.facts['frequency']}, "
        f"columns {listed(manifest.facts['columns'], 8)}",
        highlight=False,
    )
    if not entities["failed"]:
        return
    try:
        excluded = json.loads((run / "quality_summary.json").read_bytes())["excluded_basins"]
    except (OSError, ValueError) as error:
        raise HeadraceError(
            f"{run / 'quality_summary.json'}: cannot be read ({error}); prepare the run again"
        ) from error
    table = Table(title="left out", title_justify="left", header_style="bold")
    table.add_column("entity")
    table.add_column("why", overflow="fold")
    for name, reason in list(excluded.items())[:_SHOWN]:
        table.add_row(cell(name), cell(reason))
    if len(excluded) > _SHOWN:
        table.add_row("…", f"and {len(excluded) - _SHOWN:,} more in {run / 'quality_summary.json'}")
    console.print(table)
