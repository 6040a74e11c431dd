"""One rank five times slower: distribution="dynamic" against "balanced", in turn, on the same gloo processes.

    python benchmarks/dynamic.py [--ranks 4] [--blocks 96] [--milliseconds 10] [--slower 5] [--rounds 3]

Every rank sleeps for each batch that has a valid row, the last rank longer; there is no collective inside an epoch. The
time of an epoch is that of the rank that ends last. Printed: each round's times, their ratio (at most 0.7 is asked of
it), what an ideal division of the work would give, and the valid rows of each rank. Exits 1 if a median ratio is above.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist

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


def main() -> int:
    """Start the ranks, check what they delivered, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=96)
    parser.add_argument("--milliseconds", type=float, default=10.0)
    parser.add_argument("--slower", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder, "shards"), args.blocks)
        job = (folder, args.ranks, args.rounds, args.milliseconds, args.slower)
        torch.multiprocessing.spawn(run_rank, job, nprocs=args.ranks)
        ranks = [json.loads(Path(folder, f"rank-{rank}.json").read_text()) for rank in range(args.ranks)]
    ratios = []
    for number in range(args.rounds):
        took = {}
        for name in ("balanced", "dynamic"):
            parts = [rank[number][name] for rank in ranks]
            delivered = sorted(row for part in parts for row in part["rows"])
            assert delivered == list(range(args.blocks * BLOCK_ROWS)), f"{name}: a row is missing or twice"
            assert len({part["batches"] for part in parts}) == 1, f"{name}: unequal steps"
            took[name] = max(part["seconds"] for part in parts)
        ratios.append(took["dynamic"] / took["balanced"])
        shares = [len(rank[number]["dynamic"]["rows"]) for rank in ranks]
        print(
            f"round {number}: balanced {took['balanced']:.2f} s, dynamic {took['dynamic']:.2f} s,"
            f" ratio {ratios[-1]:.2f}; rows by rank, dynamic: {shares}"
        )
    ideal = args.ranks / ((args.ranks - 1) * args.slower + 1)
    median = statistics.median(ratios)
    print(f"median ratio {median:.2f}, ideal {ideal:.2f}, asked {MOST}; every row once, equal steps")
    return int(median > MOST)


if __name__ == "__main__":
    sys.exit(main())
