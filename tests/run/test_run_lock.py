"""The lock of a run: one process works, others look without being in its way, and an error says who works."""

import fcntl
import os
import platform
import threading
import time
from pathlib import Path

import pytest

from headrace.errors import RunBusy
from headrace.storage.local import TEMP_PREFIX
from headrace.storage.run_lock import (
    LOCK,
    RunRemoved,
    is_busy,
    locked_briefly,
    only_writer,
    remove_run,
)
from raised import raised


def test_whoever_begins_to_work_waits_for_those_who_look(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    ended: list[float] = []
    all_look = threading.Barrier(4)

    def look() -> None:
        with locked_briefly(tmp_path):
            all_look.wait(120)
            time.sleep(0.2)  # in which somebody wants to work
            ended.append(time.monotonic())

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    all_look.wait(120)
    with only_writer(tmp_path):
        began = time.monotonic()
    for looker in lookers:
        looker.join()

    assert 3 == len(ended)
    assert max(ended) <= began


def test_the_error_says_who_works_and_on_what(tmp_path: Path) -> None:
    who = f"another process (PID {os.getpid()} on {platform.node()}) erases entities"
    with only_writer(tmp_path, "erases entities from this run"):
        for look in (only_writer, locked_briefly):
            with raised(RunBusy, path=tmp_path) as caught, look(tmp_path):
                pass
            assert who in str(caught.value)
        assert is_busy(tmp_path)

    assert not is_busy(tmp_path)


def test_whoever_looks_leaves_no_lock_file(tmp_path: Path) -> None:
    with locked_briefly(tmp_path):
        assert not is_busy(tmp_path)

    assert [] == os.listdir(tmp_path)


def test_a_lock_that_is_held_without_words_is_held(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with raised(RunBusy, path=tmp_path, remedy="wait for it"), only_writer(tmp_path):
        pass
    os.close(descriptor)


def test_a_run_goes_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    rename = os.rename
    seen: list[list[str]] = []

    def watched(old: Path, new: Path) -> None:
        rename(old, new)
        seen.append(sorted(name[:5] for name in os.listdir(tmp_path)))

    monkeypatch.setattr(os, "rename", watched)

    assert 2 == remove_run(run)
    assert [[TEMP_PREFIX]] == seen
    assert [] == os.listdir(tmp_path)
    assert remove_run(run) is None
    with raised(RunRemoved, path=run), only_writer(run):
        pass
