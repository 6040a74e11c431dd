"""Splits are compared in calendar time, and labels with the cutoff, as a search row by row does it."""

from __future__ import annotations

import datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import SettingsError
from headrace.stream.audit.in_time import concurrent, past_cut
from laws import examples
from raised import raised

DAY = 86_400_000_000
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=12)
NAMES = ("train", "val", "test")


def frames(rows: list[list[tuple[int, int]]]) -> dict[str, pl.DataFrame]:
    schema = {"entity": pl.UInt64, "begin": pl.Int64, "end": pl.Int64}
    return {
        name: pl.DataFrame(
            [(entity, day * DAY, day * DAY) for entity, day in each], schema=schema, orient="row"
        )
        for name, each in zip(NAMES, rows, strict=True)
    }


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(ROWS, min_size=3, max_size=3))
def test_rows_at_the_time_of_other_entities_are_those_of_a_search(
    rows: list[list[tuple[int, int]]],
) -> None:
    by_name = dict(zip(NAMES, rows, strict=True))
    for found in concurrent(frames(rows)):
        hit = []
        for entity, day in by_name[found.split]:
            others = [other for own, other in by_name[found.earlier] if own != entity]
            hit += [day * DAY] if others and min(others) <= day <= max(others) else []
        assert (found.rows, found.first_us, found.last_us) == (
            len(hit),
            min(hit, default=None),
            max(hit, default=None),
        )


@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.lists(ROWS, min_size=3, max_size=3),
    days=st.integers(0, 5),
    cutoff=st.none() | st.integers(0, 12),
)
def test_labels_past_the_cutoff_are_those_of_a_search(
    rows: list[list[tuple[int, int]]], days: int, cutoff: int | None
) -> None:
    tested = rows[2]
    found = past_cut(frames(rows), f"{days}d", None if cutoff is None else cutoff * DAY)
    assert [each.split for each in found] == ["train", "val"]
    for each, own in zip(found, rows, strict=False):
        count = 0
        for entity, day in own:
            starts = [other for who, other in tested if who == entity] or [
                other for _, other in tested
            ]
            cut = min(starts, default=None) if cutoff is None else cutoff
            count += cut is not None and day + days >= cut
        assert each.rows == count


def write(root: Path, name: str, days: list[str]) -> None:
    (root / name).mkdir(parents=True)
    table = pa.table(
        {"when": days, "n": range(len(days)), "who": [f"{name} {n}" for n in range(len(days))]}
    )
    pq.write_table(table, root / name / "part-0.parquet")


def test_a_dataset_says_when_its_splits_are(tmp_path: Path) -> None:
    write(tmp_path, "train", ["2025-01-01", "2025-01-05", "2025-03-01", "unknown"])
    write(tmp_path, "test", ["2025-02-01", "2025-04-01"])
    report = headrace.find_leaks(
        headrace.open(tmp_path), content=["n"], time="when", entity="who", label_horizon="30d"
    )

    def micros(text: str) -> int:
        return int(datetime.datetime.fromisoformat(f"{text}T00:00+00:00").timestamp()) * 1_000_000

    train, test = report.periods
    assert (train.split, train.first_us, train.last_us, train.unread) == (
        "train",
        micros("2025-01-01"),
        micros("2025-03-01"),
        1,
    )
    (pair,) = report.concurrent
    assert (pair.earlier, pair.split, pair.rows, pair.fraction) == ("train", "test", 1, 0.5)
    assert (pair.first_us, pair.last_us) == (micros("2025-02-01"),) * 2
    (past,) = report.past_cut
    assert (past.split, past.rows, past.fraction) == ("train", 2, 0.5)
    assert report.worst == 1  # both numbers of test are in train
    assert test.unread == 0


def test_the_cutoff_and_the_clock_of_a_run_are_used(tmp_path: Path) -> None:
    lines = ["when,who,n"] + [
        f"{n % 28 + 1}/{n % 12 + 1}/{2020 + n % 6},{n % 300},{n}" for n in range(3000)
    ]
    (tmp_path / "raw.csv").write_text("\n".join(lines) + "\n")
    split = headrace.TemporalSplit(
        source=tmp_path / "raw.csv",
        time="when",
        entity="who",
        split_date="2025-01-01",
        dialect={"time_format": "%d/%m/%Y"},
    )
    headrace.prepare(split, tmp_path / "out")
    dataset = headrace.open(tmp_path / "out")
    report = headrace.find_leaks(dataset, label_horizon="3d")

    assert all(pair.rows == 0 for pair in report.concurrent if pair.split == "test")
    for past in report.past_cut:
        read = dataset.block_reader(past.split)
        days = [
            d
            for b in range(len(dataset.split_index(past.split).rows))
            for d in read(b, ["when"])["when"].to_pylist()
        ]
        assert past.rows == sum(day in ("29/12/2024", "30/12/2024", "31/12/2024") for day in days)


def test_what_says_nothing_of_time_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "two", "train", ["2025-01-01"])
    write(tmp_path / "two", "test", ["2025-02-01"])
    write(tmp_path / "one", "train", ["2025-01-01"])
    with raised(SettingsError, setting="label_horizon", remedy="name it with time="):
        headrace.find_leaks(headrace.open(tmp_path / "two"), label_horizon="30d")
    with pytest.raises(SettingsError, match="such as 30d"):
        headrace.find_leaks(headrace.open(tmp_path / "two"), time="when", label_horizon="a month")
    with raised(SettingsError, setting="label_horizon", remedy="with a test split"):
        headrace.find_leaks(
            headrace.open(tmp_path / "one" / "train"), time="when", label_horizon="30d"
        )
