"""Where the tasks of a run are done: on this machine, on a Ray cluster, or shared out over independent processes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.errors import SettingsError

_PANEL = "More than one machine"

Engine = Annotated[
    str | None,
    typer.Option(
        help="local (default) | ray: the tasks on a Ray cluster over shared storage.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Of the Ray cluster; auto: the one this machine belongs to. Unless given, Ray is started here.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
ShardOf = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="This is process I of N (0 to N-1) that make the run together, e.g. of a Slurm array.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

WorkDir = Annotated[
    Path | None,
    typer.Option(
        help="Where a run for an object store is made: a local directory with room; ~/.cache/headrace unless given.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Spread:
    """What was asked with --engine, --address, --shard-of and --work-dir.

    Raises `SettingsError` for a share that is none.
    """

    engine: str | None = None
    address: str | None = None
    shard_of: str | None = None
    work_dir: Path | None = None

    def options(self) -> dict[str, Any]:
        """As keyword arguments of `prepare`."""
        options: dict[str, Any] = {"engine": self.engine or "local", "address": self.address, "work_dir": self.work_dir}
        if self.shard_of is not None:
            found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", str(self.shard_of))
            if found is None:
                raise SettingsError(f"--shard-of: {self.shard_of!r} is no I/N; write e.g. 0/4 for the first of 4")
            options["shard_of"] = (int(found[1]), int(found[2]))
        return options


HERE = Spread()
