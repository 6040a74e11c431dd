"""Choose which sequences of each dataset go into which split, and why the others go nowhere. Pure.

Splits. A unit is the value of the entity field where one is given, else a row. Units are ordered by a keyed hash; the
first `round(n × test_ratio)` are test, the next `round(n × val_ratio)` valid, the rest train (halves round up; a ratio
above zero gives at least one unit). Counts are exact; shards, workers and file order have no part in them. Each dataset
is split for itself. With an entity all datasets are split together, so that no value is in two splits. In a blend per
split the split is given; there a value that is in a later split too (test, then valid) is left out of the earlier ones.

Weights are relative shares of TOKENS inside each split. Nothing is repeated: the mix is as large as it can be
without any dataset giving more than it has, so the scarcest dataset is taken whole and of the others so many rows, in
the order of a keyed hash, that their tokens come as near to their share as whole rows can. Equal weights ask for no
mix: everything is taken. Weight 0 takes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8, U64
from headrace.digest import derive_key, hash_words
from headrace.errors import InputError
from headrace.packing.blend import SPLITS, Dataset, Split
from headrace.packing.sequences import Origins

Value = TypeVar("Value", bound=np.generic)

TRAIN, VALID, TEST = 0, 1, 2
NOWHERE = 255
KEY_IN_TEST, KEY_IN_VALID, WEIGHT = "key_in_test", "key_in_valid", "weight"
REASONS = (KEY_IN_TEST, KEY_IN_VALID, WEIGHT)


@dataclass(frozen=True)
class Choice:
    """The split of every sequence of every dataset (`NOWHERE` for none), what is left out and why, units per split.

    left_out: per reason the rows, sequences, tokens and labels that are in no split.
    units: one record per independent draw: what was drawn, how many units each split got.
    """

    splits: Sequence[U8]
    left_out: Mapping[str, Counter[str]]
    units: Sequence[tuple[str, Mapping[Split, int]]]


@dataclass
class _Rows:
    """The rows of a dataset. side: the split of each [rows]."""

    origins: Origins
    side: U8

    def __post_init__(self) -> None:
        self.first = self.origins.first_of_row
        self.units = self.origins.unit_high[self.first], self.origins.unit_low[self.first]

    def per_sequence(self, values: npt.NDArray[Value]) -> npt.NDArray[Value]:
        """Repeat what is known of rows for each of their sequences."""
        return np.repeat(values, np.diff(self.first, append=len(self.origins)))

    def leave_out(self, doomed: npt.NDArray[np.bool_], left_out: Counter[str]) -> None:
        """Put these rows nowhere, and count what they hold."""
        lost = self.per_sequence(doomed)
        left_out.update(rows=int(doomed.sum()), sequences=int(lost.sum()))
        left_out.update(tokens=int(self.origins.lengths[lost].sum()), labels=int(self.origins.labels[lost].sum()))
        self.side[doomed] = NOWHERE


def choose(
    datasets: Sequence[Dataset], origins: Sequence[Origins], *, ratios: Mapping[Split, float], keyed: bool, seed: int
) -> Choice:
    """Choose the split of every sequence; sequences of one row are never apart.

    origins: of each dataset; keyed: whether an entity is given.
    """
    data = [_Rows(each, np.empty(0, np.uint8)) for each in origins]
    left_out = {reason: Counter[str]() for reason in REASONS}
    units: list[tuple[str, Mapping[Split, int]]] = []
    given = [each.split for each in datasets if each.split is not None]
    if given:
        for own, split in zip(data, given, strict=True):
            own.side = np.full(len(own.first), SPLITS.index(split), np.uint8)
        if keyed:
            _keep_keys_apart(data, left_out)
    elif keyed:
        high, low = (np.concatenate([own.units[half] for own in data]) for half in (0, 1))
        side, counts = split_units(high, low, ratios, "conversation keys of the blend")
        for own, part in zip(data, np.split(side, np.cumsum([len(own.first) for own in data])[:-1]), strict=True):
            own.side = part
        units.append(("keys", counts))
    else:
        for own, dataset in zip(data, datasets, strict=True):
            own.side, counts = split_units(*own.units, ratios, f"rows of {dataset.source.name}")
            units.append((dataset.source.name, counts))
    for number in (TRAIN, VALID, TEST):
        _thin([each.source.weight for each in datasets], data, number, seed, left_out[WEIGHT])
    return Choice([own.per_sequence(own.side) for own in data], left_out, units)


def ratio_counts(units: int, ratios: Mapping[Split, float], what: str) -> dict[Split, int]:
    """Count how many of `units` are of each split. what: "rows of math" and so on, for the error.

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
    for behind, split in reversed(list(enumerate(asked))):  # test first, train takes the rest
        wanted = max(1, floor(Fraction(repr(float(ratios[split]))) * units + Fraction(1, 2)))
        counts[split] = min(wanted, left - behind) if behind else left
        left -= counts[split]
    return counts


def split_units(high: U64, low: U64, ratios: Mapping[Split, float], what: str) -> tuple[U8, dict[Split, int]]:
    """Find the split of every row, from the 128-bit hash of its unit [N] → uint8 [N], and the units of each split.

    Rows with equal hashes are one unit and never apart.
    """
    order = np.lexsort((low, high))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    unit_of = np.cumsum(first) - 1
    units = int(first.sum())
    counts = ratio_counts(units, ratios, what)
    split_of_unit = np.full(units, TRAIN, np.uint8)
    split_of_unit[: counts["test"] + counts["valid"]] = VALID
    split_of_unit[: counts["test"]] = TEST
    side = np.empty(len(order), np.uint8)
    side[order] = split_of_unit[unit_of]
    return side, counts


def thinned(weights: Sequence[float], tokens: Sequence[I64], orders: Sequence[U64]) -> list[npt.NDArray[np.bool_]]:
    """Choose the rows of each dataset that a split takes, so that token shares are as the weights: a mask a dataset.

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


def _keep_keys_apart(data: Sequence[_Rows], left_out: Mapping[str, Counter[str]]) -> None:
    """Test keeps its keys, valid those that are not in test, train the rest."""
    keys = []
    for own in data:
        pairs = np.empty((len(own.first), 2), ">u8")  # 128 bits as 16 bytes, which numpy can sort and compare
        pairs[:, 0], pairs[:, 1] = own.units
        keys.append(pairs.view("S16").reshape(-1))
    for keeper, reason, others in ((TEST, KEY_IN_TEST, (VALID, TRAIN)), (VALID, KEY_IN_VALID, (TRAIN,))):
        held = np.unique(np.concatenate([key[own.side == keeper] for own, key in zip(data, keys, strict=True)]))
        for own, key in zip(data, keys, strict=True):
            own.leave_out(np.isin(own.side, others) & np.isin(key, held), left_out[reason])


def _thin(weights: Sequence[float], data: Sequence[_Rows], number: int, seed: int, left_out: Counter[str]) -> None:
    """Leave rows of one split out, so that the token shares of its datasets are as the weights."""
    rows = [np.flatnonzero(own.side == number) for own in data]
    here = [place for place, own in enumerate(rows) if len(own)]
    tokens, orders = [], []
    for place in here:
        origins, first = data[place].origins, data[place].first
        tokens.append(np.add.reduceat(origins.lengths, first)[rows[place]])
        own = first[rows[place]]
        words = np.empty((len(own), 2), np.uint64)  # what rows are, not where they were found
        words[:, 0] = origins.unit_low[own]
        words[:, 1] = origins.row[own].astype(np.uint64) ^ (origins.file[own].astype(np.uint64) << np.uint64(40))
        orders.append(hash_words(derive_key(seed, "packed_sequences.weight"), words)[0])
    for place, mask in zip(here, thinned([weights[place] for place in here], tokens, orders), strict=True):
        doomed = np.zeros(len(data[place].side), np.bool_)
        doomed[rows[place][~mask]] = True
        data[place].leave_out(doomed, left_out)
