"""Put the raw times of an entity on the clock of its steps and, if requested, on the steps. Pure.

First, with `time_zone`, wall-clock times become instants. The clocks repeat an hour in autumn. With
"in_order", if the repeated times step back exactly once in source order, the rows before that step
are the earlier instants and the rows after it the later ones. Otherwise, as with hourly rows, the
first of equal times is the earlier instant and the next one the later. If most rows around a change
descend in time they are read from the end. A time that comes once, without a step back, is the
earlier instant. Rows around a change that are in no order are refused. Times that the clocks skip
in spring do not exist: they fail the entity or are dropped.

Steps of days and longer are those of `time_zone`: their times stay on its clock. Instants matter
then only for the first and the last value of a step. A midnight that the clocks skip names its day.

Then `resample` joins the rows of a step [t, t + step) into one at t, each column by its rule.
Missing values do not count. A step without any value is missing, except for a "total", which is 0.
"nearest" takes, for all columns, the value nearest to t, of the rows nearer to t than to any other
step. Steps are counted from 1970-01-01, weeks from their weekday, months from their first day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.arrays import F64, I64, Bools
from headrace.errors import InputError, setting, setting_name
from headrace.formats.dates import DAY_US, MISSING, moment
from headrace.formats.zones import wall_to_utc
from headrace.report.words import pluralise
from headrace.series.arrays.axis import occurrences, slots_of, times_at
from headrace.series.reasons import NONEXISTENT_TIME

if TYPE_CHECKING:
    from headrace.series.settings import Series

_BETWEEN_CHANGES_US = DAY_US  # clocks change less often than daily


@dataclass(frozen=True)
class Observed:
    """The rows of one entity in source order.

    times: microseconds, `MISSING` if there is none or it cannot be read: int64 [N].
    values: NaN if missing: float64 [N, C], columns as `Series.columns`.
    bad_time: the error of the first row without a time.
    counts: number of source rows that each row was made from, int64 [N]; None for one each.
    dropped: number of source rows that were left out, by reason.
    notes: number of changes to times, by kind of change.
    """

    times: I64
    values: F64
    bad_time: InputError | None = None
    counts: I64 | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)

    @property
    def source_rows(self) -> int:
        """Number of rows in the source."""
        rows = len(self.times) if self.counts is None else int(self.counts.sum())
        return rows + sum(self.dropped.values())

    def moved(
        self, times: I64, keep: Bools, dropped: Mapping[str, int], notes: Mapping[str, int]
    ) -> Observed:
        """Return the selected rows at other times; count the reasons for leaving out others and the
        changes to times.

        times, keep: of all rows.
        """
        moved = replace(
            self,
            times=times,
            dropped=dict(Counter(self.dropped) + Counter(dropped)),
            notes={**self.notes, **notes},
        )
        if keep.all():
            return moved
        return replace(moved, times=times[keep], values=self.values[keep])


def put_on_clock(settings: Series, observed: Observed) -> Observed:
    """Return the rows of one entity at UTC instants, or at local times if the steps are those of a
    zone, resampled as the settings say.

    Raises `InputError`.
    """
    instants = None
    if settings.time_zone is not None:
        observed, instants = _localize(settings, settings.time_zone, observed)
    if settings.resample:
        observed = _resample(settings, observed, instants)
    return observed


def _localize(settings: Series, zone: str, observed: Observed) -> tuple[Observed, I64]:
    """Return the rows at the times of their steps, and their instants."""
    local_steps = settings.step.zone is not None
    known = np.flatnonzero(observed.times != MISSING)
    wall = observed.times[known]
    instants, twice = _instants_of(settings, zone, wall)
    skipped = instants == MISSING
    day_before = wall[skipped] - DAY_US
    instants[skipped] = wall_to_utc(day_before, zone, "latest") + DAY_US
    if local_steps:
        skipped &= wall % DAY_US != 0
    notes = {"ambiguous_times": int(twice.sum())}
    keep = np.ones(len(observed.times), np.bool_)
    dropped = 0
    if skipped.any():
        count = int(skipped.sum())
        if settings.bad_rows == "error":
            raise InputError(
                f"{pluralise(count, 'time does', 'times do')} not exist in {zone}, whose clocks"
                f" skip them, first {moment(int(wall[skipped].min()))}",
                remedy=(
                    f"give {setting('bad_rows', 'drop')}, or leave"
                    f" {setting_name('time_zone')} out if times are in UTC"
                ),
            )
        keep[known[skipped]] = False
        dropped = count
    times = observed.times.copy()
    order = times.copy()
    order[known] = instants
    times[known] = wall if local_steps else instants
    return observed.moved(times, keep, {NONEXISTENT_TIME.word: dropped}, notes), order[keep]


def _instants_of(settings: Series, zone: str, wall: I64) -> tuple[I64, Bools]:
    """Return the instants of wall-clock times, `MISSING` if there is none, and which of them had to
    be chosen of two.
    """
    instants = wall_to_utc(wall, zone, "earliest")
    if settings.step.zone is not None and not settings.takes_order:
        return instants, np.zeros(len(wall), np.bool_)
    later = wall_to_utc(wall, zone, "latest")
    twice = instants != later
    rule = settings.ambiguous_times
    if rule == "error" and twice.any():
        raise InputError(
            f"{pluralise(twice.sum(), 'time comes', 'times come')} twice in {zone}, whose"
            f" clocks repeat them, first {moment(int(wall[twice].min()))}",
            remedy=f"give {setting('ambiguous_times', 'in_order', 'earlier', 'later')}",
        )
    if rule == "later":
        instants = later
    elif rule == "in_order" and twice.any():
        instants = _in_order(zone, wall, instants, later)
    return instants, twice


def _in_order(zone: str, wall: I64, earlier: I64, later: I64) -> I64:
    """Choose the earlier or later instant of each repeated time by the order of the rows.

    Raises `InputError` if the rows around a change are in no order.
    """
    instants = earlier.copy()
    repeated = np.flatnonzero(earlier != later)
    by_time = np.argsort(wall, kind="stable")
    sorted_wall = wall[by_time]
    changes = np.sort(wall[repeated])
    starts = changes[np.append(True, np.diff(changes) > _BETWEEN_CHANGES_US)]
    unordered: list[I64] = []
    for start in starts.tolist():
        # The rows of the day before and after, in source order; days may descend while their hours
        # ascend.
        reach = [start - DAY_US, start + 2 * DAY_US]
        first, stop = np.searchsorted(sorted_wall, reach).tolist()
        rows = np.sort(by_time[first:stop])
        if np.sign(np.diff(wall[rows])).sum() < 0:
            rows = rows[::-1]
        inside = (wall[rows] >= start) & (wall[rows] <= start + _BETWEEN_CHANGES_US)
        twice = rows[inside & (earlier[rows] != later[rows])]
        second = _is_second_time(wall[twice])
        instants[twice] = np.where(second, later[twice], earlier[twice])
        there = rows[instants[rows] != MISSING]
        if not (_ascends(instants[there]) or _ascends(wall[there])):
            unordered.append(twice)
    if unordered:
        rows = np.concatenate(unordered)
        raise InputError(
            f"{pluralise(len(rows), 'time comes', 'times come')} twice in {zone}, whose clocks"
            " repeat them, and the rows around them are not in time order,"
            f" first {moment(int(wall[rows].min()))}",
            remedy=(
                f"sort the rows by time as it passed, write times with their offset, or give"
                f" {setting('ambiguous_times', 'earlier', 'later')}"
            ),
        )
    return instants


def _ascends(times: I64) -> bool:
    return not (np.diff(times) < 0).any()


def _is_second_time(wall: I64) -> Bools:
    """Return which rows of one repeated hour, in time order, belong to the second time that the
    clocks show it.
    """
    steps_back = np.flatnonzero(np.diff(wall) < 0)
    if len(steps_back) == 1:
        return np.asarray(np.arange(len(wall)) > steps_back[0])
    return np.asarray(occurrences(wall, np.zeros(len(wall), np.int64)) > 0)


def _resample(settings: Series, observed: Observed, instants: I64 | None) -> Observed:
    """Join the rows of each step. instants: of all rows, if they are not the times."""
    known = np.flatnonzero(observed.times != MISSING)
    if not len(known):
        return observed
    passed = observed.times if instants is None else instants
    columns = settings.columns[: observed.values.shape[1]]
    rules = [settings.rule(name) for name in columns]
    times = observed.times[known]
    slots = slots_of(times, settings.step)
    order = np.argsort(passed[known], kind="stable")
    if "nearest" in rules:
        following = times_at(settings.step, slots, np.zeros_like(slots), np.ones_like(slots))
        slots = np.where(following - times <= times - slots, following, slots)
        order = np.lexsort((passed[known], np.abs(times - slots), slots))
        rules = ["first"] * len(rules)
    known = known[order]
    slots = slots[order]
    starts = np.flatnonzero(np.append(True, slots[1:] != slots[:-1]))
    counts = np.diff(np.append(starts, len(slots)))
    values = join_rows(observed.values[known], starts, rules)
    unread = np.flatnonzero(observed.times == MISSING)  # stay, so that `bad_rows` judges them
    return Observed(
        np.append(slots[starts], observed.times[unread]),
        np.concatenate([values, observed.values[unread]]),
        observed.bad_time,
        np.append(counts, np.ones(len(unread), np.int64)),
        observed.dropped,
        {**observed.notes, "joined_rows": len(known) - len(starts)},
    )


def join_rows(values: F64, starts: I64, rules: Sequence[str]) -> F64:
    """Join groups of consecutive rows [N, C], each column by its rule.

    starts: the first row of each group.
    """
    joined = np.empty((len(starts), values.shape[1]))
    ends = np.append(starts[1:], len(values))
    rows = np.arange(len(values))
    for number, rule in enumerate(rules):
        column = values[:, number]
        observed = ~np.isnan(column)
        count = np.add.reduceat(observed.astype(np.int64), starts)
        if rule in ("sum", "mean", "total"):
            result = np.add.reduceat(np.where(observed, column, 0.0), starts)
            if rule == "mean":
                result = result / np.maximum(count, 1)
        elif rule == "min":
            result = np.fmin.reduceat(column, starts)
        elif rule == "max":
            result = np.fmax.reduceat(column, starts)
        else:
            if rule == "first":
                row = np.minimum.reduceat(np.where(observed, rows, len(values)), starts)
            else:
                row = np.maximum.reduceat(np.where(observed, rows, -1), starts)
            result = column[np.clip(row, starts, ends - 1)]
        if rule != "total":
            result = np.where(count > 0, result, np.nan)
        joined[:, number] = result
    return joined
