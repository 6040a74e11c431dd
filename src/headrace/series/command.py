"""Run `headrace series`, which prepares the time series of many entities, and print its summary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.commands import Settings, execute
from headrace.cli.output import cell
from headrace.cli.settings_file import read_config, take_run_options, with_settings
from headrace.cli.settings_flags import PartialFlagValues, RunOptions
from headrace.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.cli.tables import Detail
    from headrace.dataset.manifest import Manifest

_CONFIGS = (".yaml", ".yml", ".json")
_SHOWN = 5  # left-out entities in the summary


def series(
    first: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE|CONFIG",
            help="Time series; or a YAML or JSON file with the settings of `Series`, and out.",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="Output directory; overrides the file's.", show_default=False),
    ] = None,
    settings: Settings = None,
    flag_values: PartialFlagValues,
    about: RunOptions,
) -> None:
    """Clean, split and scale the time series of many entities, for training on windows of them.

    Flags override the settings of a file. `headrace run CONFIG` does the same for a file with
    `recipe: series`. A run that was killed resumes.

    Example:  headrace series data --out out --target streamflow

    Example:  headrace series config.yaml --out out --min-train-years 3
    """
    if not first.lower().endswith(_CONFIGS):
        target, about = take_run_options(Path(first), {}, out=out, flags=about)
        values = {**flag_values.values, "source": [first, *flag_values.values.get("source", ())]}
        execute(flag_values.model(**with_settings(values, settings or ())), target, about)
        return
    config = Path(first)
    record = read_config(config)
    if record.pop("recipe", "series") != "series":
        raise SettingsError("of another recipe", path=config, remedy=f"use `headrace run {config}`")
    record = with_settings(record | flag_values.values, settings or ())
    target, about = take_run_options(config, record, out=out, flags=about)
    execute(flag_values.model(**record), target, about)


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
