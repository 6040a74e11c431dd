"""The storage verbs keep their promises: a name that is visible is whole, and is never overwritten."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import CorruptShard, StoreError
from headrace.storage import local
from raised import raised


def prepared(target: Path, data: bytes) -> Path:
    temporary = local.temporary_for(target)
    temporary.write_bytes(data)
    return temporary


def test_a_published_file_has_its_bytes_and_no_temporary_name(tmp_path: Path) -> None:
    heard: list[str] = []
    local.publish(prepared(tmp_path / "a", b"one"), tmp_path / "a", announce=heard.append)

    assert b"one" == (tmp_path / "a").read_bytes()
    assert ["a"] == [path.name for path in tmp_path.iterdir()]
    assert ["synced", "linked"] == heard


def test_publishing_the_same_bytes_again_is_success(tmp_path: Path) -> None:
    for _ in range(2):
        local.publish(prepared(tmp_path / "a", b"one"), tmp_path / "a")

    assert ["a"] == [path.name for path in tmp_path.iterdir()]


def test_a_published_file_is_never_overwritten(tmp_path: Path) -> None:
    local.write_new(tmp_path / "a", b"one")

    with raised(CorruptShard, remedy="delete a (or run"):
        local.write_new(tmp_path / "a", b"two")
    assert b"one" == (tmp_path / "a").read_bytes()
    assert [] == local.strays(tmp_path)


def test_a_file_that_is_believed_only_by_its_digest_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"on")
    local.publish(prepared(tmp_path / "a", b"one"), tmp_path / "a", sync="none")

    assert b"one" == (tmp_path / "a").read_bytes()
    assert ["a"] == [path.name for path in tmp_path.iterdir()]


def test_temporary_names_are_all_different_and_hidden(tmp_path: Path) -> None:
    names = {local.temporary_for(tmp_path / "part-0.csv").name for _ in range(100)}

    assert 100 == len(names)
    assert all(name.startswith(".tmp-part-0.csv-") for name in names)


def test_an_alias_is_the_same_file(tmp_path: Path) -> None:
    local.write_new(tmp_path / "a", b"one")
    for _ in range(2):
        local.alias(tmp_path / "a", tmp_path / "b")

    assert (tmp_path / "a").samefile(tmp_path / "b")
    assert ["a", "b"] == sorted(path.name for path in tmp_path.iterdir())


def test_an_alias_of_an_older_file_is_renewed(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"older")
    local.write_new(tmp_path / "a", b"one")
    local.alias(tmp_path / "a", tmp_path / "b")

    assert (tmp_path / "a").samefile(tmp_path / "b")
    assert ["a", "b"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_link_points_relatively_and_is_replaced_in_one_step(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "splits").mkdir()
    for name in ("one", "two"):
        local.link_to(tmp_path / "splits" / "train", f"../runs/{name}")

    assert "../runs/two" == os.readlink(tmp_path / "splits" / "train")
    assert ["train"] == [path.name for path in (tmp_path / "splits").iterdir()]


def test_a_real_directory_is_not_replaced_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()

    with raised(StoreError, remedy="move it away and run again"):
        local.link_to(tmp_path / "train", "runs")


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "the disk is full; free space"), (errno.EDQUOT, "the quota is used up"), (errno.EROFS, "read-only; choose another"),
     (errno.EACCES, "permission denied; choose"), (errno.EFBIG, "larger than is allowed"), (errno.EIO, "check the disk")],
)  # fmt: skip
def test_a_failure_of_the_file_system_says_where_and_what_to_do(
    tmp_path: Path, number: int, advice: str
) -> None:
    with pytest.raises(StoreError, match=rf"{tmp_path}: .*{advice}"), local.storing(tmp_path):
        raise OSError(number, os.strerror(number))


def test_what_a_buffer_held_is_named_too_when_closing_cannot_write_it(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from headrace.errors import StoreError
from headrace.storage import local

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    with local.created(Path(sys.argv[1])) as file:
        file.write(bytes(200))
        if sys.argv[2] == "flushed":
            with local.storing(Path(sys.argv[1])):
                file.flush()
except StoreError as error:
    print(error)
"""
    for name in ("held", "flushed"):
        path = tmp_path / name
        told = subprocess.run(
            [sys.executable, "-c", code, str(path), name],
            capture_output=True,
            text=True,
            check=True,
        )

        assert told.stdout.startswith(f"{path}: the file would be larger than is allowed here")


def test_a_failure_that_a_library_tells_in_words_only_says_what_to_do_too(tmp_path: Path) -> None:
    error = RuntimeError(f"{os.strerror(errno.ENOSPC)} [write() failed]; while writing {tmp_path}")

    assert "the disk is full; free space" in str(local.failed(tmp_path, error))
    assert "check the disk" in str(local.failed(tmp_path, RuntimeError("something else")))


def test_strays_are_the_temporary_files_of_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for path in (
        tmp_path / ".tmp-x-1",
        tmp_path / "a" / "b" / ".tmp-y-2",
        tmp_path / "a" / "part-0.csv",
    ):
        path.write_bytes(b"")

    assert [".tmp-x-1", ".tmp-y-2"] == [path.name for path in local.strays(tmp_path)]


def test_a_replaced_file_is_the_new_one_and_the_temporary_name_is_gone(tmp_path: Path) -> None:
    for name, text in (("a", "old"), (".tmp-a-1", "new")):
        (tmp_path / name).write_text(text)
    local.replace(tmp_path / ".tmp-a-1", tmp_path / "a")

    assert [tmp_path / "a"] == list(tmp_path.iterdir())
    assert "new" == (tmp_path / "a").read_text()


def test_replacing_into_nowhere_says_where_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("")
    with raised(StoreError, remedy="check the disk"):
        local.replace(tmp_path / "new", tmp_path / "nowhere" / "a")
