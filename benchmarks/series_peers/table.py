"""The table of loaders as they are installed: every one in a process of its own, in turns.

Peers are found as `DIR/<name>/bin/python`, or as packages that the running Python has; one that is neither is told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from figures import Cell, Table, figure, ratio

PEERS = {
    "neuralhydrology": "neuralhydrology",
    "neuralforecast": "neuralforecast, a series a step",
    "neuralforecast_batches": "neuralforecast, 32 series a step",
    "darts": "darts",
    "gluonts": "gluonts",
    "pytorch_forecasting": "pytorch-forecasting",
}
OURS = {"reference": "reference gather", "headrace": "headrace, mapped, views"}
PACKAGES = {"neuralforecast_batches": "neuralforecast"}


def python_of(peer: str, environments: Path | None) -> str | None:
    """The Python that has this peer; None if there is none."""
    package = PACKAGES.get(peer, peer)
    python = (
        sys.executable if environments is None else str(environments / package / "bin" / "python")
    )
    looks = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    found = (
        Path(python).exists() and subprocess.run([python, "-c", looks], check=False).returncode == 0
    )
    return python if found else None


class Served:
    """A loader in a process of its own."""

    def __init__(self, name: str, python: str, folder: Path) -> None:
        command = [python, str(Path(__file__).with_name("serve.py")), name, str(folder)]
        self._log = (folder / f"{name}.log").open("w+")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        self.metadata: dict[str, Any] = self._answer()

    def pace(self, seconds: float) -> float:
        """Windows a second of its CPU time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._answer()["pace"])

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise SystemExit(f"{' '.join(self._process.args)} ended: {self._log.read()[-2000:]}")
        return dict(json.loads(line))


def table(folder: Path, environments: Path | None, rounds: int, seconds: float) -> Table:
    """Measure in turns. folder: what `given.save` wrote."""
    pythons = {name: python_of(name, environments) for name in PEERS}
    there = {
        **dict.fromkeys(OURS, sys.executable),
        **{name: each for name, each in pythons.items() if each},
    }
    served: dict[str, Served] = {}
    try:
        for name, python in there.items():
            served[name] = Served(name, python, folder)
        paces: dict[str, list[float]] = {name: [] for name in served}
        for _ in range(rounds):
            for name, each in served.items():
                paces[name].append(each.pace(seconds))
    finally:
        for each in served.values():
            each.close()
    words = {**OURS, **PEERS}
    heads = (
        "loader",
        "version",
        "windows a CPU second",
        "headrace makes times as many",
        "windows",
        "are ours",
        "numbers",
    )
    lines = [
        _line(words[name], each.metadata, paces[name], paces["headrace"])
        for name, each in served.items()
    ]
    missing = {words[name]: "not installed" for name in PEERS if name not in served}
    return Table(
        "peers", "The packages themselves, each in a process", heads, lines, missing=missing
    )


def _line(
    words: str, metadata: dict[str, Any], paces: list[float], ours: list[float]
) -> tuple[Cell, ...]:
    windows = (
        "drawn" if metadata["windows"] is None else f"{metadata['windows']:,} of {metadata['of']:,}"
    )
    recognised = f"{metadata['recognised']}/{metadata['looked_at']}"
    version = metadata["version"].split("+")[0]
    return (
        words,
        version,
        figure(paces, 0),
        ratio(ours, paces, 1),
        windows,
        recognised,
        f"{metadata['numbers']:,.0f}",
    )
