"""How long it takes to plan, and in how much memory: a million blocks for 4,096 consumers.

    python benchmarks/plan.py [--blocks 1000000] [--consumers 4096] [--distribution balanced]

Prints CPU seconds, and peak memory over what the index itself takes. The index is made here, of arrays.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.stream.options import StreamOptions
from headrace.stream.passes import first_state, plan_pass
from headrace.stream.topology import Topology

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


def peak_bytes() -> int:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT


def main() -> None:
    """Plan once, ask for what a plan is asked for, print what it cost."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--blocks", type=int, default=1_000_000)
    arguments.add_argument("--consumers", type=int, default=4096)
    arguments.add_argument("--distribution", default="balanced", choices=("balanced", "round_robin", "by_size"))
    given = arguments.parse_args()
    index = make_index(given.blocks)
    before = peak_bytes()
    begin = time.process_time()
    options = StreamOptions(
        batch_size=64, shuffle=True, batch_format="numpy", remainder="pad", distribution=given.distribution
    )
    topology = Topology(rank=0, world_size=given.consumers)
    start = first_state(index, options, world_size=given.consumers, workers=0)
    state_s = time.process_time() - begin
    plan = plan_pass(index, options, start, topology=topology, workers=0)
    plan_s = time.process_time() - begin
    steps, rows, read = plan.steps_per_rank, plan.rows_per_consumer, plan.bytes_per_consumer
    amplified = plan.read_amplification
    seconds = time.process_time() - begin
    print(f"{given.blocks:,} blocks, {given.consumers:,} consumers, {given.distribution}")
    print(f"CPU s: {state_s:.2f} to the first state, {plan_s:.2f} to the plan, {seconds:.2f} with rows and bytes")
    print(f"peak over the index: {(peak_bytes() - before) / 1e6:.0f} MB (index and imports: {before / 1e6:.0f} MB)")
    print(f"{steps:,} steps, {rows.min():,}..{rows.max():,} rows, {read.min():,}..{read.max():,} bytes")
    print(f"read amplification {amplified:.3f}")


if __name__ == "__main__":
    main()
