"""A filter gives what Python's comparisons give, for odd values of every type; statistics skip no match."""

import datetime as dt
import math
import operator
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.dataset.condition import Range, condition_of
from headrace.errors import InputError, SettingsError
from laws import examples
from raised import raised

NAN = float("nan")
INF = float("inf")
COMPARE = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
FLOATS = [-INF, -1e300, -1.5, -0.0, 0.0, 0.1, 1.0, 2.0**53, 16777216.0, 1e300, INF, NAN]
ODD = [2**24 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400]
NUMBERS = [*FLOATS, *ODD, *(-value for value in ODD), 0, 1, -1, 2, 127, 128, 255, 256, 2.5, -128.5]
NUMBERS += [Decimal("0.1"), Decimal("1.005"), Decimal("1e40"), np.float32(0.1), np.uint64(2**63)]


def integers(bits, signed):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return sorted({low, low + 1, 0, 1, 2, high - 1, high})


COLUMNS = {
    **{
        f"int{bits}": (getattr(pa, f"int{bits}")(), integers(bits, True))
        for bits in (8, 16, 32, 64)
    },
    **{
        f"uint{bits}": (getattr(pa, f"uint{bits}")(), integers(bits, False))
        for bits in (8, 16, 32, 64)
    },
    "float16": (pa.float16(), [-INF, -0.0, 0.0, 0.5, 65504.0, INF, NAN]),
    "float32": (pa.float32(), [-INF, -0.0, 0.0, float(np.float32(0.1)), 2.0**24, INF, NAN]),
    "float64": (pa.float64(), FLOATS),
    "decimal": (
        pa.decimal128(10, 2),
        [Decimal(text) for text in ("-99999999.99", "0.00", "0.10", "1.00", "2.50", "99999999.99")],
    ),
    "wide_decimal": (
        pa.decimal256(60, 4),
        [Decimal("1e40"), Decimal("0.1000"), Decimal("-1" + "0" * 50)],
    ),
}


def exactly(type_, value):
    """The number that a literal stands for beside a column of a type."""
    value = value.item() if isinstance(value, np.generic) else value
    if pa.types.is_floating(type_):
        dtype = type_.to_pandas_dtype()
        try:
            with np.errstate(over="ignore"):
                rounded = float(dtype(float(value)))
        except OverflowError:
            return value
        return value if math.isinf(rounded) and value not in (INF, -INF) else rounded
    if pa.types.is_decimal(type_) and isinstance(value, float) and math.isfinite(value):
        return Decimal(repr(value))
    return value


def holds(type_, value, comparison, literal):
    if value is None:
        return False
    if comparison in ("in", "not in"):
        listed = any(value == exactly(type_, item) for item in literal)
        return listed == (comparison == "in")
    if literal != literal or value != value:  # Decimal refuses to be put in order with NaN
        return comparison == "!="
    return COMPARE[comparison](value, exactly(type_, literal))


def column(name):
    type_, values = COLUMNS[name]
    values = [*values, None]
    if pa.types.is_float16(type_):
        stored = pa.array([None if v is None else np.float16(v) for v in values], type_)
    else:
        stored = pa.array(values, type_)
    return pa.table({"row": range(len(values)), "x": stored}), values


@pytest.mark.parametrize("name", sorted(COLUMNS))
@pytest.mark.parametrize("comparison", sorted(COMPARE))
def test_a_comparison_gives_what_python_gives(name, comparison):
    table, values = column(name)
    type_ = COLUMNS[name][0]
    for literal in [*NUMBERS, *(v for v in values if v is not None)]:
        condition = condition_of([("x", comparison, literal)], table.schema)

        matching = condition.matching(table)["row"].to_pylist()

        expected = [row for row, v in enumerate(values) if holds(type_, v, comparison, literal)]
        assert matching == expected, literal


@pytest.mark.parametrize("name", sorted(COLUMNS))
@settings(max_examples=examples(60), deadline=None)
@given(
    literals=st.lists(st.sampled_from(NUMBERS), max_size=4),
    comparison=st.sampled_from(["in", "not in"]),
)
def test_a_list_gives_what_python_gives(name, literals, comparison):
    table, values = column(name)
    type_ = COLUMNS[name][0]
    condition = condition_of([("x", comparison, literals)], table.schema)

    matching = condition.matching(table)["row"].to_pylist()

    assert matching == [
        row for row, value in enumerate(values) if holds(type_, value, comparison, literals)
    ]


@pytest.mark.parametrize("name", sorted(set(COLUMNS) - {"float16"}))
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_statistics_skip_no_block_that_holds_a_match(name, data):
    type_, values = COLUMNS[name]
    chosen = data.draw(st.lists(st.sampled_from([*values, None]), min_size=1, max_size=4))
    comparison = data.draw(st.sampled_from([*COMPARE, "in", "not in"]))
    literal = st.sampled_from(NUMBERS)
    if comparison in ("in", "not in"):
        literal = st.lists(literal, max_size=3)
    literal = data.draw(literal)
    nullable = None in chosen
    known = [value for value in chosen if value is not None and value == value]
    condition = condition_of([("x", comparison, literal)], pa.schema([("x", type_)]))
    ranges = {}
    if known:
        ranges = {"x": Range(type=type_, low=min(known), high=max(known), nullable=nullable)}

    verdict = condition.holds_in(ranges)

    matches = sum(holds(type_, value, comparison, literal) for value in chosen)
    assert verdict == "some" or matches == (len(chosen) if verdict == "all" else 0)


def test_bounds_in_a_file_skip_blocks_of_large_hashes(tmp_path):
    hashes = pa.array([1, 2, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1], pa.uint64())
    schema = pa.schema([pa.field("hash", pa.uint64(), nullable=False)])
    pq.write_table(pa.table([hashes], schema=schema), tmp_path / "a.parquet", row_group_size=2)
    opened = headrace.open(tmp_path, cache_dir=tmp_path / "cache")

    above = opened.filter([("hash", ">=", 2**63)]).filter_report()
    several = opened.filter([("hash", "in", [-1, 2**64 - 1, 2**64, 1.5])]).filter_report()

    assert (above.rows, above.ruled_out, above.ruled_in, above.counted) == (4, 1, 2, 0)
    assert (several.rows, several.ruled_out) == (1, 2)


def test_a_null_count_of_statistics_is_not_believed(tmp_path):
    table = pa.table({"x": pa.array([5, None, 6])})
    pq.write_table(table, tmp_path / "a.parquet")
    opened = headrace.open(tmp_path, cache_dir=tmp_path / "cache")

    report = opened.filter([("x", ">", 1)]).filter_report()

    assert (report.rows, report.ruled_in, report.counted) == (2, 0, 1)


def test_rounded_zeros_are_one_zero(tmp_path):
    pq.write_table(pa.table({"delta": [-0.0, 0.0, 1.0, NAN, None]}), tmp_path / "a.parquet")
    opened = headrace.open(tmp_path, cache_dir=tmp_path / "cache")

    assert opened.filter([("delta", "in", [0.0])]).filter_report().rows == 2
    assert opened.filter([("delta", "not in", [0])]).filter_report().rows == 2
    assert opened.filter([("delta", "in", [NAN])]).filter_report().rows == 0
    assert opened.filter([("delta", "==", NAN)]).filter_report().rows == 0


def test_times_and_texts_in_a_list_are_compared_as_one_alone(tmp_path):
    seconds = [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2), None]
    table = pa.table({"t": pa.array(seconds, pa.timestamp("s")), "s": ["a", "b", None]})
    later = dt.datetime(2024, 1, 1, microsecond=5)

    def count(*term):
        return condition_of([term], table.schema).matching(table).num_rows

    assert count("t", "in", [later]) == count("t", "==", later) == 0
    assert count("t", "in", [seconds[0], later]) == 1
    assert count("t", "not in", [later]) == count("t", "!=", later) == 2
    assert count("s", "in", ["b", "c"]) == 1


@pytest.mark.parametrize("term", [("x", "==", True), ("x", "in", [True]), ("x", "in", [1, "a"])])
def test_numbers_are_not_compared_with_other_things(term):
    with raised(SettingsError, setting="filter"):
        condition_of([term], pa.schema([("x", pa.int64())]))


def test_an_expression_that_fails_on_a_value_says_so():
    condition = condition_of(pc.field("x") == 1.5, pa.schema([("x", pa.int64())]))
    with raised(InputError, setting="filter", remedy="compare exactly"):
        condition.matching(pa.table({"x": [2**53 + 1]}))


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.parametrize("comparison", ["==", "<", ">=", "in"])
def test_a_moment_is_compared_whatever_zone_it_is_written_in(unit, comparison):
    utc = dt.UTC
    moments = [dt.datetime(2024, 1, 1, hour, tzinfo=utc) for hour in range(4)]
    table = pa.table({"t": pa.array(moments, pa.timestamp(unit, "Asia/Tokyo"))})
    asked = dt.datetime(2024, 1, 1, 3, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    value = [asked] if comparison == "in" else asked
    found = condition_of([("t", comparison, value)], table.schema).matching(table)["t"]
    compare = operator.eq if comparison == "in" else COMPARE[comparison]
    assert [moment for moment in moments if compare(moment, asked)] == found.to_pylist()


@pytest.mark.parametrize("zones", [("UTC", None), (None, dt.UTC)])
def test_a_time_with_a_zone_is_not_compared_with_one_without(zones):
    column, literal = zones
    schema = pa.schema([("t", pa.timestamp("us", column))])
    with raised(SettingsError, setting="filter", column="t"):
        condition_of([("t", ">", dt.datetime(2024, 1, 1, tzinfo=literal))], schema)
