"""Require that joined values were known before the time of their row.

A column of `known_at` holds the instant from which a value of the row was known. It must lie
strictly before the time of the row, or at it with `known_equal="keep"`. It is parsed like the time.
A date without a clock counts as the end of its day. A wall-clock time that happens twice counts as
the later instant, and the row's time as the earlier one, so that the ambiguity lets no value in.
What is missing or unreadable was not known before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, Bools
from headrace.errors import InputError, setting
from headrace.formats.dates import DAY_US, MISSING, Dates, has_clock, parse_dates
from headrace.formats.shard import Chunk, Shard
from headrace.formats.text_columns import nulled
from headrace.formats.types import is_text, to_python
from headrace.split.cutoff import in_utc
from headrace.split.features import Feature
from headrace.split.reasons import Reason
from headrace.split.rules import DropRule, Output
from headrace.split.scan import Scanner, check_forms, column_of
from headrace.split.settings import SplitSettings, TemporalSplit

_ISO_DATE = r"^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}$"
_COMPACT_DATE = r"^[0-9]{8}(\.0*)?$"
_COUNTS_DAYS = ("yyyymmdd", "epoch_days", "excel_days")


@dataclass(frozen=True)
class LateValue:
    """A value that was not known before the time of its row.

    row: its index in the table; problem: why.
    """

    row: int
    column: str
    value: object
    problem: str


def times_in_utc(times: Dates, time_zone: str) -> I64:
    """Return the times of rows in UTC, `MISSING` for those without."""
    timed = times.micros != MISSING
    return in_utc(times.micros, timed & ~times.instant, time_zone)


def known_late(
    table: pa.Table, time_us: I64, settings: TemporalSplit, path: str | PathLike[str]
) -> tuple[Bools, LateValue | None]:
    """Mask the rows with a value that was not known before their time [N], and describe the first
    one.

    time_us: of the rows in UTC, `MISSING` for rows that have no time, which are not masked. path:
    for errors.
    """
    timed = time_us != MISSING
    late = np.zeros(len(time_us), np.bool_)
    first: LateValue | None = None
    for name in settings.known_at:
        column = nulled(column_of(table, name), ("", *settings.dialect.null_values))
        known = parse_dates(column, settings.time_format)
        check_forms(known.forms, settings.time_format, path, name)
        known_us = _known_us(column, known, settings)
        wrong = known_us > time_us
        if settings.known_equal == "late":
            wrong |= known_us == time_us
        wrong |= known_us == MISSING
        wrong &= timed
        if wrong.any() and (first is None or int(wrong.argmax()) < first.row):
            row = int(wrong.argmax())
            first = _describe(row, name, column[row], bool(known_us[row] == MISSING))
        late |= wrong
    return late, first


def _known_us(column: pa.ChunkedArray, known: Dates, settings: TemporalSplit) -> I64:
    """Return the instant from which each value was known, in UTC; `MISSING` if it cannot be
    read.
    """
    days = _without_clock(column, known, settings.time_format)
    ends = known.micros + days * (DAY_US - 1)
    wall = (known.micros != MISSING) & ~known.instant
    return in_utc(ends, wall, settings.time_zone, twice="latest")


def _without_clock(column: pa.ChunkedArray, known: Dates, time_format: str) -> Bools:
    """Mask the values that name a day and no time of day [N]."""
    midnight: Bools = (known.micros != MISSING) & (known.micros % DAY_US == 0)
    if pa.types.is_timestamp(column.type):
        return np.zeros(len(column), np.bool_)
    if pa.types.is_date(column.type) or time_format in _COUNTS_DAYS:
        return midnight
    if "%" in time_format:
        return midnight & (not has_clock(time_format))
    if not is_text(column.type):
        return midnight & ("yyyymmdd" in known.forms)
    if not midnight.any() or time_format not in ("auto", "iso"):
        return np.zeros(len(column), np.bool_)
    pattern = f"{_ISO_DATE}|{_COMPACT_DATE}"
    days = pc.fill_null(pc.match_substring_regex(column, pattern), False)
    return midnight & np.asarray(days.to_numpy(), np.bool_)


def _describe(row: int, name: str, value: pa.Scalar, unknown: bool) -> LateValue:
    if not value.is_valid:
        return LateValue(
            row, name, None, "missing, and the value must have been known before the row"
        )
    if unknown:
        return LateValue(row, name, to_python(value), "not a time that can be read")
    return LateValue(row, name, to_python(value), "not before the time of its row")


class KnownAtScanner(Scanner):
    """Find, or refuse, the rows of a shard with values that were not known before their time."""

    reason = Reason.KNOWN_LATE

    def __init__(self, settings: TemporalSplit, shard: Shard) -> None:
        self.settings = settings
        self.shard = shard
        self.columns = settings.known_at

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> Bools:
        """Compare the columns with the times of the rows."""
        time_us = times_in_utc(times, self.settings.time_zone)
        late, first = known_late(table, time_us, self.settings, self.shard.path)
        if first is not None and self.settings.known_late == "error":
            raise InputError(
                first.problem,
                path=self.shard.path,
                row=chunk.first_row + first.row + 1,
                column=first.column,
                value=first.value,
                remedy=(
                    "join only values that were known before, or drop and count such rows with "
                    f"{setting('known_late', 'drop')}"
                ),
            )
        return late


class KnownAt(Feature):
    """Columns that hold the instant from which a joined value was known."""

    @classmethod
    def is_part(cls, settings: SplitSettings) -> bool:
        """Return whether rows have a time."""
        return isinstance(settings, TemporalSplit)

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        assert isinstance(self.settings, TemporalSplit)
        self.in_time = self.settings
        self.filled = self.in_time.known_at
        if self.in_time.known_at and self.in_time.known_late == "drop":
            self.rules = (DropRule.of_scan(Reason.KNOWN_LATE),)

    def scanner(self, shard: Shard) -> Scanner | None:
        """Look at the columns, if there are any."""
        if self.in_time.known_at:
            return KnownAtScanner(self.in_time, shard)
        return None
