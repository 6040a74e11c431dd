"""Which windows a split has: what blocks a start, how many are left of each entity, what to do if there are none."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.arrays import I64
from headrace.errors import InputError
from headrace.series.arrays.windows import NOTHING, Missing, Runs, Segments, find_valid_sequences
from headrace.series.windows.gather import Matrices
from headrace.series.windows.options import WindowOptions

if TYPE_CHECKING:
    from headrace.series.windows.store import SeriesStore
    from headrace.series.windows.windows import Windows

log = logging.getLogger("headrace")

_NAMED = 5  # entities without a window that a line names
_TRIED = 64  # input lengths, where a stride leaves gaps between those that work


class Blockers(NamedTuple):
    """Runs of rows that may not be among a window's inputs, its future, its target."""

    inputs: Runs = NOTHING
    future: Runs = NOTHING
    target: Runs = NOTHING


def blockers_of(matrices: Matrices, features: int, columns: int, options: WindowOptions) -> Blockers:
    """What these options block, found by one pass over the values; nothing where incomplete windows are kept."""
    if options.incomplete != "skip":
        return Blockers()
    parts = zip(matrices.matrices, matrices.bases.tolist(), strict=False)
    missing = Missing.join([Missing.find(each, first_row=base) for each, base in parts], columns)
    forcing = missing.runs(slice(1, 1 + features))
    return Blockers(
        inputs=missing.runs(slice(0, 1 + features)) if options.is_autoregressive else forcing,
        future=forcing if options.future != "none" else NOTHING,
        target=missing.runs(0),
    )


def row_ranges(store: SeriesStore, split: str, options: WindowOptions) -> tuple[I64, I64]:
    """The rows of every entity that a split's windows may be in: where they begin and end; int64 [E] each."""
    entities = store.entities
    low = {"val": entities.val_row, "test": entities.test_row}.get(split, np.zeros_like(entities.rows))
    high = {"train": entities.val_row, "val": entities.test_row}.get(split, entities.rows)
    begins = entities.first_row + low
    if options.history == "preceding":
        begins = np.maximum(begins - options.input_length, entities.first_row)
    return begins, entities.first_row + high


def segments_of(begins: I64, ends: I64, options: WindowOptions, blockers: Blockers) -> Segments:
    """The windows in the rows begins..ends-1 of every entity that touch nothing that is blocked."""
    return find_valid_sequences(
        begins,
        ends,
        input_length=options.input_length,
        output_length=options.horizon_rows,
        horizons=options.horizons,
        inputs=blockers.inputs,
        future=blockers.future,
        target=blockers.target,
        targets=options.targets,
        stride=options.stride,
    )


@dataclass(frozen=True)
class WindowCounts:
    """How many windows a split has, and who has none; `str` is a line about it.

    entities: with windows; of: all of the run. without: the names of those that have no window in the split.
    longest_without: rows of the longest of them there; window_rows: rows that a window takes.
    """

    split: str
    windows: int
    entities: int
    of: int
    without: tuple[str, ...]
    longest_without: int
    window_rows: int

    def __str__(self) -> str:
        told = f"{self.split}: {self.windows:,} windows of {self.entities:,} entities"
        if not self.without:
            return told
        short = self.longest_without < self.window_rows
        return (
            f"{told}; {len(self.without):,} of {self.of:,} have none, e.g. {', '.join(self.without[:_NAMED])}: "
            + (f"they have at most {self.longest_without:,} rows there, " if short else "values are missing there, ")
            + f"a window takes {self.window_rows:,}"
        )


def count_windows(windows: Windows, used: Windows | None = None) -> WindowCounts:
    """The counts of a split's windows. used: those of them that are served, where not all entities were chosen."""
    per_entity = windows.per_entity
    lacking = np.flatnonzero(per_entity == 0)
    rows = (windows.ends - windows.begins)[lacking]
    served = per_entity if used is None else used.per_entity
    return WindowCounts(
        split=windows.split,
        windows=int(served.sum()),
        entities=int((served > 0).sum()),
        of=len(per_entity),
        without=tuple(windows.entity_names(lacking)),
        longest_without=int(rows.max(initial=0)),
        window_rows=windows.options.window_rows,
    )


def tell_counts(counts: WindowCounts) -> None:
    """Log the counts: a warning where an entity has no window."""
    log.log(logging.WARNING if counts.without else logging.INFO, "%s", counts)


def check_some(windows: Windows, *, remedy: str = "") -> None:
    """Raise `InputError` where there is no window, with what would work: a loop over none would do nothing.

    remedy: what else to do, for the message.
    """
    if len(windows):
        return
    store, split, options = windows.store, windows.split, windows.options
    where = f"{store.root}: split {split!r} has no window"
    takes = f"a window takes {options.window_rows:,} rows (input_length {options.input_length:,}"
    takes += f" and output_length {options.output_length:,})" if options.horizon_rows else ")"
    begins, ends = row_ranges(store, split, options)
    rows = ends - begins
    longest = int(rows.max(initial=0))
    columns = store.columns
    found = blockers_of(Matrices(store.matrices, store.bases), len(columns.features), len(columns.names), options)
    if len(segments_of(begins, ends, options, found)):
        raise InputError(f"{where} of the entities that were chosen, 0 of {int(np.sum(rows > 0)):,}; choose others")
    remedies = _remedies(store, split, options, found)
    if longest < options.window_rows:
        why = f"and the longest of {len(rows):,} entities has {longest:,} there"
        remedies += _larger_share(store, split, options)
    else:
        fit = len(segments_of(begins, ends, options, Blockers()))
        lost = {
            name: fit - len(segments_of(begins, ends, options, Blockers(**{name: runs})))
            for name, runs in found._asdict().items()
        }
        words = ", ".join(f"{count:,} miss a value of the {name}" for name, count in lost.items() if count)
        why = f"{fit:,} would fit, and {words}" if words else f"{fit:,} would fit, and each misses some value"
        remedies += [
            "prepare the series with a larger max_imputation_gap_size or without the columns that miss most",
            'pass targets="any" or incomplete="keep"',
        ]
    remedies += [remedy] if remedy else []
    raise InputError(f"{where}: {takes}, {why}; {'; or '.join(remedies)}")


def _remedies(store: SeriesStore, split: str, options: WindowOptions, blockers: Blockers) -> list[str]:
    """Options that give windows, each tried."""

    def count(tried: WindowOptions) -> int:
        return len(segments_of(*row_ranges(store, split, tried), tried, blockers))

    begins, ends = row_ranges(store, split, replace(options, history="within"))
    low, high = 0, int((ends - begins).max(initial=0))
    every = replace(options, stride=1)  # then a window without its first input is a window too
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(replace(every, input_length=middle)) else (low, middle - 1)
    lengths = range(low, max(0, low - _TRIED), -1) if options.stride > 1 else range(low, low - 1, -1)
    works = next((length for length in lengths if length and count(replace(options, input_length=length))), None)
    told = [] if works is None else [f"give input_length {works:,}, the longest that gives a window"]
    if works is None and not low:
        told.append("no input_length gives a window: give a shorter output_length")
    if options.history == "within" and split in ("val", "test"):
        preceding = count(replace(options, history="preceding"))
        if preceding:
            told.append(f'pass history="preceding" ({preceding:,} windows)')
    return told


def _larger_share(store: SeriesStore, split: str, options: WindowOptions) -> list[str]:
    """The share of an entity's targets that would be a window's rows, in the entity that is the longest."""
    needed = options.horizon_rows if options.history == "preceding" and split != "train" else options.window_rows
    share = needed / max(1, int(store.entities.rows.max(initial=0)))
    if split == "all" or share >= 1:
        return []
    return [f"prepare the series with {split}_ratio of about {math.ceil(share * 100) / 100:.2f} or more"]
