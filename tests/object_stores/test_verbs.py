"""One suite for all places: what holds for a local directory holds for a bucket."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from headrace.errors import CorruptShard, HeadraceError, SettingsError, StoreError
from headrace.storage import verbs
from headrace.storage.ranges import joined_ranges
from headrace.storage.remote_path import RemotePath, path_of


@pytest.fixture(params=["local", "s3", "gs", "az"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An empty place of every kind."""
    if request.param == "local":
        (tmp_path / "place").mkdir()
        return tmp_path / "place"
    return path_of(request.getfixturevalue(request.param)) / "some" / "prefix"


def test_what_was_put_is_read_back(root: Path) -> None:
    data = bytes(range(256)) * 1000

    assert verbs.put_new(root / "a" / "b.bin", data) == "put"
    assert (root / "a" / "b.bin").read_bytes() == data
    assert verbs.stat(root / "a" / "b.bin").size == len(data)
    assert verbs.read_ranges(root / "a" / "b.bin", [(5, 9), (0, 3), (255_000, 256_000), (7, 7)]) == [
        data[5:9],
        data[:3],
        data[255_000:],
        b"",
    ]


def test_a_local_file_can_be_put(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")

    assert verbs.put_new(root / "file", tmp_path / "file") == "put"
    assert verbs.checksum(root / "file") == verbs.checksum(tmp_path / "file")


def test_the_same_bytes_are_put_once_and_others_never(root: Path) -> None:
    verbs.put_new(root / "a", b"first")

    assert verbs.put_new(root / "a", b"first") == "kept"
    with pytest.raises(CorruptShard, match="other"):
        verbs.put_new(root / "a", b"other")
    assert (root / "a").read_bytes() == b"first"


def test_an_empty_file_is_a_file(root: Path) -> None:
    verbs.put_new(root / "_SUCCESS", b"")

    assert verbs.stat(root / "_SUCCESS").size == 0
    assert (root / "_SUCCESS").read_bytes() == b""


def test_replace_leaves_one_of_the_two(root: Path) -> None:
    verbs.replace(root / "pointer.json", b"one")
    before = verbs.stat(root / "pointer.json")
    verbs.replace(root / "pointer.json", b"other")

    assert (root / "pointer.json").read_bytes() == b"other"
    assert verbs.stat(root / "pointer.json").etag != before.etag


def test_listing_is_whole_sorted_and_relative(root: Path) -> None:
    names = ["b/2", "a", "b/1", "b/c/d", "bb"]
    for name in names:
        verbs.put_new(root / name, name.encode())

    assert [fact.name for fact in verbs.files_below(root)] == sorted(names)
    assert [fact.name for fact in verbs.files_below(root / "b")] == ["1", "2", "c/d"]
    assert verbs.files_below(root / "nothing") == []
    assert sorted(path.name for path in root.iterdir()) == ["a", "b", "bb"]
    assert sorted(path.relative_to(root).as_posix() for path in root.glob("b/*") if path.is_file()) == ["b/1", "b/2"]
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == ["1", "2", "a", "bb", "d"]


def test_what_is_not_there_is_not_there(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verbs.stat(root / "nothing")
    with pytest.raises(FileNotFoundError):
        (root / "nothing").read_bytes()
    with pytest.raises(FileNotFoundError):
        verbs.read_ranges(root / "nothing", [(0, 5)])
    with pytest.raises(FileNotFoundError):
        verbs.checksum(root / "nothing")

    assert not (root / "nothing").exists()
    assert not (root / "nothing").is_dir()


def test_files_and_directories_are_told_apart(root: Path) -> None:
    verbs.put_new(root / "a" / "b", b"x")

    assert [(root / "a").is_dir(), (root / "a").is_file(), (root / "a").exists()] == [True, False, True]
    assert [(root / "a" / "b").is_dir(), (root / "a" / "b").is_file()] == [False, True]


def test_delete_removes_one_file_and_may_be_repeated(root: Path) -> None:
    verbs.put_new(root / "a", b"x")
    verbs.put_new(root / "ab", b"y")

    verbs.delete(root / "a")
    verbs.delete(root / "a")
    assert [fact.name for fact in verbs.files_below(root)] == ["ab"]


def test_a_file_seeks_and_reads_like_a_file(root: Path) -> None:
    data = bytes(i * 7 % 251 for i in range(700_001))
    verbs.put_new(root / "file", data)

    with (root / "file").open("rb") as file:
        assert file.read(10) == data[:10]
        file.seek(-5, 2)
        assert file.read() == data[-5:]
        assert file.read(4) == b""
        file.seek(123_456)
        assert file.read(400_000) == data[123_456:523_456]
        assert file.tell() == 523_456
        assert file.read() == data[523_456:]


def test_of_many_writers_one_wins_and_all_agree(root: Path) -> None:
    told: list[str] = []

    def write(number: int) -> None:
        try:
            told.append(verbs.put_new(root / "contested", b"x" * 1000 + bytes([number % 2])))
        except CorruptShard:
            told.append("refused")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = (root / "contested").read_bytes()

    assert kept in (b"x" * 1000 + b"\0", b"x" * 1000 + b"\1")
    assert sorted(told, key=["put", "kept", "refused"].index)[:4].count("put") >= 1
    assert told.count("refused") == 4


def test_large_files_go_up_in_parts(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.storage import object_store

    monkeypatch.setattr(object_store, "_SINGLE_PUT", 1 << 20)
    monkeypatch.setattr(object_store, "_PART", 5 << 20)
    (tmp_path / "large").write_bytes(bytes(range(256)) * (11 << 12))
    place = path_of(s3) / "large"

    assert verbs.put_new(place, tmp_path / "large") == "put"
    assert verbs.put_new(place, tmp_path / "large") == "kept"
    assert verbs.checksum(place) == verbs.checksum(tmp_path / "large")
    assert verbs.stat(place).etag.strip('"').endswith("-3")


def test_remote_paths_are_paths(s3: str) -> None:
    path = path_of(s3) / "out" / "runs"

    assert str(path) == f"{s3}/out/runs"
    assert path_of(Path(f"{s3}/out/runs")) == path
    assert path_of(str(path)) == path
    assert hash(path_of(str(path))) == hash(path)
    assert pickle.loads(pickle.dumps(path)) == path
    assert isinstance(pickle.loads(pickle.dumps(path)), RemotePath)
    assert path.relative_to(path_of(s3)).as_posix() == "out/runs"
    assert str(path.parent) == f"{s3}/out"
    assert str(path.with_name("x.json")) == f"{s3}/out/x.json"
    assert path_of("some/file") == Path("some/file")
    assert not isinstance(path_of("some/file"), RemotePath)


def test_local_verbs_are_refused_on_remote_paths(s3: str) -> None:
    path = path_of(s3) / "file"

    for verb in (path.mkdir, path.touch, path.rmdir, lambda: path.rename("x"), lambda: path.write_bytes(b"")):
        with pytest.raises(StoreError, match=r"s3://"):
            verb()


@pytest.mark.parametrize(
    "place",
    ["s3://", "s3://KEY:SECRET@bucket/x", "s3://bucket/x?X-Amz-Signature=SECRET", "ftp://host/x", "s3://bucket/../x"],
)
def test_addresses_that_cannot_be_meant_are_refused_without_their_secrets(place: str) -> None:
    with pytest.raises(SettingsError) as told:
        path_of(place)

    assert "SECRET" not in str(told.value)


def test_ranges_are_joined_and_cut() -> None:
    assert joined_ranges([]) == []
    assert joined_ranges([(5, 5), (0, 10), (5, 20), (600 << 10, 700 << 10)]) == [(0, 20), (600 << 10, 700 << 10)]
    assert joined_ranges([(0, 20 << 20)]) == [(0, 8 << 20), (8 << 20, 16 << 20), (16 << 20, 20 << 20)]


def test_a_bucket_that_is_not_there_is_named(s3: str) -> None:
    with pytest.raises((HeadraceError, FileNotFoundError), match="no-such-bucket"):
        verbs.put_new(path_of("s3://no-such-bucket-at-all/x"), b"x")
