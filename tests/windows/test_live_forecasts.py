"""`headrace.windows.forecast`: the newest window of each entity, from new rows, without preparing them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
import headrace.windows
from laws import examples
from raised import raised

DAYS = 120
GAP = 3  # steps that are filled
L, H = 10, 4
START = np.datetime64("2024-01-01")
ROLES = {"past_features": ["visits", "cold"], "future_features": ["promo"]}
AS_IS = {"strategy": "unified", "pipeline": []}


def shop(seed: int, days: int = DAYS, kinds: tuple[str, ...] = ("none", "flyer")) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "day": (START + np.arange(days)).astype("datetime64[D]"),
            "sold": draw.integers(0, 40, days).astype(float),
            "visits": draw.integers(0, 90, days).astype(float),
            "cold": draw.normal(size=days),
            "promo": (np.arange(days) % 5 == 0).astype(float),
            "kind": draw.choice(kinds, days),
        }
    )


def long(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(table.with_columns(shop=pl.lit(name)) for name, table in tables.items())


def run_of(directory: Path, **changed: Any) -> Path:
    """A run of shops a, b and c, in their own units unless asked otherwise."""
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "sales.csv"
    long({name: shop(seed) for seed, name in enumerate("abc")}).write_csv(source)
    asked = {
        "source": source,
        "entity": "shop",
        "time": "day",
        "target": "sold",
        "max_imputation_gap_size": GAP,
        "preprocessing_configs": {"features": AS_IS, "target": AS_IS},
        **ROLES,
        **changed,
    }
    return headrace.prepare(headrace.Series(**asked), directory / "out").out


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("run"))


def forecast(out: Path, data: Any, **options: Any) -> headrace.windows.ForecastWindows:
    return headrace.windows.forecast(
        out, data, **{"input_length": L, "output_length": H, **options}
    )


def by_hand(
    table: dict[str, list[float]], names: list[str], origin: int, first: int, stop: int
) -> np.ndarray:
    """Values of rows [first, stop), filled by looking at each value: what the window should hold."""
    columns = []
    for name in names:
        values = list(table[name])
        known_to = len(values) if name in ROLES["future_features"] else origin + 1
        column = []
        for row in range(first, stop):
            value = values[row] if row < len(values) else float("nan")
            if np.isnan(value) and row <= origin and name != "sold":
                before = row
                while before >= 0 and np.isnan(values[before]):
                    before -= 1
                after = row
                while after < known_to and np.isnan(values[after]):
                    after += 1
                ends = min(after, origin + 1)
                if before >= 0 and min(ends, after) - before - 1 <= GAP:
                    value = values[before]
            column.append(value)
        columns.append(column)
    return np.array(columns, np.float32).T


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 99),
    newest=st.dictionaries(st.sampled_from(["visits", "cold", "sold"]), st.integers(1, 5), max_size=3),
    holes=st.lists(st.tuples(st.sampled_from(["visits", "cold"]), st.integers(60, 119), st.integers(1, 5)), max_size=3),
    ahead=st.integers(0, 6),
    is_autoregressive=st.booleans(),
    future=st.sampled_from(["known", "none"]),
)  # fmt: skip
def test_the_window_is_the_one_derived_by_hand(
    out: Path,
    seed: int,
    newest: dict,
    holes: list,
    ahead: int,
    is_autoregressive: bool,
    future: str,
) -> None:
    """Rows that only plans know come after the last ones; the newest values of some columns are late."""
    table = shop(seed, DAYS + ahead).drop("kind").to_dict(as_series=False)
    for name in ("sold", "visits", "cold"):
        for row in range(DAYS - newest.get(name, 0), DAYS + ahead):
            table[name][row] = float("nan")
    for name, row, length in holes:
        table[name][row : row + length] = [float("nan")] * len(table[name][row : row + length])
    observed = ["sold"] if is_autoregressive else ["sold", "visits", "cold"]
    origin = max(row for name in observed for row in range(DAYS) if not np.isnan(table[name][row]))
    names = (
        ["sold", "visits", "cold", "promo"] if is_autoregressive else ["visits", "cold", "promo"]
    )
    inputs = by_hand(table, names, origin, origin + 1 - L, origin + 1)
    coming = by_hand(table, ["promo"], origin, origin + 1, origin + 1 + H)
    complete = not np.isnan(inputs).any() and (future == "none" or not np.isnan(coming).any())
    frame = pl.DataFrame(table).with_columns(pl.lit("a").alias("shop"))

    if not complete:
        with raised(headrace.InputError, setting="new_data"):
            forecast(out, frame, is_autoregressive=is_autoregressive, future=future)
        return
    found = forecast(out, frame, is_autoregressive=is_autoregressive, future=future)
    batch = found.batch()

    assert (["a"], [START + origin]) == (found.entities, found.origins.astype("M8[D]").tolist())
    assert tuple(names) == found.windows.input_names
    np.testing.assert_array_equal(inputs, batch["X"][0])
    assert (future == "known") == ("future" in batch)
    if future == "known":
        np.testing.assert_array_equal(coming, batch["future"][0])


def test_a_path_and_a_table_give_the_window_that_a_prepared_run_has(tmp_path: Path) -> None:
    """And nothing is written beside them."""
    out = run_of(tmp_path / "run", preprocessing_configs={})
    new = long({name: shop(9 + seed) for seed, name in enumerate("abc")})
    new.write_parquet(tmp_path / "new.parquet")
    before = sorted(tmp_path.rglob("*"))
    found = forecast(out, tmp_path / "new.parquet", future="none")
    same = forecast(out, new, future="none")
    after = sorted(tmp_path.rglob("*"))
    again = headrace.Series(source=tmp_path / "new.parquet", pipelines_from=out)
    prepared = headrace.prepare(again, tmp_path / "new")
    windows = headrace.windows.open_windows(
        prepared.out, "test", input_length=L, output_length=H, future="none",
        targets="none",
    )  # fmt: skip
    last = np.cumsum(windows.per_entity) - 1

    assert before == after
    for name, values in windows.batch(last).items():
        np.testing.assert_array_equal(values, found.batch()[name], name)
        np.testing.assert_array_equal(values, same.batch()[name], name)


@pytest.fixture(scope="module")
def gaps_stay(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, pl.DataFrame]:
    """A run that fills nothing, one of new rows with holes, also at their end, and these rows."""
    directory = tmp_path_factory.mktemp("gaps")
    out = run_of(
        directory / "run",
        max_imputation_gap_size=0,
        future_features=["promo", "kind"],
        categories={"kind": ["none", "flyer"]},
    )
    draw = np.random.default_rng(5)
    tables = {}
    for seed, name in enumerate("abc"):
        table = shop(20 + seed)
        for column in ("sold", "visits", "cold", "kind"):
            holes = pl.Series(draw.random(DAYS) < 0.4)
            table = table.with_columns(pl.when(holes).then(None).otherwise(column).alias(column))
        tables[name] = table
    tables["a"] = tables["a"].with_columns(
        pl.when(pl.col("day") >= START + DAYS - 2).then(None).otherwise("visits").alias("visits")
    )
    new = long(tables)
    new.write_parquet(directory / "new.parquet")
    series = headrace.Series(source=directory / "new.parquet", pipelines_from=out)
    return out, headrace.prepare(series, directory / "new").out, new


@pytest.mark.parametrize("word", ["keep", "zero", "forward", "linear", "seasonal"])
def test_a_window_with_gaps_is_filled_as_in_training(
    gaps_stay: tuple[Path, Path, pl.DataFrame], word: str
) -> None:
    """And by nothing after its origin: later rows of the new data do not change it."""
    out, prepared, new = gaps_stay
    options: dict[str, Any] = {"incomplete": word, "is_autoregressive": True, "scale": "mean"}
    if word == "seasonal":
        options["season"] = 5
    origin = START + DAYS - 1
    found = forecast(out, new, origin=str(origin), future="none", **options)
    windows = headrace.windows.open_windows(
        prepared, "test", input_length=L, output_length=H, targets="none", future="none", **options
    )
    last = np.cumsum(windows.per_entity) - 1
    early = forecast(out, new, origin=str(origin - 30), **options)
    cut = pl.when(pl.col("day") > origin - 30).then(None)
    later = new.with_columns(
        cut.otherwise(column).alias(column) for column in ("sold", "visits", "cold")
    )
    kind = windows.batch(range(len(windows)))["X"][:, :, windows.input_names.index("kind")]

    for name, values in windows.batch(last).items():
        np.testing.assert_array_equal(values, found.batch()[name], name)
    for name, values in forecast(out, later, origin=str(origin - 30), **options).batch().items():
        np.testing.assert_array_equal(values, early.batch()[name], name)
    assert {0, 1, 2} >= set(np.unique(kind[~np.isnan(kind)]).tolist())
    assert not found.batch()["X_observed"].all()


@pytest.mark.parametrize("scale", ["none", "standard"])
def test_forecasts_come_back_in_the_unit_of_the_target_with_their_times(
    tmp_path: Path, scale: str
) -> None:
    scaled = {"strategy": "per_group", "pipeline": ["StandardScaler"]}
    out = run_of(tmp_path, preprocessing_configs={"target": scaled}, past_features=[])
    new = long({"a": shop(1), "b": shop(2)})
    found = forecast(out, new, is_autoregressive=True, future="none", scale=scale)
    last = found.batch()["X"][:, -H:, 0]
    table = found.table(last)
    count = headrace.windows.write_forecasts(
        tmp_path / "f.parquet", found.windows, [(found.batch(), last)]
    )

    expected = np.concatenate([shop(seed)["sold"].to_numpy()[-H:] for seed in (1, 2)])
    assert ["entity", "issue_time", "horizon", "time", "value"] == table.columns
    np.testing.assert_allclose(table["value"], expected, rtol=1e-5)
    assert START + DAYS == table["time"].min().date()
    assert table.equals(pl.read_parquet(tmp_path / "f.parquet"))
    assert 2 * H == count
    assert {"c": "has no row in the new data"} == dict(found.without)


def test_entities_without_a_forecast_are_listed_with_the_reason(out: Path) -> None:
    late = shop(1).with_columns(
        visits=pl.when(pl.col("day") > START + DAYS - 9).then(None).otherwise("visits")
    )
    found = forecast(out, long({"a": shop(0), "b": late, "c": shop(2, 6)}), future="none")
    with raised(headrace.InputError, setting="new_data", remedy="give 10 steps before"):
        forecast(out, long({"c": shop(2, 6)}), future="none")

    assert ["a"] == found.entities
    assert "visits is missing in 8 steps of the inputs, first at 2024-04-22" in found.without["b"]
    assert "has 6 steps up to 2024-01-06" in found.without["c"]


def test_an_origin_that_is_named_is_that_of_every_entity(out: Path) -> None:
    """A value that is two days late is filled; what comes after the origin is not read."""
    new = long({"a": shop(0), "b": shop(1, DAYS - 2), "c": shop(2, DAYS - GAP - 1)})
    found = forecast(out, new, origin="2024-04-29", future="none")
    shorter = forecast(
        out, new.filter(pl.col("day") <= pl.date(2024, 4, 20)), origin="2024-04-20", future="none"
    )
    early = forecast(out, new, origin="2024-04-20", future="none")

    assert {"c"} == set(found.without)
    assert {np.datetime64("2024-04-29")} == set(found.origins.astype("M8[D]"))
    np.testing.assert_array_equal(early.batch()["X"], shorter.batch()["X"])


def test_days_without_a_sale_before_a_named_origin_are_zeros(tmp_path: Path) -> None:
    totals = {"*": "mean", "sold": "total"}
    asked = {"resample": totals, "frequency": "1d", "past_features": (), "future_features": ()}
    out = run_of(tmp_path, **asked)
    table = long({"a": shop(7), "b": shop(8, DAYS - 5), "c": shop(9, DAYS - L - 1)})
    origin = str(START + DAYS - 1)
    ahead = forecast(out, table, is_autoregressive=True, origin=origin)
    sold = ahead.batch()["X"][:, :, 0]

    assert ["a", "b"] == ahead.entities  # c has nothing but zeros there, or closed
    assert "has no step at" in ahead.without["c"]
    assert [0.0] * 5 == sold[1, -5:].tolist()
    assert shop(8, DAYS - 5)["sold"].to_list()[-5:] == sold[1, :5].tolist()
    unnamed = forecast(out, table, is_autoregressive=True)
    assert f"at origins from {unnamed.origins.min()} to {unnamed.origins.max()}" in str(unnamed)


def test_a_category_that_the_run_does_not_list_has_the_reserved_position(tmp_path: Path) -> None:
    listed = {"future_features": ["kind"], "categories": {"kind": ["none", "flyer"]}}
    out = run_of(tmp_path, **listed)
    new = shop(0, DAYS, ("none", "flyer", "balloons"))
    found = forecast(out, long({"a": new}), future="none")
    trained = headrace.windows.open_windows(out, "train", input_length=L, output_length=H)
    positions = {"none": 1.0, "flyer": 2.0, "balloons": 0.0}

    assert [positions[kind] for kind in new["kind"][-L:]] == found.batch()["X"][0, :, -1].tolist()
    assert {"kind": new["kind"][-L:].to_list().count("balloons")} == dict(found.unknown)
    assert {1.0, 2.0} == set(np.unique(trained.batch(range(20))["X"][:, :, -1]))


def test_one_series_is_forecast_from_its_own_past(tmp_path: Path) -> None:
    """Four years of months, the defaults, and a table without a column of entities."""
    months = np.arange("2020-01", "2024-01", dtype="datetime64[M]").astype("datetime64[D]")
    table = pl.DataFrame({"date": months, "sold": np.arange(48.0)})
    table.write_csv(tmp_path / "shop.csv")
    prepared = headrace.prepare(
        headrace.Series(source=tmp_path / "shop.csv", target="sold", calendar=["day_of_year"]),
        tmp_path / "out",
    )
    train = headrace.windows.open_windows(prepared.out, "train", input_length=12, output_length=3)
    found = headrace.windows.forecast(prepared.out, table, input_length=12, output_length=3)
    said = found.table(found.batch()["X"][:, -3:, 0])

    assert ("sold", "day_of_year_sin", "day_of_year_cos") == train.input_names
    assert len(train) > 10
    assert ["shop"] * 3 == said["entity"].to_list()
    np.testing.assert_allclose([45, 46, 47], said["value"], rtol=1e-6)
    assert ["2024-01-01", "2024-02-01", "2024-03-01"] == [str(time.date()) for time in said["time"]]


def test_an_input_without_a_column_is_refused(tmp_path: Path) -> None:
    shop(0).select("day", "sold").write_csv(tmp_path / "shop.csv")
    asked = headrace.Series(source=tmp_path / "shop.csv", time="day", target="sold")
    out = headrace.prepare(asked, tmp_path / "out").out

    with raised(headrace.SettingsError, setting="is_autoregressive", remedy="leave it out"):
        headrace.windows.open_windows(out, input_length=3, output_length=1, is_autoregressive=False)


def test_static_features_are_those_of_the_run_and_of_files_for_new_entities(tmp_path: Path) -> None:
    attributes = pl.DataFrame({"id": list("abc"), "size": [1.0, 2.0, 6.0]})
    attributes.write_csv(tmp_path / "shops.csv")
    run = run_of(
        tmp_path / "run", static=tmp_path / "shops.csv", static_entity="id", static_features="size"
    )
    pl.DataFrame({"id": ["d", "a"], "size": [9.0, 1.0]}).write_csv(tmp_path / "more.csv")
    new = long({"a": shop(0), "d": shop(3)})
    found = forecast(run, new, future="none")
    more = forecast(run, new, future="none", static_source=tmp_path / "more.csv")
    scaled = (np.array([1, 9]) - 3) / np.std([1, 2, 6])

    assert (["a"], ["a", "d"]) == (found.entities, more.entities)
    assert "give files of them as static_source" in found.without["d"]
    np.testing.assert_allclose(scaled[:1, None], found.batch()["static"], rtol=1e-6)
    np.testing.assert_allclose(scaled[:, None], more.batch()["static"], rtol=1e-6)
    assert ("size",) == more.windows.static_names


def test_files_of_an_entity_each_are_read_as_the_run_reads_them(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for seed, name in enumerate("ab"):
        shop(seed).select("day", "sold").write_csv(tmp_path / "files" / f"{name}.csv")
    settings = headrace.Series(source=tmp_path / "files", time="day", target="sold")
    out = headrace.prepare(settings, tmp_path / "out").out

    assert ["a", "b"] == forecast(out, tmp_path / "files").entities
