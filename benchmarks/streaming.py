"""How fast rows reach a training loop: headrace beside other readers of the same files, in one run.

    python benchmarks/streaming.py [--root DIR] [--rounds 3] [--workloads numbers,tokens] [--only NAME,…]

Makes the data once (about 1 GB), converts it for readers with a format of their own, and then runs every contestant in
a fresh process, round after round. Printed are medians with their range, and the median of the ratios to the first
contestant of each table *in the same round*, as a machine's speed drifts by more than many differences. Imports are
before the clock; opening, starting threads or workers and the whole epoch are inside it. Rows are shuffled, unless the
name says otherwise: each by its reader's own rule, which differ in strength (see `readers.py`).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import readers
from figures import Cell, Table, figure, ratio
from reporting import parser, publish, without_paths
from streaming_data import make_data


def measure_one(name: str, root: Path) -> dict[str, float]:
    """One epoch of one contestant, in this process."""
    contestant = readers.CONTESTANTS[name]
    contestant.warm()
    before = peak_mb()
    began, cpu = time.perf_counter(), cpu_seconds()
    rows = 0
    first = 0.0
    for batch in contestant.batches(root):
        rows += len(batch)
        first = first or time.perf_counter() - began
    seconds = time.perf_counter() - began
    cpu = cpu_seconds() - cpu
    return {"rows": rows, "seconds": seconds, "first": first, "cpu": cpu, "mb": peak_mb() - before}


def peak_mb() -> float:
    """The most memory this process has held, without its children."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def cpu_seconds() -> float:
    """Of this process and of its children that live or were waited for."""
    import os

    import psutil

    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system
    return total


def run(name: str, root: Path) -> dict[str, float] | str:
    """One epoch in a fresh process, or why it did not run."""
    command = [sys.executable, __file__, "--root", str(root), "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, float] = json.loads(line[7:])
            return result
    return (done.stderr.strip().splitlines() or ["no output"])[-1][:160]


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """All rounds of all workloads, then their tables."""
    only = set(asked.only.split(",")) - {""}
    plan = {
        workload: [name for name in readers.WORKLOADS[workload][1] if not only or name in only]
        for workload in asked.workloads.split(",")
    }
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    failed: dict[str, str] = {}
    for names in plan.values():
        for name in names:
            try:
                readers.CONTESTANTS[name].prepare(asked.root)
            except ImportError as error:
                failed[name] = f"{error}"
    for number in range(asked.rounds):
        for name in (name for names in plan.values() for name in names if name not in failed):
            result: Any = run(name, asked.root)
            if isinstance(result, str):
                failed[name] = result
            else:
                found[name].append(result)
            print(f"round {number + 1}: {name}", file=sys.stderr)
    ours = [f"{name}: {why}" for name, why in failed.items() if name.startswith("headrace")]
    if ours:
        raise SystemExit("\n".join(ours))
    for workload, names in plan.items():
        if names:
            yield of_workload(workload, names, found, failed)


def of_workload(
    workload: str,
    names: list[str],
    found: dict[str, list[dict[str, float]]],
    failed: dict[str, str],
) -> Table:
    """One workload; ratios are to its first contestant that was measured."""
    measured = [name for name in names if name not in failed]
    base = [each["rows"] / each["seconds"] / 1e6 for each in found[measured[0]]] if measured else []
    rows: list[tuple[Cell, ...]] = []
    for name in measured:
        runs = found[name]
        rates = [each["rows"] / each["seconds"] / 1e6 for each in runs]
        digits = 2 if max(rates) > 0.5 else 3
        cpu = figure([each["cpu"] / each["rows"] * 1e6 for each in runs])
        first = figure([each["first"] for each in runs])
        memory = figure([each["mb"] for each in runs], 0)
        rows.append(
            (readers.words(name), figure(rates, digits), ratio(rates, base), cpu, first, memory)
        )
    heads = (
        "reader",
        "M rows/s",
        "speed, of the first's",
        "CPU s per M rows",
        "first batch, s",
        "peak MB",
    )
    missing = {readers.words(name): without_paths(failed[name]) for name in names if name in failed}
    return Table(workload, readers.WORKLOADS[workload][0], heads, rows, missing=missing)


def main() -> None:
    """Parse, make data, run, print."""
    made = parser(__doc__)
    made.add_argument("--root", type=Path, default=Path("/tmp/headrace-bench/streaming"))
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--workloads", default=",".join(readers.WORKLOADS))
    made.add_argument("--only", default="")
    made.add_argument("--one", help="measure one contestant in this process")
    asked = made.parse_args()
    if asked.one:
        print("RESULT " + json.dumps(measure_one(asked.one, asked.root)), flush=True)
        return
    make_data(asked.root)
    publish(tables(asked), asked.json, ["torch", "torchdata", "polars", "pylance", "datasets"])


if __name__ == "__main__":
    main()
