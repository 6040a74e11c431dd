"""What a stopped run leaves of its tasks: who failed and why, who was cut short; told when it goes on, never believed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import InputError
from headrace.formats.write import Written
from headrace.run.context import ATTEMPTS, RunContext, Task, TaskFiles, attempts_left, recorded, told
from headrace.run.events import Event, Note, Step
from tables import digests, small_source, split

PATHS = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(Path(__file__).parents[1])])


def writing(name: str) -> Task:
    """A task that writes its name."""

    def work(files: TaskFiles) -> dict[str, Any]:
        temporary = files.temporary(name)
        temporary.write_text(name)
        files.finished(temporary, name, Written(1, len(name), sha256(name.encode()).hexdigest(), ()))
        return {"rows_read": 1}

    return Task(name, 10, work)


def failing(name: str, error: Exception) -> Task:
    def work(files: TaskFiles) -> dict[str, Any]:
        files.temporary(name).write_text("half")
        raise error

    return Task(name, 10, work)


def run_of(directory: Path, heard: list[Event]) -> RunContext:
    directory.mkdir(exist_ok=True)
    return RunContext(directory, 1, heard.append)


def cut_short(run: Path, task: int, subject: str, error: BaseException | None = None) -> None:
    """Leave the record of an attempt that failed, or of one that was killed, which no `except` sees."""
    record = run / ATTEMPTS / f".scan-{task:05d}.json"
    with suppress(Exception), recorded(run, "scan", task, subject, 10):
        started = record.read_bytes() if record.exists() else None
        raise error or ValueError
    if error is None and started is not None:
        record.write_bytes(started)


def notes(heard: list[Event]) -> list[str]:
    return [event.text for event in heard if isinstance(event, Note)]


def records(run: Path) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_bytes()) for path in sorted((run / ATTEMPTS).glob("*"))}


def test_a_task_that_failed_is_recorded_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        run_of(tmp_path / "run", []).stage("scan", [writing("a"), failing("b", InputError("b.csv: row 7: is bad"))])
    found = records(tmp_path / "run")

    assert [".scan-00001.json"] == list(found)
    record = found[".scan-00001.json"]
    assert ("failed", "b", 1, 10, "b.csv: row 7: is bad") == tuple(
        record[name] for name in ("state", "subject", "number", "input_bytes", "error")
    )
    assert record["seconds"] >= 0


def test_the_next_attempt_tells_what_failed_and_why_and_how_often(tmp_path: Path) -> None:
    heard: list[Event] = []
    for error in (ValueError("first"), ValueError("second")):
        with pytest.raises(ValueError, match=str(error)):
            run_of(tmp_path / "run", heard).stage("scan", [writing("a"), failing("b", error)])

    assert ["scan: before, 1 task failed: b (attempt 1): ValueError: first; doing them again"] == notes(heard)
    heard.clear()
    run_of(tmp_path / "run", heard).stage("scan", [writing("a"), writing("b")])
    assert ["scan: before, 1 task failed: b (attempt 2): ValueError: second; doing them again"] == notes(heard)
    assert {} == records(tmp_path / "run")


def test_a_task_with_a_receipt_is_not_told_of(tmp_path: Path) -> None:
    heard: list[Event] = []
    context = run_of(tmp_path / "run", heard)
    context.stage("scan", [writing("a")])
    cut_short(tmp_path / "run", 0, "a")
    assert [".scan-00000.json"] == list(records(tmp_path / "run"))
    context.stage("scan", [writing("a")])

    assert [] == notes(heard)


def test_a_run_that_failed_and_went_on_has_the_bytes_of_one_that_did_not(tmp_path: Path) -> None:
    source = small_source(tmp_path / "in", count=3)
    steps = 0

    def breaking(event: Event) -> None:
        nonlocal steps
        steps += isinstance(event, Step) and event.name == "shard.written"
        if steps == 4:
            raise OSError("the cable was pulled")

    with pytest.raises(OSError, match="cable"):
        split(source, tmp_path / "out", workers=1, on_event=breaking)
    heard: list[Event] = []
    resumed = split(source, tmp_path / "out", workers=1, on_event=heard.append)
    whole = split(source, tmp_path / "whole", workers=1)

    assert digests(whole.run) == digests(resumed.run)
    assert any("failed: part-" in text and "OSError: the cable was pulled" in text for text in notes(heard))
    assert not (resumed.run / "stage").exists()


@pytest.mark.slow
def test_a_run_that_was_killed_says_which_tasks_were_cut_short(tmp_path: Path) -> None:
    source = small_source(tmp_path / "in", count=3)
    code = """
        import os, signal, sys
        from pathlib import Path
        from headrace.run.events import Step
        from tables import split

        def killed(event):
            if isinstance(event, Step) and event.name == "shard.written":
                os.kill(os.getpid(), signal.SIGKILL)

        split(Path(sys.argv[1]), Path(sys.argv[2]), workers=1, on_event=killed)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(source), str(tmp_path / "out")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": PATHS}, check=False)
    heard: list[Event] = []
    resumed = split(source, tmp_path / "out", workers=1, on_event=heard.append)

    assert -signal.SIGKILL == done.returncode
    assert ["scan: before, 1 task cut short: part-00000.csv; doing them again"] == notes(heard)[:1]
    assert digests(split(source, tmp_path / "whole", workers=1).run) == digests(resumed.run)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"stage": 1', b"\xff"])
def test_a_damaged_record_is_as_if_there_were_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / ATTEMPTS).mkdir(parents=True)
    cut_short(tmp_path, 0, "x")
    (tmp_path / ATTEMPTS / ".scan-00000.json").write_bytes(damage)

    assert [] == attempts_left(tmp_path, "scan", [0, 1])
    with recorded(tmp_path, "scan", 0, "x", 1):
        assert [1] == [each.number for each in attempts_left(tmp_path, "scan", [0])]
    assert [] == attempts_left(tmp_path, "scan", [0])


def test_records_that_cannot_be_written_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stage").write_text("a file where the directory would be")
    receipts = run_of(tmp_path / "run", []).stage("scan", [writing("a")])

    assert ["a"] == [receipt.subject for receipt in receipts]


def test_a_task_that_outlives_its_run_leaves_nothing(tmp_path: Path) -> None:
    cut_short(tmp_path / "gone", 0, "a", ValueError("late"))

    assert [] == list(tmp_path.iterdir())


def test_many_are_told_of_shortly(tmp_path: Path) -> None:
    (tmp_path / ATTEMPTS).mkdir(parents=True)
    for task in range(9):
        cut_short(tmp_path, task, f"part-{task}", InputError(f"part-{task}: is bad") if task % 2 else None)
    found = attempts_left(tmp_path, "scan", range(9))

    assert (
        "scan: before, 4 tasks failed: part-1 (attempt 1): part-1: is bad; part-3 (attempt 1): part-3: is bad; part-5 "
        "(attempt 1): part-5: is bad; …; 5 tasks cut short: part-0, part-2, part-4, …; doing them again"
    ) == told("scan", found)
    assert told("scan", []) is None
