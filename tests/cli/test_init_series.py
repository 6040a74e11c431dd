"""`headrace init series` writes what `headrace run` takes as it is, and says in comments what it saw."""

import contextlib
import io
import json
import re
import sys
from datetime import date, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from series_sources import frame_of, write_source

from headrace.cli import main
from headrace.cli.init.commented import Aside, Section, commented_yaml, settings_of
from headrace.series.init import sentinels_of
from headrace.series.settings import Series
from laws import examples

CARAVAN = Path(__file__).parents[2] / "../shared/data/job4-caravan"


def headrace(*arguments: object) -> tuple[int, str, str]:
    """Exit code, what was printed, and complaints."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before, sys.argv = sys.argv, ["headrace", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()


def init(source: Path, tmp_path: Path, *flags: object) -> tuple[str, dict]:
    """The text and the settings that it wrote."""
    config = tmp_path / "series.yaml"
    code, _, err = headrace(
        "init", "series", source, "--out", tmp_path / "out", "--config", config, *flags
    )
    assert code == 0, err
    return config.read_text("utf-8"), yaml.safe_load(config.read_text("utf-8"))


def run(tmp_path: Path, *flags: object) -> dict:
    """The manifest of the run of what was written."""
    code, out, err = headrace("run", tmp_path / "series.yaml", "--workers", 1, "--json", *flags)
    assert code == 0, err
    return json.loads(out)


def test_days_of_a_month_are_no_times(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    when = pl.col("date").str.to_date()
    parts = {"year": when.dt.year(), "month": when.dt.month(), "day": when.dt.day()}
    frame = frame_of("a").with_columns(**parts)
    frame.rename({"date": "measured"}).write_csv(tmp_path / "raw/a.csv")
    _, asked = init(tmp_path / "raw", tmp_path, "--target", "q")
    frame.drop("date").write_csv(tmp_path / "raw/a.csv")
    code, _, told = headrace(
        "init",
        "series",
        tmp_path / "raw",
        "--target",
        "q",
        "--out",
        "o",
        "--config",
        tmp_path / "n.yaml",
    )

    assert "measured" == asked["time"]
    assert 2 == code
    assert "a.csv: --time: no column holds times; give one of rain" in told


STEPS = np.arange(90)
HOURS = 1_700_000_000 + 3600 * STEPS
NUMBERED = {
    "step": (STEPS, "epoch_s", "1s"),
    "t": (STEPS * 10 + 7, "epoch_s", "10s"),
    "index": (STEPS[::-1] * -1, "epoch_s", "1s"),
    "time": (STEPS + 1, "epoch_s", "1s"),
    "year": (STEPS + 1930, "%Y", "12mo"),
    "date": (
        [year * 100 + month for year in range(1990, 1998) for month in range(1, 13)][:90],
        "%Y%m",
        "1mo",
    ),
    "ts": (HOURS, "epoch_s", "1h"),
    "event_time": (HOURS * 10**3, "epoch_ms", "1h"),
    "timestamp": (HOURS * 10**6, "epoch_us", "1h"),
    "epoch": (HOURS * 10**9, "epoch_ns", "1h"),
}


@pytest.mark.parametrize(("name", "kind", "long"), [*((name, "parquet", False) for name in NUMBERED), ("t", "csv", False), ("year", "csv", True)])  # fmt: skip
def test_whole_numbers_that_grow_in_every_entity_are_times_by_their_name(
    tmp_path: Path, name: str, kind: str, long: bool
) -> None:
    values, form, frequency = NUMBERED[name]
    (tmp_path / "raw").mkdir()
    tables = [
        frame_of(each, days=90).drop("date").insert_column(2, pl.Series(name, values))
        for each in ("a", "b")
    ]
    tables = [pl.concat(each.with_columns(station=pl.lit(str(at))) for at, each in enumerate(tables))] if long else tables  # fmt: skip
    for at, table in enumerate(tables):
        getattr(table, f"write_{kind}")(tmp_path / f"raw/{at}.{kind}")
    text, asked = init(tmp_path / "raw", tmp_path, "--target", "q")
    made = run(tmp_path)

    expected = (name, form, frequency, "station" if long else "file_name", ["rain", "warm"])
    assert expected == tuple(
        (asked | asked.get("dialect", {})).get(key)
        for key in ("time", "time_format", "frequency", "entity", "past_features")
    )
    assert made["metadata"]["entities"] == {"original": 2, "passed": 2, "failed": 0}
    assert (values[0] < 1000) == (", steps " in text.replace("\n# ", " "))


@pytest.mark.parametrize(
    "columns",
    [
        {"step": STEPS % 30},  # repeats, and no column is named like an entity
        {
            "index": np.arange(90),
            "station": np.arange(90) // 45,
        },  # numbers the rows of all entities
        {"t": STEPS * 0.1},  # a temperature
        {"level": STEPS, "machine_id": STEPS + 5},
        {"lifetime": STEPS},
        {"step": [None, *range(89)]},
    ],
)
def test_whole_numbers_are_no_times_for_being_whole(tmp_path: Path, columns: dict) -> None:
    table = (
        frame_of("a", days=90)
        .drop("date")
        .with_columns(**{key: pl.Series(own) for key, own in columns.items()})
    )
    table.write_parquet(tmp_path / "a.parquet")
    flags = ("--target", "q", "--out", tmp_path / "out", "--config", tmp_path / "n.yaml")
    code, _, told = headrace("init", "series", tmp_path / "a.parquet", *flags)

    assert (2, True) == (code, "a.parquet: --time: no column holds times; give one of" in told)


def test_the_target_is_no_time_and_steps_that_are_uneven_stay_steps(tmp_path: Path) -> None:
    uneven = np.cumsum(np.random.default_rng(3).integers(1, 9, 90))
    frame_of("a", days=90).with_columns(step=STEPS, index=uneven).drop("date").write_parquet(
        tmp_path / "a.parquet"
    )
    _, asked = init(tmp_path / "a.parquet", tmp_path, "--target", "step")

    assert ("index", "1s", False) == (asked["time"], asked["frequency"], "resample" in asked)
    assert run(tmp_path)["metadata"]["entities"]["passed"] == 1


def test_of_frequencies_that_are_equally_common_the_longest_is_named_as_runs_infer_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "raw").mkdir()
    for name, every, last in (("a", "15m", 1), ("b", "1d", 20)):
        end = datetime(2000, 1, last, 4)
        times = pl.datetime_range(datetime(2000, 1, 1), end, every, eager=True)
        pl.DataFrame({"date": times, "q": np.arange(len(times)) % 7 + 0.5}).write_csv(
            tmp_path / f"raw/{name}.csv"
        )
    _, asked = init(tmp_path / "raw", tmp_path, "--target", "q")

    assert "1d" == asked["frequency"]


def test_a_repeated_flag_adds_to_the_names_before_it(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b"])
    pl.DataFrame(
        {"station": ["a", "b"], "area": [1.0, 2.0], "height": [3.0, 4.0], "width": [5.0, 6.0]}
    ).write_csv(tmp_path / "static.csv")
    flags = [
        "--target",
        "q",
        "--features",
        "warm",
        "--features",
        "rain",
        "--static",
        tmp_path / "static.csv",
    ]
    _, asked = init(
        source, tmp_path, *flags, "--static-features", "area,width", "--static-features", "height"
    )

    assert ["warm", "rain"] == asked["past_features"]
    assert ["area", "width", "height"] == asked["static_features"]


def test_files_of_entities_run_as_they_are(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b", "007"])
    pl.DataFrame(
        {"station": ["a", "b", "007", "z"], "area": [1.0, 2.0, 3.0, 4.0], "name": ["x"] * 4}
    ).write_csv(tmp_path / "static.csv")

    text, config = init(source, tmp_path, "--target", "q", "--static", tmp_path / "static.csv")
    made = run(tmp_path)

    assert (config["entity"], config["time"], config["frequency"]) == ("file_name", "date", "1d")
    assert config["past_features"] == ["rain", "warm"]
    assert (config["static_entity"], config["static_features"]) == ("station", ["area"])
    assert "3 entities, e.g. 007; 3 were looked at" in text.replace("\n# ", " ")
    assert "Missing in the rows looked at: q " in text.replace("\n# ", " ")
    assert made["metadata"]["entities"] == {"original": 3, "passed": 3, "failed": 0}


def test_static_texts_that_are_asked_for_are_encoded(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b", "c"])
    static = tmp_path / "static.csv"
    static.write_text("station,area,rock\na,1,clay\nb,2,sand\nc,3,clay\n")

    text, _ = init(source, tmp_path, "--target", "q", "--static", static)
    _, config = init(
        source,
        tmp_path,
        "--target",
        "q",
        "--static",
        static,
        "--static-features",
        "area,rock",
        "--overwrite",
    )
    made = run(tmp_path)

    assert "Left out: rock; --static-features takes them." in text.replace("\n# ", " ")
    assert config["preprocessing_configs"]["static_features"][1]["columns"] == ["rock"]
    assert made["metadata"]["static_columns"] == ["area", "rock_clay", "rock_sand"]


def test_long_tables_with_their_own_dates_and_words_for_missing(tmp_path: Path) -> None:
    tables = []
    for entity in ("north", "south"):
        table = frame_of(entity).with_columns(
            station=pl.lit(entity), when=pl.col("date").str.to_date().dt.strftime("%d/%m/%Y")
        )
        tables.append(table.with_columns(pl.col("warm").fill_null(-9999.0)).drop("date"))
    (tmp_path / "raw").mkdir()
    pl.concat(tables).sample(fraction=1.0, shuffle=True, seed=2).write_csv(tmp_path / "raw/all.csv")

    text, config = init(tmp_path / "raw", tmp_path, "--target", "q", "--features", "warm")
    made = run(tmp_path)

    assert (config["entity"], config["time"], config["dialect"]["time_format"]) == (
        "station",
        "when",
        "%d/%m/%Y",
    )
    assert config["dialect"]["null_values"] == ["-9999"]
    assert "-9999 in warm" in text
    assert made["metadata"]["entities"]["passed"] == 2


def test_an_index_that_pandas_wrote_is_no_feature(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for entity in ("a", "b"):
        frame_of(entity).with_row_index("").write_csv(tmp_path / f"raw/{entity}.csv")

    text, config = init(tmp_path / "raw", tmp_path, "--target", "q")

    assert ["rain", "warm"] == config["past_features"]
    assert "Left out, because they number things or hold no value: ''." in text.replace("\n# ", " ")


def test_ids_are_no_features(tmp_path: Path) -> None:
    """The mean of a day's customer ids says nothing, as in Online Retail."""
    (tmp_path / "raw").mkdir()
    for entity in ("a", "b"):
        ids = {name: pl.int_range(pl.len()) for name in ("CustomerID", "user_id", "id")}
        frame_of(entity).with_columns(**ids, humid=pl.col("rain") + 1).write_csv(
            tmp_path / f"raw/{entity}.csv"
        )

    text, config = init(tmp_path / "raw", tmp_path, "--target", "q")

    assert ["rain", "warm", "humid"] == config["past_features"]
    assert "hold no value: 'CustomerID', 'user_id', 'id'." in text.replace("\n# ", " ")


@pytest.mark.slow
def test_a_small_source_is_looked_at_whole(tmp_path: Path) -> None:
    days, stations = 600, 500
    dates = np.datetime64("2001-01-01") + np.arange(days).astype("timedelta64[D]").repeat(stations)
    names = np.tile([f"s{each:03d}" for each in range(stations)], days)
    table = pl.DataFrame(
        {"date": dates, "station": names, "q": np.arange(days * stations) % 97.0, "rain": 1.0}
    )
    (tmp_path / "raw").mkdir()
    table.write_parquet(tmp_path / "raw/all.parquet")

    text, config = init(tmp_path / "raw", tmp_path, "--target", "q")

    words = text.replace("\n# ", " ")
    assert ("station", ["rain"]) == (config["entity"], config["past_features"])
    assert "500 entities, e.g. s000" in words


def test_short_series_run_as_they_are_and_comments_are_the_descriptions(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for entity in ("a", "b"):
        table = frame_of(entity, days=400).with_columns(none=pl.lit(None, pl.Float64))
        pl.concat([table, table.slice(30, 1)]).write_parquet(tmp_path / f"raw/{entity}.parquet")

    text, config = init(tmp_path / "raw", tmp_path, "--target", "q")
    words = text.replace("\n# ", " ")

    assert ["rain", "warm"] == config["past_features"]
    assert (
        "file_name" == config["entity"]
    )  # a time that comes twice by mistake does not make many entities
    for name in ("train_ratio", "seed", "batch_size"):
        assert Series.model_fields[name].description in words
    assert "drop" == config["bad_rows"]  # the rows are copies
    code, _, err = headrace("run", tmp_path / "series.yaml")
    assert code == 0, err


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (
            [],
            2,
            "--target: the column to be predicted is not given; give one of rain, warm, q",
        ),
        (
            ["--target", "qq"],
            2,
            "--target is 'qq': the source has no such column; did you mean 'q'",
        ),
        (
            ["--target", "q", "--features", "rains"],
            2,
            "--features is 'rains': the source has no such column; did you mean 'rain'",
        ),
        (
            ["--target", "q", "--time", "day"],
            2,
            "--time is 'day': the source has no such column; use one of date, rain, warm, q",
        ),
        (
            ["--target", "q", "--entity", "gauge"],
            2,
            "--entity is 'gauge': the source has no such column",
        ),
        (["--target", "q", "--static", "nothing.csv"], 1, "nothing.csv: no such file"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    tmp_path: Path, flags: list, code: int, says: str
) -> None:
    source = write_source(tmp_path / "raw", ["a", "b"], days=100)

    found, _, err = headrace(
        "init",
        "series",
        source,
        "--out",
        tmp_path / "out",
        "--config",
        tmp_path / "series.yaml",
        *flags,
    )

    assert (found, says in err) == (code, True), err
    assert not (tmp_path / "series.yaml").exists()


def test_a_configuration_is_not_overwritten(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a"], days=100)
    (tmp_path / "series.yaml").write_text("mine")

    code, _, err = headrace(
        "init",
        "series",
        source,
        "--target",
        "q",
        "--out",
        "o",
        "--config",
        tmp_path / "series.yaml",
    )

    assert code == 2
    assert "already exists" in err
    assert (tmp_path / "series.yaml").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.skipif(not CARAVAN.is_dir(), reason="needs the Caravan basins in ../shared/data")
def test_caravan_runs_as_it_is(tmp_path: Path) -> None:
    forcing = [
        "total_precipitation_sum",
        "temperature_2m_mean",
        "surface_net_thermal_radiation_mean",
    ]

    _, config = init(
        CARAVAN / "timeseries",
        tmp_path,
        *("--static", CARAVAN / "attributes/attributes_caravan_*.csv.gz"),
        *("--target", "streamflow", "--features", ",".join(forcing)),
    )
    made = run(tmp_path)

    assert "dialect" not in config  # -99.9 W/m2 is a value like its neighbours
    assert config["static_entity"] == "gauge_id"
    assert made["metadata"]["entities"] == {"original": 5, "passed": 5, "failed": 0}


def test_files_of_attributes_among_the_series_are_named(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    frame_of("a").write_csv(tmp_path / "raw/a.csv")
    (tmp_path / "raw/attributes.csv").write_text("gauge,area\na,1.5\n")
    source, config = tmp_path / "raw", tmp_path / "series.yaml"
    code, _, err = headrace(
        "init", "series", source, "--out", tmp_path / "out", "--config", config, "--target", "q"
    )

    assert code == 2
    assert "attributes.csv: column 'date': the file does not have the time" in err
    assert "--static" in err


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-999.0, 0.0, 1.0, 5.0], [-999.0]),
        ([-9999.0, -999.0, 0.0, 5.0], [-9999.0, -999.0]),
        ([-99.9, -99.8, -50.0, 3.0], []),
        ([-999.0, -500.0, 0.0], []),
        ([0.0, 1.0], []),
        ([-999.0], []),
    ],
)
def test_numbers_that_stand_for_missing_are_far_below_all_others(
    values: list, expected: list
) -> None:
    assert sentinels_of(np.array(values)) == expected


plain = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(-1e6, 1e6), st.text(max_size=30)
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), st.one_of(plain, st.lists(plain, max_size=40)), max_size=5),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=300),
)  # fmt: skip
def test_a_commented_configuration_is_read_as_what_it_sets(values: dict, words: str) -> None:
    sections = [
        Section(words, {**values, "off": Aside([1, {"a": "b"}])}),
        Section("more", {"zzzzzzzzzzzzzzz": {"a": [1]}}),
    ]

    text = commented_yaml(sections)

    assert yaml.safe_load(text) == settings_of(sections)
    assert "# off: [1, {a: b}]" in text


def test_features_that_go_on_behind_the_target_are_known_ahead(tmp_path: Path) -> None:
    """Promotions of the next days are known, prices are -999 there, and rows without a target stay."""
    days, ahead = 90, 14
    lines = ["item,date,sold,price,promotion"]
    for item in ("a", "b"):
        for day in range(days + ahead):
            known = f"{day % 7},{1 + day % 3}" if day < days else ",-999"
            lines.append(f"{item},{np.datetime64('2024-01-01') + day},{known},{int(day % 5 == 0)}")
    (tmp_path / "sales.csv").write_text("\n".join(lines) + "\n")
    text, written = init(tmp_path / "sales.csv", tmp_path, "--target", "sold")

    assert (written["future_features"], written["trim"]) == (["promotion"], "none")
    assert "only these have values in the 28 rows after the last target." in text.replace(
        "\n# ", " "
    )
    made = run(tmp_path)
    assert (
        made["source"]["rows"]
        == sum(each["rows"] for each in made["splits"].values())
        == 2 * (days + ahead)
    )
    _, usual = init(
        write_source(tmp_path / "plain", ["a"]), tmp_path, "--target", "q", "--overwrite"
    )
    assert not {"future_features", "trim"} & usual.keys()
    assert ["rain", "warm"] == usual["past_features"]


def test_a_sensor_is_known_up_to_the_last_input_unless_it_is_said_to_be_known_ahead(
    tmp_path: Path,
) -> None:
    """Taken as known ahead, its values of the horizon reach the model."""
    source = write_source(tmp_path / "raw", ["a", "b"])
    _, asked = init(source, tmp_path, "--target", "q")
    _, named = init(source, tmp_path, "--target", "q", "--future-features", "rain", "--overwrite")

    assert ["rain", "warm"] == asked["past_features"]
    assert "future_features" not in asked
    assert (["warm"], ["rain"]) == (named["past_features"], named["future_features"])


def test_the_first_look_counts_windows_and_asks_what_an_absent_row_means(tmp_path: Path) -> None:
    """Rows only on days with a sale, and a price that is missing in four of five."""
    draw = np.random.default_rng(5)
    lines = ["shop,date,sold,price"]
    for name in ("a", "b"):
        for day in np.flatnonzero(draw.random(400) < 0.7).tolist():
            price = 3 if day % 5 == 0 else ""
            lines.append(f"{name},{np.datetime64('2024-01-01') + day},{1 + day % 7},{price}")
    (tmp_path / "sales.csv").write_text("\n".join(lines) + "\n")
    text, asked = init(tmp_path / "sales.csv", tmp_path, "--target", "sold")
    words = text.replace("\n# ", " ")
    counted = re.search(r"(\d+) of ([\d,]+) windows of 28 \+ 7 steps are usable, (\w+)", words)

    assert counted is not None
    assert ("1d", "price") == (asked["frequency"], counted[3])
    assert int(counted[1]) < 200 < int(counted[2].replace(",", ""))
    assert "does an absent row mean 0 or missing?" in words
    assert "# resample: {'*': mean, sold: total}" in text
    run(tmp_path)


@pytest.mark.parametrize("trend", [0.0, 1.0])
def test_a_target_with_a_trend_gets_windows_of_their_own_scale(
    tmp_path: Path, trend: float
) -> None:
    months = [f"{2000 + n // 12}-{1 + n % 12:02d}-01,{n * trend + n % 12}" for n in range(120)]
    (tmp_path / "a.csv").write_text("\n".join(["month,sold", *months]) + "\n")
    text, _ = init(tmp_path / "a.csv", tmp_path, "--target", "sold")

    assert (trend > 0) == ("scale='standard'" in text)


def test_events_become_totals_of_days_with_zeros_between(tmp_path: Path) -> None:
    """Sales as they were rung up: no column of times is an axis, so init proposes days, and no sale is a zero."""
    draw = np.random.default_rng(1)
    (tmp_path / "raw").mkdir()
    minutes = np.sort(draw.choice(60 * 24 * 400, 900, replace=False)) * np.timedelta64(1, "m")
    sold = draw.integers(1, 9, 900)
    rows = {
        "item": draw.choice(["cup", "lid"], 900),
        "time": np.datetime64("2020-01-01T00:00", "us") + minutes,
    }
    table = pl.DataFrame({**rows, "sold": sold, "price": draw.random(900)})
    table.write_csv(tmp_path / "raw/sales.csv")
    text, config = init(tmp_path / "raw", tmp_path, "--target", "sold", "--entity", "item")
    manifest = run(tmp_path, "--set", "max_imputation_gap_size=30", "--set", "trim=none")
    stored = pl.concat(
        [pl.read_parquet(path) for path in Path(manifest["run"]).glob("processed_time_series/*/*")]
    )
    expected = table.group_by("item", pl.col("time").dt.truncate("1d")).agg(pl.col("sold").sum())
    scaled = stored.join(expected, ["item", "time"], "left").with_columns(
        pl.col("sold_right").fill_null(0)
    )
    per_item = scaled.group_by("item").agg(
        pl.corr("sold", "sold_right"), zeros=(pl.col("sold_right") == 0).sum()
    )

    assert {"*": "mean", "sold": "total"} == config["resample"]
    assert "1d" == config["frequency"]
    assert "Times are those of events" in text.replace("\n# ", " ")
    assert not scaled["sold"].is_nan().any()
    assert all(zeros > 20 for zeros in per_item["zeros"])
    assert np.allclose(per_item["sold"], 1)
    assert 0 == headrace("verify", tmp_path / "out")[0]


@pytest.mark.slow
@pytest.mark.skipif(
    not CARAVAN.is_dir(), reason=f"{CARAVAN} is not there: it is not in the repository"
)
def test_a_benchmark_with_common_dates_takes_three_commands(tmp_path: Path) -> None:
    flags = ("--target", "streamflow", "--features", "total_precipitation_sum,temperature_2m_mean")
    attributes = CARAVAN / "attributes/attributes_caravan_*.csv.gz"
    init(CARAVAN / "timeseries", tmp_path, *flags, "--static", attributes)
    manifest = run(tmp_path, "--set", "train_end=2012-10-01", "--set", "val_end=2015-10-01")
    code, told, _ = headrace("verify", tmp_path / "out", "--json")
    times = {
        split: pl.concat([pl.read_parquet(each, columns=["date"]) for each in path.glob("*")])[
            "date"
        ]
        for path in Path(manifest["run"]).glob("processed_time_series/*")
        for split in [path.name]
    }

    assert 0 == code
    assert "no two splits share any, whatever the entity" in told
    assert times["train"].max() < datetime(2012, 10, 1) <= times["val"].min()
    assert times["val"].max() < datetime(2015, 10, 1) <= times["test"].min()


@pytest.mark.parametrize("step", [1, 5, 300])
def test_of_times_that_jitter_the_nearest_is_taken(tmp_path: Path, step: int) -> None:
    rng = np.random.default_rng(0)
    moved = np.where(rng.random(9_000) < 0.6, 0, rng.integers(-100, 100, 9_000)) * step
    times = np.cumsum(moved + 1_000 * step) * 1_000 + 1_700_000_000_300_000
    frame = pl.DataFrame({"time": pl.Series(times).cast(pl.Datetime("us")), "x": rng.random(9_000)})
    frame.write_parquet(tmp_path / "sensor.parquet")
    _, found = init(tmp_path / "sensor.parquet", tmp_path, "--target", "x")

    assert {"*": "nearest"} == found["resample"]
    assert Series(**{"frequency": found["frequency"], "source": "x", "target": "x"}).step.micros == step * 10**6  # fmt: skip


def test_attributes_computed_of_the_target_are_left_out(tmp_path: Path) -> None:
    """Of mean discharge in another unit; an area, which it follows loosely, stays."""
    names = [f"g{n}" for n in range(6)]
    source = write_source(tmp_path / "raw", names)
    means = []
    for number, name in enumerate(names):
        frame = pl.read_csv(tmp_path / f"raw/{name}.csv")
        frame = frame.with_columns(pl.col("q") * 2.0**number)
        frame.write_csv(tmp_path / f"raw/{name}.csv")
        means.append(86.4 * frame["q"].mean())
    area = [mean * factor for mean, factor in zip(means, [1, 3, 2, 0.5, 4, 1], strict=True)]
    static = tmp_path / "static.csv"
    pl.DataFrame({"station": names, "q_mean": means, "area": area}).write_csv(static)

    text, config = init(source, tmp_path, "--target", "q", "--static", static)
    assert config["static_features"] == ["area"]
    assert "q_mean (its mean)" in text.replace("\n# ", " ")
    (tmp_path / "series.yaml").unlink()
    flags = ("--target", "q", "--static", static, "--static-features", "q_mean")
    _, config = init(source, tmp_path, *flags)
    assert config["static_features"] == ["q_mean"]


def test_columns_that_are_entities_get_the_command_that_reads_them(tmp_path: Path) -> None:
    days = [f"2024-{1 + n // 28:02d}-{1 + n % 28:02d},{n % 7},{n % 5},{n % 3}" for n in range(280)]
    (tmp_path / "sales.csv").write_text("\n".join(["date,cup,pan,pot", *days]) + "\n")
    flags = ("--target", "sold", "--out", "o", "--config", tmp_path / "s.yaml")
    code, _, told = headrace("init", "series", tmp_path / "sales.csv", *flags)

    assert code == 2
    assert ".unpivot(" in told


def test_hours_that_the_clocks_of_a_zone_repeat_are_no_duplicates(tmp_path: Path) -> None:
    instants = pl.datetime_range(
        date(2022, 10, 20), date(2022, 11, 9), "1h", time_zone="UTC", eager=True
    )
    local = instants.dt.convert_time_zone("Europe/Berlin").dt.to_string("%Y-%m-%d %H:%M")
    frame = pl.DataFrame({"time": local, "load": range(len(local))})
    frame.write_csv(tmp_path / "meter.csv")
    text, _ = init(
        tmp_path / "meter.csv", tmp_path, "--target", "load", "--time-zone", "Europe/Berlin"
    )
    made = run(tmp_path)

    assert "entity and time" not in text
    assert "is a copy" not in text
    assert len(frame) == sum(made["metadata"]["source_rows"].values())
