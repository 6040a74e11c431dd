"""Directories of other systems and named splits are told in a store as on a disk."""

import re
from pathlib import Path

import pytest
from foreign_layouts import LAYOUTS, delta, saved_dict
from store_cases import rows_of, upload

import headrace
from headrace.errors import InputError
from headrace.formats.listing import list_files
from headrace.storage.places import path_of, place_of


def test_foreign_prefixes_are_refused_by_name(s3: str, tmp_path: Path) -> None:
    for layout, (name, export, write) in LAYOUTS.items():
        root, place = tmp_path / layout, f"{s3}/{layout.replace(' ', '-')}"
        write(root)
        for path in (each for each in root.rglob("*") if each.is_file()):
            place_of(path_of(place) / path.relative_to(root).as_posix()).put_new(path.read_bytes())
        if layout == "hudi":
            place += "/2024"

        with pytest.raises(InputError, match=f"{name}.*{re.escape(export)}"):
            headrace.open(place, cache_dir=tmp_path / "cache")


def test_patterns_and_prefixes_into_a_table_are_refused(s3: str, tmp_path: Path) -> None:
    delta(tmp_path / "lake" / "table")
    (tmp_path / "lake" / "table" / "year=2024").mkdir()
    (tmp_path / "lake" / "table" / "year=2024" / "a.csv").write_text("id\n1\n")
    upload(tmp_path / "lake", f"{s3}/lake")
    for given in ("lake/*/*.parquet", "lake/table/*.parquet", "lake/**/*.parquet", "lake/table/year=2024", "lake/table/year=2024/*.csv"):  # fmt: skip
        with pytest.raises(InputError, match="Delta table"):
            list_files([f"{s3}/{given}"])
    assert 1 == len(list_files([f"{s3}/lake/table/part-00000.parquet"]).names)


def test_prefixes_named_after_splits_are_splits(s3: str, tmp_path: Path) -> None:
    for split in ("train", "val"):
        place_of(path_of(f"{s3}/own/{split}/a.csv")).put_new(f"id\n{split}\n".encode())
    for given in (f"{s3}/own", f"{s3}/own/*/*.csv"):
        dataset = headrace.open(given, cache_dir=tmp_path / "cache")

        assert {"train": 1, "val": 1} == dict(dataset.split_rows)
        assert [{"id": "val", "valid": True}] == rows_of(dataset, "val")
        with pytest.raises(InputError, match="several splits, train, val"):
            list_files([given])
    place_of(path_of(f"{s3}/own/more.csv")).put_new(b"id\nx\n")
    with pytest.raises(InputError, match=r"more\.csv belongs to none"):
        headrace.open(f"{s3}/own", cache_dir=tmp_path / "cache")


def test_a_saved_dataset_of_hugging_face_is_read(s3: str, tmp_path: Path) -> None:
    saved_dict(tmp_path / "saved")
    (tmp_path / "saved" / "train" / "cache-1.arrow").write_bytes(b"not listed")
    upload(tmp_path / "saved", f"{s3}/saved")

    assert {"train": 3, "test": 3} == dict(
        headrace.open(f"{s3}/saved", cache_dir=tmp_path / "cache").split_rows
    )
    assert ["data-00000-of-00001.arrow"] == list_files([f"{s3}/saved/train"]).names
    with pytest.raises(InputError, match="several splits, train, test"):
        list_files([f"{s3}/saved"])
    with pytest.raises(InputError, match="save_to_disk.*give .* itself"):
        list_files([f"{s3}/saved/train/*.arrow"])
    place_of(path_of(f"{s3}/saved/train/data-00000-of-00001.arrow")).delete()
    with pytest.raises(InputError, match=r"data-00000-of-00001\.arrow: is missing"):
        list_files([f"{s3}/saved/train"])


def test_prefixes_named_after_columns_are_columns(s3: str, tmp_path: Path) -> None:
    for number, name in enumerate(("year=2024/month=01", "year=2025/month=12")):
        path = tmp_path / "lake" / name / "a.csv"
        path.parent.mkdir(parents=True)
        path.write_text(f"id\n{number}\n")
    upload(tmp_path / "lake", f"{s3}/lake")
    expected = [{"id": 0, "year": 2024, "month": "01"}, {"id": 1, "year": 2025, "month": "12"}]
    local = list_files([tmp_path / "lake"]).names

    for entry in ("lake", "lake/*/*/*.csv", "lake/**/*.csv"):
        assert local == list_files([f"{s3}/{entry}"]).names
        dataset = headrace.open(f"{s3}/{entry}", cache_dir=tmp_path / "cache")
        assert expected == dataset["all"].to_arrow().to_pylist()
    assert ["month=01/a.csv"] == list_files([f"{s3}/lake/year=2024/*/*.csv"]).names
    assert ["year=2024/month=01/a.csv"] == list_files([f"{s3}/lake/*2024/*/*.csv"]).names
