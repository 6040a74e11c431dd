"""One contract for every backend: what `Place` promises of a local directory holds of a bucket, in each kind of store."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import CorruptShard, HeadraceError, SettingsError, StoreError
from headrace.storage import object_store
from headrace.storage.object_store import ObjectPath, joined_ranges
from headrace.storage.places import parallel_reads, path_of, place_of
from headrace.testing import check_store


@pytest.fixture(params=["local", "s3", "gs", "az"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An empty directory or prefix of every backend."""
    if request.param == "local":
        (tmp_path / "place").mkdir()
        return tmp_path / "place"
    return path_of(request.getfixturevalue(request.param)) / "some" / "prefix"


def test_a_store_keeps_the_public_promises(root: Path) -> None:
    check_store(root)


# Writing


def test_what_was_put_is_read_back(root: Path) -> None:
    data = bytes(range(256)) * 1000
    place = place_of(root / "a" / "b.bin")

    assert "put" == place.put_new(data)
    assert data == place.read() == (root / "a" / "b.bin").read_bytes()
    assert len(data) == place.stat().size


def test_a_local_file_can_be_put(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")

    assert "put" == place_of(root / "file").put_new(tmp_path / "file")
    assert place_of(tmp_path / "file").checksum() == place_of(root / "file").checksum()


def test_the_same_bytes_are_put_once_and_others_never(root: Path) -> None:
    place = place_of(root / "a")
    place.put_new(b"first")

    assert "kept" == place.put_new(b"first")
    with pytest.raises(CorruptShard, match="a: .* other bytes"):
        place.put_new(b"other")
    assert b"first" == place.read()
    assert ["a"] == [path.name for path in root.iterdir()]


def test_an_empty_file_is_a_file(root: Path) -> None:
    place = place_of(root / "_SUCCESS")
    place.put_new(b"")

    assert 0 == place.stat().size
    assert b"" == place.read()


def test_replace_leaves_one_of_the_two(root: Path) -> None:
    place = place_of(root / "pointer.json")
    place.replace(b"one")
    before = place.stat()
    place.replace(b"two")
    after = place.stat()

    assert b"two" == place.read()
    assert before.etag != after.etag
    assert after == place.stat()
    if (
        place.reads == "requests"
    ):  # stores tell whole seconds; a tag tells versions of one second apart
        assert place.version(before) != place.version(after)
        assert place.changed_ns(before) != place.changed_ns(after)


def test_of_many_writers_one_wins_and_all_agree(root: Path) -> None:
    outcomes: list[str] = []

    def write(number: int) -> None:
        try:
            outcomes.append(place_of(root / "contested").put_new(b"x" * 1000 + bytes([number % 2])))
        except CorruptShard:
            outcomes.append("refused")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert place_of(root / "contested").read() in (b"x" * 1000 + b"\0", b"x" * 1000 + b"\1")
    assert 1 == outcomes.count("put")
    assert 4 == outcomes.count("refused")


def test_an_alias_is_a_second_name_of_the_same_bytes(root: Path) -> None:
    place_of(root / "a").put_new(b"bytes")
    for _ in range(2):
        place_of(root / "a").alias(root / "b" / "c")

    assert b"bytes" == place_of(root / "b" / "c").read()
    assert ["a", "b/c"] == [fact.name for fact in place_of(root).files_below()]


def test_delete_removes_one_file_and_may_be_repeated(root: Path) -> None:
    place_of(root / "a").put_new(b"x")
    place_of(root / "ab").put_new(b"y")

    place_of(root / "a").delete()
    place_of(root / "a").delete()
    assert ["ab"] == [fact.name for fact in place_of(root).files_below()]


def test_delete_below_removes_a_directory_and_tells_its_bytes(root: Path) -> None:
    for name, data in (("stage/a", b"12"), ("stage/b/c", b"345"), ("stages", b"x")):
        place_of(root / name).put_new(data)

    assert 5 == place_of(root / "stage").delete_below()
    assert place_of(root / "stage").delete_below() is None
    assert ["stages"] == [fact.name for fact in place_of(root).files_below()]


@pytest.mark.slow
def test_many_may_delete_a_directory_at_once(root: Path) -> None:
    for number in range(40):
        place_of(root / "stage" / f"{number % 4}" / f"{number}").put_new(b"x")
    with ThreadPoolExecutor(4) as pool:
        sizes = list(pool.map(lambda _: place_of(root / "stage").delete_below(), range(4)))

    assert all(size is None or 0 <= size <= 40 for size in sizes)
    assert [] == place_of(root).files_below()


def test_a_sweep_leaves_what_was_published(root: Path) -> None:
    place = place_of(root / "index")
    place.put_new(b"bytes")
    if place.writes == "in place":
        (root / ".tmp-index-0123").write_bytes(b"by")
    place.sweep(older_than_s=3600.0)
    place.sweep()

    assert b"bytes" == place.read()
    assert ["index"] == [path.name for path in root.iterdir()]


# Looking


def test_listing_is_whole_sorted_and_relative(root: Path) -> None:
    names = ["b/2", "a", "b/1", "b/c/d", "bb"]
    for name in names:
        place_of(root / name).put_new(name.encode())
    directories, files = place_of(root).children()

    assert sorted(names) == [fact.name for fact in place_of(root).files_below()]
    assert ["1", "2", "c/d"] == [fact.name for fact in place_of(root / "b").files_below()]
    assert [] == place_of(root / "nothing").files_below()
    assert (["b"], [("a", 1), ("bb", 2)]) == (
        directories,
        [(fact.name, fact.size) for fact in files],
    )
    assert ([], []) == place_of(root / "nothing").children()
    assert ["a", "b", "bb"] == sorted(path.name for path in root.iterdir())
    assert ["b/1", "b/2"] == sorted(
        path.relative_to(root).as_posix() for path in root.glob("b/*") if path.is_file()
    )
    assert ["1", "2", "a", "bb", "d"] == sorted(
        path.name for path in root.rglob("*") if path.is_file()
    )
    assert [root / "b/1", root / "b/2"] == sorted(
        path for path in place_of(root / "b/*").matches() if path.is_file()
    )


def test_names_directly_below_are_found(root: Path) -> None:
    place_of(root / "runs" / "a").put_new(b"x")
    place_of(root / "manifest.json").put_new(b"{}")

    assert place_of(root).holds_any(["runs"])
    assert place_of(root).holds_any(["nothing", "manifest.json"])
    assert not place_of(root).holds_any(["a", "nothing"])
    assert not place_of(root / "nothing").holds_any(["runs"])


def test_what_is_not_there_is_not_there(root: Path, tmp_path: Path) -> None:
    place = place_of(root / "nothing")
    for verb in (
        place.stat,
        place.read,
        place.checksum,
        lambda: place.tail(5),
        lambda: place.read_ranges([(0, 5)]),
        lambda: place.fetch(tmp_path / "copy"),
    ):
        with pytest.raises(FileNotFoundError):
            verb()

    assert not (root / "nothing").exists()
    assert not (root / "nothing").is_dir()


def test_files_and_directories_are_told_apart(root: Path) -> None:
    place_of(root / "a" / "b").put_new(b"x")

    assert [True, False, True] == [
        (root / "a").is_dir(),
        (root / "a").is_file(),
        (root / "a").exists(),
    ]
    assert [False, True] == [(root / "a" / "b").is_dir(), (root / "a" / "b").is_file()]


# Reading


def test_ranges_come_in_the_order_asked_and_end_with_the_file(root: Path) -> None:
    data = bytes(range(256)) * 1000
    place = place_of(root / "a")
    place.put_new(data)
    fact = place.stat()

    assert [data[5:9], data[:3], data[255_000:], b""] == place.read_ranges(
        [(5, 9), (0, 3), (255_000, 256_000), (7, 7)]
    )
    pieces = place.read_covering([(100_000, 100_010), (0, 20)], fact)
    for start, stop in ((100_000, 100_010), (0, 20)):
        holding = next(
            (at, piece) for at, piece in pieces if at <= start and stop <= at + len(piece)
        )
        assert data[start:stop] == holding[1][start - holding[0] : stop - holding[0]]
    assert sorted(at for at, _ in pieces) == [at for at, _ in pieces]


@pytest.mark.parametrize("size", [0, 10, 5000])
def test_a_tail_is_the_end_of_the_file_and_tells_its_facts(root: Path, size: int) -> None:
    data = bytes(range(256)) * 4
    place = place_of(root / "a")
    place.put_new(data[:size] if size < 5000 else data)
    fact, tail = place.tail(100)

    assert place.stat().size == fact.size
    assert bytes(tail) == place.read()[-100:]


def test_a_file_seeks_and_reads_like_a_file(root: Path) -> None:
    data = bytes(i * 7 % 251 for i in range(700_001))
    place_of(root / "file").put_new(data)
    fact = place_of(root / "file").stat()

    for file in ((root / "file").open("rb"), place_of(root / "file").open(fact)):
        with file:
            assert data[:10] == file.read(10)
            file.seek(-5, 2)
            assert data[-5:] == file.read()
            assert b"" == file.read(4)
            file.seek(123_456)
            assert data[123_456:523_456] == file.read(400_000)
            assert 523_456 == file.tell()
            assert data[523_456:] == file.read()


def test_a_file_that_was_replaced_is_never_mixed_with_the_old_one(root: Path) -> None:
    place = place_of(root / "a")
    place.replace(b"old bytes")
    fact = place.stat()
    place.replace(b"new bytes")

    with pytest.raises(CorruptShard, match="a: was replaced while it was read"):
        place.read_covering([(0, 4)], fact)
    with (
        pytest.raises(CorruptShard, match="a: was replaced while it was read"),
        place.open(fact) as file,
    ):
        file.read()


def test_arrow_reads_the_bytes(root: Path) -> None:
    place = place_of(root / "a")
    place.put_new(b"some bytes")

    with place.arrow_stream() as stream:
        assert b"some bytes" == bytes(stream.read())


def test_local_copies_have_the_bytes_and_the_original_stays(root: Path, tmp_path: Path) -> None:
    place_of(root / "run" / "a").put_new(b"a")
    place_of(root / "run" / "b" / "c").put_new(b"c")
    place_of(root / "run" / "a").fetch(tmp_path / "fetched")

    assert b"a" == (tmp_path / "fetched").read_bytes()
    with place_of(root / "run" / "a").local_copy() as copy:
        assert ("a", b"a") == (os.path.basename(copy), Path(copy).read_bytes())
    with place_of(root / "run").local_tree() as tree:
        assert b"c" == (Path(tree) / "b" / "c").read_bytes()
    assert (root / "run" / "a").is_file()
    assert (root / "run" / "b" / "c").is_file()


# What a place says of itself


def test_a_place_says_what_it_can_do(root: Path) -> None:
    place = place_of(root)

    assert root == place.path == place.absolute() == place.real()
    assert place.parallel_reads == parallel_reads([root / "a", root / "b"])
    if place.has_links:
        (root / "link").symlink_to("elsewhere")
        assert (root / "link").is_symlink()


def test_paths_survive_pickling(root: Path) -> None:
    path = root / "a" / "b.bin"
    again = pickle.loads(pickle.dumps(path))

    assert (path, type(path), hash(path)) == (again, type(again), hash(again))
    assert path == path_of(str(path)) == path_of(path)
    assert "a/b.bin" == path.relative_to(root).as_posix()
    assert root / "a" / "x.json" == path.with_name("x.json")


# What only one kind of backend has


def test_no_pipe_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(CorruptShard, match="pipe: is not a regular file"):
        place_of(tmp_path / "pipe").read()


def test_a_range_far_behind_the_end_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"bytes")

    assert [b"tes", b""] == place_of(tmp_path / "a").read_ranges([(2, 1 << 60), (1 << 59, 1 << 60)])


def test_large_files_go_up_in_parts(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_SINGLE_PUT", 1 << 20)
    monkeypatch.setattr(object_store, "_PART", 5 << 20)
    (tmp_path / "large").write_bytes(bytes(range(256)) * (11 << 12))
    place = place_of(path_of(s3) / "large")

    assert "put" == place.put_new(tmp_path / "large")
    assert "kept" == place.put_new(tmp_path / "large")
    assert place_of(tmp_path / "large").checksum() == place.checksum()
    assert place.stat().etag.strip('"').endswith("-3")


def test_addresses_are_paths(s3: str) -> None:
    path = path_of(s3) / "out" / "runs"

    assert f"{s3}/out/runs" == str(path)
    assert path == path_of(Path(f"{s3}/out/runs")) == path_of(str(path))
    assert f"{s3}/out" == str(path.parent)
    assert isinstance(path, ObjectPath)
    assert not isinstance(path, Path)
    assert Path("some/file") == path_of("some/file")
    assert not isinstance(path_of("some/file"), ObjectPath)


def test_local_verbs_are_refused_on_addresses(s3: str) -> None:
    path = path_of(s3) / "file"

    for verb in (
        path.mkdir,
        path.touch,
        path.rmdir,
        lambda: path.rename("x"),
        lambda: path.write_bytes(b""),
        lambda: path.open("wb"),
        lambda: os.mkdir(path),
    ):
        with pytest.raises(StoreError, match=r"s3://"):
            verb()


@pytest.mark.parametrize(
    "place",
    [
        "s3://",
        "s3://KEY:SECRET@bucket/x",
        "s3://bucket/x?X-Amz-Signature=SECRET",
        "ftp://host/x",
        "s3://bucket/../x",
    ],
)
def test_addresses_that_cannot_be_meant_are_refused_without_their_secrets(place: str) -> None:
    with pytest.raises(SettingsError) as raised:
        path_of(place)

    assert "SECRET" not in str(raised.value)


def test_ranges_are_joined_and_cut() -> None:
    assert [] == joined_ranges([])
    assert [(0, 20), (600 << 10, 700 << 10)] == joined_ranges(
        [(5, 5), (0, 10), (5, 20), (600 << 10, 700 << 10)]
    )
    assert [(0, 8 << 20), (8 << 20, 16 << 20), (16 << 20, 20 << 20)] == joined_ranges(
        [(0, 20 << 20)]
    )


def test_a_bucket_that_is_not_there_is_named(s3: str) -> None:
    with pytest.raises((HeadraceError, FileNotFoundError), match="no-such-bucket"):
        place_of(path_of("s3://no-such-bucket-at-all/x")).put_new(b"x")
