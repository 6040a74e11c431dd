"""Check options: a word, an integer, a boolean, a date, a duration. Each check raises `SettingsError`.

name: what the message calls the value. Options that share a name carry their owner, as in "windows: stride".
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from headrace.errors import SettingsError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_DURATION = re.compile(r"(\d{1,9})\s*(s|m|h|d|w)")
_UNIT_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}


def check_word(name: str, value: object, words: Sequence[str]) -> None:
    """Raise unless the value is one of the words."""
    if value not in words:
        raise SettingsError(f"{name} is {value!r}; expected one of {', '.join(words)}")


def check_integer(name: str, value: object, *, least: int | None = None, most: int | None = None) -> None:
    """Raise unless the value is an integer, not a boolean, between `least` and `most`."""
    if isinstance(value, int) and most is not None and value > most:
        raise SettingsError(f"{name} is larger than {most:,}; give at most that")
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise SettingsError(
            f"{name} is {value!r}; expected an integer" + ("" if least is None else f" of {least} or more")
        )


def check_boolean(name: str, value: object) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r}; expected True or False")


def instant_us(name: str, text: str) -> int:
    """Return an ISO date or time as microseconds since 1970; without an offset it is UTC. Raises `SettingsError`."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise SettingsError(f"{name} is {text!r}; give an ISO date such as 2025-01-01") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def duration_us(name: str, value: str) -> int:
    """Return a duration such as 30d in microseconds. Raises `SettingsError` for any other text."""
    found = _DURATION.fullmatch(value)
    if found is None:
        raise SettingsError(f"{name} is {value!r}; give a number and s, m, h, d or w, such as 30d")
    return int(found[1]) * _UNIT_US[found[2]]


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the most similar known name ("did you mean …?"); return `otherwise` if none is close."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def explains_calls(name: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Raise `SettingsError` for a call without a required argument, or with one that the function does not have.

    Python's own `TypeError` does not say what to do. The signature is looked at after a `TypeError` only, so a call
    that fits costs nothing, and a `TypeError` from within such a call passes unchanged. name: what users call.
    """

    def explained(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                return function(*args, **kwargs)
            except TypeError:
                problem = _misfit(function, args, kwargs)
                if problem is None:
                    raise
            raise SettingsError(f"{name}: {problem}")

        return call

    return explained


def _misfit(function: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """Return what is wrong with the arguments of a call, and what to do; None if they fit the signature."""
    import inspect  # only where a call failed

    kinds = inspect.Parameter
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters, args = parameters[1:], args[1:]
    first = [each.name for each in parameters if each.kind is kinds.POSITIONAL_OR_KEYWORD]
    named = [each.name for each in parameters if each.kind is kinds.KEYWORD_ONLY]
    known = [*first, *named]
    if not any(each.kind is kinds.VAR_KEYWORD for each in parameters):
        for name in sorted(kwargs.keys() - known):
            return f"{name!r} is not an argument; {nearest(name, known, 'known: ' + ', '.join(known))}"
    if len(args) > len(first):
        return f"only {' and '.join(first)} can be given without a name; give the others by name"
    required = [each.name for each in parameters if each.default is kinds.empty and each.name in known]
    missing = [name for name in required if name not in kwargs and name not in first[: len(args)]]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{' and '.join(missing)} {verb} missing; give {', '.join(f'{name}=' for name in missing)}"
