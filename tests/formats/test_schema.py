"""Widening two types is the same either way round and loses no value."""

import datetime as dt
from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.formats.plain_types import plain
from headrace.formats.types import TYPES, describe, supertype, type_named
from laws import examples

KINDS = [
    *TYPES.values(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.null(),
    pa.float16(),
    pa.date64(),
    pa.timestamp("s"),
    pa.timestamp("ms"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ms", "Europe/Berlin"),
    pa.dictionary(pa.int32(), pa.string()),
    pa.list_(pa.int64()),
    pa.large_list(pa.int64()),
]
kinds = st.sampled_from(KINDS)


def values_of(kind: pa.DataType) -> st.SearchStrategy[object]:
    kind = plain(kind)
    if pa.types.is_integer(kind):
        low = -(2 ** (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
        return st.integers(low, low + 2**kind.bit_width - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_date(kind):
        return st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
    if pa.types.is_timestamp(kind):
        unit = {"s": 10**6, "ms": 10**3, "us": 1, "ns": 1}[kind.unit]
        low, high = (1678, 2262) if kind.unit == "ns" else (1, 9999)
        moments = st.datetimes(dt.datetime(low, 1, 1), dt.datetime(high - 1, 12, 31))
        zone = dt.UTC if kind.tz else None
        return moments.map(
            lambda at: at.replace(microsecond=at.microsecond // unit * unit, tzinfo=zone)
        )
    if pa.types.is_string(kind):
        return st.text(st.characters(codec="utf-8"), max_size=4)
    if pa.types.is_binary(kind):
        return st.binary(max_size=4)
    if pa.types.is_null(kind):
        return st.none()
    return st.lists(st.integers(-5, 5), max_size=3)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.struct({"a": pa.string_view()}), pa.struct({"a": pa.string()})),
        (
            pa.list_(pa.field("element", pa.large_string())),
            pa.list_(pa.field("element", pa.string())),
        ),
        (pa.list_(pa.dictionary(pa.int8(), pa.string()), 2), pa.list_(pa.string(), 2)),
        (
            pa.large_list(pa.struct({"a": pa.large_list(pa.int8())})),
            pa.list_(pa.struct({"a": pa.list_(pa.int8())})),
        ),
    ],
    ids=str,
)
def test_types_are_plain_at_any_depth(kind: pa.DataType, expected: pa.DataType) -> None:
    assert expected == plain(kind) == plain(expected)


@pytest.mark.parametrize(
    "kind", [pa.struct([pa.field("a", pa.int8(), nullable=False)]), pa.list_(pa.int8(), 3)], ids=str
)
def test_a_plain_type_stays_what_it_is(kind: pa.DataType) -> None:
    assert kind is plain(kind)


def test_widening_is_the_same_either_way_round() -> None:
    for a, b in combinations(KINDS, 2):
        assert supertype(a, b) == supertype(b, a), (a, b)


def test_a_type_widens_to_itself() -> None:
    for kind in KINDS:
        assert plain(kind) == supertype(kind, kind), kind


def _is_beyond(value: object, wide: pa.DataType) -> bool:
    """Whether a value is one of the few that its wider type does not hold, and a cast refuses."""
    if isinstance(value, int) and pa.types.is_floating(wide):
        return abs(value) > 2**53
    if isinstance(value, dt.date) and wide == pa.timestamp("ns"):
        return not 1678 <= value.year <= 2261
    return False


@given(kinds, kinds, st.data())
@settings(max_examples=examples(600))
def test_a_widened_value_comes_back_as_it_was(
    a: pa.DataType, b: pa.DataType, data: st.DataObject
) -> None:
    wide = supertype(a, b)
    if wide is None or pa.types.is_null(a):
        return
    value = pa.array([data.draw(values_of(a))], plain(a))
    if _is_beyond(value[0].as_py(), wide):
        with pytest.raises(pa.ArrowInvalid):
            value.cast(wide)
        return

    assert value.to_pylist() == value.cast(wide).cast(plain(a)).to_pylist()


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("other", [kind for kind in TYPES.values() if kind != pa.string()], ids=str)
def test_text_and_other_types_have_no_common_type(text: pa.DataType, other: pa.DataType) -> None:
    assert supertype(text, other) is None


def test_an_unknown_type_word_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(
        SettingsError, match="types is 'integer': no such type; use one of text, bool, int8"
    ):
        type_named("integer")


def test_a_schema_is_described_by_words() -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.string()),
            pa.field("b", pa.int64(), nullable=False),
            ("c", pa.list_(pa.int8())),
        ]
    )
    expected = [
        {"name": "a", "type": "text", "nullable": True},
        {"name": "b", "type": "int64", "nullable": False},
        {"name": "c", "type": "list<item: int8>", "nullable": True},
    ]

    assert expected == describe(schema)
