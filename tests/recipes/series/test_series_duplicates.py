"""One series under two names is counted, or left out as if it had never been there."""

import json
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_sources import frame_of, run_of, series, write_source

import headrace
from headrace.dataset.verify import Check
from headrace.errors import SettingsError
from headrace.run.identity import run_id
from headrace.run.prepare import Prepared, prepare
from headrace.series.clean import clean, find_copies, series_digest
from headrace.series.sources import Observed
from headrace.series.verify import verify_series
from laws import examples
from resealed import change_settings

NAMES = ["a", "b", "c", "d"]
UNIFIED = {
    "features": {"strategy": "unified", "pipeline": ["StandardScaler"], "fit_on_n_entities": 3}
}
AS_IS = {role: {"strategy": "per_group", "pipeline": []} for role in ("features", "target")}
ONCE = ("fitted_pipelines.json", "processed_static_features.parquet")


def planted(directory: Path, *copies: tuple[str, str]) -> Path:
    """Series of `NAMES`, and copies (name, of)."""
    source = write_source(directory, NAMES)
    for name, of in copies:
        shutil.copy(source / f"{of}.csv", source / f"{name}.csv")
    return source


def heard(source: Path, out: Path, **more) -> tuple[Prepared, list[str]]:
    events: list = []
    prepared = prepare(series(source, **more), out, workers=1, on_event=events.append)
    return prepared, [each.text for each in events if type(each).__name__ == "Note"]


def tree(run: Path, *places: str) -> dict[str, bytes]:
    files = [
        path for place in places for path in sorted((run / place).rglob("*")) if path.is_file()
    ]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def checks_of(run: Path) -> dict[str, Check]:
    return {each.name: each for each in headrace.verify(run).checks}


def problems_as(made: Prepared, word: str) -> list[str]:
    """What verify says of a run that claims to be made with other duplicates."""
    run = change_settings(made.run, duplicates=word)
    return [each.problem for each in verify_series(run, 1) if each.problem]


@pytest.mark.slow
@pytest.mark.parametrize("configs", [{}, UNIFIED])
@pytest.mark.parametrize("batch_size", [2, 50])
def test_drop_equals_a_run_without_the_copies(tmp_path: Path, batch_size: int, configs) -> None:
    (tmp_path / "static.csv").write_text(
        "id,area\n" + "".join(f"{each},{ord(each[0])}\n" for each in [*NAMES, "aa", "z"])
    )
    more = {
        "static": tmp_path / "static.csv",
        "static_entity": "id",
        "static_features": "area",
        "batch_size": batch_size,
        "preprocessing_configs": configs,
    }
    without = run_of(planted(tmp_path / "without"), tmp_path / "out", duplicates="drop", **more)
    source = planted(tmp_path / "with", ("aa", "a"), ("z", "c"))
    left = run_of(source, tmp_path / "left", duplicates="drop", **more)

    for place in (f"processed_time_series/{split}" for split in ("train", "val", "test")):
        assert tree(without.run, place) == tree(left.run, place)
    assert tree(without.run, ".").keys() > set(ONCE)
    for name in ONCE:
        assert (without.run / name).read_bytes() == (left.run / name).read_bytes()
    if batch_size == 50:
        for name in ("store/part-00000.arrow", "entities.parquet"):
            assert (without.run / name).read_bytes() == (left.run / name).read_bytes()
    assert {**without.manifest.dropped, "duplicate": 1800} == left.manifest.dropped
    assert {"original": 6, "passed": 4, "failed": 2} == left.manifest.metadata["entities"]
    summary = json.loads((left.run / "quality_summary.json").read_bytes())
    assert {"aa": "has the values and times of 'a'", "z": "has the values and times of 'c'"} == summary["excluded_entities"]  # fmt: skip
    report = json.loads((left.run / "quality_reports/aa.json").read_bytes())
    assert (False, {"duplicate": 900}) == (report["passed_quality_check"], report["source_rows"])
    assert headrace.verify(tmp_path / "left").problems == []


@pytest.mark.slow
def test_a_packed_run_leaves_copies_out_too(tmp_path: Path) -> None:
    more = {"duplicates": "drop", "layout": "packed", "batch_size": 50}
    without = run_of(planted(tmp_path / "without"), tmp_path / "out", **more)
    left = run_of(planted(tmp_path / "with", ("bb", "b")), tmp_path / "left", **more)

    assert tree(without.run, "processed_time_series", "store") == tree(
        left.run, "processed_time_series", "store"
    )
    assert headrace.verify(tmp_path / "left").problems == []


@pytest.mark.slow
def test_count_names_the_copies_and_changes_no_row(tmp_path: Path) -> None:
    source = planted(tmp_path / "in", ("bb", "b"), ("z", "b"))
    counted, notes = heard(source, tmp_path / "out")
    allowed, silent = heard(source, tmp_path / "allowed", duplicates="allow")

    (told,) = [each for each in notes if "under another name" in each]
    assert told.startswith(
        "2 of 6 entities have the values and times of an earlier one under another name: 'bb' those"
    )
    assert not any("under another name" in each for each in silent)
    assert {"are": "count", "entities": 2} == counted.manifest.metadata["duplicates"]
    assert {"bb": "b", "z": "b"} == json.loads((counted.run / "quality_summary.json").read_bytes())[
        "duplicates"
    ]
    assert counted.manifest.index_digest == allowed.manifest.index_digest
    checks = checks_of(tmp_path / "out")
    assert (
        "2 of 6 entities have the values and times of an earlier one"
        == checks["duplicates counted"].detail
    )
    assert all(each.problem is None for each in checks.values())
    assert "duplicates counted" not in checks_of(tmp_path / "allowed")


@pytest.mark.slow
@pytest.mark.parametrize("word", ["count", "drop"])
def test_any_number_of_workers_gives_the_same_run(tmp_path: Path, word: str) -> None:
    source = planted(tmp_path / "in", ("bb", "b"), ("aa", "d"))
    one, three = (run_of(source, tmp_path / str(n), workers=n, duplicates=word) for n in (1, 3))

    assert tree(one.run, ".") == tree(three.run, ".")


def test_a_source_without_copies_is_prepared_as_before(tmp_path: Path) -> None:
    source = planted(tmp_path / "in")
    counted, notes = heard(source, tmp_path / "out")

    assert "duplicates" not in counted.manifest.metadata
    assert "duplicate" not in counted.manifest.dropped
    assert not any("under another name" in each for each in notes)
    assert "duplicates" not in json.loads((counted.run / "quality_summary.json").read_bytes())
    ids = {run_id("series", series(source, duplicates=each).identity_settings(), "x") for each in ("count", "drop", "allow")}  # fmt: skip
    assert 3 == len(ids)


def test_entities_of_long_tables_are_compared_in_the_order_of_their_names(tmp_path: Path) -> None:
    frames = [
        frame_of(of).with_columns(id=pl.lit(name))
        for name, of in (("z", "a"), ("m", "a"), ("k", "b"))
    ]
    pl.concat(frames).sample(fraction=1, shuffle=True, seed=3).write_csv(tmp_path / "long.csv")
    run = run_of(tmp_path / "long.csv", tmp_path / "out", entity="id", duplicates="drop").run

    assert {"z": "m"} == json.loads((run / "quality_summary.json").read_bytes())["duplicates"]


def test_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match="'group', and every entity of series is in all splits; choose 'drop'"
    ):
        series(tmp_path, duplicates="group")


def test_an_original_that_does_not_pass_has_no_copy(tmp_path: Path) -> None:
    source = planted(tmp_path / "in", ("z", "a"))
    (source / "a.csv").write_text("date,rain,warm,q\n")
    run = run_of(source, tmp_path / "out", duplicates="drop")

    assert {"original": 5, "passed": 4, "failed": 1} == run.manifest.metadata["entities"]
    assert 0 == run.manifest.dropped["duplicate"]


@pytest.mark.slow
def test_series_in_another_unit_stay_and_verify_looks_at_the_source(tmp_path: Path) -> None:
    """Scaled by their own train rows they are the same rows in the store, and no copies."""
    source = planted(tmp_path / "in")
    doubled = frame_of("b").with_columns(pl.col("rain", "warm", "q") * 2)
    doubled.write_csv(source / "bb.csv")
    scaled = {"strategy": "per_group", "pipeline": ["StandardScaler"]}
    run = run_of(source, tmp_path / "out", duplicates="drop", preprocessing_configs={"features": scaled, "target": scaled})  # fmt: skip

    assert 5 == run.manifest.metadata["entities"]["passed"]
    checks = checks_of(tmp_path / "out")
    assert checks["same values"].detail.startswith("1 of 5 entities have the values")
    assert ("law", None) == (checks["no series twice"].category, checks["no series twice"].problem)
    shutil.rmtree(source)
    assert "unchecked" == checks_of(tmp_path / "out")["no series twice"].category


@pytest.mark.slow
def test_zeros_of_either_sign_and_values_that_were_filled_are_the_same(tmp_path: Path) -> None:
    """What the files say differs: a sign, and a feature that is as the value before it."""
    frame = frame_of("b").with_columns(
        pl.when(pl.col("rain") < 1).then(0.0).otherwise(pl.col("rain")).alias("rain")
    )
    rain = frame["rain"].to_list()
    rain[850] = rain[849] = rain[851] = 2.0
    (tmp_path / "in").mkdir()
    frame.with_columns(rain=pl.Series(rain)).write_csv(tmp_path / "in/b.csv")
    rain[850] = None
    signed = pl.when(pl.col("rain") == 0).then(-0.0).otherwise(pl.col("rain")).alias("rain")
    frame.with_columns(rain=pl.Series(rain)).with_columns(signed).write_csv(tmp_path / "in/c.csv")
    for word in ("count", "drop"):
        made = run_of(
            tmp_path / "in",
            tmp_path / word,
            duplicates=word,
            train_ratio=1.0,
            val_ratio=0.0,
            preprocessing_configs=AS_IS,
        )
        assert {"are": word, "entities": 1} == made.manifest.metadata["duplicates"]
        assert headrace.verify(tmp_path / word).problems == []


@pytest.mark.slow
def test_verify_finds_copies_that_a_run_does_not_name(tmp_path: Path) -> None:
    source = planted(tmp_path / "in", ("bb", "b"))
    allowed = run_of(source, tmp_path / "allowed", duplicates="allow")
    counted = run_of(source, tmp_path / "counted")

    for word in ("count", "drop"):
        (told,) = problems_as(allowed, word)
        assert "does not say that 'bb' has the values and times of 'b'" in told
    (told,) = problems_as(counted, "drop")
    assert "'bb' should be left out for 'b'" in told


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.booleans()), min_size=2, max_size=6)
)
@settings(max_examples=examples(20), deadline=None)
def test_copies_are_those_whose_cleaned_series_are_equal(drawn) -> None:
    """Each is one of two series, as it is or changed in its values, times or gaps, with rows in any order."""
    asked = series(Path("in"), frequency="1d")
    cleaned = []
    for base, change, turned in drawn:
        rng = np.random.default_rng(base)
        times, values = (
            np.arange(400, dtype=np.int64) * 86_400_000_000,
            rng.integers(-3, 3, (400, 3)) + 0.0,
        )
        values[values == 0] = -0.0 if turned else 0.0
        values[100:120, 1] = np.nan
        if change == 1:
            values[399, 0] += 1
        elif change == 2:
            times = times + 86_400_000_000
        elif change == 3:
            values[50, 0] = np.nan
        order = slice(None, None, -1 if turned else 1)
        cleaned.append(clean(asked, Observed(times[order], values[order].copy()), "a"))

    def equal(one, other) -> bool:
        same_values = one.values.shape == other.values.shape and np.array_equal(
            one.values, other.values, equal_nan=True
        )
        return same_values and np.array_equal(one.axis.times(), other.axis.times())

    copies = find_copies((str(number), series_digest(each)) for number, each in enumerate(cleaned))
    expected: dict[str, str] = {}
    for one, other in combinations(range(len(cleaned)), 2):
        if equal(cleaned[one], cleaned[other]):
            expected.setdefault(str(other), str(one))
    assert expected == copies
