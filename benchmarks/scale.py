"""What does not fit on one machine, by calculation and by measurement of what does.

    python benchmarks/scale.py [--shards 1000000] [--ranks 16384] [--workers 8] [--entities 1000000 10000000]

1. The plan of one epoch over a million shards for 16,384 ranks with 8 workers each: CPU seconds and memory of the rank
   that plans, which is what every rank does by itself.
2. The entities of a temporal split: measured up to 10^7, and from that 10^9 by a formula that is printed.
3. The index of a million shards: its size on disk, and opening it.

Each part runs in a process of its own, so that peaks do not mix. Seconds are of the processor.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB elsewhere
BLOCKS_PER_SHARD, ROWS_PER_BLOCK = 2, 65_536


def peak_bytes() -> int:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT


def plan(shards: int, ranks: int, workers: int) -> dict[str, Any]:
    """Plan an epoch of `ranks` × `workers` consumers, and ask what rank 0 reads first."""
    import numpy as np
    import pyarrow as pa

    from headrace.dataset.index import SplitIndex
    from headrace.stream.options import StreamOptions
    from headrace.stream.passes import first_state, plan_pass
    from headrace.stream.topology import Topology

    blocks = shards * BLOCKS_PER_SHARD
    number = np.arange(blocks, dtype=np.int64)
    index = SplitIndex(
        split="train",
        schema=pa.schema([("x", pa.float32()), ("id", pa.int64())]),
        shards=tuple(f"part-{shard:07d}.parquet" for shard in range(shards)),
        formats=("parquet",) * shards,
        shard_of_block=number // BLOCKS_PER_SHARD,
        block=number % BLOCKS_PER_SHARD,
        rows=ROWS_PER_BLOCK - number * 7919 % 10_000,
        offset=np.zeros(blocks, np.int64),
        length=np.full(blocks, ROWS_PER_BLOCK * 12),
    )
    held, began = peak_bytes(), time.process_time()
    options = StreamOptions(batch_size=64, shuffle=True, batch_format="numpy", remainder="pad")
    topology = Topology(rank=0, world_size=ranks)
    start = first_state(index, options, world_size=ranks, workers=workers)
    made = plan_pass(index, options, start, topology=topology, workers=workers)
    planned = time.process_time() - began
    rows = made.rows_per_consumer
    return {
        "plan_s": planned,
        "facts_s": time.process_time() - began,
        "index_mb": held / 1e6,
        "over_mb": (peak_bytes() - held) / 1e6,
        "steps": made.steps_per_rank,
        "rows": [int(rows.min()), int(rows.max())],
        "total": int(index.rows.sum()),
        "amplification": float(made.read_amplification),
    }


def entities(count: int) -> dict[str, Any]:
    """Gather, order and allocate `count` distinct entities that come as hashes, shard by shard, as the run does it."""
    import numpy as np

    from headrace.recipes.temporal_split.allocate import EntitySet, Hashes, allocate

    before = peak_bytes()
    random = np.random.default_rng(0)
    seen, per_shard, spent = EntitySet(), 500_000, 0.0
    for first in range(0, count, per_shard):
        size = min(per_shard, count - first)
        drawn = random.integers(0, 1 << 64, (2, size), dtype=np.uint64, endpoint=False)
        began = time.process_time()
        seen.add(Hashes(drawn[0].copy(), drawn[1].copy()))
        spent += time.process_time() - began
    began = time.process_time()
    allocation = allocate(seen.ordered(), 0.9)
    spent += time.process_time() - began
    asked = Hashes(
        allocation.known.high[:: max(1, count // 200_000)], allocation.known.low[:: max(1, count // 200_000)]
    )
    began = time.process_time()
    allocation.side_of(asked)
    lookup = (time.process_time() - began) / len(asked)
    kept = allocation.known.high.nbytes + allocation.known.low.nbytes
    return {
        "count": len(allocation.known),
        "seconds": spent,
        "kept": kept,
        "peak": peak_bytes() - before,
        "lookup": lookup,
    }


def index(shards: int) -> dict[str, Any]:
    """Write the index of a run of `shards` shards, and open it as a job does."""
    import pyarrow as pa

    from headrace.dataset.index import IndexRow, index_bytes, read_index
    from headrace.digest import sha256_hex

    def row(number: int) -> IndexRow:
        digest = sha256_hex(str(number).encode())
        return IndexRow(
            split="train",
            shard=f"training_data/train/part-{number:07d}.parquet",
            format="parquet",
            block=0,
            first_row=0,
            rows=ROWS_PER_BLOCK - number * 7919 % 10_000,
            offset=4,
            length=ROWS_PER_BLOCK * 12,
            digest=digest,
            checksum=digest[:16],
            source_shard=f"part-{number:07d}.parquet",
            key_min=number,
            key_max=number + 1,
        )

    schema = pa.schema([("x", pa.float32()), ("id", pa.int64())])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "index.parquet"
        began = time.process_time()
        data = index_bytes([row(number) for number in range(shards)], schema, ())
        written = time.process_time() - began
        path.write_bytes(data)
        digest, size = sha256_hex(data), len(data)
        del data
        began, wall = time.process_time(), time.perf_counter()
        found = read_index(path, digest).split("train")
        assert len(found.shards) == shards
        opened, opened_wall = time.process_time() - began, time.perf_counter() - wall
    return {"bytes": size, "write_s": written, "open_s": opened, "open_wall_s": opened_wall}


def extrapolated(small: dict[str, Any], large: dict[str, Any], count: int) -> None:
    """Print two formulas of time and one of memory, and what they say of `count` entities."""

    def term(n: int) -> float:
        return n * math.log2(n)

    # All that is distinct is sorted anew whenever as much again has come: n log n in all, as the sizes double. What is
    # beyond the caches costs more, so the growth between the measured sizes, carried on, is the other bound.
    unit = large["seconds"] / term(large["count"])
    power = math.log(large["seconds"] / small["seconds"]) / math.log(large["count"] / small["count"])
    bytes_each = large["peak"] / large["count"]
    low, high = unit * term(count), large["seconds"] * (count / large["count"]) ** power
    print(f"   bytes kept = 16 · n; peak = {bytes_each:.0f} · n")
    print(f"   seconds = a · n · log2(n), a = {unit * 1e9:.1f} ns from n = {large['count']:,}: the least")
    print(f"   seconds = {large['seconds']:.2f} · (n / {large['count']:,}) ^ {power:.2f}: as it grew so far")
    print(
        f"   n = {count:,}: {low / 60:.0f} to {high / 60:.0f} min of one core, {16 * count / 1e9:.0f} GB kept, "
        f"{bytes_each * count / 1e9:.0f} GB at the peak (calculated, not measured)"
    )


def main() -> None:
    """Every part, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--entities", type=int, nargs=2, default=[1_000_000, 10_000_000], help="measured sizes")
    parser.add_argument("--extrapolate", type=int, default=1_000_000_000)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    parts = {
        "plan": lambda: plan(asked.shards, asked.ranks, asked.workers),
        "entities-0": lambda: entities(asked.entities[0]),
        "entities-1": lambda: entities(asked.entities[1]),
        "index": lambda: index(asked.shards),
    }
    if asked.part:
        print(json.dumps(parts[asked.part]()))
        return

    def child(name: str) -> dict[str, Any]:
        command = [sys.executable, __file__, *sys.argv[1:], "--part", name]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return found

    made = child("plan")
    print(f"1. plan: {asked.shards:,} shards of {BLOCKS_PER_SHARD} blocks")
    print(f"   for {asked.ranks:,} ranks × {asked.workers} workers")
    print(f"   {made['plan_s']:.2f} s CPU to the plan, {made['facts_s']:.2f} s with the rows of all consumers")
    print(f"   {made['over_mb']:.0f} MB over the index and the imports ({made['index_mb']:.0f} MB)")
    print(
        f"   {made['steps']:,} steps on each rank, {made['rows'][0]:,} to {made['rows'][1]:,} of {made['total']:,} "
        f"rows a consumer, read amplification {made['amplification']:.3f}"
    )
    small, large = child("entities-0"), child("entities-1")
    print("2. entities: distinct, ordered and allocated")
    for each in (small, large):
        print(
            f"   {each['count']:>13,}: {each['seconds']:7.2f} s CPU, {each['kept'] / 1e6:8,.0f} MB kept, "
            f"{each['peak'] / 1e6:8,.0f} MB peak, {each['lookup'] * 1e9:.0f} ns a look-up"
        )
    extrapolated(small, large, asked.extrapolate)
    opened = child("index")
    print(f"3. index of {asked.shards:,} shards, one block each")
    print(
        f"   {opened['bytes'] / 1e6:.1f} MB ({opened['bytes'] / asked.shards:.0f} bytes a shard), "
        f"written in {opened['write_s']:.1f} s CPU, opened in {opened['open_s']:.2f} s CPU "
        f"({opened['open_wall_s']:.2f} s wall)"
    )


if __name__ == "__main__":
    main()
