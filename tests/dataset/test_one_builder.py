"""Of the processes of a machine that open the same shards at once, one reads them, and all map what it made."""

import json
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.dataset import plain
from headrace.dataset.index import SplitIndex
from headrace.errors import CorruptShard
from headrace.storage.local import alone
from raised import raised

FILES, PROCESSES = 200, 8

# Notes every footer that is looked at. Told to, the first process that has looked at some stands still for ever.
_CHILD = """
import json, os, sys, time
import headrace
from headrace.formats import source
raw, cache, notes, stop = sys.argv[1:]
look = source.look
def noted(path, *rest, **settings):
    with open(notes, "ab", buffering=0) as file:
        file.write(b"%d %s\\n" % (os.getpid(), path.name.encode()))
    if stop and path.name == "part-0050.parquet":
        try:
            os.close(os.open(stop, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            # Whoever sees this name may kill the process at once: nothing is left to be done.
            os.close(os.open(f"{stop}-{os.getpid()}", os.O_CREAT))
            time.sleep(10_000)
    return look(path, *rest, **settings)
source.look = noted
headrace.open  # everything is imported
print("ready", flush=True)
sys.stdin.readline()
dataset = headrace.open(raw, cache_dir=cache)
index = dataset.split_index()
print(json.dumps([index.identity, index.total_rows, index.mapped is not None]), flush=True)
"""


def many_shards(directory: Path, files: int = FILES) -> Path:
    directory.mkdir()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [7]}), sink)
    for number in range(files):
        (directory / f"part-{number:04d}.parquet").write_bytes(sink.getvalue())
    return directory


@contextmanager
def openers(tmp_path: Path, *, stop: str = "") -> Iterator[list[subprocess.Popen]]:
    """Processes that have opened the shards, or are about to: all were let go at once."""
    words = [many_shards(tmp_path / "raw"), tmp_path / "cache", tmp_path / "notes", stop]
    command = [sys.executable, "-c", _CHILD, *map(str, words)]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    try:
        for child in children:
            assert "ready\n" == child.stdout.readline()
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()


def looks(tmp_path: Path) -> Counter[str]:
    """Files that were looked at, by process."""
    return Counter(line.split()[0] for line in (tmp_path / "notes").read_text().splitlines())


@pytest.mark.slow
def test_of_eight_processes_one_reads_the_footers(tmp_path: Path) -> None:
    with openers(tmp_path) as children:
        said = {child.stdout.readline() for child in children}
        assert [0] * PROCESSES == [child.wait() for child in children]

    assert 1 == len(said)
    assert [FILES, True] == json.loads(said.pop())[1:]
    assert [FILES] == list(looks(tmp_path).values())
    assert [".arrows"] == [path.suffix for path in (tmp_path / "cache").iterdir()]


@pytest.mark.slow
def test_where_the_builder_is_killed_another_one_finishes(tmp_path: Path) -> None:
    with openers(tmp_path, stop=str(tmp_path / "stop")) as children:
        while not (stopped := list(tmp_path.glob("stop-*"))):
            assert all(child.poll() is None for child in children)
            time.sleep(0.01)
        victim = int(stopped[0].name.partition("-")[2])
        assert [None] * PROCESSES == [
            child.poll() for child in children
        ]  # all wait for the one that stands still
        os.kill(victim, signal.SIGKILL)
        said = {child.stdout.readline() for child in children if child.pid != victim}
        ends = {child.pid: child.wait() for child in children}

    assert {-signal.SIGKILL} == {end for pid, end in ends.items() if pid == victim}
    assert {0} == {end for pid, end in ends.items() if pid != victim}
    assert 1 == len(said)
    assert [FILES, True] == json.loads(said.pop())[1:]
    found = looks(tmp_path)
    assert {str(victim)} < set(found)
    assert 2 == len(found)
    assert FILES == next(count for process, count in found.items() if process != str(victim))
    assert [".arrows"] == [path.suffix for path in (tmp_path / "cache").iterdir()]


def test_threads_of_a_process_make_one_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, made, build = many_shards(tmp_path / "raw", 20), [], plain.build
    monkeypatch.setattr(
        plain, "build", lambda *words, **settings: made.append(1) or build(*words, **settings)
    )
    threads = [threading.Thread(target=headrace.open, args=(raw,), kwargs={"cache_dir": tmp_path / "cache"}) for _ in range(8)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [1] == made


def test_who_waits_long_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    raw = many_shards(tmp_path / "raw", 3)
    headrace.open(raw, cache_dir=tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    cached.unlink()
    monkeypatch.setattr(plain, "_PATIENCE_S", 0.0)
    said = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: said.set() if "waiting" in record.getMessage() else None  # type: ignore[method-assign]
    logging.getLogger("headrace").addHandler(handler)
    try:
        with alone(cached.with_suffix(".lock")):
            thread = threading.Thread(
                target=headrace.open, args=(raw,), kwargs={"cache_dir": tmp_path / "cache"}
            )
            thread.start()
            assert said.wait(120)
        thread.join()
    finally:
        logging.getLogger("headrace").removeHandler(handler)

    waits = [text for text in caplog.messages if "waiting" in text]
    assert [
        f"{raw}: waiting for another process of this machine, which is making the index"
    ] == waits
    assert cached.exists()


def as_spawned(value: Any) -> bytes:
    """The pickle that a process which is being spawned would get."""
    set_spawning_popen(object())
    try:
        return pickle.dumps(value)
    finally:
        set_spawning_popen(None)


def values_of(index: SplitIndex) -> list[Any]:
    names = (
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
    return [
        index.split,
        index.schema,
        index.identity,
        *(np.asarray(getattr(index, name)).tolist() for name in names),
    ]


def test_a_spawned_process_gets_the_place_of_the_index(tmp_path: Path) -> None:
    index = headrace.open(many_shards(tmp_path / "raw"), cache_dir=tmp_path / "cache").split_index()
    small, large = as_spawned(index), pickle.dumps(index)

    assert len(small) < 1000 < FILES * 8 * 5 < len(large)
    assert [True, False] == [pickle.loads(each).mapped is not None for each in (small, large)]
    assert [values_of(index)] * 2 == [values_of(pickle.loads(each)) for each in (small, large)]


def test_what_was_altered_travels_by_value(tmp_path: Path) -> None:
    dataset = headrace.open(many_shards(tmp_path / "raw"), cache_dir=tmp_path / "cache")
    filtered = dataset.filter([("n", ">", 7)]).split_index()

    found = pickle.loads(as_spawned(filtered))
    assert ([], filtered.condition) == (found.rows.tolist(), found.condition)
    assert filtered.identity == found.identity
    assert filtered.shards == found.shards


def test_an_index_that_is_gone_travels_by_value_and_another_one_is_refused(tmp_path: Path) -> None:
    raw = many_shards(tmp_path / "raw", 30)
    index = headrace.open(raw, cache_dir=tmp_path / "cache").split_index()
    small = as_spawned(index)
    (cached,) = (tmp_path / "cache").iterdir()
    pq.write_table(pa.table({"n": [1, 2]}), raw / "part-0000.parquet")
    other = headrace.open(raw, cache_dir=tmp_path / "other").split_index()
    (theirs,) = (tmp_path / "other").iterdir()
    theirs.replace(cached)

    with raised(CorruptShard, path=cached, remedy="open the dataset again"):
        pickle.loads(small)
    assert values_of(index) == values_of(pickle.loads(as_spawned(index)))
    cached.unlink()
    with raised(CorruptShard, path=cached, remedy="delete it"):
        pickle.loads(small)
    assert values_of(other) == values_of(pickle.loads(as_spawned(other)))


def _look_at(index: SplitIndex, path: str, answers: Any) -> None:
    with open("/proc/self/maps") as maps:
        answers.put((path in maps.read(), index.identity, int(index.rows.sum())))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_spawned_process_maps_the_file(tmp_path: Path) -> None:
    index = headrace.open(many_shards(tmp_path / "raw"), cache_dir=tmp_path / "cache").split_index()
    (cached,) = (tmp_path / "cache").iterdir()
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=_look_at, args=(index, str(cached), answers))
    child.start()
    answer = answers.get()
    child.join()

    assert (True, index.identity, FILES) == answer
