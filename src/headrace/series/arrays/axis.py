"""Build the regular time axis of one entity, and place its observed rows on equal steps.

A series is assumed to have one frequency. Its observed rows get positions on an axis that runs from
the first of them to the last; positions without a row are missing rows. Steps are a fixed number of
microseconds, calendar months, or business days, Monday to Friday. Times are int64 microseconds
since 1970 everywhere. All functions are O(rows log rows) and vectorised.

Steps of days and longer may belong to a zone. Their times are then those that the zone's clocks
show, not instants, so that its days are equal steps and a day without a midnight is no exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from headrace.arrays import F32, F64, I64, Bools

Anchor = Literal["start", "end", "30th", "29th", "last_weekday", "first_weekday"]

# What the times of months have in common, the more usual first.
ANCHORS: tuple[Anchor, ...] = (
    "start",
    "end",
    "30th",
    "29th",
    "last_weekday",
    "first_weekday",
)

DAY_US = 86_400_000_000
YEAR_US = int(365.25 * DAY_US)

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": DAY_US,
    "w": 7 * DAY_US,
}
_WEEK_US = 7 * DAY_US
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FIRST_MONDAY_US = 4 * DAY_US  # 1970 began on a Thursday
_UNITS_MONTHS = {"mo": 1, "q": 3, "y": 12}
_BUSINESS = "b"
_FIRST_MONDAY = np.datetime64("0001-01-01")
_WORD = re.compile(r"(\d*)\s*([a-zA-Z]+)(?:-([a-zA-Z]+))?")
_SHORTEST_MONTH_US = 28 * DAY_US
_END = ANCHORS.index("end")


@dataclass(frozen=True)
class Frequency:
    """The step of an axis: `micros` microseconds, or `months` calendar months, or if both are 0 a
    business day.

    weekday: the one that weeks begin with, 0 for Monday; None for that of the rows.
    zone: the zone whose clocks show the times; None for UTC.
    """

    micros: int
    months: int = 0
    weekday: int | None = None
    zone: str | None = None

    @classmethod
    def parse(cls, word: str) -> Frequency:
        """Parse "1d", "15m", "1h", "1w", "1w-mon", "1mo", "1q", "1y", "1b" and the like.

        Raises `ValueError` for other words.
        """
        match = _WORD.fullmatch(word.strip())
        count = 0
        if match:
            count = int(match[1] or 1)
        unit = ""
        weekday = ""
        if match:
            unit = match[2].lower()
            weekday = (match[3] or "").lower()
        if (count, unit, weekday) == (1, _BUSINESS, ""):
            return cls(0)
        if weekday in _WEEKDAYS and unit == "w" and count > 0:
            return cls(count * _WEEK_US, weekday=_WEEKDAYS.index(weekday))
        if count < 1 or weekday or unit not in {*_UNITS_US, *_UNITS_MONTHS}:
            raise ValueError(
                f"{word!r} is not a frequency; give a number and us, ms, s, m, h, d, w, mo, q or y,"
                " e.g. 1d, or 1b, or weeks from a weekday, e.g. 1w-mon"
            )
        if unit in _UNITS_MONTHS:
            return cls(0, count * _UNITS_MONTHS[unit])
        return cls(count * _UNITS_US[unit])

    def in_zone(self, zone: str | None) -> Frequency:
        """Return the step of a zone's clocks if it is one of days or longer; others are elapsed
        time.
        """
        if zone is None or (self.micros and self.micros % DAY_US):
            return self
        return replace(self, zone=zone)

    def from_monday(self) -> Frequency:
        """Return the step whose weeks, if it is one of weeks without a weekday, begin on Monday."""
        if self.weekday is None and self.micros and self.micros % _WEEK_US == 0:
            return replace(self, weekday=0)
        return self

    @property
    def is_business_day(self) -> bool:
        """Whether the step leads from one business day to the next."""
        return not (self.micros or self.months)

    @property
    def origin(self) -> int:
        """A time at which a step begins, in microseconds."""
        return 0 if self.weekday is None else _FIRST_MONDAY_US + self.weekday * DAY_US

    @property
    def word(self) -> str:
        """The step as `parse` reads it, in the largest unit that divides it."""
        if self.is_business_day:
            return f"1{_BUSINESS}"
        if self.weekday is not None:
            return f"{self.micros // _WEEK_US}w-{_WEEKDAYS[self.weekday]}"
        if self.months:
            return f"{self.months}mo"
        unit = next(
            unit for unit in ("d", "h", "m", "s", "ms", "us") if self.micros % _UNITS_US[unit] == 0
        )
        return f"{self.micros // _UNITS_US[unit]}{unit}"

    @property
    def steps_per_year(self) -> float:
        """Number of steps in 365.25 days."""
        if self.is_business_day:
            return YEAR_US / DAY_US * 5 / 7
        if self.months:
            return 12 / self.months
        return YEAR_US / self.micros


@dataclass(frozen=True)
class Axis:
    """A time axis of `rows` equal steps from `first` on.

    anchor: where in their month the times of months are.
    """

    frequency: Frequency
    first: int
    rows: int
    anchor: Anchor = "start"

    def times(self) -> I64:
        """Return the time of every row, int64 [rows]."""
        first = np.array([self.first], np.int64)
        steps = np.arange(self.rows, dtype=np.int64)
        return times_at(self.frequency, first, anchor_codes([self.anchor]), steps)

    def tail(self, start: int, stop: int) -> Axis:
        """Return the axis of the rows from `start` to before `stop`."""
        return Axis(
            self.frequency,
            int(self.times()[start]) if start else self.first,
            stop - start,
            self.anchor,
        )


def anchor_codes(words: Sequence[str]) -> I64:
    """Return the positions of these words in `ANCHORS`, int64. Raises `ValueError`."""
    return np.array([ANCHORS.index(word) for word in words], np.int64)


def times_at(frequency: Frequency, first: I64, anchor: I64, steps: I64) -> I64:
    """Return the times that are `steps` steps after the first times; int64, shapes broadcast.

    anchor: where in their month the times of months are, by position in `ANCHORS`.
    """
    if frequency.is_business_day:
        number, _ = business_day_numbers(first)
        return _business_days(number + steps) * DAY_US + first % DAY_US
    if not frequency.months:
        return np.asarray(first + steps * frequency.micros, np.int64)
    months, _, _ = month_numbers(first)
    return _in_month(months + steps * frequency.months, first, anchor)


def _in_month(months: I64, first: I64, anchor: I64) -> I64:
    """Return the times in these months that are where the first times are in theirs."""
    _, since, until = month_numbers(first)
    times = np.where(anchor == _END, _start_of(months + 1) - until, _start_of(months) + since)
    for code in np.unique(anchor[anchor > _END]).tolist():
        days = _day_in_month(months, ANCHORS[code])
        times = np.where(anchor == code, days * DAY_US + first % DAY_US, times)
    return times


def _day_in_month(months: I64, anchor: Anchor) -> I64:
    """Return the day of each month that has this name, as days since 1970-01-01."""
    starts = months.astype("datetime64[M]").astype("datetime64[D]")
    next_starts = (months + 1).astype("datetime64[M]").astype("datetime64[D]")
    if anchor == "last_weekday":
        days = np.busday_offset(next_starts, -1, roll="forward")
    elif anchor == "first_weekday":
        days = np.busday_offset(starts, 0, roll="forward")
    else:
        days = np.minimum(starts + (int(anchor[:2]) - 1), next_starts - 1)
    return np.asarray(days.astype(np.int64))


def slots_of(times: I64, frequency: Frequency) -> I64:
    """Return the step that contains each time: the time of the last step that is not after it."""
    if frequency.is_business_day:
        return _business_days(business_day_numbers(times)[0]) * DAY_US
    if not frequency.months:
        return (times - frequency.origin) // frequency.micros * frequency.micros + frequency.origin
    return _start_of(month_numbers(times)[0] // frequency.months * frequency.months)


@dataclass(frozen=True)
class Placed:
    """Observed rows on their axis.

    rows: observed rows that are on the axis, in time order: int64 [P].
    positions: their positions on the axis, ascending; equal ones are duplicates: int64 [P].
    off_grid: observed rows between two positions, int64.
    """

    axis: Axis
    rows: I64
    positions: I64
    off_grid: I64


def place_rows(times: I64, frequency: Frequency) -> Placed:
    """Place rows, in any order, on the axis that fits most of them. times: [N], N ≥ 1."""
    anchor: Anchor = "start"
    if frequency.months:
        anchor, on_grid = _month_anchor(times)
        months = month_numbers(times)[0]
        phase = months % frequency.months
        on_grid &= phase == _most_common(phase[on_grid])
        number = months // frequency.months
    elif frequency.is_business_day:
        number, on_grid = business_day_numbers(times)
        phase = times % DAY_US
        on_grid &= phase == _most_common(phase[on_grid] if on_grid.any() else phase)
    else:
        number, phase = np.divmod(times - frequency.origin, frequency.micros)
        on_grid = np.ones(len(times), np.bool_)
        if frequency.weekday is not None:
            on_grid = phase % _WEEK_US < DAY_US
        on_grid &= phase == _most_common(phase[on_grid] if on_grid.any() else phase)
    rows = np.flatnonzero(on_grid)
    if not len(rows):
        return Placed(Axis(frequency, 0, 0), rows, rows, np.flatnonzero(~on_grid))
    numbers = number[rows]
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        rows = rows[order]
        numbers = numbers[order]
    axis = Axis(frequency, int(times[rows[0]]), int(numbers[-1] - numbers[0]) + 1, anchor)
    return Placed(axis, rows, numbers - numbers[0], np.flatnonzero(~on_grid))


def _month_anchor(times: I64) -> tuple[Anchor, Bools]:
    """Return where in their month most of these times are, and which of them are there."""
    months, since, until = month_numbers(times)
    common = _most_common(since)
    candidates: dict[Anchor, Bools] = {
        "start": since == common,
        "end": until == _most_common(until),
    }
    # Days 29 to 31 do not exist in every month: they have anchors of their own.
    if common >= _SHORTEST_MONTH_US:
        del candidates["start"]
    elif candidates["start"].all():
        return "start", candidates["start"]
    if not candidates["end"].all():
        clock = _most_common(times % DAY_US)
        for anchor in ANCHORS[_END + 1 :]:
            candidates[anchor] = times == _day_in_month(months, anchor) * DAY_US + clock
    best = max(candidates, key=lambda anchor: int(candidates[anchor].sum()))
    return best, candidates[best]


def infer(times: I64) -> Frequency | None:
    """Return the most common step between distinct times [N], in any order; None for fewer than
    three of them.
    """
    distinct = np.unique(times)
    if len(distinct) < 3:
        return None
    steps = np.diff(distinct)
    if steps.min() >= _SHORTEST_MONTH_US and _month_anchor(distinct)[1].all():
        return Frequency(0, _most_common(np.diff(month_numbers(distinct)[0])))
    return Frequency(_most_common(steps))


def agreed(words: Mapping[str, int], rule: str) -> str:
    """Return the frequency of most entities, in a tie the longest; or with rule "coarsest" the
    longest of any entity.

    words: number of entities by frequency.
    """
    most = {word: 0 if rule == "coarsest" else count for word, count in words.items()}
    return min(words, key=lambda word: (-most[word], Frequency.parse(word).steps_per_year, word))


def occurrences(times: I64, groups: I64) -> I64:
    """Count how often the time of each row occurred in earlier rows of its group: int64 [N]."""
    order = np.lexsort((times, groups))  # stable: rows of equal time stay in order
    starts = np.ones(len(times), np.bool_)
    starts[1:] = (times[order][1:] != times[order][:-1]) | (groups[order][1:] != groups[order][:-1])
    rows = np.arange(len(times))
    occurrence = np.empty(len(times), np.int64)
    occurrence[order] = rows - np.maximum.accumulate(np.where(starts, rows, 0))
    return occurrence


def business_day_numbers(times: I64) -> tuple[I64, Bools]:
    """Return the number of the last business day that is not after each time, and whether the time
    is on that day.
    """
    days = times // DAY_US
    numbers = np.busday_count(_FIRST_MONDAY, (days + 1).astype("datetime64[D]")) - 1
    return np.asarray(numbers, np.int64), np.is_busday(days.astype("datetime64[D]"))


def _business_days(number: I64) -> I64:
    """Return business days, given by their numbers, as days since 1970-01-01."""
    days = np.busday_offset(_FIRST_MONDAY, number, roll="forward")
    return np.asarray(days.astype("datetime64[D]").astype(np.int64))


def month_numbers(times: I64) -> tuple[I64, I64, I64]:
    """Return months since 1970, microseconds since the month's start, and microseconds until its
    end.
    """
    months = times.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
    return months, times - _start_of(months), _start_of(months + 1) - times


def _start_of(months: I64) -> I64:
    return months.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)


def _most_common(values: I64) -> int:
    """Return the most frequent value, and in a tie the smallest."""
    if (values == values[0]).all():  # the common case, far cheaper than a sort
        return int(values[0])
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[np.argmax(counts)])


_HOUR_US = DAY_US // 24


def _share_of(unit: str) -> Callable[[I64], F64]:
    """Return the share of its calendar month or year that has passed at each time, 0 to 1."""

    def passed(micros: I64) -> F64:
        period = micros.view("datetime64[us]").astype(f"datetime64[{unit}]")
        begin, end = (
            bound.astype("datetime64[us]").view(np.int64) for bound in (period, period + 1)
        )
        return np.asarray((micros - begin) / (end - begin), np.float64)

    return passed


_SHARES: dict[str, Callable[[I64], F64]] = {
    "hour_of_day": lambda micros: np.asarray(micros % DAY_US // _HOUR_US / 24, np.float64),
    # 1970 began on a Thursday; Monday is 0
    "day_of_week": lambda micros: np.asarray((micros // DAY_US + 3) % 7 / 7, np.float64),
    "day_of_month": _share_of("M"),
    "day_of_year": _share_of("Y"),
}
CALENDAR = tuple(_SHARES)


def calendar_names(parts: Sequence[str]) -> list[str]:
    """Return the column names of these parts of a time."""
    return [f"{part}_{wave}" for part in parts for wave in ("sin", "cos")]


def calendar_of(parts: Sequence[str], micros: I64) -> F32:
    """Return the columns of these parts at the given times, [N, 2 · parts]."""
    angles = [2 * np.pi * _SHARES[part](micros) for part in parts]
    waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    return np.stack(waves, axis=1).astype(np.float32)
