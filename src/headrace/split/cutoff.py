"""The split date on the two clocks that tell a row's time, and the stretches of time around it. Pure.

Rows are counted by stretch while a run is prepared, in O(rows). The stretches follow from the source's first and last
time and from the cutoff, which is the border of two of them. Counts of shards add up, so they are the same for any
number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

import numpy as np

from headrace.arrays import I64

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STRETCHES = 72  # columns over the width of a page


@dataclass(frozen=True)
class Cutoff:
    """instant_us: microseconds since 1970 UTC. wall_us: the same moment as the zone's wall clock shows it.

    Wall-clock times from `fold_start_us` to before `fold_end_us` happen twice around the cutoff (clocks set back),
    so a date without offset in there has no side; the two are equal where there is no such hour.
    """

    instant_us: int
    wall_us: int
    fold_start_us: int
    fold_end_us: int


def cutoff_at(moment: datetime, zone: ZoneInfo) -> Cutoff:
    """Return the cutoff at a moment; one without offset is wall-clock time of the zone.

    Raises `ValueError` for a wall-clock time that the zone skips or repeats; one with an offset is always fine.
    """
    if moment.tzinfo is None:
        first, second = moment.replace(tzinfo=zone, fold=0), moment.replace(tzinfo=zone, fold=1)
        if first.utcoffset() != second.utcoffset():
            skipped = first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != moment
            raise ValueError(
                f"split_date {moment} {'does not exist' if skipped else 'happens twice'} in {zone.key} (clock change); "
                f"give it with an offset, e.g. {first.isoformat()}"
            )
        moment = first
    wall = moment.astimezone(zone)
    wall_us = _micros(wall.replace(tzinfo=UTC))
    start, end = _repeated_hour(wall, zone)
    return Cutoff(_micros(moment.astimezone(UTC)), wall_us, start or wall_us, end or wall_us)


def to_utc(wall_us: I64, zone: str, *, twice: Literal["earliest", "latest"] = "earliest") -> I64:
    """Convert wall-clock times of a zone to microseconds since 1970 UTC.

    twice: which of both a time is that happens twice. One that clocks skip is told by the clock of the day before.
    """
    import polars as pl

    def converted(shift: int) -> pl.Series:
        times = pl.Series(wall_us - shift).cast(pl.Datetime("us"))
        zoned = times.dt.replace_time_zone(zone, ambiguous=twice, non_existent="null")
        return zoned.dt.convert_time_zone("UTC").cast(pl.Int64) + shift

    day = timedelta(days=1) // timedelta(microseconds=1)
    found = converted(0).fill_null(converted(day)).fill_null(pl.Series(wall_us))
    return np.asarray(found.to_numpy(), np.int64)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _repeated_hour(wall: datetime, zone: ZoneInfo) -> tuple[int | None, int | None]:
    """The wall-clock span that happens twice and contains `wall`, if any; clock changes fall on whole minutes."""
    naive = wall.replace(tzinfo=None)

    def twice(moment: datetime) -> bool:
        early, late = (moment.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
        return early is not None and late is not None and early > late

    if not twice(naive):
        return None, None
    minute = timedelta(minutes=1)
    start = naive.replace(second=0, microsecond=0)
    while twice(start - minute):
        start -= minute
    end = start
    while twice(end):
        end += minute
    return _micros(start.replace(tzinfo=UTC)), _micros(end.replace(tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class DateBins:
    """Stretches [first_us + n * width_us, first_us + (n + 1) * width_us), n from 0 to count - 1."""

    first_us: int
    width_us: int
    count: int

    @classmethod
    def over(cls, first_us: int, last_us: int, cutoff_us: int) -> DateBins:
        """Return at most 73 of them that hold both dates."""
        width = max(1, -(-(last_us - first_us + 1) // _STRETCHES))
        shift = (cutoff_us - first_us) % width if first_us < cutoff_us <= last_us else 0
        begin = first_us + shift - width if shift else first_us
        return cls(begin, width, (last_us - begin) // width + 1)

    def counts(self, micros: I64) -> I64:
        """Rows in each stretch, int64 [count]. Dates outside, which only a damaged run has, are counted nowhere."""
        places = (micros - self.first_us) // self.width_us
        return np.bincount(places[(places >= 0) & (places < self.count)], minlength=self.count)


def total(counts: Iterable[Mapping[str, list[int]]], bins: DateBins, splits: Iterable[str]) -> dict[str, Any]:
    """Return what the manifest says: the stretches, and the rows in them by split."""
    found = {split: np.zeros(bins.count, np.int64) for split in splits}
    for each in counts:
        for split, own in each.items():
            found[split] += np.array(own, np.int64)
    return {
        "first_us": bins.first_us,
        "width_us": bins.width_us,
        "rows": {split: own.tolist() for split, own in found.items()},
    }
