"""Transforms, streams and scripts of the tests of workers that stay; imported by name, so that a worker finds it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace
from waits import wait_until

ROWS = 530
_number = -1


def write_shards(directory: Path) -> Path:
    """Small shards of numbers, texts and lists."""
    shards = directory / "shards"
    shards.mkdir()
    for number, (start, stop) in enumerate(((0, 200), (200, 390), (390, ROWS))):
        rows = range(start, stop)
        table = pa.table(
            {
                "row": pa.array(rows, pa.int64()),
                "half": pa.array([row / 2 for row in rows], pa.float32()),
                "text": [str(row) for row in rows],
                "ids": [[row] * (row % 3) for row in rows],
            }
        )
        pq.write_table(table, shards / f"part-{number}.parquet", row_group_size=40)
    return shards


def stream_of(shards: Path, workers: int, **settings: Any) -> Any:
    settings = {"batch_size": 20, "shuffle": True, "transform": doubled, **settings}
    if workers:
        settings = {"multiprocessing_context": "fork", **settings}
    opened = headrace.open(shards, cache_dir=shards.parent / "cache")
    return opened.stream(workers=workers, **settings)


def rows_of(batches: Any) -> list[list[int]]:
    return [batch["row"].tolist() for batch in batches]


# --- transforms and beginnings of workers


def doubled(batch: Any) -> Any:
    return {"batch": batch, "row": np.asarray(_rows(batch))}


def _rows(batch: Any) -> Any:
    if isinstance(batch, list):
        return [row["row"] for row in batch]
    return batch["row"]


def drawn(batch: Any, context: Any) -> Any:
    return {"row": batch["row"], "drawn": context.uniform(2), "step": context.step}


def with_process(batch: Any) -> Any:
    return {"row": batch["row"], "process": os.getpid(), "number": _number}


def failing(batch: Any) -> Any:
    if 50 in batch["row"].tolist():
        raise ZeroDivisionError("row 50 is not liked")
    return batch


def unsendable(batch: Any) -> Any:
    return lambda: batch


def grown(batch: Any) -> Any:
    return {"row": batch["row"], "large": ["x" * 10] * (1000 * len(batch["row"]))}


def slow(batch: Any) -> Any:
    time.sleep(0.4)
    return batch


def number_worker(number: int) -> None:
    global _number
    _number = number


def refuse_to_begin(number: int) -> None:
    raise ZeroDivisionError(f"worker {number} is not liked")


gates: dict[str, Path] = {}  # files that are waited for; a forked worker has them too


def held(batch: Any) -> Any:
    wait_until(gates["transform"].exists)
    return batch


def held_before(number: int) -> None:
    wait_until(gates["start"].exists)


class DeadlyOnce:
    """A transform that kills its own process at a row, so often over all processes."""

    def __init__(self, directory: Path, row: int, times: int) -> None:
        self.directory, self.row, self.times = directory, row, times

    def __call__(self, batch: Any) -> Any:
        if self.row in batch["row"].tolist():
            killed = len(list(self.directory.glob("killed *")))
            if killed < self.times:
                (self.directory / f"killed {killed}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return batch


# --- scripts

LEFT = """
import sys
from pathlib import Path
from staying_cases import rows_of, stream_of
from torch.utils.data import DataLoader
import headrace

if __name__ == "__main__":
    shards, how = Path(sys.argv[1]), sys.argv[2]
    if how == "stream":
        batches = stream_of(shards, 2, stall_seconds=None)
    else:
        dataset = headrace.open(shards, cache_dir=shards.parent / "cache").torch_dataset(
            batch_size=5, num_workers=2, stall_seconds=None
        )
        batches = (
            dataset.data_loader(method="fork")
            if how == "data_loader"
            else DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
        )
    kept = iter(batches)
    next(kept)
    for batch in batches:
        break
    print("end")
"""
