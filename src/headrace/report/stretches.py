"""What lanes and readers of a plan have to read, step by step, as stretches of a picture. Pure, O(blocks) a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.report.bins import thinned
from headrace.report.words import listed
from headrace.stream.order.epoch import EpochOrder
from headrace.stream.order.plan import Plan

_MOST_STRETCHES = 48


@dataclass(frozen=True)
class Stretch:
    """Steps [first, stop) of a reader in which it reads some blocks of its line; blocks () where nothing is left.

    role: plain and context in turns, shared, or idle. weight: opacity, that tells neighbours of one role apart.
    """

    line: str
    first: float
    stop: float
    blocks: tuple[int, ...]
    role: str
    weight: float = 1.0


def stretches_of(plan: Plan, line: int) -> Iterator[Stretch]:
    """The stretches of one line: of a reader where whole shards are dealt out, else of a lane."""
    if plan.regions is not None:
        return _region_stretches(plan, line)
    return _lane_stretches(plan, line) if isinstance(plan.order, EpochOrder) else _sliced_stretches(plan, line)


def lanes_by_reader(plan: Plan) -> I64:
    """The lanes, or the groups of an order made of several, those of a reader next to each other."""
    order = plan.order
    lanes = np.arange(order.lanes if isinstance(order, EpochOrder) else order.groups, dtype=np.int64)
    return lanes[np.lexsort((lanes, lanes % gcd(plan.order.groups, plan.world_size)))]


def _lane_name(plan: Plan, lane: int) -> str:
    groups = gcd(plan.order.groups, plan.world_size)
    owner = f"rank {lane % groups}" if groups == plan.world_size else "shared"
    return f"{owner}, lane {lane}"


def _lane_stretches(plan: Plan, lane: int) -> Iterator[Stretch]:
    """The blocks on a lane of one whole epoch; those that reach into another lane are decoded there as well."""
    order = plan.order
    assert isinstance(order, EpochOrder)
    begin = int(order.lane_starts[lane])
    end = begin + int(order.lane_rows[lane])
    name, per_step = _lane_name(plan, lane), plan.world_size * plan.batch_size
    if begin == end:
        yield Stretch(name, 0, plan.steps_per_rank, (), "idle")
        return
    first, stop = int(np.searchsorted(order.line, begin, "right")) - 1, int(np.searchsorted(order.line, end, "left"))
    bounds = np.clip(order.line[first : stop + 1], begin, end)
    shared = name.startswith("shared")
    cuts = thinned(np.arange(stop - first + 1), _MOST_STRETCHES + 1).tolist()
    for turn, (low, high) in enumerate(pairwise(cuts)):
        at, until = ((int(bounds[place]) - begin) * order.lanes / per_step for place in (low, high))
        blocks = tuple(order.blocks[first + low : first + high].tolist())
        cut = int(order.line[first + low]) < begin or int(order.line[first + high]) > end
        role = "shared" if shared or cut else ("plain", "context")[turn % 2]
        yield Stretch(name, at, min(until, plan.steps_per_rank), blocks, role, (1.0, 0.65)[turn % 2 if shared else 0])


def _region_stretches(plan: Plan, consumer: int) -> Iterator[Stretch]:
    """The blocks of a reader's own shards, and how long it then waits for the others."""
    part = plan.share(consumer)
    cuts = _slices(plan)
    bounds = part.begin + np.minimum(cuts * plan.batch_size, part.rows)
    yield from _joined(plan, f"rank {consumer}", cuts, bounds[:-1], bounds[1:] - 1)


def _sliced_stretches(plan: Plan, lane: int) -> Iterator[Stretch]:
    """The blocks of a group of an order that is made of several."""
    groups, cuts = plan.order.groups, _slices(plan)
    bounds = np.minimum(cuts * plan.world_size * plan.batch_size, plan.order.rows)
    first = lane + -(-(bounds[:-1] - lane) // groups) * groups
    last = lane + (bounds[1:] - 1 - lane) // groups * groups
    yield from _joined(plan, _lane_name(plan, lane), cuts, first, last)


def _slices(plan: Plan) -> I64:
    steps = plan.steps_per_rank
    return np.unique(np.linspace(0, steps, min(_MOST_STRETCHES, steps) + 1).astype(np.int64))


def _joined(plan: Plan, name: str, cuts: I64, first: I64, last: I64) -> Iterator[Stretch]:
    """Slices of time that need the same blocks, joined. first, last: positions of each slice, first > last for none."""
    held = np.flatnonzero(first <= last)
    reads = plan.order.reads(first[held], last[held])
    needed = {int(at): tuple(dict.fromkeys(reads.block[reads.run == run].tolist())) for run, at in enumerate(held)}
    shared = name.startswith("shared")
    begin, turn = 0, 0
    for at in range(1, len(cuts)):
        blocks = needed.get(begin, ())
        if at < len(cuts) - 1 and needed.get(at, ()) == blocks:
            continue
        role = "idle" if not blocks else "shared" if shared else ("plain", "context")[turn % 2]
        yield Stretch(name, int(cuts[begin]), int(cuts[at]), blocks, role, (1.0, 0.65)[turn % 2 if shared else 0])
        begin, turn = at, turn + 1


def row_of(index: SplitIndex, each: Stretch) -> dict[str, Any]:
    """A stretch as a row of the chart."""
    shards = [index.shards[int(index.shard_of_block[block])].rsplit("/", 1)[-1] for block in each.blocks]
    names = [f"{shard} block {index.block[block]}" for shard, block in zip(shards, each.blocks, strict=True)]
    what = listed(names) if names else "nothing left to read; batches repeat rows until the others are done"
    hint = f"{each.line}, steps {each.first:,.0f} to {each.stop:,.0f}: {what}"
    if each.role == "shared":
        hint += ", decoded by other readers too"
    return {
        "label": each.line,
        "from": each.first,
        "to": each.stop,
        "role": each.role,
        "weight": each.weight,
        "hint": hint,
    }
