"""Measurements to histories, beside a DuckDB ORDER BY and a Polars sort of the same files where these are installed.

    python benchmarks/histories.py [--rows 20000000] [--shards 100] [--entities 20000] [--data DIR] [--workers 2]
    python benchmarks/histories.py --engines histories --rows 60000000 --beside 20000000:20000
    python benchmarks/histories.py --engines histories --entities 2000000 --sizes even --beside 20000000:20000

The data is made once: entities of Zipf sizes (or all alike with --sizes even), 42 % IPv6, 120,000 peers, times over
four weeks, 3 % failures, rows in no order. --beside ROWS:ENTITIES measures other data (of Zipf sizes) in turn with it,
--rounds times, and prints how the CPU times compare: how cost grows with rows, and with entities.

Every engine runs in a process of its own. `cpu` is its user and system time, children included, `peak` its largest
resident memory, imports included; the peers only sort and write one Parquet file, histories also encode, and write
ArrayRecord shards with digests.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ENGINES = ("histories", "duckdb", "polars")


def make_data(directory: Path, rows: int, shards: int, entities: int, sizes: str = "zipf") -> None:
    """Parquet shards; nothing is done if they are there. sizes: of entities, "zipf" or "even"."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if (directory / "done").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    six = rng.random(entities) < 0.42
    names = pa.array([_address(rng, bool(each)) for each in six])
    peers = pa.array([_address(rng, place >= 60_000) for place in range(120_000)])
    ranks = rng.permutation(entities)
    of_entity = np.cumsum(1.0 / (1 + np.arange(entities)))
    of_peer = np.cumsum((10.0 + np.arange(60_000)) ** -0.8)
    per_shard = rows // shards
    for shard in range(shards):
        if sizes == "even":
            entity = ranks[rng.integers(0, entities, per_shard)]
        else:
            entity = ranks[np.searchsorted(of_entity, rng.random(per_shard) * of_entity[-1])]
        peer = np.searchsorted(of_peer, rng.random(per_shard) * of_peer[-1]) + np.where(six[entity], 60_000, 0)
        table = pa.table(
            {
                "src_addr": names.take(pa.array(entity)),
                "dst_addr": peers.take(pa.array(peer)),
                "event_time": pa.array(1_750_723_200_000_000 + rng.integers(0, 28 * 86_400_000_000, per_shard)).cast(
                    pa.timestamp("us")
                ),
                "rtt": pa.array(np.exp(rng.normal(3.9, 1.0, per_shard)).round(3), mask=rng.random(per_shard) < 0.03),
            }
        )
        pq.write_table(table, directory / f"part-{shard:05d}.parquet", compression="zstd", row_group_size=131_072)
    (directory / "done").touch()


def _address(rng: np.random.Generator, six: bool) -> str:
    import ipaddress

    raw = rng.integers(0, 256, 16, dtype=np.uint8).tobytes()
    return str(ipaddress.IPv6Address(b"\x2a\x0e" + raw[2:]) if six else ipaddress.IPv4Address(raw[:4]))


def run_histories(data: Path, out: Path, workers: int) -> None:
    """Prepare the run."""
    from headrace.recipes.histories.config import Histories
    from headrace.run.prepare import prepare

    prepare(Histories(source=data / "part-*.parquet", peer="dst_addr"), out, workers=workers)


def run_duckdb(data: Path, out: Path, workers: int) -> None:
    """Sort by entity and time."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads={workers}; SET memory_limit='2GB'; SET temp_directory='{out}/spill'")
    connection.execute(
        f"COPY (SELECT * FROM '{data}/part-*.parquet' ORDER BY src_addr, event_time) TO '{out}/sorted.parquet'"
    )


def run_polars(data: Path, out: Path, workers: int) -> None:  # noqa: ARG001 - POLARS_MAX_THREADS says it
    """Sort by entity and time with the streaming engine."""
    import polars as pl

    pl.scan_parquet(data / "part-*.parquet").sort("src_addr", "event_time").sink_parquet(out / "sorted.parquet")


def measure(engine: str, data: Path, workers: int) -> dict[str, float] | None:
    """Run one engine in a child process; None where it is not installed."""
    if engine != "histories" and subprocess.run([sys.executable, "-c", f"import {engine}"], check=False).returncode:
        return None
    with tempfile.TemporaryDirectory(dir=data.parent) as out:
        began = time.perf_counter()
        command = [sys.executable, __file__, "--child", engine, "--data", str(data), "--out", out]
        environment = {"POLARS_MAX_THREADS": str(workers)} | os.environ
        done = subprocess.run(
            [*command, "--workers", str(workers)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{engine} failed:\n{done.stderr}")
        return {"wall": time.perf_counter() - began, **json.loads(done.stdout)}


def main() -> None:
    """One row an engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--entities", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--sizes", choices=["zipf", "even"], default="zipf")
    parser.add_argument("--beside", metavar="ROWS:ENTITIES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        {"histories": run_histories, "duckdb": run_duckdb, "polars": run_polars}[options.child](
            options.data, options.out, options.workers
        )
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1024}))
        return
    engines = options.engines.split(",")
    data = options.data or _data(options.rows, options.shards, options.entities, options.sizes)
    print(f"{options.rows:,} measurements of {options.entities:,} entities in {options.shards} shards")
    print(f"{'engine':<12}{'cpu s':>8}{'wall s':>8}{'peak MB':>9}{'cpu ratio':>11}")
    if options.beside is not None:
        rows, entities = (int(each) for each in options.beside.split(":"))
        other = _data(rows, options.shards, entities, "zipf")
        _compare(f"{rows:,} of {entities:,}", other, data, options)
        return
    first: float | None = None
    for engine in engines:
        found = measure(engine, data, options.workers)
        if found is None:
            print(f"{engine:<12}  not installed")
            continue
        first = first or found["cpu"]
        _print(engine, found, found["cpu"] / first)


def _compare(name: str, other: Path, data: Path, options: argparse.Namespace) -> None:
    """Both data sets in turn; the ratio of the medians of their CPU times last."""
    cpu: dict[str, list[float]] = {name: [], "this": []}
    for _ in range(options.rounds):
        for which, place in ((name, other), ("this", data)):
            found = measure("histories", place, options.workers)
            assert found is not None
            cpu[which].append(found["cpu"])
            _print("histories", found, found["cpu"] / cpu[name][-1])
    ratio = statistics.median(cpu["this"]) / statistics.median(cpu[name])
    print(f"{ratio:.2f} times the CPU time of {name}, medians of {options.rounds} rounds")


def _print(engine: str, found: dict[str, float], ratio: float) -> None:
    print(f"{engine:<12}{found['cpu']:>8.1f}{found['wall']:>8.1f}{found['peak']:>9,.0f}{ratio:>10.2f}x")


def _data(rows: int, shards: int, entities: int, sizes: str) -> Path:
    """The directory of this data, which is made if it is not there."""
    tail = "" if sizes == "zipf" else f"-{sizes}"
    data = Path(tempfile.gettempdir()) / f"headrace-pings-{rows}-{shards}-{entities}{tail}"
    make_data(data, rows, shards, entities, sizes)
    return data


if __name__ == "__main__":
    main()
