"""A dotted path names a field of a struct wherever a column of a stream, a table or a filter is named."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import InputError, SettingsError
from headrace.formats.column_paths import column_path, select_paths
from laws import examples
from raised import raised

ROWS = [
    {"n": 0, "data": {"user": {"id": 7, "name": "a"}, "x": 1.5}},
    {"n": 1, "data": {"user": {"id": 8, "name": None}, "x": 2.5}},
    {"n": 2, "data": {"user": None, "x": 3.5}},
    {"n": 3, "data": None},
    {"n": 4, "data": {"user": {"id": 9, "name": "b"}, "x": 4.5}},
]
LEAVES = st.dictionaries(
    st.sampled_from(["a", "b", "a.b"]), st.none() | st.integers(-9, 9), min_size=1
)


@pytest.fixture(params=["parquet", "jsonl"])
def dataset(request, tmp_path):
    if request.param == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=2)
    else:
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return headrace.open(tmp_path, cache_dir=tmp_path / "cache")


def test_a_table_has_the_field_under_its_path(dataset):
    table = dataset["all"].to_arrow(["data.user.id", "n", "data.user"])

    whole = dataset["all"].to_arrow()
    assert table.column_names == ["data.user.id", "n", "data.user"]
    assert table["data.user.id"].equals(pc.struct_field(whole["data"], ["user", "id"]))
    assert table["data.user.id"].to_pylist() == [7, 8, None, None, 9]
    assert table["data.user"].to_pylist() == [row["data"] and row["data"]["user"] for row in ROWS]


def test_a_stream_reads_and_filters_by_a_path(dataset):
    condition = [("data.user.id", ">", 7)]
    stream = dataset.stream(batch_size=2, columns=["data.user.id", "n"], filter=condition)

    rows = [
        pair
        for batch in stream
        for pair in zip(batch["data.user.id"].tolist(), batch["n"].tolist(), strict=True)
    ]

    assert rows == [(8, 1), (9, 4)]
    assert dataset.filter(condition).filter_report().rows == 2
    assert dataset.map_dataset(columns=["data.x"], filter=condition).batch([0])["data.x"] == 2.5


def test_bounds_of_a_field_skip_blocks(tmp_path):
    table = pa.table({"data": [{"id": n} for n in range(6)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    report = headrace.open(tmp_path, cache_dir=tmp_path / "cache").filter([("data.id", ">", 3)])

    assert (report.filter_report().rows, report.filter_report().ruled_out) == (2, 2)


def test_an_unknown_field_is_refused_by_name(dataset):
    with raised(SettingsError, setting="columns", value=["data.user.age"]):
        dataset.stream(batch_size=2, columns=["data.user.age"])
    with raised(SettingsError, setting="filter", column="data.nothing"):
        dataset.filter([("data.nothing", "==", 1)])


def test_a_column_whose_name_has_dots_comes_first():
    table = pa.table({"a.b": [1], "a": [{"b": 2}]})

    assert select_paths(table, ["a.b"])["a.b"].to_pylist() == [1]
    assert column_path(table.schema, "a.b").fields == ()


def test_a_path_that_fits_twice_is_refused():
    schema = pa.table({"a": [{"b.c": 1, "b": {"c": 2}}]}).schema
    with raised(InputError, column="a.b.c"):
        column_path(schema, "a.b.c")


@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.lists(st.none() | LEAVES, min_size=1, max_size=5),
    name=st.sampled_from(["a", "b", "a.b"]),
)
def test_values_are_those_of_pyarrow(rows, name):
    type_ = pa.struct([(key, pa.int64()) for key in ("a", "b", "a.b")])
    table = pa.table({"s": pa.array(rows, type_)})

    values = select_paths(table, [f"s.{name}"]).column(0)

    assert values.equals(pc.struct_field(table["s"], [name]))
