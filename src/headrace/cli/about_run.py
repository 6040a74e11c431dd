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
    """--workers, --fingerprint-by, --engine, --address, --shard-of, --work-dir, --report and --json. None of them
    changes a byte of the output."""

    workers: Annotated[int | None, typer.Option(help="Tasks at a time; default one per core.", show_default=False)] = (
        None
    )
    fingerprint_by: Annotated[
        str | None,
        typer.Option(
            help="What tells source files apart: stat (default): size and time; content: their bytes, read once more.",
            show_default=False,
        ),
    ] = None
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
    def how(self) -> Literal["stat", "content"]:
        """What tells source files apart. Raises `SettingsError` for another word."""
        from headrace.settings import shown

        asked = self.fingerprint_by or "stat"
        if asked not in ("stat", "content"):
            raise SettingsError(f"fingerprint_by is {shown(asked)}; give stat or content")
        return "content" if asked == "content" else "stat"

    def options(self) -> dict[str, Any]:
        """As keyword arguments of `prepare`. Raises `SettingsError` for a --shard-of that is none."""
        options: dict[str, Any] = {
            "workers": self.workers,
            "fingerprint_by": self.how,
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
