"""How long it takes to plan, and in how much memory: a million blocks for 4,096 ranks.

    python benchmarks/plan.py [--blocks 1000000] [--ranks 4096] [--distributions balanced round_robin by_size]

CPU seconds, and peak memory over what the index itself takes, of a process for each distribution and round. The index
is made there, of arrays.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from figures import Table, figure
from reporting import parser, publish

from headrace.dataset.index import SplitIndex
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import RowPasses
from headrace.stream.ranks.topology import Topology

DISTRIBUTIONS = ("balanced", "round_robin", "by_size")
BLOCKS_PER_SHARD = 10
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB elsewhere


def make_index(blocks: int) -> SplitIndex:
    """Blocks of 50,000 to 65,535 rows in shards of ten."""
    number = np.arange(blocks, dtype=np.int64)
    shards = -(-blocks // BLOCKS_PER_SHARD)
    rows = 50_000 + number * 7919 % 15_536
    return SplitIndex(
        split="train",
        schema=pa.schema([("tokens", pa.list_(pa.int32(), 512)), ("id", pa.int64())]),
        shards=tuple(f"part-{shard:06d}.parquet" for shard in range(shards)),
        formats=("parquet",) * shards,
        shard_of_block=number // BLOCKS_PER_SHARD,
        block=number % BLOCKS_PER_SHARD,
        rows=rows,
        offset=np.zeros(blocks, np.int64),
        length=rows * 900,
    )


def reads_nothing(block: int, columns: Any) -> Any:
    """Stand in for what decodes blocks: a plan needs none."""
    raise AssertionError(f"a plan read block {block}: {columns}")


def peak_bytes() -> int:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT


def planned(blocks: int, ranks: int, distribution: Any) -> dict[str, Any]:
    """Plan once in this process, and ask for what a plan is asked for."""
    index = make_index(blocks)
    before = peak_bytes()
    begin = time.process_time()
    options = StreamOptions(
        batch_size=64,
        shuffle=True,
        batch_format="numpy",
        remainder="pad",
        distribution=distribution,
    )
    plan = (
        RowPasses(index, reads_nothing, options, Topology(rank=0, world_size=ranks)).begin(0).plan()
    )
    plan_s = time.process_time() - begin
    steps, rows, read = plan.steps_per_rank, plan.rows_per_rank, plan.bytes_per_rank
    amplified = plan.read_amplification
    return {
        "plan_s": plan_s,
        "facts_s": time.process_time() - begin,
        "over_mb": (peak_bytes() - before) / 1e6,
        "steps": steps,
        "rows": [int(rows.min()), int(rows.max())],
        "bytes": int(read.max()),
        "amplification": float(amplified),
    }


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """A row for each distribution."""
    rows = []
    for distribution in asked.distributions:
        command = [
            sys.executable,
            __file__,
            "--blocks",
            str(asked.blocks),
            "--ranks",
            str(asked.ranks),
        ]
        command += ["--one", distribution]
        found = [
            json.loads(
                subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            )
            for _ in range(asked.rounds)
        ]
        least, most = found[0]["rows"]
        seconds = (figure([each[name] for each in found]) for name in ("plan_s", "facts_s"))
        memory = figure([each["over_mb"] for each in found], 0)
        amplified = f"{found[0]['amplification']:.3f}"
        rows.append((f'`"{distribution}"`', *seconds, memory, f"{least:,}–{most:,}", amplified))
    heads = (
        "distribution",
        "CPU s to the plan",
        "and rows and bytes of all",
        "peak MB over the index",
        "rows of a rank",
        "read amplification",
    )
    yield Table("plan", f"A plan of {asked.blocks:,} blocks for {asked.ranks:,} ranks", heads, rows)


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--blocks", type=int, default=1_000_000)
    made.add_argument("--ranks", type=int, default=4096)
    made.add_argument("--distributions", nargs="+", default=DISTRIBUTIONS, choices=DISTRIBUTIONS)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--one", choices=DISTRIBUTIONS, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.one:
        print(json.dumps(planned(asked.blocks, asked.ranks, asked.one)))
        return
    publish(tables(asked), asked.json)


if __name__ == "__main__":
    main()
