"""Source and output lie apart, for every recipe, on disks and in object stores."""

from pathlib import Path

import polars as pl
import pytest

import headrace
from headrace.errors import SettingsError
from headrace.run.identity import check_disjoint
from headrace.storage.places import path_of
from raised import raised


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "data/raw").mkdir(parents=True)
    rows = {
        "customer": ["a", "b", "c"],
        "time": ["2024-01-01", "2024-02-01", "2025-02-01"],
        "rtt": [1.0, 2.0, 3.0],
    }
    pl.DataFrame(rows).write_csv(tmp_path / "data/raw/a.csv")
    return tmp_path / "data/raw"


def recipes(source: Path) -> dict[str, object]:
    return {
        "split": headrace.TemporalSplit(source=source, time="time", entity="customer", split_date="2025-01-01"),
        "rewrite": headrace.Rewrite(source=[source]),
        "histories": headrace.Histories(source=source),
        "series": headrace.Series(source=[source], target="rtt", future_features=["rtt2"]),
        "pack": headrace.PackedSequences(blend=str(source), tokenizer="none"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["split", "rewrite", "histories", "series", "pack"])
def test_no_recipe_writes_into_its_source(name: str, raw: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(raw)
    before = sorted(tmp_path.rglob("*"))
    for out in (raw, raw / "deep/out", tmp_path / "link/out"):
        with raised(SettingsError, setting="out", remedy="give an output elsewhere"):
            headrace.prepare(recipes(raw)[name], out)

    assert before == sorted(tmp_path.rglob("*"))


def test_a_source_kept_below_its_output_is_fine(raw: Path) -> None:
    assert headrace.prepare(recipes(raw)["split"], raw.parent).how == "computed"


def test_a_pattern_of_files_is_no_directory(raw: Path) -> None:
    assert headrace.prepare(recipes(raw / "*.csv")["split"], raw).how == "computed"
    assert headrace.prepare(recipes(raw / "*.csv")["split"], raw / "out").how == "computed"
    assert headrace.prepare(recipes(raw / "a.csv")["split"], raw / "out").how == "reused"


def test_neighbours_are_apart(raw: Path) -> None:
    assert headrace.prepare(recipes(raw)["split"], raw.parent / "raw-split").how == "computed"
    assert (
        headrace.prepare(recipes(raw.parent / "raw-split")["rewrite"], raw.parent / "fast").how
        == "computed"
    )


def test_a_dataset_is_not_rewritten_into_itself(raw: Path) -> None:
    out = raw.parent / "out"
    headrace.prepare(recipes(raw)["split"], out)
    for source in (out, out / "splits/train"):
        with raised(SettingsError, setting="out", remedy="elsewhere"):
            headrace.prepare(headrace.Rewrite(source=[source]), out)


def test_places_in_stores_are_compared_by_name() -> None:
    files = [(path_of("s3://bucket/raw/a.csv"), "a.csv")]
    for out in ("s3://bucket/raw", "s3://bucket/raw/out"):
        with raised(SettingsError, setting="out", remedy="elsewhere"):
            check_disjoint(path_of(out), ["s3://bucket/raw"], files)
    for out in (
        "s3://bucket/raw2",
        "s3://bucket/out",
        "s3://other/raw",
        "gs://bucket/raw",
        "/bucket/raw",
        "s3://bucket",
    ):
        check_disjoint(path_of(out), ["s3://bucket/raw"], files)
