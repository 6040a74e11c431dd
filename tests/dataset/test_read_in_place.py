"""Versions of tables whose files are their rows are read where they lie; all others are copied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace
from headrace.dataset import snapshots
from headrace.errors import InputError

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
ROWS = pl.DataFrame({"number": range(200), "name": [f"row {n}" for n in range(200)], "year": [2024, 2025] * 100})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(snapshots, "LEAST_BYTES", 1)


def copies(tmp_path: Path) -> int:
    return len(list((tmp_path / "home").rglob("table-*")))


def rows_of(address: str) -> pl.DataFrame:
    found = headrace.open(address)["all"].to_polars().collect()
    return found.select(sorted(found.columns)).sort("number")


def written(path: Path, rows: pl.DataFrame = ROWS, **options: Any) -> None:
    deltalake.write_deltalake(path, rows, mode="append", **options)


def test_appended_files_are_read_where_they_lie(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for start in range(0, 200, 50):
        written(table, ROWS[start : start + 50])
    found = headrace.open(f"delta:{table}@2")

    assert ROWS[:150].select(sorted(ROWS.columns)).equals(rows_of(f"delta:{table}@2"))
    assert ROWS.select(sorted(ROWS.columns)).equals(rows_of(f"delta:{table}"))
    assert ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"] == [
        each.rpartition("/")[2] for each in found.split_index("all").shards
    ]
    assert 0 == copies(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: deltalake.DeltaTable(path).delete("number < 40"),
        lambda path: written(path, ROWS.with_columns(more=pl.lit(1)), schema_mode="merge"),
    ],
    ids=["rewritten by a delete", "a column more"],
)
def test_rows_are_those_of_the_library_after_every_change(tmp_path: Path, change: Callable[[Path], object]) -> None:
    table = tmp_path / "table"
    written(table)
    change(table)
    theirs = pl.scan_delta(str(table)).collect()
    by = ["number", *sorted(set(theirs.columns) - {"number"})]
    own = rows_of(f"delta:{table}")

    assert theirs.select(by).sort(by, nulls_last=False).equals(own.select(by).sort(by, nulls_last=False))


def test_partitioned_and_small_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "partitioned", partition_by=["year"])
    assert ROWS.select(sorted(ROWS.columns)).equals(rows_of(f"delta:{tmp_path}/partitioned"))
    assert 1 == copies(tmp_path)

    monkeypatch.setattr(snapshots, "LEAST_BYTES", 1 << 20)
    written(tmp_path / "small")
    assert ROWS.select(sorted(ROWS.columns)).equals(rows_of(f"delta:{tmp_path}/small"))
    assert 2 == copies(tmp_path)


def test_a_version_is_one_run_wherever_the_cache_is_and_versions_are_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    written(table, ROWS[:100])
    written(table, ROWS[100:])

    def run_of(version: int) -> Any:
        return headrace.prepare(headrace.Rewrite(source=f"delta:{table}@{version}"), tmp_path / "out")

    first, second = run_of(0), run_of(1)
    monkeypatch.setenv("HOME", str(tmp_path / "another"))
    again = run_of(1)

    assert first.manifest.run_id != second.manifest.run_id
    assert "reused" == again.how
    assert f"delta:{table}@1" in (second.run / "config.json").read_text()


def test_a_file_that_was_removed_is_told(tmp_path: Path) -> None:
    table = tmp_path / "table"
    written(table)
    headrace.open(f"delta:{table}")
    next(table.glob("*.parquet")).unlink()

    with pytest.raises(InputError, match=r"table@0: a file of it cannot be read .*VACUUM: give a newer version"):
        headrace.open(f"delta:{table}")


@pytest.fixture
def iceberg(tmp_path: Path) -> Any:
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed")
    catalog = sql.SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("home")
    table = catalog.create_table("home.table", schema=ROWS.to_arrow().schema)
    for start in (0, 100):
        table.append(ROWS[start : start + 100].to_arrow())
    return table


def iceberg_rows(table: Any, tmp_path: Path) -> None:
    theirs = pl.DataFrame(table.scan(snapshot_id=table.current_snapshot().snapshot_id).to_arrow())
    own = rows_of(f"iceberg:{tmp_path}/lake/home/table")
    assert theirs.select(sorted(theirs.columns)).sort("number").equals(own)


def test_iceberg_is_read_where_it_lies_until_its_columns_are_others(iceberg: Any, tmp_path: Path) -> None:
    iceberg_rows(iceberg, tmp_path)
    assert 0 == copies(tmp_path)

    with iceberg.update_schema() as update:
        update.rename_column("name", "called")
    iceberg.append(ROWS[:1].with_columns(pl.col("number") + 200).rename({"name": "called"}).to_arrow())
    iceberg_rows(iceberg, tmp_path)
    assert 1 == copies(tmp_path)


def test_an_iceberg_column_of_an_old_name_does_not_take_its_values(iceberg: Any, tmp_path: Path) -> None:
    with iceberg.update_schema() as update:
        update.delete_column("year")
    with iceberg.update_schema() as update:
        update.add_column("year", __import__("pyiceberg.types").types.LongType())
    iceberg.append(ROWS[:1].with_columns(pl.col("number") + 200).to_arrow())
    iceberg_rows(iceberg, tmp_path)

    assert 200 == rows_of(f"iceberg:{tmp_path}/lake/home/table")["year"].null_count()
    assert 1 == copies(tmp_path)


def test_iceberg_with_deleted_rows_is_that_of_its_library(iceberg: Any, tmp_path: Path) -> None:
    iceberg.delete("number < 40")
    iceberg_rows(iceberg, tmp_path)
