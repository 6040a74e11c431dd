"""Point-in-time joins: headrace beside DuckDB's ASOF join and Polars' join_asof.

    python benchmarks/joins.py [--sizes 2000000x20000000 20000000x200000000] [--rounds 1] [--memory-gb 8] [--peers DIR]

Rows are (customer, time, two numbers), features (customer, day, arrival, two floats, a count, one of nine words), both
in no order, in Parquet files of a million rows and of two; there is a customer for every twenty rows. A size is rows x
features. Every way reads both from Parquet and writes each row with the latest feature of its customer as Parquet, in a
process of its own, with as many threads as there are cores. headrace also scans and splits the rows, which the others
do not: `split alone` is that without features, and `known_at` is the join with features that arrive later than their
day, which the other two have no word for. `cpu` is user and system time of the work, `peak` the largest resident memory
of the process.

`--memory-gb` is what the others may use: DuckDB's memory_limit, beyond which it spills to disk, and a limit of the
process of Polars, which does not. Two hundred million features take 15 GB of disk, and DuckDB's spilling as much again.

`--peers` is a Python environment with duckdb, polars and pyarrow; without it this one is used. A way whose package is
not there, or that dies of too little memory, is named. `--ways` measures only some.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from figures import Cell, Table, figure, ratio
from reporting import parser, publish

WAYS = {
    "headrace": "headrace, split and join",
    "known": "headrace, split and join by known_at",
    "split": "headrace, split alone",
    "duckdb": "DuckDB, ASOF",
    "polars": "Polars, join_asof",
}
PEERS = ("duckdb", "polars")
SIZES = [(2_000_000, 20_000_000), (20_000_000, 200_000_000)]
COLUMNS = (("cpu_s", 1), ("wall_s", 1), ("peak_mb", 0))
ROW_FILE, FEATURE_FILE = 1_000_000, 2_000_000
DAYS_S = 730 * 86_400
VALUES = ("amount", "balance", "visits", "segment")


def make(folder: Path, rows: int, features: int) -> None:
    """Write both tables."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw, customers = np.random.default_rng(7), max(2, rows // 20)
    begin = int(np.datetime64("2023-01-01", "us").astype(np.int64))
    words = pa.array([f"segment {number}" for number in range(9)])

    def moments(seconds: Any) -> pa.Array:
        return pa.array(begin + seconds * 1_000_000 + draw.integers(0, 1_000_000, len(seconds)), pa.timestamp("us"))

    for name, total, size in (("rows", rows, ROW_FILE), ("features", features, FEATURE_FILE)):
        (folder / name).mkdir()
        for number, first in enumerate(range(0, total, size)):
            count = min(size, total - first)
            seconds = draw.integers(0, DAYS_S, count)
            columns: dict[str, Any] = {"customer": draw.integers(0, customers, count)}
            if name == "rows":
                columns |= {"time": moments(seconds), "row": np.arange(first, first + count), "x": draw.random(count)}
            else:
                columns |= {"day": moments(seconds), "arrival": moments(seconds + draw.integers(0, 9 * 86_400, count))}
                columns |= {"amount": draw.random(count), "balance": draw.random(count)}
                columns |= {"visits": draw.integers(0, 100, count).astype(np.int32)}
                columns |= {
                    "segment": pa.DictionaryArray.from_arrays(draw.integers(0, 9, count).astype(np.int8), words)
                }
                columns["segment"] = columns["segment"].cast(pa.string())
            pq.write_table(pa.table(columns), folder / name / f"part-{number:05d}.parquet")


def run_headrace(folder: Path, out: Path, way: str) -> Callable[[], None]:
    """Prepare the split, of the rows alone or with features."""
    import headrace
    import headrace.split.recipe  # and the libraries that it uses, as the others load theirs before the clock runs

    known = {"known_at": "arrival"} if way == "known" else {}

    def work() -> None:
        names = {"time": "time", "entity": "customer", "split_date": "2024-10-01", "duplicates": "allow"}
        table = headrace.Features(source=folder / "features", event_time="day", columns=VALUES, **known)
        joins = [] if way == "split" else [table]
        headrace.prepare(headrace.TemporalSplit(source=folder / "rows", join=joins, **names), out)

    return work


def run_duckdb(folder: Path, out: Path, memory_gb: int) -> Callable[[], None]:
    """Its ASOF join, from and to Parquet, with room for spilling."""
    import duckdb

    columns = ", ".join(f"f.{name}" for name in VALUES)
    query = (
        f"copy (select r.*, {columns} from '{folder}/rows/*.parquet' r asof left join '{folder}/features/*.parquet' f"
        f" on r.customer = f.customer and r.time >= f.day) to '{out}.parquet' (format parquet)"
    )

    def work() -> None:
        connection = duckdb.connect()
        connection.execute(f"set temp_directory = '{out}.spill'")
        connection.execute(f"set memory_limit = '{memory_gb}GB'")
        connection.execute("set preserve_insertion_order = false")
        connection.execute(query)

    return work


def run_polars(folder: Path, out: Path, memory_gb: int) -> Callable[[], None]:
    """Its join_asof, which needs both tables sorted by time."""
    import polars as pl

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_gb << 30, memory_gb << 30))
        rows = pl.scan_parquet(folder / "rows" / "*.parquet").sort("time")
        features = pl.scan_parquet(folder / "features" / "*.parquet").select("customer", "day", *VALUES).sort("day")
        joined = rows.join_asof(features, left_on="time", right_on="day", by="customer", check_sortedness=False)
        joined.sink_parquet(f"{out}.parquet")

    return work


def one(asked: argparse.Namespace) -> None:
    """Do the work of one way in this process, and print what it took."""
    peers = {"duckdb": run_duckdb, "polars": run_polars}
    run = partial(peers[asked.way], memory_gb=asked.memory_gb) if asked.way in peers else None
    run = run or partial(run_headrace, way=asked.way)
    with tempfile.TemporaryDirectory(dir=asked.folder) as out:
        work = run(asked.folder, Path(out) / "out")
        cpu, wall = sum(os.times()[:4]), time.perf_counter()
        work()
        took = {"cpu_s": sum(os.times()[:4]) - cpu, "wall_s": time.perf_counter() - wall}
    print(json.dumps({**took, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def measured(way: str, folder: Path, python: str, memory_gb: int) -> dict[str, Any]:
    """One run in a process of its own; what it says on its last line, or why it cannot be."""
    command = [python if way in PEERS else sys.executable, __file__, "--way", way, "--folder", str(folder)]
    done = subprocess.run([*command, "--memory-gb", str(memory_gb)], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        if "memory allocation of" in done.stderr:  # which Rust tells before it gives its own account
            last = "a memory allocation failed"
        return {"missing": f"with {memory_gb} GB: {last[:120]}" if way in PEERS else last[:120]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table_of(asked: argparse.Namespace, rows: int, features: int) -> Table:
    """Every way on the same files."""
    python = sys.executable if asked.peers is None else str(asked.peers.absolute() / "bin" / "python")
    runs: dict[str, list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(Path(folder), rows, features))
        maker.start()  # a process starts with the peak memory of the one that starts it
        maker.join()
        for _ in range(asked.rounds):
            for way in asked.ways:
                if WAYS[way] in missing:
                    continue
                found = measured(way, Path(folder), python, asked.memory_gb)
                if "missing" in found:
                    missing[WAYS[way]] = found["missing"]
                    runs.pop(way, None)
                    continue
                runs.setdefault(way, []).append(found)
    cpu = {way: [each["cpu_s"] for each in found] for way, found in runs.items()}
    lines: list[tuple[Cell, ...]] = []
    for way, found in runs.items():
        share: Cell = ratio(cpu[way], cpu["duckdb"]) if "duckdb" in cpu else "–"
        cells = [figure([each[word] for each in found], digits) for word, digits in COLUMNS]
        lines.append((WAYS[way], *cells[:1], share, *cells[1:]))
    return Table(
        f"asof-{rows}",
        f"{rows:,} rows and {features:,} features",
        ("way", "CPU seconds", "of DuckDB's", "seconds", "peak MB"),
        lines,
        f"From Parquet to Parquet. The others may use {asked.memory_gb} GB of memory.",
        missing,
    )


def size(text: str) -> tuple[int, int]:
    """Rows and features of ROWSxFEATURES."""
    rows, features = text.split("x")
    return int(rows), int(features)


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--sizes", type=size, nargs="+", default=SIZES, help="ROWSxFEATURES")
    made.add_argument("--rounds", type=int, default=1)
    made.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    made.add_argument("--memory-gb", type=int, default=8, help="what the others may use")
    made.add_argument("--peers", type=Path, help="a Python environment with the other packages")
    made.add_argument("--scratch", type=Path, help="a directory with room for the tables, 40 bytes a feature and more")
    made.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    made.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.way:
        one(asked)
        return
    publish((table_of(asked, *each) for each in asked.sizes), asked.json, ["duckdb", "polars"])


if __name__ == "__main__":
    main()
