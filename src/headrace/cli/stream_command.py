"""Measure how fast a split streams: `headrace stream`. Every rank is its own process."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.output import emit, printer, table
from headrace.cli.settings_flags import Json, with_groups
from headrace.cli.stream_commands import read_state
from headrace.cli.stream_flags import (
    BatchSize,
    Distribution,
    PlainShards,
    Ranks,
    Samples,
    Seed,
    Shuffle,
    Source,
    Split,
)

if TYPE_CHECKING:
    from threading import Barrier

_START_TIMEOUT_S = 300.0
_HEADS = (
    "batches",
    "rows",
    "seconds",
    "first batch s",
    "rows/s",
    "MB/s",
    "rows/s after it",
    "wait ms",
)
_RANK_WIDTH = 12  # width of a column in characters
# fields of `StreamStats`
_STATS = (
    "waited_s",
    "p50_wait_s",
    "p95_wait_s",
    "max_wait_s",
    "blocks_read",
    "store_bytes",
    "store_s",
    "store_retries",
    "store_stalls",
)
_barrier: Barrier | None = None  # in a rank's process, so that all ranks start together


@dataclass(frozen=True, kw_only=True)
class StreamedEpoch:
    """Options of a streamed epoch."""

    split: Split = None
    ranks: Ranks = 1
    workers: Annotated[
        int,
        typer.Option(
            min=0,
            max=1 << 10,
            help="DataLoader workers per rank; 0: threads in the rank's own process.",
        ),
    ] = 0
    batch_size: BatchSize = 1024
    shuffle: Shuffle = True
    seed: Seed = 0
    samples_per_epoch: Samples = None
    distribution: Distribution = "balanced"
    limit_s: Annotated[
        float | None, typer.Option("--limit-s", min=0.0, help="Stop after this many seconds.")
    ] = None
    batch_format: Annotated[
        Literal["torch", "numpy", "arrow", "rows"] | None,
        typer.Option(help="The form of batches; default: torch if installed, else numpy."),
    ] = None


@dataclass(frozen=True)
class _Work:
    """Arguments of a rank's process."""

    path: str
    epoch: StreamedEpoch
    shards: PlainShards
    state: dict[str, Any] | None


@with_groups
def stream(
    path: Source,
    *,
    epoch: StreamedEpoch,
    state: Annotated[
        Path | None, typer.Option(help="JSON file of a saved state to continue from.")
    ] = None,
    shards: PlainShards,
    as_json: Json = False,
) -> None:
    """Stream one epoch, or the rest of one, and say how fast it was: rows/s, MB/s, time to the
    first batch.

    Each of several ranks is a process of its own; workers are DataLoader workers and need torch.
    Rates count all rows and all seconds, those before the first batch too; the steady rate is that
    behind the first batch. MB are decoded bytes as the index estimates them. Waits are for one
    batch, median and 95th percentile.

    Example:  headrace stream out --split train --batch-size 4096 --ranks 2
    """
    work = _Work(path, epoch, shards, None if state is None else read_state(state))
    if epoch.ranks > 1:  # build the index once, before the ranks need it
        shards.open(path)
    if epoch.ranks == 1:
        speeds = [_measure(work, 0)]
    else:
        speeds = _measure_ranks(work)
    record = _record(speeds)
    if as_json:
        emit(record)
    else:
        _print_speeds(record)


def _record(speeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the speed of all ranks together."""
    rows = sum(speed["rows"] for speed in speeds)
    seconds = max(speed["seconds"] for speed in speeds)
    read_bytes = sum(speed["bytes_per_s"] * speed["seconds"] for speed in speeds)
    steady = [
        speed["steady_rows_per_s"] for speed in speeds if speed["steady_rows_per_s"] is not None
    ]
    return {
        "rows": rows,
        "rows_per_s": round(rows / seconds) if seconds else 0,
        "mb_per_s": round(read_bytes / seconds / 1e6, 1) if seconds else 0.0,
        "steady_rows_per_s": round(sum(steady)) if len(steady) == len(speeds) else None,
        "first_batch_s": round(max(speed["first_batch_s"] for speed in speeds), 4),
        "seconds": round(seconds, 4),
        "ranks": speeds,
    }


def _print_speeds(record: Mapping[str, Any]) -> None:
    """Print the speeds of the ranks side by side, and of all together."""
    speeds = record["ranks"]
    columns = []
    for speed in speeds:
        columns.append(
            (
                f"{speed['batches']:,}",
                f"{speed['rows']:,}",
                f"{speed['seconds']:.2f}",
                f"{speed['first_batch_s']:.3f}",
                f"{speed['rows_per_s']:,.0f}",
                f"{speed['bytes_per_s'] / 1e6:,.1f}",
                "" if speed["steady_rows_per_s"] is None else f"{speed['steady_rows_per_s']:,.0f}",
                f"{speed['p50_wait_s'] * 1e3:.2f} / {speed['p95_wait_s'] * 1e3:.2f}",
            )
        )
    beside = max(1, (printer().width - max(map(len, _HEADS)) - 4) // (_RANK_WIDTH + 3))
    for first in range(0, len(columns), beside):
        shown_ranks = columns[first : first + beside]
        rows_table = table(
            None,
            ["", *(f"rank {first + number}" for number in range(len(shown_ranks)))],
            numbers_from=1,
        )
        for name, *values in zip(_HEADS, *shown_ranks, strict=True):
            rows_table.add_row(name, *values)
        printer().print(rows_table)
    steady_rows = record["steady_rows_per_s"]
    if steady_rows is None:
        steady_text = ""
    else:
        steady_text = f", {steady_rows:,} rows/s after it"
    printer().print(
        f"{record['rows']:,} rows, {record['rows_per_s']:,} rows/s, {record['mb_per_s']:,} MB/s,"
        f" first batch after {record['first_batch_s']:.3f} s{steady_text}",
        highlight=False,
    )
    _print_stores(speeds)


def _print_stores(speeds: Sequence[Mapping[str, Any]]) -> None:
    """Print what came from object stores, if anything did."""
    size = sum(speed["store_bytes"] for speed in speeds)
    if not size:
        return
    rate = sum(speed["store_bytes"] / speed["store_s"] for speed in speeds if speed["store_s"])
    printer().print(
        f"object stores: {size / 1e6:,.1f} MB at {rate / 1e6:,.1f} MB/s;"
        f" {sum(speed['store_retries'] for speed in speeds):,} requests were sent again,"
        f" {sum(speed['store_stalls'] for speed in speeds):,} of them after a stall",
        highlight=False,
    )


def _measure_ranks(work: _Work) -> list[dict[str, Any]]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from headrace.stream.workers.starting import starting_without_interrupts

    ranks = work.epoch.ranks
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(ranks)
    with ProcessPoolExecutor(
        ranks, mp_context=context, initializer=_begin, initargs=(barrier,)
    ) as pool:
        with starting_without_interrupts("spawn"):
            futures = [pool.submit(_measure, work, rank) for rank in range(ranks)]
        errors = []
        for future in futures:
            error = future.exception()
            if error is not None:
                errors.append(error)
        if errors:  # a failed rank breaks the barrier of the others; report the cause instead
            raise next(
                (error for error in errors if type(error).__name__ != "BrokenBarrierError"),
                errors[0],
            )
        return [future.result() for future in futures]


def _begin(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _measure(work: _Work, rank: int) -> dict[str, Any]:
    """Stream as one rank and return its counts and speeds.

    seconds, first_batch_s: since the start of the pass. rows_per_s, bytes_per_s: over all rows and
    seconds. steady_rows_per_s: rows after the first batch, over the seconds after it; None if there
    are none.
    """
    try:
        if _barrier is not None:
            from headrace.stream.workers.starting import accept_interrupts

            accept_interrupts()  # here, the pool hands it to the parent as the call's error
        batches, row_bytes = _batches(work, rank)
        if _barrier is not None:
            _barrier.wait(_START_TIMEOUT_S)
    except BaseException:
        if _barrier is not None:
            _barrier.abort()
        raise
    begin = time.perf_counter()
    limit_s = work.epoch.limit_s
    first_s = seconds = 0.0
    count = rows = first_rows = 0
    for batch in batches:
        rows += _rows(batch)
        count += 1
        seconds = time.perf_counter() - begin
        if count == 1:
            first_s = seconds
            first_rows = rows
        if limit_s is not None and seconds >= limit_s:
            break
    rate = 0.0
    if seconds:
        rate = rows / seconds
    stats = batches.stats()
    return {
        "rank": rank,
        "batches": count,
        "rows": rows,
        "seconds": seconds,
        "first_batch_s": first_s,
        "rows_per_s": rate,
        "bytes_per_s": rate * row_bytes,
        "steady_rows_per_s": (
            (rows - first_rows) / (seconds - first_s)
            if rows > first_rows and seconds > first_s
            else None
        ),
        **{name: getattr(stats, name) for name in _STATS},
    }


def _batches(work: _Work, rank: int) -> tuple[Any, float]:
    """Return the batches that a training loop would iterate over, and the decoded bytes of
    one row.
    """
    from headrace.stream.order.lanes import estimate_block_bytes
    from headrace.stream.ranks.topology import Topology

    epoch = work.epoch
    dataset = work.shards.open(work.path)
    index = dataset.split_index(epoch.split)
    row_bytes = float(estimate_block_bytes(index).sum()) / max(1, index.total_rows)
    topology = Topology(rank=rank, world_size=epoch.ranks)
    usual = "numpy"
    if importlib.util.find_spec("torch") is not None:
        usual = "torch"
    options: dict[str, Any] = {
        "packed": "off",  # because rows are counted
        "shuffle": epoch.shuffle,
        "seed": epoch.seed,
        "batch_format": epoch.batch_format or usual,
        "samples_per_epoch": epoch.samples_per_epoch,
        "distribution": epoch.distribution,
        "batch_size": epoch.batch_size,
        "topology": topology,
    }
    if epoch.workers:
        streamed: Any = dataset.torch_dataset(epoch.split, num_workers=epoch.workers, **options)
    else:
        streamed = dataset.stream(epoch.split, **options)
    if work.state is not None:
        streamed.load_state_dict(work.state)
    return streamed.data_loader() if epoch.workers else streamed, row_bytes


def _rows(batch: Any) -> int:
    """Count the rows of a batch without padding."""
    if isinstance(batch, list):
        return sum(row.get("valid", True) for row in batch)
    names = getattr(batch, "column_names", None) or list(batch)
    if "valid" not in names:
        return len(batch[names[0]])
    mask = batch["valid"]
    return int(sum(mask.to_pylist()) if hasattr(mask, "to_pylist") else mask.sum())
