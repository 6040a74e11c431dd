"""Restate comparisons with numbers in the values of a column's type, so that the answer is exact.

Arrow casts the column or the number before it compares: it fails on whole numbers past 2⁶³ and on
a whole number beside a float, and its hash tables tell -0.0 from 0.0. Here the number is moved
instead, once:

- Whole numbers and decimals are compared as Python compares them: `x > 1.5` is `x >= 2`, and a
  number that the type cannot hold equals none of its values. A float beside a decimal column
  stands for its shortest decimal text, so 0.1 is one tenth.
- Beside a column of floats, a number is rounded to the column's type, as NumPy does.

NaN equals nothing, and -0.0 equals 0.0, for every comparison. Pure.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

Number: TypeAlias = int | float | Decimal | Fraction
Operator = Literal["in", "not in", "<", "<=", ">", ">="]


class Comparison(NamedTuple):
    """What is left to compare: `values` are of the column's type, one of them for an order.

    `in` of no values holds for no row, and `not in` of none for every row that is not null.
    """

    operator: Operator
    values: tuple[Any, ...]


_NEVER = Comparison("in", ())
_ALWAYS = Comparison("not in", ())


def number_of(value: object) -> Number | None:
    """Return a value as a number of Python; None if it is something else, as truth values are."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        return None
    if isinstance(value, int | float | Decimal):
        return value
    if isinstance(value, numbers.Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    return float(value)


def is_numeric(type_: pa.DataType) -> bool:
    """Return whether a column's type is one of numbers."""
    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    )


def exact(type_: pa.DataType, operator: str, literals: Sequence[Number]) -> Comparison:
    """Restate a comparison of a numeric column with numbers.

    operator: "==", "!=", "in", "not in", or an order, which takes one number.
    """
    if operator in ("==", "!=", "in", "not in"):
        values = tuple(dict.fromkeys(v for number in literals for v in _equal(type_, number)))
        return Comparison("in" if operator in ("==", "in") else "not in", values)
    (number,) = literals
    if number != number:
        return _NEVER
    if pa.types.is_floating(type_):
        return _float_order(type_, operator, number)
    return _step_order(type_, operator, number)


def _equal(type_: pa.DataType, number: Number) -> list[Any]:
    """Return the value of the type that equals a number, if there is one."""
    if number != number:
        return []
    if pa.types.is_floating(type_):
        value = _rounded(type_, number)
        if math.isinf(value) and not _is_infinite(number):
            return []
        return [value]
    if _is_infinite(number):
        return []
    steps = _in_steps(type_, number)
    low, high = _step_range(type_)
    if steps.denominator != 1 or not low <= steps <= high:
        return []
    return [_of_steps(type_, int(steps))]


def _float_order(type_: pa.DataType, operator: str, number: Number) -> Comparison:
    value = _rounded(type_, number)
    if math.isinf(value) and not _is_infinite(number):  # beyond every finite value of the type
        outside = {"<": "<", "<=": "<", ">": ">=", ">=": ">="}
        if value < 0:
            outside = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}
        operator = outside[operator]
    return Comparison(operator, (value,))  # type: ignore[arg-type]  # an order


def _step_order(type_: pa.DataType, operator: str, number: Number) -> Comparison:
    low, high = _step_range(type_)
    below = operator in ("<", "<=")
    if _is_infinite(number):
        return _ALWAYS if below == (number > 0) else _NEVER
    steps = _in_steps(type_, number)
    bound = {
        "<": math.ceil(steps) - 1,
        "<=": math.floor(steps),
        ">": math.floor(steps) + 1,
        ">=": math.ceil(steps),
    }[operator]
    if below:
        never, always = bound < low, bound >= high
    else:
        never, always = bound > high, bound <= low
    if never:
        return _NEVER
    if always:
        return _ALWAYS
    return Comparison("<=" if below else ">=", (_of_steps(type_, bound),))


def _is_infinite(number: Number) -> bool:
    return isinstance(number, float | Decimal) and math.isinf(number)


def _rounded(type_: pa.DataType, number: Number) -> float:
    """Round to the nearest value of a type of floats; infinity if it is beyond them."""
    try:
        value = float(number)
    except OverflowError:
        value = math.inf if number > 0 else -math.inf
    with np.errstate(over="ignore"):
        return float(type_.to_pandas_dtype()(value))


def _in_steps(type_: pa.DataType, number: Number) -> Fraction:
    """Return a finite number as a multiple of the step between two values of a type."""
    if not pa.types.is_decimal(type_):
        return Fraction(number)
    if isinstance(number, float):
        number = Decimal(repr(number))
    step = Fraction(10) ** int(type_.scale)
    return Fraction(number) * step


def _of_steps(type_: pa.DataType, steps: int) -> int | Decimal:
    if not pa.types.is_decimal(type_):
        return steps
    return Decimal(f"{steps}e{-type_.scale}")  # arithmetic would round to 28 digits


def _step_range(type_: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest value of a type, in steps."""
    if pa.types.is_decimal(type_):
        most = 10**type_.precision - 1
        return -most, most
    if pa.types.is_signed_integer(type_):
        return -(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1
    return 0, 2**type_.bit_width - 1
