"""Streaming from an object store that is 50 ms away, beside the same files on a disk.

    python benchmarks/stores.py [--latency-ms 50] [--rounds 3] [--shards 16] [--groups 16] [--rows 20000]

The store is moto's S3 server on the loopback behind the tests' proxy, which holds every answer back for so long. Half
of the columns are read, in a shuffled order; contestants take turns. Requests and bytes are counted by the proxy. Each
contestant finds out anew how many requests to have under way. Server and proxy are processes of their own on the
reader's processors, hence speeds are a lower bound; what the distance costs is told by the same store at 0 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Table, figure, ratio
from reporting import parser, publish

TESTS = Path(__file__).parents[1] / "tests" / "object_stores"
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from fault_proxy import FaultProxy, Faults, Seen  # noqa: E402 - found by the line above
from store_cases import upload  # noqa: E402
from store_servers import S3Server, fresh_bucket  # noqa: E402

import headrace  # noqa: E402
from headrace.storage.bucket import forget_buckets  # noqa: E402

COLUMNS = 8


def write_shards(directory: Path, shards: int, groups: int, rows: int) -> None:
    """Parquet of float32 columns that do not compress."""
    random = np.random.default_rng(0)
    directory.mkdir()
    for shard in range(shards):
        table = pa.table(
            {f"x{place}": random.random(groups * rows, np.float32) for place in range(COLUMNS)}
        )
        path = directory / f"part-{shard:05d}.parquet"
        pq.write_table(table, path, row_group_size=rows, compression="none", use_dictionary=False)


def read(dataset: Any, **options: Any) -> tuple[int, float, float]:
    """Rows of an epoch, its seconds, and the seconds of processors that this process took."""
    began, worked, rows = time.perf_counter(), time.process_time(), 0
    wanted = [f"x{place}" for place in range(COLUMNS // 2)]
    for batch in dataset.stream(
        None, batch_size=1024, columns=wanted, shuffle=True, batch_format="numpy", **options
    ):
        rows += len(batch["x0"])
    return rows, time.perf_counter() - began, time.process_time() - worked


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Server, proxy and files for as long as it takes."""
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        write_shards(base / "raw", asked.shards, asked.groups, asked.rows)
        child = subprocess.Popen(
            [sys.executable, str(TESTS / "s3_child.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            server = S3Server(int(next(line for line in child.stdout if line.strip().isdigit())))
            with Proxies(ctx=multiprocessing.get_context("spawn")) as proxies:
                proxy = proxies.CountingProxy(server.port)  # type: ignore[attr-defined]
                os.environ.update(server.environment(proxy.start()))
                place = f"s3://{fresh_bucket(server)}/raw"
                upload(base / "raw", place)
                yield compared(asked, base, place, proxy)
        finally:
            child.stdin.close()
            child.wait(30)


class CountingProxy(FaultProxy):
    """The proxy in a process of its own, by methods alone."""

    def start(self) -> int:
        """Listen, and say where."""
        self.__enter__()
        return self.port

    def counted(self) -> Seen:
        """What passed since `begin`."""
        return self.seen


class Proxies(BaseManager):
    """The process of the proxy."""


Proxies.register("CountingProxy", CountingProxy)


def compared(asked: argparse.Namespace, base: Path, place: str, proxy: Any) -> Table:
    """All contestants in turn."""
    kept: dict[str, Any] = {"cache_dir": base / "cache"}
    local, there = headrace.open(base / "raw", **kept), headrace.open(place, **kept)
    groups, total = asked.shards * asked.groups, asked.shards * asked.groups * asked.rows
    needed = total * 4 * COLUMNS // 2
    contestants: dict[str, tuple[Any, dict[str, Any]]] = {
        "files on a disk": (local, {}),
        "store, 0 ms away": (there, {}),
        "store, read_threads=4": (there, {"read_threads": 4}),
        "store, read_threads=16": (there, {"read_threads": 16}),
        "store, as it comes": (there, {}),
        'store, cache="files", second epoch': (
            there,
            {"cache": "files", "cache_dir": base / "shards"},
        ),
    }
    read(there, **contestants['store, cache="files", second epoch'][1])
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    worked: dict[str, list[float]] = {name: [] for name in contestants}
    counted: dict[str, tuple[str, ...]] = {}
    for _ in range(asked.rounds):
        for name, (dataset, options) in contestants.items():
            near = name == "store, 0 ms away"
            forget_buckets()
            proxy.begin(
                Faults() if near else Faults("slow_start", 1.0, delay_s=asked.latency_ms / 1000)
            )
            rows, seconds, busy = read(dataset, **options)
            assert rows == total
            speeds[name].append(rows / seconds)
            worked[name].append(busy)
            seen = proxy.counted()
            counted[name] = (
                f"{sum(seen.requests.values()) / groups:.2f}",
                f"{seen.body_bytes / needed:.2f}",
                str(len(seen.ranges) - len(set(seen.ranges))),
                str(seen.most_at_once),
            )
    local_speeds, near_speeds = speeds["files on a disk"], speeds["store, 0 ms away"]
    return Table(
        "store",
        f"A store {asked.latency_ms} ms away: {groups} row groups of {asked.rows:,} rows, half of {COLUMNS} columns",
        (
            "rows from",
            "rows/s",
            "of local",
            "of 0 ms",
            "CPU s",
            "requests a row group",
            "bytes of those needed",
            "asked twice",
            "at once",
        ),
        [
            (
                name,
                figure(speeds[name], 0),
                ratio(speeds[name], local_speeds),
                ratio(speeds[name], near_speeds),
                figure(worked[name]),
                *counted[name],
            )
            for name in contestants
        ],
    )


def main() -> None:
    made = parser(__doc__)
    for name, value in (
        ("latency-ms", 50),
        ("rounds", 3),
        ("shards", 16),
        ("groups", 16),
        ("rows", 20_000),
    ):
        made.add_argument(f"--{name}", type=int, default=value)
    asked = made.parse_args()
    publish(tables(asked), asked.json, ["obstore", "moto"])


if __name__ == "__main__":
    main()
