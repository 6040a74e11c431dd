"""Measurements to histories, beside a DuckDB ORDER BY and a Polars sort of the same files where these are installed.

    python benchmarks/histories.py [--rows 20000000] [--shards 100] [--entities 20000] [--data DIR] [--workers 2]
    python benchmarks/histories.py --engines histories --rows 60000000 --beside 20000000:20000
    python benchmarks/histories.py --engines histories --entities 2000000 --sizes even --beside 20000000:20000
    python benchmarks/histories.py --engines histories --rows 1000000000 --shards 1000 --rounds 1

A measurement takes about 26 bytes of disk as data, 23 while it is gathered and 9 in the run: 60 GB for 10^9, without
the peers. A run that the disk cannot hold is refused before its data is made.

The data is made once: entities of Zipf sizes (or all alike with --sizes even), 42 % IPv6, 120,000 peers, times over
four weeks, 3 % failures, rows in no order. --beside ROWS:ENTITIES measures other data (of Zipf sizes) in turn with it,
and how the CPU times compare: how cost grows with rows, and with entities.

Every engine runs in a process of its own, in turns, --rounds times. CPU seconds are its user and system time, peak
memory its largest resident memory, imports included. The peers write one Parquet file: sorted, or with a row for each
entity that holds lists of its measurements in order of time, as histories have. Histories also encode, cut rows of
bounded size, and write ArrayRecord shards with digests.
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
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from figures import Table, figure, ratio
from reporting import parser, publish

SOURCE_BYTES, DISK_BYTES = 26, 60  # of a measurement

ENGINES = {
    "histories": "headrace: gathered, ordered, encoded, written as ArrayRecord, checked",
    "duckdb": "DuckDB: `ORDER BY` into one Parquet file",
    "polars": "Polars: sort into one Parquet file",
    "duckdb-rows": "DuckDB: `GROUP BY` with ordered lists, a row for each entity",
    "polars-rows": "Polars: `group_by` with sorted lists, a row for each entity",
}


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
    ranks = rng.permutation(entities).astype(np.int32)
    of_slot = ranks if sizes == "even" else ranks[_slots(1.0 / (1 + np.arange(entities)))]
    peer_of_slot = _slots((10.0 + np.arange(60_000)) ** -0.8)
    per_shard = rows // shards
    # From 10^8 rows on the disk is the limit: all texts are in dictionaries, and values are of 4 bytes.
    layout: dict[str, Any] = {"row_group_size": 131_072, "compression": "zstd"}
    if rows >= 100_000_000:
        layout = {
            "row_group_size": 1 << 20,
            "dictionary_pagesize_limit": 16 << 20,
            "compression": "lz4",
        }
        layout |= {"use_dictionary": ["src_addr", "dst_addr"]}
    for shard in range(shards):
        entity = of_slot[rng.integers(0, len(of_slot), per_shard)]
        peer = peer_of_slot[rng.integers(0, len(peer_of_slot), per_shard)] + np.where(
            six[entity], 60_000, 0
        )
        micros = 1_750_723_200_000_000 + rng.integers(0, 28 * 86_400_000_000, per_shard)
        rtt = np.exp(rng.standard_normal(per_shard, np.float32) + np.float32(3.9))
        table = pa.table(
            {
                "src_addr": _texts(names, entity),
                "dst_addr": _texts(peers, peer),
                "event_time": pa.array(micros).cast(pa.timestamp("us")),
                "rtt": pa.array(
                    rtt if rows >= 100_000_000 else rtt.astype(np.float64).round(3),
                    mask=rng.integers(0, 100, per_shard, np.uint8) < 3,
                ),
            }
        )
        path = directory / f"part-{shard:05d}.parquet"
        pq.write_table(table, path, store_schema=False, **layout)
    (directory / "done").touch()


def _slots(weights: np.ndarray) -> np.ndarray:
    """A million slots, of which each number has a share by its weight: int32."""
    ends = np.cumsum(weights)
    return np.searchsorted(ends, (np.arange(1 << 20) + 0.5) / (1 << 20) * ends[-1]).astype(np.int32)


def _texts(texts: Any, place: np.ndarray) -> Any:
    """A dictionary column of the texts that are used; written as such, its readers see texts."""
    import pyarrow as pa

    used = np.bincount(place, minlength=len(texts)) > 0
    number = np.cumsum(used, dtype=np.int32) - 1
    return pa.DictionaryArray.from_arrays(
        pa.array(number[place]), texts.take(pa.array(np.flatnonzero(used)))
    )


def _address(rng: np.random.Generator, six: bool) -> str:
    import ipaddress

    raw = rng.bytes(16)
    return str(
        ipaddress.IPv6Address(b"\x2a\x0e" + raw[2:]) if six else ipaddress.IPv4Address(raw[:4])
    )


def run_histories(data: Path, out: Path, workers: int) -> None:
    """Prepare the run by the command, as a user would."""
    from headrace.cli import command

    asked = f"--out {out} --peer dst_addr --workers {workers} --report never"
    sys.argv = ["headrace", "histories", str(data / "part-*.parquet"), *asked.split()]
    try:
        with redirect_stdout(sys.stderr):
            command()
    except SystemExit as end:
        if end.code:
            raise


def run_duckdb(data: Path, out: Path, workers: int, *, rows: bool) -> None:
    """Sort by entity and time, or make a row for each entity."""
    import duckdb

    lists = ", ".join(
        f"list({name} ORDER BY event_time) AS {name}" for name in ("event_time", "dst_addr", "rtt")
    )
    source = f"'{data}/part-*.parquet'"
    query = f"SELECT * FROM {source} ORDER BY src_addr, event_time"
    if rows:
        query = f"SELECT src_addr, {lists} FROM {source} GROUP BY src_addr"

    connection = duckdb.connect()
    connection.execute(
        f"SET threads={workers}; SET memory_limit='2GB'; SET temp_directory='{out}/spill'"
    )
    connection.execute(f"COPY ({query}) TO '{out}/made.parquet'")


def run_polars(data: Path, out: Path, workers: int, *, rows: bool) -> None:  # noqa: ARG001 - POLARS_MAX_THREADS says it
    """Sort by entity and time with the streaming engine, or make a row for each entity."""
    import polars as pl

    lazy = pl.scan_parquet(data / "part-*.parquet")
    made = (
        lazy.group_by("src_addr").agg(pl.all().sort_by("event_time"))
        if rows
        else lazy.sort("src_addr", "event_time")
    )
    made.sink_parquet(out / "made.parquet")


def measure(engine: str, data: Path, workers: int) -> dict[str, float] | None:
    """Run one engine in a child process; None where it is not installed."""
    package = engine.partition("-")[0]
    if (
        engine != "histories"
        and subprocess.run([sys.executable, "-c", f"import {package}"], check=False).returncode
    ):
        return None
    with tempfile.TemporaryDirectory(dir=data.parent) as out:
        began = time.perf_counter()
        command = [sys.executable, __file__, "--child", engine, "--data", str(data), "--out", out]
        environment = {"POLARS_MAX_THREADS": str(workers)} | os.environ
        done = subprocess.run(
            [*command, "--workers", str(workers)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{engine} failed:\n{done.stderr}")
        return {"wall": time.perf_counter() - began, **json.loads(done.stdout)}


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """The engines, or two sets of data."""
    data = asked.data or _data(asked.rows, asked.shards, asked.entities, asked.sizes)
    if asked.beside is None:
        plan = {ENGINES[engine]: (engine, data) for engine in asked.engines.split(",")}
        title = (
            f"{asked.rows:,} measurements of {asked.entities:,} entities in {asked.shards} shards"
        )
        yield _compared("engines", title, plan, asked)
        return
    rows, entities = (int(each) for each in asked.beside.split(":"))
    other = _data(rows, asked.shards, entities, "zipf")
    plan = {f"{rows:,} of {entities:,}": ("histories", other)}
    plan[f"{asked.rows:,} of {asked.entities:,}, {asked.sizes}"] = ("histories", data)
    yield _compared("growth", "headrace, measurements of entities", plan, asked)


def _compared(
    name: str, title: str, plan: dict[str, tuple[str, Path]], asked: argparse.Namespace
) -> Table:
    """In turns; ratios are to the first of the plan in the same round."""
    found: dict[str, list[dict[str, float]]] = {}
    missing: dict[str, str] = {}
    for number in range(asked.rounds):
        for words, (engine, place) in plan.items():
            one = measure(engine, place, asked.workers)
            if one is None:
                missing[words] = "not installed"
            else:
                found.setdefault(words, []).append(one)
            print(f"round {number + 1}: {words}", file=sys.stderr)
    cpu = {words: [each["cpu"] for each in runs] for words, runs in found.items()}
    first = next(iter(cpu.values()))
    rows = [
        (
            words,
            figure(cpu[words], 1),
            ratio(cpu[words], first),
            figure([each["wall"] for each in runs], 1),
            figure([each["peak"] for each in runs], 0),
        )
        for words, runs in found.items()
    ]
    return Table(
        name,
        title,
        ("what", "CPU s", "times the first's", "wall s", "peak MB"),
        rows,
        missing=missing,
    )


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=20_000_000)
    made.add_argument("--shards", type=int, default=100)
    made.add_argument("--entities", type=int, default=20_000)
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--data", type=Path)
    made.add_argument("--engines", default=",".join(ENGINES))
    made.add_argument("--sizes", choices=["zipf", "even"], default="zipf")
    made.add_argument("--beside", metavar="ROWS:ENTITIES")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    made.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.child:
        if asked.child == "histories":
            run_histories(asked.data, asked.out, asked.workers)
        else:
            run = run_duckdb if asked.child.startswith("duckdb") else run_polars
            run(asked.data, asked.out, asked.workers, rows=asked.child.endswith("rows"))
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1024}))
        return
    publish(tables(asked), asked.json, ["polars", "duckdb", "numba"])


def _data(rows: int, shards: int, entities: int, sizes: str) -> Path:
    """The directory of this data, which is made if it is not there."""
    tail = "" if sizes == "zipf" else f"-{sizes}"
    data = Path(tempfile.gettempdir()) / f"headrace-pings-{rows}-{shards}-{entities}{tail}"
    needed = rows * (DISK_BYTES - (SOURCE_BYTES if (data / "done").exists() else 0))
    if shutil.disk_usage(data.parent).free < needed:
        raise SystemExit(
            f"{data.parent} has less than {needed / 1e9:.0f} GB free for {rows:,} measurements; set TMPDIR"
        )
    make_data(data, rows, shards, entities, sizes)
    return data


if __name__ == "__main__":
    main()
