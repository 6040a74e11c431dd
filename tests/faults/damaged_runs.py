"""Damage to the files of a finished run, many trials in one child, so that a crash of the process is seen.

A flip changes one bit of one file, a cut ends it earlier. What must hold: training is given what it would have been
given, or an error; `verify` always finds it. Anything else is silent, and is told.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Literal

from fault_recipes import RECIPES

import headrace
from headrace.errors import HeadraceError

Harm = Literal["flip", "cut"]


def files_of(run: Path) -> list[Path]:
    """Every file of a run that has bytes."""
    found = sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in found if path.stat().st_size]


def harmed(data: bytes, harm: Harm, random_: random.Random) -> bytes:
    at = random_.randrange(len(data))
    if harm == "cut":
        return data[:at]
    return data[:at] + bytes([data[at] ^ (1 << random_.randrange(8))]) + data[at + 1 :]


def child(
    name: str, whole: str, copy: str, expected: dict[str, str], harm: Harm, first: int, trials: int
) -> None:
    """Trials first, first + 1, … on a copy of a whole dataset directory. Prints one line of JSON for each."""
    out = Path(copy)
    shutil.copytree(whole, out, symlinks=True)
    (run,) = (out / "runs").iterdir()
    files = files_of(run)
    for trial in range(first, first + trials):
        random_ = random.Random(f"{name} {harm} {trial}")
        path = files[trial % len(files)]
        before = path.read_bytes()
        after = harmed(before, harm, random_)
        path.write_bytes(after)
        record = {"file": path.relative_to(run).as_posix(), "trial": trial}
        record["streamed"] = streamed(name, out, expected)
        record["verified"] = verified(out)
        print(json.dumps(record), flush=True)
        path.write_bytes(before)
    assert streamed(name, out, expected) == "as it was"
    assert verified(out) == "SILENT"
    sys.stdout.flush()


def streamed(name: str, out: Path, expected: dict[str, str]) -> str:
    """What training was given."""
    try:
        return "as it was" if RECIPES[name].read(out) == expected else "SILENT"
    except HeadraceError as error:
        return type(error).__name__


def verified(out: Path) -> str:
    """What `verify` found."""
    try:
        return "found" if headrace.verify(out, workers=1).problems else "SILENT"
    except HeadraceError as error:
        return type(error).__name__
