"""A plan as a page: who reads what when, what is decoded more than once, who has nothing to do. Pure, O(blocks)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.report import charts
from headrace.report.bins import counted, edges_for, thinned
from headrace.report.figure import Figure, Page, Tone
from headrace.report.words import listed, many, share, size
from headrace.stream.order import EpochOrder
from headrace.stream.plan import Plan
from headrace.stream.regions import RegionShare

_MOST_LINES, _MOST_STRETCHES = 24, 48
_MOST_BARS = 16
_NO_COST_BYTES = 1 << 26  # a fraction of a second of one core, over all readers
_ROLES = {"plain": "a block", "context": "the next one", "shared": "decoded by several readers", "idle": "nothing left"}


@dataclass(frozen=True)
class Stretch:
    """Steps [first, stop) of a reader in which it reads some blocks of its line; blocks () where nothing is left.

    role: of the figure; see `_ROLES`. weight: opacity, so that neighbours of one role can be told apart.
    """

    line: str
    first: float
    stop: float
    blocks: tuple[int, ...]
    role: str
    weight: float = 1.0


def plan_page(plan: Plan, index: SplitIndex, record: Mapping[str, Any]) -> Page:
    """The page of a plan of a whole epoch. record: what `headrace plan --json` says of it."""
    ranks = many(plan.world_size, "rank")
    return Page(
        title=f"plan of {index.split}",
        subtitle=f"{ranks}, {_workers(plan)}, batches of {plan.batch_size:,}, remainder {plan.remainder}",
        tiles=[
            ("rows of the epoch", f"{plan.order.rows:,}"),
            ("steps of each rank", f"{plan.steps_per_rank:,}"),
            ("blocks in shards", f"{len(index.rows):,} in {len(index.shards):,}"),
            ("read amplification", f"{plan.read_amplification:.2f}"),
            ("memory of a reader", f"up to {size(record['peak_memory_bytes_per_worker'])}"),
            ("shuffle quality", f"{record['shuffle_quality']:.2f} of 1"),
        ],
        figures=[_lanes_figure(plan, index), _amplification_figure(plan), _load_figure(plan), _steps_figure(plan)],
    )


def _workers(plan: Plan) -> str:
    return many(plan.workers, "worker") + " each" if plan.workers else "no worker processes"


def _lanes_figure(plan: Plan, index: SplitIndex) -> Figure:
    question = "Who reads what when?"
    if not plan.steps_per_consumer:
        return Figure("lanes", question, "Nobody reads anything: there is not one step.", None, "warning", "full")
    regions = plan.regions is not None
    count = plan.consumers if regions else plan.order.lanes
    chosen = thinned(_by_reader(plan) if not regions else np.arange(count, dtype=np.int64), _MOST_LINES)
    draw = (
        _region_stretches if regions else _lane_stretches if isinstance(plan.order, EpochOrder) else _sliced_stretches
    )
    stretches = [_row(index, each) for number in chosen.tolist() for each in draw(plan, number)]
    answer = (
        f"{_what_is_read(plan)} A line is a {'reader' if regions else 'lane'}, its stretches are blocks in their order."
    )
    if plan.order.shuffle:
        rows = plan.order.window_rows
        steps = rows * plan.order.lanes / (plan.consumers * plan.batch_size)
        answer += (
            f" Rows are shuffled in windows of {rows:,}, about {many(max(1, round(steps)), 'step')}: "
            "the blocks of a window are read together."
            if steps < plan.steps_per_consumer
            else " A window of shuffling holds all rows of a line: its blocks are read together."
        )
    if len(chosen) < count:
        answer += f" {len(chosen)} of {count:,} are drawn, evenly chosen."
    chart = charts.spans(stretches, unit="step of a reader", along="steps", names=_ROLES, columns=("", "", "what"))
    return Figure("lanes", question, answer, chart, "plain", "full")


def _what_is_read(plan: Plan) -> str:
    readers, lanes = many(plan.consumers, "reader"), many(plan.order.lanes, "lane")
    if plan.regions is not None:
        return "Every reader has shards of its own and reads them one after the other."
    needing = plan.consumers // gcd(plan.order.lanes, plan.consumers)
    if needing > 1:
        return f"{lanes} for {readers}: a lane is needed by {many(needing, 'reader')}, and each of them decodes it."
    each = plan.order.lanes // plan.consumers
    return f"Each of {readers} reads {many(each, 'lane')} of its own, in step with the others."


def _by_reader(plan: Plan) -> I64:
    """The lanes, those of a reader next to each other."""
    lanes = np.arange(plan.order.lanes, dtype=np.int64)
    return lanes[np.lexsort((lanes, lanes % gcd(plan.order.lanes, plan.consumers)))]


def _lane_name(plan: Plan, lane: int) -> str:
    groups = gcd(plan.order.lanes, plan.consumers)
    return f"{_name(plan, lane % groups) if groups == plan.consumers else 'shared'}, lane {lane}"


def _name(plan: Plan, consumer: int) -> str:
    rank, worker = consumer % plan.world_size, consumer // plan.world_size
    return f"rank {rank}" if plan.workers <= 1 else f"rank {rank} worker {worker}"


def _lane_stretches(plan: Plan, lane: int) -> Iterator[Stretch]:
    """The blocks on a lane of one whole epoch; those that reach into another lane are decoded there as well."""
    order = plan.order
    assert isinstance(order, EpochOrder)
    begin, end = order.lane_starts(np.array([lane, lane + 1], np.int64)).tolist()
    name, per_step = _lane_name(plan, lane), plan.consumers * plan.batch_size
    if begin == end:
        yield Stretch(name, 0, plan.steps_per_consumer, (), "idle")
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
        yield Stretch(
            name, at, min(until, plan.steps_per_consumer), blocks, role, (1.0, 0.65)[turn % 2 if shared else 0]
        )


def _region_stretches(plan: Plan, consumer: int) -> Iterator[Stretch]:
    """The blocks of a reader's own shards, and how long it then waits for the others."""
    part = plan.share(rank=consumer % plan.world_size, worker=consumer // plan.world_size)
    assert isinstance(part, RegionShare)
    cuts = _slices(plan)
    bounds = part.begin + np.minimum(cuts * plan.batch_size, part.rows)
    yield from _joined(plan, _name(plan, consumer), cuts, bounds[:-1], bounds[1:] - 1)


def _sliced_stretches(plan: Plan, lane: int) -> Iterator[Stretch]:
    """The blocks of a lane of an order that is made of several."""
    lanes, cuts = plan.order.lanes, _slices(plan)
    bounds = np.minimum(cuts * plan.consumers * plan.batch_size, plan.order.rows)
    first = lane + -(-(bounds[:-1] - lane) // lanes) * lanes
    last = lane + (bounds[1:] - 1 - lane) // lanes * lanes
    yield from _joined(plan, _lane_name(plan, lane), cuts, first, last)


def _slices(plan: Plan) -> I64:
    steps = plan.steps_per_consumer
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


def _row(index: SplitIndex, each: Stretch) -> dict[str, Any]:
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


def _amplification_figure(plan: Plan) -> Figure:
    """Is anything decoded more than once?"""
    question = "Is anything decoded more than once?"
    amplified = plan.read_amplification
    extra = plan.decoded_again_bytes
    needed = int(plan.bytes_per_consumer.sum()) - extra
    if amplified < 1.01:
        answer, tone = "No: every block is decoded once.", "good"
        if extra:
            answer = f"Hardly: {size(extra)}, of blocks that a border between two lanes cuts."
    else:
        free = extra < _NO_COST_BYTES
        answer = f"Yes: {amplified:.2f} times the bytes of the epoch are decoded, {size(extra)} more than needed"
        answer += "; of so small a split that takes no time." if free else "."
        tone = "good" if free else "warning"
        if plan.regions is None and plan.order.lanes % plan.consumers:
            answer += (
                f" {many(plan.consumers, 'reader')} do not divide {many(plan.order.lanes, 'lane')}; with "
                f"--lanes {plan.lanes_without_amplification} no two would decode the same lane."
            )
        else:
            answer += " Borders between lanes cut blocks; with smaller ones (`headrace rewrite`) less is decoded twice."
    chart = charts.bars(
        ["needed", "decoded again"],
        [needed, extra],
        ["plain", "shared"],
        unit="decoded",
        texts=[size(needed), size(extra)],
    )
    return Figure("amplification", question, answer, chart, "good" if tone == "good" else "warning")


def _load_figure(plan: Plan) -> Figure:
    """Does every reader have as much to do?"""
    question = "Is the work even?"
    rows, read = plan.rows_per_consumer, plan.bytes_per_consumer
    idle = np.flatnonzero(rows == 0)
    answer = (
        f"A reader delivers {rows.min():,} to {rows.max():,} rows and decodes {size(int(read.min()))} to "
        f"{size(int(read.max()))}."
    )
    tone: Tone = "good"
    if len(idle):
        names = [_name(plan, int(each)) for each in idle]
        verb = "has" if len(idle) == 1 else "have"
        answer += f" {many(len(idle), 'reader')} {verb} no row at all: {listed(names)}."
        tone = "warning"
    elif rows.max() > 1.2 * rows.min():
        answer += (
            " Readers with less repeat rows while the others finish; distribution balanced shares rows out evenly."
        )
        tone = "warning"
    if len(rows) <= _MOST_BARS:
        labels = [_name(plan, consumer) for consumer in range(plan.consumers)]
        roles = ["plain" if count else "idle" for count in rows.tolist()]
        texts = [f"{count:,} rows · {size(weight)}" for count, weight in zip(rows.tolist(), read.tolist(), strict=True)]
        chart = charts.bars(labels, rows.tolist(), roles, unit="", texts=texts, names=_LOADS)
    else:
        values = np.maximum(rows, 1).astype(np.float64)
        edges, grows = edges_for(values)
        chart = charts.histogram(
            edges, {"plain": counted(values, edges)}, of="readers", title="rows of a reader", grows=grows
        )
    return Figure("load", question, answer, chart, tone)


_LOADS = {"plain": "reads", "idle": "idle"}


def _steps_figure(plan: Plan) -> Figure:
    """Does everyone take the same steps?"""
    question = "What do the steps hold?"
    delivered = int(plan.rows_per_consumer.sum())
    answer = (
        f"{many(plan.steps_per_rank, 'step')} on every rank, {plan.consumers * plan.batch_size:,} rows in a global one."
    )
    if plan.padded_rows:
        answer += (
            f" The last is filled with {many(plan.padded_rows, 'repeated row')}, false in the batch's `valid`."
            if plan.regions is None
            else f" {many(plan.padded_rows, 'repeated row')}, false in the batch's `valid`, keep the ranks in step."
        )
    if plan.dropped_rows:
        answer += (
            f" {many(plan.dropped_rows, 'row is', 'rows are')} left out ({share(plan.dropped_rows, plan.order.rows)})."
        )
    parts = {"trained": [delivered], "empty": [plan.padded_rows], "dropped": [plan.dropped_rows]}
    names = {"trained": "rows", "empty": "repeated", "dropped": "left out"}
    lost = plan.dropped_rows > plan.order.rows / 20 or plan.padded_rows > plan.order.rows / 20
    chart = charts.stacked_bars(["epoch"], parts, unit="rows", names=names)
    return Figure("steps", question, answer, chart, "warning" if lost else "plain")
