"""Folds, side by side in one run: headrace, one split of headrace, and a copy of train and test for each fold.

    python benchmarks/folds.py [--rows 2000000] [--shards 8] [--folds 10] [--kinds group,rolling] [--data DIR]
    python benchmarks/folds.py --rows 100000000 --shards 100 --rounds 1 --data DIR

Every contestant runs in a process of its own, in turn, for several rounds; the tables give medians with their spread.
"copies" is what a careful script does: scikit-learn's GroupKFold deals the entities, of which only their column is in
memory (for cuts that roll, times are compared), and polars reads each shard once for each fold, filters and writes it,
with the compression that headrace writes. "one split" is a plain split by time of the same rows, which all stay; its
disk space is the measure. "another fold" is the time from nothing to the exact rows of both splits of the next fold, in
a process that has its libraries: headrace reads the index of the run, the copies their Parquet footers.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from figures import Table, figure, ratio
from reporting import parser, publish

START, DAYS = datetime(2024, 1, 1), 540
CONTESTANTS = {"folds": "headrace, all folds", "split": "headrace, one split", "copies": "a copy for each fold"}


def generate(out: Path, shards: int, rows: int, entities: int) -> None:
    """Event shards: customer, time, eight numbers, a category and a label; a few customers have many rows."""
    import numpy as np
    import polars as pl

    out.mkdir(parents=True)
    words = np.array(["alpha", "beta", "gamma", "delta", "name, inc", "o'hara", "Zoë"])
    for shard in range(shards):
        rng = np.random.default_rng([7, shard])
        own = rows // shards + (shard < rows % shards)
        seconds = rng.integers(0, DAYS * 86_400, own).astype("timedelta64[s]")
        frame = {
            "customer_id": (entities * rng.random(own) ** 1.5).astype(np.int64),
            "time": (np.datetime64(START) + seconds).astype("datetime64[us]"),
            **{f"f{place}": rng.normal(size=own).round(4).astype(np.float32) for place in range(8)},
            "category": words[rng.integers(0, len(words), own)],
            "label": rng.integers(0, 2, own),
        }
        pl.DataFrame(frame).write_parquet(out / f"part-{shard:05d}.parquet")


def cuts(folds: int) -> list[datetime]:
    """Cuts of rolling folds: the second half of the time, in equal steps of whole hours."""
    step = timedelta(hours=DAYS * 12 // folds)
    return [START + timedelta(days=DAYS) - (folds - number) * step for number in range(folds)]


def run_folds(source: Path, out: Path, workers: int, kind: str, folds: int) -> Callable[[], int]:
    """headrace, all folds of one preparation."""
    import headrace

    if kind == "group":
        recipe = headrace.TemporalSplit(
            source=source, time="time", entity="customer_id", folds=headrace.GroupKFold(folds)
        )
    else:
        first, second = cuts(max(folds, 2))[:2]
        step = f"{(second - first) // timedelta(hours=1)}h"
        rolling = headrace.Rolling(n=folds, step=step)
        recipe = headrace.TemporalSplit(
            source=source, time="time", split_date=cuts(folds)[0].isoformat(), folds=rolling
        )
    headrace.prepare(recipe, out, workers=workers)

    def another() -> int:
        return sum(headrace.open(out).fold(folds - 1).split_index(split).total_rows for split in ("train", "test"))

    return another


def run_split(source: Path, out: Path, workers: int, _kind: str, _folds: int) -> Callable[[], int]:
    """headrace, one split by time that keeps all rows; nobody looks for duplicates, as with folds."""
    import headrace

    date = START + timedelta(days=DAYS // 2)
    recipe = headrace.TemporalSplit(source=source, time="time", split_date=date.isoformat(), duplicates="allow")
    headrace.prepare(recipe, out, workers=workers)
    return lambda: sum(headrace.open(out).split_rows.values())


def run_copies(source: Path, out: Path, workers: int, kind: str, folds: int) -> Callable[[], int]:
    """A directory of train and one of test for each fold."""
    import numpy as np
    import polars as pl
    from sklearn.model_selection import GroupKFold

    shards = sorted(source.iterdir())
    test_of: dict[int, Any] = {}
    if kind == "group":
        groups = np.concatenate(
            [pl.read_parquet(path, columns=["customer_id"])["customer_id"].to_numpy() for path in shards]
        )
        for number, (_, test) in enumerate(GroupKFold(folds).split(groups, groups=groups)):
            test_of[number] = np.unique(groups[test])
        del groups
    at = cuts(folds)

    def write(fold: int, path: Path) -> None:
        frame = pl.read_parquet(path)
        if kind == "group":
            tests = np.isin(frame["customer_id"].to_numpy(), test_of[fold])
            parts = {"train": frame.filter(~tests), "test": frame.filter(tests)}
        else:
            end = at[fold + 1] if fold + 1 < folds else START + timedelta(days=DAYS)
            times = frame["time"]
            parts = {"train": frame.filter(times < at[fold]), "test": frame.filter((times >= at[fold]) & (times < end))}
        for split, part in parts.items():
            part.write_parquet(out / f"fold-{fold}" / split / path.name, compression="lz4", mkdir=True)

    with ThreadPoolExecutor(workers) as pool:
        for fold in range(folds):
            list(pool.map(lambda path, fold=fold: write(fold, path), shards))

    def another() -> int:
        splits = (pl.scan_parquet(out / f"fold-{folds - 1}" / split) for split in ("train", "test"))
        return sum(each.select(pl.len()).collect().item() for each in splits)

    return another


RUN = {"folds": run_folds, "split": run_split, "copies": run_copies}


def contestant(name: str, source: Path, out: Path, workers: int, kind: str, folds: int) -> None:
    """The child process: run one contestant once, print its figures as JSON."""
    for module in {"copies": ("polars", "sklearn.model_selection")}.get(name, ("headrace.run.prepare", "polars")):
        __import__(module)
    began, cpu = time.perf_counter(), time.process_time()
    another = RUN[name](source, out, workers, kind, folds)
    figures = {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    another()  # what is imported on first use is not what another fold costs
    began = time.perf_counter()
    rows = another()
    figures |= {"another_ms": 1e3 * (time.perf_counter() - began), "peak_mb": peak, "rows": rows}
    disk = {(each.stat().st_dev, each.stat().st_ino): each.stat().st_size for each in out.rglob("*") if each.is_file()}
    print(json.dumps(figures | {"disk_mb": sum(disk.values()) / 1e6}))


def measure(name: str, source: Path, options: argparse.Namespace, kind: str) -> dict[str, float]:
    """Run a contestant in a fresh process with a fresh output directory."""
    with tempfile.TemporaryDirectory(dir=source.parent) as work:
        words = [name, source, Path(work) / "out", options.workers, kind, options.folds]
        command = [sys.executable, __file__, "--contestant", *map(str, words)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def tables(options: argparse.Namespace) -> Iterator[Table]:
    """Generate, run the rounds; one table a kind of folds."""
    data = options.data or Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        source = data / f"rows-{options.rows}-{options.shards}"
        if not source.exists():
            generate(source, options.shards, options.rows, max(100, options.rows // 20))
        for kind in options.kinds.split(","):
            yield compared(source, kind, options)
    finally:
        if options.data is None:
            shutil.rmtree(data)


def compared(source: Path, kind: str, options: argparse.Namespace) -> Table:
    """All rounds of one kind of folds."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(options.rounds):
        for name in CONTESTANTS:
            found[name].append(measure(name, source, options, kind))
    for ours, theirs in zip(found["folds"], found["copies"], strict=True):
        if ours["rows"] != theirs["rows"]:
            raise ValueError(f"{kind}: headrace's last fold has {ours['rows']:,} rows, the copy {theirs['rows']:,}")
    of = {each: {name: [run[each] for run in runs] for name, runs in found.items()} for each in found["folds"][0]}
    rows = [
        (
            words,
            figure(of["seconds"][name], 1),
            figure(of["cpu_s"][name], 1),
            figure(of["disk_mb"][name], 0),
            ratio(of["disk_mb"][name], of["disk_mb"]["split"], 3),
            figure(of["peak_mb"][name], 0),
            figure(of["another_ms"][name], 0) if name != "split" else "–",
        )
        for name, words in CONTESTANTS.items()
    ]
    told = {"group": "entities that take turns", "rolling": "cuts that roll"}[kind]
    return Table(
        kind,
        f"{options.folds} folds, {told}: {options.rows:,} rows in {options.shards} shards, {options.workers} workers",
        ("what", "seconds", "CPU s", "disk MB", "disk, of one split's", "peak MB", "another fold, ms"),
        rows,
    )


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=2_000_000)
    made.add_argument("--shards", type=int, default=8)
    made.add_argument("--folds", type=int, default=10)
    made.add_argument("--kinds", default="group,rolling", help="group, rolling or both, by a comma")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--data", type=Path, help="keep the generated shards here and use them again")
    made.add_argument("--contestant", nargs=6, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.contestant:
        name, source, out, workers, kind, folds = options.contestant
        contestant(name, Path(source), Path(out), int(workers), kind, int(folds))
        return
    publish(tables(options), options.json, ["polars", "scikit-learn"])


if __name__ == "__main__":
    main()
