"""Evaluate filters: which rows match, which columns that needs, and what a block's statistics
already decide.

A filter is either a pyarrow.compute expression, or pyarrow's lists of terms. A list such as `[("x",
">", 3), ("kind", "in", ["a", "b"])]` requires all its terms; a list of such lists requires any of
them. A row matches if the filter is true; a comparison with null is not. Statistics are used for
lists of terms only, because expressions are not inspected.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError

Term: TypeAlias = tuple[str, str, Any]
Filter: TypeAlias = pc.Expression | Sequence[Term] | Sequence[Sequence[Term]]
Holds = Literal["none", "some", "all"]

_MANY = ("in", "not in")
_ORDERS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
_COMPARISONS = ("==", "=", "!=", *_ORDERS, *_MANY)


@dataclass(frozen=True, kw_only=True, eq=False)
class Range:
    """Statistics of a column in a block: every value that is not null is between `low` and `high`,
    inclusive.
    """

    type: pa.DataType
    low: Any
    high: Any
    nulls: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Condition:
    """A filter that fits a schema; made by `condition_of`. Picklable.

    columns: those it reads. digest: the same for the same filter, in any process.
    """

    expression: pc.Expression
    columns: tuple[str, ...]
    digest: str
    terms: tuple[tuple[Term, ...], ...] = ()

    def __str__(self) -> str:
        return " ".join(str(self.expression).split())

    def matching(self, table: pa.Table) -> pa.Table:
        """Return the rows that match, in order; works on the calling thread and releases the
        interpreter lock.
        """
        import pyarrow.acero as acero  # imports pandas if installed, which takes half a second

        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        filtered = acero.Declaration("filter", acero.FilterNodeOptions(self.expression))
        return acero.Declaration.from_sequence([source, filtered]).to_table(use_threads=False)

    def holds_in(self, ranges: Mapping[str, Range]) -> Holds:
        """Return how many rows of a block with these statistics match: "none", "all", or "some" if
        undecided.

        Columns without statistics may be left out.
        """
        if not self.terms:
            return "some"
        outcomes = []
        for all_of in self.terms:
            outcomes.append([_holds(term, ranges.get(term[0])) for term in all_of])
        if all("none" in outcome for outcome in outcomes):
            return "none"
        if any(set(outcome) == {"all"} for outcome in outcomes):
            return "all"
        return "some"


def condition_of(requested: Filter, schema: pa.Schema) -> Condition:
    """Build the condition of a user's filter for these columns.

    Raises `SettingsError` for an unknown column, an unknown comparison, or a value that a column's
    type cannot be compared with.
    """
    terms: tuple[tuple[Term, ...], ...] = ()
    if isinstance(requested, pc.Expression):
        expression = requested
        digest = sha256_hex(requested.__reduce__()[1][0].to_pybytes())
    else:
        terms = _terms(requested)
        alternatives = []
        for group in terms:
            alternatives.append(
                reduce(operator.and_, [_expression(term, schema) for term in group])
            )
        expression = reduce(operator.or_, alternatives)
        digest = sha256_hex(
            canonical_json(
                [[[name, op, _canonical(value)] for name, op, value in e] for e in terms]
            )
        )
    empty = schema.empty_table()
    condition = Condition(expression=expression, columns=(), digest=digest, terms=terms)
    try:
        condition.matching(empty)
    except (
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        pa.ArrowTypeError,
        pa.ArrowKeyError,
    ) as error:
        raise SettingsError(
            f"{condition} does not fit the columns ({str(error).splitlines()[0]})",
            setting="filter",
            remedy=(
                "compare them with values of their types:"
                f" {', '.join(f'{field.name} {field.type}' for field in schema)}"
            ),
        ) from error
    needed = []
    for name in schema.names:
        try:
            condition.matching(empty.drop_columns([name]))
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            needed.append(name)
    return replace(condition, columns=tuple(needed))


def _terms(requested: Any) -> tuple[tuple[Term, ...], ...]:
    shape = 'give a pyarrow.compute expression, or terms such as [("x", ">", 3)]'
    if (
        isinstance(requested, str | bytes | Mapping)
        or not isinstance(requested, Sequence)
        or not requested
    ):
        raise SettingsError(setting="filter", value=requested, remedy=shape)
    any_of = requested
    if all(_is_term(term) for term in requested):
        any_of = [requested]
    for terms in any_of:
        if (
            isinstance(terms, str)
            or not isinstance(terms, Sequence)
            or not terms
            or not all(map(_is_term, terms))
        ):
            raise SettingsError(
                "neither a term nor a list of terms", setting="filter", value=terms, remedy=shape
            )
    return tuple(tuple(_term(*term) for term in terms) for terms in any_of)


def _is_term(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 3
        and isinstance(value[0], str)
        and isinstance(value[1], str)
    )


def _term(name: str, comparison: str, value: Any) -> Term:
    if comparison not in _COMPARISONS:
        raise SettingsError(
            "not a comparison",
            setting="filter",
            column=name,
            value=comparison,
            remedy=f"use one of {', '.join(_COMPARISONS)}",
        )
    takes_list = comparison in _MANY
    if takes_list and (isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__")):
        raise SettingsError(
            f"{comparison!r} compares with several values",
            setting="filter",
            column=name,
            value=value,
            remedy="pass a list of values",
        )
    if takes_list:
        values = list(value)
    else:
        values = [value]
    if isinstance(value, set | frozenset):
        values.sort(key=lambda value: (type(value).__name__, value))
    if any(value is None for value in values):
        raise SettingsError(
            "nothing compares with null",
            setting="filter",
            column=name,
            value=value,
            remedy=f'use the expression pc.field("{name}").is_null() or .is_valid()',
        )
    operator = "==" if comparison == "=" else comparison
    return name, operator, tuple(values) if takes_list else value


def _expression(term: Term, schema: pa.Schema) -> pc.Expression:
    name, comparison, value = term
    if name not in schema.names:
        raise SettingsError(
            "the dataset has no such column",
            setting="filter",
            column=name,
            remedy=f"use one of {', '.join(schema.names)}",
        )
    if comparison not in _MANY:
        return pq.filters_to_expression([(name, comparison, value)])
    type_ = schema.field(name).type
    try:
        values = pa.array(value, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        raise SettingsError(
            f"the values are not of type {type_} ({error})",
            setting="filter",
            column=name,
            value=list(value),
            remedy="pass values of that type",
        ) from error
    inside = pc.field(name).isin(values)
    if comparison == "in":
        return inside
    return ~inside & pc.field(name).is_valid()


def _canonical(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_canonical(item) for item in value]
    return [type(value).__name__, str(value)]


def _holds(term: Term, known: Range | None) -> Holds:
    _, comparison, value = term
    if comparison in _MANY:
        values = value
    else:
        values = (value,)
    if known is None or not all(_comparable(bound, known.type) for bound in values):
        return "some"
    low = known.low
    high = known.high
    if low != low or high != high:  # some writers include NaN in the bounds
        return "some"
    exact = known.nulls == 0 and not pa.types.is_floating(known.type)  # statistics do not count NaN
    # For a float32 column, Arrow may round the value to float32 before it compares.
    rounds = pa.types.is_float32(known.type)
    near = []
    for one in values:
        near.append(one)
        if rounds:
            near.append(float(np.float32(one)))
    # such a comparison is monotonic from low to high, so the bounds decide
    if comparison in _ORDERS:
        compare = _ORDERS[comparison]
        none = not any(compare(end, bound) for end in (low, high) for bound in near)
        every = compare(low, value) and compare(high, value)
    elif comparison in ("==", "in"):
        none = not any(low <= value <= high for value in near)
        every = low == high and low in values
    else:  # true for NaN, so floats cannot be ruled out
        inside = any(low <= value <= high for value in values)
        none = exact and low == high and inside
        every = not inside
    if none:
        return "none"
    if exact and every:
        return "all"
    return "some"


def _comparable(value: Any, type_: pa.DataType) -> bool:
    """Return whether Python compares this value with statistics exactly as Arrow does with values
    of the type.
    """
    if pa.types.is_integer(type_):
        return isinstance(value, int) and not isinstance(value, bool)
    if pa.types.is_float32(type_) or pa.types.is_float64(type_):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and value == value and abs(value) <= 2**53
    if pa.types.is_date32(type_):
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return isinstance(value, str)  # code points sort like UTF-8 bytes
    return False
