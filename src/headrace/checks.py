"""Check options: a word, an integer, a boolean, a date, a duration.

Each check raises `SettingsError`.

name: of the setting, after the owner of settings that share a name, as in "windows: stride", or
after the file that has it.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import SupportsIndex, cast

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
        raise _refused(name, value, f"expected one of {', '.join(words)}")


def check_integer(
    name: str, value: object, *, least: int | None = None, most: int | None = None
) -> None:
    """Raise unless the value is an integer, not a boolean, between `least` and `most`."""
    if isinstance(value, int) and most is not None and value > most:
        raise _refused(name, value, f"give at most {most:,}")
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or (least is not None and value < least)
    ):
        bound = "" if least is None else f" of {least} or more"
        raise _refused(name, value, f"expected an integer{bound}")


def as_integer(
    name: str, value: object, *, least: int | None = None, most: int | None = None
) -> int:
    """Return any integer, such as numpy's, as a Python int. Raises as `check_integer` does."""
    if isinstance(value, SupportsIndex) and not isinstance(value, int):
        with suppress(TypeError):  # of an array, and of numpy's booleans
            value = operator.index(value)
    check_integer(name, value, least=least, most=most)
    return cast(int, value)


def check_boolean(name: str, value: object) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise _refused(name, value, "expected True or False")


def duration_us(name: str, value: str) -> int:
    """Return a duration such as 30d in microseconds. Raises `SettingsError` for any other text."""
    match = _DURATION.fullmatch(value)
    if match is None:
        raise _refused(name, value, "give a number and s, m, h, d or w, such as 30d")
    return int(match[1]) * _UNIT_US[match[2]]


def _refused(name: str, value: object, remedy: str) -> SettingsError:
    owner, _, setting = name.rpartition(": ")
    path = owner if "/" in owner else None
    return SettingsError(setting=setting, path=path, value=value, remedy=remedy)


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the most similar known name ("did you mean …?"); return `otherwise` if none
    is close.
    """
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return otherwise
