"""A version of a table is read once into the cache, and copies that nobody opens can be removed."""

import json
import os
import shutil
import time
from pathlib import Path

import polars as pl
import pytest

import headrace
from commands import headrace as headrace_command
from headrace.dataset import tables
from headrace.dataset.tables import keep, remove_unused

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    deltalake.write_deltalake(path, pl.DataFrame({"number": range(100)}))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The tables whose rows were read."""
    read: list[object] = []
    plain = tables._stream
    monkeypatch.setattr(tables, "_stream", lambda each: read.append(each) or plain(each))
    return read


def numbers(source: object) -> list[int]:
    return sorted(headrace.open(source)["all"].to_arrow()["number"].to_pylist())


def test_a_version_is_read_once(table: Path, reads: list[object]) -> None:
    for _ in range(3):
        assert [*range(100)] == numbers(f"delta:{table}")
    deltalake.write_deltalake(table, pl.DataFrame({"number": [100]}), mode="append")

    assert [*range(101)] == numbers(f"delta:{table}@1") == numbers(f"delta:{table}")
    assert [*range(100)] == numbers(f"delta:{table}@0")
    assert 2 == len(reads)


def test_tables_of_one_identity_that_went_apart_are_two(table: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(table, other)
    for path, number in ((table, 100), (other, 200)):
        deltalake.write_deltalake(path, pl.DataFrame({"number": [number]}), mode="append")

    assert [*range(101)] == numbers(f"delta:{table}@1")
    assert [*range(100), 200] == numbers(f"delta:{other}@1")


def test_a_copy_that_lost_a_file_or_bytes_is_made_again(table: Path, tmp_path: Path, reads: list[object]) -> None:
    numbers(f"delta:{table}")
    (shard,) = (tmp_path / "home").rglob("*.parquet")
    data = shard.read_bytes()
    shard.unlink()

    assert [*range(100)] == numbers(f"delta:{table}")
    assert data == shard.read_bytes()
    assert 2 == len(reads)


def test_copies_that_nobody_opened_for_so_long_are_removed(table: Path, tmp_path: Path, reads: list[object]) -> None:
    old, young = keep(pl.DataFrame({"a": [1]})), keep(pl.DataFrame({"a": [2]}))
    numbers(f"delta:{table}")
    copies = [each for each in old.parent.iterdir() if each.is_dir()]
    for each in copies:
        os.utime(each, (time.time() - 40 * 86400,) * 2)
    numbers(f"delta:{table}")  # used now
    keep(pl.DataFrame({"a": [2]}))
    removed, size = remove_unused(None, 30 * 86400)

    assert (old,) == removed
    assert size > 0
    assert not old.exists()
    assert young.is_dir()
    assert [*range(100)] == numbers(f"delta:{table}")
    assert 4 == len(reads)  # three tables, and the one that was given again
    assert 2 == len(remove_unused(None, -1)[0])
    assert [*range(100)] == numbers(f"delta:{table}")


def test_a_damaged_record_is_no_record(table: Path, tmp_path: Path, reads: list[object]) -> None:
    numbers(f"delta:{table}")
    (record,) = (tmp_path / "home").rglob("known-*.json")
    assert ["sizes", "table"] == sorted(json.loads(record.read_bytes()))
    record.write_bytes(b"{")

    assert [*range(100)] == numbers(f"delta:{table}")
    assert 2 == len(reads)


def test_the_command_removes_copies(table: Path, tmp_path: Path) -> None:
    copy = keep(pl.DataFrame({"a": [1]}))
    os.utime(copy, (time.time() - 3 * 86400,) * 2)
    kept = headrace_command("gc", "--tables", "7d")
    gone = headrace_command("gc", "--tables", "2d", "--json")

    assert "removed 0 tables" in kept.stdout
    assert [str(copy)] == json.loads(gone.stdout)["removed"]
    assert 2 == headrace_command("gc").returncode
