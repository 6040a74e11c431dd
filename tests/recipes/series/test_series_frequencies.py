"""Steps of an hour, of fifteen minutes and of a month, and entities that differ."""

import json
import math
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from basins import SPLITS, a_basin, readable_rows, stored, write_basins

import headrace
from headrace.run.events import Event, Note
from headrace.run.prepare import Prepared, prepare
from headrace.series.settings import Series


def steps(step: timedelta, count: int) -> list[datetime]:
    return [datetime(2019, 12, 30) + place * step for place in range(count)]


def months(count: int, day: int) -> list[datetime]:
    return [datetime(2010 + place // 12, place % 12 + 1, day) for place in range(count)]


def write(path: Path, times: list[datetime], lost: tuple[int, ...] = ()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [math.sin(place / 3) + place for place in range(len(times))]
    table = pa.table(
        {"at": pa.array(times, pa.timestamp("us")), "load": values, "wind": values[::-1]}
    )
    pq.write_table(table.take([place for place in range(len(times)) if place not in lost]), path)
    return path


def run(source: Path, out: Path, heard: list[Event] | None = None, **more) -> Prepared:
    asked = {
        "source": source,
        "target": "load",
        "future_features": "wind",
        "time": "at",
        "min_train_years": 0,
    }
    return prepare(
        Series(**{**asked, **more}), out, on_event=(heard if heard is not None else []).append
    )


@pytest.mark.parametrize(
    ("times", "word"),
    [
        (steps(timedelta(hours=1), 200), "1h"),
        (steps(timedelta(minutes=15), 200), "15m"),
        (steps(timedelta(days=7), 60), "7d"),
        (months(60, 1), "1mo"),
        (months(60, 15), "1mo"),
        ([datetime(each.year, each.month, 1) - timedelta(days=1) for each in months(60, 1)], "1mo"),
    ],
)
def test_the_axis_has_the_steps_of_its_rows(
    tmp_path: Path, times: list[datetime], word: str
) -> None:
    source = write(tmp_path / "in" / "a.parquet", times, lost=(7, 8, 30))
    prepared = run(source, tmp_path / "out", max_imputation_gap_size=0)

    assert word == prepared.manifest.metadata["frequency"]
    assert times == [time for split in SPLITS for time in readable_rows(prepared)[split]["a"].times]
    loads = [row[0] for split in SPLITS for row in stored(prepared)[split]["a"].values]
    assert [7, 8, 30] == [place for place, load in enumerate(loads) if load is None]
    assert [] == headrace.verify(tmp_path / "out").problems


def test_years_are_counted_in_steps(tmp_path: Path) -> None:
    source = write(tmp_path / "in" / "a.parquet", months(60, 1)).parent
    run(source, tmp_path / "out", min_train_years=3)

    with pytest.raises(
        headrace.InputError, match="36 observed targets in train \\(of 60\\), 37 are required"
    ):
        run(source, tmp_path / "out", min_train_years=3.1)


def test_entities_that_differ_are_told_and_the_usual_step_wins(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / "in" / f"{name}.parquet", steps(timedelta(hours=1), 100))
    write(tmp_path / "in" / "half.parquet", steps(timedelta(minutes=30), 100))
    heard: list[Event] = []
    prepared = run(tmp_path / "in", tmp_path / "out", heard)

    assert "1h" == prepared.manifest.metadata["frequency"]
    assert any(
        isinstance(each, Note) and "entities differ in frequency: 1h (3), 30m (1)" in each.text
        for each in heard
    )
    excluded = json.loads((prepared.run / "quality_summary.json").read_bytes())["excluded_entities"]
    assert "50 times are between steps of 1h, first 2019-12-30T00:30:00" in excluded["half"]


def test_times_may_be_written_in_several_ways(tmp_path: Path) -> None:
    times = steps(timedelta(days=1), 40)
    written = {
        "iso": [f"{each:%Y-%m-%d}" for each in times],
        "day_first": [f"{each:%d/%m/%Y}" for each in times],
        "zoned": [f"{each - timedelta(hours=2):%Y-%m-%dT%H:%M:%S}-02:00" for each in times],
    }
    for name, texts in written.items():
        table = pa.table(
            {
                "at": texts,
                "load": [float(n) for n in range(40)],
                "wind": [1.0 + n % 3 for n in range(40)],
            }
        )
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet")
    prepared = run(tmp_path / "in", tmp_path / "out", dialect={"time_format": ["iso", "%d/%m/%Y"]})

    readable = readable_rows(prepared)
    assert {"day_first", "iso", "zoned"} == set(readable["train"])
    assert times == [time for split in SPLITS for time in readable[split]["zoned"].times]
    assert 1 == len({tuple(readable["train"][name].times) for name in written})


def test_numbers_that_mean_missing_are_missing(tmp_path: Path) -> None:
    rows = [row for row in a_basin(3) if row.rain is not None]
    marked = [type(row)(row.date, -999.0 if row.flow is None or math.isnan(row.flow) else row.flow, row.rain, row.cold) for row in rows]  # fmt: skip
    asked = {"target": "flow", "future_features": ["rain", "cold"], "time": "date"}
    plain = run(write_basins(tmp_path / "plain", {"a": rows}), tmp_path / "one", **asked)
    numbered = run(
        write_basins(tmp_path / "marked", {"a": marked}),
        tmp_path / "two",
        dialect={"null_values": "-999"},
        **asked,
    )

    assert stored(plain) == stored(numbered)
