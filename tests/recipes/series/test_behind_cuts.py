"""Nothing behind a cut – values, gaps, lengths, missing rows – changes a byte before it."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from cut_cases import CONFIGS, CUT, LOGGED, TEST_CUT, before, differences, run, table, write
from hypothesis import given, settings
from hypothesis import strategies as st
from series_sources import series

import headrace
from headrace.run.prepare import prepare
from laws import examples


@pytest.mark.parametrize(("cut", "splits"), [(CUT, ("train",)), (TEST_CUT, ("train", "val"))])
def test_a_gap_through_a_cut_is_left_whether_it_turns_out_short_or_long(
    tmp_path: Path, cut: int, splits
) -> None:
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
    info = json.loads((runs[1].run / "quality_reports/a.json").read_bytes())["imputation_info"][
        "rain"
    ]
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


@pytest.mark.slow
@pytest.mark.parametrize("configs", CONFIGS.values(), ids=CONFIGS)
@given(
    seed=st.integers(0, 1000),
    cut_of=st.sampled_from(["val", "test"]),
    open_gap=st.integers(0, 4),
    how=later(),
)
@settings(max_examples=examples(4))
def test_nothing_behind_a_cut_changes_a_byte_before_it(
    tmp_path_factory, configs: dict, seed: int, cut_of: str, open_gap: int, how: dict
) -> None:
    assert [] == differences(
        tmp_path_factory.mktemp("behind"), configs, seed, cut_of, open_gap, how
    )


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
    assert ["a", "late"] == summary["retained_entities"]
    assert "cannot take" in summary["excluded_entities"]["early"]
    assert 2 == report["imputation_info"]["rain"]["unusable_values_count"]
    assert {"rain": 2} == prepared.manifest.metadata["unusable_values"]
    assert any("2 values of rain" in each and "missing" in each for each in told)
    assert [] == headrace.verify(tmp_path / "out").problems


def test_targets_that_a_step_cannot_take_are_no_longer_counted(tmp_path: Path) -> None:
    values = table()
    values[70, 0], values[90, 0] = -5.0, -7.0
    logged = {
        "target": {
            "strategy": "per_group",
            "pipeline": [{"step": "Log", "offset": 0.1}, "StandardScaler"],
        }
    }
    prepared = run(tmp_path, {"a": values}, preprocessing_configs=logged)

    (entity,) = pq.read_table(prepared.run / "entities.parquet").to_pylist()
    assert (60, 19, 19) == (entity["train_targets"], entity["val_targets"], entity["test_targets"])
    assert [] == headrace.verify(tmp_path / "out").problems
