"""Rows as Python values: what Arrow itself says of them, never a value that was cut to fit."""

import datetime
import decimal
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError
from headrace.stream.read.batch import make_batches, python_rows
from raised import raised

MOMENTS = st.datetimes(
    min_value=datetime.datetime(1900, 1, 1), max_value=datetime.datetime(2200, 1, 1)
)
COLUMNS = {
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.uint8(), st.integers(0, 255)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "flag": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text()),
    "wide": (pa.large_string(), st.text()),
    "bytes": (pa.binary(), st.binary()),
    "day": (pa.date32(), st.dates()),
    "micro": (pa.timestamp("us"), MOMENTS),
    "nano": (pa.timestamp("ns"), MOMENTS),
    "length": (pa.duration("ns"), st.timedeltas(datetime.timedelta(days=-999), datetime.timedelta(days=999))),
    "clock": (pa.time64("ns"), st.times()),
    "money": (pa.decimal128(9, 2), st.decimals(-9999, 9999, places=2)),
    "list": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-9, 9))),
    "moments": (pa.list_(pa.timestamp("ns")), st.lists(st.none() | MOMENTS)),
    "pair": (pa.list_(pa.float32(), 2), st.lists(st.just(0.5), min_size=2, max_size=2)),
    "struct": (pa.struct([("a", pa.int8()), ("t", pa.timestamp("ns"))]), st.fixed_dictionaries({"a": st.none(), "t": MOMENTS})),
    "map": (pa.map_(pa.string(), pa.duration("ns")), st.lists(st.tuples(st.text(), st.just(datetime.timedelta(1))))),
}  # fmt: skip


@pytest.mark.hypothesis  # the law is inside, where hypothesis does not see it
@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_comes_back_as_it_went_in(name):
    kind, values = COLUMNS[name]

    @given(st.lists(st.none() | values, max_size=8))
    def round_trip(column):
        rows = python_rows(pa.table({name: pa.array(column, kind), "n": list(range(len(column)))}))

        assert [{name: value, "n": number} for number, value in enumerate(column)] == rows
        assert [type(value) for value in column] == [type(row[name]) for row in rows]

    round_trip()


def test_a_column_of_pieces_and_a_nan():
    column = pa.chunked_array([[1.5, None], [float("nan")]])
    rows = python_rows(pa.table({"x": column, "money": [decimal.Decimal("1.50")] * 3}))

    assert [1.5, None] == [row["x"] for row in rows[:2]]
    assert math.isnan(rows[2]["x"])
    assert decimal.Decimal("1.50") == rows[0]["money"]


def test_a_time_zone_is_kept():
    noon = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.UTC)
    (row,) = python_rows(pa.table({"t": pa.array([noon], pa.timestamp("ns", "Europe/Paris"))}))

    assert noon == row["t"]
    assert datetime.timedelta(hours=2) == row["t"].utcoffset()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1001, pa.timestamp("ns")),
        (1, pa.duration("ns")),
        (1500, pa.time64("ns")),
        (1 << 50, pa.timestamp("s")),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_what_python_has_no_value_for_is_an_error_that_names_the_column(value, kind, inside):
    column = pa.array([None, value], kind)
    if inside:
        column = pa.StructArray.from_arrays([column], ["t"])

    with raised(InputError, column="when", remedy="leave the column out"):
        python_rows(pa.table({"when": column}))


@pytest.mark.parametrize("batch_format", ["torch", "numpy"])
@pytest.mark.parametrize(("value", "kind"), [(1 << 50, "s"), (1001, "ns")])
def test_tensors_come_with_no_other_moments_inside_structs(batch_format, value, kind):
    times = pa.array([None, value], pa.timestamp(kind))
    columns = {"when": pa.StructArray.from_arrays([times], ["t"])}

    with raised(InputError, column="when", remedy='batch_format="arrow"'):
        list(make_batches(columns, 2, batch_format))


@pytest.mark.parametrize("batch_format", ["torch", "numpy", "rows"])
def test_text_that_is_not_utf_8_names_its_column(batch_format, tmp_path):
    offsets = pa.py_buffer(np.array([0, 1, 2], np.int32))
    text = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a\xff"))
    pq.write_table(pa.table({"name": text}), tmp_path / "a.parquet")
    stream = headrace.open(tmp_path).stream(batch_size=2, batch_format=batch_format)
    with raised(InputError, column="name"):
        list(stream)
