"""Choose which sequences of each dataset go into which split, and count why the others go nowhere.

Pure.

Splits. A unit is the value of the entity field if one is given, else a row. Units are ordered by a
keyed hash. The first `round(n × test_ratio)` are test, the next `round(n × val_ratio)` valid, the
rest train (halves round up; a ratio above zero gives at least one unit). Counts are exact, and do
not depend on shards, workers or file order. Each dataset is split separately. With an entity, all
datasets are split together, so that no value is in two splits. In a blend per split the split is
given. There, a value that is in test is left out of valid and train, and one that is in valid is
left out of train.

Duplicates. Rows are joined into one unit if they ask the same (the same digest of user turns, or of
named columns), if a sequence of one is a sequence of the other, token for token and label for
label, if sequences of theirs are near and the settings ask for that, or if they have the same
entity. Joining is transitive: a unit is a connected component. A unit in several datasets is in the
split that the first of them gave it, and counts there.

Weights are relative shares of TOKENS inside each split. The mix is as large as possible without any
dataset giving more than it has, or in train more than `repeat` times that. The dataset that limits
the mix gives everything. Each other one is taken whole as often as it fits its share, and then its
rows once more in the order of a keyed hash, until their tokens are as near to the share as whole
rows can be. Equal weights take everything, in train `epochs` times. Weight 0 takes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8, U64, Bools, distinct, least_of_component, number_rows
from headrace.digest import derive_key
from headrace.errors import InputError
from headrace.keyed_hash import hash_words
from headrace.packing.blend import SPLITS, BlendDataset, BlendSource, Split
from headrace.packing.sequences import Origins
from headrace.settings import Duplicates

if TYPE_CHECKING:
    from headrace.near.stages import Near

Value = TypeVar("Value", bound=np.generic)

TRAIN = 0
VALID = 1
TEST = 2
NOWHERE = 255
KEY_IN = ("key_in_test", "key_in_valid")
CONTENT_IN = ("content_in_test", "content_in_valid")
DUPLICATE = "duplicate"
WEIGHT = "weight"
REASONS = (*KEY_IN, *CONTENT_IN, DUPLICATE, WEIGHT)


@dataclass(frozen=True)
class Choice:
    """The split of every sequence of every dataset (`NOWHERE` for none), what is left out and why,
    and units per split.

    left_out: rows, sequences, tokens and labels that are in no split, by reason.
    copies: how many times each sequence is taken if it is in a split. repeated: tokens and labels
    taken again. units: one record per independent draw, with what was drawn and the number of units
    of each split. duplicates: counts of rows with the same content; None if duplicates were not
    looked for.
    """

    splits: Sequence[U8]
    copies: Sequence[I64]
    left_out: Mapping[str, Counter[str]]
    repeated: Mapping[str, int]
    units: Sequence[tuple[str, Mapping[Split, int]]]
    duplicates: Mapping[str, int] | None = None


@dataclass
class _DatasetRows:
    """The rows of a dataset. side: the split of each row, [rows]."""

    origins: Origins
    side: U8

    def __post_init__(self) -> None:
        self.first = self.origins.first_of_row
        self.units = self.origins.unit_high[self.first], self.origins.unit_low[self.first]
        self.copies = np.ones(len(self.first), np.int64)

    def per_sequence(self, values: npt.NDArray[Value]) -> npt.NDArray[Value]:
        """Repeat a value per row for each of the row's sequences."""
        return np.repeat(values, np.diff(self.first, append=len(self.origins)))

    def leave_out(self, doomed: Bools, left_out: Counter[str]) -> None:
        """Remove these rows from their splits and count what they hold."""
        left_out.update(self.origins.counts(np.flatnonzero(self.per_sequence(doomed))))
        self.side[doomed] = NOWHERE


def choose(  # noqa: PLR0913 - arguments are settings
    datasets: Sequence[BlendDataset],
    origins: Sequence[Origins],
    *,
    ratios: Mapping[Split, float],
    keyed: bool,
    seed: int,
    duplicates: Duplicates,
    least_tokens: int = 1,
    near: Near | None = None,
) -> Choice:
    """Choose the split of every sequence. Sequences of one row are always in the same split.

    origins: one per dataset. keyed: whether an entity is given. duplicates: as in the settings.
    least_tokens: shorter sequences are not compared. near: near-duplicate sequences, if the
    settings ask for them.
    """
    data = [
        _DatasetRows(dataset, np.full(len(dataset.first_of_row), TRAIN, np.uint8))
        for dataset in origins
    ]
    repeats = None
    if duplicates != "allow":
        repeats = find_repeats(origins, least_tokens, None if near is None else near.group)
    left_out = {reason: Counter[str]() for reason in REASONS}
    if repeats is not None and duplicates == "drop":
        for rows, copies in zip(data, _cut(data, repeats.is_copy), strict=True):
            rows.leave_out(copies, left_out[DUPLICATE])
    joined = None
    if duplicates != "count":
        joined = repeats
    fixed_splits = [dataset.split for dataset in datasets if dataset.split is not None]
    units: list[tuple[str, Mapping[Split, int]]] = []
    if fixed_splits:
        for rows, split in zip(data, fixed_splits, strict=True):
            rows.side[rows.side != NOWHERE] = SPLITS.index(split)
        if keyed:
            _drop_shared_units(data, number_rows(*_units(data)), KEY_IN, left_out)
        if joined is not None:
            _drop_shared_units(data, joined.unit, CONTENT_IN, left_out)
    else:
        units = _draw_splits(datasets, data, ratios, joined, keyed=keyed)
    for number in (TRAIN, VALID, TEST):
        _weigh([dataset.source for dataset in datasets], data, number, seed, left_out[WEIGHT])
    copies_per_sequence = [rows.per_sequence(rows.copies) for rows in data]
    return Choice(
        [rows.per_sequence(rows.side) for rows in data],
        copies_per_sequence,
        left_out,
        _count_repeated(data, copies_per_sequence),
        units,
        _count_duplicates(data, repeats, near),
    )


def _count_repeated(
    data: Sequence[_DatasetRows], copies_per_sequence: Sequence[I64]
) -> dict[str, int]:
    """Count the tokens and labels that are taken again."""
    repeated = {"tokens": 0, "labels": 0}
    for rows, times in zip(data, copies_per_sequence, strict=True):
        repeated["tokens"] += int(((times - 1) * rows.origins.lengths).sum())
        repeated["labels"] += int(((times - 1) * rows.origins.labels).sum())
    return repeated


def _cut(data: Sequence[_DatasetRows], values: npt.NDArray[Value]) -> list[npt.NDArray[Value]]:
    """Cut one value for each of all rows into those of each dataset."""
    return np.split(values, np.cumsum([len(rows.first) for rows in data])[:-1])


def _units(data: Sequence[_DatasetRows]) -> tuple[U64, U64]:
    """Return the high and low halves of the unit hashes of all rows."""
    high = np.concatenate([rows.units[0] for rows in data])
    low = np.concatenate([rows.units[1] for rows in data])
    return high, low


def _draw_splits(
    datasets: Sequence[BlendDataset],
    data: Sequence[_DatasetRows],
    ratios: Mapping[Split, float],
    joined: RowRepeats | None,
    *,
    keyed: bool,
) -> list[tuple[str, Mapping[Split, int]]]:
    """Draw the split of each row by its unit; return the units of each split.

    joined: rows whose components are the units; None if every row keeps its own unit. keyed: draw
    from all datasets together.
    """
    if joined is not None:
        halves = (_cut(data, half) for half in (joined.unit_high, joined.unit_low))
        for rows, high, low in zip(data, *halves, strict=True):
            rows.units = high, low
    if not keyed:
        return _split_datasets(datasets, data, ratios, None if joined is None else joined.unit)
    high, low = _units(data)
    side = np.concatenate([rows.side for rows in data])
    selected = side != NOWHERE
    side[selected], counts = split_units(
        high[selected], low[selected], ratios, "conversation keys of the blend"
    )
    for rows, dataset_side in zip(data, _cut(data, side), strict=True):
        rows.side = dataset_side
    return [("keys", counts)]


def _count_duplicates(
    data: Sequence[_DatasetRows], repeats: RowRepeats | None, near: Near | None
) -> dict[str, int] | None:
    """Count the rows that repeat others, and those whose unit is also in an earlier split.

    None if rows were not compared.
    """
    if repeats is None:
        return None
    side = np.concatenate([rows.side for rows in data])
    unit = repeats.unit
    earliest = np.full(int(unit.max(initial=-1)) + 1, NOWHERE, np.uint8)
    np.minimum.at(earliest, unit, side)
    earlier = (side != NOWHERE) & (earliest[unit] < side)  # train, then valid
    counts = {
        "rows": len(unit),
        "same_content": len(unit) - int(repeats.content.max(initial=-1)) - 1,
        "copies": int(repeats.is_copy.sum()),
        "largest": int(np.bincount(unit).max(initial=0)),
        "seen_in_earlier_splits": int(earlier.sum()),
    }
    if near is not None:
        counts["near_pairs"] = int((near.jaccard < 1).sum())
        counts["near_not_compared"] = near.not_compared
    return counts


def _split_datasets(
    datasets: Sequence[BlendDataset],
    data: Sequence[_DatasetRows],
    ratios: Mapping[Split, float],
    unit: I64 | None,
) -> list[tuple[str, Mapping[Split, int]]]:
    """Split each dataset by itself. unit: the unit of every row.

    A unit that an earlier dataset also has stays in the split that it got there.
    """
    counts: list[tuple[str, Mapping[Split, int]]] = []
    placed = np.full(0 if unit is None else int(unit.max(initial=-1)) + 1, NOWHERE, np.uint8)
    begin = 0
    for rows, dataset in zip(data, datasets, strict=True):
        selected = rows.side != NOWHERE
        high, low = rows.units
        known = None
        what = f"rows of {dataset.source.name}"
        if unit is not None:
            mine = unit[begin : begin + len(selected)][selected]
            known = placed[mine]
            if len(distinct(mine)) != len(mine):
                what += ", those that repeat each other counted once"
        rows.side[selected], split_counts = split_units(
            high[selected], low[selected], ratios, what, known
        )
        if unit is not None:
            placed[mine] = rows.side[selected]
        counts.append((dataset.source.name, split_counts))
        begin += len(selected)
    return counts


def ratio_counts(units: int, ratios: Mapping[Split, float], what: str) -> dict[Split, int]:
    """Count how many of `units` go to each split.

    what: the units in words for the error, such as "rows of math".

    Raises `InputError` if there are fewer units than splits with a ratio above zero, so that no
    split is left empty.
    """
    nonempty = [split for split in SPLITS if ratios.get(split, 0) > 0]
    if units < len(nonempty):
        listed = ", ".join(f"{split} {ratios[split]}" for split in nonempty)
        raise InputError(
            f"{what}: {units:,} cannot fill {len(nonempty)} splits ({listed})",
            remedy="give more data, or set the ratio of a split to 0",
        )
    counts: dict[Split, int] = dict.fromkeys(SPLITS, 0)
    left = units
    # test first, train takes the rest
    for later_splits, split in reversed(list(enumerate(nonempty))):
        rounded = max(1, floor(Fraction(repr(float(ratios[split]))) * units + Fraction(1, 2)))
        if later_splits:
            counts[split] = min(rounded, left - later_splits)
        else:
            counts[split] = left
        left -= counts[split]
    return counts


def split_units(
    high: U64, low: U64, ratios: Mapping[Split, float], what: str, placed: U8 | None = None
) -> tuple[U8, dict[Split, int]]:
    """Assign every row to a split by the 128-bit hash of its unit [N].

    Returns uint8 [N] and the units of each split.

    Rows with equal hashes are one unit and share a split. placed: the split that a row's unit has
    already, or `NOWHERE`.
    """
    order = np.lexsort((low, high))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    unit_of = np.cumsum(first) - 1
    units = int(first.sum())
    counts = ratio_counts(units, ratios, what)
    if placed is None:
        split_of_unit = np.full(units, NOWHERE, np.uint8)
    else:
        split_of_unit = placed[order][first]
    for number in (TEST, VALID):
        lacking = max(0, counts[SPLITS[number]] - int((split_of_unit == number).sum()))
        split_of_unit[np.flatnonzero(split_of_unit == NOWHERE)[:lacking]] = number
    split_of_unit[split_of_unit == NOWHERE] = TRAIN
    side = np.empty(len(order), np.uint8)
    side[order] = split_of_unit[unit_of]
    return side, {
        split: int((split_of_unit == number).sum()) for number, split in enumerate(SPLITS)
    }


def copies_of(
    sources: Sequence[BlendSource], tokens: Sequence[I64], orders: Sequence[U64], *, repeats: bool
) -> list[I64]:
    """Choose how many times a split takes each row of each dataset, so that token shares follow the
    weights.

    The module describes the rule. tokens: tokens of every row, per dataset. orders: the keyed hash
    that orders the rows, parallel to tokens. repeats: whether a row may be taken more than once, as
    in train.
    """
    totals = [int(values.sum()) for values in tokens]
    copies = [
        np.full(len(values), sources[number].weight > 0, np.int64)
        for number, values in enumerate(tokens)
    ]
    weighted = [
        number for number, source in enumerate(sources) if source.weight > 0 and totals[number]
    ]
    weights = {number: Fraction(repr(float(sources[number].weight))) for number in weighted}
    most = {
        number: Fraction(repr(float(sources[number].repeat))) if repeats else Fraction(1)
        for number in weighted
    }
    if len(set(weights.values())) <= 1 and all(values == 1 for values in most.values()):
        epochs = {
            number: Fraction(repr(float(sources[number].epochs))) if repeats else Fraction(1)
            for number in weighted
        }
        targets = {number: floor(totals[number] * times) for number, times in epochs.items()}
    else:
        scale = min(totals[number] * most[number] / weights[number] for number in weighted)
        targets = {number: floor(scale * weight) for number, weight in weights.items()}
    for number, target in targets.items():
        if repeats:
            complete_turns, target = divmod(target, totals[number])
        else:
            complete_turns, target = (0, min(target, totals[number]))
        order = np.argsort(orders[number], kind="stable")
        cumulative = np.cumsum(tokens[number][order])
        # rows before the one that reaches the target
        rows_before = int(np.searchsorted(cumulative, target))
        before = 0
        if rows_before:
            before = int(cumulative[rows_before - 1])
        if int(cumulative[rows_before]) - target < target - before:
            extra_rows = rows_before + 1
        else:
            extra_rows = rows_before
        copies[number][:] = complete_turns
        copies[number][order[: extra_rows if complete_turns else max(1, extra_rows)]] += 1
    return copies


def _drop_shared_units(
    data: Sequence[_DatasetRows],
    units: I64,
    reasons: tuple[str, str],
    left_out: Mapping[str, Counter[str]],
) -> None:
    """Leave out units that a later split also has (train, valid, test).

    units: number of the unit of each of all rows.

    Test keeps its units, valid keeps those that are not in test, and train keeps the rest.
    """
    for keeper, reason, others in (
        (TEST, reasons[0], (VALID, TRAIN)),
        (VALID, reasons[1], (TRAIN,)),
    ):
        side = np.concatenate([rows.side for rows in data])
        doomed = np.isin(side, others) & np.isin(units, units[side == keeper])
        for rows, doomed_rows in zip(data, _cut(data, doomed), strict=True):
            rows.leave_out(doomed_rows, left_out[reason])


def _weigh(
    sources: Sequence[BlendSource],
    data: Sequence[_DatasetRows],
    number: int,
    seed: int,
    left_out: Counter[str],
) -> None:
    """Leave out or repeat rows of one split so that the token shares of its datasets follow the
    weights.
    """
    rows = [np.flatnonzero(rows_of.side == number) for rows_of in data]
    here = [index for index, rows_of in enumerate(rows) if len(rows_of)]
    tokens = []
    orders = []
    for index in here:
        origins = data[index].origins
        first = data[index].first
        tokens.append(np.add.reduceat(origins.lengths, first)[rows[index]])
        rows_of = first[rows[index]]
        number_in_file = origins.row[rows_of].astype(np.uint64) ^ (
            origins.file[rows_of].astype(np.uint64) << np.uint64(40)
        )
        words = np.stack([origins.unit_low[rows_of], number_in_file], axis=1)
        orders.append(hash_words(derive_key(seed, "packed_sequences.weight"), words)[0])
    copies_of_dataset = copies_of(
        [sources[index] for index in here], tokens, orders, repeats=number == TRAIN
    )
    for index, copies in zip(here, copies_of_dataset, strict=True):
        data[index].copies[rows[index]] = np.maximum(copies, 1)
        doomed = np.zeros(len(data[index].side), np.bool_)
        doomed[rows[index][copies == 0]] = True
        data[index].leave_out(doomed, left_out)


@dataclass(frozen=True)
class RowRepeats:
    """All rows of all datasets, end to end [R], compared with each other.

    unit: number of each row's component. unit_high, unit_low: the least hash of the component's
    rows, which decides its split. A row that repeats no other row is therefore drawn as it would be
    alone.
    content: number of the content of each row. is_copy: whether an earlier row has all sequences of
    a row.
    """

    unit: I64
    unit_high: U64
    unit_low: U64
    content: I64
    is_copy: Bools


def find_repeats(  # noqa: PLR0914 - one array step after another
    origins: Sequence[Origins], least_tokens: int, near: I64 | None = None
) -> RowRepeats:
    """Compare all rows of all datasets. least_tokens: shorter sequences join no rows.

    near: a number for each of all sequences, int64. Near duplicates have the same number.
    """
    every = Origins.joined(origins)
    counts = np.concatenate([np.diff(part.first_of_row, append=len(part)) for part in origins])
    first = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(counts)), counts)
    entity = number_rows(every.unit_high[first], every.unit_low[first])
    content = number_rows(every.content_high[first], every.content_low[first])
    long = every.lengths >= least_tokens
    sequence = number_rows(every.prints[long])
    groups = [
        (np.arange(len(counts)), entity),
        (np.arange(len(counts)), content),
        (row[long], sequence),
    ]
    least = least_of_component(len(counts), groups if near is None else [*groups, (row, near)])
    _, unit = np.unique(least, return_inverse=True)
    drawn = first[_lowest_of_unit(unit, every.unit_high[first], every.unit_low[first])]
    sums = every.prints
    if len(first):
        sums = np.add.reduceat(every.prints, first)
    _, first_copy = np.unique(
        number_rows(content.astype(np.uint64), sums, counts.astype(np.uint64)), return_index=True
    )
    is_copy = np.ones(len(counts), np.bool_)
    is_copy[first_copy] = False
    return RowRepeats(unit, every.unit_high[drawn], every.unit_low[drawn], content, is_copy)


def _lowest_of_unit(unit: I64, high: U64, low: U64) -> I64:
    """Return for each row the row of its unit that has the least hash."""
    order = np.lexsort((low, high))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    lowest = np.full(int(unit.max(initial=-1)) + 1, len(order))
    np.minimum.at(lowest, unit, rank)
    least: I64 = order[lowest[unit]]
    return least
