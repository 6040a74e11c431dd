"""The laws of the preparation: what is stored is what the specification's words give, whatever the way there."""

import json
import os
import shutil
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from basins import (
    SPLITS,
    Row,
    a_basin,
    close,
    expected,
    files_of,
    parquet,
    readable_rows,
    scaled,
    series,
    stored,
    text,
    write_basins,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from laws import examples


def some_basins(seed: int, count: int = 7) -> dict[str, list[Row]]:
    return {f"g_{place:03d}": a_basin(seed * 100 + place, 70 + 9 * place) for place in range(count)}


@pytest.mark.slow
@given(st.integers(0, 10**6), st.sampled_from([0, 2, 5]), st.sampled_from([(0.6, 0.2, 0.2), (0.5, 0.25, 0.25), (0.7, 0.3, 0.0)]))  # fmt: skip
@settings(max_examples=examples(8))
def test_what_is_stored_is_what_the_words_give(
    tmp_path_factory, seed: int, limit: int, shares
) -> None:
    basins = some_basins(seed, 3)
    directory = tmp_path_factory.mktemp("laws")
    train, val, _ = shares
    prepared = series(
        write_basins(directory / "in", basins),
        directory / "out",
        max_imputation_gap_size=limit,
        train_ratio=train,
        val_ratio=val,
    )

    found, readable = stored(prepared), readable_rows(prepared)
    assert found == readable
    for name, rows in basins.items():
        by_hand = expected(rows, limit=limit, train=train, val=val)
        report = json.loads((prepared.run / "quality_reports" / f"{name}.json").read_bytes())
        if not report["passed_quality_check"]:
            assert by_hand is None or by_hand.targets["train"] < 7
            continue
        assert by_hand is not None
        for split, values in scaled(by_hand).items():
            if not values:
                assert name not in found[split]
                continue
            assert by_hand.times[split] == found[split][name].times
            assert close(values, found[split][name].values)
        assert by_hand.targets == {split: report["targets"][split] for split in SPLITS}
        assert by_hand.filled == [report["imputation_info"][column]["imputed_values_count"] for column in ("flow", "rain", "cold")]  # fmt: skip


@pytest.mark.slow
def test_every_source_row_is_in_one_split_or_has_a_reason(tmp_path: Path) -> None:
    basins = some_basins(1)
    source = write_basins(tmp_path / "in", basins)
    parquet(source / "short.parquet", a_basin(5, 9, outages=0))
    prepared = series(source, tmp_path / "out")

    rows = sum(len(each) for each in basins.values()) + len(a_basin(5, 9, outages=0))
    manifest = prepared.manifest
    assert rows == manifest.source["rows"]
    assert rows == sum(manifest.metadata["source_rows"].values()) + sum(manifest.dropped.values())
    assert len(a_basin(5, 9, outages=0)) == manifest.dropped["entity_failed"]
    verdict = headrace.verify(tmp_path / "out")
    assert [] == verdict.problems
    assert {"files", "entities", "rows", "rows conserved"} <= {
        check.name for check in verdict.checks
    }


def test_rows_of_an_entity_are_on_equal_steps_through_all_splits(tmp_path: Path) -> None:
    readable = readable_rows(
        series(write_basins(tmp_path / "in", some_basins(2, 4)), tmp_path / "out")
    )

    for name in readable["train"]:
        times = [
            time
            for split in SPLITS
            if name in readable[split]
            for time in readable[split][name].times
        ]
        assert {1} == {(after - before).days for before, after in pairwise(times)}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["files", "packed"])
@pytest.mark.parametrize("strategy", ["per_group", "unified"])
def test_any_number_of_workers_gives_the_same_bytes(
    tmp_path: Path, layout: str, strategy: str
) -> None:
    source = write_basins(tmp_path / "in", some_basins(3, 8))
    pipeline = {"strategy": strategy, "pipeline": ["StandardScaler"]}
    if strategy == "unified":
        pipeline["fit_on_n_entities"] = 4
    asked = {
        "layout": layout,
        "preprocessing_configs": {"features": pipeline, "target": pipeline},
    }

    one, three = (
        series(source, tmp_path / f"out{workers}", workers=workers, **asked) for workers in (1, 3)
    )

    assert one.manifest.run_id == three.manifest.run_id
    assert files_of(one) == files_of(three)
    assert "store/part-00002.arrow" in files_of(one)


@pytest.mark.slow
def test_layouts_and_batch_sizes_change_where_rows_lie_and_not_what_they_are(
    tmp_path: Path,
) -> None:
    source = write_basins(tmp_path / "in", some_basins(4))
    files = series(source, tmp_path / "files")
    packed = series(source, tmp_path / "packed", layout="packed", batch_size=2)

    assert stored(files) == stored(packed)
    assert readable_rows(files) == readable_rows(packed)
    assert [] == headrace.verify(tmp_path / "packed").problems
    reports = {
        name: data for name, data in files_of(files).items() if name.startswith("quality_reports/")
    }
    table = packed_reports(packed.run)
    assert {json.loads(data)["entity"]: json.loads(data) for data in reports.values()} == table


def packed_reports(run: Path) -> dict[str, dict]:
    return {
        row["entity"]: json.loads(row["report"])
        for row in pq.read_table(run / "quality_reports.parquet").to_pylist()
    }


@pytest.mark.slow
def test_text_long_tables_and_files_give_the_same_series(tmp_path: Path) -> None:
    basins = some_basins(5, 5)
    files = series(write_basins(tmp_path / "in", basins), tmp_path / "files")
    for name, rows in basins.items():
        text(tmp_path / "csv" / f"{name}.csv", rows)
    every = sorted((row.date, name, row) for name, rows in basins.items() for row in rows)
    half = len(every) // 2
    for number, part in enumerate((every[:half], every[half:])):
        parquet(
            tmp_path / "long" / f"p{number}.parquet",
            [row for _, _, row in part],
            [name for _, name, _ in part],
        )

    csv = series(tmp_path / "csv", tmp_path / "csv_out")
    long = series(tmp_path / "long", tmp_path / "long_out", entity="gauge")

    assert stored(files) == stored(csv) == stored(long)
    assert [] == headrace.verify(tmp_path / "long_out").problems
    assert files_of(files)["store/part-00001.arrow"] == files_of(csv)["store/part-00001.arrow"]


def test_splits_stream_every_row_once(tmp_path: Path) -> None:
    prepared = series(write_basins(tmp_path / "in", some_basins(6, 4)), tmp_path / "out")
    stream = headrace.open(tmp_path / "out").stream("train", batch_size=32, shuffle=True, seed=1)

    rows = [
        (entity, datetime(1970, 1, 1) + timedelta(microseconds=time))
        for batch in stream
        for entity, time in zip(batch["entity"], batch["date"].tolist(), strict=True)
    ]
    every = [
        (name, time)
        for name, each in readable_rows(prepared)["train"].items()
        for time in each.times
    ]
    assert sorted(every) == sorted(rows)


def test_a_second_run_computes_nothing_and_other_settings_are_another_run(tmp_path: Path) -> None:
    source = write_basins(tmp_path / "in", some_basins(7, 3))
    first = series(source, tmp_path / "out")
    again = series(source, tmp_path / "out")
    other = series(source, tmp_path / "out", max_imputation_gap_size=1)

    assert ("computed", "reused", "computed") == (first.how, again.how, other.how)
    assert first.run == again.run
    assert os.path.realpath(tmp_path / "out" / "splits" / "train").endswith(f"{other.manifest.run_id}/processed_time_series/train")  # fmt: skip


@pytest.mark.parametrize(
    "name", ["store/part-00000.arrow", "entities.parquet", "quality_reports/g_001.json", "quality_summary.json", "fitted_pipelines.json",
             "processed_time_series/val/g_000.parquet", "receipts/write-00000.json"]
)  # fmt: skip
def test_a_changed_byte_anywhere_is_found(tmp_path: Path, name: str) -> None:
    prepared = series(write_basins(tmp_path / "in", some_basins(8, 3)), tmp_path / "out")
    path = prepared.run / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))

    problems = headrace.verify(tmp_path / "out").problems

    assert problems
    assert name in problems[0] or name.startswith("receipts")


def test_targets_are_never_filled(tmp_path: Path) -> None:
    prepared = series(write_basins(tmp_path / "in", some_basins(10, 3)), tmp_path / "out")

    for name in stored(prepared)["train"]:
        report = json.loads((prepared.run / "quality_reports" / f"{name}.json").read_bytes())
        assert 0 == report["imputation_info"]["flow"]["imputed_values_count"]


def test_a_moved_source_and_another_output_are_the_same_run(tmp_path: Path) -> None:
    """T6: neither where the source lies nor where the output goes is part of a run's identity; what it holds is."""
    source = write_basins(tmp_path / "in", some_basins(11, 2))
    first = series(source, tmp_path / "out")
    shutil.copytree(source, tmp_path / "moved")
    moved = series(tmp_path / "moved", tmp_path / "elsewhere")
    parquet(tmp_path / "moved" / "g_000.parquet", a_basin(77))
    changed = series(tmp_path / "moved", tmp_path / "elsewhere")

    assert first.manifest.run_id == moved.manifest.run_id != changed.manifest.run_id
    assert "computed" == changed.how
