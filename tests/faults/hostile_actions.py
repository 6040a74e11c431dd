"""What meets files whose writer means harm: each way that headrace reads them. One that accepts them just returns."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fault_recipes import make

import headrace
from headrace.errors import HeadraceError

WHOLE: dict[str, str] = {}  # finished runs of the parent, by recipe, and the settings of the first


def stream(path: Path) -> None:
    dataset = headrace.open(path, cache_dir=Path(str(path) + "-cache"))
    for split in dataset.splits:
        for _ in dataset.stream(split, batch_size=512, batch_format="arrow"):
            pass


def verify(path: Path) -> None:
    problems = headrace.verify(path).problems
    if problems:
        raise headrace.errors.CorruptShard(f"{problems[0]}; (of verify)")


def prepare_again(path: Path) -> None:
    make("split csv.gz", json.loads(WHOLE["settings"]), path)


def split(source: Path) -> None:
    recipe = headrace.TemporalSplit(
        source=source, time="date", entity="id", split_date="2025-01-01"
    )
    headrace.prepare(recipe, source.parent / "made", workers=2)


def pack(blend: Path) -> None:
    headrace.prepare(
        headrace.PackedSequences(blend=blend, pack_size=128), blend.parent / "made", workers=1
    )


def command(arguments: list[str]) -> None:
    """The command line; its error is what it prints."""
    import contextlib
    import io

    from headrace.cli import main

    sys.argv = ["headrace", *arguments]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        if end.code:
            raise HeadraceError(said.getvalue()) from None


ACTIONS = {f.__name__: f for f in (stream, verify, prepare_again, split, pack, command)}
