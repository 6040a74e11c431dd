"""`headrace split`: the temporal split from flags, or from the environment of the script it replaces."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.about_run import AboutRun
from headrace.cli.commands import execute
from headrace.cli.derived import PartlyGiven
from headrace.errors import SettingsError
from headrace.split.environment import CONTAINER_OUT, CONTAINER_SOURCE, settings_from_environment


def split(
    source: Annotated[
        list[str] | None, typer.Argument(help="Files, directories or glob patterns.", show_default=False)
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="Output directory.", show_default=False)] = None,
    from_env: Annotated[
        bool,
        typer.Option("--from-env", help="Take what is not given from DATE_COLUMN, GROUP_ID_COLUMN, SPLIT_DATE, ..."),
    ] = False,
    lineage: Annotated[
        bool,
        typer.Option("--lineage", help="Add source_shard and source_row to every row.", rich_help_panel="Output"),
    ] = False,
    given: PartlyGiven,
    about: AboutRun,
) -> None:
    """Split shards by time without leaking an entity.

    Rows before the split date train or validate, by entity; rows from it on test entities that did not train.

    Example:  headrace split raw --out out --date-column time --group-column customer --split-date 2025-01-01
    """
    settings = given.values | ({"lineage": "columns"} if lineage else {})
    if from_env:
        environment = settings_from_environment(os.environ)
        about = about if about.workers is not None else replace(about, workers=environment.workers)
        settings = {**environment.settings, **settings}
        if settings["format"] in ("csv", "tsv"):
            settings.setdefault("compression", "none")
        source = source or [CONTAINER_SOURCE]
        out = out or Path(CONTAINER_OUT)
        if "signature" not in settings:
            settings |= _container_signature(Path(source[0]))
    if not source:
        raise SettingsError("no source; give files, a directory or a glob pattern: headrace split SOURCE --out OUT ...")
    if out is None:
        raise SettingsError("no output directory; give --out OUT")
    _require(settings, from_env=from_env)

    from headrace.storage.places import is_address

    if from_env and is_address(str(out)):
        raise SettingsError(f"--from-env lays links and copies beside the run, and {out} has none; leave it out")

    run = execute(given.model(source=source, **settings), out, about)
    if from_env:
        from headrace.run.prepare import export_tree

        export_tree(run, out, ("training_data", "oot_data"))


def _require(given: dict[str, Any], *, from_env: bool) -> None:
    names = {"date_column": "DATE_COLUMN", "group_column": "GROUP_ID_COLUMN", "split_date": "SPLIT_DATE"}
    missing = [name for name in names if name not in given]
    if missing:
        flags = ", ".join("--" + name.replace("_", "-") for name in missing)
        variables = f" or set {', '.join(names[name] for name in missing)}" if from_env else ""
        raise SettingsError(f"not given: {flags}; add {'them' if len(missing) > 1 else 'it'}{variables}")


def _container_signature(source: Path) -> dict[str, Path]:
    """The container job's signature file: the first file of the `signature` directory beside its data."""
    directory = source.parent / "signature"
    files = sorted(each for each in directory.iterdir() if each.is_file()) if directory.is_dir() else []
    return {"signature": files[0]} if files and files[0].stat().st_size else {}
