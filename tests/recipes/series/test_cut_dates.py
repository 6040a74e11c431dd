"""Cuts at the same times in all entities, and what splits share of calendar time."""

import html
import json
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from basins import SPLITS, a_basin, readable_rows, settings, write_basins
from basins import series as prepared_basins
from series_sources import frame_of, run_of, series, write_source

import headrace
from commands import headrace as run_command
from headrace.errors import SettingsError
from headrace.run.prepare import Prepared

DATES = {"train_end": "2002-03-01", "val_end": "2002-09-01"}
ENDS = [datetime(2002, 3, 1), datetime(2002, 9, 1)]


def staggered(directory: Path, starts: dict[str, str]) -> Path:
    directory.mkdir()
    for name, first in starts.items():
        frame_of(name, first=first).write_csv(directory / f"{name}.csv")
    return directory


def calendar_of(prepared: Prepared) -> str:
    return next(
        each.detail for each in headrace.verify(prepared.out).checks if each.name == "calendar time"
    )


@pytest.mark.slow
def test_every_row_is_on_its_side_of_the_dates(tmp_path: Path) -> None:
    starts = {"a": "2000-06-01", "b": "2001-01-01", "late": "2002-07-01", "early": "1999-06-01"}
    made = run_of(staggered(tmp_path / "raw", starts), tmp_path / "out", **DATES)
    rows = readable_rows(made)

    for name in ("a", "b", "early"):
        times = [
            moment for split in SPLITS if name in rows[split] for moment in rows[split][name].times
        ]
        expected = [SPLITS[sum(moment >= end for end in ENDS)] for moment in times]
        assert expected == [
            split for split in SPLITS if name in rows[split] for _ in rows[split][name].times
        ]
    excluded = json.loads((made.run / "quality_summary.json").read_bytes())["excluded_entities"]
    assert ["late"] == list(excluded)
    assert excluded["late"].startswith(
        "0 observed targets in train before train_end 2002-03-01 (of"
    )
    assert "early" not in rows["test"]
    assert headrace.verify(made.out).problems == []
    assert "no two splits share any, whatever the entity" == calendar_of(made)


def test_scalers_are_of_the_rows_before_train_end(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a"])
    made = run_of(source, tmp_path / "out", max_imputation_gap_size=0, **DATES)
    fitted = json.loads((made.run / "fitted_pipelines.json").read_bytes())["time_series"]
    rain = pl.read_csv(source / "a.csv").filter(
        pl.col("date").is_between(pl.lit("2001-01-08"), pl.lit("2002-02-28"))
    )

    scaled = (
        headrace.load_pipelines(made.out)
        .features[0]
        .transform(rain.with_columns(gauge_id=pl.lit("a")))
    )
    np.testing.assert_allclose(
        [0, 1], [scaled["rain"].mean(), scaled["rain"].std(ddof=0)], atol=1e-12
    )
    assert 2 == len(fitted)


def test_rows_that_come_later_move_no_cut(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a", "b"])
    shorter = tmp_path / "shorter"
    shorter.mkdir()
    for path in source.iterdir():
        pl.read_csv(path).filter(pl.col("date") < "2002-12-01").write_csv(shorter / path.name)
    whole, part = (
        run_of(source, tmp_path / "whole", **DATES),
        run_of(shorter, tmp_path / "part", **DATES),
    )

    for split in ("train", "val"):
        for path in (whole.run / "processed_time_series" / split).iterdir():
            assert (
                path.read_bytes()
                == (part.run / "processed_time_series" / split / path.name).read_bytes()
            )


def test_without_val_end_nothing_validates(tmp_path: Path) -> None:
    made = run_of(write_source(tmp_path / "raw", ["a"]), tmp_path / "out", train_end="2002-03-01")

    assert 0 == made.manifest.splits["val"].rows
    assert made.manifest.splits["test"].rows > 0


UNIFIED = {"strategy": "unified", "pipeline": "StandardScaler", "fit_on_n_entities": 9}
HELD = {"preprocessing_configs": {"features": UNIFIED, "target": UNIFIED}}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"train_end": "2002-03-01"}, []),
        ({"train_end": "2030-01-01"}, ["test has no rows: train_end 2030-01-01 is after the last row, at 2003-06-14; give an earlier train_end"]),
        (DATES | {"val_end": "2030-01-01T12:00"}, ["test has no rows: val_end 2030-01-01 12:00:00 is after the last row, at 2003-06-14; give an earlier val_end"]),
        ({"train_end": "2029-01-01", "val_end": "2030-01-01"}, ["val has no rows: train_end 2029-01-01 is after", "test has no rows: val_end 2030-01-01 is after"]),
        (DATES | {"gap": "200d"}, ["val has no rows: no row is from train_end 2002-03-01 to before val_end 2002-09-01, less gap; give other dates"]),
        (DATES | {"train_end": "2002-06-01", "val_end": "2003-06-01", "folds": "rolling:n=2,step=20d"}, ["fold 1 (cut at 2003-06-21) has no rows in test: the last row is at 2003-06-14; give fewer folds or an earlier train_end"]),
        ({"val_ratio": 0.0001}, ["val has no rows: a share of 0.0001 is less than one observed target of every entity; give other ratios"]),
        ({"val_ratio": 0}, []),
        (HELD | {"val_entities": ["c"]}, ["val has no rows: none of val_entities passes; see quality_summary.json"]),
    ],
)  # fmt: skip
def test_a_split_without_rows_is_told_with_its_cut_and_the_last_time(
    tmp_path: Path, more: dict, told: list
) -> None:
    source, events = write_source(tmp_path / "raw", ["a", "b"]), list[Any]()
    frame_of("c", days=9).with_columns(q=None).write_csv(source / "c.csv")
    made = headrace.prepare(
        series(source, **more), tmp_path / "out", workers=1, on_event=events.append
    )
    warned = [each.text for each in events if "has no rows" in getattr(each, "text", "")]
    run_command("inspect", tmp_path / "out", "--report")
    report = (made.run / "report.html").read_text()

    assert len(told) == len(warned)
    for words, text in zip(told, warned, strict=True):
        assert text.startswith(words)
        assert html.escape(text, quote=False)[:40] in report
    assert warned == made.manifest.metadata.get("no_rows", [])


@pytest.mark.parametrize("seed", [1, 2])
def test_the_check_of_calendar_time_counts_as_one_would_by_hand(tmp_path: Path, seed: int) -> None:
    basins = {f"g{place}": a_basin(10 * seed + place, 60 + 20 * place) for place in range(4)}
    made = prepared_basins(write_basins(tmp_path / "in", basins), tmp_path / "out")
    rows = readable_rows(made)
    told = []
    for earlier, later in combinations(SPLITS, 2):
        first = min(min(each.times) for each in rows[later].values())
        behind = [max(each.times) for each in rows[earlier].values() if max(each.times) >= first]
        if behind:
            told.append(
                f"{earlier} of {len(behind)} entities reaches to {max(behind)}, {later} of others begins {first}"
            )

    assert told
    assert "; ".join(told) == calendar_of(made)


@pytest.mark.slow
def test_the_report_says_that_splits_overlap(tmp_path: Path) -> None:
    basins = {f"g{place}": a_basin(place, 60 + 30 * place) for place in range(3)}
    made = prepared_basins(write_basins(tmp_path / "in", basins), tmp_path / "out")
    run_command("inspect", tmp_path / "out", "--report")

    assert "Entities overlap in calendar time: train of" in (made.run / "report.html").read_text()


def test_a_configuration_may_hold_a_date_or_a_text(tmp_path: Path) -> None:
    source = write_source(tmp_path / "raw", ["a"])
    config = tmp_path / "config.yaml"
    config.write_text(
        f"recipe: series\nsource: {source}\ntarget: q\nfuture_features: [rain, warm]\nmin_train_years: 0.5\nbatch_size: 2\n"
        "train_end: 2002-03-01\nval_end: '2002-09-01'\n"
    )
    done = json.loads(run_command("run", config, "--out", tmp_path / "out", "--json").stdout)
    same = series(source, train_end="2002-03-01T01:00+01:00", val_end="2002-09-01T00:00")

    assert done["run_id"] == headrace.prepare(same, tmp_path / "out").manifest.run_id


def test_dates_that_cannot_cut_are_refused(tmp_path: Path) -> None:
    for wrong, told in (
        ({"val_end": "2002-01-01"}, "val_end is given without train_end"),
        ({"train_end": "2002-01-01", "val_end": "2001-01-01"}, "is after val_end"),
        (
            {"train_end": "2002-01-01", "train_ratio": 0.5, "val_ratio": 0.3},
            "cut by dates or by shares",
        ),
        ({"train_end": "soon"}, "train_end is 'soon'; give an ISO date"),
    ):
        with pytest.raises(SettingsError, match=told):
            settings(tmp_path, **wrong)
