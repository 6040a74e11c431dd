"""A listing names each data file of a source once, in one order, and its digest follows every change of them."""

import os
import re
from pathlib import Path

import pytest

import headrace
from headrace.errors import InputError
from headrace.formats.listing import list_files
from headrace.formats.registry import FORMATS, file_type_of_name
from raised import raised


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"n\n1\n")


def test_names_are_relative_sorted_and_data_only(tmp_path: Path) -> None:
    touch(*(tmp_path / "raw" / name for name in ("b.csv", "a.CSV", "c.parquet.gz", ".hidden.csv", "_x.csv", "notes.txt", "csv", "x.csv.bak")))  # fmt: skip
    (tmp_path / "raw" / "d.csv").mkdir()
    listing = list_files([tmp_path / "raw"])

    assert ["a.CSV", "b.csv", "c.parquet.gz"] == listing.names
    assert tmp_path / "raw" / "b.csv" == listing.path(1)
    assert [4, 4, 4] == listing.sizes.tolist()
    assert [listing.path(n).stat().st_mtime_ns for n in range(3)] == listing.stat_array[
        :, 1
    ].tolist()


@pytest.mark.parametrize("name", ["a.csv", "A.Json.GZ", "x.snappy.parquet", "a.ndjson.zst", "a.feather", ".csv", "_a.csv", "a.txt", "acsv", "a.csv.bz2", "a.parquet.gz.gz", "a.arrow"])  # fmt: skip
def test_a_name_is_data_as_elsewhere(name: str) -> None:
    assert (file_type_of_name(name) is not None) == (
        name[0] not in "._" and name.lower().endswith(FORMATS.endings)
    )


def test_files_of_several_places_are_named_below_what_they_share(tmp_path: Path) -> None:
    touch(tmp_path / "x" / "a.csv", tmp_path / "y" / "z" / "a.csv")
    listing = list_files(
        [tmp_path / "y" / "z", str(tmp_path / "*" / "*.csv"), tmp_path / "x" / "a.csv"]
    )

    assert tmp_path == listing.root
    assert ["x/a.csv", "y/z/a.csv"] == listing.names


def test_links_are_listed_once_under_the_first_name(tmp_path: Path) -> None:
    touch(tmp_path / "raw" / "b.csv", tmp_path / "far" / "c.csv")
    (tmp_path / "raw" / "a.csv").symlink_to("b.csv")
    (tmp_path / "raw" / "d.csv").symlink_to(tmp_path / "far" / "c.csv")
    (tmp_path / "again").symlink_to("raw", target_is_directory=True)

    assert ["a.csv", "d.csv"] == list_files([tmp_path / "raw"]).names
    assert ["again/a.csv", "again/d.csv"] == list_files(
        [tmp_path / "raw", tmp_path / "again"]
    ).names


def test_the_digest_follows_names_sizes_and_times(tmp_path: Path) -> None:
    touch(tmp_path / "a.csv", tmp_path / "b.csv")
    os.utime(tmp_path / "a.csv", ns=(5, 5))
    seen = [list_files([tmp_path]).digest()]
    assert seen == [list_files([tmp_path]).digest()]
    os.utime(tmp_path / "a.csv", ns=(5, 6))
    seen.append(list_files([tmp_path]).digest())
    (tmp_path / "a.csv").write_bytes(b"longer")
    os.utime(tmp_path / "a.csv", ns=(5, 6))
    seen.append(list_files([tmp_path]).digest())
    (tmp_path / "b.csv").rename(tmp_path / "c.csv")
    seen.append(list_files([tmp_path]).digest())
    touch(tmp_path / "d.csv")
    seen.append(list_files([tmp_path]).digest())

    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("entry", ["nothing", "*.csv", "empty"])
def test_an_entry_without_files_is_an_error(entry: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(InputError, match="holds no|no such file"):
        list_files([tmp_path / entry])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["2024/1/a.parquet"], r"its subdirectories do; give '{root}/\*/\*/\*\.parquet'$"),
        (["b/a.csv.gz", "c/a.csv.gz"], r"its subdirectories do; give '{root}/\*/\*\.csv\.gz'$"),
        (["a.csv.bz2"], r"arrow file; it has a\.csv\.bz2; convert or unpack such files"),
        ([".hidden/a.csv", "_SUCCESS"], "arrow file; give the directory of the shards"),
    ],
)
def test_a_directory_without_data_says_what_it_has(
    files: list[str], message: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    message = message.replace("{root}", re.escape(str(tmp_path)))

    with pytest.raises(InputError, match=message):
        list_files([tmp_path])
    with pytest.raises(InputError, match=f"holds no finished run, and holds no .*{message}"):
        headrace.open(tmp_path)


def test_a_dangling_link_is_no_file(tmp_path: Path) -> None:
    touch(tmp_path / "a.csv")
    (tmp_path / "b.csv").symlink_to("gone")

    assert ["a.csv"] == list_files([tmp_path]).names


def test_files_left_out_are_counted_with_an_example(tmp_path, caplog):
    for name in ("part-0.csv", "_part-1.csv", ".part-2.csv", "_notes.txt"):
        (tmp_path / name).write_text("a\n1\n")

    listing = list_files([tmp_path / "*.csv"])
    again = list_files([tmp_path])

    assert listing.names == again.names == ["part-0.csv"]
    (record,) = caplog.records
    assert str(tmp_path / ".part-2.csv") in record.message
    assert "2 data files" in record.message


@pytest.mark.parametrize("name", ["_part-1.csv", ".part-1.csv"])
def test_a_file_that_is_left_out_is_refused_by_the_reason(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("a\n1\n")

    with raised(InputError, path=path, remedy="rename it"):
        headrace.open(path)


def test_a_file_given_by_name_leaves_none_out(tmp_path, caplog):
    for name in ("part-0.csv", "_part-1.csv"):
        (tmp_path / name).write_text("a\n1\n")

    list_files([tmp_path / "part-0.csv"])

    assert not caplog.records
