"""Copies of tables in the cache: a damaged one is made again, and copies that nobody opens can be removed."""

import json
import os
import time
from pathlib import Path

import polars as pl
import pytest

from commands import headrace as headrace_command
from headrace.dataset.tables import keep, remove_unused

TABLE = pl.DataFrame({"number": range(100)})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_a_copy_that_lost_a_file_is_made_again(tmp_path: Path) -> None:
    copy = keep(TABLE)
    (shard,) = copy.rglob("*.parquet")
    data = shard.read_bytes()
    shard.unlink()

    assert copy == keep(TABLE)
    assert data == shard.read_bytes()


def test_a_copy_in_the_place_of_another_is_made_again() -> None:
    one, other = keep(pl.DataFrame({"a": [1]})), keep(pl.DataFrame({"a": [2]}))
    (shard,), (stranger,) = one.rglob("*.parquet"), other.rglob("*.parquet")
    data = shard.read_bytes()
    assert len(data) == stranger.stat().st_size
    shard.write_bytes(stranger.read_bytes())

    assert one == keep(pl.DataFrame({"a": [1]}))
    assert data == shard.read_bytes()


def test_copies_that_nobody_opened_for_so_long_are_removed(tmp_path: Path) -> None:
    old, young = keep(pl.DataFrame({"a": [1]})), keep(pl.DataFrame({"a": [2]}))
    for copy in (old, young):
        os.utime(copy, (time.time() - 40 * 86400,) * 2)
    keep(pl.DataFrame({"a": [2]}))  # used now
    removed, size = remove_unused(None, 30 * 86400)

    assert (old,) == removed
    assert size > 0
    assert not old.exists()
    assert young.is_dir()
    assert 1 == len(remove_unused(None, -1)[0])


def test_the_command_removes_copies(tmp_path: Path) -> None:
    copy = keep(pl.DataFrame({"a": [1]}))
    os.utime(copy, (time.time() - 3 * 86400,) * 2)
    kept = headrace_command("gc", "--tables", "7d")
    gone = headrace_command("gc", "--tables", "2d", "--json")

    assert "removed 0 tables" in kept.stdout
    assert [str(copy)] == json.loads(gone.stdout)["removed"]
    assert 2 == headrace_command("gc").returncode
