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
from decimal import Decimal
from functools import reduce
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.dataset.comparisons import Comparison, exact, is_numeric, number_of
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, SettingsError, first_line
from headrace.formats.column_paths import ColumnPath, column_path, with_paths
from headrace.formats.plain_types import check_read, readable
from headrace.formats.types import is_text, shorten_list

Term: TypeAlias = tuple[str, str, Any]
Filter: TypeAlias = pc.Expression | Sequence[Term] | Sequence[Sequence[Term]]
Holds = Literal["none", "some", "all"]

_MANY = ("in", "not in")
_ORDERS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
_COMPARE = {"==": operator.eq, "!=": operator.ne, **_ORDERS}
_COMPARISONS = ("==", "=", "!=", *_ORDERS, *_MANY)


class Clause(NamedTuple):
    """A term whose column is known.

    restated: the comparison in values of the column's type, if it is one of numbers.
    """

    path: ColumnPath
    comparison: str
    values: tuple[Any, ...]
    restated: Comparison | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Range:
    """Statistics of a column in a block: every value that is not null is between `low` and `high`,
    inclusive.

    nullable: whether there may be nulls, by the schema: some writers count them wrong.
    """

    type: pa.DataType
    low: Any
    high: Any
    nullable: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Condition:
    """A filter that fits a schema; made by `condition_of`. Picklable.

    columns: those of the table that it reads. clauses: lists of terms, any of which must hold; none
    for an expression. digest: the same for the same filter, in any process.
    """

    expression: pc.Expression
    columns: tuple[str, ...]
    digest: str
    clauses: tuple[tuple[Clause, ...], ...] = ()

    def __str__(self) -> str:
        return " ".join(str(self.expression).split())

    def matching(self, table: pa.Table) -> pa.Table:
        """Return the rows that match, in order; works on the calling thread and releases the
        interpreter lock.
        """
        try:
            return _rows_where(self.expression, table)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError) as error:
            raise InputError(
                f"{self} cannot be evaluated ({first_line(error)})",
                setting="filter",
                remedy=(
                    'give terms such as [("x", ">", 3)], which compare exactly, or cast the column'
                    " in the expression"
                ),
            ) from error

    def holds_in(self, ranges: Mapping[str, Range]) -> Holds:
        """Return how many rows of a block with these statistics match: "none", "all", or "some" if
        undecided.

        Columns without statistics may be left out.
        """
        if not self.clauses:
            return "some"
        outcomes = []
        for all_of in self.clauses:
            outcomes.append([_holds(clause, ranges.get(clause.path.name)) for clause in all_of])
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
    if isinstance(requested, pc.Expression):
        digest = sha256_hex(requested.__reduce__()[1][0].to_pybytes())
        condition = Condition(expression=requested, columns=(), digest=digest)
    else:
        condition = _of_terms(_terms(requested), schema)
    schema = readable(schema)
    empty = schema.empty_table()
    try:
        _rows_where(condition.expression, empty)
    except (pa.ArrowException, OverflowError) as error:
        raise SettingsError(
            f"{condition} does not fit the columns ({first_line(error)})",
            setting="filter",
            remedy=(
                "compare them with values of their types:"
                f" {', '.join(f'{field.name} {field.type}' for field in schema)}"
            ),
        ) from error
    if condition.clauses:
        return condition
    needed = []
    for name in schema.names:
        try:
            _rows_where(condition.expression, empty.drop_columns([name]))
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            needed.append(name)
    return replace(condition, columns=tuple(needed))


def _of_terms(terms: Sequence[Sequence[Term]], schema: pa.Schema) -> Condition:
    clauses = tuple(tuple(_clause(term, schema) for term in group) for group in terms)
    alternatives = []
    for group in clauses:
        expressions = [_expression(clause, schema) for clause in group]
        alternatives.append(reduce(operator.and_, expressions))
    needed = {clause.path.column for group in clauses for clause in group}
    canonical = [[[name, op, _canonical(value)] for name, op, value in group] for group in terms]
    return Condition(
        expression=reduce(operator.or_, alternatives),
        columns=tuple(name for name in schema.names if name in needed),
        digest=sha256_hex(canonical_json(canonical)),
        clauses=clauses,
    )


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


def _clause(term: Term, schema: pa.Schema) -> Clause:
    """Resolve a term's column and restate its comparison in values of the column's type."""
    name, comparison, value = term
    path = column_path(schema, name)
    if path is None:
        raise SettingsError(
            "the dataset has no such column",
            setting="filter",
            column=name,
            remedy=f"use one of {shorten_list(schema.names)}",
        )
    check_read(with_paths(schema, [name]))
    values = tuple(_moment(path, item) for item in (value if comparison in _MANY else (value,)))
    known = [number_of(item) for item in values]
    restated = None
    if is_numeric(path.type) and all(number is not None for number in known):
        restated = exact(path.type, comparison, [number for number in known if number is not None])
    return Clause(path, comparison, values, restated)


def _moment(path: ColumnPath, value: Any) -> Any:
    """Return a moment in the zone of the column; other values as they are."""
    if not pa.types.is_timestamp(path.type) or not isinstance(value, dt.datetime):
        return value
    zone = path.type.tz
    if (zone is None) == (value.tzinfo is None):
        return value if zone is None else pa.scalar(value, pa.timestamp("us", zone))
    if zone is None:
        problem = "the column holds times without a zone, and this one has one"
        remedy = "give a datetime without tzinfo, as the column has them"
    else:
        problem = f"the column holds moments of {zone}, and this time has no zone"
        remedy = "give a datetime with tzinfo, such as datetime(2024, 1, 1, tzinfo=timezone.utc)"
    raise SettingsError(problem, setting="filter", column=path.name, value=value, remedy=remedy)


def _expression(clause: Clause, schema: pa.Schema) -> pc.Expression:
    path, comparison, values, restated = clause
    field = path.expression()
    if restated is not None:
        return _numeric_expression(field, path.type, restated)
    if comparison not in _MANY:
        return _COMPARE[comparison](field, values[0])
    inside = _listed_expression(field, path, values, schema)
    return inside if comparison == "in" else ~inside & field.is_valid()


def _numeric_expression(
    field: pc.Expression, type_: pa.DataType, restated: Comparison
) -> pc.Expression:
    operator, values = restated
    if pa.types.is_float16(type_):  # Arrow compares none
        type_ = pa.float32()
        field = field.cast(type_)
    if pa.types.is_decimal(type_) and type_.bit_width < 128:
        type_ = pa.decimal128(type_.precision, type_.scale)
        field = field.cast(type_)
    if operator in _ORDERS:
        return _ORDERS[operator](field, pc.scalar(pa.scalar(values[0], type_)))
    if 0.0 in values and pa.types.is_floating(type_):
        values = (*values, 0.0, -0.0)  # a hash table tells them apart
    if len(values) == 1:
        inside = field == pc.scalar(pa.scalar(values[0], type_))
    else:
        inside = field.isin(pa.array(values, type_))
    return inside if operator == "in" else ~inside & field.is_valid()


def _listed_expression(
    field: pc.Expression, path: ColumnPath, values: Sequence[Any], schema: pa.Schema
) -> pc.Expression:
    """Return whether a column that is not of numbers equals one of several values, as `==` does."""
    try:
        listed = pa.array(values, path.type)
        if listed.to_pylist() == list(values):
            return field.isin(listed)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        problem: Exception | None = error
    else:
        problem = None  # the type holds other values, such as times without their microseconds
    try:
        inside = reduce(operator.or_, [field == value for value in values])
        _rows_where(inside, readable(schema).empty_table())
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SettingsError(
            f"the values are not of type {path.type} ({problem or error})",
            setting="filter",
            column=path.name,
            value=list(values),
            remedy="pass values of that type",
        ) from error
    return inside


def _canonical(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_canonical(item) for item in value]
    return [type(value).__name__, str(value)]


def _rows_where(expression: pc.Expression, table: pa.Table) -> pa.Table:
    import pyarrow.acero as acero  # imports pandas if installed, which takes half a second

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    filtered = acero.Declaration("filter", acero.FilterNodeOptions(expression))
    return acero.Declaration.from_sequence([source, filtered]).to_table(use_threads=False)


def _holds(clause: Clause, known: Range | None) -> Holds:
    comparison, values = clause.comparison, clause.values
    if clause.restated is not None:
        comparison, values = clause.restated
    if comparison == "in" and not values:
        return "none"
    if known is None or not all(_comparable(bound, known) for bound in values):
        return "some"
    low = known.low
    high = known.high
    if low != low or high != high:  # some writers include NaN in the bounds
        return "some"
    exact = not known.nullable and not pa.types.is_floating(known.type)  # bounds leave out NaN
    # Comparing is monotonic from low to high, so the bounds decide.
    if comparison in _ORDERS:
        compare = _ORDERS[comparison]
        none = not any(compare(end, values[0]) for end in (low, high))
        every = compare(low, values[0]) and compare(high, values[0])
    elif comparison in ("==", "in"):
        none = not any(low <= value <= high for value in values)
        every = low == high and low in values
    else:  # true for NaN, so floats cannot be ruled out
        inside = any(low <= value <= high for value in values)
        none = exact and low == high and low in values
        every = not inside
    if none:
        return "none"
    if exact and every:
        return "all"
    return "some"


def _comparable(value: Any, known: Range) -> bool:
    """Return whether Python compares this value with a block's bounds exactly as Arrow does with
    values of the type.
    """
    bounds = (value, known.low, known.high)
    if pa.types.is_integer(known.type):
        return all(isinstance(bound, int) for bound in bounds)
    if pa.types.is_decimal(known.type):
        return all(isinstance(bound, Decimal) for bound in bounds)
    if pa.types.is_float32(known.type) or pa.types.is_float64(known.type):
        return all(isinstance(bound, float) for bound in bounds)
    if pa.types.is_date32(known.type):
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if is_text(known.type):
        return all(isinstance(bound, str) for bound in bounds)  # code points sort as UTF-8 does
    return False
