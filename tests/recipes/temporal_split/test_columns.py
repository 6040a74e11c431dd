"""Derived columns: keys as text, classes by one map, the maximum of targets, declared types."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.text_columns import as_text, first_unreadable, nulled, typed
from headrace.split import columns
from raised import raised


def column(values: list[object], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, kind)])


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["007", "7", " ", "NA", ""], pa.string(), ["007", "7", " ", None, None]),
        ([7, -(2**63), None], pa.int64(), ["7", "-9223372036854775808", None]),
        ([2**64 - 1], pa.uint64(), ["18446744073709551615"]),
        ([17850.0, 1.5, None, float("nan")], pa.float64(), ["17850", "1.5", None, None]),
        ([float("nan"), 2.0], pa.float32(), [None, "2"]),
        (
            [123456789012.0, -(2.0**62), -0.0],
            pa.float64(),
            ["123456789012", "-4611686018427387904", "0"],
        ),
        (
            [2.0**63, 1e300, float("inf"), 0.25],
            pa.float64(),
            ["9.223372036854776e+18", "1e+300", "inf", "0.25"],
        ),
        ([True, None], pa.bool_(), ["true", None]),
        ([b"ab", b""], pa.binary(), ["ab", None]),
        ([b"ab"], pa.binary(2), ["ab"]),
        (["x", None], pa.large_string(), ["x", None]),
    ],
)
def test_an_entity_is_known_by_its_text(
    values: list[object], kind: pa.DataType, expected: list[str | None]
) -> None:
    assert expected == as_text(column(values, kind), ["NA"], "entity 'id'").to_pylist()


@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_a_nested_value_is_no_entity(value: object) -> None:
    with raised(InputError, column="id", remedy="name a column of text, numbers or dates"):
        as_text(column([value]), [], "id")


def test_bytes_that_are_not_utf8_are_no_entity() -> None:
    with pytest.raises(InputError, match="entity 'id'.*UTF-8"):
        as_text(column([b"\xff"]), [], "entity 'id'")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["no", "yes"], {"no": 0, "yes": 1}),
        (["b", "a", "C"], {"C": 0, "a": 1, "b": 2}),
        (["0", "1"], {"0": 0, "1": 1}),
        (["3", "1", "1.0"], {"1": 1, "1.0": 1, "3": 3}),
        (["-1", "1"], {"-1": -1, "1": 1}),
        (["1", "x"], {"1": 0, "x": 1}),
        (["1_0", "2_0"], {"1_0": 0, "2_0": 1}),
        (
            ["9007199254740992", "9007199254740993"],
            {"9007199254740992": 2**53, "9007199254740993": 2**53 + 1},
        ),
        (["nan", "yes"], {"nan": 0, "yes": 1}),
        (["12345678901234567890", "1"], {"1": 0, "12345678901234567890": 1}),
        ([], {}),
    ],
)
def test_labels_that_are_whole_numbers_keep_them_and_others_are_counted_in_order(
    texts: list[str], expected: dict[str, int]
) -> None:
    assert expected == columns.label_map(texts, "y")


@given(st.lists(st.text(max_size=4), unique=True))
def test_a_label_map_does_not_depend_on_the_order_of_labels(texts: list[str]) -> None:
    try:
        expected = columns.label_map(sorted(texts), "y")
    except InputError:
        return
    assert expected == columns.label_map(texts[::-1], "y")


@pytest.mark.parametrize("odd", ["0.5", "nan", "NaN", "inf", "1e300", "-.5"])
def test_a_label_among_numbers_that_is_no_whole_number_is_an_error(odd: str) -> None:
    with raised(InputError, column="y", value=odd, remedy="leave label= out"):
        columns.label_map(["0", odd], "y")


def test_fractions_alone_are_no_classes() -> None:
    with raised(InputError, column="y", value="0.25"):
        columns.label_map(["0.25", "0.5"], "y")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["yes", "NA", "", None], pa.string(), ["yes", None, None, None]),
        ([1, None], pa.int64(), ["1", None]),
        ([True, False, None], pa.bool_(), ["1", "0", None]),
        ([1.0, float("nan"), None, 2.5], pa.float64(), ["1", None, None, "2.5"]),
    ],
)
def test_labels_are_known_by_their_text(
    values: list[object], kind: pa.DataType, expected: list[str | None]
) -> None:
    assert expected == columns.label_texts(column(values, kind), ["NA"]).to_pylist()


def test_classes_are_looked_up_and_null_stays_null() -> None:
    assert [1, None, 0] == columns.class_numbers(
        column(["b", None, "a"], pa.string()), {"a": 0, "b": 1}
    ).to_pylist()


TARGETS = ["main", "a", "b"]


@pytest.mark.parametrize(
    ("a", "b", "kind", "expected"),
    [
        ([0, 1, None, None], [1, 0, 2, None], pa.int64(), [1, 1, 2, None]),
        ([0.5, 1.0, None, None], [0.25, 2.0, 3.5, None], pa.float64(), [0.5, 2.0, 3.5, None]),
        (["0", "1", "", "NA"], ["1", "0.5", "2", ""], pa.string(), ["1", "1", "2", None]),
        (
            ["0.25", "-1", None, None],
            ["0.5", "-2", None, "1e3"],
            pa.string(),
            ["0.5", "-1", None, "1000"],
        ),
        ([True, False, None, None], [False, False, True, None], pa.bool_(), [1, 0, 1, None]),
    ],
)
def test_the_main_target_is_the_maximum_of_the_others(
    a: list[object], b: list[object], kind: pa.DataType, expected: list[object]
) -> None:
    table = pa.table({"main": pa.nulls(4, kind), "a": pa.array(a, kind), "b": pa.array(b, kind)})

    assert (
        expected
        == columns.main_target(table, TARGETS, "main", TextDialect(null_values="NA")).to_pylist()
    )


def test_large_whole_targets_keep_their_digits() -> None:
    table = pa.table(
        {"main": pa.nulls(1, pa.int64()), "a": pa.array([2**53 + 1]), "b": pa.array([5])}
    )

    assert [2**53 + 1] == columns.main_target(table, TARGETS, "main", PLAIN).to_pylist()


def test_a_target_that_is_no_number_is_an_error_with_row_and_value() -> None:
    table = pa.table({"main": ["", ""], "a": ["1", "high"], "b": ["1", "1"]})

    with raised(InputError, row=2, column="a", value="high"):
        columns.main_target(table, TARGETS, "main", PLAIN)


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False)
        | st.integers(-(2**53) + 1, 2**53 - 1).map(float)
    )
)
def test_number_texts_read_back_as_the_numbers(values: list[float]) -> None:
    texts = columns.number_texts(column(values, pa.float64())).to_pylist()

    assert values == [float(text) for text in texts]
    assert all(
        "." not in text
        for value, text in zip(values, texts, strict=True)
        if value.is_integer() and abs(value) < 2**53
    )


@pytest.mark.parametrize(
    ("texts", "word", "kind", "expected"),
    [
        (["1", "", "NA", None, "-5"], "int32", pa.int32(), [1, None, None, None, -5]),
        (["0.5", "1e3"], "float64", pa.float64(), [0.5, 1000.0]),
        (["true", "false", "1", "0"], "bool", pa.bool_(), [True, False, True, False]),
    ],
)
def test_declared_types_are_read(
    texts: list[str | None], word: str, kind: pa.DataType, expected: list[object]
) -> None:
    table = typed(
        pa.table({"x": pa.array(texts, pa.string())}),
        {"x": kind},
        TextDialect(null_values="NA"),
        "part-0.csv",
        0,
    )

    assert expected == table["x"].to_pylist()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int8(), "300"),
        (pa.int32(), "1.5"),
        (pa.int64(), "x"),
        (pa.bool_(), "maybe"),
        (pa.date32(), "2025-02-30"),
    ],
)
def test_a_value_of_another_than_its_declared_type_is_an_error_with_file_row_and_value(
    kind: pa.DataType, value: str
) -> None:
    good = {pa.date32(): "2025-01-01"}.get(kind, "1")
    table = pa.table({"x": [good, good, good, value, good]})

    with pytest.raises(
        InputError,
        match=rf"part-0\.csv: row 104, column 'x' is '{value}': it is declared {re.escape(str(kind))}",
    ):
        typed(table, {"x": kind}, PLAIN, "part-0.csv", 100)


@given(
    st.lists(st.sampled_from(["1", "2", None, "x", "3.5"]), min_size=1).filter(
        lambda values: {"x", "3.5"} & set(values)
    )
)
def test_the_first_unreadable_value_is_found(values: list[str | None]) -> None:
    row = next(place for place, value in enumerate(values) if value in ("x", "3.5"))

    assert (row, values[row]) == first_unreadable(column(values, pa.string()), pa.int64())


def test_null_values_are_null_in_text_only() -> None:
    assert ["a", None] == nulled(column(["a", "NA"], pa.string()), ["NA"]).to_pylist()
    assert [1, 2] == nulled(column([1, 2]), ["1"]).to_pylist()


def test_lineage_names_shard_and_row() -> None:
    table = columns.with_lineage(pa.table({"x": ["a", "b"]}), "part-7.csv", 5)

    assert [("part-7.csv", 5), ("part-7.csv", 6)] == [
        (row["source_shard"], row["source_row"]) for row in table.to_pylist()
    ]
