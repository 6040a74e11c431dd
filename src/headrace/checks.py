"""Check options: a word, an integer, a boolean, a date, a duration.

Each check raises `SettingsError`.

name: what the message calls the value. Options that share a name carry their owner, as in "windows:
stride".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from headrace.errors import SettingsError

_DURATION = re.compile(r"(\d{1,9})\s*(s|m|h|d|w)")
_UNIT_US = {
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}


def check_word(name: str, value: object, words: Sequence[str]) -> None:
    """Raise unless the value is one of the words."""
    if value not in words:
        raise SettingsError(f"{name} is {value!r}", remedy=f"expected one of {', '.join(words)}")


def check_integer(
    name: str, value: object, *, least: int | None = None, most: int | None = None
) -> None:
    """Raise unless the value is an integer, not a boolean, between `least` and `most`."""
    if isinstance(value, int) and most is not None and value > most:
        raise SettingsError(f"{name} is larger than {most:,}", remedy="give at most that")
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or (least is not None and value < least)
    ):
        raise SettingsError(
            f"{name} is {value!r}; expected an integer"
            + ("" if least is None else f" of {least} or more")
        )


def check_boolean(name: str, value: object) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r}", remedy="expected True or False")


def instant_us(name: str, text: str) -> int:
    """Return an ISO date or time as microseconds since 1970; without an offset it is UTC.

    Raises `SettingsError`.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SettingsError(
            f"{name} is {text!r}", remedy="give an ISO date such as 2025-01-01"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def duration_us(name: str, value: str) -> int:
    """Return a duration such as 30d in microseconds. Raises `SettingsError` for any other text."""
    match = _DURATION.fullmatch(value)
    if match is None:
        raise SettingsError(
            f"{name} is {value!r}", remedy="give a number and s, m, h, d or w, such as 30d"
        )
    return int(match[1]) * _UNIT_US[match[2]]


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the most similar known name ("did you mean …?"); return `otherwise` if none
    is close.
    """
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return otherwise
