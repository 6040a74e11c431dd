"""One rank five times slower: distribution="dynamic" against "balanced", in turn, on the same gloo processes.

    python benchmarks/dynamic.py [--ranks 4] [--blocks 96] [--milliseconds 10] [--slower 5] [--rounds 3]

Every rank sleeps for each batch that has a valid row, the last rank longer; there is no collective inside an epoch. The
time of an epoch is that of the rank that ends last. Exits 1 if the median of the ratios
is above 0.7, or a row is missing or comes twice, or ranks have unequal steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from figures import Figure, Table, figure, ratio
from reporting import parser, publish

import headrace

BLOCK_ROWS, BATCH = 256, 64
MOST = 0.7


def write_shards(folder: Path, blocks: int) -> None:
    """Shards of eight row groups."""
    folder.mkdir()
    for shard, first in enumerate(range(0, blocks, 8)):
        rows = range(first * BLOCK_ROWS, min(blocks, first + 8) * BLOCK_ROWS)
        pq.write_table(pa.table({"row": rows}), folder / f"part-{shard:05d}.parquet", row_group_size=BLOCK_ROWS)


def epoch(stream: headrace.StreamLoader, pause: float) -> dict[str, object]:
    """One epoch on this rank: seconds, batches, rows received."""
    rows: list[int] = []
    batches = 0
    dist.barrier()
    began = time.perf_counter()
    for batch in stream:
        batches += 1
        if batch["valid"].any():
            rows += batch["row"][batch["valid"]].tolist()
            time.sleep(pause)
    return {"seconds": time.perf_counter() - began, "batches": batches, "rows": rows}


def run_rank(rank: int, folder: str, ranks: int, rounds: int, milliseconds: float, slower: float) -> None:
    """A rank: the epochs of both distributions, round by round."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks)
    pause = milliseconds / 1000 * (slower if rank == ranks - 1 else 1)
    opened = headrace.open(Path(folder, "shards"), cache_dir=Path(folder, f"cache-{rank}"))
    streams = {
        name: opened.stream(batch_size=BATCH, shuffle=True, distribution=name) for name in ("balanced", "dynamic")
    }
    out = [{name: epoch(stream, pause) for name, stream in streams.items()} for _ in range(rounds)]
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()


def compared(asked: argparse.Namespace) -> Iterator[Table]:
    """Start the ranks, check what they delivered."""
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder, "shards"), asked.blocks)
        job = (folder, asked.ranks, asked.rounds, asked.milliseconds, asked.slower)
        torch.multiprocessing.spawn(run_rank, job, nprocs=asked.ranks)
        ranks = [json.loads(Path(folder, f"rank-{rank}.json").read_text()) for rank in range(asked.ranks)]
    took: dict[str, list[float]] = {"balanced": [], "dynamic": []}
    slowest: dict[str, list[int]] = {"balanced": [], "dynamic": []}
    for number in range(asked.rounds):
        for name, seconds in took.items():
            parts = [rank[number][name] for rank in ranks]
            delivered = sorted(row for part in parts for row in part["rows"])
            assert delivered == list(range(asked.blocks * BLOCK_ROWS)), f"{name}: a row is missing or twice"
            assert len({part["batches"] for part in parts}) == 1, f"{name}: unequal steps"
            seconds.append(max(part["seconds"] for part in parts))
            slowest[name].append(len(parts[-1]["rows"]))
    ideal = asked.ranks / ((asked.ranks - 1) * asked.slower + 1)
    ratios = {name: ratio(seconds, took["balanced"]) for name, seconds in took.items()}
    rows = [
        (f'`distribution="{name}"`', figure(seconds), ratios[name], figure(slowest[name], 0))
        for name, seconds in took.items()
    ]
    yield Table(
        "slow-rank",
        f"{asked.ranks} ranks, one of them {asked.slower:g} times slower: {asked.blocks * BLOCK_ROWS:,} rows",
        ("distribution", "seconds of an epoch", "of balanced", "rows of the slow rank"),
        rows,
        f"The best that any division of the work could give is {ideal:.2f} of balanced. Every row came once, in equal"
        " steps.",
    )


def main() -> int:
    """Measure, print, judge."""
    made = parser(__doc__)
    made.add_argument("--ranks", type=int, default=4)
    made.add_argument("--blocks", type=int, default=96)
    made.add_argument("--milliseconds", type=float, default=10.0)
    made.add_argument("--slower", type=float, default=5.0)
    made.add_argument("--rounds", type=int, default=3)
    asked = made.parse_args()
    [table] = publish(compared(asked), asked.json, ["torch"])
    _, _, against, _ = table.rows[-1]
    assert isinstance(against, Figure)
    return int(against.median > MOST)


if __name__ == "__main__":
    sys.exit(main())
