"""JSON files of a run are objects of bounded size and depth, or an error names them."""

from pathlib import Path

import pytest

from headrace.errors import CorruptShard
from headrace.gate.json import DEEPEST, LARGEST, find_object, read_object
from raised import raised

DAMAGED = {
    "deep": b'{"a":' * 100_000,
    "deep lists": b'{"a":' + b"[" * DEEPEST + b"]" * DEEPEST + b"}",
    "a list": b"[]",
    "a text": b'"a"',
    "nothing": b"",
    "a key twice": b'{"a": 1, "a": 2}',
    "NaN": b'{"a": NaN}',
    "not UTF-8": b'{"a": "\xff"}',
    "cut": b'{"a": ',
    "a long number": b'{"a": ' + b"9" * 100_000 + b"}",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_object_is_an_error_that_names_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(DAMAGED[name])

    with raised(CorruptShard, path=path):
        read_object(path)
    with raised(CorruptShard, path=path):
        find_object(path)


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": ' + b"[" * (DEEPEST - 1) + b"]" * (DEEPEST - 1) + b', "b": 1.5}')

    assert 1.5 == read_object(path)["b"]


def test_a_missing_file_is_an_error_or_none(tmp_path: Path) -> None:
    with raised(CorruptShard, path=tmp_path / "config.json"):
        read_object(tmp_path / "config.json")
    assert find_object(tmp_path / "config.json") is None


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with raised(CorruptShard, path=tmp_path):
        read_object(tmp_path)


def test_a_file_larger_than_any_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)

    with raised(CorruptShard, path=path):
        read_object(path)
