"""Clean one entity: find its axis, trim and cut it, and fill short gaps, or give the reason why it
fails. Pure.

Apart from the axis, the trimming and the cut, what happens to a row depends only on rows before the
next cut. Gaps are judged as they look from there. A value after a cut that a pipeline cannot take
is set to missing; failing the entity would change the training set.

Of n observed targets the first floor(n × train) train, the next floor(n × val) validate, and the
rest tests. A part ends with the row of its last target, so rows without a target keep their place
in time and every part is one run of steps. With train_end and val_end the parts of all entities
begin at these times instead.

A gap is a run of missing values between two observed values of a column; runs at the ends of a
column are not gaps. A gap is filled entirely or not at all, because filling the first steps of a
long outage would invent a plateau. Before a cut the length of a gap that crosses it is unknown, so
such a gap is left. Values are only carried forward.

If the pipelines of another run are reused, nothing is fitted: no step is trimmed, all rows are in
test, and a column may be missing altogether.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from headrace.arrays import F32, F64, I64, Bools
from headrace.digest import canonical_json
from headrace.errors import InputError, setting, setting_name
from headrace.formats.dates import MISSING
from headrace.report.words import pluralise, verb
from headrace.series.arrays.axis import DAY_US, Axis, anchor_codes, place_rows, times_at
from headrace.series.division import SPLITS, THREE_SPLITS, SplitLayout
from headrace.series.pipelines.fitted import reasons, without_result
from headrace.series.reasons import (
    BAD_TIME,
    DUPLICATE,
    DUPLICATE_TIME,
    IN_NO_SPLIT,
    OFF_GRID,
    TRIMMED,
)
from headrace.series.settings import Series
from headrace.series.times import Observed

_ROUNDING = 1e-9  # 10 × 0.7 is 7.000000000000001, 0.29 × 100 is 28.999999999999996
_MOST_CELLS = 1 << 29  # 4 GiB for one entity's axis
_HOUR_US = 3_600_000_000


class LeftOut(InputError):
    """An entity does not pass; the message is the reason."""


@dataclass(frozen=True)
class Gaps:
    """Runs of missing values between observed ones, [G], ordered by column and start."""

    column: I64
    start: I64
    length: I64

    def select(self, mask: Bools) -> Gaps:
        """Return the gaps where the mask is true."""
        return Gaps(self.column[mask], self.start[mask], self.length[mask])

    def on_one_side(self, cuts: Sequence[int]) -> Bools:
        """Find the gaps that, with the value that ends them, lie on one side of every cut.

        cuts: ascending rows.
        """
        first = np.searchsorted(cuts, self.start, side="right")
        last = np.searchsorted(cuts, self.start + self.length, side="right")
        return np.asarray(first == last, np.bool_)

    def count(self, columns: int) -> I64:
        """Return the number of gaps of each column: int64 [C]."""
        return np.bincount(self.column, minlength=columns).astype(np.int64)

    def longest(self, columns: int) -> I64:
        """Return the length of the longest gap of each column: int64 [C]."""
        longest = np.zeros(columns, np.int64)
        np.maximum.at(longest, self.column, self.length)
        return longest


def trimmed(observed: Bools, *, least: int = 0) -> tuple[int, int]:
    """Return the rows [start, stop) of observed [T, C] that remain after trimming both ends.

    They begin where every column has had a value, and end where the first column has its last one,
    but not before `least` rows. start == stop if nothing remains, for example if a column is never
    observed.
    """
    steps, columns = observed.shape
    if not steps or not columns or not observed.any(axis=0).all():
        return 0, 0
    start = int(observed.argmax(axis=0).max())
    stop = max(steps - int(observed[::-1].argmax(axis=0).max()), start + least)
    if start >= stop:
        return 0, 0
    return start, stop


def find_gaps(missing: Bools) -> Gaps:
    """Find the gaps of each column of missing [T, C]."""
    steps, columns = missing.shape
    padded = np.zeros((columns, steps + 2), np.int8)
    padded[:, 1:-1] = missing.T
    # In the flattened columns, starts and ends alternate.
    edges = np.flatnonzero(np.diff(padded.reshape(-1)))
    starts = edges[::2]
    length = edges[1::2] - starts
    column, start = np.divmod(starts, steps + 2)
    inside = (start > 0) & (start + length < steps)
    return Gaps(column[inside], start[inside], length[inside])


def fill_gaps(values: F64, gaps: Gaps) -> Bools:
    """Fill these gaps of `values` in place with the value before each; return which were filled:
    bool [T, C].
    """
    filled = np.zeros(values.shape, np.bool_)
    offsets = np.cumsum(gaps.length) - gaps.length
    rows = np.arange(int(gaps.length.sum())) + np.repeat(gaps.start - offsets, gaps.length)
    columns = np.repeat(gaps.column, gaps.length)
    values[rows, columns] = np.repeat(values[gaps.start - 1, gaps.column], gaps.length)
    filled[rows, columns] = True
    return filled


@dataclass(frozen=True)
class Cut:
    """The rows where an entity's segments begin, and the targets of each split (in folds, of the
    first fold).

    edges: the row where each segment but the first begins.
    val_row, test_row: the rows where val and test begin.
    train_row, train_stop: rows [train_row, train_stop) train.
    """

    val_row: int
    test_row: int
    train_targets: int
    val_targets: int
    test_targets: int
    edges: tuple[int, ...]
    train_row: int
    train_stop: int


def cut_by_shares(observed: Bools, train: float, val: float) -> tuple[int, int]:
    """Return the rows of one entity where val and test begin, for these shares of its targets.

    observed: whether the target was observed, bool [T].
    """
    rows = np.flatnonzero(observed)
    count = len(rows)
    train_targets = part_of(count, train)
    last = train_targets + min(part_of(count, val), count - train_targets)
    val_row = int(rows[train_targets - 1]) + 1 if train_targets else 0
    test_row = int(rows[last - 1]) + 1 if last else 0
    return val_row, max(test_row, val_row)


def part_of(count: int, fraction: float) -> int:
    """Return floor(count × share), correcting products that rounding puts just below a whole
    number.
    """
    return int(np.floor(count * fraction + _ROUNDING))


def cut_at(observed: Bools, edges: Sequence[int], layout: SplitLayout = THREE_SPLITS) -> Cut:
    """Return the cut whose segments begin at these rows. observed: as in `cut_by_shares`."""
    boundaries = [0, *edges, len(observed)]
    train, val, test = (layout.rows(boundaries, split) for split in SPLITS)
    return Cut(
        val_row=val[0] if "val" in layout.ranges[0] else test[0],
        test_row=test[0],
        train_targets=int(observed[slice(*train)].sum()),
        val_targets=int(observed[slice(*val)].sum()),
        test_targets=int(observed[slice(*test)].sum()),
        edges=tuple(edges),
        train_row=train[0],
        train_stop=train[1],
    )


def find_edges(settings: Series, entity: str, axis: Axis, observed: Bools) -> list[int]:
    """Return the rows where the segments of an entity begin, except the first."""
    division = settings.division
    side = division.side_of(entity)
    if division.rolling is not None:
        return division.rolling.edges(axis.times(), side)
    if division.cuts is not None:
        val_row, test_row = np.searchsorted(axis.times(), division.cuts).tolist()
    elif side == "train":
        val_row, test_row = cut_by_shares(observed, settings.train_ratio, settings.val_ratio)
    else:
        val_row = 0
        test_row = axis.rows if side == "val" else 0
    if division.layout is THREE_SPLITS:
        return [val_row, test_row]
    # One step more, because a cut may be after the last row.
    times = Axis(axis.frequency, axis.first, axis.rows + 1, axis.anchor).times()
    dates = division.cuts
    if dates is None:
        dates = tuple(times[[val_row, test_row]].tolist())
    ends = np.searchsorted(times[:-1], np.array(dates) - division.margin_us)
    train_stop, val_stop = ends.tolist()
    val_stop = max(val_stop, val_row)
    held_out = set(division.held_out.values())  # splits that only held-out entities have rows in
    if side != "train":
        train_stop = 0
    if side == "test" or (side == "train" and "val" in held_out):
        val_stop = val_row
    if side == "val" or (side == "train" and "test" in held_out):
        test_row = axis.rows
    return [train_stop, val_row, val_stop, test_row]


@dataclass(frozen=True)
class Cleaned:
    """An entity that passes.

    axis: axis of the retained rows.
    values: float64 [T, C], NaN if missing.
    filled: bool [T, C].
    rows: number of source rows by split, or by the reason why they are in none.
    imputation: counts about missing values by their names in the quality report, int64 [C] each.
    first_last: for each column, the rows of its first and last observed value: int64 [C, 2].
    added_rows: number of steps without a row.
    widest_hole: times of the rows before and after the longest run of such steps.
    """

    rows: Counter[str]
    axis: Axis
    values: F64
    filled: Bools
    cut: Cut
    imputation: dict[str, I64]
    first_last: I64
    added_rows: int
    widest_hole: tuple[int, int]
    trimmed_steps: tuple[int, int]


def clean(  # noqa: PLR0914 - each step of cleaning needs earlier ones
    settings: Series, observed: Observed, entity: str, *, edges: Sequence[int] | None = None
) -> Cleaned:
    """Clean the rows of one entity. O(steps of its axis) of memory. Raises `LeftOut`.

    edges: the rows where its segments but the first begin; dates and shares are then ignored.
    """
    columns = settings.columns
    layout = settings.division.layout
    trains = settings.fits and settings.division.trains(entity)
    rows = Counter(observed.dropped)
    placed = _put_on_axis(settings, observed, rows)
    missing = np.isnan(placed.values)
    start, stop = _trimmed_steps(settings, missing, edges, trains=trains)
    observed_cells = ~missing[start:stop]
    axis = placed.axis.tail(start, stop)
    if not settings.fits:
        edges = (0, 0)
    if edges is None:
        edges = find_edges(settings, entity, axis, observed_cells[:, 0])
    cut = cut_at(observed_cells[:, 0], edges, layout)
    if trains:
        _require_targets(settings, cut, int(observed_cells[:, 0].sum()))
    gaps = _JudgedGaps.of(settings, missing, [start + edge for edge in edges])
    filled = fill_gaps(placed.values, gaps.filled)[start:stop]
    values = placed.values[start:stop]
    if trains:
        train = values[cut.train_row : cut.train_stop]
        reason = reasons(settings.resolved.time_series, columns, train)
        if reason is not None:
            raise LeftOut(reason)
    unusable = without_result(settings.resolved.time_series, columns, values)
    if unusable.any():
        values[unusable] = np.nan
        filled &= ~unusable
        cut = cut_at(observed_cells[:, 0] & ~unusable[:, 0], edges, layout)
    boundaries = [start, *(start + edge for edge in edges), stop]
    rows.update(_count_source_rows(layout, placed, observed, boundaries))
    last = stop - start - 1 - observed_cells[::-1].argmax(axis=0)
    first, end = np.searchsorted(placed.positions, [start, stop]).tolist()
    return Cleaned(
        rows=rows,
        axis=axis,
        values=values,
        filled=filled,
        cut=cut,
        imputation={
            **gaps.counts(start, stop, len(columns)),
            "imputed_values_count": filled.sum(axis=0, dtype=np.int64),
            "unusable_values_count": unusable.sum(axis=0, dtype=np.int64),
            "missing_values_count": np.isnan(values).sum(axis=0, dtype=np.int64),
        },
        first_last=np.stack([observed_cells.argmax(axis=0), last], axis=1),
        added_rows=stop - start - (end - first),
        widest_hole=_widest_hole(placed, first, end),
        trimmed_steps=(start, placed.axis.rows - stop),
    )


def _widest_hole(placed: _OnAxis, first: int, end: int) -> tuple[int, int]:
    """Return the times around the longest run of steps without a row, between these rows."""
    positions = placed.positions[first:end]
    at = int(np.argmax(np.diff(positions))) if len(positions) > 1 else 0
    around = positions[[at, min(at + 1, len(positions) - 1)]]
    axis = placed.axis
    first_time = np.array([axis.first], np.int64)
    before, after = times_at(
        axis.frequency, first_time, anchor_codes([axis.anchor]), around
    ).tolist()
    return before, after


def _trimmed_steps(
    settings: Series, missing: Bools, edges: Sequence[int] | None, *, trains: bool
) -> tuple[int, int]:
    """Return the steps [start, stop) that remain after trimming. Raises `LeftOut`."""
    columns = settings.columns
    never = missing.all(axis=0)
    if trains and never.any():
        raise LeftOut("never observed", column=columns[int(np.argmax(never))])
    start = 0
    stop = len(missing)
    if settings.fits and settings.trim != "none":
        judged = len(columns) if settings.trim == "all" else len(settings.target)
        start, stop = trimmed(~missing[:, :judged], least=edges[-1] if edges else 0)
    if start == stop:
        raise LeftOut(
            "no time lies between the first and the last value of all columns",
            remedy=f"see {setting_name('trim')}",
        )
    return start, stop


@dataclass(frozen=True)
class _JudgedGaps:
    """The gaps of an entity, and for each whether it is too long, in a column that is filled, and
    on one side of every cut.
    """

    gaps: Gaps
    long: Bools
    fillable: Bools
    on_one_side: Bools

    @classmethod
    def of(cls, settings: Series, missing: Bools, cuts: Sequence[int]) -> _JudgedGaps:
        """Judge the gaps of missing [T, C]. cuts: the rows where segments begin, ascending."""
        gaps = find_gaps(missing)
        return cls(
            gaps,
            gaps.length > settings.max_imputation_gap_size,
            np.isin(settings.columns, settings.feature_names)[gaps.column],
            gaps.on_one_side(cuts),
        )

    @property
    def filled(self) -> Gaps:
        """The gaps that are filled."""
        return self.gaps.select(~self.long & self.fillable & self.on_one_side)

    def counts(self, start: int, stop: int, columns: int) -> dict[str, I64]:
        """Count the gaps in rows [start, stop) by what becomes of them, for each column."""
        gaps = self.gaps
        inside = (gaps.start < stop) & (gaps.start + gaps.length > start)
        short = inside & ~self.long
        return {
            "short_gaps_count": gaps.select(short & self.fillable & self.on_one_side).count(
                columns
            ),
            "long_gaps_count": gaps.select(inside & self.long).count(columns),
            "unfilled_gaps_count": gaps.select(short & ~self.fillable).count(columns),
            "cut_gaps_count": gaps.select(short & self.fillable & ~self.on_one_side).count(columns),
            "longest_gap": gaps.select(inside).longest(columns),
        }


def _count_source_rows(
    layout: SplitLayout, placed: _OnAxis, observed: Observed, boundaries: Sequence[int]
) -> Counter[str]:
    """Count the source rows on the axis by split, or by the reason why they are in none.

    boundaries: the steps where segments begin, and the one where the last ends.
    """
    limits = np.searchsorted(placed.positions, boundaries)
    source_rows = np.ones(len(placed.rows), np.int64)
    if observed.counts is not None:
        source_rows = observed.counts[placed.rows]
    cumulative = np.append(0, np.cumsum(source_rows))
    rows = Counter[str]()
    for name, count in zip(layout.names, np.diff(cumulative[limits]).tolist(), strict=True):
        rows[name or IN_NO_SPLIT.word] += count
    rows[TRIMMED.word] = int(cumulative[limits[0]] + cumulative[-1] - cumulative[limits[-1]])
    return rows


def _require_targets(settings: Series, cut: Cut, observed: int) -> None:
    """Raise `LeftOut` if an entity in train has too few targets before its cut."""
    by_years = required_targets(settings)
    required = max(1, by_years)
    if cut.train_targets >= required:
        return
    where = ""
    if settings.train_end is not None:
        where = f" before {setting_name('train_end')} {settings.train_end}"
    why = ""
    if by_years:
        why = f" by {setting_name('min_train_years')} {settings.min_train_years:g}"
    raise LeftOut(
        f"{pluralise(cut.train_targets, 'observed target')} in train{where} (of {observed:,}),"
        f" {required:,} {verb(required, 'is', 'are')} required{why}"
    )


def required_targets(settings: Series) -> int:
    """Return how many observed targets an entity needs in train; 0 if nothing is fitted."""
    if not settings.fits:
        return 0
    return int(settings.min_train_years * settings.step.steps_per_year)


@dataclass(frozen=True)
class _OnAxis:
    """An entity on its axis.

    values: [steps, C], in column order, for the work that follows.
    rows: the observed rows that are on the axis.
    positions: their positions, ascending.
    """

    axis: Axis
    values: F64
    rows: I64
    positions: I64


def _put_on_axis(settings: Series, observed: Observed, dropped: Counter[str]) -> _OnAxis:
    """Place the rows of an entity on its axis, and count those that are dropped.

    Raises `LeftOut`.
    """
    known = _timed_rows(settings, observed, dropped)
    times = observed.times[known]
    step = settings.step
    placed = place_rows(times, step)
    axis = placed.axis
    rows = placed.rows
    positions = placed.positions
    if len(placed.off_grid):
        if settings.bad_rows == "error":
            raise _off_grid(settings, times, placed.off_grid, rows)
        dropped[OFF_GRID.word] = len(placed.off_grid)
    if not len(rows):
        raise LeftOut(f"no time is on a step of {step.word}")
    repeated = positions[1:] == positions[:-1]
    if repeated.any():
        if settings.bad_rows == "error":
            raise _repeated(settings, times[rows[:-1][repeated]])
        stays = np.append(True, ~repeated)
        dropped[DUPLICATE_TIME.word] += int((~stays).sum())
        rows = rows[stays]
        positions = positions[stays]
    if axis.rows * observed.values.shape[1] > _MOST_CELLS:
        raise LeftOut(
            f"its axis has {axis.rows:,} steps of {step.word}",
            remedy=f"give the {setting_name('frequency')} of its rows",
        )
    rows = known[rows]
    return _OnAxis(
        axis, _values_on(settings, axis, observed.values, rows, positions), rows, positions
    )


def _timed_rows(settings: Series, observed: Observed, dropped: Counter[str]) -> I64:
    """Return the rows that have a time, and count the others. Raises `LeftOut`."""
    if not len(observed.times):
        raise LeftOut("has no rows")
    known = np.flatnonzero(observed.times != MISSING)
    if len(known) < len(observed.times):
        if observed.bad_time is not None and settings.bad_rows == "error":
            raise LeftOut(observed.bad_time.marked)
        dropped[BAD_TIME.word] = len(observed.times) - len(known)
        if not len(known):
            raise LeftOut("no row has a time that can be read")
    return known


def _values_on(settings: Series, axis: Axis, source: F64, rows: I64, positions: I64) -> F64:
    """Copy the values of these rows to their positions on the axis."""
    if len(rows) < len(source) or (rows != np.arange(len(rows))).any():
        source = source[rows]
    if len(positions) == axis.rows:
        return source.copy(order="F")
    values = np.empty((axis.rows, source.shape[1]), order="F")
    values[:] = settings.empty_step
    for column in range(values.shape[1]):
        values[positions, column] = source[:, column]
    return values


def _repeated(settings: Series, times: I64) -> LeftOut:
    """Return the error of times that come twice."""
    step = settings.step
    advice = ""
    if settings.time_zone is None and not step.months and step.micros < DAY_US:
        advice = (
            f"; if they are of clocks that change, give {setting_name('time_zone')}, e.g."
            " Europe/Berlin"
        )
    return LeftOut(
        f"{pluralise(len(times), 'time comes', 'times come')} twice, first {_iso(times[0])}",
        remedy=(
            f"correct it, combine such rows by {setting_name('resample')}, or give"
            f" {setting('bad_rows', 'drop')} to keep the first{advice}"
        ),
    )


def _off_grid(settings: Series, times: I64, off_grid: I64, rows: I64) -> LeftOut:
    step = settings.step
    wrong = times[off_grid]
    advice = ""
    if len(rows) and step.zone is None and not step.months and step.micros % DAY_US == 0:
        shift = (wrong - times[rows[0]]) % DAY_US
        # In UTC, local days shift by an hour with daylight saving time.
        if int(np.minimum(shift, DAY_US - shift).max()) <= _HOUR_US:
            advice = (
                "; days of a zone whose clocks change are not equal steps in UTC: give"
                f" {setting_name('time_zone')}, e.g. Europe/Berlin, whose days they are"
            )
    return LeftOut(
        f"{pluralise(len(wrong), 'time is', 'times are')} between steps of {step.word}, first"
        f" {_iso(wrong.min())}",
        remedy=(
            f"give another {setting_name('frequency')}, or {setting_name('resample')}, such as"
            f" nearest, to move them to steps, or {setting('bad_rows', 'drop')}{advice}"
        ),
    )


def _iso(micros: np.int64) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[s]"))


def quality_report(
    settings: Series, entity: str, source: str, rows: Mapping[str, int], reason: str | None
) -> dict[str, Any]:
    """Return the part of an entity's `QualityReport` that every entity has, as JSON.

    reason: why it does not pass; None if it passes, and `add_to_report` adds the rest.
    """
    return {
        "entity": entity,
        "source": source,
        "passed_quality_check": reason is None,
        "failure_reason": reason,
        "frequency": settings.step.word,
        "source_rows": dict(sorted(rows.items())),
        "required_train_targets": required_targets(settings),
    }


def add_to_report(  # noqa: PLR0914 - the parts of a report
    report: dict[str, Any],
    settings: Series,
    cleaned: Cleaned,
) -> None:
    """Add to the quality report of an entity what is known of one that passes.

    Counts are of the retained steps. imputation_info has for each column: gaps that were filled,
    that are too long, that are not filled in this column, and that were left because a cut crosses
    them; values that were filled, that were set to missing because no step can take them, and that
    are still missing; and the longest gap. targets.observed counts before anything is filled.
    """
    times = [_time_text(micros) for micros in cleaned.axis.times()[_report_rows(cleaned)].tolist()]
    cut = cleaned.cut
    step_count = cleaned.axis.rows
    start, end = cleaned.trimmed_steps
    targets = {"train": cut.train_targets, "val": cut.val_targets, "test": cut.test_targets}
    starts = {"train": 0, "val": cut.val_row, "test": cut.test_row}
    first, last, val_start, test_start, *column_ends = times
    split_times = {"train": first, "val": val_start, "test": test_start}
    periods = {}
    imputation = {}
    for number, name in enumerate(settings.columns):
        counts = {word: int(column[number]) for word, column in cleaned.imputation.items()}
        imputation[name] = counts
        observed = counts["missing_values_count"] < step_count
        period = {"start": column_ends[2 * number], "end": column_ends[2 * number + 1]}
        periods[name] = period if observed else None
    report |= {
        "period": {"start": first, "end": last, "steps": step_count},
        "valid_period": periods,
        "processing_steps": _processing_steps(settings, cleaned),
        "added_rows": cleaned.added_rows,
        "trimmed_steps": {"start": start, "end": end},
        "imputation_info": imputation,
        "targets": {"observed": sum(targets.values()), **targets},
        "split_starts": {
            split: split_times[split] if row < step_count else None for split, row in starts.items()
        },
    }


def _processing_steps(settings: Series, cleaned: Cleaned) -> list[str]:
    """Describe what was done to the rows of an entity, in order."""
    rows = cleaned.rows
    start, end = cleaned.trimmed_steps
    filled = int(cleaned.imputation["imputed_values_count"].sum())
    word = settings.step.word
    steps = [f"placed on steps of {word}, {cleaned.added_rows} missing rows added"]
    for reason in (BAD_TIME, OFF_GRID, DUPLICATE_TIME):
        if reason.word in rows:
            steps.append(f"dropped {rows[reason.word]} rows: {reason.word}")
    steps.append(f"trimmed {start} steps at the start and {end} at the end")
    steps.append(f"carried {filled} values into gaps of at most {settings.max_imputation_gap_size}")
    return steps


def _report_rows(cleaned: Cleaned) -> I64:
    """Return the rows whose times are in a quality report."""
    last = cleaned.axis.rows - 1
    rows = [0, last, min(cleaned.cut.val_row, last), min(cleaned.cut.test_row, last)]
    return np.append(rows, cleaned.first_last.reshape(-1))


def _time_text(micros: int) -> str:
    time = np.datetime64(micros, "us")
    if micros % DAY_US == 0:
        return str(time.astype("datetime64[D]"))
    if micros % 1_000_000 == 0:
        return str(time.astype("datetime64[s]"))
    return str(time)


def report_of_copy(report: Mapping[str, Any], original: str) -> dict[str, Any]:
    """Turn the report of an entity that passed into the report of a copy that is left out."""
    common = ("entity", "source", "frequency", "required_train_targets")
    return {name: report[name] for name in common} | {
        "passed_quality_check": False,
        "failure_reason": f"has the values and times of {original!r}",
        "source_rows": {DUPLICATE.word: sum(report["source_rows"].values())},
    }


def values_digest(values: F32 | F64, *where: int | str) -> str:
    """Digest values and their positions; all missing values count as equal, and so do zeros of
    either sign.
    """
    same = np.add(values, values.dtype.type(0), order="C")  # turns -0.0 into 0.0
    same[np.isnan(same)] = np.nan  # one bit pattern for every NaN
    digest = blake2b(canonical_json([*values.shape, *where]), digest_size=16)
    digest.update(same.data)
    return digest.hexdigest()


def series_digest(cleaned: Cleaned) -> str:
    """Digest the values, times and cuts of an entity."""
    axis = cleaned.axis
    cut = cleaned.cut
    return values_digest(cleaned.values, axis.first, axis.anchor, cut.val_row, cut.test_row)


def find_copies(series: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Map each entity whose series an earlier one has to the first that has it. O(entities) of
    memory.

    series: pairs of an entity and the value to compare, such as a digest.
    """
    first: dict[object, str] = {}
    copies = {}
    for entity, value in series:
        original = first.setdefault(value, entity)
        if original != entity:
            copies[entity] = original
    return copies
