"""Judge a plan: whether it holds, what it costs, what would make it cheaper, and how well its
batches mix.

The advice has three lines. They use only the plan's figures, and a remedy is named only if it was
computed.

For a shuffled plan, `sorted_mixing` computes how many classes of sorted rows a rank's batch meets,
and what makes that number a permutation's. A round is worth s stretches of equal length, each of
one class: s = L x^2 / (x - 1/3) for windows of x > 1 blocks, L / (1 - x/3) for shorter ones: lanes
begin anywhere in blocks. 1 / s is a mean over the rows of an epoch, whose first and last rounds are
short. Of C classes, a batch of B rows meets C (1 - (1 - 1/C)^m), where
m = s (1 - (1 - 1/s)^B) is the number of stretches that it meets. Measured in 105 cases, batches met
at most 6 % fewer.

Mixing is measured on a column that is sorted in the natural order, and compared with a true
permutation. A sorted column is the worst case, because adjacent rows are alike. Two numbers
describe a batch: whether all its rows are in the same half of the split (one class of two), and how
many hundredths of the split it meets (classes of 100). Means come from sampled batches; for a
permutation they follow from drawing without replacement.

A sample has at most 200,000 positions, in clusters spread evenly over the epoch. A round must be
permuted as a whole, so the number of clusters keeps the permuted rows below 17 million, or
six rounds. The cost therefore does not grow with the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.stream.order.epoch import Order, first_window_rows, natural_rows
from headrace.stream.order.joined import PartitionOrder
from headrace.stream.order.lanes import LANE_FAMILY, Lanes, choose_lanes, mixes_everything
from headrace.stream.order.plan import Plan

SAMPLED_ROWS = 200_000
_KINDS = 4  # of batches that a plan is asked about; they share the sample
_PERMUTED_ROWS = 1 << 24
_MOST_CLUSTERS = 64
# that may be touched: each has a fixed cost, which counts where rounds or groups are many
_GROUP_ROUNDS = 1 << 13
_WRITE_SHUFFLED = "write the rows shuffled once (headrace rewrite --shuffle-seed 0)"
_MUCH = 1.1  # times the split: decoding less than this is not worth a word
_NEARLY_ALL = 0.95  # of the classes that a permutation gives: fewer are worth a word
_CLASSES = 100
_MOST_BYTES = 1 << 34  # of a rank: a setting that takes more is no advice
_BADLY = 0.05  # of batches of one class more than a permutation has: worth a word


def advice_of(plan: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the verdict, the reason and the remedy of a plan.

    plan: the record of `headrace plan --json`.
    """
    remedies = _remedies(plan)
    return _verdict(plan), _reason(plan), "; ".join(remedies) or "nothing needs to change"


def _verdict(plan: Mapping[str, Any]) -> str:
    if not plan["ok"]:
        return (
            f"broken: {plan['overlap_rows']:,} rows would come twice and"
            f" {plan['missing_rows']:,} be missing"
        )
    left = plan["left_rows"]
    rows = f"all {left:,} rows"
    if plan["dropped_rows"]:
        rows = f"{left - plan['dropped_rows']:,} of {left:,} rows"
    how_often = "as often as the epoch asks"
    if plan["epoch_rows"] <= plan["rows"]:
        how_often = "once"
    ranks = f"each of {plan['ranks']:,} ranks takes"
    if plan["ranks"] == 1:
        ranks = "1 rank takes"
    padded = ""
    if plan["padded_rows"]:
        padded = f"; {plan['padded_rows']:,} places of the last step are filled up"
    return f"{ranks} {plan['steps_per_rank']:,} steps, and {rows} come {how_often}{padded}"


def _reason(plan: Mapping[str, Any]) -> str:
    times = plan["read_amplification"]
    memory = f"{plan['peak_memory_bytes_per_rank'] / 1e6:,.1f} MB of memory"
    if plan["memory_holds"] == "the decoded split":
        return (
            "the split fits into memory: each rank decodes all of it once and keeps it, in about"
            f" {memory}"
        )
    if times >= _MUCH:
        return (
            f"the split is decoded up to {times:.1f} times, because blocks at the borders of lanes,"
            " and blocks that several ranks need, are decoded more than once; a rank needs about"
            f" {memory}"
        )
    return f"each block is decoded about once over all ranks; a rank needs about {memory}"


def _remedies(plan: Mapping[str, Any]) -> list[str]:
    remedies = []
    better = plan["better_lanes"]
    if better is not None:
        remedies.append(
            f"--lanes {better['lanes']} decodes {better['read_amplification']:.1f} times the split"
        )
    if plan["dropped_rows"] > plan["ranks"] * plan["batch_size"]:
        remedies.append("--distribution balanced leaves no rows out, nor does --remainder pad")
    mixed = plan["mixing"].get("rank_batch")
    in_classes = plan["sorted_rows"]
    if in_classes is not None:
        remedies += [sentence_of(**in_classes)] if in_classes["remedies"] else []
    elif mixed is not None and mixed["single_class"] > mixed["permutation_single_class"] + _BADLY:
        remedy = "--shuffle mixes them"
        if plan["shuffle"]:
            remedy = _WRITE_SHUFFLED
        remedies.append(
            f"in files sorted by a class of half the rows, {mixed['single_class']:.0%} of batches"
            f" hold one class: {remedy}"
        )
    return remedies


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedMixing:
    """How many of 100 classes a rank's batch is expected to meet, if rows are sorted by class.

    rows: of the batch. permutation_classes: what batches of a true permutation meet. remedies: what
    makes it at least 95 % of that; empty if it is.
    """

    rows: int
    classes: float
    permutation_classes: float
    remedies: tuple[str, ...]


def sentence_of(
    *, rows: int, classes: float, permutation_classes: float, remedies: Sequence[str]
) -> str:
    """Return what a plan and a log say of sorted rows."""
    remedy = ""
    if remedies:
        remedy = f": {', or '.join(remedies)}"
    return (
        f"of rows sorted by {_CLASSES} classes, a rank's batch of {rows:,} meets at"
        f" least about {classes:.0f} classes, a permutation's {permutation_classes:.0f}{remedy}"
    )


def sorted_mixing(plan: Plan) -> SortedMixing | None:
    """Compute the expected mixing of sorted rows in a rank's batch, in O(blocks).

    None unless all ranks share a shuffled order with rows.
    """
    order = plan.order
    if not order.shuffle or plan.shard_partition is not None or not plan.split_rows:
        return None
    rows = min(plan.batch_size, max(1, plan.split_rows // plan.world_size))
    permuted = permutation_mixing(plan.split_rows, rows)[1]
    classes = permuted
    if not plan.keeps_split:
        cut = Lanes(order.lanes, order.window_rows, order.groups)
        classes = min(permuted, _expected_classes(plan, cut, rows))
    remedies: list[str] = []
    if classes < _NEARLY_ALL * permuted:
        remedies = [*_settings_that_mix(plan, rows, permuted), _WRITE_SHUFFLED]
    return SortedMixing(
        rows=rows, classes=classes, permutation_classes=permuted, remedies=tuple(remedies)
    )


def segment_count(cut: Lanes, *, rows: int, block_rows: float, ranks: int) -> float:
    """Return how many stretches of one class each a rank's part of a round is worth, at least 1.

    It is that of the epoch's mean round, row by row: its first round and its last one are shorter.
    """
    lanes = cut.lanes / (ranks if cut.groups % ranks == 0 else 1)
    lane_rows = -(-rows // cut.lanes)
    first = first_window_rows(lanes=cut.lanes, window_rows=cut.window_rows, rows=rows)
    first = min(first, lane_rows)
    count, last = divmod(lane_rows - first, cut.window_rows)
    alike = sum(
        rounds * window * _alike(window / block_rows)
        for rounds, window in ((1, first), (count, cut.window_rows), (1, last))
    )
    return max(1.0, lanes * lane_rows / alike)


def _alike(blocks: float) -> float:
    """Return how probable it is that two rows of a window of so many blocks are of one block."""
    if blocks > 1:
        return (blocks - 1 / 3) / blocks**2
    return 1 - blocks / 3


def _expected_classes(plan: Plan, cut: Lanes, batch_rows: int) -> float:
    block_rows = plan.index.rows[plan.index.rows > 0]
    segments = segment_count(
        cut,
        rows=plan.split_rows,
        block_rows=float(np.median(block_rows)),
        ranks=plan.world_size,
    )
    drawn = segments * (1 - (1 - 1 / segments) ** batch_rows)
    return float(_CLASSES * (1 - (1 - 1 / _CLASSES) ** drawn))


def _settings_that_mix(plan: Plan, batch_rows: int, permuted: float) -> list[str]:
    """Return the setting that takes the least memory and makes batches meet nearly all classes."""
    ranks = plan.world_size
    not_empty = plan.index.rows > 0
    block_bytes = float(np.median(plan.block_bytes[not_empty]))
    decoded = int(plan.block_bytes.sum())
    memory = -(-4 * decoded // 3_000_000) * 1_000_000
    text = (
        f"memory_bytes={memory:_} makes it {permuted:.0f}"
        f" (each rank keeps all {decoded / 1e6:,.0f} MB)"
    )
    ways = [(float(memory), text)]
    for lanes in sorted({np.lcm(lanes, ranks).item() for lanes in LANE_FAMILY[:5]}):
        cut = choose_lanes(
            plan.index,
            shuffle=True,
            ranks=ranks,
            batch_size=plan.batch_size,
            lanes=lanes,
            memory_bytes=plan.memory_bytes,
        )
        better = min(permuted, _expected_classes(plan, cut, batch_rows))
        if lanes <= int(not_empty.sum()) / 2 and better >= _NEARLY_ALL * permuted:
            opened = lanes * block_bytes / ranks
            text = (
                f"lanes={lanes} makes it {better:.0f}"
                f" ({opened / 1e6:,.0f} MB of open blocks on each rank)"
            )
            ways.append((opened, text))
    cost, way = min(ways)
    return [way] if cost <= _MOST_BYTES else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """Measured mixing of one kind of batch, with the values of a true permutation.

    rows: size of the batch. single_class: share of batches whose rows are all in one of two
    classes. classes: mean number of the 100 classes that a batch meets. The other fields are the
    values of a true permutation.
    """

    rows: int
    single_class: float
    permutation_single_class: float
    classes: float
    permutation_classes: float


def mixing_of_plan(index: SplitIndex, plan: Plan) -> dict[str, Mixing]:
    """Measure mixing by kind of batch: "8_rows", "256_rows", "global_batch" and "rank_batch".

    Empty without rows.

    8_rows and 256_rows are global batches of that size. They are left out if ranks have whole
    shards, because such ranks share no order; "global_batch" is left out too if a rank then has
    less than one batch.
    """
    order = plan.order
    rows = plan.batch_size
    ranks = plan.world_size
    if not order.rows:
        return {}
    most = SAMPLED_ROWS // _KINDS
    if plan.shard_partition is None:
        if order.shuffle:
            most = min(
                most, _GROUP_ROUNDS // _KINDS * (order.lanes // order.groups) * order.window_rows
            )
        kinds = {
            "8_rows": (8, 1),
            "256_rows": (256, 1),
            "global_batch": (ranks * rows, 1),
            "rank_batch": (rows, ranks),
        }
        sizes = {
            level: min(size, max(1, order.rows // among)) for level, (size, among) in kinds.items()
        }
        sampled = {
            level: sample_batches(order, batch_rows=sizes[level], ranks=among, most_rows=most)
            for level, (_, among) in kinds.items()
        }
    else:
        sampled = _sample_partition(
            plan.shard_partition.bases, order, batch_rows=rows, ranks=ranks, most_rows=most
        )
        sizes = {"rank_batch": rows, "global_batch": ranks * rows}
    laid_out = np.concatenate([positions.ravel() for positions in sampled.values()])
    natural = natural_rows(index, order, laid_out)
    cuts = np.cumsum([positions.size for positions in sampled.values()])[:-1]
    mixing = {}
    for (level, positions), part in zip(sampled.items(), np.split(natural, cuts), strict=True):
        batches = part.reshape(positions.shape)
        mixing[level] = measure(batches, total_rows=index.total_rows, batch_rows=sizes[level])
    return mixing


def measure(natural: I64, *, total_rows: int, batch_rows: int) -> Mixing:
    """Measure batches, given the natural row numbers of the sampled rows of each: int64 [batches,
    rows].
    """
    halves = natural * 2 // total_rows
    classes = np.sort(natural * 100 // total_rows, axis=1)
    permutation_single_class, permutation_classes = permutation_mixing(total_rows, natural.shape[1])
    return Mixing(
        rows=batch_rows,
        single_class=float((halves.min(axis=1) == halves.max(axis=1)).mean()),
        permutation_single_class=permutation_single_class,
        classes=float((np.diff(classes, axis=1) > 0).sum(axis=1).mean()) + 1,
        permutation_classes=permutation_classes,
    )


def permutation_mixing(total_rows: int, batch_rows: int) -> tuple[float, float]:
    """Return (share of single-class batches, mean classes of 100) for batches of a true
    permutation, in closed form.

    A batch draws rows without replacement. It misses a class of n rows with probability C(N - n, B)
    / C(N, B).
    """
    drawn = np.arange(min(batch_rows, total_rows))

    def missing(rows: int) -> float:
        """Return the probability that no drawn row is among `rows` given ones."""
        left = np.maximum(total_rows - rows - drawn, 0)
        with np.errstate(divide="ignore"):
            return float(np.exp(np.log(left / (total_rows - drawn)).sum()))

    def sizes(classes: int) -> I64:
        return np.diff(-(-np.arange(classes + 1, dtype=np.int64) * total_rows // classes))

    if total_rows < 2:
        return 1.0, float(total_rows)
    counts = [np.unique(sizes(classes), return_counts=True) for classes in (2, 100)]
    single_class = classes_met = 0.0
    for rows, count in zip(*counts[0], strict=True):
        single_class += missing(int(rows)) * int(count)
    for rows, count in zip(*counts[1], strict=True):
        classes_met += (1 - missing(int(rows))) * int(count)
    return single_class, classes_met


def sample_batches(
    order: Order, *, batch_rows: int, ranks: int, most_rows: int = SAMPLED_ROWS
) -> I64:
    """Sample positions of single-rank batches for `ranks` ranks: int64 [batches, rows]; all whole
    steps if they fit.

    Takes at most `most_rows` positions; of larger batches, the first ones.
    """
    ranks = min(ranks, order.rows)  # the others have no row
    looked_at = np.arange(min(batch_rows, most_rows), dtype=np.int64)
    number = _clusters(
        max(1, order.rows // (batch_rows * ranks)) * ranks, order, most_rows // len(looked_at)
    )
    step, rank = np.divmod(number, ranks)
    return (step * batch_rows * ranks + rank)[:, None] + looked_at * ranks


def _sample_partition(
    bases: I64, order: Order, *, batch_rows: int, ranks: int, most_rows: int
) -> dict[str, I64]:
    """Sample batches where every rank has a region of positions of its own: per rank, and over all
    ranks.
    """
    sizes = np.diff(bases)
    sizes, starts = sizes[sizes > 0], bases[:-1][sizes > 0]
    looked_at = np.arange(min(batch_rows, most_rows, int(sizes.min())), dtype=np.int64)
    batches = np.maximum(1, sizes // batch_rows)
    number = _clusters(int(batches.sum()), order, most_rows // len(looked_at))
    reader = np.searchsorted(np.cumsum(batches), number, side="right")
    step = number - (np.cumsum(batches) - batches)[reader]
    samples = {"rank_batch": (starts[reader] + step * batch_rows)[:, None] + looked_at}
    steps = int(np.diff(bases[: ranks + 1]).min()) // batch_rows
    if steps:
        among = bases[: min(ranks, most_rows)]
        looked_at = np.arange(min(batch_rows, max(1, most_rows // len(among))), dtype=np.int64)
        step = _clusters(steps, order, max(1, most_rows // (len(among) * len(looked_at))))
        rows = among[:, None] + looked_at
        samples["global_batch"] = step[:, None] * batch_rows + rows.ravel()
    return samples


def _clusters(total: int, order: Order, most: int) -> I64:
    """Choose up to `most` of the numbers 0..total-1: all, or evenly spread runs of neighbors."""
    most = max(1, most)
    if total <= most:
        return np.arange(total, dtype=np.int64)
    if isinstance(order, PartitionOrder):
        shape = order.parts[0]
    else:
        shape = order
    clusters = min(_MOST_CLUSTERS, most)
    if order.shuffle:
        permuted = min(order.rows, shape.lanes * shape.window_rows)
        affordable = min(_PERMUTED_ROWS // permuted, _GROUP_ROUNDS // shape.groups)
        least = 6
        if mixes_everything(Lanes(shape.lanes, shape.window_rows, shape.groups), shape.rows):
            least = 2  # every round is as good as another
        clusters = min(clusters, max(least, affordable))
    run = most // clusters
    # in the middle of equal parts: the first round is short, and the last one may be
    starts = (2 * np.arange(clusters, dtype=np.int64) + 1) * (total - run) // (2 * clusters)
    return (starts[:, None] + np.arange(run, dtype=np.int64)).ravel()
