"""Find a split's windows: what blocks a start, how many each entity has left, what to do if there are none."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.arrays import I64
from headrace.errors import InputError
from headrace.series.arrays.windows import NOTHING, Missing, Runs, Segments, find_valid_sequences
from headrace.series.windows.options import WindowOptions
from headrace.series.windows.store import SeriesStore

if TYPE_CHECKING:
    from headrace.series.windows.windows import Windows

_NAMED = 5  # entities without a window that a line names
_TRIED = 64  # input lengths, where a stride leaves gaps between those that work


class Blockers(NamedTuple):
    """Runs of rows that may not be among a window's inputs, its future, its target."""

    inputs: Runs = NOTHING
    future: Runs = NOTHING
    target: Runs = NOTHING


def blockers_of(store: SeriesStore, options: WindowOptions) -> Blockers:
    """Find what these options block by one pass over the values; nothing where incomplete windows are kept."""
    if options.incomplete != "skip":
        return Blockers()
    matrices, behind = store.matrices, 1 + len(store.columns.features)
    missing = Missing.find(matrices.matrices, columns=matrices.columns)
    forcing = missing.runs(slice(1, behind))
    return Blockers(
        inputs=missing.runs(slice(0, behind)) if options.is_autoregressive else forcing,
        future=forcing if options.future != "none" else NOTHING,
        target=missing.runs(0),
    )


def row_ranges(store: SeriesStore, split: str, options: WindowOptions) -> tuple[I64, I64]:
    """Return where the rows of every entity begin and end that a split's windows may be in; int64 [E] each."""
    entities = store.entities
    low = {"val": entities.val_row, "test": entities.test_row}.get(split, np.zeros_like(entities.rows))
    high = {"train": entities.val_row, "val": entities.test_row}.get(split, entities.rows)
    begins = entities.first_row + low
    if options.history == "preceding":
        begins = np.maximum(begins - options.input_length, entities.first_row)
    return begins, entities.first_row + high


def segments_of(store: SeriesStore, split: str, options: WindowOptions, blockers: Blockers) -> Segments:
    """Find the windows of a split that touch nothing that is blocked."""
    begins, ends = row_ranges(store, split, options)
    return find_valid_sequences(
        begins,
        ends,
        input_length=options.input_length,
        output_length=options.horizon_rows,
        horizons=options.horizons,
        targets=options.targets,
        stride=options.stride,
        **blockers._asdict(),
    )


@dataclass(frozen=True)
class WindowCounts:
    """Count a split's windows, and name the entities without any; `str` is a line about it.

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
    """Count a split's windows. used: those of them that are served, where not all entities were chosen."""
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


def check_some(windows: Windows, *, remedy: str = "") -> None:
    """Raise `InputError` where there is no window, with what would work: a loop over none would do nothing.

    remedy: what else to do, for the message.
    """
    if len(windows):
        return
    store, split, options = windows.store, windows.split, windows.options
    where = f"{store.root}: split {split!r} has no window"
    begins, ends = row_ranges(store, split, options)
    rows = ends - begins
    longest = int(rows.max(initial=0))
    found = blockers_of(store, options)
    if len(segments_of(store, split, options, found)):
        raise InputError(f"{where} of the entities that were chosen, 0 of {int(np.sum(rows > 0)):,}; choose others")
    remedies = _remedies(store, split, options, found)
    if longest < options.window_rows:
        why = f"and the longest of {len(rows):,} entities has {longest:,} there"
        # the share of the longest entity's targets that would be a window's rows
        needed = options.horizon_rows if options.history == "preceding" and split != "train" else options.window_rows
        share = math.ceil(100 * needed / max(1, int(store.entities.rows.max(initial=0)))) / 100
        if split != "all" and share < 1:
            remedies.append(f"prepare the series with {split}_ratio of about {share:.2f} or more")
    else:
        fit = len(segments_of(store, split, options, Blockers()))
        kept = {name: Blockers(**{name: runs}) for name, runs in found._asdict().items()}
        lost = {name: fit - len(segments_of(store, split, options, each)) for name, each in kept.items()}
        words = [f"{count:,} miss a value of the {name}" for name, count in lost.items() if count]
        why = f"{fit:,} would fit, and {', '.join(words) or 'each misses some value'}"
        remedies += [
            "prepare the series with a larger max_imputation_gap_size or without the columns that miss most",
            'pass targets="any" or incomplete="keep"',
        ]
    remedies += [remedy] if remedy else []
    takes = f"a window takes {options.window_rows:,} rows (input_length {options.input_length:,}"
    takes += f" and output_length {options.output_length:,})" if options.horizon_rows else ")"
    raise InputError(f"{where}: {takes}, {why}; {'; or '.join(remedies)}")


def _remedies(store: SeriesStore, split: str, options: WindowOptions, blockers: Blockers) -> list[str]:
    """Options that give windows, each tried."""

    def count(**changed: Any) -> int:
        return len(segments_of(store, split, options.model_copy(update=changed), blockers))

    begins, ends = row_ranges(store, split, options.model_copy(update={"history": "within"}))
    tried = range(1, int((ends - begins).max(initial=0)) + 1)
    # at stride 1 a window without its first input is a window too
    most = bisect_left(tried, True, key=lambda length: not count(stride=1, input_length=length))
    lengths = range(most, max(0, most - (_TRIED if options.stride > 1 else 1)), -1)
    works = next((length for length in lengths if count(input_length=length)), None)
    told = [] if works is None else [f"give input_length {works:,}, the longest that gives a window"]
    if works is None and not most:
        told.append("no input_length gives a window: give a shorter output_length")
    if options.history == "within" and split in ("val", "test"):
        preceding = count(history="preceding")
        if preceding:
            told.append(f'pass history="preceding" ({preceding:,} windows)')
    return told
