"""A version of a Delta table is a source with the rows that deltalake itself reads of it."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace
from headrace.dataset.tables import is_table, keep
from headrace.errors import InputError

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three versions: 200 rows of two years and a place, those without the first 40, and 50 more with a new column."""
    rows = pl.DataFrame(
        {
            "who": [f"customer {n % 30}" for n in range(200)],
            "year": [2024 + n % 2 for n in range(200)],
            "number": range(200),
            "place": [["a/b", None, "x y"][n % 3] for n in range(200)],
        }
    )
    path = tmp_path / "table"
    deltalake.write_deltalake(path, rows, partition_by=["year", "place"])
    deltalake.DeltaTable(path).delete("number < 40")
    more = rows.head(50).with_columns(pl.col("number") + 200, note=pl.lit("new"))
    deltalake.write_deltalake(path, more, mode="append", schema_mode="merge")
    return path


def rows_of(given: Any) -> pl.DataFrame:
    return headrace.open(given)["all"].to_polars().collect().sort("number")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_rows_of_a_version_are_those_of_the_library(table: Path, version: int) -> None:
    given = deltalake.DeltaTable(table, version=version)
    expected = pl.scan_delta(str(table), version=version).collect().sort("number")
    own = rows_of(given)

    assert is_table(given)
    assert [200, 160, 210][version] == len(own)
    assert expected.select(sorted(expected.columns)).equals(own.select(sorted(own.columns)))


def test_versions_are_sources_of_their_own_and_one_version_is_one_source(table: Path) -> None:
    copies = [keep(deltalake.DeltaTable(table, version=version)) for version in (0, 1, 2, 0, 1, 2)]

    assert 3 == len(set(copies))
    assert copies[:3] == copies[3:]


def test_a_run_of_a_version_has_no_deleted_rows_and_another_id_than_other_versions(table: Path, tmp_path: Path) -> None:
    runs = [
        headrace.prepare(
            headrace.TemporalSplit(
                source=deltalake.DeltaTable(table, version=version),
                time="number",
                time_format="epoch_days",
                entity="who",
                split_date="1970-05-01",
            ),
            tmp_path / "out",
        )
        for version in (0, 1, 1)
    ]
    found = headrace.open(runs[1].run)
    numbers = [number for split in found.splits for number in found[split].to_polars().collect()["number"]]

    assert ["computed", "computed", "reused"] == [run.how for run in runs]
    assert min(numbers) >= 40


def test_what_the_library_does_not_read_is_refused_by_name(table: Path) -> None:
    first = table / "_delta_log" / "00000000000000000000.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            features = ["deletionVectors"]
            line["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
    first.write_text("\n".join(map(json.dumps, lines)) + "\n")

    with pytest.raises(InputError, match="does not read version 0 as Arrow: .*deletionVectors"):
        headrace.open(deltalake.DeltaTable(table, version=0))


def test_its_directory_is_refused_with_what_to_give(table: Path) -> None:
    with pytest.raises(InputError, match="is a Delta table.*put 'delta:' before its path"):
        headrace.open(table)
