"""What the trainers here share: real rows or 49 made ones, a small model, and a count of the rows that came.

All of them have the same flags. The last line that rank 0 prints says how many rows of the split came, those before a
stop included, and whether one came twice.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist

import headrace

BATCH_SIZE = 8  # of a rank, for the made rows: six batches and one row are left
REAL_BATCH_SIZE = 512


def flags(description: str | None) -> argparse.ArgumentParser:
    """Declare the flags that every script has."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="where CDNOW_master.txt.gz is; else 49 rows are made"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/trainers"), help="where the shards are written"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that make the features; 0: a thread"
    )
    parser.add_argument(
        "--batch-size", type=int, help=f"rows of a rank; {REAL_BATCH_SIZE}, or {BATCH_SIZE} of 49"
    )
    parser.add_argument("--stop-after", type=int, metavar="STEP", help="stop after so many steps")
    parser.add_argument(
        "--checkpoint", type=Path, help="written at the end; read first if it is there"
    )
    return parser


def asked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the flags and write the shards. Every process of a job may do this at once."""
    options = parser.parse_args()
    options.shards = write_shards(options.data, options.out.resolve())
    options.batch_size = options.batch_size or (
        BATCH_SIZE if options.data is None else REAL_BATCH_SIZE
    )
    return options


def write_shards(data: Path | None, out: Path) -> Path:
    """Write the splits train and val as Parquet shards of columns row, x and y, unless they are there.

    The purchases are sharded by month; x is the number of discs, y the logarithm of what they cost.
    """
    if data is None:
        splits = {"train": made_rows((20, 20, 9)), "val": made_rows((5, 2))}
    else:
        source = data / "CDNOW_master.txt.gz"
        if not source.is_file():
            sys.exit(f"{source} does not exist; say where CDNOW_master.txt.gz is with --data DIR")
        splits = purchases(gzip.decompress(source.read_bytes()).decode())
    shards = out / ("made" if data is None else "purchases")
    if not shards.is_dir():
        out.mkdir(parents=True, exist_ok=True)
        whole = Path(tempfile.mkdtemp(dir=out))
        for split, tables in splits.items():
            (whole / split).mkdir()
            for number, table in enumerate(tables):
                pq.write_table(table, whole / split / f"part-{number:05d}.parquet")
        try:
            whole.rename(shards)
        except OSError:  # another process of the job was faster, with the same rows
            if not shards.is_dir():
                raise
    return shards


def made_rows(sizes: tuple[int, ...]) -> list[pa.Table]:
    """Rows in shards of these sizes, numbered from 0."""
    numbers = torch.arange(sum(sizes)).split(list(sizes))
    return [
        as_table(shard.tolist(), (shard % 7).tolist(), (shard % 2).tolist()) for shard in numbers
    ]


def purchases(text: str) -> dict[str, list[pa.Table]]:
    """Purchases of 1997 train, those of 1998 validate; a shard is a month."""
    months: dict[str, list[tuple[int, float, float]]] = {}
    for number, line in enumerate(text.splitlines()[1:]):
        _, day, discs, dollars = line.split()
        months.setdefault(day[:6], []).append((number, float(discs), float(dollars)))
    splits: dict[str, list[pa.Table]] = {"train": [], "val": []}
    for month, rows in sorted(months.items()):
        number, discs, dollars = zip(*rows, strict=True)
        cost = torch.tensor(dollars).log1p().tolist()
        splits["train" if month.startswith("1997") else "val"].append(as_table(number, discs, cost))
    return splits


def as_table(row: Any, x: Any, y: Any) -> pa.Table:
    """Columns of the types that the model takes."""
    return pa.table(
        {"row": pa.array(row, "int64"), "x": pa.array(x, "float32"), "y": pa.array(y, "float32")}
    )


def features(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Make the model's two inputs. This transform is what worker processes run."""
    return {**batch, "features": torch.stack([batch["x"], batch["x"].log1p()], 1)}


def stream_of(options: argparse.Namespace) -> Any:
    """Open the training split. Every rank reads its own share."""
    return headrace.open(options.shards).stream(
        "train",
        batch_size=options.batch_size,
        shuffle=True,
        transform=features,
        workers=options.workers,
    )


def model() -> torch.nn.Module:
    """Return a small model with the same weights on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def loss_of(
    predicted_B1: torch.Tensor, batch: dict[str, torch.Tensor], rows: torch.Tensor, ranks: int
) -> torch.Tensor:
    """Squared errors of this rank's real rows, over the real rows of all ranks.

    rows: how many these are. ranks: what trainers divide the sum of the ranks' gradients by, so it is multiplied here.
    """
    loss_B = (predicted_B1[:, 0] - batch["y"]).square()
    return (loss_B * batch["valid"]).sum() * ranks / rows.clamp(min=1)


class Seen:
    """The rows that all ranks were given, those before a stop included. Its state is the same on every rank."""

    def __init__(self) -> None:
        self.earlier: list[int] = []
        self.here: list[int] = []
        self.steps = 0

    def add(self, batch: dict[str, torch.Tensor]) -> None:
        """Note the real rows of a batch."""
        self.here += batch["row"][batch["valid"]].tolist()
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Gather the rows of all ranks: all of them have to call it."""
        parts: list[Any] = [self.here]
        if dist.is_initialized():
            parts = [None] * dist.get_world_size()
            dist.all_gather_object(parts, self.here)
        return {"rows": [*self.earlier, *(row for part in parts for row in part)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of any number of ranks."""
        self.earlier, self.here = state["rows"], []

    def report(self, options: argparse.Namespace) -> str:
        """Say what came, on every rank at once; raise `SystemExit` if a row came twice or one is missing at the end."""
        rows = self.state_dict()["rows"]
        split = headrace.open(options.shards).split_rows["train"]
        twice = sum(count > 1 for count in Counter(rows).values())
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        line = f"{ranks} ranks, {self.steps} steps: {len(set(rows)):,} of {split:,} rows, {twice or 'none'} twice"
        if twice or (options.stop_after is None and len(rows) != split):
            sys.exit(line)
        return line


def leave_group() -> None:
    """Free the process group. Call it once nothing holds the model any more.

    A DDP model holds the group as well. If it is the last that does, it waits for gloo's threads with the interpreter
    lock held, and a thread that needs the lock to drop a gathered tensor never ends.
    """
    gc.collect()  # models are in cycles
    if dist.is_initialized():
        dist.barrier()  # gloo's threads may abort a rank that leaves while others still talk to it
        time.sleep(
            0.1
        )  # in which they drop what was gathered before the barrier; they need the interpreter for it
        dist.destroy_process_group()
