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
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import readers
from streaming_data import make_data


def measure_one(name: str, root: Path) -> dict[str, float]:
    """One epoch of one contestant, in this process."""
    contestant = readers.CONTESTANTS[name]
    contestant.warm()
    began, cpu = time.perf_counter(), cpu_seconds()
    rows = 0
    first = 0.0
    for batch in contestant.batches(root):
        rows += len(batch)
        first = first or time.perf_counter() - began
    seconds = time.perf_counter() - began
    return {"rows": rows, "seconds": seconds, "first": first, "cpu": cpu_seconds() - cpu}


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


def spread(values: list[float], digits: int = 2) -> str:
    """Median and range."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}–{max(values):.{digits}f}]"


def table(title: str, names: list[str], found: dict[str, list[dict[str, float]]], failed: dict[str, str]) -> None:
    """Print one workload."""
    print(f"\n### {title}\n")
    print("| reader | M rows/s | ratio to the first | CPU s per M rows | first batch, s |")
    print("|---|--:|--:|--:|--:|")
    base = found.get(names[0], [])
    for name in names:
        if name in failed:
            print(f"| {name} | not run: {failed[name]} | | | |")
            continue
        runs = found[name]
        rates = [each["rows"] / each["seconds"] / 1e6 for each in runs]
        ratios = [rate / (one["rows"] / one["seconds"] / 1e6) for rate, one in zip(rates, base, strict=False)]
        cpu = [each["cpu"] / each["rows"] * 1e6 for each in runs]
        digits = 2 if statistics.median(rates) > 0.5 else 4
        print(
            f"| {name} | {spread(rates, digits)} | {spread(ratios) if ratios else '–'} | {spread(cpu)} |"
            f" {spread([each['first'] for each in runs])} |"
        )


def main() -> None:
    """Parse, make data, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("/tmp/headrace-bench/streaming"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", default=",".join(readers.WORKLOADS))
    parser.add_argument("--only", default="")
    parser.add_argument("--one", help="measure one contestant in this process")
    asked = parser.parse_args()
    if asked.one:
        print("RESULT " + json.dumps(measure_one(asked.one, asked.root)), flush=True)
        return
    make_data(asked.root)
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
    for workload, names in plan.items():
        table(readers.WORKLOADS[workload][0], names, found, failed)


if __name__ == "__main__":
    main()
