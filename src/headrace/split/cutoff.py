"""Compute the split date on the two clocks that rows may use, and the time bins around it. Pure.

Rows are counted by bin while a run is prepared, in O(rows). The bins follow from the first and last
time of the source and from the cutoff, which is a border between two of them. Counts of shards add
up, so they are the same for any number of workers.

Settings are checked with this module, so functions about rows import data libraries on use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import setting_name
from headrace.folds.settings import Rolling
from headrace.formats.zones import EPOCH, micros_of, one_between_clocks, wall_to_utc

if TYPE_CHECKING:
    from headrace.arrays import I64, Bools
    from headrace.split.settings import TemporalSplit

_MINUTE_US = 60_000_000
_REPEATED_MINUTES = 2 * 1440
_BARS = 72  # bars across the width of a page


@dataclass(frozen=True)
class Cutoff:
    """A cutoff on both clocks.

    instant_us: microseconds since 1970 UTC. wall_us: the same moment on the zone's wall clock. If
    clocks are set back around the cutoff, wall-clock times from `fold_start_us` up to `fold_end_us`
    happen twice, so a date without offset in that range has no side. Otherwise the two are equal.
    """

    instant_us: int
    wall_us: int
    fold_start_us: int
    fold_end_us: int


def cutoff_at(moment: datetime, zone: str) -> Cutoff:
    """Return the cutoff at a moment; one without offset is wall-clock time of the zone.

    Raises `ValueError` for a wall-clock time that the zone skips or repeats; one with an offset is
    always fine.
    """
    if zone == "UTC":
        micros = micros_of(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        return Cutoff(micros, micros, micros, micros)
    if moment.tzinfo is None:
        wall_us = micros_of(moment.replace(tzinfo=UTC))
        instant_us = _only_instant(wall_us, zone)
    else:
        instant_us = micros_of(moment)
        wall_us = one_between_clocks(instant_us, None, zone)
    start, end = _repeated_hour(wall_us, zone)
    return Cutoff(instant_us, wall_us, start, end)


def _only_instant(wall_us: int, zone: str) -> int:
    """Return the one instant at which the clocks of a zone show a time. Raises `ValueError`."""
    import numpy as np

    from headrace.formats.dates import MISSING

    times = np.array([wall_us], np.int64)
    earlier = int(wall_to_utc(times, zone, "earliest")[0])
    if earlier != MISSING and earlier == int(wall_to_utc(times, zone, "latest")[0]):
        return earlier
    problem = "happens twice"
    if earlier == MISSING:
        problem = "does not exist"
        earlier = one_between_clocks(wall_us, zone, None)
    moment = EPOCH + timedelta(microseconds=wall_us)
    with_offset = moment.replace(tzinfo=timezone(timedelta(microseconds=wall_us - earlier)))
    raise ValueError(
        f"{setting_name('split_date')} {moment.replace(tzinfo=None)} {problem} in {zone} (clock"
        f" change); give it with an offset, e.g. {with_offset.isoformat()}"
    )


def cutoffs(settings: TemporalSplit) -> list[Cutoff]:
    """Return the cut of each fold; [] for folds of entities.

    A split date without offset moves on the wall clock of the zone. Raises `ValueError` for a cut
    at a time that the zone skips or repeats.
    """
    if settings.split_date is None:
        return []
    text = re.sub(r"^(\d{4})(\d\d)(\d\d)$", r"\1-\2-\3", settings.split_date.strip())
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{setting_name('split_date')} is {settings.split_date!r}; give an ISO date such as"
            " 2025-01-01"
        ) from None
    zone = settings.time_zone
    folds = settings.folds
    if not isinstance(folds, Rolling):
        return [cutoff_at(moment, zone)]
    try:
        moments = [
            moment + timedelta(microseconds=number * folds.step_us) for number in range(folds.n)
        ]
    except OverflowError:
        raise ValueError(
            f"{setting_name('folds')}: {folds.n} steps of {folds.step} go beyond the year 9999;"
            " give fewer"
        ) from None
    cuts = [cutoff_at(moment, zone) for moment in moments]
    for earlier, later in pairwise(cuts):
        if later.instant_us <= earlier.instant_us or later.wall_us <= earlier.wall_us:
            raise ValueError(
                f"{setting_name('folds')}: two cuts {folds.step} apart are the same time in"
                f" {zone} (clock change); choose a longer step"
            )
    return cuts


def in_utc(
    micros: I64, wall: Bools, zone: str, *, twice: Literal["earliest", "latest"] = "earliest"
) -> I64:
    """Convert the times that are wall-clock times of the zone to microseconds since 1970 UTC.

    micros: `MISSING` stays what it is. twice: which instant to choose for a time that happens
    twice. A time that clocks skip uses the offset of the day before.
    """
    from headrace.formats.dates import DAY_US, MISSING

    wall = wall & (micros != MISSING)
    if zone == "UTC" or not wall.any():
        return micros
    times = micros[wall]
    instants = wall_to_utc(times, zone, twice)
    skipped = instants == MISSING
    if skipped.any():
        day_before = times[skipped] - DAY_US
        shifted = wall_to_utc(day_before, zone, twice)
        shifted[shifted == MISSING] = day_before[shifted == MISSING]  # the zone skipped both days
        instants[skipped] = shifted + DAY_US
    utc = micros.copy()
    utc[wall] = instants
    return utc


def _repeated_hour(wall_us: int, zone: str) -> tuple[int, int]:
    """Return the wall-clock span that happens twice and contains a time; if there is none, the time
    twice. Clocks change on whole minutes, and repeat two days at most.
    """
    import numpy as np

    around = wall_us // _MINUTE_US + np.arange(-_REPEATED_MINUTES, _REPEATED_MINUTES + 1)
    minutes = around * _MINUTE_US
    twice = wall_to_utc(minutes, zone, "earliest") != wall_to_utc(minutes, zone, "latest")
    if not twice[_REPEATED_MINUTES]:
        return wall_us, wall_us
    once = np.flatnonzero(~twice)
    after = int(np.searchsorted(once, _REPEATED_MINUTES))
    return int(minutes[once[after - 1] + 1]), int(minutes[once[after]])


@dataclass(frozen=True, slots=True)
class DateBins:
    """Time bins [first_us + n * width_us, first_us + (n + 1) * width_us), n from 0 to count - 1."""

    first_us: int
    width_us: int
    count: int

    @classmethod
    def over(cls, first_us: int, last_us: int, cutoff_us: int) -> DateBins:
        """Return at most 73 bins that hold both dates, with the cutoff on a border if it lies
        between them.
        """
        width = max(1, -(-(last_us - first_us + 1) // _BARS))
        shift = 0
        if first_us < cutoff_us <= last_us:
            shift = (cutoff_us - first_us) % width
        if shift:
            start = first_us + shift - width
        else:
            start = first_us
        return cls(start, width, (last_us - start) // width + 1)

    @classmethod
    def recorded(cls, dates: Mapping[str, Any]) -> DateBins:
        """Return the bins that a manifest counts dates in."""
        return cls(dates["first_us"], dates["width_us"], max(map(len, dates["rows"].values())))

    def counts(self, micros: I64) -> I64:
        """Count the rows in each bin; int64 [count].

        Dates outside, which only a damaged run has, are not counted.
        """
        import numpy as np

        from headrace.formats.dates import MISSING

        bins = (micros[micros != MISSING] - self.first_us) // self.width_us
        return np.bincount(bins[(bins >= 0) & (bins < self.count)], minlength=self.count)


def total(
    counts: Iterable[Mapping[str, list[int]]], bins: DateBins, splits: Iterable[str]
) -> dict[str, Any]:
    """Return the bins and the rows in them by split, as the manifest records them."""
    import numpy as np

    rows = {split: np.zeros(bins.count, np.int64) for split in splits}
    for shard_counts in counts:
        for split, split_counts in shard_counts.items():
            rows[split] += np.array(split_counts, np.int64)
    return {
        "first_us": bins.first_us,
        "width_us": bins.width_us,
        "rows": {split: split_rows.tolist() for split, split_rows in rows.items()},
    }
