"""Temporal split, side by side in one run: headrace, the parallel pandas design it replaces, a bare rewrite.

    python benchmarks/split.py [--shards 20] [--rows 250000] [--rounds 3] [--formats csv,parquet] [--data DIR]
    python benchmarks/split.py --duplicates allow,count,group,drop --shards 8 --rows 150000 --numbers 28 --rounds 5
    python benchmarks/split.py --processes --shards 8 --rows 150000 --rounds 5

Every contestant runs in a process of its own, in turn, for several rounds; the tables give medians with their spread,
the ratios are taken within a round. "rewrite" reads every shard and writes it again with the library that headrace
uses for that format (polars for CSV, pyarrow for Parquet, the latter with the same write options) and the same number
of workers: what any tool must at least do that parses and writes. Time is counted from after the imports. With
--duplicates headrace alone is compared, with each of these words for its setting, the first of them as the measure.

With --processes the clock runs from the start of each process to its end, as for someone who waits for a small job: the
command line with its report, twenty lines over Polars and the others, in turn after one round that compiles bytecode.
Processor seconds are those of all its processes, peaks those of the largest; ratios are of processor seconds, which a
busy machine changes little.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from figures import Table, figure, ratio
from reporting import parser, publish
from split_peers import SPLIT_DATE, run_pandas, run_rewrite

CONTESTANTS = {
    "headrace": "headrace",
    "pandas": "the pandas design it replaces",
    "rewrite": "a bare rewrite, which splits nothing",
}
PROCESSES = {
    "headrace": "headrace",
    "no report": "headrace, `--report never`",
    "polars": "twenty lines over Polars",
    "pandas": "the pandas design it replaces",
    "rewrite": "a bare rewrite, which splits nothing",
    "imports": "`import numpy, pyarrow, polars`",
    "reused": "the same command again",
    "version": "`headrace --version`",
}
COMMAND = "from headrace.cli import command; command()"

WORDS: tuple[Literal["allow", "count", "group", "drop"], ...] = ("allow", "count", "group", "drop")


def generate(out: Path, format_: str, shards: int, rows: int, customers: int, numbers: int) -> None:
    """Event shards: customer, time, numbers, a category with commas and quotes, two labels."""
    import numpy as np
    import polars as pl

    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    words = np.array(["alpha", "beta", "gamma", "delta", "name, inc", "o'hara", "Zoë"])
    start = np.datetime64("2024-01-01")
    for shard in range(shards):
        seconds = rng.integers(0, 540 * 86_400, rows).astype("timedelta64[s]")
        frame = pl.DataFrame(
            {
                "customer_id": [f"C{each:09d}" for each in rng.zipf(1.2, rows) % customers],
                "transaction_date": (start + seconds).astype("datetime64[us]"),
                **{f"f{place}": rng.normal(size=rows).round(4) for place in range(numbers)},
                "category": words[rng.integers(0, len(words), rows)],
                "is_abuse": rng.integers(0, 2, rows),
                "is_dnr": rng.integers(0, 2, rows),
            }
        )
        path = out / f"part-{shard:05d}.{format_}"
        if format_ == "csv":
            frame.write_csv(path)
        else:
            frame.write_parquet(path)


def run_headrace(
    source: Path,
    out: Path,
    workers: int,
    _format: str,
    duplicates: Literal["allow", "count", "group", "drop"] = "count",
) -> dict[str, object]:
    """The split as a user runs it."""
    import headrace

    recipe = headrace.TemporalSplit(
        source=source,
        time="transaction_date",
        entity="customer_id",
        split_date=SPLIT_DATE,
        duplicates=duplicates,
    )
    started = time.perf_counter()
    prepared = headrace.prepare(recipe, out, workers=workers)
    seconds = time.perf_counter() - started
    rows = {split: totals.rows for split, totals in prepared.manifest.splits.items()}
    return {"seconds": seconds, "rows": [rows[split] for split in ("train", "val", "test")]}


RUN: dict[str, Callable[[Path, Path, int, str], dict[str, object]]] = {
    "headrace": run_headrace,
    "pandas": run_pandas,
    "rewrite": run_rewrite,
    **{word: partial(run_headrace, duplicates=word) for word in WORDS},
}


def contestant(name: str, source: Path, out: Path, workers: int, format_: str) -> None:
    """The child process: run one contestant once, print its figures as JSON."""
    # pyarrow imports pandas at its first conversion from numpy, where it is installed.
    libraries = {"pandas": ("pandas",), "rewrite": ("polars", "pyarrow.parquet")}
    for module in libraries.get(
        name, ("headrace.run.execute", "headrace.split.recipe", "polars", "pandas")
    ):
        __import__(module)
    figures = RUN[name](source, out, workers, format_)
    own, children = (
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    figures["peak_mb"] = own + (workers * children if name == "pandas" else 0)
    if name not in ("pandas", "rewrite"):
        started = time.perf_counter()
        RUN[name](source, out, workers, format_)
        figures["reuse_seconds"] = time.perf_counter() - started
    print(json.dumps(figures))


def measure(name: str, source: Path, workers: int, format_: str) -> dict[str, float]:
    """Run a contestant in a fresh process with a fresh output directory."""
    with tempfile.TemporaryDirectory(dir=source.parent) as work:
        command = [
            sys.executable,
            __file__,
            "--contestant",
            name,
            str(source),
            str(Path(work) / "out"),
            str(workers),
            format_,
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])


def command_of(name: str, source: Path, out: Path, workers: int, format_: str) -> list[str]:
    """The command line of a whole process."""
    if name == "imports":
        return [sys.executable, "-c", "import numpy, pyarrow, polars"]
    if name == "version":
        return [sys.executable, "-c", COMMAND, "--version"]
    if name not in ("headrace", "no report", "reused"):
        peers = Path(__file__).with_name("split_peers.py")
        return [sys.executable, str(peers), name, str(source), str(out), str(workers), format_]
    command = [sys.executable, "-c", COMMAND, "split", str(source), "--workers", str(workers)]
    command += ["--time", "transaction_date", "--entity", "customer_id"]
    command += ["--split-date", SPLIT_DATE, "--out", str(out)]
    return [*command, "--report", "never"] if name == "no report" else command


def measure_process(command: list[str]) -> dict[str, float]:
    """Wall and processor seconds of a process with its children, and the peak of the largest."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return {
        "seconds": time.perf_counter() - started,
        "cpu": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
    }


def whole_processes(source: Path, format_: str, options: argparse.Namespace) -> Table:
    """All contestants from start to end, in turn."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in PROCESSES}
    for number in range(options.rounds + 1):
        with tempfile.TemporaryDirectory(dir=source.parent) as work:
            for name in PROCESSES:
                out = Path(work) / ("headrace" if name == "reused" else name)
                measured = measure_process(command_of(name, source, out, options.workers, format_))
                if number:  # the first round compiles
                    found[name].append(measured)
    cpu = {name: [each["cpu"] for each in runs] for name, runs in found.items()}
    rows = [
        (
            words,
            figure(cpu[name]),
            ratio(cpu[name], cpu["headrace"]),
            figure([each["seconds"] for each in found[name]]),
            figure([each["peak_mb"] for each in found[name]], 0),
        )
        for name, words in PROCESSES.items()
    ]
    return Table(
        f"{format_}-process",
        f"{format_}: {options.shards} shards of {options.rows:,} rows, whole processes",
        ("what", "processor s", "times headrace's", "seconds", "peak MB"),
        rows,
    )


def tables(options: argparse.Namespace) -> Iterator[Table]:
    """Generate, run the rounds; one table a format."""
    data = options.data or Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        for format_ in options.formats.split(","):
            source = data / format_
            if not source.exists():
                of_shards = (options.shards, options.rows, options.customers, options.numbers)
                # a child begins with the peak of its parent, so the parent loads no library
                maker = get_context("spawn").Process(
                    target=generate, args=(source, format_, *of_shards)
                )
                maker.start()
                maker.join()
            table_of = whole_processes if options.processes else compared
            yield table_of(source, format_, options)
    finally:
        if options.data is None:
            shutil.rmtree(data)


def compared(source: Path, format_: str, options: argparse.Namespace) -> Table:
    """All rounds of one format."""
    words = options.duplicates.split(",") if options.duplicates else []
    contestants = {word: f'duplicates="{word}"' for word in words} or CONTESTANTS
    first = next(iter(contestants))
    size = sum(path.stat().st_size for path in source.iterdir())
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for _ in range(options.rounds):
        for name in contestants:
            found[name].append(measure(name, source, options.workers, format_))
    seconds = {name: [each["seconds"] for each in runs] for name, runs in found.items()}
    rows = [
        (
            words,
            figure(seconds[name], 1),
            ratio(seconds[name], seconds[first]),
            figure([each["peak_mb"] for each in found[name]], 0),
        )
        for name, words in contestants.items()
    ]
    again = figure([1e3 * each["reuse_seconds"] for each in found[first]], 0)
    rows.append(("the same command again", f"{again} ms", "–", "–"))
    return Table(
        format_,
        f"{format_}: {options.shards} shards of {options.rows:,} rows, {size / 1e6:,.0f} MB, {options.workers} workers",
        ("what", "seconds", f"times {first}'s", "peak MB"),
        rows,
    )


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--shards", type=int, default=20)
    made.add_argument("--rows", type=int, default=250_000)
    made.add_argument("--numbers", type=int, default=8)
    made.add_argument(
        "--duplicates", help="compare headrace's own words for duplicates=, by commas"
    )
    made.add_argument(
        "--processes", action="store_true", help="measure whole processes, from start to end"
    )
    made.add_argument("--customers", type=int, default=200_000)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--formats", default="csv,parquet")
    made.add_argument("--data", type=Path, help="keep the generated shards here and use them again")
    made.add_argument("--contestant", nargs=5, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.contestant:
        name, source, out, workers, format_ = options.contestant
        contestant(name, Path(source), Path(out), int(workers), format_)
        return
    publish(tables(options), options.json, ["polars", "pandas"])


if __name__ == "__main__":
    main()
