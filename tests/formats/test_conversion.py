"""Types that another library refuses end in an error that names the column, and hide no others."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from commands import headrace as command
from headrace.errors import InputError
from raised import raised

TIMES = pa.array([datetime(2024, 1, 1), datetime(2024, 9, 1)], pa.timestamp("us"))
TWINS = pa.StructArray.from_arrays(
    [pa.array([1, 2]), pa.array([3, 4])],
    fields=[pa.field("a", pa.int64()), pa.field("a", pa.int64())],
)
ODD = {
    "zone": TIMES.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "Mars/Phobos")),
    "twins": TWINS,
    "lists of twins": pa.ListArray.from_arrays([0, 1, 2], TWINS),
    "decimal256": pa.array([1, 2], pa.decimal256(60, 2)),
    "union": pa.UnionArray.from_dense(
        pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array([1, 2])]
    ),
}


def written(path: Path, odd: pa.Array) -> Path:
    table = pa.table({"day": TIMES, "n": pa.array([1, 2]), "odd": odd})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("name", ODD)
def test_polars_gets_the_other_columns_and_a_warning(tmp_path: Path, name: str) -> None:
    if name == "lists of twins" and int(polars.__version__.partition(".")[0]) < 2:
        pytest.skip("Polars 1 holds them")
    path = written(tmp_path / "a.arrow", ODD[name])
    rows = headrace.open(path, cache_dir=tmp_path / "cache")["all"]
    with pytest.warns(UserWarning, match="odd"):
        frame = rows.to_polars()

    assert [1, 2] == frame.collect()["n"].to_list()
    assert ["day", "n"] == frame.collect_schema().names()


@pytest.mark.parametrize("name", ["zone", "twins", "union"])
def test_peek_shows_the_other_columns_and_names_the_rest(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "a.arrow", ODD[name])
    record = json.loads(command("peek", path, "--json").stdout)

    assert ["day", "n"] == [column["name"] for column in record["schema"]]
    assert ["odd"] == list(record["not_shown"])
    assert [1, 2] == [row["n"] for row in record["rows"]]
    assert "odd is not shown" in command("peek", path).stdout


VALUES: dict[str, tuple[pa.Array, str]] = {
    **{name: (array, "jsonl") for name, array in ODD.items() if name != "union"},
    "bytes": (pa.array([b"a", b"b"]), "jsonl"),
    "duration": (pa.array([1, 2]).cast(pa.duration("s")), "csv"),
    "year 1258934": (pa.array([2**28, 0], pa.int32()).cast(pa.date32()), "csv"),
    "late": (pa.array([2**62, 0]).cast(pa.timestamp("s")), "parquet"),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_a_format_cannot_hold_is_refused_with_file_and_column(
    tmp_path: Path, name: str
) -> None:
    odd, form = VALUES[name]
    path = written(tmp_path / "a.arrow", odd)
    options: dict[str, Any] = {"source": path, "time": "day", "split_date": "2024-06-01"}

    with raised(InputError, path=path, column="odd"):
        headrace.prepare(headrace.TemporalSplit(**options, format=form), tmp_path / "out")


def test_pandas_refuses_a_column_by_name(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    pq.write_table(
        pa.table({"n": [1, 2], "odd": pa.array([1, 2]).cast(pa.time64("ns"))}),
        tmp_path / "a.parquet",
    )
    rows = headrace.open(tmp_path / "a.parquet", cache_dir=tmp_path / "cache")["all"]

    assert [1, 2] == rows.to_pandas(["n"])["n"].tolist()
    with raised(InputError, column="odd"):
        rows.to_pandas()
