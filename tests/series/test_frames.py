"""Functions of tables give what a run gives, before it scales."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import headrace
from headrace.errors import InputError
from headrace.frames import clean, split, windows_of_frame
from headrace.series.windows.windows import open_windows
from raised import raised

NAMES = ("a", "b", "c")
PLAIN = {"strategy": "per_group", "pipeline": []}


def raw() -> pl.DataFrame:
    rng = np.random.default_rng(5)
    tables = []
    for number, name in enumerate(NAMES):
        days = 300 + 20 * number
        values = {
            each: np.where(rng.random(days) < 0.05, np.nan, rng.normal(size=days))
            for each in ("rain", "q")
        }
        first = np.datetime64("2001-01-01") + 10 * number
        table = pl.DataFrame({"gauge": name, "date": first + np.arange(days), **values})
        tables.append(table.filter(pl.int_range(pl.len()) % 41 != 7))
    return pl.concat(tables).sample(fraction=1, shuffle=True, seed=1)


def settings(**more: Any) -> headrace.Series:
    asked = {
        "source": "unused",
        "entity": "gauge",
        "target": "q",
        "future_features": ["rain"],
        "min_train_years": 0.1,
    }
    return headrace.Series(**asked | more)


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return raw()


@pytest.fixture(scope="module")
def made(frame: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("run")
    frame.write_parquet(where / "rows.parquet")
    asked = settings(
        source=where / "rows.parquet", preprocessing_configs={"features": PLAIN, "target": PLAIN}
    )
    return headrace.prepare(asked, where / "out").out


def test_a_table_without_rows_is_told(frame: pl.DataFrame) -> None:
    for function in (clean, split, windows_of_frame):
        with raised(InputError, remedy="give those of at least one"):
            function(frame[:0], settings())


def test_rows_of_no_entity_and_of_others_are_left_out_as_in_a_run(frame: pl.DataFrame) -> None:
    more = pl.concat([frame, frame[:9].with_columns(gauge=pl.lit(None, pl.String))])
    with raised(InputError, column="gauge"):
        clean(more, settings(entities=["a"]))

    assert clean(frame, settings()).equals(clean(more, settings(bad_rows="drop")))
    few = clean(more, settings(bad_rows="drop", entities=["a", "c"]))
    assert few.equals(clean(frame.filter(pl.col("gauge") != "b"), settings()))


def test_tables_are_those_of_a_run(frame: pl.DataFrame, made: Path) -> None:
    parts = split(frame, settings())
    stored = []
    for name in ("train", "val", "test"):
        run = pl.DataFrame(headrace.open(made)[name].to_arrow()).sort("gauge", "date")
        assert run.columns == parts[name].columns
        assert run["date"].equals(parts[name]["date"])
        assert run["gauge"].equals(parts[name]["gauge"])
        for column in ("q", "rain"):
            assert np.array_equal(
                run[column], parts[name][column].cast(pl.Float32).fill_null(np.nan), equal_nan=True
            )
        stored.append(run)
    whole = clean(frame, settings())
    assert pl.concat(parts.values()).sort("gauge", "date").equals(whole)
    assert len(whole) == sum(map(len, stored))


def test_windows_are_those_of_a_run(frame: pl.DataFrame, made: Path) -> None:
    shape: dict[str, Any] = {"input_length": 5, "output_length": 2, "is_autoregressive": True}
    for name in ("train", "val", "test"):
        one = windows_of_frame(split(frame, settings())[name], settings(), **shape)
        other = open_windows(made, name, **shape)
        assert len(one) == len(other)
        one_batch, other_batch = (each.batch(range(len(each))) for each in (one, other))
        for array in ("X", "y", "future", "entity", "input_end_date"):
            assert np.array_equal(one_batch[array], other_batch[array])
        assert one.entity_names([0, 2]) == ["a", "c"]


def test_windows_of_a_table_reach_other_processes(frame: pl.DataFrame) -> None:
    windows = windows_of_frame(frame, settings(), input_length=5, output_length=2)
    again = pickle.loads(pickle.dumps(windows))

    assert windows.identity == again.identity
    assert np.array_equal(windows.batch([0, 7])["X"], again.batch([0, 7])["X"])


def test_tables_come_back_as_what_they_were(frame: pl.DataFrame) -> None:
    polars, pandas, arrow = (
        clean(each, settings()) for each in (frame, frame.to_pandas(), frame.to_arrow())
    )
    assert isinstance(pandas, pd.DataFrame)
    assert (
        pl.from_pandas(pandas).with_columns(pl.col("date").cast(pl.Datetime("us"))).equals(polars)
    )
    assert pl.DataFrame(arrow).equals(polars)
    alone = frame.filter(pl.col("gauge") == "b").drop("gauge")
    again = clean(alone, settings(entity="file_name"))
    assert again.drop("entity").equals(polars.filter(pl.col("gauge") == "b").drop("gauge"))


def test_dates_and_calendars_are_those_that_are_asked_for(frame: pl.DataFrame) -> None:
    asked = settings(
        train_end="2001-05-01",
        gap="10d",
        calendar=["day_of_year"],
        trim="none",
    )
    parts = split(frame, asked)
    assert str(parts["train"]["date"].max())[:10] == "2001-04-20"
    assert len(parts["val"]) == 0
    assert parts["test"].columns[-2:] == ["day_of_year_sin", "day_of_year_cos"]
    rows = split(frame, settings(train_end="2001-05-01", folds="rolling:n=2,step=30d"))
    assert set(rows) == {"cell-00", "cell-01", "cell-02"}


def test_what_cannot_be_is_said(frame: pl.DataFrame) -> None:
    with raised(InputError, setting="min_train_years"):
        clean(frame, settings(min_train_years=2))
    with raised(InputError, column="snow"):
        clean(frame, settings(future_features=["snow"]))
    with raised(InputError, remedy="clean the table first"):
        windows_of_frame(pl.concat([frame, frame]), settings(), input_length=5, output_length=1)
    with raised(InputError, remedy="give a polars, pandas or Arrow table"):
        clean(7, settings())
