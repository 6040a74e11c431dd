"""Traps that other implementations of this job fell into, each with what must happen instead."""

import json
import math
import shutil
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from basins import (
    DAY,
    SPLITS,
    START,
    Row,
    a_basin,
    files_of,
    parquet,
    readable_rows,
    series,
    settings,
    stored,
    write_basins,
)

import headrace
from headrace.series.pipelines.save import load_pipelines
from raised import raised


def plain(
    days: int,
    *,
    flow: dict[int, float | None] | None = None,
    rain: dict[int, float | None] | None = None,
) -> list[Row]:
    """A value every day, but for the days that are given."""
    flow, rain = flow or {}, rain or {}
    return [
        Row(START + day * DAY, flow.get(day, float(day)), rain.get(day, float(day % 7)), float(day % 5)) for day in range(days)
    ]  # fmt: skip


def report(prepared, name: str) -> dict:
    return json.loads((prepared.run / "quality_reports" / f"{name}.json").read_bytes())


def test_time_is_never_squeezed_over_an_outage(tmp_path: Path) -> None:
    """T1: rows whose target is missing were dropped, so that days before and after an outage became neighbours."""
    lost = dict.fromkeys(range(30, 60))
    prepared = series(write_basins(tmp_path / "in", {"a": plain(100, flow=lost)}), tmp_path / "out")

    found = stored(prepared)
    times = [time for split in SPLITS for time in found[split]["a"].times]
    flows = [row[0] for split in SPLITS for row in found[split]["a"].values]
    assert [DAY] * 99 == [after - before for before, after in pairwise(times)]
    assert list(range(30, 60)) == [place for place, flow in enumerate(flows) if flow is None]
    assert [42, 14, 14] == [report(prepared, "a")["targets"][split] for split in SPLITS]


def test_missing_days_become_rows(tmp_path: Path) -> None:
    """T1: so that a window of rows is a window of days."""
    rows = [row for place, row in enumerate(plain(60)) if place not in (20, 21, 40)]
    prepared = series(
        write_basins(tmp_path / "in", {"a": rows}), tmp_path / "out", max_imputation_gap_size=0
    )

    flows = [row[0] for split in SPLITS for row in stored(prepared)[split]["a"].values]
    assert [20, 21, 40] == [place for place, flow in enumerate(flows) if flow is None]
    assert 3 == report(prepared, "a")["added_rows"]


def test_both_ends_are_trimmed_on_their_own_side(tmp_path: Path) -> None:
    """T2: a trailing trim that forgot to turn back dropped the first rows and kept the missing ones."""
    rows = plain(60, flow={0: None, 1: None, 57: None, 58: None, 59: None}, rain={0: None})
    prepared = series(write_basins(tmp_path / "in", {"a": rows}), tmp_path / "out")

    told = report(prepared, "a")
    assert ({"start": "2001-01-03", "end": "2001-02-26", "steps": 55}) == told["period"]
    assert {"start": 2, "end": 3} == told["trimmed_steps"]
    assert 5 == prepared.manifest.dropped["trimmed"]


def test_a_long_outage_is_left_whole(tmp_path: Path) -> None:
    """T3: a forward fill with a limit also fills the first days of every long outage."""
    rows = plain(60, rain=dict.fromkeys([*range(10, 18), 30, 31]))
    prepared = series(write_basins(tmp_path / "in", {"a": rows}), tmp_path / "out")

    told = report(prepared, "a")["imputation_info"]["rain"]
    assert {"short_gaps_count": 1, "imputed_values_count": 2, "long_gaps_count": 1, "unfilled_gaps_count": 0, "cut_gaps_count": 0, "unusable_values_count": 0, "missing_values_count": 8, "longest_gap": 8} == told  # fmt: skip
    rains = [row[1] for split in SPLITS for row in stored(prepared)[split]["a"].values]
    assert list(range(10, 18)) == [place for place, rain in enumerate(rains) if rain is None]
    assert rains[29] == rains[30] == rains[31]


def test_every_parameter_of_a_pipeline_is_part_of_the_run(tmp_path: Path) -> None:
    """T4, T5: class names alone made two scalers share a run, and a changed pipeline did not matter to its reuse."""
    source = write_basins(tmp_path / "in", {"a": a_basin(1), "b": a_basin(2)})
    runs = [
        series(
            source,
            tmp_path / "out",
            preprocessing_configs={"features": {"strategy": "per_group", "pipeline": [step]}},
        )
        for step in (
            {"step": "StandardScaler"},
            {"step": "StandardScaler", "with_mean": False},
            {"step": "MinMaxScaler"},
        )
    ]

    assert ["computed"] * 3 == [each.how for each in runs]
    assert 3 == len({each.manifest.run_id for each in runs})
    assert 3 == len({files_of(each)["store/part-00000.arrow"] for each in runs})


def test_a_changed_file_is_another_run(tmp_path: Path) -> None:
    """T6: without a fingerprint of the source, changed data reused what was made of the old."""
    source = write_basins(tmp_path / "in", {"a": a_basin(1), "b": a_basin(2)})
    first = series(source, tmp_path / "out")
    parquet(source / "b.parquet", a_basin(3))
    second = series(source, tmp_path / "out")

    assert "computed" == second.how
    assert first.manifest.run_id != second.manifest.run_id


def statics(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["gauge,area,height", *lines]) + "\n")
    return path


STATIC = {"static_entity": "gauge", "static_features": ["area", "height"]}


def test_a_missing_static_value_is_never_a_zero(tmp_path: Path) -> None:
    """T11: missing attributes became 0 behind the scaler, and a basin without any became a row of zeros."""
    source = write_basins(
        tmp_path / "in", {name: a_basin(place) for place, name in enumerate("abcd")}
    )
    table = statics(tmp_path / "static.csv", ["a,1,10", "b,2,NA", "c,6,40"])

    dropped = series(
        source, tmp_path / "out", static=table, dialect={"null_values": "NA"}, **STATIC
    )

    summary = json.loads((dropped.run / "quality_summary.json").read_bytes())
    assert ["a", "c"] == summary["retained_entities"]
    assert "has no static height" == summary["excluded_entities"]["b"]


def test_static_scalers_know_retained_entities_only(tmp_path: Path) -> None:
    """T11: the static pipeline was fitted on everything that was asked for, before the quality check."""
    basins = {"a": a_basin(1), "b": a_basin(2), "c": plain(9), "d": a_basin(4)}
    source = write_basins(tmp_path / "in", basins)
    table = statics(
        tmp_path / "static.csv", ["a,1,10", "b,2,20", "c,1000000,1", "d,3,30", "stranger,-5e9,0"]
    )
    prepared = series(source, tmp_path / "out", static=table, min_train_years=0.05, **STATIC)

    found = pq.read_table(prepared.run / "processed_static_features.parquet")
    assert ["a", "b", "d"] == found["gauge"].to_pylist()
    np.testing.assert_allclose(
        (np.array([1, 2, 3]) - 2) / np.std([1, 2, 3]), found["area"].to_numpy(), rtol=1e-6
    )
    assert (
        1
        == json.loads((prepared.run / "quality_summary.json").read_bytes())[
            "attributes_without_series"
        ]
    )


def test_an_unknown_entity_is_an_error_and_not_unscaled(tmp_path: Path) -> None:
    """T12: unseen groups passed through the scaler unchanged, with a printed line."""
    prepared = series(write_basins(tmp_path / "in", {"a": a_basin(1)}), tmp_path / "out")
    pipelines = load_pipelines(tmp_path / "out")

    assert prepared.manifest.run_id
    with raised(headrace.InputError, value="b"):
        pipelines.inverse_transform(np.zeros(3), entity="b")


BAD_FILES = {
    "cut": "fetch it again if it was cut",
    "empty": "has no rows",
    "columns": "column 'flow': not in the file",
    "text": "row 2, column 'rain' is 'wet'",
    "infinite": "row 3, column 'rain' is inf: not a finite number",
    "dates": "row 2, column 'date' is '2001-13-01'",
    "no_rows": "has no rows",
    "twice": "1 time comes twice, first 2001-01-05",
    "between": "1 time is between steps of 1d, first 2001-01-05T07:00:00",
    "never": "column 'flow': never observed",
    "wrong_name": "the name says csv",
}


def spoil(directory: Path, name: str) -> None:
    rows = a_basin(3, outages=0, lost_days=0.0)
    path = directory / f"{name}.parquet"
    table = pa.table(
        {
            "date": [START + day * DAY for day in range(50)],
            "rain": [1.0] * 50,
            "flow": [2.0] * 50,
            "cold": [3.0] * 50,
        }
    )
    if name == "cut":
        parquet(path, rows)
        path.write_bytes(path.read_bytes()[:-30])
    elif name == "empty":
        path.write_bytes(b"")
    elif name == "columns":
        pq.write_table(table.drop_columns(["flow"]), path)
    elif name == "text":
        pq.write_table(table.set_column(1, "rain", pa.array(["1", "wet", *["2"] * 48])), path)
    elif name == "infinite":
        pq.write_table(
            table.set_column(1, "rain", pa.array([1.0, 2.0, float("inf"), *[2.0] * 47])), path
        )
    elif name == "dates":
        dates = [f"2001-01-{day + 1:02d}" for day in range(30)]
        pq.write_table(
            table.slice(0, 30).set_column(
                0, "date", pa.array([dates[0], "2001-13-01", *dates[2:]])
            ),
            path,
        )
    elif name == "no_rows":
        pq.write_table(table.slice(0, 0), path)
    elif name in ("twice", "between"):
        moved = START + 4 * DAY if name == "twice" else datetime(2001, 1, 5, 7)
        parquet(path, [*plain(50), Row(moved, 1.0, 1.0, 1.0)])
    elif name == "never":
        parquet(path, plain(50, flow=dict.fromkeys(range(50))))
    elif name == "wrong_name":
        shutil.copy(parquet(directory.parent / "x.parquet", rows), directory / f"{name}.csv")


@pytest.mark.slow
def test_one_bad_file_fails_alone_with_its_reason(tmp_path: Path) -> None:
    """T13: any exception in a batch of a hundred basins dropped all of them, without a report."""
    good = {f"good_{place}": a_basin(place) for place in range(4)}
    source = write_basins(tmp_path / "in", good)
    for name in BAD_FILES:
        spoil(source, name)
    prepared = series(source, tmp_path / "out", batch_size=100)

    summary = json.loads((prepared.run / "quality_summary.json").read_bytes())
    assert sorted(good) == summary["retained_entities"]
    assert (15, 4, 11) == tuple(
        summary[f"{word}_entities"] for word in ("original", "passed", "failed")
    )
    assert set(BAD_FILES) == set(summary["excluded_entities"])
    for name, reason in BAD_FILES.items():
        assert reason in summary["excluded_entities"][name], name
        assert summary["excluded_entities"][name] == report(prepared, name)["failure_reason"]
    alone = series(write_basins(tmp_path / "alone", good), tmp_path / "out")
    assert stored(alone) == stored(prepared)
    assert [] == headrace.verify(tmp_path / "out", run=prepared.manifest.run_id).problems


def test_a_bad_row_of_a_long_table_fails_its_entity_alone(tmp_path: Path) -> None:
    rows = [(name, row) for name in "abc" for row in plain(40)]
    source = parquet(
        tmp_path / "in" / "long.parquet", [row for _, row in rows], [name for name, _ in rows]
    )
    table = pq.read_table(source)
    texts = [str(value) for value in table["rain"].to_pylist()]
    texts[45] = "wet"
    pq.write_table(
        table.set_column(table.column_names.index("rain"), "rain", pa.array(texts)), source
    )
    prepared = series(source, tmp_path / "out", entity="gauge")

    assert ["a", "c"] == json.loads((prepared.run / "quality_summary.json").read_bytes())[
        "retained_entities"
    ]
    assert "row 46, column 'rain' is 'wet'" in report(prepared, "b")["failure_reason"]


def test_years_of_targets_are_asked_for_and_not_years_of_calendar(tmp_path: Path) -> None:
    """T14: a basin with one target in a hundred days passed, because its first and last days are years apart."""
    sparse = dict.fromkeys(day for day in range(1500) if day % 100)
    prepared = series(
        write_basins(tmp_path / "in", {"sparse": plain(1500, flow=sparse), "dense": plain(1500)}),
        tmp_path / "out",
        min_train_years=2,
    )

    assert ["dense"] == list(stored(prepared)["train"])
    reason = "9 observed targets in train (of 15), 730 are required by min_train_years 2"
    assert reason == report(prepared, "sparse")["failure_reason"]


def test_there_is_no_success_before_everything_is_there(tmp_path: Path) -> None:
    """T15: the mark was touched in a directory that other processes wrote to; and no basin at all was a success."""
    source = write_basins(tmp_path / "in", {"a": plain(9)})

    with pytest.raises(
        headrace.InputError, match="no entity of 1 passes: a: 5 observed targets in train"
    ):
        series(source, tmp_path / "out", min_train_years=1)
    assert not list((tmp_path / "out").glob("runs/*/_SUCCESS"))
    assert not list((tmp_path / "out").glob("runs/*/manifest.json"))


def test_null_and_nan_are_the_same_absence(tmp_path: Path) -> None:
    nulls = plain(60, flow={5: None, 20: None}, rain={0: None, 30: None})
    nans = plain(60, flow={5: math.nan, 20: math.nan}, rain={0: math.nan, 30: math.nan})
    first = series(write_basins(tmp_path / "nulls", {"a": nulls}), tmp_path / "one")
    second = series(write_basins(tmp_path / "nans", {"a": nans}), tmp_path / "two")

    assert stored(first) == stored(second)
    assert files_of(first)["store/part-00000.arrow"] == files_of(second)["store/part-00000.arrow"]


@pytest.mark.slow
def test_rows_that_may_be_dropped_are_counted(tmp_path: Path) -> None:
    rows = [
        *plain(50),
        Row(START + 4 * DAY, 99.0, 1.0, 1.0),
        Row(datetime(2001, 1, 5, 7), 1.0, 1.0, 1.0),
    ]
    source = write_basins(tmp_path / "in", {"a": rows})
    prepared = series(source, tmp_path / "out", bad_rows="drop")

    dropped = prepared.manifest.dropped
    assert (1, 1) == (dropped["duplicate_time"], dropped["off_grid"])
    assert [] == headrace.verify(tmp_path / "out").problems
    scaled = np.array([stored(prepared)["train"]["a"].values[4][0]])
    flow = load_pipelines(tmp_path / "out").inverse_transform(scaled, entity="a")
    assert [pytest.approx(4.0, rel=1e-5)] == flow.tolist()  # the first row of that time


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"train_ratio": 0.9}, "give at most 1"),
        ({"train_ratio": 0.0}, "train_ratio is 0.0"),
        ({"min_train_years": -1}, "min_train_years is -1"),
        ({"max_imputation_gap_size": -1}, "max_imputation_gap_size is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"future_features": ["rain", "flow"]}, "target 'flow' is also a feature"),
        ({"future_features": ["rain", "rain"]}, "more than one role"),
        ({"future_features": ["date"]}, "more than one role"),
        ({"frequency": "often"}, "is not a frequency; give"),
        ({"static": "x.csv"}, "static and static_features go together"),
        ({"static": "x.csv", "static_features": ["area"]}, "static_entity is missing"),
        ({"entities": []}, "entities is empty"),
        ({"dialect": {"time_format": "dmy"}}, "time_format is 'dmy'"),
        ({"sourcce": "x"}, "did you mean 'source'"),
        ({"preprocessing_configs": {"features": {"strategy": "per_group", "pipeline": ["StandardScaler"], "columns": ["rain"]}}}, "cold are in no pipeline"),
        ({"preprocessing_configs": {"features": {"strategy": "per_group", "pipeline": ["StandardScaler"], "columns": ["rain", "cold", "flow"]}}}, "target 'flow' is among the columns"),
        ({"preprocessing_configs": {"target": {"strategy": "per_group", "pipeline": ["StandardScaler"], "fit_on_n_entities": 3}}}, "fit_on_n_entities"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_before_any_work(
    tmp_path: Path, asked: dict, message: str
) -> None:
    with pytest.raises(headrace.SettingsError) as refused:
        settings(tmp_path, **asked)

    assert message in str(refused.value)


@pytest.mark.slow
def test_names_of_any_kind_are_entities(tmp_path: Path) -> None:
    names = ["a/b", "..", "_x", ".hidden", "ä ö", "100%", "a", "A" * 300, "007"]
    rows = [(name, row) for place, name in enumerate(names) for row in plain(40)]
    source = parquet(
        tmp_path / "in" / "long.parquet", [row for _, row in rows], [name for name, _ in rows]
    )
    prepared = series(source, tmp_path / "out", entity="gauge")

    assert (
        sorted(names)
        == sorted(stored(prepared)["train"])
        == sorted(readable_rows(prepared)["test"])
    )
    assert [] == headrace.verify(tmp_path / "out").problems
