"""Checks by which another package proves its recipe, and every store proves that it keeps promises.

    check_recipe(EveryNth(source=raw), tmp_path)  # of settings, in an empty directory
    check_store(root)  # of an empty directory or prefix

They raise `AssertionError` for a broken promise, and need no framework for tests.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.dataset.verify import verify
from headrace.digest import sha256_file
from headrace.errors import CorruptShard
from headrace.recipe import JobSettings
from headrace.run.events import Event, TaskDone
from headrace.run.prepare import Prepared, prepare
from headrace.storage.places import place_of


def check_recipe(recipe: JobSettings, directory: Path) -> None:
    """Check what every recipe promises: runs are reused, verified, reproducible and resumed.

    recipe: settings of a small source whose run has at least one file and one row in each split.
    directory: empty, for six copies of the output. The settings can be pickled, and a new process
    can import them: one prepares the run and is killed after its first task.
    """
    prepared = prepare(recipe, directory / "first")
    assert prepared.how == "computed", f"{prepared.out} has a run already; give an empty directory"
    again = prepare(recipe, directory / "first")
    assert (again.how, again.run) == ("reused", prepared.run), (
        "a second preparation made another run"
    )
    problems = verify(prepared.run).problems
    assert not problems, f"verify refuses a new run: {problems}"

    elsewhere = prepare(recipe, directory / "second", workers=1)
    assert elsewhere.run.name == prepared.run.name, "the identity of a run depends on its directory"
    assert _digests(elsewhere) == _digests(prepared), "a second run has other bytes"

    _check_kill(recipe, directory / "killed", prepared)
    _check_damage(prepared, directory)


def _check_kill(recipe: JobSettings, out: Path, prepared: Prepared) -> None:
    """Kill a process that prepares, and check that the next one completes the same run."""
    child = multiprocessing.get_context("spawn").Process(
        target=_prepare_and_die, args=(recipe, str(out), 1)
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, f"the process ended with {child.exitcode}"
    resumed = prepare(recipe, out)
    assert resumed.how == "computed", "a run without its last stages passed as finished"
    assert _digests(resumed) == _digests(prepared), "a resumed run has other bytes"
    problems = verify(resumed.run).problems
    assert not problems, f"verify refuses a resumed run: {problems}"


def _prepare_and_die(recipe: JobSettings, out: str, tasks: int) -> None:
    """Prepare, and kill this process when that many tasks are done."""
    done = itertools.count(1)

    def on_event(event: Event) -> None:
        if isinstance(event, TaskDone) and next(done) >= tasks:
            os.kill(os.getpid(), signal.SIGKILL)

    prepare(recipe, out, on_event=on_event)


def _check_damage(prepared: Prepared, directory: Path) -> None:
    """Check that verify refuses a run with a changed byte, and one with a foreign file."""
    run = directory / "damaged" / prepared.run.name
    shutil.copytree(prepared.run, run, symlinks=True)
    # Shards are read-only, and copies are too.
    shard = next(path for path in _shards(prepared) if path.stat().st_size)
    path = run / shard.relative_to(prepared.run.resolve())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    assert verify(run).problems, f"verify accepts a changed byte in {path}"

    run = directory / "extended" / prepared.run.name
    shutil.copytree(prepared.run, run, symlinks=True)
    foreign = run / shard.relative_to(prepared.run.resolve()).with_name(f"foreign{shard.suffix}")
    foreign.parent.chmod(0o755)
    shutil.copyfile(shard, foreign)
    assert verify(run).problems, f"verify accepts a foreign file in a split, {foreign}"


def _shards(prepared: Prepared) -> list[Path]:
    """List the files in the directories of the splits, sorted."""
    run = prepared.run.resolve()
    directories = {(run / "splits" / split).resolve() for split in prepared.manifest.splits}
    shards: set[Path] = set()
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file():
                shards.add(path)
    return sorted(shards)


def _digests(prepared: Prepared) -> dict[str, str]:
    """Return the digest of every file in a split, by name."""
    return {
        path.relative_to(prepared.run.resolve()).as_posix(): sha256_file(path)
        for path in _shards(prepared)
    }


def check_store(root: Path) -> None:
    """Check that files appear whole, never change, and are listed in order.

    root: an empty directory, or an empty prefix of an object store, such as
    `headrace.storage.places.path_of("s3://bucket/prefix")`. It is empty afterwards.
    """
    _check_writing(root)
    _check_race(root)
    _check_listing(root)
    place_of(root).delete_below()


def _check_writing(root: Path) -> None:
    data = bytes(range(256)) * 1000
    stored = place_of(root / "written" / "a.bin")
    assert stored.put_new(data) == "put"
    assert bytes(stored.read()) == data
    assert stored.stat().size == len(data)
    ranges = [(5, 9), (0, 3), (255_000, 256_000), (7, 7)]
    expected = [data[start:stop] for start, stop in ranges]
    assert [bytes(part) for part in stored.read_ranges(ranges)] == expected, "ranges differ"
    assert stored.put_new(data) == "kept", "the same bytes were written again"
    try:
        stored.put_new(b"other bytes")
    except CorruptShard:
        pass
    else:
        raise AssertionError(f"{stored.path} was written over with other bytes")
    assert bytes(stored.read()) == data
    stored.replace(b"a pointer")
    assert bytes(stored.read()) == b"a pointer", "replace did not replace"
    stored.delete()
    stored.delete()
    try:
        stored.read()
    except FileNotFoundError:
        return
    raise AssertionError(f"{stored.path} is there after it was deleted")


def _check_race(root: Path) -> None:
    """Check that of several writers of one name exactly one wins, and its bytes stay."""
    stored = place_of(root / "contested")
    contents = [b"x" * 1000 + bytes([number % 2]) for number in range(8)]

    def write(data: bytes) -> str:
        try:
            return place_of(root / "contested").put_new(data)
        except CorruptShard:
            return "refused"

    with ThreadPoolExecutor(len(contents)) as pool:
        outcomes = list(pool.map(write, contents))
    assert bytes(stored.read()) in contents
    assert outcomes.count("put") == 1, f"{outcomes.count('put')} writers won"
    assert outcomes.count("refused") == len(contents) // 2, "other bytes were taken for the same"


def _check_listing(root: Path) -> None:
    names = ["b/2", "a", "b/1", "b/c/d", "bb"]
    below = root / "listed"
    for name in names:
        place_of(below / name).put_new(name.encode())
    assert [file.name for file in place_of(below).files_below()] == sorted(names)
    directories, files = place_of(below).children()
    assert (directories, [file.name for file in files]) == (["b"], ["a", "bb"])
    assert place_of(below / "b").delete_below() == len("b/2" + "b/1" + "b/c/d")
    assert [file.name for file in place_of(below).files_below()] == ["a", "bb"]
    assert place_of(root / "nothing").files_below() == []
