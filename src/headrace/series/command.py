"""`headrace series`: time series of many entities, from a configuration file and flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.commands import Settings, execute
from headrace.cli.config_file import about_the_run, read_config, with_settings
from headrace.cli.derived import PartlyGiven
from headrace.cli.flags import RunOptions
from headrace.errors import SettingsError


def series(
    config: Annotated[Path, typer.Argument(help="YAML or JSON file with the settings of `Series`, and out.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Output directory; overrides the file's.", show_default=False)
    ] = None,
    settings: Settings = None,
    given: PartlyGiven,
    about: RunOptions,
) -> None:
    """Clean, split and scale the time series of many entities, for training on windows of them.

    Flags override the file's settings. `headrace run CONFIG` does the same for a file with `recipe: series`. A run that
    was killed resumes.

    Example:  headrace series config.yaml --out out --min-train-years 3
    """
    from headrace.settings import former_names  # with pydantic, which a list of commands need not load

    record = read_config(config)
    if record.pop("recipe", "series") != "series":
        raise SettingsError(f"{config}: is of another recipe; use `headrace run {config}`")
    # A flag overrides the file's setting under any name, former ones too, and one list of entities the other.
    same = {**former_names(given.model), "entities_file": "entities"}
    flags = {same.get(name, name) for name in given.values}
    record = {name: value for name, value in record.items() if same.get(name, name) not in flags} | given.values
    record = with_settings(record, settings or ())
    target, about = about_the_run(config, record, out=out, flags=about)
    execute(given.model(**record), target, about)
