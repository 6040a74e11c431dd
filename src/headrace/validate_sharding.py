"""Prove on the machines of a job that every row reaches exactly one rank, by streaming one epoch.

    torchrun --nproc-per-node 4 -m headrace.validate_sharding --data out --split train

Rows are numbered as they are read, so the proof needs no key column. Ranks count the rows they
received, exchange the counts, and reach the same verdict: exit 0 if every row came once and all
ranks took equal steps, 1 if not or if a rank failed, 2 if the command was wrong. Rank 0 prints the
counts as one JSON object; each rank prints problems to stderr. The process group is nccl if every
local rank has a CUDA device, else gloo, unless --backend names one. Without torchrun, the single
process is validated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.cli.outermost import run_guarded
from headrace.dataset.indexed import ReadBlock
from headrace.errors import HeadraceError, SettingsError, setting, spell
from headrace.printable import printable
from headrace.stream.audit.rows import Audit, AuditReport, audit
from headrace.stream.loader.dataset import open_dataset
from headrace.stream.loader.options import VALID, StreamOptions
from headrace.stream.ranks.topology import gather
from headrace.stream.read.batch import import_torch

ROW = "headrace_row_number"
_PROMISE = "Stream one epoch on every rank of a job and check that every row came to exactly one."


def _numbered(
    read_block: ReadBlock, first_row: I64, block: int, columns: Sequence[str] | None
) -> pa.Table:
    """Read the rows of a block and, as one more column, their numbers in the split."""
    table = read_block(
        block, None if columns is None else [name for name in columns if name != ROW]
    )
    first = int(first_row[block])
    return table.append_column(ROW, pa.array(np.arange(first, first + table.num_rows)))


@dataclass(frozen=True)
class Launched:
    """This process as its launcher describes it: rank of world_size, device, and the ranks on its
    machine.
    """

    rank: int
    world_size: int
    local_rank: int
    local_ranks: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Launched | None:
        """Read torchrun's variables; None without torchrun.

        Raises `SettingsError` if one is not an integer.
        """
        if "WORLD_SIZE" not in environ:
            return None
        ranks = []
        for name, usual in (
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
        ):
            text = environ.get(name, usual)
            if not text.strip().isdecimal():
                raise SettingsError(
                    f"the environment has {name}={text!r}",
                    remedy="give an integer, as torchrun does",
                )
            ranks.append(int(text))
        return cls(*ranks)


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the validation and return the exit code, the same on every rank.

    environ: holds the launcher's variables.
    """
    parser = argparse.ArgumentParser(
        prog="python -m headrace.validate_sharding", description=_PROMISE
    )
    parser.add_argument(
        "--data",
        "--data_dir",  # what the script is told that this replaces
        required=True,
        help="a prepared dataset, or plain shards: directory, file or glob",
    )
    parser.add_argument("--split", help="the split; optional if there is only one")
    parser.add_argument(
        "--batch-size", type=int, default=1024, help="rows in a batch of one rank (of one worker)"
    )
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers of each rank")
    parser.add_argument("--no-shuffle", action="store_true", help="files in order")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epoch", type=int, default=0)
    parser.add_argument(
        "--backend",
        choices=("auto", "nccl", "gloo"),
        default="auto",
        help="of the process group; auto: nccl where every local rank has a CUDA device, else gloo",
    )
    options = parser.parse_args(arguments)
    for name, least in (("batch_size", 1), ("workers", 0), ("epoch", 0)):
        if getattr(options, name) < least:
            flag = "--" + name.replace("_", "-")
            parser.error(f"{flag} is {getattr(options, name)}; expected {least} or more")
    load = partial(_loader, options)
    try:
        torch = import_torch()
        devices = 0
        if torch.cuda.is_available():
            devices = torch.cuda.device_count()
        launched = Launched.of(environ)
        backend = choose_backend(
            options.backend, local_ranks=launched.local_ranks if launched else 1, devices=devices
        )
    except SettingsError as error:
        message = error.words(partial(spell, flags={"backend": "--backend"}))
        print(f"error: {message}", file=sys.stderr)  # noqa: T201 - a command prints
        return error.exit_code
    if launched is None:
        return validate(load, rank=0, world_size=1)
    if backend == "nccl":
        torch.cuda.set_device(launched.local_rank)
    torch.distributed.init_process_group(backend)
    try:
        code = validate(load, rank=launched.rank, world_size=launched.world_size)
        torch.distributed.barrier()  # a rank that leaves first can break the messages of the others
    finally:
        torch.distributed.destroy_process_group()
    return code


def choose_backend(backend: str, *, local_ranks: int, devices: int) -> str:
    """Choose the backend of the process group.

    Raises `SettingsError` if nccl lacks a CUDA device per local rank.
    """
    if backend == "auto":
        if devices >= local_ranks:
            return "nccl"
        return "gloo"
    if backend == "nccl" and devices < local_ranks:
        raise SettingsError(
            f"{setting('backend', 'nccl')} needs a CUDA device for each local rank, and this node"
            f" has {devices} for {local_ranks}",
            remedy=(
                f"use {setting('backend', 'gloo')}, which proves the same, or start fewer ranks on"
                " a node"
            ),
        )
    return backend


def validate(load: Callable[[], tuple[Audit, int]], *, rank: int, world_size: int) -> int:
    """Read all batches of this rank, compare with all other ranks, and return the exit code, the
    same on every rank.

    load: returns this rank's audited loader and the expected number of rows; called once. Its
    errors, and those of the loader, are sent to all ranks, so no rank waits for one that failed.
    Every rank of the process group must call this.
    """
    watched: Audit | None = None
    total = 0
    problem = None
    try:
        watched, total = load()
        for _ in watched:
            pass
    except HeadraceError as error:
        problem = f"rank {rank}: {error}"
    except Exception as error:  # noqa: BLE001 - every rank reports it, whatever it is; the others would wait for this one
        problem = f"rank {rank}: {type(error).__name__}: {error}"
    problems = [message for message in gather(problem) if message is not None]
    counts: dict[str, Any] = {}
    if watched is not None and not problems:
        report = watched.report()
        counts = {"expected_rows": total, "equal_steps": report.equal_steps, **asdict(report)}
        problems = _problems(report, total)
    if rank == 0:
        print(json.dumps({"ok": not problems, **counts, "problems": problems}), flush=True)  # noqa: T201 - a command
    for message in problems:
        text = f"rank {rank} of {world_size}: validation failed: {printable(message)}"
        print(text, file=sys.stderr)  # noqa: T201 - a command prints
    if problems:
        return 1
    return 0


def _problems(report: AuditReport, total: int) -> list[str]:
    """Describe each violation."""
    problems = []
    if report.duplicates:
        if report.examples:
            examples = f", for example rows {list(report.examples)}"
        else:
            examples = ""
        problems.append(f"{report.duplicates} of {report.rows} rows came more than once{examples}")
    if report.missing:
        problems.append(f"{report.missing} of {total} rows did not come")
    if report.unexpected:
        problems.append(f"{report.unexpected} rows came that the split does not have")
    if not report.equal_steps:
        problems.append(f"ranks took different numbers of steps: {list(report.batches_per_rank)}")
    return problems


def _loader(arguments: argparse.Namespace) -> tuple[Audit, int]:
    """Open one audited epoch of this rank; also return the number of rows of the split."""
    from headrace.stream.loader.torch_dataset import StreamingDataset

    data = open_dataset(arguments.data)
    plain = data.split_index(arguments.split)
    index = replace(plain, schema=plain.schema.append(pa.field(ROW, pa.int64(), nullable=False)))
    options = StreamOptions(
        batch_size=arguments.batch_size,
        shuffle=not arguments.no_shuffle,
        seed=arguments.seed,
        batch_format="arrow",
        columns=[name for name in index.schema.names if name != VALID],
    )
    blocks = partial(_numbered, data.block_reader(arguments.split), plain.first_row)
    dataset = StreamingDataset(index, blocks, options, num_workers=arguments.workers)
    dataset.set_epoch(arguments.epoch)
    return audit(dataset.data_loader(), key=ROW, expected=plain.total_rows), plain.total_rows


if __name__ == "__main__":
    run_guarded(lambda: sys.exit(main()), sys.argv[1:])
