"""Format numbers for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
KINDS_OF_BATCHES = {  # names as in `headrace plan --json`
    "8_rows": "any 8 rows",
    "256_rows": "any 256 rows",
    "global_batch": "a global step",
    "rank_batch": "a rank's batch",
}
_SPANS = ((365.25 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "minutes"))


def pluralise(number: float, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 shard`, `1,234 shards`."""
    return f"{number:,.0f} {noun if number == 1 else plural or noun + 's'}"


def many_entities(count: float) -> str:
    """Format a count of entities."""
    return pluralise(count, "entity", "entities")


def verb(count: float, one: str, several: str) -> str:
    """Return the form of a verb that a count of things takes: `has`, `have`."""
    if count == 1:
        return one
    return several


def percentage(part: float, of: float) -> str:
    """Format a share in percent: `12.3 %`; only none or all of it reads as 0 or 100."""
    if not of:
        return "0 %"
    percent = 100 * part / of
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 99.9 < percent < 100:
        return "over 99.9 %"
    return f"{percent:.1f} %".replace(".0 %", " %")


def size(number: float) -> str:
    """Format bytes with a unit: `3.2 MiB`."""
    for unit, name in _SIZES:
        if number >= unit:
            return f"{number / unit:,.1f} {name}".replace(".0 ", " ")
    return pluralise(number, "byte")


def span(seconds: float) -> str:
    """Format a duration in seconds: `2.5 days`."""
    for unit, name in _SPANS:
        if seconds >= unit:
            return f"{seconds / unit:,.1f} {name}".replace(".0 ", " ").removesuffix(
                "s" if seconds == unit else " "
            )
    return f"{seconds:,.3g} {'second' if seconds == 1 else 'seconds'}"


def moment(microseconds: float) -> str:
    """Format a time in microseconds since 1970 as a date, with the clock only if it is not
    midnight.

    A time outside the calendar is given as its number.
    """
    try:
        when = _EPOCH + timedelta(microseconds=int(microseconds))
    except OverflowError:
        return f"{microseconds:,.0f} µs"
    return when.strftime(
        "%Y-%m-%d"
        if not when.time().replace(microsecond=0).isoformat().strip("0:")
        else "%Y-%m-%d %H:%M"
    )


def written(instant: str) -> str:
    """Format an instant of a manifest as `2026-11-22 12:24 UTC`; any other text stays as it is."""
    try:
        return f"{datetime.fromisoformat(instant).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return instant


def listed(names: Sequence[str], most: int = 3) -> str:
    """Join names as `a, b and c`; of many, only the first few and the number of others."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
