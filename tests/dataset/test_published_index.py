"""A published index is used as if the shards had been read, exactly while it is that of the files as they are."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.dataset import plain
from headrace.dataset.index import SplitIndex
from headrace.dataset.plain import publish_index
from headrace.dataset.stored_index import map_index, parse_stored, stored_bytes
from headrace.errors import CorruptShard, InputError, StoreError
from laws import examples
from raised import raised
from tables import fresh, write_rows

FIELDS = (
    "shards",
    "formats",
    "checksums",
    "shard_of_block",
    "block",
    "rows",
    "offset",
    "length",
    "stamps",
)


def shards(directory: Path, sizes: list[list[int]] | None = None) -> Path:
    """A Parquet file for each list, a row group for each size; rows count on through all files."""
    directory.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, groups in enumerate([[3, 2], [4], [1]] if sizes is None else sizes):
        with pq.ParquetWriter(
            directory / f"part-{number:04d}.parquet", pa.schema([("n", pa.int64())])
        ) as writer:
            for rows in groups:
                writer.write_table(pa.table({"n": np.arange(first, first + rows)}))
                first += rows
    return directory


def rows_of(dataset, **options) -> list[int]:
    settings = {"batch_format": "arrow", "remainder": "exact", "stall_seconds": None, **options}
    loader = dataset.stream(batch_size=4, **settings)
    return [value for batch in loader for value in batch["n"].to_pylist()]


def as_values(index: SplitIndex) -> dict[str, object]:
    return {name: np.asarray(getattr(index, name)).tolist() for name in FIELDS} | {
        "identity": index.identity
    }


def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "build", lambda *_: pytest.fail("the shards are read"))


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(
    sizes=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=8),
    named=st.sampled_from(["", "files", "directories"]),
)
def test_a_published_index_is_that_of_the_shards(
    tmp_path_factory, sizes: list[list[int]], named: str
) -> None:
    where = fresh(tmp_path_factory.getbasetemp())
    raw = shards(where / "raw", sizes)
    for number, path in enumerate(sorted(raw.iterdir())) if named else ():
        split = ("train", "test", "val")[number % 3]
        name = f"{split}-{number}.parquet" if named == "files" else f"{split}/{path.name}"
        (raw / name).parent.mkdir(exist_ok=True)
        path.rename(raw / name)
    plainly = headrace.open(raw, cache_dir=where / "one")
    published = publish_index(raw, cache_dir=where / "two")
    with pytest.MonkeyPatch.context() as patch:
        no_reading(patch)
        dataset = headrace.open(raw, cache_dir=where / "three")

    assert ("beside", raw / ".headrace") == (published.location, published.path.parent)
    assert plainly.splits == dataset.splits
    for split in plainly.splits:
        assert as_values(plainly.split_index(split)) == as_values(dataset.split_index(split))
        assert plainly.split_index(split).schema.equals(dataset.split_index(split).schema)
        assert rows_of(plainly, split=split) == rows_of(dataset, split=split)
        options = {"split": split, "shuffle": True, "seed": 3}
        assert rows_of(plainly, **options) == rows_of(dataset, **options)


def test_the_identity_that_is_kept_is_that_of_the_blocks(tmp_path: Path) -> None:
    index = headrace.open(shards(tmp_path / "raw"), cache_dir=tmp_path / "cache").split_index()

    assert replace(index).identity == index.identity
    assert (
        replace(index, shards=tuple(index.shards), checksums=tuple(index.checksums)).identity
        == index.identity
    )


@pytest.mark.parametrize("extension", [".csv", ".jsonl.gz", ".arrow"])
def test_shards_of_every_kind_are_published(
    extension: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw").mkdir()
    for number in range(3):
        path = tmp_path / "raw" / f"a{number}{extension}"
        if extension == ".arrow":
            with pa.ipc.new_file(str(path), pa.schema([("n", pa.int64())])) as writer:
                writer.write_table(pa.table({"n": [number]}))
        else:
            write_rows(path, ("n",), [(str(number),)])
    types = {"types": {"n": "int64"}} if extension == ".csv" else {}
    publish_index(tmp_path / "raw", cache_dir=tmp_path / "one", **types)
    no_reading(monkeypatch)

    dataset = headrace.open(tmp_path / "raw", cache_dir=tmp_path / "two", **types)
    assert ["0", "1", "2"] == [str(value) for value in rows_of(dataset)]


def test_an_index_is_for_the_types_and_the_pattern_that_it_was_published_with(
    tmp_path: Path, caplog
) -> None:
    write_rows(tmp_path / "raw" / "a.csv", ("n",), [("1",)])
    publish_index(tmp_path / "raw", cache_dir=tmp_path / "one", types={"n": "int8"})
    publish_index(tmp_path / "raw" / "*.csv", cache_dir=tmp_path / "one")
    publish_index(tmp_path / "raw" / "a.csv", cache_dir=tmp_path / "one")

    assert 3 == len(list((tmp_path / "raw" / ".headrace").iterdir()))
    for number, source in enumerate(["raw", "raw/*.csv", "raw/a.csv"]):
        dataset = headrace.open(tmp_path / source, cache_dir=tmp_path / str(number))
        assert pa.int64() == dataset.schema.field("n").type
    assert (
        pa.int8()
        == headrace.open(
            tmp_path / "raw", cache_dir=tmp_path / "t", types={"n": "int8"}
        ).schema.types[0]
    )
    assert [] == caplog.messages

    found, typed = (publish_index(tmp_path / "raw", cache_dir=tmp_path / "one", **each).path for each in ({}, {"types": {"n": "int16"}}))  # fmt: skip
    typed.write_bytes(found.read_bytes())
    assert (
        pa.int16()
        == headrace.open(
            tmp_path / "raw", cache_dir=tmp_path / "u", types={"n": "int16"}
        ).schema.types[0]
    )
    assert "it was made with other types or another dialect" in caplog.messages[0]


def test_a_directory_that_moves_takes_its_index_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = shards(tmp_path / "raw")
    publish_index(raw, cache_dir=tmp_path / "one")
    moved = raw.rename(tmp_path / "moved")
    no_reading(monkeypatch)

    assert list(range(10)) == rows_of(headrace.open(moved, cache_dir=tmp_path / "two"))


def _append(raw: Path) -> None:
    pq.write_table(pa.table({"n": [10, 11]}), raw / "part-0003.parquet")


def _remove(raw: Path) -> None:
    (raw / "part-0002.parquet").unlink()


def _rewrite(raw: Path) -> None:
    path = raw / "part-0001.parquet"
    stat = path.stat()
    pq.write_table(pa.table({"n": [9, 8, 7, 6]}), path)
    while True:  # only the time of change tells, if the size is the same; it ticks every few ms
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if stat.st_ctime_ns != path.stat().st_ctime_ns:
            return


def _rename(raw: Path) -> None:
    (raw / "part-0000.parquet").rename(raw / "part-0009.parquet")


@pytest.mark.parametrize("change", [_append, _remove, _rewrite, _rename])
def test_an_index_that_is_out_of_date_is_not_used(
    change: Callable[[Path], None], tmp_path: Path, caplog
) -> None:
    raw = shards(tmp_path / "raw")
    publish_index(raw, cache_dir=tmp_path / "one")
    change(raw)
    expected = [
        n for path in sorted(raw.glob("*.parquet")) for n in pq.read_table(path)["n"].to_pylist()
    ]

    assert expected == rows_of(headrace.open(raw, cache_dir=tmp_path / "two"))
    assert 1 == len(caplog.messages)
    assert "is out of date: files came, went or changed after it was made" in caplog.messages[0]
    assert "the shards are indexed again" in caplog.messages[0]
    caplog.clear()
    assert ("written", "kept") == tuple(
        publish_index(raw, cache_dir=tmp_path / "one").how for _ in range(2)
    )
    assert expected == rows_of(headrace.open(raw, cache_dir=tmp_path / "three"))
    assert [] == caplog.messages


def _with_own_digest(data: bytes) -> bytes:
    return data[:-16] + xxhash.xxh3_128_digest(data[:-16])


def test_a_damaged_index_is_never_used(tmp_path: Path, caplog) -> None:
    raw = shards(tmp_path / "raw")
    path = publish_index(raw, cache_dir=tmp_path / "one").path
    whole = path.read_bytes()
    flips = [(at, bit) for at in range(0, len(whole), 13) for bit in (0, 7)]
    damaged = [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at, bit in flips]
    cut = [whole[:at] for at in range(0, len(whole), 29)]

    for data in (*damaged, *cut, b"", b"ARROW1", whole + b"\0"):
        with raised(CorruptShard, path=path, remedy="delete it"):
            parse_stored(data, path)
    path.write_bytes(cut[-1])
    assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "two"))
    assert "its bytes are not those that were written" in caplog.messages[0]


@pytest.mark.slow
def test_an_index_that_was_made_to_harm_ends_in_an_error_or_is_an_index(tmp_path: Path) -> None:
    path = publish_index(shards(tmp_path / "raw"), cache_dir=tmp_path / "one").path
    whole, refused, taken = path.read_bytes(), 0, 0
    for at in range(len(whole) - 16):
        data = _with_own_digest(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            index = parse_stored(data, path)
        except CorruptShard:
            refused += 1
            continue
        taken += 1
        for each in index.splits.values():
            assert each.total_rows < 1 << 48
            assert all(
                isinstance(name, str) for name in (*each.shards, *each.formats, *each.checksums)
            )
            assert (each.rows > 0).all()

    assert refused > taken > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"shards": ("../a.parquet", "/etc/passwd", "part-0002.parquet")},
            "it has files outside|not in their order",
        ),
        ({"shards": ("/etc/a", "/etc/b", "/etc/passwd")}, "it has files outside"),
        (
            {"shards": ("part-0000.parquet", "part-0001.parquet", "part-0007.parquet")},
            "it has 'part-0007.parquet'",
        ),
        (
            {"shards": ("part-0001.parquet", "part-0000.parquet", "part-0002.parquet")},
            "not in their order",
        ),
        ({"rows": np.array([3, 2, 1 << 50, 1])}, "rows holds what is not a place or a count"),
        ({"rows": np.array([3, 2, 0, 1])}, "rows holds what is not a place or a count"),
        ({"offset": np.array([0, 0, -8, 0])}, "offset holds what is not a place or a count"),
        ({"shard_of_block": np.array([0, 0, 1, 3])}, "its blocks are not those of its shards"),
        ({"shard_of_block": np.array([0, 0, 1, 1])}, "its blocks are not those of its shards"),
        ({"shard_of_block": np.array([0, 1, 0, 2])}, "its blocks are not those of its shards"),
        ({"block": np.array([1, 1, 0, 0])}, "the blocks of a shard are not in their order"),
        ({"length": np.array([1, 1, 1])}, "blocks and what is said of them differ in number"),
        ({"formats": ("parquet",) * 4}, "shards and what is said of them differ in number"),
        ({"stamps": np.zeros((3, 2), np.int64)}, "files have other sizes or times"),
        ({"split": "train"}, "its splits are not all"),
    ],
    ids=str,
)
def test_an_index_of_other_blocks_is_not_used(
    change: dict, reason: str, tmp_path: Path, caplog
) -> None:
    raw = shards(tmp_path / "raw")
    path = publish_index(raw, cache_dir=tmp_path / "one").path
    index = map_index(path)
    altered = replace(index.split("all"), **change)
    path.unlink()  # it is mapped
    path.write_bytes(stored_bytes([altered], index.schema, index.dialect, index.files))

    with caplog.at_level(logging.WARNING):
        assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "two"))
    assert 1 == len(caplog.messages)
    assert any(each in caplog.messages[0] for each in reason.split("|"))
    # The same in the cache is made again, and published again.
    (cached,) = (tmp_path / "two").glob("index-*.arrows")
    cached.unlink()
    cached.write_bytes(path.read_bytes())
    assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "two"))
    assert "written" == publish_index(raw, cache_dir=tmp_path / "two").how
    assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "three"))


def test_a_published_index_with_the_identity_of_other_blocks_is_not_used(
    tmp_path: Path, caplog
) -> None:
    raw = shards(tmp_path / "raw")
    path = publish_index(raw, cache_dir=tmp_path / "one").path
    index = map_index(path)
    altered = replace(index.split("all"))
    vars(altered)["identity"] = "0" * 64
    path.unlink()  # it is mapped
    path.write_bytes(stored_bytes([altered], index.schema, index.dialect, index.files))
    dataset = headrace.open(raw, cache_dir=tmp_path / "two")

    assert index.split("all").identity == dataset.split_index().identity
    assert "names its splits by other digests than theirs" in caplog.messages[0]


@pytest.mark.parametrize("kind", ["pipe", "directory", "no permission", "a file in the way"])
def test_what_cannot_be_read_as_a_file_is_passed_over(kind: str, tmp_path: Path, caplog) -> None:
    raw = shards(tmp_path / "raw")
    path = publish_index(raw, cache_dir=tmp_path / "one").path
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "no permission":
        path.touch(mode=0o000)
    else:
        path.parent.rmdir()
        path.parent.write_text("")

    assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "two"))
    assert (0 if kind == "a file in the way" else 1) == len(caplog.messages)
    (cached,) = (tmp_path / "two").glob("index-*.arrows")
    cached.unlink()
    if kind in ("pipe", "directory"):
        os.mkfifo(cached) if kind == "pipe" else cached.mkdir()
    assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "two"))


def test_where_the_directory_cannot_be_written_the_cache_holds_the_index(tmp_path: Path) -> None:
    raw = shards(tmp_path / "raw")
    (raw / ".headrace").write_text("")  # no directory: that nobody can write, root included
    published = publish_index(raw, cache_dir=tmp_path / "cache")

    assert ("cache", tmp_path / "cache") == (published.location, published.path.parent)
    assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "cache"))
    with raised(StoreError, path=raw / ".headrace", remedy="move it away"):
        publish_index(raw, location="beside", cache_dir=tmp_path / "cache")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="a part of this path is a file"):
        publish_index(raw, location="cache", cache_dir=tmp_path / "file" / "cache")


_KILLED = """
import os, signal, sys
from headrace.storage import local
from headrace.dataset.plain import publish_index
sync = local.sync_file
def killed(path):
    if ".headrace" in str(path) and path.name.startswith(".tmp-") == (sys.argv[3] == "before"):
        os.kill(os.getpid(), signal.SIGKILL)
    sync(path)
local.sync_file = killed
publish_index(sys.argv[1], cache_dir=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_publication_leaves_no_index_or_a_whole_one(
    moment: str, tmp_path: Path, caplog
) -> None:
    raw = shards(tmp_path / "raw")
    done = subprocess.run([sys.executable, "-c", _KILLED, raw, tmp_path / "one", moment])
    assert -signal.SIGKILL == done.returncode
    left = list((raw / ".headrace").glob("*"))

    assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "two"))
    assert [] == caplog.messages
    for each in left:
        os.utime(each, (0, 0))
    assert ("written" if moment == "before" else "kept") == publish_index(
        raw, cache_dir=tmp_path / "one"
    ).how
    if moment == "before":
        assert 1 == len(list((raw / ".headrace").iterdir()))


def test_the_command_publishes_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    raw = shards(tmp_path / "raw")

    def run(*words: object) -> dict:
        done = CliRunner().invoke(app, ["index", *map(str, words), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    first, again, cached = (
        run(raw),
        run(raw),
        run(raw, "--place", "cache", "--cache-dir", tmp_path / "c"),
    )
    assert (
        {"all": {"shards": 3, "blocks": 4, "rows": 10}}
        == first["splits"]
        == again["splits"]
        == cached["splits"]
    )
    assert ("written", "kept", "written") == (first["how"], again["how"], cached["how"])
    assert ("beside", "cache") == (first["location"], cached["location"])
    assert first["bytes"] == Path(first["path"]).stat().st_size
    text = CliRunner().invoke(app, ["index", str(raw)]).output
    assert "all: 10 rows in 4 blocks of 3 shards" in text
    assert str(raw / ".headrace") in text.replace("\n", "")


def test_the_command_refuses_what_is_no_plain_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "out" / "runs").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for words, kind, message in (
        ([tmp_path / "out"], InputError, "is a prepared dataset"),
        ([tmp_path / "none"], InputError, "no such file, directory or match"),
        ([tmp_path / "empty"], InputError, "holds no .csv"),
    ):
        done = CliRunner().invoke(app, ["index", *map(str, words)])
        assert isinstance(done.exception, kind), done.output
        assert message in str(done.exception)
    refused = CliRunner().invoke(app, ["index", str(shards(tmp_path / "raw")), "--place", "here"])
    assert 2 == refused.exit_code
    assert "'here' is not one of 'beside'" in refused.output


def test_a_copy_of_the_shards_does_not_use_the_index_of_the_originals(
    tmp_path: Path, caplog
) -> None:
    raw = shards(tmp_path / "raw")
    publish_index(raw, cache_dir=tmp_path / "one")
    shutil.copytree(raw, tmp_path / "copy")

    assert list(range(10)) == rows_of(headrace.open(tmp_path / "copy", cache_dir=tmp_path / "two"))
    assert 1 == len(caplog.messages)
    assert "is out of date" in caplog.messages[0]
