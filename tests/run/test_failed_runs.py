"""What a failed run leaves: nothing, if nothing was done; else what the next attempt goes on with, until it is swept."""

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

import headrace
from headrace.errors import InputError, RunBusy, StoreError
from headrace.run.events import Event, StageBegan, Step
from headrace.storage.run_lock import only_writer
from raised import raised
from tables import small_source, split


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return small_source(tmp_path / "in", count=2)


def test_a_run_that_fails_before_a_task_is_done_leaves_nothing(
    tmp_path: Path, source: Path
) -> None:
    with pytest.raises(InputError, match="has no column"):
        split(source, tmp_path / "new" / "out", time="when")

    assert ["in"] == os.listdir(tmp_path)


def test_what_was_there_before_stays(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out").mkdir()
    first = split(source, tmp_path / "out").run

    with pytest.raises(InputError, match="has no column"):
        split(source, tmp_path / "out", time="when")

    assert [first.name] == os.listdir(tmp_path / "out" / "runs")
    assert [] == headrace.verify(tmp_path / "out").problems


def test_an_interrupt_before_a_task_is_done_leaves_nothing(tmp_path: Path, source: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, StageBegan):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split(source, tmp_path / "out", on_event=stop)

    assert not (tmp_path / "out").exists()


def test_a_run_with_a_finished_task_stays_and_gc_removes_it(tmp_path: Path, source: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, Step) and event.name == "receipt.linked":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split(source, tmp_path / "out", workers=1, on_event=stop)
    (run,) = (tmp_path / "out" / "runs").iterdir()

    assert 1 == len(list((run / "receipts").glob("*.json")))
    with raised(InputError, path=tmp_path / "out", remedy="prepare it first"):
        headrace.open(tmp_path / "out")
    headrace.collect(tmp_path / "out", incomplete="remove")
    assert [] == os.listdir(tmp_path / "out" / "runs")


def test_another_process_that_works_on_the_run_keeps_its_directory(
    tmp_path: Path, source: Path
) -> None:
    run = split(source, tmp_path / "one").run
    busy = tmp_path / "out" / "runs" / run.name
    busy.mkdir(parents=True)

    with only_writer(busy), raised(RunBusy, path=busy, remedy="wait for it"):
        split(source, tmp_path / "out")

    assert busy.is_dir()


def test_a_lock_of_a_directory_that_was_removed_is_not_held(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    real = os.open

    def removed_meanwhile(path: Path, *arguments: int) -> int:
        descriptor = real(path, *arguments)
        Path(path).unlink()
        return descriptor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", removed_meanwhile)
        with raised(RunBusy, path=run, remedy="run again"), only_writer(run):
            pass


def test_a_package_without_metadata_is_recorded_as_unknown(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.distribution

    def forgetful(name: str) -> importlib.metadata.Distribution:
        if name in ("headrace", "polars"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "distribution", forgetful)
    monkeypatch.setattr(sys.modules["importlib.metadata"], "distribution", forgetful)

    libraries = split(source, tmp_path / "out").manifest.libraries

    assert ("unknown", "unknown") == (libraries["headrace"], libraries["polars"])
    assert "unknown" != libraries["pyarrow"]


def test_a_source_deleted_before_it_is_surveyed_is_named(tmp_path: Path, source: Path) -> None:
    recipe = headrace.TemporalSplit(
        source=source, time="date", entity="id", split_date="2025-01-01"
    )
    files = recipe.source_files()
    (source / "part-00001.csv").unlink()

    class Listed(headrace.TemporalSplit):
        def source_files(self) -> list[tuple[Path, str]]:
            return files

    gone = Listed(source=source, time="date", entity="id", split_date="2025-01-01")
    with raised(InputError, path=source / "part-00001.csv", remedy="check the source"):
        headrace.prepare(gone, tmp_path / "out")

    assert not (tmp_path / "out").exists()


IN_THE_WAY = {
    "runs": lambda run: run.parent.symlink_to("nowhere"),
    "the run": lambda run: run.symlink_to("nowhere"),
    "receipts": lambda run: (run / "receipts").symlink_to("receipts"),
    "a file": lambda run: (run / "receipts").write_text("x"),
    "config.json": lambda run: (run / "config.json").mkdir(),
    ".lock": lambda run: (run / ".lock").symlink_to("/nowhere/at/all"),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_is_in_the_way_of_a_run_is_named(tmp_path: Path, source: Path, what: str) -> None:
    run = tmp_path / "out" / "runs" / split(source, tmp_path / "other").run.name
    directory = {"runs": run.parent.parent, "the run": run.parent}.get(what, run)
    directory.mkdir(parents=True)
    IN_THE_WAY[what](run)

    with pytest.raises(StoreError) as caught:
        split(source, tmp_path / "out")
    assert str(tmp_path / "out") in str(caught.value.path)
    assert "File exists" not in str(caught.value)


def test_a_lock_that_is_a_link_empties_no_file(tmp_path: Path, source: Path) -> None:
    prepared = split(source, tmp_path / "out")
    (tmp_path / "mine").write_text("mine")
    (prepared.run / ".lock").unlink(missing_ok=True)
    (prepared.run / ".lock").symlink_to(tmp_path / "mine")

    with (
        raised(StoreError, path=prepared.run / ".lock", remedy="remove it"),
        only_writer(prepared.run),
    ):
        pass
    assert "mine" == (tmp_path / "mine").read_text()
