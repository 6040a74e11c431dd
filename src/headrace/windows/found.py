"""Which windows a split has: what blocks a start, the segments that are left, and why there may be none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.arrays import I64
from headrace.errors import InputError
from headrace.series.windows import NOTHING, Missing, Runs, Segments, find_valid_sequences
from headrace.windows.gather import Matrices
from headrace.windows.options import WindowOptions

if TYPE_CHECKING:
    from headrace.windows.windows import Windows


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


def check_some(windows: Windows) -> None:
    """Raise `InputError`, which says why, where there is no window: a loop over none would train on nothing."""
    if len(windows):
        return
    store, options = windows.store, windows.options
    where = f"{store.root}: split {windows.split!r} has no window"
    takes = f"a window takes {options.window_rows:,} rows (input_length {options.input_length:,}"
    takes += f" and output_length {options.output_length:,})" if options.horizon_rows else ")"
    rows = windows.ends - windows.begins
    longest = int(rows.max(initial=0))
    if longest < options.window_rows:
        reach = (
            "" if options.history == "preceding" or windows.split in ("train", "all") else ', or history="preceding"'
        )
        raise InputError(
            f"{where}: {takes}, and the longest of {len(rows):,} entities has {longest:,} there; give shorter"
            f" ones{reach}, or prepare the series with a larger share for this split"
        )
    fit = len(segments_of(windows.begins, windows.ends, options, Blockers()))
    columns = store.columns
    found = blockers_of(windows.matrices, len(columns.features), len(columns.names), options)
    lost = {
        name: fit - len(segments_of(windows.begins, windows.ends, options, Blockers(**{name: runs})))
        for name, runs in found._asdict().items()
    }
    if not any(lost.values()):
        raise InputError(f"{where} of the entities that were chosen, 0 of {int(np.sum(rows > 0)):,}; choose others")
    words = ", ".join(f"{count:,} miss a value of the {name}" for name, count in lost.items() if count)
    raise InputError(
        f"{where}: {takes}, {fit:,} would fit, and {words}; prepare the series with a larger max_imputation_gap_size,"
        ' give shorter ones, or pass targets="any" or incomplete="keep"'
    )
