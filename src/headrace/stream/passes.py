"""A pass of a stream: from a state to batches, and from batches back to a state. Shared by all loaders.

`workers` is the number of worker processes; 0 means that the rank's own process reads, as one consumer.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from headrace.dataset.index import SplitIndex
from headrace.errors import SettingsError
from headrace.stream.batch import Batch, import_torch
from headrace.stream.options import StreamOptions
from headrace.stream.plan import Plan, choose_order, make_plan
from headrace.stream.reader import ReadBlock, read_share
from headrace.stream.share import Remainder, advance, count_steps, resolve_remainder
from headrace.stream.state import StreamState
from headrace.stream.topology import Topology


def check_options(index: SplitIndex, options: StreamOptions, *, consumers: int) -> Remainder:
    """The remainder rule in force; raises now what would fail at the first batch.

    `SettingsError`: unknown columns, a column name that the batch needs, "exact" for several consumers.
    `MissingExtra`: torch batches without torch.
    """
    remainder = resolve_remainder(options.remainder, consumers)
    options.check_columns(index.schema.names, remainder)
    if options.batch_format == "torch":
        import_torch()
    return remainder


def check_epoch(epoch: int) -> None:
    """Raise `SettingsError` unless this can be an epoch."""
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise SettingsError(f"epoch is {epoch!r}; expected an integer of 0 or more")


def checked_state(values: Mapping[str, Any], index: SplitIndex, options: StreamOptions) -> StreamState:
    """A saved state that fits this stream, or `StreamError`."""
    state = StreamState.from_dict(values)
    state.check_index(index)
    state.check_order(seed=options.seed, shuffle=options.shuffle)
    return state


def first_state(index: SplitIndex, options: StreamOptions, *, consumers: int) -> StreamState:
    """The beginning of epoch 0, with lanes and windows chosen for the first topology."""
    lanes, window_rows = choose_order(
        index,
        consumers,
        shuffle=options.shuffle,
        lanes=options.lanes,
        shuffle_rows=options.shuffle_rows,
        memory_bytes=options.memory_bytes,
    )
    return StreamState(
        split=index.split,
        index=index.identity,
        rows=index.total_rows,
        seed=options.seed,
        epoch=0,
        lanes=lanes,
        window_rows=window_rows,
        shuffle=options.shuffle,
    )


def plan_pass(
    index: SplitIndex, options: StreamOptions, start: StreamState, *, topology: Topology, workers: int
) -> Plan:
    """The plan of the pass that begins at `start`."""
    return make_plan(
        index,
        batch_size=options.batch_size,
        world_size=topology.world_size,
        workers=workers,
        seed=start.seed,
        epoch=start.epoch,
        shuffle=start.shuffle,
        lanes=start.lanes,
        window_rows=start.window_rows,
        remainder=options.remainder,
        remaining=start.remaining,
    )


def read_pass(
    index: SplitIndex,
    read_block: ReadBlock,
    options: StreamOptions,
    start: StreamState,
    *,
    topology: Topology,
    worker: int,
    workers: int,
) -> Generator[Batch, None, None]:
    """The batches of one (rank, worker) of the pass that begins at `start`."""
    plan = plan_pass(index, options, start, topology=topology, workers=workers)
    place = f"rank {topology.rank} of {topology.world_size}" + (f", worker {worker}" if workers else "")
    return read_share(
        index,
        read_block,
        plan=plan,
        share=plan.share(rank=topology.rank, worker=worker),
        options=options,
        columns=options.check_columns(index.schema.names, plan.remainder),
        reader=place,
    )


def steps_of(start: StreamState, options: StreamOptions, *, topology: Topology, workers: int) -> int:
    """Batches each rank receives in the pass that begins at `start`."""
    consumers = topology.world_size * max(1, workers)
    steps = count_steps(
        start.remaining.total,
        consumers=consumers,
        batch_size=options.batch_size,
        remainder=resolve_remainder(options.remainder, consumers),
    )
    return steps * max(1, workers)


def dropped_rows(start: StreamState, options: StreamOptions, *, topology: Topology, workers: int) -> int:
    """Rows that "drop" leaves out of the pass that begins at `start`, over all ranks."""
    consumers = topology.world_size * max(1, workers)
    if resolve_remainder(options.remainder, consumers) != "drop":
        return 0
    return start.remaining.total % (consumers * options.batch_size)


def state_after(
    start: StreamState, batches: int, options: StreamOptions, *, topology: Topology, workers: int
) -> StreamState:
    """The state after each rank has received `batches` batches of the pass that began at `start`."""
    consumers = topology.world_size * max(1, workers)
    remaining = advance(
        start.remaining,
        batches,
        world_size=topology.world_size,
        workers=workers,
        batch_size=options.batch_size,
        remainder=resolve_remainder(options.remainder, consumers),
    )
    return start.at(remaining)
