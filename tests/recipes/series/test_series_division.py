"""Entities that are held out, rows too close before cuts, and folds that roll."""

from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from series_sources import frame_of, run_of, series

import headrace
import headrace.windows
from headrace.errors import InputError, SettingsError
from headrace.lightning import SeriesDataModule
from headrace.run.prepare import Prepared
from headrace.series.windows import fold_scaling
from raised import raised

UNIFIED = {"strategy": "unified", "pipeline": "StandardScaler", "fit_on_n_entities": 100}
BY_ALL = {"features": UNIFIED, "target": UNIFIED}
DATES = {"train_end": "2002-03-01", "val_end": "2002-09-01"}
NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("raw")
    for place, name in enumerate(NAMES):
        frame_of(name, first=f"2000-{1 + 2 * place:02d}-01").write_csv(directory / f"{name}.csv")
    return directory


def rows_of(made: Prepared) -> pl.DataFrame:
    """Every written row with its split."""
    found = []
    for split in made.manifest.splits:
        for path in sorted((made.run / "processed_time_series" / split).glob("*.parquet")):
            found.append(pl.DataFrame(pq.read_table(path)).with_columns(split=pl.lit(split)))
    return pl.concat(found).rename({"date": "time"})


def problems(made: Prepared) -> list[str]:
    return headrace.verify(made.out).problems


def detail(made: Prepared, name: str) -> str:
    return next(each.detail for each in headrace.verify(made.out).checks if each.name == name)


def test_every_row_is_written_or_counted(source: Path, tmp_path: Path) -> None:
    """Partition, whatever divides the rows."""
    ways: dict[str, Any] = {
        "gap": {"gap": "20d", **DATES},
        "shares": {"gap": "33d"},
        "held": {
            "test_entities": ["b"],
            "val_entities": "c",
            "preprocessing_configs": BY_ALL,
            **DATES,
        },
        "folds": {
            "folds": "rolling:n=3,step=90d,window=200d",
            "train_end": "2002-01-01",
            "gap": "5d",
        },
    }
    for name, way in ways.items():
        made = run_of(source, tmp_path / name, min_train_years=0.1, **way)
        manifest = made.manifest
        written = sum(manifest.metadata["source_rows"].values())

        assert manifest.source["rows"] == written + sum(manifest.dropped.values())
        assert manifest.dropped["in_no_split"] > 0
        assert problems(made) == []


@pytest.mark.slow
def test_held_out_entities_are_alone_and_in_no_fit(source: Path, tmp_path: Path) -> None:
    (tmp_path / "tests.txt").write_text("d\ne\n")
    table = {
        "gauge": NAMES,
        "area": [1.0, 2.0, 50.0, 70.0, 1.5],
        "rock": ["hard", "soft", "soft", "hard", "hard"],
    }
    pl.DataFrame(table).write_csv(tmp_path / "static.csv")
    static = [
        {"strategy": "unified", "columns": ["area"], "pipeline": "MinMaxScaler"},
        {"strategy": "unified", "columns": ["rock"], "pipeline": "OneHotEncoder"},
    ]
    asked = {
        **{
            "preprocessing_configs": {**BY_ALL, "static_features": static},
            **DATES,
        },
        **{
            "static": tmp_path / "static.csv",
            "static_entity": "gauge",
            "static_features": ["area", "rock"],
        },
    }
    held = run_of(
        source,
        tmp_path / "held",
        val_entities="c",
        test_entities=f"@{tmp_path / 'tests.txt'}",
        **asked,
    )
    rows = rows_of(held)
    sides = {split: set(part["gauge"]) for (split,), part in rows.group_by("split")}

    assert sides == {"train": {"a", "b"}, "val": {"c"}, "test": {"d", "e"}}
    ends = {
        split: (part["time"].min(), part["time"].max()) for (split,), part in rows.group_by("split")
    }
    assert ends["train"][1] < datetime(2002, 3, 1) <= ends["val"][0]
    assert ends["val"][1] < datetime(2002, 9, 1) <= ends["test"][0]
    assert problems(held) == []
    assert "2 of train, 1 of val, 2 of test" in detail(held, "held-out entities")
    (tmp_path / "tests.txt").unlink()
    assert problems(held) == []  # the run keeps what the file said
    without = run_of(source, tmp_path / "without", entities=["a", "b"], **asked)
    assert (held.run / "fitted_pipelines.json").read_bytes() == (
        without.run / "fitted_pipelines.json"
    ).read_bytes()
    areas = pl.read_parquet(held.run / "processed_static_features.parquet")["area"].to_list()
    assert areas == [0, 1, 49, 69, 0.5]

    shares = run_of(source, tmp_path / "shares", test_entities=["d"], preprocessing_configs=BY_ALL)
    rows = rows_of(shares)
    whole = run_of(source, tmp_path / "whole", preprocessing_configs=BY_ALL)
    assert set(rows.filter(pl.col("split") == "test")["entity"]) == {"d"}
    assert len(rows.filter(pl.col("entity") == "d")) == len(
        rows_of(whole).filter(pl.col("entity") == "d")
    )


@pytest.mark.slow
def test_rows_close_before_a_cut_are_in_no_split_and_may_be_inputs(
    source: Path, tmp_path: Path
) -> None:
    made = run_of(source, tmp_path / "out", gap="20d", **DATES)
    rows = rows_of(made)
    last = {split: part["time"].max() for (split,), part in rows.group_by("split")}

    assert (
        last["train"]
        < datetime(2002, 3, 1) - timedelta(days=20)
        <= last["train"] + timedelta(days=1)
    )
    assert (
        last["val"] < datetime(2002, 9, 1) - timedelta(days=20) <= last["val"] + timedelta(days=1)
    )
    windows = headrace.windows.open(
        made.out, "val", input_length=15, output_length=2, history="preceding"
    ).windows
    ends = windows.batch(range(len(windows)))["input_end_date"]
    assert ends.min() == np.datetime64("2002-02-28")
    shares = run_of(source, tmp_path / "shares", gap="20d")
    assert "more than 20 days apart" in detail(shares, "cuts")


@pytest.mark.slow
def test_folds_roll_over_one_store(source: Path, tmp_path: Path) -> None:
    """Each fold is what a prepared split at its cut is, but for the scalers, which are of fold 0."""
    plain = {"strategy": "per_group", "pipeline": []}
    asked = {
        "preprocessing_configs": {"features": plain, "target": plain},
        "max_imputation_gap_size": 0,
    }
    made = run_of(
        source, tmp_path / "out", folds=headrace.Rolling(n=3, step="60d"), **DATES, **asked
    )
    dataset = headrace.open(made.out)
    assert problems(made) == []
    assert "in 3 folds" in detail(made, "cuts")
    for number in range(3):
        cuts = {
            name: date.fromisoformat(cut) + timedelta(days=60 * number)
            for name, cut in DATES.items()
        }
        single = run_of(
            source,
            tmp_path / f"single{number}",
            **{name: str(cut) for name, cut in cuts.items()},
            **asked,
        )
        fold = dataset.fold(number)
        for split in ("train", "val", "test"):
            one = pl.DataFrame(fold[split].to_arrow()).sort("entity", "date")
            other = pl.DataFrame(headrace.open(single.out)[split].to_arrow()).sort("entity", "date")
            if split == "test":
                other = other.filter(pl.col("date") < cuts["val_end"] + timedelta(days=60))
            assert one.equals(other, null_equal=True)
            shape = {"input_length": 10, "output_length": 3}
            here = headrace.windows.open(made.out, split, fold=number, **shape).windows
            there = headrace.windows.open(single.out, split, **shape).windows
            if split != "test":
                assert len(here) == len(there)
                one, other = (each.batch(range(len(each))) for each in (here, there))
                assert all(np.array_equal(one[name], other[name]) for name in ("X", "y", "entity"))
    with raised(SettingsError, setting="fold", remedy="choose one"):
        headrace.windows.open(made.out, "train", input_length=10, output_length=3)
    with raised(SettingsError, setting="fold", value=3, remedy="0 to 2"):
        headrace.windows.open(made.out, "train", input_length=10, output_length=3, fold=3)


SCALERS = [
    {"strategy": "per_group", "pipeline": ["StandardScaler"]},
    {"strategy": "per_group", "pipeline": ["RobustScaler", "MinMaxScaler"]},
    {"strategy": "unified", "pipeline": ["MaxAbsScaler", "StandardScaler"], "fit_on_n_entities": 3},
]


@pytest.mark.slow
@pytest.mark.parametrize("scaler", SCALERS, ids=lambda scaler: scaler["pipeline"][0])
def test_a_fold_has_its_own_scalers(source: Path, tmp_path: Path, scaler: dict[str, Any]) -> None:
    """Its windows are those of a run that is prepared at its cut, and so is what it forecasts."""
    asked = {"preprocessing_configs": {"features": scaler, "target": scaler}}
    folds = headrace.Rolling(n=2, step="90d")
    made = run_of(source, tmp_path / "out", folds=folds, **DATES, **asked)
    later = {name: str(date.fromisoformat(day) + timedelta(days=90)) for name, day in DATES.items()}
    single = run_of(source, tmp_path / "single", **later, **asked)
    shape = {"input_length": 10, "output_length": 3, "is_autoregressive": True}
    there = headrace.windows.open_windows(single.out, "val", **shape)
    here = headrace.windows.open_windows(made.out, "val", fold=1, scalers="own_fold", **shape)
    first = headrace.windows.open_windows(made.out, "val", fold=1, **shape)
    numbers = range(len(there))
    said = here.batch(numbers), there.batch(numbers)
    for place, windows in enumerate((here, there)):
        batch = windows.batch(numbers)
        path = tmp_path / f"{place}.parquet"
        headrace.windows.write_forecasts(path, windows, [(batch, batch["y"])])
    module = SeriesDataModule(
        made.out, batch_size=8, options={"fold": 1, "scalers": "own_fold"}, **shape
    )
    units = module.inverse_transform(said[0]["y"], said[0]["entity"])
    tables = [pl.read_parquet(tmp_path / f"{place}.parquet") for place in (0, 1)]

    assert len(here) == len(there) > 100
    for name in ("X", "y", "future"):
        np.testing.assert_allclose(said[1][name], said[0][name], atol=2e-5)
    assert not np.allclose(said[1]["X"], first.batch(numbers)["X"], atol=1e-3)
    np.testing.assert_allclose(tables[1]["value"], tables[0]["value"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tables[0]["value"], units.ravel(), rtol=1e-12)
    assert problems(made) == []
    assert "in 2 folds" in detail(made, "scalers of folds are of their train rows")


def test_scalers_of_a_fold_that_saw_its_later_rows_are_found(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folds = headrace.Rolling(n=2, step="90d")
    made = run_of(source, tmp_path / "out", folds=folds, **DATES)
    honest = fold_scaling._TrainRows.of

    def of_all_rows(store: Any, fold: int, columns: Any) -> Any:
        rows = honest(store, fold, columns)
        ends = np.where(rows.ends > rows.starts, store.entities.first_row + store.entities.rows, 0)
        return replace(rows, ends=np.maximum(rows.ends, ends))

    monkeypatch.setattr(fold_scaling._TrainRows, "of", of_all_rows)
    (problem,) = problems(made)
    assert "windows of fold 0 with scalers of their own" in problem


def test_own_scalers_are_those_of_entities_with_rows_in_the_fold(tmp_path: Path) -> None:
    directory = tmp_path / "raw"
    directory.mkdir()
    for name, days in (("a", 900), ("b", 600), ("c", 900)):
        frame_of(name, days, first="2000-03-01").write_csv(directory / f"{name}.csv")
    folds = headrace.Rolling(n=2, step="90d", window="200d")
    asked = {"preprocessing_configs": {"features": SCALERS[0], "target": SCALERS[0]}}
    made = run_of(directory, tmp_path / "out", folds=folds, min_train_years=0.1, **DATES, **asked)
    shape = {"input_length": 10, "output_length": 3, "fold": 1}
    for split in ("train", "val"):
        here, first = (
            headrace.windows.open_windows(made.out, split, scalers=scalers, **shape)
            for scalers in ("own_fold", "first_fold")
        )
        assert [True, False, True] == (here.per_entity > 0).tolist()
        assert here.per_entity.tolist() == first.per_entity.tolist()


def test_a_fold_has_no_own_scalers_of_steps_that_are_not_affine(
    source: Path, tmp_path: Path
) -> None:
    log = {"strategy": "per_group", "pipeline": [{"step": "Log", "offset": 1.0}]}
    asked = {"preprocessing_configs": {"features": log, "target": log}}
    made = run_of(source, tmp_path / "out", folds="rolling:n=2,step=90d", **DATES, **asked)
    shape = {"input_length": 10, "output_length": 3}
    with raised(SettingsError, setting="scalers", value="own_fold", remedy="a run for each cut"):
        headrace.windows.open_windows(made.out, "val", fold=1, scalers="own_fold", **shape)
    with raised(SettingsError, setting="scalers"):
        headrace.windows.open_windows(made.out, "all", scalers="own_fold", **shape)


@pytest.mark.slow
def test_folds_roll_for_held_out_entities(source: Path, tmp_path: Path) -> None:
    """Each fold is what a prepared split is whose dates are all a step later."""
    plain = {"strategy": "unified", "pipeline": [], "fit_on_n_entities": 1}
    asked = {
        **{
            "preprocessing_configs": {"features": plain, "target": plain},
            "max_imputation_gap_size": 0,
            "gap": "4d",
        },
        **{"val_entities": ["c"], "test_entities": ["d", "e"]},
    }

    def dates_after(days: int) -> dict[str, Any]:
        later = timedelta(days=days)
        return {name: str(date.fromisoformat(cut) + later) for name, cut in DATES.items()}

    made = run_of(
        source, tmp_path / "out", folds=headrace.Rolling(n=3, step="20d"), **dates_after(0), **asked
    )
    assert problems(made) == []
    assert "2 of train, 1 of val, 2 of test" in detail(made, "held-out entities")
    for number in range(3):
        single = run_of(source, tmp_path / f"single{number}", **dates_after(20 * number), **asked)
        sides = {}
        for split in ("train", "val", "test"):
            one = pl.DataFrame(headrace.open(made.out).fold(number)[split].to_arrow()).sort(
                "entity", "date"
            )
            other = pl.DataFrame(headrace.open(single.out)[split].to_arrow()).sort("entity", "date")
            if split == "test":
                last = date(2002, 9, 1) + timedelta(days=20 * (number + 1))
                other = other.filter(pl.col("date").dt.date() < last)
            assert one.equals(other, null_equal=True)
            sides[split] = set(one["entity"])
            windows = headrace.windows.open_windows(
                made.out, split, fold=number, input_length=9, output_length=2
            )
            assert (
                set(windows.entity_names(windows.batch(range(len(windows)))["entity"]))
                == sides[split]
            )
        assert sides == {"train": {"a", "b"}, "val": {"c"}, "test": {"d", "e"}}


@pytest.mark.slow
def test_a_window_of_folds_slides(source: Path, tmp_path: Path) -> None:
    made = run_of(
        source,
        tmp_path / "out",
        folds="rolling:n=3,step=90d,window=300d",
        train_end="2002-01-01",
        min_train_years=0.3,
    )
    assert problems(made) == []
    for number in range(3):
        fold = headrace.open(made.out).fold(number)
        cut = datetime(2002, 1, 1) + timedelta(days=90 * number)
        times = pl.DataFrame(fold["train"].to_arrow())["date"]
        assert cut - timedelta(days=300) == times.min()
        assert times.max() == cut - timedelta(days=1)
        assert set(fold.split_rows) == {"train", "test"}
    with raised(InputError, setting="split", value="val"):
        headrace.windows.open(made.out, "val", input_length=10, output_length=3, fold=0)


def test_what_cannot_be_is_refused(source: Path, tmp_path: Path) -> None:
    for wrong, told in (
        (
            {"test_entities": ["a"]},
            "a per_group pipeline, the default, cannot be fitted",
        ),
        ({"folds": "rolling:n=2,step=9d"}, "folds roll on from train_end, which is not given"),
        ({"folds": "group-kfold:k=2", **DATES}, "would each need other scalers"),
        ({"gap": "soon"}, "gap is 'soon'; give a number"),
        (
            {"val_entities": "a", "train_end": "2002-01-01", "preprocessing_configs": BY_ALL},
            "val_end, which is not given",
        ),
    ):
        with pytest.raises(SettingsError, match=told):
            series(source, **wrong)
    both = series(source, val_entities="a", test_entities="a", preprocessing_configs=BY_ALL)
    with raised(SettingsError, setting="test_entities", value="a"):
        headrace.prepare(both, tmp_path / "out")
    nobody = series(source, test_entities=["nobody"], preprocessing_configs=BY_ALL)
    with raised(InputError, setting="test_entities", remedy="correct the names"):
        headrace.prepare(nobody, tmp_path / "out")
