"""A pass of a stream: from a state to batches, and from batches back to a state. Shared by all loaders.

`workers` is the number of worker processes; 0 means that the rank's own process reads, as one consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any

from headrace.checks import check_integer
from headrace.dataset.index import SplitIndex
from headrace.sealed import MOST_EPOCHS
from headrace.stream.loader.distribute import regions_of
from headrace.stream.loader.options import VALID, StreamOptions
from headrace.stream.order.lanes import Lanes, choose_lanes
from headrace.stream.order.layout import order_of_state, samples_of_epoch, sources_of
from headrace.stream.order.plan import Plan, make_plan
from headrace.stream.order.regions import Regions
from headrace.stream.order.share import Remainder, advance, count_steps, resolve_remainder
from headrace.stream.order.state import MOST_RELANED, StreamState
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import Batch, import_torch
from headrace.stream.read.memory import pinned_batches
from headrace.stream.read.quarantine import Quarantine
from headrace.stream.read.reader import KeptSplit, ReadBlock, read_share
from headrace.stream.read.transform import transformed

log = logging.getLogger("headrace")


def check_options(index: SplitIndex, options: StreamOptions, *, consumers: int) -> Remainder:
    """The remainder rule in force; raises now what would fail at the first batch.

    `SettingsError`: unknown columns, a column name that the batch needs, "exact" for several consumers.
    `MissingExtra`: torch batches without torch.
    """
    remainder = resolve_remainder(options.remainder, consumers)
    options.check_columns(index.schema.names)
    if options.batch_format == "torch":
        import_torch()
    return remainder


def check_epoch(epoch: int) -> None:
    """Raise `SettingsError` unless this can be an epoch."""
    check_integer("epoch", epoch, least=0, most=MOST_EPOCHS)


def checked_state(values: Mapping[str, Any], index: SplitIndex, options: StreamOptions) -> StreamState:
    """A saved state that fits this stream, or `StreamError`."""
    state = StreamState.from_dict(values)
    state.check_index(index)
    samples = samples_of_epoch(index, options.samples_per_epoch)
    state.check_order(seed=options.seed, shuffle=options.shuffle, samples_per_epoch=samples)
    return state


def resumed_state(
    values: Mapping[str, Any], index: SplitIndex, options: StreamOptions, *, world_size: int, workers: int
) -> StreamState:
    """A saved state to continue from; with on_topology_change="relane" in new lanes, where its own do not fit."""
    state = checked_state(values, index, options)
    consumers = world_size * max(1, workers)
    if state.regions is None:
        one_round = state.lanes * state.window_rows >= state.rows  # every reader holds all blocks at once
        fits = one_round or state.groups % consumers == 0
    else:
        fits = state.regions.fits(world_size=world_size, workers=workers)
    if options.on_topology_change == "keep" or fits:
        return state
    if state.times_relaned == MOST_RELANED:
        log.warning(
            "split %r: what is left of epoch %d was put into new lanes %d times; it stays in these, and %d readers"
            " decode some blocks more than once until the epoch ends",
            *(index.split, state.epoch, MOST_RELANED, consumers),
        )
        return state
    if options.lanes is not None and options.lanes % consumers:  # new lanes are for these consumers
        options = replace(options, lanes=None)
    return state.relaned(_choose_lanes(index, options, readers=consumers))


def first_state(
    index: SplitIndex, options: StreamOptions, *, world_size: int, workers: int, epoch: int = 0
) -> StreamState:
    """The beginning of an epoch, with lanes and windows chosen for the first topology."""
    samples = samples_of_epoch(index, options.samples_per_epoch)
    regions = regions_of(index, options, world_size=world_size, workers=workers, epoch=epoch)
    consumers = world_size * max(1, workers)
    chosen = _choose_lanes(index, options, readers=consumers if regions is None else 1)
    return StreamState(
        split=index.split,
        index=index.identity,
        rows=index.total_rows if samples is None else samples,
        seed=options.seed,
        epoch=epoch,
        lanes=chosen.lanes,
        window_rows=chosen.window_rows,
        groups=chosen.groups,
        shuffle=options.shuffle,
        samples_per_epoch=samples,
        regions=regions,
    )


def next_state(
    state: StreamState, epoch: int, index: SplitIndex, options: StreamOptions, *, world_size: int, workers: int
) -> StreamState:
    """The beginning of an epoch after `state`: in the same lanes, or with whole shards as they are given out now."""
    if options.distribution == "balanced" and not state.of_whole_shards:
        return state.fresh(epoch)
    fresh = first_state(index, options, world_size=world_size, workers=workers, epoch=epoch)
    if state.regions is None or not state.regions.fits(world_size=world_size, workers=workers) or not fresh.regions:
        return fresh
    return replace(fresh, lanes=state.lanes, window_rows=state.window_rows, groups=state.groups)


def plan_pass(
    index: SplitIndex, options: StreamOptions, start: StreamState, *, topology: Topology, workers: int
) -> Plan:
    """The plan of the pass that begins at `start`."""
    return make_plan(
        index,
        batch_size=options.batch_size,
        world_size=topology.world_size,
        workers=workers,
        order=order_of_state(index, start),
        remainder=options.remainder,
        remaining=start.remaining,
        regions=_regions(start, topology=topology, workers=workers),
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
    quarantine: Quarantine | None = None,
    kept: KeptSplit | None = None,
) -> Generator[Batch, None, None]:
    """The batches of one (rank, worker) of the pass that begins at `start`.

    quarantine: where bad blocks go. kept: where a small split stays decoded between passes.
    """
    plan = plan_pass(index, options, start, topology=topology, workers=workers)
    columns = options.check_columns(index.schema.names)
    reader = reader_name(topology, worker=worker, workers=workers)
    batches = read_share(
        index,
        read_block if quarantine is None else quarantine.around(read_block),
        plan=plan,
        share=plan.share(rank=topology.rank, worker=worker),
        options=options,
        columns=columns if quarantine is None else (*columns, VALID),
        reader=reader,
        quarantine=quarantine,
        kept=kept,
    )
    return delivered(batches, options, reader=reader)


def delivered(
    batches: Generator[Batch, None, None], options: StreamOptions, *, reader: str
) -> Generator[Any, None, None]:
    """The batches as the loop receives them: transformed, and in pinned memory, if the options ask for it."""
    if options.transform is not None:
        batches = transformed(batches, options.transform, reader=reader)
    return pinned_batches(batches) if options.memory == "pinned" else batches


def reader_name(topology: Topology, *, worker: int, workers: int) -> str:
    """How messages call one (rank, worker)."""
    return f"rank {topology.rank} of {topology.world_size}" + (f", worker {worker}" if workers else "")


def make_quarantine(
    index: SplitIndex, options: StreamOptions, *, topology: Topology, worker: int, workers: int, slot: Any = None
) -> Quarantine | None:
    """Where one (rank, worker) puts the bad blocks of a pass; None if they raise."""
    if options.on_bad_block != "quarantine":
        return None
    reader = reader_name(topology, worker=worker, workers=workers)
    return Quarantine(index=index, limit=options.quarantine_limit, reader=reader, slot=slot)


def steps_of(start: StreamState, options: StreamOptions, *, topology: Topology, workers: int) -> int:
    """Batches each rank receives in the pass that begins at `start`."""
    consumers = topology.world_size * max(1, workers)
    remainder = resolve_remainder(options.remainder, consumers)
    regions = _regions(start, topology=topology, workers=workers)
    if regions is not None:
        steps = regions.steps(start.remaining, batch_size=options.batch_size, remainder=remainder)
    else:
        steps = count_steps(
            start.remaining.total, consumers=consumers, batch_size=options.batch_size, remainder=remainder
        )
    return steps * max(1, workers)


def dropped_rows(start: StreamState, options: StreamOptions, *, topology: Topology, workers: int) -> int:
    """Rows that "drop" leaves out of the pass that begins at `start`, over all ranks."""
    consumers = topology.world_size * max(1, workers)
    if resolve_remainder(options.remainder, consumers) != "drop":
        return 0
    regions = _regions(start, topology=topology, workers=workers)
    if regions is not None:
        shares = regions.shares(start.remaining, batch_size=options.batch_size, remainder="drop")
        return start.remaining.total - sum(share.rows for share in shares)
    return start.remaining.total % (consumers * options.batch_size)


def state_after(
    start: StreamState, batches: int, options: StreamOptions, *, topology: Topology, workers: int
) -> StreamState:
    """The state after each rank has received `batches` batches of the pass that began at `start`."""
    consumers = topology.world_size * max(1, workers)
    regions = _regions(start, topology=topology, workers=workers)
    if regions is not None:
        remainder = resolve_remainder(options.remainder, consumers)
        left = regions.advance(start.remaining, batches, batch_size=options.batch_size, remainder=remainder)
        return start.at(left)
    remaining = advance(
        start.remaining,
        batches,
        world_size=topology.world_size,
        workers=workers,
        batch_size=options.batch_size,
        remainder=resolve_remainder(options.remainder, consumers),
    )
    return start.at(remaining)


def _regions(start: StreamState, *, topology: Topology, workers: int) -> Regions | None:
    """The regions of a state, if they are those of this topology; else what is left is strided over."""
    if start.regions is None or not start.regions.fits(world_size=topology.world_size, workers=workers):
        return None
    return start.regions


def _choose_lanes(index: SplitIndex, options: StreamOptions, *, readers: int) -> Lanes:
    """How an epoch is cut for a stream that begins on this many readers."""
    return choose_lanes(
        index,
        shuffle=options.shuffle,
        readers=readers,
        batch_size=options.batch_size,
        lanes=options.lanes,
        shuffle_rows=options.shuffle_rows,
        memory_bytes=options.memory_bytes,
        sources=sources_of(index),
    )
