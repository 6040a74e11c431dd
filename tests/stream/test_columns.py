"""Gathered columns hold the rows asked for, whatever the type; what numpy cannot hold is said."""

import datetime as dt
import subprocess
import sys
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import InputError
from headrace.stream.read.batch import make_batch
from headrace.stream.read.columns import concatenate, cut, from_table, gather, join
from raised import raised

DAY, NOON = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
VALUES = {
    "int": pa.array([1, 2, 3], pa.int16()),
    "big": pa.array([2**63 + 1, 0, 5], pa.uint64()),
    "float": pa.array([1.5, None, -2.0], pa.float32()),
    "flag": pa.array([True, False, True]),
    "day": pa.array([DAY, DAY, DAY], pa.date32()),
    "moment": pa.array([NOON, NOON, NOON], pa.timestamp("us", "UTC")),
    "text": pa.array(["a", None, "ü"]),
    "view": pa.array(["a", None, "ü"], pa.string_view()),
    "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
    "list": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
    "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float64(), 2)),
    "record": pa.array([{"a": 1}, None, {"a": 2}]),
    "amount": pa.array([1, None, 3], pa.decimal128(9, 2)),
}
TABLE = pa.table(VALUES)
PYTHON = TABLE.to_pydict()


def gathered(table, index, *, arrow=False, pieces=2):
    middle = table.num_rows // pieces
    parts = [table.slice(0, middle), table.slice(middle)]
    decoded = [
        from_table(part, arrow=arrow, where=f"piece {number}") for number, part in enumerate(parts)
    ]
    return gather(decoded, np.array(index))


def plain(value):
    """A batch value as Python objects; NaN as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if value != value else value


@pytest.mark.parametrize("batch_format", ["numpy", "torch", "arrow"])
@pytest.mark.parametrize("name", VALUES)
def test_every_type_comes_back_in_the_order_asked_for(name, batch_format):
    index = [2, 0, 1, 0]
    columns = gathered(TABLE.select([name]), index, arrow=batch_format == "arrow")

    batch = make_batch(join([cut(columns, 0, 3), cut(columns, 3, 4)]), batch_format)

    expected = [PYTHON[name][row] for row in index]
    if name == "day" and batch_format == "torch":
        expected = [(DAY - dt.date(1970, 1, 1)).days] * 4
    if name == "moment" and batch_format != "arrow":
        micros = int(NOON.timestamp()) * 10**6
        got = (
            batch[name].tolist()
            if batch_format == "torch"
            else batch[name].astype(np.int64).tolist()
        )
        assert got == [micros] * 4
        return
    assert plain(batch[name].to_pylist() if batch_format == "arrow" else batch[name]) == expected


def test_numpy_types_are_kept():
    columns = gathered(TABLE, [0, 1])

    assert [
        columns[name].dtype.str for name in ("int", "big", "float", "flag", "day", "moment", "pair")
    ] == [*["<i2", "<u8", "<f4", "|b1", "<M8[D]", "<M8[us]", "<f8"]]
    assert columns["pair"].shape == (2, 2)


@pytest.mark.parametrize("batch_format", ["numpy", "torch"])
def test_a_batch_may_be_written_to(batch_format):
    names = ["int", "float", "flag", "pair", "list"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = make_batch(
            {**gathered(TABLE.select(names), [0, 2]), "valid": np.array([True, False])},
            batch_format,
        )
    for name in ("int", "float", "flag", "pair", "valid"):
        batch[name][0] = 0
    batch["list"][0][0] = 9

    assert TABLE["int"][0].as_py() == 1
    assert TABLE["list"][0].as_py() == [1, 2]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3]),
        pa.array([True, None, False]),
        pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
        pa.array([[1, None], [3, 4], [3, 4]], pa.list_(pa.int8(), 2)),
    ],
)
def test_nulls_that_numpy_cannot_hold_name_place_and_remedy(values):
    table = pa.table({"n": values})

    with raised(InputError, column="n", remedy='use batch_format="arrow"'):
        gathered(table, [0, 1])
    assert gathered(table, [1], arrow=True)["n"].to_pylist() == [values[1].as_py()]


def test_a_missing_moment_is_nat_in_numpy_and_an_error_in_torch():
    columns = gathered(pa.table({"t": pa.array([1, None], pa.timestamp("s"))}), [1, 0])

    assert np.isnat(make_batch(columns, "numpy")["t"]).tolist() == [True, False]
    with raised(InputError, column="t", remedy='use batch_format="numpy"'):
        make_batch(columns, "torch")


def test_a_null_inside_an_integer_list_is_an_error_naming_the_column():
    table = pa.table({"ids": pa.array([[1, None], [2]])})

    with raised(InputError, path="piece 0", column="ids", remedy="with columns="):
        gathered(table, [0, 1])
    assert gathered(table, [0], arrow=True)["ids"].to_pylist() == [[1, None]]


def test_arrow_batches_carry_the_mask_as_a_column():
    batch = make_batch(
        {**gathered(TABLE, [0, 1], arrow=True), "valid": np.array([True, False])}, "arrow"
    )

    assert batch["valid"].to_pylist() == [True, False]


def test_opening_and_streaming_numbers_does_not_import_pandas(tmp_path):
    pq.write_table(pa.table({"a": range(100), "b": [0.5] * 100}), tmp_path / "part.parquet")
    program = """
import sys, headrace
for _ in range(2):  # the index is made, then read
    rows = headrace.open(sys.argv[1], cache_dir=sys.argv[2]).stream(batch_size=8, shuffle=True, batch_format="numpy")
    assert 13 == sum(1 for _ in rows)
print("pandas" in sys.modules)
"""
    child = [sys.executable, "-c", program, str(tmp_path / "part.parquet"), str(tmp_path / "cache")]

    assert (
        "False" == subprocess.run(child, check=True, capture_output=True, text=True).stdout.strip()
    )


@pytest.mark.parametrize("values", [["a", None], [["a"], None], [{"t": ["a"], "n": 1}, None]])
def test_nested_texts_beyond_32_bit_offsets_get_long_ones(values, monkeypatch):
    parts = [pa.array(values), pa.array(values[::-1])]
    monkeypatch.setattr("headrace.stream.read.columns._INT32_OFFSETS_REACH", 2)

    joined = concatenate(parts)

    assert [*values, *values[::-1]] == joined.to_pylist()
    assert "large_string" in str(joined.type)
