"""A dataset directory whose pointer moves between runs: who moves it dies at a call, who reads paths looks on.

The call that kills is one that changes a name, counted from the moment at which nothing is left to compute.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_recipes import Settings, make

CALLS = ("symlink", "replace", "rename", "unlink", "rmdir", "mkdir", "link")
BESIDE = ("blend.json", "packing_metadata.json", "rejected.jsonl")


def move(name: str, settings: Settings, out: str, call: int) -> None:
    """Point the directory at this finished run; die by SIGKILL before the call-th change of a name (0: never)."""
    seen = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **options)

        return changing

    for each in CALLS:
        setattr(os, each, counted(getattr(os, each)))
    make(name, settings, Path(out), workers=1)
    print(json.dumps(seen))


def move_on(runs: list[tuple[str, Settings]], out: str, seed: int) -> None:
    """Point the directory at one run after the other until somebody kills this process."""
    random_ = random.Random(seed)
    while True:
        make(*random_.choice(runs), Path(out), workers=1)


def watch(out: str, stop: str, begun: str) -> None:
    """Read paths until the file `stop` is there; print how often, and every look that showed two runs.

    The file `begun` is there once a look has shown anything: from then on the pointer may move.
    """
    looks, missing, mixes = 0, 0, []
    while not Path(stop).exists():
        for shown in (look(Path(out)), look_once(Path(out))):
            looks += 1
            missing += shown is None
            if shown is not None and len(set(shown.values())) != 1:
                mixes.append(shown)
        if looks > missing:
            Path(begun).touch()
    print(json.dumps({"looks": looks, "missing": missing, "mixes": mixes[:3]}))


def look(out: Path) -> dict[str, str] | None:
    """Name → run of everything that a trainer finds by path; None where the pointer moved meanwhile or is missing."""
    try:
        before = _pointer(out)
        names = [f"splits/{each}" for each in sorted(os.listdir(out / "splits"))]
        shown = {
            each: _run_of(out / each) for each in (*names, *BESIDE) if os.path.lexists(out / each)
        }
        return shown if before == _pointer(out) else None
    except (
        FileNotFoundError
    ):  # links beside splits/ lead nowhere until it does, and not any more when it has moved on
        return None


def look_once(out: Path) -> dict[str, str] | None:
    """The same of a trainer that follows the pointer once, as the format asks for: no look is left out, whatever moves."""
    try:
        splits = Path(os.path.realpath(out / "splits", strict=True))
        beside = [splits.parent / each for each in BESIDE if (splits.parent / each).exists()]
        return {str(each): _run_of(each) for each in [*sorted(splits.iterdir()), *beside]}
    except FileNotFoundError:
        return None


def _pointer(out: Path) -> tuple[str, int, int]:
    """Which link it is: it may move to another run and back during a look. A directory of links never moves."""
    link = out / "splits"
    if not link.is_symlink():
        return "", 0, 0
    stat = link.lstat()
    return os.readlink(link), stat.st_ino, stat.st_ctime_ns


def _run_of(path: Path) -> str:
    real = Path(os.path.realpath(path, strict=True))
    return next(each.name for each in (real, *real.parents) if each.parent.name == "runs")


def settle(seconds: float) -> None:
    """Let other processes run: how far they come decides nothing but which instants are tried."""
    time.sleep(seconds)
