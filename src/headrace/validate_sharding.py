"""Prove on the machines of a job that every row reaches exactly one rank, by streaming one epoch.

    torchrun --nproc-per-node 4 -m headrace.validate_sharding --data out --split train

Every row is numbered as it is read, so the proof needs no key column. Ranks count what they received, exchange it, and
all come to the same verdict: exit 0 if every row came once and all ranks took equal steps, else 1. The process group is
nccl where every local rank has a CUDA device, else gloo; without torchrun the one process is validated alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import HeadraceError, MissingExtra
from headrace.stream.audit import Audit, audit
from headrace.stream.dataset import open_dataset
from headrace.stream.options import VALID, StreamOptions

ROW = "headrace_row_number"
_PROMISE = "Stream one epoch on every rank of a job and check that every row came to exactly one."


@dataclass(frozen=True)
class NumberedBlocks:
    """Blocks with one more column: the number of each row in the split."""

    read_block: ReadBlock
    index: SplitIndex

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        """The rows of a block and their numbers."""
        wanted = None if columns is None else [name for name in columns if name != ROW]
        table = self.read_block(number, wanted)
        first = int(self.index.first_row[number])
        return table.append_column(ROW, pa.array(np.arange(first, first + table.num_rows)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the validation; returns the exit code, the same on every rank."""
    parser = argparse.ArgumentParser(prog="python -m headrace.validate_sharding", description=_PROMISE)
    parser.add_argument("--data", required=True, help="a prepared dataset, or plain shards: directory, file or glob")
    parser.add_argument("--split", help="which split; may be left out where there is only one")
    parser.add_argument("--batch-size", type=int, default=1024, help="rows in a batch of one rank (of one worker)")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers of each rank")
    parser.add_argument("--no-shuffle", action="store_true", help="files in order")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epoch", type=int, default=0)
    asked = parser.parse_args(arguments)
    try:
        import torch
    except ImportError:
        print(f"error: {MissingExtra('torch', 'torch')}", file=sys.stderr)  # noqa: T201 - a command prints
        return MissingExtra.exit_code
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if "WORLD_SIZE" not in os.environ:
        return _validate(asked, rank, world_size)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= local
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
    try:
        return _validate(asked, rank, world_size)
    finally:
        torch.distributed.destroy_process_group()


def _validate(asked: argparse.Namespace, rank: int, world_size: int) -> int:
    watched: Audit | None = None
    total, problem = 0, None
    try:
        watched, total = _loader(asked)
        for _ in watched:
            pass
    except HeadraceError as error:
        problem = f"rank {rank}: {error}"
    problems = [each for each in _gather(problem, world_size) if each is not None]
    if problems or watched is None:
        _say(rank, {"ok": False, "problems": problems})
        return 1
    report = watched.report()
    verdict = report.ok and report.missing == 0
    _say(rank, {"ok": verdict, "expected_rows": total, "equal_steps": report.equal_steps, **asdict(report)})
    return 0 if verdict else 1


def _loader(asked: argparse.Namespace) -> tuple[Audit, int]:
    """One audited epoch of this rank, and the rows of the split."""
    from headrace.stream.torch import StreamingDataset

    data = open_dataset(asked.data)
    plain = data.split_index(asked.split)
    index = replace(plain, schema=plain.schema.append(pa.field(ROW, pa.int64(), nullable=False)))
    options = StreamOptions(
        batch_size=asked.batch_size,
        shuffle=not asked.no_shuffle,
        seed=asked.seed,
        batch_format="arrow",
        columns=[name for name in index.schema.names if name != VALID],
    )
    blocks = NumberedBlocks(data.block_reader(asked.split), plain)
    dataset = StreamingDataset(index, blocks, options, num_workers=asked.workers)
    dataset.set_epoch(asked.epoch)
    return audit(dataset.data_loader(), key=ROW, expected=plain.total_rows), plain.total_rows


def _gather(value: Any, world_size: int) -> list[Any]:
    """Every rank's value, in rank order: no rank goes on to wait for one that failed."""
    import torch

    if not torch.distributed.is_initialized():
        return [value]
    values: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(values, value)
    return values


def _say(rank: int, record: dict[str, Any]) -> None:
    if rank == 0:
        print(json.dumps(record))  # noqa: T201 - a command prints


if __name__ == "__main__":
    sys.exit(main())
