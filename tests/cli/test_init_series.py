"""`headrace init series` writes what `headrace run` takes as it is, and says in comments what it saw."""

import contextlib
import io
import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from series_sources import frame_of, write_source

from headrace.cli import main
from headrace.cli.init.asked import AskedSeries
from headrace.cli.init.commented import Aside, Section, commented_yaml, settings_of
from headrace.series.init_facts import look_at_series, sentinels_of
from headrace.series.init_long import ENTITIES, Looked
from headrace.series.init_roles import Draft
from laws import examples

CARAVAN = Path(__file__).parents[2] / "../shared/data/job4-caravan"
CAMELS = Path(__file__).parents[2] / "../shared/data/job4-camels-us"


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
    code, _, err = headrace("init", "series", source, "--out", tmp_path / "out", "--config", config, *flags)
    assert code == 0, err
    return config.read_text("utf-8"), yaml.safe_load(config.read_text("utf-8"))


def run(tmp_path: Path) -> dict:
    """The manifest of the run of what was written."""
    code, out, err = headrace("run", tmp_path / "series.yaml", "--workers", 1, "--json")
    assert code == 0, err
    return json.loads(out)


def test_files_of_entities_run_as_they_are(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b", "007"])
    pl.DataFrame({"station": ["a", "b", "007", "z"], "area": [1.0, 2.0, 3.0, 4.0], "name": ["x"] * 4}).write_csv(
        tmp_path / "static.csv"
    )

    text, config = init(source, tmp_path, "--target", "q", "--static", tmp_path / "static.csv")
    made = run(tmp_path)

    assert (config["entity"], config["time"], config["frequency"]) == ("file_name", "date", "1d")
    assert config["features"] == ["rain", "warm"]
    assert (config["static_entity"], config["static_features"]) == ("station", ["area"])
    assert "3 entities, e.g. 007; 3 were looked at" in text.replace("\n# ", " ")
    assert "Missing: q " in text
    assert made["facts"]["entities"] == {"original": 3, "passed": 3, "failed": 0}


def test_static_texts_that_are_asked_for_are_encoded(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b", "c"])
    static = tmp_path / "static.csv"
    static.write_text("station,area,rock\na,1,clay\nb,2,sand\nc,3,clay\n")

    text, _ = init(source, tmp_path, "--target", "q", "--static", static)
    _, config = init(
        source, tmp_path, "--target", "q", "--static", static, "--static-features", "area,rock", "--overwrite"
    )
    made = run(tmp_path)

    assert "Texts are left out too, which --static-features has encoded: rock." in text.replace("\n# ", " ")
    assert config["preprocessing_configs"]["static_features"][1]["columns"] == ["rock"]
    assert made["facts"]["static_columns"] == ["area", "rock_clay", "rock_sand"]


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

    assert (config["entity"], config["time"], config["time_format"]) == ("station", "when", "%d/%m/%Y")
    assert config["missing_numbers"] == [-9999.0]
    assert "-9999 in warm" in text
    assert made["facts"]["entities"]["passed"] == 2


def test_features_that_would_starve_the_windows_are_left_out_with_numbers(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for entity in ("a", "b", "c"):
        day = pl.int_range(pl.len())
        frame = frame_of(entity).with_columns(
            sixth=pl.when(day % 6 == 0).then(day * 1.5),  # five missing steps are filled, six are not
            weekly=pl.when(day % 7 == 0).then(day * 1.5),
            late=pl.when(day > 500).then(day * 0.1),
            early=pl.when(day < 560).then(day * 0.2),  # what it lacks lies behind the rows that train
        )
        frame.write_csv(tmp_path / f"raw/{entity}.csv")

    text, config = init(tmp_path / "raw", tmp_path, "--target", "q")
    asked, kept = init(tmp_path / "raw", tmp_path, "--target", "q", "--features", "rain,late", "--overwrite")

    assert ["early", "rain", "sixth", "warm"] == sorted(config["features"])
    words = text.replace("\n# ", " ")
    (possible, late, after) = re.search(r"Left out: late, weekly; of ([\d,]+) windows of (?:\d+) steps .* few are whole with late \(([\d,]+)\), weekly \(0\); [\d,]+ with all features, ([\d,]+) without", words).groups()  # fmt: skip
    assert 0 == int(late)
    assert int(possible.replace(",", "")) / 2 <= int(after.replace(",", ""))
    assert ["rain", "late"] == kept["features"]
    assert "Beware: of " in asked.replace("\n# ", " ")


def test_an_index_that_pandas_wrote_is_no_feature(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for entity in ("a", "b"):
        frame_of(entity).with_row_index("").write_csv(tmp_path / f"raw/{entity}.csv")

    text, config = init(tmp_path / "raw", tmp_path, "--target", "q")

    assert ["rain", "warm"] == config["features"]
    assert "Left out: '', which numbers the rows of a table." in text.replace("\n# ", " ")


def test_midnights_of_a_zone_with_summer_time_are_no_daily_steps(tmp_path: Path) -> None:
    days = pl.datetime_range(
        pl.datetime(2019, 1, 1), pl.datetime(2021, 6, 1), "1d", time_zone="Europe/Berlin", eager=True
    )
    (tmp_path / "raw").mkdir()
    pl.DataFrame({"date": days, "q": np.arange(len(days)) % 9.5}).write_parquet(tmp_path / "raw/a.parquet")

    code, _, err = headrace(
        "init", "series", tmp_path / "raw", "--target", "q", "--out", tmp_path / "out", "--config", tmp_path / "a.yaml"
    )

    assert 1 == code
    assert f"of {len(days)} times are between steps of 1d" in err.replace("\n", " ")
    assert "midnights of a zone with summer time, in UTC: write local dates instead" in err.replace("\n", " ")
    assert not (tmp_path / "a.yaml").exists()


def test_series_side_by_side_are_looked_at_whole(tmp_path: Path) -> None:
    """The first rows of a table in order of time are the first days of all, and not even all entities."""
    days, stations = 1000, 500
    dates = np.datetime64("2001-01-01") + np.arange(days).astype("timedelta64[D]").repeat(stations)
    names = np.tile([f"s{each:03d}" for each in range(stations)], days)
    table = pl.DataFrame({"date": dates, "station": names, "q": np.arange(days * stations) % 97.0, "rain": 1.0})
    late = pl.DataFrame({"date": dates[-300 * stations :: stations], "station": "late", "q": 2.0, "rain": 0.5})
    (tmp_path / "raw").mkdir()
    pl.concat([table, late]).sort("date", maintain_order=True).write_parquet(tmp_path / "raw/all.parquet")

    text, config = init(tmp_path / "raw", tmp_path, "--target", "q", "--features", "rain")

    words = text.replace("\n# ", " ")
    assert config["min_train_years"] == pytest.approx(np.floor(10 * 0.6 * days / 365.25) / 10)
    assert "501 entities, e.g. late; 16 were looked at" in words
    assert "2001-01-01 to 2003-09-27" in words


def test_of_first_rows_alone_no_length_of_series_is_told() -> None:
    asked = AskedSeries(["raw"], "out", "q", "rain")
    table = frame_of("a", days=300).with_columns(who=pl.lit("a"))
    draft = Draft({"source": ["raw"], "entity": "who", "target": "q", "features": ["rain"]}, {"source": "A table."})
    looked = Looked(draft.settings)
    looked.add(table.to_arrow())
    draft.observed, draft.entities, draft.whole = looked.observed(), ["a"], False

    look_at_series(draft, asked)

    assert draft.settings["min_train_years"] == 5
    assert "How many they have is not known: only first rows" in draft.words["min_train_years"]
    assert draft.about.startswith("1 entities in the first rows")


@given(st.integers(0, 2**32), st.lists(st.integers(0, 3000), max_size=6))
@settings(max_examples=examples(30), deadline=None)
def test_what_is_kept_of_long_tables_does_not_depend_on_pieces(seed: int, cuts: list[int]) -> None:
    random = np.random.default_rng(seed)
    rows = 3000
    table = pa.table(
        {
            "date": np.datetime64("2001-01-01", "us") + random.permutation(rows).astype("timedelta64[D]"),
            "who": [f"e{each}" for each in random.integers(0, random.integers(1, 60), rows)],
            "q": random.random(rows),
        }
    )
    draft = {"source": ["x"], "entity": "who", "target": "q", "features": []}
    whole, pieces = Looked(draft), Looked(draft)
    edges = [0, *sorted(cuts), rows]

    whole.add(table)
    for begin, end in pairwise(edges):
        pieces.add(table.slice(begin, end - begin))

    assert whole.names == pieces.names == set(table["who"].to_pylist())
    assert [name for name, _ in whole.observed()] == [name for name, _ in pieces.observed()]
    assert len(whole.observed()) == min(ENTITIES, len(whole.names))
    for (name, one), (_, other) in zip(whole.observed(), pieces.observed(), strict=True):
        own = table.filter(pc.equal(table["who"], name))
        assert np.array_equal(own["q"].to_numpy(), one.values[:, 0])
        assert np.array_equal(one.times, other.times)
        assert np.array_equal(one.values, other.values)


def test_short_series_doubled_times_and_the_target_in_disguise(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for entity in ("a", "b"):
        table = frame_of(entity, days=400).with_columns(cfs=pl.col("q") * 35.3, none=pl.lit(None, pl.Float64))
        pl.concat([table, table.slice(30, 1)]).write_parquet(tmp_path / f"raw/{entity}.parquet")

    text, config = init(tmp_path / "raw", tmp_path, "--target", "q")
    made = run(tmp_path)

    assert config["features"] == ["rain", "warm"]
    words = text.replace("\n# ", " ")
    assert "Left out: cfs, which is q in another unit" in words
    assert "Left out: none, of which some entity has no value" in words
    assert 0.5 < config["min_train_years"] < 0.7
    assert config["duplicate_times"] == "first"
    assert made["facts"]["entities"]["passed"] == 2
    text, _ = init(tmp_path / "raw", tmp_path, "--target", "q", "--features", "rain,cfs", "--overwrite")
    assert "Beware: a feature looks like q in another unit: cfs in 2 of 2" in text.replace("\n# ", " ")


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        ([], 2, "target is not given; add --target with the column to be predicted, one of rain, warm, q"),
        (["--target", "qq"], 2, "target 'qq' is no column of the source; did you mean 'q'"),
        (
            ["--target", "q", "--features", "rains"],
            2,
            "feature 'rains' is no column of the source; did you mean 'rain'",
        ),
        (["--target", "q", "--time", "day"], 2, "time 'day' is no column of the source; there are date, rain, warm, q"),
        (["--target", "q", "--entity", "gauge"], 2, "entity 'gauge' is no column"),
        (["--target", "q", "--static", "nothing.csv"], 1, "nothing.csv: no such file"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(tmp_path: Path, flags: list, code: int, says: str) -> None:
    source = write_source(tmp_path / "raw", ["a", "b"], days=100)

    found, _, err = headrace(
        "init", "series", source, "--out", tmp_path / "out", "--config", tmp_path / "series.yaml", *flags
    )

    assert (found, says in err) == (code, True), err
    assert not (tmp_path / "series.yaml").exists()


def test_a_configuration_is_not_overwritten(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a"], days=100)
    (tmp_path / "series.yaml").write_text("mine")

    code, _, err = headrace(
        "init", "series", source, "--target", "q", "--out", "o", "--config", tmp_path / "series.yaml"
    )

    assert code == 2
    assert "is there already" in err
    assert (tmp_path / "series.yaml").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.skipif(not CARAVAN.is_dir(), reason="needs the Caravan basins in ../shared/data")
def test_caravan_runs_as_it_is(tmp_path: Path) -> None:
    forcing = ["total_precipitation_sum", "temperature_2m_mean", "surface_net_thermal_radiation_mean"]

    _, config = init(
        CARAVAN / "timeseries",
        tmp_path,
        *("--static", CARAVAN / "attributes/attributes_caravan_*.csv.gz"),
        *("--target", "streamflow", "--features", ",".join(forcing)),
    )
    made = run(tmp_path)

    assert "missing_numbers" not in config  # -99.9 W/m2 is a value like its neighbours
    assert config["static_entity"] == "gauge_id"
    assert made["facts"]["entities"] == {"original": 5, "passed": 5, "failed": 0}


@pytest.mark.skipif(not CAMELS.is_dir(), reason="needs the CAMELS-US basins in ../shared/data")
def test_camels_us_is_known(tmp_path: Path) -> None:
    text, config = init(CAMELS, tmp_path, "--static", CAMELS / "camels_attributes_v2.0/camels_*.txt.gz")
    made = run(tmp_path)

    assert (config["reader"], config["target"]) == ("camels_us", "qobs")
    assert "q_mean" not in config["static_features"]
    assert "camels_hydro are left out" in text.replace("\n# ", " ")
    assert made["facts"]["entities"]["passed"] == 4


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
def test_numbers_that_stand_for_missing_are_far_below_all_others(values: list, expected: list) -> None:
    assert sentinels_of(np.array(values)) == expected


plain = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-1e6, 1e6), st.text(max_size=30))


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
