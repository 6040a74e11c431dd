"""Who goes where: files to tasks, rows to splits, rows to a mix of weights, bins to output shards. Pure.

Splits. A unit is a conversation key where one is given, else a row. Units are ordered by a keyed hash; the first
`round(n × test_ratio)` are test, the next `round(n × valid_ratio)` valid, the rest train (halves round up; a ratio
above zero gives at least one unit). Counts are exact; shards, workers and file order have no part in them.

Weights are relative shares of TOKENS inside each split. Nothing is repeated: the mix is as large as it can be
without any dataset giving more than it has, so the scarcest dataset is taken whole and of the others so many rows, in
the order of a keyed hash, that their tokens come as near to their share as whole rows can. Equal weights ask for no
mix: everything is taken. Weight 0 takes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8, U64
from headrace.digest import derive_key, hash_words
from headrace.errors import InputError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
TRAIN, VALID, TEST = 0, 1, 2


@dataclass(frozen=True)
class Part:
    """The rows of one file that a task reads: those whose number, from 0, is `remainder` modulo `modulus`."""

    file: int
    remainder: int = 0
    modulus: int = 1


def assign_files(sizes: Sequence[int], names: Sequence[str], shards: int) -> list[list[Part]]:
    """The files that each of `shards` tasks reads: every file whole in one task, or its rows dealt out to several.

    Largest file first (equal sizes by name), each to the task with the fewest bytes so far (then the lowest number);
    inside a task files are in name order. Fewer files than tasks: every file gets one task, and each further task goes
    to the file with the most bytes per task. Every row of every file is in exactly one task.
    """
    if len(sizes) >= shards:
        tasks: list[list[Part]] = [[] for _ in range(shards)]
        loads = [(0, number) for number in range(shards)]
        for file in sorted(range(len(sizes)), key=lambda each: (-sizes[each], names[each])):
            load, number = heapq.heappop(loads)
            tasks[number].append(Part(file))
            heapq.heappush(loads, (load + sizes[file], number))
        return [sorted(parts, key=lambda part: names[part.file]) for parts in tasks]
    order = sorted(range(len(sizes)), key=lambda each: names[each])
    counts = dict.fromkeys(order, 1)
    heap = [(Fraction(-max(sizes[file], 1)), place, file) for place, file in enumerate(order)]
    heapq.heapify(heap)
    for _ in range(shards - len(sizes)):
        _, place, file = heapq.heappop(heap)
        counts[file] += 1
        heapq.heappush(heap, (Fraction(-max(sizes[file], 1), counts[file]), place, file))
    return [[Part(file, remainder, counts[file])] for file in order for remainder in range(counts[file])]


def row_hashes(seed: int, purpose: str, name_digest: int, rows: I64) -> tuple[U64, U64]:
    """A keyed 128-bit hash for each row number [N] of a file known by a 64-bit digest of its name."""
    words = np.empty((len(rows), 2), np.uint64)
    words[:, 0] = np.uint64(name_digest)
    words[:, 1] = rows
    return hash_words(derive_key(seed, purpose), words)


def ratio_counts(units: int, ratios: Mapping[Split, float], what: str) -> dict[Split, int]:
    """How many of `units` are of each split. what: "rows of math" and so on, for the error.

    Raises `InputError` where fewer units are there than splits have a ratio above zero: none is left empty silently.
    """
    asked = [split for split in SPLITS if ratios.get(split, 0) > 0]
    if units < len(asked):
        listed = ", ".join(f"{split} {ratios[split]}" for split in asked)
        raise InputError(
            f"{what}: {units:,} cannot fill {len(asked)} splits ({listed}); "
            f"give more data, or set the ratio of a split to 0"
        )
    counts: dict[Split, int] = dict.fromkeys(SPLITS, 0)
    left = units
    for place, split in enumerate(("test", "valid", "train")):
        if split not in asked:
            continue
        behind = sum(other in asked for other in ("test", "valid", "train")[place + 1 :])
        wanted = max(1, floor(Fraction(repr(float(ratios[split]))) * units + Fraction(1, 2)))
        counts[split] = min(wanted, left - behind) if behind else left
        left -= counts[split]
    return counts


def split_units(high: U64, low: U64, ratios: Mapping[Split, float], what: str) -> tuple[U8, dict[Split, int]]:
    """The split of every row, from the 128-bit hash of its unit [N] → uint8 [N], and the units of each split.

    Rows with equal hashes are one unit and never apart.
    """
    order = np.lexsort((low, high))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    unit_of = np.cumsum(first) - 1
    units = int(first.sum())
    counts = ratio_counts(units, ratios, what)
    border = counts["test"], counts["test"] + counts["valid"]
    split_of_unit = np.full(units, TRAIN, np.uint8)
    split_of_unit[: border[0]] = TEST
    split_of_unit[border[0] : border[1]] = VALID
    side = np.empty(len(order), np.uint8)
    side[order] = split_of_unit[unit_of]
    return side, counts


def thinned(weights: Sequence[float], tokens: Sequence[I64], orders: Sequence[U64]) -> list[npt.NDArray[np.bool_]]:
    """Which rows of each dataset a split takes, so that token shares are as the weights: bool masks, one a dataset.

    tokens: of every row, per dataset; orders: the keyed hash that rows are taken by, parallel. See the module.
    """
    totals = [int(each.sum()) for each in tokens]
    given = [place for place, weight in enumerate(weights) if weight > 0 and totals[place]]
    masks = [np.full(len(each), weights[place] > 0, np.bool_) for place, each in enumerate(tokens)]
    if len({weights[place] for place in given}) <= 1:
        return masks
    exact = {place: Fraction(repr(float(weights[place]))) for place in given}
    scale = min(totals[place] / exact[place] for place in given)
    for place in given:
        target = floor(scale * exact[place])
        if target >= totals[place]:
            continue
        order = np.argsort(orders[place], kind="stable")
        held = np.cumsum(tokens[place][order])
        behind = int(np.searchsorted(held, target))  # the first count of rows that reaches the target, less one
        before = int(held[behind - 1]) if behind else 0
        taken = behind + 1 if int(held[behind]) - target < target - before else behind
        masks[place] = np.zeros(len(order), np.bool_)
        masks[place][order[: max(1, taken)]] = True
    return masks


def shard_counts(bins: Mapping[Split, int], tokens: Mapping[Split, int], asked: int | None) -> dict[Split, int]:
    """Output shards of each split of a dataset: in proportion to bins if `asked` says how many, else by tokens.

    At least one where there are bins, never more than bins; without `asked`, a shard holds about 2^26 tokens.
    """
    total = sum(bins.values())
    counts: dict[Split, int] = {}
    for split, count in bins.items():
        share = -(-tokens[split] // (1 << 26)) if asked is None else (2 * asked * count + total) // (2 * total or 1)
        counts[split] = min(count, max(1, share))
    return counts


def even_cuts(count: int, shards: int) -> list[tuple[int, int]]:
    """0..count-1 cut into `shards` runs (start, stop) whose lengths differ by one at most."""
    return [(count * place // shards, count * (place + 1) // shards) for place in range(shards)]
