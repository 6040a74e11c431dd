"""Nothing behind a cut – values, gaps, lengths, missing rows – changes a byte before it."""

import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_sources import series

import headrace
from headrace.run.prepare import Prepared, prepare

DAYS = 100  # of every entity; all columns are observed on the first and the last
CUT, TEST_CUT = 60, 80  # where val and test begin while every target is observed
NAMES = ("q", "rain", "warm")
LOGGED = {"features": {"strategy": "per_group", "pipeline": [{"step": "FunctionTransformer", "func": "log1p"}, "StandardScaler"]}}  # fmt: skip
UNIFIED = {"features": {"strategy": "unified", "fit_on_n_basins": 2, "pipeline": ["RobustScaler"]}}
IMPUTED = {"features": {"strategy": "per_group", "pipeline": [{"step": "KNNImputer"}, {"step": "QuantileTransformer", "n_quantiles": 20}]}}  # fmt: skip


def table(seed: int = 0) -> np.ndarray:
    """Values [DAYS, 3], columns as NAMES; the target has no gap."""
    rng = np.random.default_rng(seed)
    values = rng.gamma(2.0, 3.0, (DAYS, 3))
    for column in (1, 2):
        values[rng.choice(np.arange(1, DAYS - 1), 12, replace=False), column] = np.nan
    return values


def write(directory: Path, entities: dict[str, np.ndarray], *, without_rows: dict[str, set[int]] | None = None) -> Path:
    directory.mkdir(parents=True)
    for name, values in entities.items():
        gone = (without_rows or {}).get(name, set())
        days = [day for day in range(len(values)) if day not in gone]
        frame = pl.DataFrame({"date": [str(date(2001, 1, 1) + timedelta(day)) for day in days]})
        frame = frame.with_columns(
            pl.Series(column, values[days, at]).fill_nan(None) for at, column in enumerate(NAMES)
        )
        frame.write_csv(directory / f"{name}.csv")
    areas = [f"{name},{place + 1}\n" for place, name in enumerate(sorted(entities))]
    (directory.parent / "areas.csv").write_text("id,area\n" + "".join(areas))
    return directory


def run(directory: Path, entities: dict[str, np.ndarray], *, without_rows=None, **more) -> Prepared:
    source = write(directory / "raw", entities, without_rows=without_rows)
    static = {"static": directory / "areas.csv", "static_entity": "id", "static_features": "area"}
    asked = {"frequency": "1d", "min_train_years": 0.1, **static, **more}
    return prepare(series(source, **asked), directory / "out", workers=1)


def before(prepared: Prepared, *splits: str) -> dict[str, bytes]:
    """Every byte that a run has before a cut: rows of these splits, scalers, static features, and the cut."""
    found = {}
    for split in splits:
        for path in sorted((prepared.run / "processed_time_series" / split).iterdir()):
            found[f"{split}/{path.name}"] = path.read_bytes()
    for name in ("fitted_pipelines.json", "processed_static_features.parquet"):
        found[name] = (prepared.run / name).read_bytes()
    places = ["val_row", "test_row"][: len(splits)]
    found["cuts"] = repr(pq.read_table(prepared.run / "entities.parquet", columns=["entity", *places]).to_pylist()).encode()  # fmt: skip
    return found


@pytest.mark.parametrize(("cut", "splits"), [(CUT, ("train",)), (TEST_CUT, ("train", "val"))])
def test_a_gap_through_a_cut_is_left_whether_it_turns_out_short_or_long(tmp_path: Path, cut: int, splits) -> None:
    runs = []
    for length in (1, 2, 3, 10):
        values = table()
        values[cut - 3 : cut + 1, 1] = [4.0, 5.0, 6.0, 7.0]
        values[cut - 2 : cut - 2 + length, 1] = np.nan
        values[cut - 2 + length, 1] = 3.0
        values[cut - 2 : cut, 1] = np.nan  # the two steps before the cut are the same in all
        runs.append(run(tmp_path / str(length), {"a": values, "b": table(1)}))

    first, *others = (before(each, *splits) for each in runs)
    for other in others:
        assert first == other
    info = json.loads((runs[1].run / "quality_reports/a.json").read_bytes())["imputation_info"]["rain"]
    assert 1 == info["cut_gaps_count"]


def test_a_gap_that_begins_at_the_cut_is_filled_from_before_it(tmp_path: Path) -> None:
    values = table()
    values[CUT - 1 : CUT + 3, 1] = [4.0, np.nan, np.nan, 7.0]
    prepared = run(tmp_path, {"a": values}, preprocessing_configs={"features": {"strategy": "per_group", "pipeline": []}})  # fmt: skip

    rain = pl.read_parquet(prepared.run / "processed_time_series/val/a.parquet")["rain"]
    assert [4.0, 4.0, 7.0] == rain[:3].to_list()


@st.composite
def later(draw) -> dict:
    """Changes behind a cut that leave the number of targets and the last row as they are."""
    seed = draw(st.integers(0, 2**32 - 1))
    return {
        "seed": seed,
        "values": draw(st.booleans()),
        "missing": draw(st.sampled_from([None, 0.0, 0.2, 0.9])),
        "lengths": draw(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 20)), max_size=3)),
        "beginning": draw(st.integers(0, 8)),
        "rows": draw(st.booleans()),
    }


def changed(values: np.ndarray, cut: int, how: dict) -> np.ndarray:
    rng = np.random.default_rng(how["seed"])
    made = values.copy()
    behind = made[cut:-1]
    if how["values"]:
        behind[:] = np.where(np.isnan(behind), np.nan, rng.normal(0, 1e4, behind.shape))
        made[-1] = rng.normal(0, 1e4, 3)
    if how["missing"] is not None:
        fresh = rng.normal(5, 2, behind[:, 1:].shape)
        gone = rng.random(fresh.shape) < how["missing"]
        behind[:, 1:] = np.where(gone, np.nan, np.where(np.isnan(behind[:, 1:]), fresh, behind[:, 1:]))
    for begin, length in how["lengths"]:
        behind[begin : begin + length, 1] = np.nan
    behind[: how["beginning"], 2] = np.nan
    return made


@pytest.mark.parametrize("configs", [{}, LOGGED, UNIFIED, IMPUTED], ids=["usual", "logged", "unified", "imputed"])
@given(seed=st.integers(0, 1000), cut_of=st.sampled_from(["val", "test"]), open_gap=st.integers(0, 4), how=later())
@settings(max_examples=6)
def test_nothing_behind_a_cut_changes_a_byte_before_it(
    tmp_path_factory, configs: dict, seed: int, cut_of: str, open_gap: int, how: dict
) -> None:
    cut, splits = (CUT, ("train",)) if cut_of == "val" else (TEST_CUT, ("train", "val"))
    entities = {"a": table(seed), "b": table(seed + 1), "c": table(seed + 2)}
    for values in entities.values():
        values[cut - open_gap : cut, 1] = np.nan
    others = {name: changed(values, cut, how) for name, values in entities.items()}
    # whole rows that miss every value may stand in the file or not
    gone = {name: {day for day in range(cut, DAYS - 1) if how["rows"] and np.isnan(v[day]).all()} for name, v in others.items()}  # fmt: skip
    directory = tmp_path_factory.mktemp("behind")

    one = run(directory / "one", entities, preprocessing_configs=configs, max_imputation_gap_size=3)
    two = run(directory / "two", others, preprocessing_configs=configs, max_imputation_gap_size=3, without_rows=gone)

    assert before(one, *splits) == before(two, *splits)


def test_a_value_that_a_step_cannot_take_fails_only_before_the_cut(tmp_path: Path) -> None:
    honest, early, late = table(0), table(1), table(2)
    early[10, 1], late[70, 1], late[90, 1] = -5.0, -5.0, -7.0
    events = []
    source = write(tmp_path / "raw", {"a": honest, "early": early, "late": late})
    asked = series(source, frequency="1d", min_train_years=0.1, preprocessing_configs=LOGGED)
    prepared = prepare(asked, tmp_path / "out", workers=1, on_event=events.append)

    summary = json.loads((prepared.run / "quality_summary.json").read_bytes())
    report = json.loads((prepared.run / "quality_reports/late.json").read_bytes())
    told = [each.text for each in events if type(each).__name__ == "Note"]
    assert ["a", "late"] == summary["retained_basins"]
    assert "cannot take" in summary["excluded_basins"]["early"]
    assert 2 == report["imputation_info"]["rain"]["unusable_values_count"]
    assert {"rain": 2} == prepared.manifest.facts["unusable_values"]
    assert any("2 values of rain" in each and "missing" in each for each in told)
    assert [] == headrace.verify(tmp_path / "out").problems


def test_targets_that_a_step_cannot_take_are_no_longer_counted(tmp_path: Path) -> None:
    values = table()
    values[70, 0], values[90, 0] = -5.0, -7.0
    logged = {"target": {"strategy": "per_group", "pipeline": [{"step": "Log", "offset": 0.1}, "StandardScaler"]}}
    prepared = run(tmp_path, {"a": values}, preprocessing_configs=logged)

    (entity,) = pq.read_table(prepared.run / "entities.parquet").to_pylist()
    assert (60, 19, 19) == (entity["train_targets"], entity["val_targets"], entity["test_targets"])
    assert [] == headrace.verify(tmp_path / "out").problems
