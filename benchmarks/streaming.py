"""How fast rows reach a training loop: headrace beside other readers of the same files, in one run.

    python benchmarks/streaming.py [--root DIR] [--rounds 3] [--workloads numbers,tokens] [--only NAME,…]
    python benchmarks/streaming.py --rounds 5 --workloads loops   # beside the loop that anyone writes, in five minutes

Makes the data once (about 1 GB), converts it for readers with a format of their own, and then runs every contestant in
a fresh process, round after round. Printed are medians with their range, and the median of the ratios to the first
contestant of each table *in the same round*, as a machine's speed drifts by more than many differences. Imports are
before the clock; opening, starting threads or workers and the whole epoch are inside it. Rows are shuffled, unless the
name says otherwise: each by its reader's own rule, which differ in strength (see `readers.py`). Ratios are to both
loops, over pyarrow and over Polars. Peak memory is that of the process above its imports, where the system can tell.

Some virtual machines give memory that nobody uses back to their host, and pay two seconds for each GB that is used again.
So all memory that a contestant needs is touched before it starts, by another process.
"""

from __future__ import annotations

import argparse
import json
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

TOUCHED_BYTES = 2 << 30


def measure_one(name: str, root: Path) -> dict[str, float | None]:
    """One epoch of one contestant, in this process."""
    contestant = readers.CONTESTANTS[name]
    contestant.warm()
    before = held_mb()
    began, cpu = time.perf_counter(), cpu_seconds()
    rows = 0
    first = longest = 0.0
    received = began
    for batch in contestant.batches(root):
        waited = time.perf_counter() - received
        if rows:
            longest = max(longest, waited)
        else:
            first = waited
        rows += len(batch)
        received = time.perf_counter()
    seconds = time.perf_counter() - began
    cpu = cpu_seconds() - cpu
    peak = peak_mb()
    return {
        "rows": rows,
        "seconds": seconds,
        "first": first,
        "longest": longest,
        "cpu": cpu,
        "mb": None if before is None or peak is None else peak - before,
    }


def held_mb() -> float | None:
    """The memory that this process holds, from where its peak is counted anew; None: Linux alone tells."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    except OSError:
        return None
    return _status_mb("VmRSS")


def peak_mb() -> float | None:
    """The most memory that this process has held since `held_mb`, without its children."""
    return _status_mb("VmHWM")


def _status_mb(name: str) -> float | None:
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), None)


def cpu_seconds() -> float:
    """Of this process and of its children that live or were waited for."""
    import os

    import psutil

    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system
    return total


def touch_memory() -> None:
    """Let the machine have memory for a contestant."""
    code = f"import numpy; numpy.empty({TOUCHED_BYTES}, numpy.uint8)[::4096] = 1"
    subprocess.run([sys.executable, "-c", code], check=True)


def run(name: str, root: Path) -> dict[str, Any] | str:
    """One epoch in a fresh process, or why it did not run."""
    touch_memory()
    command = [sys.executable, __file__, "--root", str(root), "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line[7:])
            return result
    return (done.stderr.strip().splitlines() or ["no output"])[-1][:160]


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """All rounds of all workloads, then their tables."""
    only = set(asked.only.split(",")) - {""}
    plan = {
        workload: [name for name in readers.WORKLOADS[workload][1] if not only or name in only]
        for workload in asked.workloads.replace("loops", ",".join(readers.LOOPS)).split(",")
    }
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
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
    found: dict[str, list[dict[str, Any]]],
    failed: dict[str, str],
) -> Table:
    """One workload; ratios are to its first contestant that was measured, and to the loop over the other library."""
    measured = [name for name in names if name not in failed]
    rates = {
        name: [each["rows"] / each["seconds"] / 1e6 for each in found[name]] for name in measured
    }
    peers = [name for name in measured[1:2] if name.startswith(("polars", "pyarrow"))]
    bases = [*measured[:1], *peers]
    rows: list[tuple[Cell, ...]] = []
    for name in measured:
        runs = found[name]
        digits = 2 if max(rates[name]) > 0.5 else 3
        memory = [each["mb"] for each in runs if each["mb"] is not None]
        rows.append(
            (
                readers.words(name),
                figure(rates[name], digits),
                *(ratio(rates[name], rates[base]) for base in bases),
                figure([each["cpu"] / each["rows"] * 1e6 for each in runs]),
                figure([each["first"] for each in runs]),
                figure([each["longest"] for each in runs]),
                figure(memory, 0) if memory else "",
            )
        )
    heads = (
        "reader",
        "M rows/s",
        "speed, of the first's",
        *("speed, of the second's" for _ in peers),
        "CPU s per M rows",
        "first batch, s",
        "longest wait, s",
        "peak MB",
    )
    missing = {readers.words(name): without_paths(failed[name]) for name in names if name in failed}
    return Table(workload, readers.WORKLOADS[workload][0], heads, rows, missing=missing)


def main() -> None:
    """Parse, make data, run, print."""
    made = parser(__doc__)
    made.add_argument("--root", type=Path, default=Path("/tmp/headrace-bench/streaming"))
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--workloads", default=",".join(readers.WORKLOADS), help="names, or loops")
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
