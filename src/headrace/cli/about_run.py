"""What every preparing command asks about the run itself: how many tasks at a time, where, and what is told of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.cli.flags import Json
from headrace.cli.report_command import Report
from headrace.errors import SettingsError

_machines = partial(typer.Option, rich_help_panel="More than one machine", show_default=False)

WorkDir = Annotated[
    Path | None,
    _machines(
        help="Where a run for an object store is made: a local directory with room; ~/.cache/headrace unless given.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class AboutRun:
    """--workers, --engine, --address, --shard-of, --work-dir, --report and --json. None of them changes a byte."""

    workers: Annotated[int | None, typer.Option(help="Tasks at a time; default one per core.", show_default=False)] = (
        None
    )
    engine: Annotated[
        str | None, _machines(help="local (default) | ray: the tasks on a Ray cluster over shared storage.")
    ] = None
    address: Annotated[
        str | None,
        _machines(help="Of the Ray cluster; auto: the one this machine belongs to. Unless given, Ray is started here."),
    ] = None
    shard_of: Annotated[
        str | None,
        _machines(
            metavar="I/N",
            help="This is process I of N (0 to N-1) that make the run together, e.g. of a Slurm array.",
        ),
    ] = None
    work_dir: WorkDir = None
    report: Report = "auto"
    as_json: Json = False

    @property
    def style(self) -> Literal["json", "text"]:
        """What the outcome is printed as."""
        return "json" if self.as_json else "text"

    def options(self) -> dict[str, Any]:
        """As keyword arguments of `prepare`. Raises `SettingsError` for a --shard-of that is none."""
        options: dict[str, Any] = {
            "workers": self.workers,
            "engine": self.engine or "local",
            "address": self.address,
            "work_dir": self.work_dir,
        }
        if self.shard_of is not None:
            found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", str(self.shard_of))
            if found is None:
                raise SettingsError(f"--shard-of: {self.shard_of!r} is no I/N; write e.g. 0/4 for the first of 4")
            options["shard_of"] = (int(found[1]), int(found[2]))
        return options
