"""One entity cleaned: on its regular axis, trimmed, cut into splits, short gaps filled – or why it fails. Pure.

Everything behind the axis, the trimming and the cut is decided for a row by rows before the next cut alone: gaps are
judged as they are seen there, and a value behind a cut that a pipeline cannot take is made missing there, instead of
failing the entity and so changing what trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.arrays import F64, I64, Bools
from headrace.formats.dates import MISSING
from headrace.series.arrays import gaps
from headrace.series.arrays.axis import Axis, Frequency, Placed, place
from headrace.series.arrays.cuts import Cut, cut, cut_at
from headrace.series.config import Series
from headrace.series.observed import Observed
from headrace.series.pipelines.fitted import reasons, without_result
from headrace.series.pipelines.settings import Resolved

DROPPED = ("entity_failed", "bad_time", "off_grid", "duplicate_time", "trimmed")
_MOST_CELLS = 1 << 29  # 4 GiB of one entity's axis
_HOUR = 3_600_000_000
_DAY = 24 * _HOUR


@dataclass(frozen=True)
class Imputed:
    """What became of missing values, of each column: int64 [C]. gaps: runs between values, inside what was kept.

    left_gaps: longer than may be filled; cut_gaps: left because a cut runs through them; unusable_values: made missing
    behind the train rows, because a step of a pipeline has no result for them.
    """

    filled_gaps: I64
    filled_values: I64
    left_gaps: I64
    cut_gaps: I64
    unusable_values: I64
    left_values: I64
    longest_gap: I64


@dataclass(frozen=True)
class Cleaned:
    """One entity. failure: why it is left out, else None, and then axis to imputed are there.

    axis: of the rows that are kept; values: float64 [T, C], NaN where missing; filled: bool [T, C]; target_observed:
    bool [T]. rows: source rows by split, or by the reason why they are in none.
    first_last: of each column, the rows of its first and last observed value: int64 [C, 2].
    """

    rows: Counter[str]
    failure: str | None = None
    required_targets: int = 0
    axis: Axis | None = None
    values: F64 | None = None
    filled: Bools | None = None
    cut: Cut | None = None
    imputed: Imputed | None = None
    first_last: I64 | None = None
    added_rows: int = 0
    trimmed_steps: tuple[int, int] = (0, 0)


def clean(
    settings: Series,
    resolved: Resolved,
    frequency: Frequency,
    observed: Observed,
    *,
    at: tuple[int, int] | None = None,
) -> Cleaned:
    """Clean the rows of one entity. O(steps of its axis) of memory.

    at: the rows where val and test begin, which are then not computed from the shares.
    """
    n = len(observed.times)
    rows: Counter[str] = Counter()

    def failed(why: str) -> Cleaned:
        return Cleaned(Counter(entity_failed=n), why, required_targets(settings, frequency))

    if n == 0:
        return failed("has no rows")
    known = np.flatnonzero(observed.times != MISSING)
    if len(known) < n:
        if settings.bad_times == "fail":
            return failed(str(observed.bad_time))
        rows["bad_time"] = n - len(known)
        if not len(known):
            return failed("no row has a time that can be read")
    whole = len(known) == n
    times = observed.times if whole else observed.times[known]
    values = observed.values if whole else observed.values[known]
    placed = place(times, frequency)
    if len(placed.off_grid):
        if settings.off_grid == "fail":
            when = _iso(int(times[placed.off_grid].min()))
            return failed(
                f"{len(placed.off_grid):,} times are between steps of {frequency.word}, first {when}; "
                f"give another frequency, or off_grid='drop'{_local_days(times, placed, frequency)}"
            )
        rows["off_grid"] = len(placed.off_grid)
    source_rows, positions = placed.rows, placed.positions
    repeated = positions[1:] == positions[:-1]
    if repeated.any():
        if settings.duplicate_times == "fail":
            when = _iso(int(times[source_rows[int(np.argmax(repeated))]]))
            return failed(
                f"{int(repeated.sum()):,} times come twice, first {when}; correct it, or give duplicate_times='first'"
            )
        stays = np.append(True, ~repeated) if settings.duplicate_times == "first" else np.append(~repeated, True)
        rows["duplicate_time"] = int((~stays).sum())
        source_rows, positions = source_rows[stays], positions[stays]
    if placed.axis.rows * values.shape[1] > _MOST_CELLS:
        return failed(f"its axis has {placed.axis.rows:,} steps of {frequency.word}; give the frequency of its rows")
    return _on_axis(
        settings, resolved, frequency, rows, placed.axis, positions, _taken(values, source_rows), at, failed
    )


def _local_days(times: I64, placed: Placed, frequency: Frequency) -> str:
    """What to add where days are off by an hour at most: in UTC, local days change their hour with the clocks."""
    if frequency.months or frequency.micros % _DAY or not len(placed.rows):
        return ""
    off = (times[placed.off_grid] - times[placed.rows[0]]) % _DAY
    if int(np.minimum(off, _DAY - off).max()) > _HOUR:
        return ""
    return "; days of a zone whose clocks change are no equal steps in UTC: write them without an offset, as dates"


def _on_axis(
    settings: Series,
    resolved: Resolved,
    frequency: Frequency,
    rows: Counter[str],
    axis: Axis,
    positions: I64,
    observed: F64,
    at: tuple[int, int] | None,
    failed: Callable[[str], Cleaned],
) -> Cleaned:
    columns = settings.columns()
    if len(positions) == axis.rows:
        values = observed.copy(order="F")  # worked on column by column
    else:
        values = np.full((axis.rows, len(columns)), np.nan, order="F")
        for place_ in range(len(columns)):
            values[positions, place_] = observed[:, place_]
    missing = np.isnan(values)
    never = missing.all(axis=0)
    if never.any():
        return failed(f"{columns[int(np.argmax(never))]} is never observed")
    start, stop = gaps.span(~missing, least=0 if at is None else at[1])
    if start == stop:
        return failed("no time lies between the first and the last value of all columns")
    target_observed = ~missing[start:stop, 0]
    shares = settings.train_prop, settings.val_prop
    parts = cut(target_observed, *shares) if at is None else cut_at(target_observed, *at)
    required = required_targets(settings, frequency)
    if parts.train_targets < max(1, required):
        observed_targets = int(target_observed.sum())
        return failed(
            f"{parts.train_targets:,} observed targets would train (of {observed_targets:,}), {max(1, required):,} "
            f"are required by min_train_years {settings.min_train_years:g}"
        )
    found = gaps.find(missing)
    may = np.array([name in settings.filled_columns() for name in columns])
    short = (found.length <= settings.max_imputation_gap_size) & may[found.column]
    whole = found.inside([start + parts.val_row, start + parts.test_row])
    filled = gaps.fill(values, found.take(short & whole))[start:stop]
    kept = values[start:stop]
    why = reasons(resolved.time_series, columns, kept[: parts.val_row])
    if why is not None:
        return failed(why)
    unusable = without_result(resolved.time_series, columns, kept)
    if unusable.any():
        kept[unusable] = np.nan
        filled &= ~unusable
        target_observed &= ~unusable[:, 0]
        parts = cut_at(target_observed, parts.val_row, parts.test_row)
    # Source rows by where they are: positions ascend.
    edges = np.searchsorted(positions, [start, start + parts.val_row, start + parts.test_row, stop])
    first, val, test, end = edges.tolist()
    rows.update(trimmed=len(positions) - (end - first), train=val - first, val=test - val, test=end - test)
    seen = ~missing[start:stop]
    return Cleaned(
        rows=rows,
        required_targets=required,
        axis=axis.tail(start, stop),
        values=kept,
        filled=filled,
        cut=parts,
        imputed=_imputed(found, short, whole, (start, stop), filled, np.isnan(kept), unusable),
        first_last=np.stack([seen.argmax(axis=0), stop - start - 1 - seen[::-1].argmax(axis=0)], axis=1),
        added_rows=stop - start - (end - first),
        trimmed_steps=(start, axis.rows - stop),
    )


def _taken(values: F64, rows: I64) -> F64:
    ordered = len(rows) == len(values) and (rows == np.arange(len(rows))).all()
    return values if ordered else values[rows]


def _imputed(
    found: gaps.Gaps,
    short: Bools,
    whole: Bools,
    span: tuple[int, int],
    filled: Bools,
    left: Bools,
    unusable: Bools,
) -> Imputed:
    inside = (found.start < span[1]) & (found.start + found.length > span[0])
    columns = filled.shape[1]
    filled_gaps, _, _ = found.take(inside & short & whole).per_column(columns)
    left_gaps, _, _ = found.take(inside & ~short).per_column(columns)
    cut_gaps, _, _ = found.take(inside & short & ~whole).per_column(columns)
    _, _, longest = found.take(inside).per_column(columns)
    return Imputed(
        filled_gaps,
        filled.sum(axis=0, dtype=np.int64),
        left_gaps,
        cut_gaps,
        unusable.sum(axis=0, dtype=np.int64),
        left.sum(axis=0, dtype=np.int64),
        longest,
    )


def required_targets(settings: Series, frequency: Frequency) -> int:
    """Observed targets that an entity needs to train on."""
    return int(settings.min_train_years * frequency.steps_per_year)


def _iso(micros: int) -> str:
    return str(np.datetime64(micros, "us").astype("datetime64[s]"))
