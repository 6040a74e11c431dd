"""Convert times between the clocks of time zones. Pure.

Every zone comes from Polars, which carries a database of its own. Rows, cuts, labels and checks of
names therefore agree, whatever database the machine has. Years after 2037 show the difference:
databases say them by a rule or not at all.

Settings are checked with this module, so it imports data libraries on use.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from headrace.digest import sha256_hex
from headrace.errors import SettingsError, setting_name

if TYPE_CHECKING:
    import polars as pl
    from pydantic import ValidationInfo

    from headrace.arrays import I64

_HOUR_US = 3_600_000_000
_ZONE_HOURS = -70 * 8766, 131 * 8766  # since 1970
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def known_zone(value: str | None, field: ValidationInfo) -> str | None:
    """Return the name of a time zone unchanged. Raises `ValueError` if it is unknown."""
    if value in (None, "UTC"):
        return value
    import polars as pl

    zoned = None
    if value:
        with suppress(pl.exceptions.PolarsError):
            zoned = pl.Series([0]).cast(pl.Datetime("us")).dt.replace_time_zone(value)
    if zoned is None:
        raise ValueError(
            f"{setting_name(field.field_name or '')} is {value!r}, which is not an IANA time"
            " zone; give one such as 'Europe/Berlin' or 'UTC'"
        )
    return value


def wall_to_utc(wall_us: I64, zone: str, twice: Literal["earliest", "latest"]) -> I64:
    """Convert wall-clock times of a zone to microseconds since 1970 UTC.

    twice: which instant to choose for a time that happens twice. The result is `MISSING` for times
    that clocks skip and for times that are missing.
    """
    times = _datetimes(wall_us)
    zoned = times.dt.replace_time_zone(zone, ambiguous=twice, non_existent="null")
    return _micros_of(zoned)


def utc_to_wall(instants: I64, zone: str) -> I64:
    """Return the wall-clock times of a zone at these instants, in microseconds."""
    times = _datetimes(instants).dt.replace_time_zone("UTC")
    return _micros_of(times.dt.convert_time_zone(zone).dt.replace_time_zone(None))


def _datetimes(micros: I64) -> pl.Series:
    import polars as pl

    from headrace.formats.dates import MISSING

    times = pl.Series(micros)
    return times.set(times == MISSING, None).cast(pl.Datetime("us"))


def _micros_of(times: pl.Series) -> I64:
    """Return times as microseconds, `MISSING` if null; a copy that callers may change."""
    import numpy as np

    from headrace.formats.dates import MISSING

    return np.array(times.dt.epoch("us").fill_null(MISSING).to_numpy(), np.int64)


def between_clocks(times: I64, source: str | None, target: str | None) -> I64:
    """Convert what the clocks of one zone show to what those of another show then.

    Zones: None for UTC. Of a time that comes twice the earlier instant is meant, and one that is
    skipped has the offset from before.
    """
    if source == target:
        return times
    if source is not None:
        from headrace.formats.dates import DAY_US, MISSING

        instants = wall_to_utc(times, source, "earliest")
        skipped = instants == MISSING
        instants[skipped] = wall_to_utc(times[skipped] - DAY_US, source, "latest") + DAY_US
        times = instants
    return times if target is None else utc_to_wall(times, target)


def time_us(name: str, text: str, zone: str | None = None, *, clock: str | None = None) -> int:
    """Return an ISO date or time as microseconds since 1970, as the clocks of `clock` show it.

    A text without an offset is what the clocks of `zone` show, see `between_clocks`. Zones: None
    for UTC. name: of the setting, in the error. Raises `SettingsError`.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        owner, _, setting = name.rpartition(": ")
        raise SettingsError(
            setting=setting,
            path=owner if "/" in owner else None,
            value=text,
            remedy="give an ISO date such as 2025-01-01",
        ) from None
    if moment.tzinfo is None:
        return one_between_clocks(micros_of(moment.replace(tzinfo=UTC)), zone, clock)
    return one_between_clocks(micros_of(moment), None, clock)


def one_between_clocks(time: int, source: str | None, target: str | None) -> int:
    """Convert one time as `between_clocks` does."""
    if source == target or {source, target} <= {None, "UTC"}:
        return time
    import numpy as np

    return int(between_clocks(np.array([time], np.int64), source, target)[0])


def micros_of(moment: datetime) -> int:
    """Return an aware time as microseconds since 1970 UTC."""
    return (moment - EPOCH) // timedelta(microseconds=1)


@lru_cache
def zone_version(zone: str) -> str:
    """Return a digest of what the clocks of a zone show at every hour of 1900 to 2100.

    It changes if another release of the time zone database has other hours for this zone.
    """
    import numpy as np

    hours = np.arange(*_ZONE_HOURS) * _HOUR_US
    offsets = (utc_to_wall(hours, zone) - hours) // 1_000_000
    return sha256_hex(offsets.astype("<i4").tobytes())[:16]
