"""`headrace series`: time series of many entities, from a configuration file and flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.commands import about_the_run, execute, read_config, with_settings
from headrace.cli.flags import RunOptions, with_groups
from headrace.errors import SettingsError


@with_groups
def series(
    config: Annotated[Path, typer.Argument(help="YAML or JSON file with the settings of `Series`, and out.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Output directory; overrides the file's.", show_default=False)
    ] = None,
    entities: Annotated[
        Path | None, typer.Option(help="Only the entities in this file, a name per line.", show_default=False)
    ] = None,
    layout: Annotated[str | None, typer.Option(help="files | packed; else the file's.", show_default=False)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of any setting, e.g. --set min_train_years=3.", show_default=False),
    ] = None,
    about: RunOptions,
) -> None:
    """Clean, split and scale the time series of many entities, for training on windows of them.

    `headrace run CONFIG` does the same for a file with `recipe: series`. A killed run goes on where it was.

    Example:  headrace series config.yaml --out out
    """
    from headrace.series.config import Series

    record = read_config(config)
    if record.pop("recipe", "series") != "series":
        raise SettingsError(f"{config}: is of another recipe; use `headrace run {config}`")
    if entities is not None:
        record.pop("entities", None)
        record["entities_file"] = entities
    if layout is not None:
        record["layout"] = layout
    record = with_settings(record, settings or ())
    target, about = about_the_run(config, record, out=out, flags=about)
    execute(Series(**record), target, about)
