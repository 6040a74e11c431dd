"""Keep the digits of numbers in arguments of calls that are written as JSON text. Pure.

Python reads 0.10 and 1e-7 as floats and writes 0.1 and 1e-07. A model must learn the digits of the
source.
"""

from __future__ import annotations

import json
import math
import re
from numbers import Number
from typing import Any

from headrace.digest import no_repeats, refuse_constant

_SIGN = "\ufdea"  # a noncharacter that no row holds
_PLACE = re.compile(f'"(?:{_SIGN}|\\\\ufdea)([^"\\\\{_SIGN}]+)(?:{_SIGN}|\\\\ufdea)"')


class Digits(Number):
    """A number as it was written. `json.dumps` does not know it; see `dumps`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __float__(self) -> float:
        return float(self.text)

    def __eq__(self, other: object) -> bool:
        return float(self) == other

    def __hash__(self) -> int:
        return hash(float(self))


def _number(text: str) -> float | Digits:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is larger than a number can be")
    return value if repr(value) == text else Digits(text)


def loads(text: str) -> Any:
    """Parse JSON as `headrace.digest.loads`, with the digits of its numbers.

    Raises `ValueError`, also for numbers beyond those of doubles.
    """
    return json.loads(
        text, object_pairs_hook=no_repeats, parse_constant=refuse_constant, parse_float=_number
    )


def dumps(value: Any, **options: Any) -> str:
    """Write JSON as `json.dumps` does, with numbers as they were written."""
    any_digits = False

    def placed(number: object) -> str:
        nonlocal any_digits
        if not isinstance(number, Digits):
            raise TypeError(f"Object of type {type(number).__name__} is not JSON serializable")
        any_digits = True
        return f"{_SIGN}{number}{_SIGN}"

    text = json.dumps(value, default=placed, **options)
    return _PLACE.sub(r"\1", text) if any_digits else text
