"""Directories of other systems are refused by name, with the way to export them, wherever a source can be given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from foreign_layouts import LAYOUTS, arrow, delta, finished_run, hudi, iceberg, parquet, text

import headrace
from headrace.errors import InputError
from headrace.formats.listing import list_files
from raised import raised


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_foreign_directory_is_refused_by_name_with_its_export(
    tmp_path: Path, layout: str
) -> None:
    name, export, write = LAYOUTS[layout]
    root = tmp_path / "lake" / "given"
    write(root)

    for given in (root, tmp_path / "lake"):  # the directory, and its parent
        with pytest.raises(InputError) as caught:
            headrace.open(given, cache_dir=tmp_path / "cache")
        message = str(caught.value)
        assert name in message
        assert export in message
        assert str(root) in message


@pytest.mark.parametrize("layout", ["delta", "partitioned delta", "iceberg", "hudi", "mosaic csv", "zarr"])  # fmt: skip
@pytest.mark.parametrize("pattern", ["**/*.*", "given/*.*", "given/**/*.parquet"])
def test_a_pattern_into_a_foreign_directory_is_refused(
    tmp_path: Path, layout: str, pattern: str
) -> None:
    name, _, write = LAYOUTS[layout]
    write(tmp_path / "given")
    if not any(path.is_file() for path in tmp_path.glob(pattern)):
        pytest.skip("the pattern matches nothing")

    with pytest.raises(InputError, match=f"{name}|no such file|no data file"):
        list_files([tmp_path / pattern])


@pytest.mark.parametrize(
    ("write", "inside"),
    [(delta, "."), (iceberg, "data"), (hudi, "2024")],
)
def test_a_directory_inside_a_table_is_refused(
    tmp_path: Path, write: Callable[[Path], None], inside: str
) -> None:
    write(tmp_path / "given")

    with raised(InputError, remedy="hand its rows over as a table"):
        list_files([tmp_path / "given" / inside])


def test_single_files_of_a_table_are_read_with_a_warning(tmp_path: Path) -> None:
    delta(tmp_path)

    with pytest.warns(UserWarning, match="Delta table"):
        assert ["part-00000.parquet"] == list_files([tmp_path / "part-00000.parquet"]).names


def test_every_recipe_refuses_a_delta_table(tmp_path: Path) -> None:
    delta(tmp_path / "raw")
    recipes = [
        headrace.TemporalSplit(
            source=tmp_path / "raw", time="t", entity="id", split_date="2024-01-01"
        ),
        headrace.Rewrite(source=tmp_path / "raw"),
        headrace.PackedSequences(blend=str(tmp_path / "raw"), pack_size=8),
        headrace.Histories(source=tmp_path / "raw", entity="id", time="t"),
        headrace.Series(source=tmp_path / "raw", time="t", future_features=("x",), target="y"),
    ]
    for recipe in recipes:
        with raised(InputError, path=tmp_path / "raw", remedy="deltalake.DeltaTable("):
            headrace.prepare(recipe, tmp_path / "out")


def test_the_run_of_a_prepared_dataset_is_no_source(tmp_path: Path) -> None:
    finished_run(tmp_path / "runs" / "a")

    with raised(InputError, remedy="give headrace.open("):
        list_files([tmp_path / "runs" / "a"])
    with raised(InputError, remedy="give headrace.open("):
        list_files([tmp_path / "**" / "*.parquet"])


def test_ordinary_directories_are_not_taken_for_foreign_ones(tmp_path: Path) -> None:
    parquet(tmp_path / "data" / "a.parquet")
    for name in ("_SUCCESS", "_committed_12", "_started_12", ".a.parquet.crc", ".DS_Store", "._a.parquet", "_metadata", "_common_metadata", "a.parquet~", "README.md"):  # fmt: skip
        text(tmp_path / "data" / name, "x")
    text(tmp_path / "metadata" / "notes.json", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        assert ["a.parquet"] == list_files([tmp_path / "data"]).names
        assert ["a.parquet"] == list_files([tmp_path / "data" / "*"]).names


def test_rows_of_an_index_file_that_is_not_foreign_are_read(tmp_path: Path) -> None:
    text(tmp_path / "index.json", {"id": 7, "shards": "many"})

    assert ["index.json"] == list_files([tmp_path]).names


@pytest.mark.parametrize("suffix", ["crdownload", "part", "partial", "incomplete", "download", "aria2", "bz2", "xz", "zip", "lz4", "CRDOWNLOAD"])  # fmt: skip
def test_a_file_that_would_be_data_once_it_is_whole_is_not_left_out_silently(
    tmp_path: Path, suffix: str
) -> None:
    parquet(tmp_path / "a.parquet")
    text(tmp_path / f"b.parquet.{suffix}", "x")

    for given in (tmp_path, tmp_path / "*"):
        with pytest.raises(InputError, match=rf"b\.parquet\.{suffix}.*(download|decompress)"):
            list_files([given])
    assert ["a.parquet"] == list_files([tmp_path / "*.parquet"]).names


def test_an_arrow_file_of_hugging_face_may_be_named(tmp_path: Path) -> None:
    arrow(tmp_path / "cache-1234.arrow")

    assert ["cache-1234.arrow"] == list_files([tmp_path / "cache-1234.arrow"]).names


def test_the_line_of_a_refusal_hands_the_rows_of_a_delta_table_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    deltalake.write_deltalake(tmp_path / "table", pa.table({"number": range(200)}))
    deltalake.DeltaTable(tmp_path / "table").delete("number < 40")
    with pytest.raises(InputError) as caught:
        headrace.open(tmp_path / "table")
    names = {"deltalake": deltalake}
    exec(str(caught.value).split("`")[1], names)  # the line is what a user copies

    assert [*range(40, 200)] == headrace.open(names["source"])["all"].to_arrow()[
        "number"
    ].to_pylist()
