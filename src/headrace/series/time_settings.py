"""Rules about settings of times that depend on each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.series.arrays.axis import Frequency

if TYPE_CHECKING:
    from headrace.series.config import Series

_EPOCH = date(1970, 1, 1).toordinal()
Rule = Literal["mean", "sum", "min", "max", "first", "last"]


def rules(value: object) -> object:
    """Read one rule as that of all columns."""
    return {"*": value} if isinstance(value, str) else value


def listed_days(value: object) -> object:
    """Read @FILE as the days in it, and return days of a calendar sorted. Raises `ValueError` for what is no day."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        return value
    texts = []
    for each in map(str, given):
        if each.startswith("@"):
            try:
                texts += Path(each[1:]).expanduser().read_text("utf-8-sig").split()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"business_days: {each[1:]} cannot be read ({error}); check its path") from None
        else:
            texts.append(each)
    for each in texts:
        try:
            date.fromisoformat(each)
        except ValueError:
            raise ValueError(f"business_days names {each!r}, which is not a day; write days as 2024-12-31") from None
    return tuple(sorted({date.fromisoformat(each).isoformat() for each in texts}))


def days_of(days: Sequence[str]) -> list[int]:
    """Return days as their numbers since 1970-01-01."""
    return [date.fromisoformat(each).toordinal() - _EPOCH for each in days]


def known_zone(value: str | None) -> str | None:
    """Return the name of a time zone as it is. Raises `ValueError` for one that is not known."""
    import polars as pl  # settings alone load no data libraries

    try:
        pl.Series([0]).cast(pl.Datetime("us")).dt.replace_time_zone(value)
    except pl.exceptions.PolarsError:
        raise ValueError(f"time_zone {value!r} is not known; give one such as Europe/Berlin or UTC") from None
    return value


def time_faults(settings: Series) -> Iterator[tuple[bool, str]]:
    """List what would be wrong with the settings of times, and whether it is."""
    named = settings.frequency not in ("infer", "coarsest")
    columns, given = settings.columns(), settings.resample.keys()
    strangers = sorted(given - {"*", *columns})
    left = [each for each in columns if given and not {each, "*"} & given]
    if settings.snap_us is not None:
        step = Frequency.parse(settings.frequency) if named else Frequency(0)
        yield not step.micros, f"snap needs a frequency of a fixed length, e.g. 1h, and it is {settings.frequency!r}"
        yield (
            settings.snap_us * 2 > step.micros,
            f"snap is {settings.snap!r}; give at most half of the frequency {settings.frequency}",
        )
        yield bool(given), "give resample or snap, not both"
    yield bool(settings.business_days) and settings.frequency != "1b", "business_days are of frequency 1b; give it too"
    yield bool(given) and settings.frequency == "infer", "resample needs a frequency, e.g. 1d or coarsest"
    yield (
        settings.frequency == "coarsest" and not given,
        "frequency is 'coarsest', which needs resample to say how finer rows are joined",
    )
    yield bool(strangers), f"resample names {', '.join(strangers)}, which is no column of values"
    yield bool(left), f"resample has no rule for {', '.join(left)}; give one, or one for '*'"
    yield (
        settings.duplicate_times == "nearest" and settings.snap is None,
        "duplicate_times is 'nearest', which needs snap; give 'first' or 'last'",
    )
    yield (
        settings.time_zone is not None and any(each.startswith("epoch") for each in settings.time_format),
        "time_format is an epoch, which counts instants; leave time_zone out",
    )
