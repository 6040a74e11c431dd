"""What does not fit on one machine, by calculation and by measurement of what does.

    python benchmarks/scale.py [--shards 1000000] [--ranks 131072] [--entities 1000000 10000000] [--rounds 3]

1. The plan of one epoch over a million shards for 131,072 ranks: CPU seconds and memory of the rank that plans, which
   is what every rank does by itself.
2. The entities of a temporal split: measured up to 10^7, and from that 10^9 by two formulas.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Table, figure
from reporting import parser, publish

PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB elsewhere
BLOCKS_PER_SHARD, ROWS_PER_BLOCK = 2, 65_536


def peak_bytes() -> int:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT


def reads_nothing(block: int, columns: Any) -> Any:
    """Stand in for what decodes blocks: a plan needs none."""
    raise AssertionError(f"a plan read block {block}: {columns}")


def plan(shards: int, ranks: int) -> dict[str, Any]:
    """Plan an epoch for `ranks` ranks, and ask for the rows of each."""
    import numpy as np
    import pyarrow as pa

    from headrace.dataset.index import SplitIndex
    from headrace.stream.loader.options import StreamOptions
    from headrace.stream.loader.passes import RowPasses
    from headrace.stream.ranks.topology import Topology

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
    made = (
        RowPasses(index, reads_nothing, options, Topology(rank=0, world_size=ranks)).begin(0).plan()
    )
    planned = time.process_time() - began
    rows = made.rows_per_rank
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

    from headrace.split.allocate import EntitySet, Hashes, allocate

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
        allocation.entities.high[:: max(1, count // 200_000)],
        allocation.entities.low[:: max(1, count // 200_000)],
    )
    began = time.process_time()
    allocation.side_of(asked)
    lookup = (time.process_time() - began) / len(asked)
    kept = allocation.entities.high.nbytes + allocation.entities.low.nbytes
    return {
        "count": len(allocation.entities),
        "seconds": spent,
        "kept": kept,
        "peak": peak_bytes() - before,
        "lookup": lookup,
    }


def index(shards: int) -> dict[str, Any]:
    """Write the index of a run of `shards` shards, and open it as a job does."""
    import pyarrow as pa

    from headrace.dataset.index import IndexRow, index_bytes
    from headrace.dataset.open import read_index
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


def extrapolated(small: dict[str, Any], large: dict[str, Any], count: int) -> str:
    """Two formulas of time and one of memory, and what they say of `count` entities."""

    def term(n: int) -> float:
        return n * math.log2(n)

    # All that is distinct is sorted anew whenever as much again has come: n log n in all, as the sizes double. What is
    # beyond the caches costs more, so the growth between the measured sizes, carried on, is the other bound.
    unit = large["seconds"] / term(large["count"])
    power = math.log(large["seconds"] / small["seconds"]) / math.log(
        large["count"] / small["count"]
    )
    bytes_each = large["peak"] / large["count"]
    sorts, grows = unit * term(count), large["seconds"] * (count / large["count"]) ** power
    low, high = sorted((sorts / 60, grows / 60))
    return (
        f"Calculated from that, not measured: {count:,} entities take {low:.0f} to {high:.0f} minutes of one core, keep"
        f" {16 * count / 1e9:.0f} GB and have {bytes_each * count / 1e9:.0f} GB at the peak. Time is"
        f" {unit * 1e9:.1f} ns · n · log2(n), or as it grew between the two, {large['seconds']:.2f} s · (n /"
        f" {large['count']:,})^{power:.2f}; 16 bytes · n are kept, {bytes_each:.0f} bytes · n are the peak."
    )


def middle(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median of seconds."""
    return sorted(found, key=lambda each: each["seconds"])[len(found) // 2]


def plan_table(asked: argparse.Namespace, found: list[dict[str, Any]]) -> Table:
    """What every rank does by itself."""
    least, most = found[0]["rows"]
    return Table(
        "plan",
        f"A plan of {asked.shards:,} shards of {BLOCKS_PER_SHARD} blocks for {asked.ranks:,} ranks",
        (
            "CPU s to the plan",
            "with the rows of all ranks",
            "MB over the index",
            "rows of a rank",
            "steps",
        ),
        [
            (
                figure([each["plan_s"] for each in found]),
                figure([each["facts_s"] for each in found]),
                figure([each["over_mb"] for each in found], 0),
                f"{least:,}–{most:,}",
                f"{found[0]['steps']:,}",
            )
        ],
        f"Read amplification {found[0]['amplification']:.3f}: ranks that share a block each decode it.",
    )


def entities_table(asked: argparse.Namespace, sizes: list[list[dict[str, Any]]]) -> Table:
    """Two sizes, and what follows of more."""
    rows = [
        (
            f"{found[0]['count']:,}",
            figure([each["seconds"] for each in found]),
            figure([each["kept"] / 1e6 for each in found], 0),
            figure([each["peak"] / 1e6 for each in found], 0),
            figure([each["lookup"] * 1e9 for each in found], 0),
        )
        for found in sizes
    ]
    return Table(
        "entities",
        "Entities of a temporal split: distinct, ordered and allocated",
        ("entities", "CPU s", "MB kept", "peak MB", "ns a look-up"),
        rows,
        extrapolated(*map(middle, sizes), asked.extrapolate),
    )


def index_table(asked: argparse.Namespace, found: list[dict[str, Any]]) -> Table:
    """One block each."""
    return Table(
        "index",
        f"The index of a run of {asked.shards:,} shards",
        ("MB on the disk", "bytes a shard", "CPU s to write", "CPU s to open", "wall s to open"),
        [
            (
                f"{found[0]['bytes'] / 1e6:.1f}",
                f"{found[0]['bytes'] / asked.shards:.0f}",
                figure([each["write_s"] for each in found], 1),
                figure([each["open_s"] for each in found]),
                figure([each["open_wall_s"] for each in found]),
            )
        ],
    )


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Every part, each in its own process, round after round."""

    def children(name: str) -> list[dict[str, Any]]:
        command = [
            sys.executable,
            __file__,
            "--shards",
            str(asked.shards),
            "--ranks",
            str(asked.ranks),
        ]
        command += ["--entities", *map(str, asked.entities), "--part", name]
        runs = (
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            for _ in range(asked.rounds)
        )
        return [json.loads(run.stdout) for run in runs]

    yield plan_table(asked, children("plan"))
    yield entities_table(asked, [children("entities-0"), children("entities-1")])
    yield index_table(asked, children("index"))


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--shards", type=int, default=1_000_000)
    made.add_argument("--ranks", type=int, default=131_072)
    made.add_argument(
        "--entities", type=int, nargs=2, default=[1_000_000, 10_000_000], help="measured sizes"
    )
    made.add_argument("--extrapolate", type=int, default=1_000_000_000)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--part", help=argparse.SUPPRESS)
    asked = made.parse_args()
    parts = {
        "plan": lambda: plan(asked.shards, asked.ranks),
        "entities-0": lambda: entities(asked.entities[0]),
        "entities-1": lambda: entities(asked.entities[1]),
        "index": lambda: index(asked.shards),
    }
    if asked.part:
        print(json.dumps(parts[asked.part]()))
        return
    publish(tables(asked), asked.json)


if __name__ == "__main__":
    main()
