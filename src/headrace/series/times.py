"""Convert the raw times of an entity to UTC instants and, if requested, put them on steps. Pure.

First, with `time_zone`, wall-clock times become instants. The clocks repeat an hour in autumn. With "in_order", if the
repeated times step back exactly once in source order, the rows before that step are the earlier instants and the rows
after it the later ones. Otherwise, as with hourly rows, the first of equal times is the earlier instant and the next
one the later. If most rows descend in time they are read from the end. A time that comes once, without a step back, is
the earlier instant. Times that the clocks skip in spring do not exist: they fail the entity, are dropped, or are read
with the offset before the change ("forward"), so 02:30 becomes 03:30.

Then `snap` moves times within that distance of a step to the step; `off_grid` judges the others. Alternatively
`resample` joins the rows of a step [t, t + step) into one at t, each column by its rule. Missing values do not count. A
step without any value is missing, except for a "total", which is 0. Steps are counted from 1970-01-01 in UTC, months
from their first day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from headrace.arrays import F64, I64, Bools
from headrace.errors import InputError
from headrace.formats.dates import DAY_US, MISSING, moment
from headrace.report.words import many
from headrace.series.arrays.axis import occurrences, slots_of
from headrace.series.config import Series

_NEXT_CHANGE_US = DAY_US  # clocks change less often than daily
NONEXISTENT = "nonexistent_time"  # reason for rows in no split


@dataclass(frozen=True)
class Observed:
    """The rows of one entity in source order.

    times: microseconds, `MISSING` if there is none or it cannot be read: int64 [N].
    values: NaN if missing: float64 [N, C], columns as `Series.columns()`.
    bad_time: a message about the first row without a time.
    counts: number of source rows that each row was made from, int64 [N]; None for one each.
    dropped: number of source rows that were left out, by reason.
    notes: number of changes to times, by kind.
    """

    times: I64
    values: F64
    bad_time: str | None = None
    counts: I64 | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)

    @property
    def source_rows(self) -> int:
        """Number of rows in the source."""
        return (len(self.times) if self.counts is None else int(self.counts.sum())) + sum(self.dropped.values())

    def moved(self, times: I64, keep: Bools, dropped: Mapping[str, int], notes: Mapping[str, int]) -> Observed:
        """Return the selected rows at other times; count the reasons for leaving out others and the changes to times.

        times, keep: of all rows.
        """
        dropped, notes = dict(Counter(self.dropped) + Counter(dropped)), {**self.notes, **notes}
        if keep.all():
            return replace(self, times=times, dropped=dropped, notes=notes)
        return replace(self, times=times[keep], values=self.values[keep], dropped=dropped, notes=notes)


def timed(settings: Series, observed: Observed) -> Observed:
    """Return the rows of one entity at UTC instants, snapped or resampled as the settings say. Raises `InputError`."""
    if settings.time_zone is not None:
        observed = _localized(settings, settings.time_zone, observed)
    if settings.snap_us is not None:
        observed = _snapped(settings, settings.snap_us, observed)
    if settings.resample:
        observed = _resampled(settings, observed)
    return observed


def _localized(settings: Series, zone: str, observed: Observed) -> Observed:
    known = np.flatnonzero(observed.times != MISSING)
    wall = observed.times[known]
    instants, later = instants_of(wall, zone, "earliest"), instants_of(wall, zone, "latest")
    twice, gone = instants != later, instants == MISSING
    rule = settings.ambiguous_times
    if rule == "error" and twice.any():
        raise InputError(
            f"{many(twice.sum(), 'time comes', 'times come')} twice in {zone}, whose clocks repeat them, first "
            f"{moment(int(wall[twice].min()))}; give ambiguous_times='in_order', 'earlier' or 'later'"
        )
    if rule == "later":
        instants = later
    elif rule == "in_order" and twice.any():
        # Majority of neighbours, since days may descend while their hours ascend.
        ascends = np.sign(np.diff(wall)).sum() >= 0
        own = wall[twice] if ascends else wall[twice][::-1]
        again = _second_time(own)
        instants[twice] = np.where(again if ascends else again[::-1], later[twice], instants[twice])
    notes, dropped, keep = {"ambiguous_times": int(twice.sum())}, 0, np.ones(len(observed.times), np.bool_)
    if gone.any():
        if settings.nonexistent_times == "error":
            raise InputError(
                f"{many(gone.sum(), 'time does', 'times do')} not exist in {zone}, whose clocks skip them, first "
                f"{moment(int(wall[gone].min()))}; give nonexistent_times='drop' or 'forward', or leave time_zone out "
                f"if times are in UTC"
            )
        if settings.nonexistent_times == "forward":
            before = wall[gone] - DAY_US
            instants[gone] = instants_of(before, zone, "latest") + DAY_US
            notes["nonexistent_times"] = int(gone.sum())
        else:
            keep[known[gone]] = False
            dropped = int(gone.sum())
    times = observed.times.copy()
    times[known] = instants
    return observed.moved(times, keep, {NONEXISTENT: dropped}, notes)


def _second_time(wall: I64) -> Bools:
    """Return which rows of repeated hours, in time order, belong to the second time that the clocks show them."""
    order = np.argsort(wall, kind="stable")
    changes = np.split(order, np.flatnonzero(np.diff(wall[order]) > _NEXT_CHANGE_US) + 1)
    found = np.zeros(len(wall), np.bool_)
    for rows in map(np.sort, changes):
        back = np.flatnonzero(np.diff(wall[rows]) < 0)
        if len(back) == 1:
            found[rows] = np.arange(len(rows)) > back[0]
        else:
            found[rows] = occurrences(wall[rows], np.zeros(len(rows), np.int64)) > 0
    return found


def instants_of(wall: I64, zone: str, ambiguous: str) -> I64:
    """Return the instants of wall-clock times, in microseconds; `MISSING` if the clocks skip them."""
    local = pl.Series(wall).cast(pl.Datetime("us"))
    zoned = local.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")  # type: ignore[arg-type]
    return np.array(zoned.dt.epoch("us").fill_null(MISSING).to_numpy(), np.int64)


def wall_of(instants: I64, zone: str) -> I64:
    """Return the wall-clock times of a zone at these instants, in microseconds."""
    zoned = pl.Series(instants).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(zone)
    return np.array(zoned.dt.replace_time_zone(None).dt.epoch("us").to_numpy(), np.int64)


def _snapped(settings: Series, tolerance: int, observed: Observed) -> Observed:
    step, times = settings.step.micros, observed.times
    known = times != MISSING
    slots = (times + step // 2) // step * step
    far = np.abs(times - slots)
    moved = known & (far > 0) & (far <= tolerance)
    times, keep = np.where(moved, slots, times), np.ones(len(times), np.bool_)
    if settings.duplicate_times == "nearest":
        # Stable: of two equally near rows the first stays.
        order = np.lexsort((np.where(known, far, 0), times))
        own = times[order]
        keep[order[1:]] = (own[1:] != own[:-1]) | (own[1:] == MISSING)
    return observed.moved(times, keep, {"duplicate_time": int((~keep).sum())}, {"snapped_times": int(moved.sum())})


def _resampled(settings: Series, observed: Observed) -> Observed:
    known = np.flatnonzero(observed.times != MISSING)
    if not len(known):
        return observed
    known = known[np.argsort(observed.times[known], kind="stable")]
    slots = slots_of(observed.times[known], settings.step)
    begins = np.flatnonzero(np.append(True, slots[1:] != slots[:-1]))
    counts = np.diff(np.append(begins, len(slots)))
    columns = settings.columns()[: observed.values.shape[1]]
    values = resampled(observed.values[known], begins, [settings.rule(each) for each in columns])
    bad = np.flatnonzero(observed.times == MISSING)  # kept for `bad_rows` to judge
    return Observed(
        np.append(slots[begins], observed.times[bad]),
        np.concatenate([values, observed.values[bad]]),
        observed.bad_time,
        np.append(counts, np.ones(len(bad), np.int64)),
        observed.dropped,
        {**observed.notes, "joined_rows": len(known) - len(begins)},
    )


def resampled(values: F64, begins: I64, rules: list[str]) -> F64:
    """Join groups of consecutive rows [N, C], each column by its rule. begins: the first row of each group."""
    made = np.empty((len(begins), values.shape[1]))
    ends = np.append(begins[1:], len(values))
    for at, rule in enumerate(rules):
        own = values[:, at]
        there = ~np.isnan(own)
        count = np.add.reduceat(there.astype(np.int64), begins)
        if rule in ("sum", "mean", "total"):
            added = np.add.reduceat(np.where(there, own, 0.0), begins)
            joined = added / np.maximum(count, 1) if rule == "mean" else added
            made[:, at] = joined if rule == "total" else np.where(count > 0, joined, np.nan)
        elif rule in ("min", "max"):
            made[:, at] = (np.fmin if rule == "min" else np.fmax).reduceat(own, begins)
        else:
            rows = np.arange(len(own))
            first = np.minimum.reduceat(np.where(there, rows, len(own)), begins)
            last = np.maximum.reduceat(np.where(there, rows, -1), begins)
            chosen = np.clip(first if rule == "first" else last, begins, ends - 1)
            made[:, at] = np.where(count > 0, own[chosen], np.nan)
    return made
