"""What is known ahead, what is not, the calendar, and rows before the first and behind the last target."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from series_sources import frame_of, run_of, series

import headrace
import headrace.windows
from headrace.errors import SettingsError
from headrace.run.prepare import Prepared
from raised import raised

PLAIN = {"strategy": "per_group", "pipeline": []}
UNSCALED = {"preprocessing_configs": {"features": PLAIN, "target": PLAIN}}
SHAPE = {"input_length": 12, "output_length": 4}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rain is known throughout, the temperature up to day 820, the target of days 100 to 800."""
    directory = tmp_path_factory.mktemp("raw")
    for name in ("a", "b"):
        day = pl.int_range(pl.len())
        known = (
            pl.when(day.is_between(100, 800)).then(pl.col("q")),
            pl.when(day <= 820).then(pl.col("warm")),
        )
        frame_of(name).with_columns(*known).write_csv(directory / f"{name}.csv")
    return directory


def windows(made: Prepared, split: str, **options: Any) -> headrace.windows.Windows:
    return headrace.windows.open(made.out, split, **{**SHAPE, **options}).windows


def batch(found: Any) -> dict[str, Any]:
    return dict(found.batch(range(len(found))))


@pytest.mark.slow
def test_only_what_is_known_ahead_is_given_and_needed(source: Path, tmp_path: Path) -> None:
    both = run_of(source, tmp_path / "both", trim="none", **UNSCALED)
    ahead = run_of(
        source,
        tmp_path / "ahead",
        past_features=["warm"],
        future_features=["rain"],
        trim="none",
        **UNSCALED,
    )
    one, other = windows(both, "test"), windows(ahead, "test")

    assert (one.future_names, other.future_names) == (("rain", "warm"), ("rain",))
    assert (one.input_names, other.input_names) == (("rain", "warm"), ("warm", "rain"))
    assert np.array_equal(
        batch(other)["future"][..., 0], other.batch(range(len(other)))["future"][..., 0]
    )
    beyond = {"targets": "none", "history": "preceding"}
    last = [
        batch(windows(made, "test", **beyond))["input_end_date"].max() for made in (both, ahead)
    ]
    first = np.datetime64("2001-01-01")
    assert last == [
        first + 816,
        first + 820,
    ]  # both need the temperature of their inputs, one of its horizon too
    assert headrace.verify(ahead.out).problems == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trim", "first", "last"), [("all", 100, 800), ("target", 100, 800), ("none", 0, 899)]
)
def test_a_series_begins_and_ends_where_it_is_asked_to(
    source: Path, tmp_path: Path, trim: str, first: int, last: int
) -> None:
    made = run_of(source, tmp_path / "out", trim=trim, frequency="1d")
    manifest = made.manifest
    stored = pl.read_parquet(made.run / "entities.parquet")
    raw = (
        pl.read_csv(source / "a.csv")
        .with_row_index()
        .drop_nulls("q" if trim == "target" else ["q", "warm"])
    )
    if trim != "none":
        first, last = raw["index"].min(), raw["index"].max()
    assert stored["rows"][0] == last - first + 1
    assert manifest.dropped["trimmed"] == manifest.source["rows"] - sum(
        manifest.metadata["source_rows"].values()
    )
    assert (manifest.dropped["trimmed"] == 0) == (trim == "none")
    assert headrace.verify(made.out).problems == []


@pytest.mark.slow
def test_warm_up_rows_are_inputs_and_change_no_cut(source: Path, tmp_path: Path) -> None:
    usual, warm = (
        run_of(source, tmp_path / trim, trim=trim, **UNSCALED) for trim in ("all", "none")
    )
    metadata = [pl.read_parquet(made.run / "entities.parquet") for made in (usual, warm)]
    assert metadata[0]["train_targets"].equals(metadata[1]["train_targets"])
    one, other = (batch(windows(made, "train")) for made in (usual, warm))
    assert other["input_end_date"].min() < one["input_end_date"].min()
    keys = [
        {*zip(each["entity"].tolist(), each["input_end_date"].tolist(), strict=True)}
        for each in (one, other)
    ]
    assert keys[0] < keys[1]


@pytest.mark.slow
def test_the_calendar_is_that_of_every_row(source: Path, tmp_path: Path) -> None:
    parts = ["day_of_year", "day_of_week", "hour_of_day", "day_of_month"]
    made = run_of(
        source, tmp_path / "out", calendar=parts, past_features=["warm"], future_features=["rain"]
    )
    assert headrace.verify(made.out).problems == []
    rows = pl.DataFrame(headrace.open(made.out)["test"].to_arrow())
    day, leap = (
        pl.col("date").dt.ordinal_day() - 1,
        pl.when(pl.col("date").dt.is_leap_year()).then(366).otherwise(365),
    )
    month = pl.col("date").dt.month_end().dt.day()
    shares = {
        "day_of_year": day / leap,
        "day_of_week": (pl.col("date").dt.weekday() - 1) / 7,
        "hour_of_day": pl.lit(0.0),
        "day_of_month": (pl.col("date").dt.day() - 1) / month,
    }
    for name, share in shares.items():
        angle = rows.select((share * 2 * np.pi).alias("angle"))["angle"].to_numpy()
        assert np.allclose(rows[f"{name}_sin"].to_numpy(), np.sin(angle), atol=1e-6)
        assert np.allclose(rows[f"{name}_cos"].to_numpy(), np.cos(angle), atol=1e-6)
    found = windows(made, "test")
    assert found.input_names[:2] == ("warm", "rain")
    assert found.future_names == (
        "rain",
        *(f"{part}_{wave}" for part in parts for wave in ("sin", "cos")),
    )


def test_roles_that_cannot_be_are_refused(source: Path) -> None:
    for wrong, told in (
        (
            {"past_features": ["rain"]},
            "past_features and future_features both have 'rain'",
        ),
        ({"calendar": ["minute"]}, "calendar has 'minute'; give some of hour_of_day"),
        ({"past_features": ["q"]}, "target 'q' is also a feature"),
        ({"calendar": ["day_of_year", "day_of_year"]}, "one exists already"),
    ):
        with pytest.raises(SettingsError, match=told):
            series(source, **wrong)


@pytest.mark.slow
def test_several_targets_are_predicted_together(source: Path, tmp_path: Path) -> None:
    """Windows of two targets are those of each alone where both are observed; forecasts come back in both units."""
    asked = {"future_features": ["rain"], "max_imputation_gap_size": 0, "trim": "none"}
    both = run_of(source, tmp_path / "both", target=["q", "warm"], **asked)
    alone = {name: run_of(source, tmp_path / name, target=name, **asked) for name in ("q", "warm")}
    assert headrace.verify(both.out).problems == []
    found, single = (
        windows(both, "all"),
        {name: windows(made, "all") for name, made in alone.items()},
    )
    keys = {
        name: {
            key: at
            for at, key in enumerate(
                zip(*(own[k].tolist() for k in ("entity", "input_end_date")), strict=True)
            )
        }
        for name, own in {
            "both": batch(found),
            **{name: batch(each) for name, each in single.items()},
        }.items()
    }
    assert keys["both"].keys() == keys["q"].keys() & keys["warm"].keys()
    one = batch(found)
    assert one["y"].shape == (len(found), 4, 2)
    assert one["X"].shape[2] == 1
    assert windows(both, "all", is_autoregressive=True).input_names == ("q", "warm", "rain")
    some = batch(windows(both, "all", targets="any"))
    assert some["y_observed"].shape == some["y"].shape
    written = headrace.windows.write_forecasts(tmp_path / "f.parquet", found, [(one, one["y"])])
    told = pl.read_parquet(tmp_path / "f.parquet")
    assert written == len(found) * 8
    for at, (name, each) in enumerate(single.items()):
        places = [keys[name][key] for key in keys["both"]]
        own = {key: values[places] for key, values in batch(each).items()}
        if (
            name == "q"
        ):  # both are cut by the first target, so only its scaler is that of the other run
            assert np.array_equal(one["y"][..., at], own["y"])
        headrace.windows.write_forecasts(tmp_path / f"{name}.parquet", each, [(own, own["y"])])
        alone_told = pl.read_parquet(tmp_path / f"{name}.parquet")
        mine = told.filter(pl.col("target") == name).drop("target")
        assert mine.drop("value").equals(alone_told.drop("value"))
        assert np.allclose(mine["value"], alone_told["value"], rtol=1e-5, atol=1e-5)
    with raised(SettingsError, setting="forecasts"):
        headrace.windows.write_forecasts(tmp_path / "g.parquet", found, [(one, one["y"][..., 0])])
    new = headrace.prepare(
        headrace.Series(source=source, pipelines_from=both.out), tmp_path / "new"
    )
    assert headrace.verify(new.out).problems == []
    assert batch(windows(new, "test", targets="any"))["y"].shape[1:] == (4, 2)


@pytest.mark.parametrize("entity", ["file_name", "gauge"])
def test_categories_that_change_in_time_are_places_in_their_list(
    source: Path, tmp_path: Path, entity: str
) -> None:
    kinds = ["storm", "dry", "rain"]
    table = pl.concat(
        pl.read_csv(source / f"{name}.csv").with_columns(
            gauge=pl.lit(name),
            kind=pl.Series([kinds[day % 3] if day % 50 else None for day in range(900)]),
        )
        for name in ("a", "b")
    )
    (tmp_path / "in").mkdir()
    for (name,), part in table.group_by("gauge") if entity == "file_name" else [(("all",), table)]:
        part.with_columns(pl.col("kind").cast(pl.Categorical)).write_parquet(
            tmp_path / "in" / f"{name}.parquet"
        )
    asked = {
        "future_features": ["kind"],
        "categories": {"kind": kinds},
        "dialect": {"null_values": ["0"]},
        "entity": entity,
    }
    made = run_of(
        tmp_path / "in", tmp_path / "out", max_imputation_gap_size=0, trim="none", **asked
    )
    assert headrace.verify(made.out).problems == []
    rows = pl.concat(
        pl.DataFrame(headrace.open(made.out)[split].to_arrow())
        for split in ("train", "val", "test")
    )
    key = "entity" if entity == "file_name" else entity
    both = rows.join(
        table.with_columns(pl.col("date").str.to_datetime(time_unit="us")),
        left_on=[key, "date"],
        right_on=["gauge", "date"],
    )
    assert len(both) == 1800
    expected = both["kind_right"].replace_strict(
        kinds, [1.0, 2.0, 3.0], default=np.nan, return_dtype=pl.Float32
    )
    assert np.array_equal(both["kind"], expected.fill_null(np.nan), equal_nan=True)
    assert windows(made, "test").future_names == ("kind",)
    with pytest.raises(
        headrace.InputError, match="column 'kind' is 'rain': none of its categories"
    ):
        run_of(
            tmp_path / "in",
            tmp_path / "few",
            frequency="1d",
            **asked | {"categories": {"kind": kinds[:2]}},
        )
    with raised(SettingsError, setting="categories"):
        series(source, categories={"snow": ["a"]})
    for missing in ("NA", ""):
        with raised(SettingsError, setting="categories", remedy="take it out"):
            run_of(
                tmp_path / "in",
                tmp_path / "few",
                frequency="1d",
                **asked
                | {"categories": {"kind": ["dry", missing]}, "dialect": {"null_values": "NA"}},
            )
    assert series(
        source,
        future_features="kind",
        categories={"kind": ["dry", "NA"]},
        dialect={"null_values": ["-"]},
    )
