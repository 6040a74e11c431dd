"""Rows that overlap a benchmark are in no split, and no other row is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import headrace

ITEM = "a farmer sells nine eggs at the market every day for two dollars each how much does he make"
SHORT = "what is the rarest colour"


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.txt"
    path.write_text(f"{ITEM}\n{SHORT}\n")
    return path


def write(raw: Path, format_: str) -> list[int]:
    """Three shards of 100 rows; the numbers of the rows that hold an item."""
    raw.mkdir()
    holding = []
    for shard in range(3):
        lines = ["n,when,who,text,stars"]
        for n in range(100 * shard, 100 * shard + 100):
            text = f"order {n} came in time and {' '.join(ITEM.split()[: n % 13])}"
            if n % 9 == 4:
                text = f"Number {n}: {ITEM.upper() if n % 2 else SHORT}!"
                holding.append(n)
            lines.append(f"{n},20{20 + n % 6}-03-01,customer {n % 70},{text},{n % 5}")
        path = raw / f"part-{shard}.csv"
        path.write_text("\n".join(lines) + "\n")
        if format_ == "parquet":
            pq.write_table(pc.read_csv(path), path.with_suffix(".parquet"))
            path.unlink()
    return holding


def numbers(dataset: headrace.Dataset) -> list[int]:
    return sorted(
        int(n)
        for split in dataset.splits
        for block in range(len(dataset.split_index(split).rows))
        for n in dataset.block_reader(split)(block, ["n"])["n"].to_pylist()
    )


@pytest.mark.slow
@pytest.mark.parametrize("duplicates", ["group", "drop", "count", "allow"])
def test_rows_of_the_same_content_are_those_that_are_left(
    tmp_path: Path, items: Path, duplicates: str
) -> None:
    write(tmp_path / "raw", "csv")
    asked = {
        "time": "when",
        "entity": "who",
        "split_date": "2025-01-01",
        "duplicates": duplicates,
        "content": ["text"],
    }
    headrace.prepare(
        headrace.TemporalSplit(source=tmp_path / "raw", exclude=items, **asked), tmp_path / "out"
    )

    assert headrace.verify(tmp_path / "out").problems == []
    report = headrace.find_leaks(headrace.open(tmp_path / "out"), content=["text"], against=[items])
    assert report.overlaps == ()
    if duplicates in ("group", "drop"):
        assert [each.rows for each in report.shared] == [0, 0, 0]
    certificate = headrace.certify(tmp_path / "out")
    apart = "content apart" in [each["check"] for each in certificate["proved"]]
    assert apart is (duplicates in ("group", "drop"))


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_rows_that_hold_an_item_are_left_out_and_no_others(
    tmp_path: Path, items: Path, format_: str
) -> None:
    holding = write(tmp_path / "raw", format_)
    asked = {
        "source": tmp_path / "raw",
        "time": "when",
        "entity": "who",
        "split_date": "2025-01-01",
    }
    runs = [
        headrace.prepare(headrace.TemporalSplit(**asked, **more), tmp_path / out, workers=workers)
        for out, workers, more in (
            ("plain", 1, {}),
            ("one", 1, {"exclude": items}),
            ("two", 2, {"exclude": items, "layout": "single"}),
        )
    ]
    plain, one, two = (json.loads((each.run / "manifest.json").read_bytes()) for each in runs)

    kept = [n for n in numbers(headrace.open(tmp_path / "plain")) if n not in holding]
    for out in ("one", "two"):
        dataset = headrace.open(tmp_path / out)
        assert numbers(dataset) == kept
        assert headrace.find_leaks(dataset, against=[items]).overlaps == ()
        assert headrace.verify(tmp_path / out).problems == []
    assert one["dropped"] == two["dropped"]
    assert one["dropped"]["in_benchmark"] == sum(
        each["rows"] for each in plain["splits"].values()
    ) - len(kept)
    assert plain["dropped"]["in_benchmark"] == 0
    assert list(one["metadata"]["benchmarks"]) == ["items.txt"]
    assert one["metadata"]["benchmarks"]["items.txt"]["rows"] == len(holding)
    assert "benchmarks" not in plain["metadata"]
    assert (
        "exclude" not in headrace.TemporalSplit(**asked).identity_settings()
    )  # runs of before keep their ids
