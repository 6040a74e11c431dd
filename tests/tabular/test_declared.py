"""Declared columns become what they are declared as, missing values are filled where asked; nothing else is touched."""

import math
from datetime import date, datetime

import pandas
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, InputError, SettingsError
from headrace.stream.ranks.topology import Topology
from headrace.tabular.dataset import PipelineIterableDataset
from raised import raised

ALONE = Topology(rank=0, world_size=1)
WHOLE = st.one_of(st.none(), st.integers(-(2**62), 2**62))
COLUMNS = {
    "id": ["007", None, "1e3"],
    "big": [2**62 + 1, None, 3],
    "when": [datetime(2020, 1, 2, 3, 4, 5), None, datetime(1990, 1, 1)],
    "day": [date(2020, 1, 2), None, date(1990, 1, 1)],
    "flag": [True, None, False],
    "tags": [["a"], None, []],
    "price": ["1.5", "", None],
    "sky": ["Overcast", None, ""],
}


def rows_of(frame, config=None, **settings):
    return values_of(
        PipelineIterableDataset(config or {}, dataframe=frame, topology=ALONE, **settings)
    )


def values_of(dataset):
    """Every row without its mask, which says that it is real."""
    rows = list(dataset)
    assert all(row.pop("valid") for row in rows)
    return rows


def test_without_declarations_every_value_comes_as_it_is():
    table = pa.table(COLUMNS)

    assert table.to_pylist() == rows_of(table)


@given(
    st.lists(st.tuples(WHOLE, st.one_of(st.none(), st.text(max_size=4))), max_size=6), st.booleans()
)
def test_undeclared_columns_survive_the_declaration_of_others(values, fill):
    table = pa.table(
        {
            "a": pa.array([a for a, _ in values], pa.int64()),
            "b": pa.array([b for _, b in values], pa.string()),
            "number": pa.array(["1"] * len(values), pa.string()),
            "sky": pa.array([None] * len(values), pa.string()),
        }
    )
    dataset = PipelineIterableDataset(
        {"cat_field_list": ["sky"], "tab_field_list": ["number"]}, dataframe=table, topology=ALONE
    )
    if fill:
        dataset.fill_missing_value()

    assert [{"a": a, "b": b, "number": 1.0, "sky": ""} for a, b in values] == values_of(dataset)


def test_declared_numbers_are_floats_and_missing_until_filled():
    dataset = PipelineIterableDataset(
        {"tab_field_list": ["price", "big"]}, dataframe=pa.table(COLUMNS), topology=ALONE
    )
    before = [(row["price"], row["big"]) for row in dataset]
    dataset.fill_missing_value()
    after = [(row["price"], row["big"]) for row in dataset]

    assert [1.5, 3.0] == [before[0][0], before[2][1]]
    assert all(math.isnan(value) for value in (before[1][0], before[2][0], before[1][1]))
    assert [(1.5, float(2**62 + 1)), (-1.0, -1.0), (-1.0, 3.0)] == after


def test_each_column_can_have_its_own_filling():
    dataset = PipelineIterableDataset(
        {"tab_field_list": ["price"], "text_name": "id"},
        dataframe=pa.table(COLUMNS),
        topology=ALONE,
    )
    dataset.fill_missing_value(
        number=0.0, text="none", column_cat_name=["sky"], columns={"big": 5, "price": 9}
    )
    rows = list(dataset)

    assert [1.5, 9.0, 9.0] == [row["price"] for row in rows]
    assert ["007", "none", "1e3"] == [row["id"] for row in rows]
    assert ["Overcast", "none", ""] == [row["sky"] for row in rows]
    assert [2**62 + 1, 5, 3] == [row["big"] for row in rows]
    assert [None, None] == [rows[1]["day"], rows[1]["flag"]]


def test_a_text_label_is_a_whole_number_and_a_missing_one_stays_missing():
    table = pa.table({"label": ["1", "0", None], "x": ["a", "b", "c"]})
    dataset = PipelineIterableDataset({"label_name": "label"}, dataframe=table, topology=ALONE)
    dataset.fill_missing_value()

    assert [1, 0, None] == [row["label"] for row in dataset]
    assert ["1", "0", None] == [
        row["label"] for row in rows_of(table, {"label_name": "label", "label_type": "text"})
    ]
    assert ["1", "0"] == [row["label"] for row in rows_of(table, {"cat_field_list": ["label"]})[:2]]


def test_numbers_can_be_categories():
    table = pa.table({"code": pa.array([7, None, 12]), "flag": [True, False, None]})

    assert [("7", "true"), ("", "false"), ("12", "")] == [
        tuple(row.values()) for row in rows_of(table, {"cat_field_list": ["code", "flag"]})
    ]


def test_a_text_that_is_no_number_is_an_error_unless_it_means_missing():
    table = pa.table({"x": ["1", "n/a", " 2.5 "]})
    config = {"tab_field_list": ["x"]}
    lenient = rows_of(table, config, bad_numbers="missing")

    with pytest.raises(
        InputError,
        match=r"dataframe block 0: tab_field_list: row 2, column 'x' is 'n/a': it is declared double",
    ):
        rows_of(table, config)
    assert math.isnan(rows_of(table.slice(0, 2), config, dialect={"null_values": ["n/a"]})[1]["x"])
    assert [1.0, 2.5] == [lenient[0]["x"], lenient[2]["x"]]
    assert math.isnan(lenient[1]["x"])


def test_full_field_list_chooses_and_orders():
    dataset = PipelineIterableDataset(
        {"full_field_list": ["sky", "id"], "label_name": "big"},
        dataframe=pa.table(COLUMNS),
        topology=ALONE,
    )
    first = next(iter(dataset))
    dataset.set_full_field_list(["day"])

    assert ["sky", "id", "big", "valid"] == list(first)
    assert ["day", "big", "valid"] == list(next(iter(dataset)))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_both_kinds_of_dataframe_give_the_same_rows(library):
    columns = {
        "id": ["a", None],
        "n": [1, 2],
        "x": [0.5, float("nan")],
        "when": [datetime(2020, 1, 1), None],
    }
    frame = pandas.DataFrame(columns) if library == "pandas" else polars.DataFrame(columns)
    first, second = rows_of(frame)

    assert {"id": "a", "n": 1, "x": 0.5, "when": datetime(2020, 1, 1)} == first
    assert (None, 2, None) == (second["id"], second["n"], second["when"])
    assert math.isnan(second["x"])


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"tab_field_list": ["nope"]}, {"setting": "config", "remedy": "choose from"}),
        ({"tab_field_list": ["tags"]}, {"setting": "tab_field_list", "column": "tags"}),
        ({"tab_field_list": ["day"]}, {"setting": "tab_field_list", "column": "day"}),
        ({"cat_field_list": ["tags"]}, {"setting": "config", "column": "tags"}),
        (
            {"tab_field_list": ["sky"], "cat_field_list": ["sky"]},
            {"setting": "tab_field_list", "remedy": "declare it once"},
        ),
        ({"cat_field_list": "sky"}, {"setting": "cat_field_list", "value": "sky"}),
        ({"cat_field_list": ["sky", "sky"]}, {"value": ["sky", "sky"], "remedy": "once"}),
        ({"label_name": 3}, {"setting": "label_name", "value": 3}),
        ({"header": None}, {"setting": "header", "value": None}),
        ({"label_type": "ordinal"}, {"remedy": "expected one of"}),
        ([], {"setting": "config", "remedy": "give a dict"}),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_when_built(config, fields):
    with raised(SettingsError, **fields):
        PipelineIterableDataset(config, dataframe=pa.table(COLUMNS), topology=ALONE)


@pytest.mark.parametrize(
    ("act", "fields"),
    [
        (
            lambda data: data.fill_missing_value(columns={"nope": 1}),
            {"column": "nope", "setting": "columns"},
        ),
        (
            lambda data: data.fill_missing_value(columns={"big": "x"}),
            {"column": "big", "setting": "columns", "value": "x"},
        ),
        (lambda data: data.set_cat_field_list(["nope"]), {"remedy": "choose"}),
        (lambda data: data.set_label_field_name("nope"), {"column": "nope"}),
        (lambda data: data.set_text_field_name([]), {"setting": "text_name"}),
        (lambda data: data.add_pipeline("nope", str.upper), {"column": "nope"}),
        (lambda data: data.add_pipeline("sky", "upper"), {"setting": "processor"}),
    ],
)
def test_a_refused_change_changes_nothing(act, fields):
    dataset = PipelineIterableDataset({}, dataframe=pa.table(COLUMNS), topology=ALONE)
    with raised(SettingsError, **fields):
        act(dataset)

    assert pa.table(COLUMNS).to_pylist() == values_of(dataset)


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({}, {"setting": "file_dir", "remedy": "give one of them"}),
        ({"dataframe": [1, 2]}, {"setting": "dataframe", "remedy": "give a pandas"}),
        (
            {"dataframe": pandas.DataFrame([[1, 2]], columns=["a", "a"])},
            {"setting": "dataframe", "remedy": "rename one of them"},
        ),
        ({"dataframe": pandas.DataFrame({"a": [1, "x"]})}, {"column": "a"}),
        ({"dataframe": pa.table(COLUMNS), "number_type": "half"}, {"remedy": "float32"}),
        ({"dataframe": pa.table(COLUMNS), "bad_numbers": "zero"}, {"remedy": "error"}),
        (
            {"dataframe": pa.table(COLUMNS), "dialect": {"decimal": "x"}},
            {"setting": "decimal"},
        ),
    ],
)
def test_a_source_that_cannot_be_is_refused(settings, fields):
    with raised(HeadraceError, **fields):
        PipelineIterableDataset({}, topology=ALONE, **settings)
