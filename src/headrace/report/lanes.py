"""Draw a plan as a page: which reader reads what and when, repeated decoding, idle readers. Pure, O(blocks)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.report import charts
from headrace.report.bins import counted, edges_for, thinned
from headrace.report.figure import Figure, Page, Tone
from headrace.report.words import KINDS_OF_BATCHES, listed, many, share, size, verb
from headrace.stream.order.epoch import EpochOrder
from headrace.stream.order.plan import Plan

_MOST_LINES = 24
_MOST_BARS = 16
_MOST_STRETCHES = 48
_NO_COST_BYTES = 1 << 26  # takes one core a fraction of a second, over all readers
_POORLY_MIXED = 0.1  # share of one-class batches above that of a permutation
_ROLES = {"plain": "a block", "context": "the next one", "shared": "decoded by several readers", "idle": "nothing left"}


def plan_page(plan: Plan, index: SplitIndex, record: Mapping[str, Any]) -> Page:
    """Make the page of a plan of a whole epoch. record: the output of `headrace plan --json`."""
    ranks, mixed = many(plan.world_size, "rank"), []
    if "256_rows" in record["mixing"]:  # present if all ranks share one order
        found = record["mixing"]["256_rows"]
        met = f"{found['classes']:.0f}, a permutation {found['permutation_classes']:.0f}"
        mixed = [(f"of 100 sorted classes in {found['rows']:,} rows", met)]
    return Page(
        title=f"plan of {index.split}",
        subtitle=f"{ranks}, batches of {plan.batch_size:,}, remainder {plan.remainder}",
        tiles=[
            ("rows of the epoch", f"{plan.order.rows:,}"),
            ("steps of each rank", f"{plan.steps_per_rank:,}"),
            ("blocks in shards", f"{len(index.rows):,} in {len(index.shards):,}"),
            ("read amplification", f"at most {plan.read_amplification:.2f}"),
            ("memory of a reader", f"up to {size(record['peak_memory_bytes_per_rank'])}"),
            *mixed,
        ],
        figures=[
            _lanes_figure(plan, index),
            _amplification_figure(plan, record["better_lanes"]),
            _load_figure(plan),
            _steps_figure(plan),
            *_mixing_figure(record["mixing"]),
        ],
    )


def _mixing_figure(mixing: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    """Draw how many classes of a sorted column a batch contains. mixing: by kind of batch, as in the record."""
    if not mixing:
        return []
    labels, values, roles, texts = [], [], [], []
    for kind, found in mixing.items():
        name = f"{KINDS_OF_BATCHES[kind]}: {found['rows']:,}" if kind.endswith("_batch") else KINDS_OF_BATCHES[kind]
        labels += [name, f"{name}, permuted"]
        values += [found["classes"], found["permutation_classes"]]
        roles += ["plain", "context"]
        singles = (found["single_class"], found["permutation_single_class"])
        texts += [f"{met:.1f} · {share(single, 1)}" for met, single in zip(values[-2:], singles, strict=True)]
    kind = "global_batch" if "global_batch" in mixing else "rank_batch"
    found = mixing[kind]
    answer = (
        "For a column sorted in the order of the files, the worst case: the mean number of 100 equal"
        " classes that a batch meets, and the share of batches whose rows are all of one of two classes."
        f" {KINDS_OF_BATCHES[kind].capitalize()}, {many(found['rows'], 'row')}, meets {found['classes']:.1f},"
        f" and {found['permutation_classes']:.1f} in a true permutation."
    )
    of_one_class = found["single_class"] > found["permutation_single_class"] + _POORLY_MIXED
    poor = of_one_class or found["classes"] < found["permutation_classes"] / 2
    chart = charts.bars(
        labels, values, roles, unit="", texts=texts, names={"plain": "here", "context": "a permutation"}
    )
    return [Figure("mixing", "How well do batches mix?", answer, chart, "warning" if poor else "good")]


def _lanes_figure(plan: Plan, index: SplitIndex) -> Figure:
    question = "Who reads what when?"
    if not plan.steps_per_rank:
        return Figure("lanes", question, "No rank reads anything: there are no steps.", None, "warning", "full")
    regions = plan.regions is not None
    count = plan.world_size if regions else len(lanes_by_reader(plan))
    chosen = thinned(lanes_by_reader(plan) if not regions else np.arange(count, dtype=np.int64), _MOST_LINES)
    stretches = [each for number in chosen.tolist() for each in stretches_of(plan, index, number)]
    answer = (
        f"{_what_is_read(plan)} A line is a {'reader' if regions else 'lane'}, its stretches are blocks in their order."
    )
    if plan.order.shuffle:
        rows = plan.order.window_rows
        steps = rows * plan.order.lanes / (plan.world_size * plan.batch_size)
        answer += (
            f" Rows are shuffled in windows of {rows:,}, about {many(max(1, round(steps)), 'step')}: "
            "the blocks of a window are read together."
            if steps < plan.steps_per_rank
            else " A window of shuffling holds all rows of a line: its blocks are read together."
        )
    if len(chosen) < count:
        answer += f" {len(chosen)} of {count:,} are drawn, evenly chosen."
    chart = charts.spans(stretches, unit="step of a reader", along="steps", names=_ROLES, columns=("", "", "what"))
    return Figure("lanes", question, answer, chart, "plain", "full")


def _what_is_read(plan: Plan) -> str:
    readers, lanes = many(plan.world_size, "reader"), many(plan.order.lanes, "lane")
    if plan.regions is not None:
        return "Every reader has shards of its own and reads them one after the other."
    needing = plan.world_size // gcd(plan.order.groups, plan.world_size)
    if needing > 1:
        return f"{lanes} for {readers}: a lane is needed by {many(needing, 'reader')}, and each of them decodes it."
    each = plan.order.lanes // plan.world_size
    return f"Each of {readers} reads {many(each, 'lane')} of its own, in step with the others."


def _amplification_figure(plan: Plan, better: Mapping[str, float] | None) -> Figure:
    """Draw what is decoded more than once. better: another number of lanes, and its computed amplification."""
    question = "Is anything decoded more than once?"
    amplified = plan.read_amplification
    extra = plan.decoded_again_bytes
    needed = int(plan.bytes_per_rank.sum()) - extra
    if plan.keeps_split and plan.world_size > 1:
        tone: Tone = "plain"
        answer = (
            f"Each of {many(plan.world_size, 'reader')} decodes the split once, {size(needed)}, and keeps it in memory:"
            " it is small, and every batch mixes all of it."
        )
    elif amplified < 1.01:
        tone = "good"
        answer = "No: every block is decoded once."
        if extra:
            answer = f"Hardly: {size(extra)}, of blocks that a border between two lanes cuts."
    else:
        free = extra < _NO_COST_BYTES
        answer = f"Yes: up to {amplified:.2f} times the bytes of the epoch are decoded, {size(extra)} more than needed"
        answer += "; of so small a split that takes no time." if free else "."
        tone = "plain" if free else "warning"
        if better is not None:
            answer += f" With --lanes {better['lanes']} it would be at most {better['read_amplification']:.2f} times."
        elif plan.regions is None:
            answer += " No other number of lanes that was tried is better; smaller blocks are (`headrace rewrite`)."
    chart = charts.bars(
        ["needed", "decoded again"],
        [needed, extra],
        ["plain", "shared"],
        unit="decoded",
        texts=[size(needed), size(extra)],
    )
    return Figure("amplification", question, answer, chart, tone)


def _load_figure(plan: Plan) -> Figure:
    """Draw how evenly the work is divided among readers."""
    question = "Is the work even?"
    rows, read = plan.rows_per_rank, plan.bytes_per_rank
    idle = np.flatnonzero(rows == 0)
    answer = (
        f"A reader delivers {rows.min():,} to {rows.max():,} rows and decodes {size(int(read.min()))} to "
        f"{size(int(read.max()))}."
    )
    tone: Tone = "good"
    if len(idle):
        names = [f"rank {each}" for each in idle]
        answer += f" {many(len(idle), 'reader')} {verb(len(idle), 'has', 'have')} no row at all: {listed(names)}."
        tone = "warning"
    elif rows.max() > 1.2 * rows.min():
        answer += (
            " Readers with less repeat rows while the others finish; distribution balanced shares rows out evenly."
        )
        tone = "warning"
    if len(rows) <= _MOST_BARS:
        labels = [f"rank {consumer}" for consumer in range(plan.world_size)]
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
    """Draw the delivered, repeated and dropped rows of an epoch."""
    question = "What do the steps hold?"
    delivered = int(plan.rows_per_rank.sum())
    answer = f"{many(plan.steps_per_rank, 'step')} on every rank, {plan.world_size * plan.batch_size:,} rows over all."
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


def stretches_of(plan: Plan, index: SplitIndex, line: int) -> Iterator[dict[str, Any]]:
    """Cut one line into stretches. A line is a reader if whole shards are dealt out, else a lane or a group."""
    order, steps = plan.order, plan.steps_per_rank
    if plan.regions is None and isinstance(order, EpochOrder):
        return _lane_stretches(plan, index, order, line)
    cuts = np.unique(np.linspace(0, steps, min(_MOST_STRETCHES, steps) + 1).astype(np.int64))
    if plan.regions is not None:
        part = plan.share(line)
        bounds = part.begin + np.minimum(cuts * plan.batch_size, part.rows)
        return _joined(plan, index, f"rank {line}", cuts, bounds[:-1], bounds[1:] - 1)
    groups = order.groups
    bounds = np.minimum(cuts * plan.world_size * plan.batch_size, order.rows)
    first = line + -(-(bounds[:-1] - line) // groups) * groups
    last = line + (bounds[1:] - 1 - line) // groups * groups
    return _joined(plan, index, _lane_name(plan, line), cuts, first, last)


def lanes_by_reader(plan: Plan) -> I64:
    """Return the lanes, or the groups of a composed order, with those of one reader next to each other."""
    order = plan.order
    lanes = np.arange(order.lanes if isinstance(order, EpochOrder) else order.groups, dtype=np.int64)
    return lanes[np.lexsort((lanes, lanes % gcd(plan.order.groups, plan.world_size)))]


def _lane_name(plan: Plan, lane: int) -> str:
    groups = gcd(plan.order.groups, plan.world_size)
    owner = f"rank {lane % groups}" if groups == plan.world_size else "shared"
    return f"{owner}, lane {lane}"


def _lane_stretches(plan: Plan, index: SplitIndex, order: EpochOrder, lane: int) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a lane of a whole epoch. A block that extends into another lane is decoded there as well."""
    begin = int(order.lane_starts[lane])
    end = begin + int(order.lane_rows[lane])
    name, per_step = _lane_name(plan, lane), plan.world_size * plan.batch_size
    if begin == end:
        yield _stretch(index, name, 0, plan.steps_per_rank, (), "idle", 0)
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
        yield _stretch(index, name, at, min(until, plan.steps_per_rank), blocks, role, turn if shared else 0)


def _joined(plan: Plan, index: SplitIndex, name: str, cuts: I64, first: I64, last: I64) -> Iterator[dict[str, Any]]:
    """Yield slices of time, joining neighbours that need the same blocks.

    first, last: positions of each slice; an empty slice has first > last.
    """
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
        yield _stretch(index, name, int(cuts[begin]), int(cuts[at]), blocks, role, turn if shared else 0)
        begin, turn = at, turn + 1


def _stretch(
    index: SplitIndex, line: str, first: float, stop: float, blocks: tuple[int, ...], role: str, turn: int
) -> dict[str, Any]:
    """Return a row of the chart: steps [first, stop) in which a line reads the same blocks; () if it is idle.

    role: plain and context alternately, shared, or idle. turn: odd ones are paler, to distinguish neighbours of one
    role.
    """
    shards = [index.shards[int(index.shard_of_block[block])].rsplit("/", 1)[-1] for block in blocks]
    names = [f"{shard} block {index.block[block]}" for shard, block in zip(shards, blocks, strict=True)]
    what = listed(names) if names else "nothing left to read; batches repeat rows until the others are done"
    hint = f"{line}, steps {first:,.0f} to {stop:,.0f}: {what}"
    if role == "shared":
        hint += ", decoded by other readers too"
    weight = (1.0, 0.65)[turn % 2]
    return {"label": line, "from": first, "to": stop, "role": role, "weight": weight, "hint": hint}
