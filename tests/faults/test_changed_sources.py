"""A source that changes during a run, in any way, at any stage: the run ends with an error and publishes nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_recipes import RECIPES, make
from fault_table import note

import headrace
from headrace.errors import InputError
from headrace.run.events import Event, Note, StageBegan, Step
from tables import small_source, split


def rewritten(path: Path) -> None:
    """Other bytes, the same size, the time set back."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-2:] = data[-3:-1]
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    while before.st_ctime_ns == path.stat().st_ctime_ns:  # the clock of files ticks every few ms
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    """Another file of that size and time, moved into its place."""
    other = path.with_name(".other")
    shutil.copy2(path, other)
    os.replace(other, path)


def repointed(path: Path) -> None:
    """A link to another file of that size and time."""
    other = path.parent.parent / f"{path.name}.other"
    shutil.copy2(path, other)
    path.unlink()
    path.symlink_to(other)


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


CHANGES = {each.__name__: each for each in (rewritten, replaced, repointed, appended)} | {
    "deleted": Path.unlink
}


def stages_of(directory: Path, name: str) -> list[str]:
    """The stages of a recipe, in their order, and the end of the last one."""
    stages: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, StageBegan):
            stages.append(event.stage)

    make(name, RECIPES[name].write(directory / "in"), directory / "out", on_event=listen)
    return [*stages, "receipts"]


def change_during(directory: Path, name: str, stage: str, change: Callable[[Path], None]) -> None:
    """Prepare; when the stage begins, its source changes. "receipts": when the last receipt has been written."""
    settings = RECIPES[name].write(directory / "in")
    files = [path for path, _ in RECIPES[name].make(**settings).source_files()]
    begun, left = [], [0]

    def listen(event: Event) -> None:
        if isinstance(event, StageBegan):
            begun.append(event.stage)
            left[0] = event.tasks
            if event.stage == stage:
                change(files[-1])
        if stage == "receipts" and isinstance(event, Step) and event.name == "receipt.linked":
            left[0] -= 1
            if not left[0] and begun[-1] == LAST[name]:
                change(files[-1])

    with pytest.raises(
        InputError, match=r"(changed|was deleted) while it was read; run again once"
    ) as raised:
        make(name, settings, directory / "out", on_event=listen)

    assert files[-1].name in str(raised.value)
    assert [] == list((directory / "out").glob("runs/*/manifest.json"))
    assert not os.path.lexists(directory / "out" / "splits")
    note("a source that changes during the run", name, stage=stage)


LAST = {
    "split csv.gz": "split",
    "split single parquet": "join",
    "rewrite": "rewrite",
    "packed": "materialise",
    "histories": "rows",
    "series": "finish",
    "random split": "join",
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_file_rewritten_in_place_behind_its_last_task_is_noticed(
    tmp_path: Path, name: str
) -> None:
    change_during(tmp_path, name, "receipts", rewritten)


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_a_file_is_noticed(tmp_path: Path, change: str) -> None:
    change_during(tmp_path, "split csv.gz", "split", CHANGES[change])


def test_a_task_notices_a_change_of_what_it_reads_before_it_publishes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = small_source(tmp_path / "in", count=3)
    done: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, StageBegan) and event.stage == "split":
            rewritten(source / "part-00000.csv")
        if isinstance(event, Step) and event.name == "receipt.linked":
            done.append(event.subject)

    with pytest.raises(InputError, match="part-00000.csv: changed while it was read"):
        split(source, tmp_path / "out", workers=1, on_event=listen)

    assert ["scan-00000", "scan-00001", "scan-00002"] == done


def test_a_source_rewritten_between_two_attempts_is_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = small_source(tmp_path / "in", count=3)

    def stop(event: Event) -> None:
        if isinstance(event, Step) and event.subject == "split-00001":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split(source, tmp_path / "out", workers=1, on_event=stop)
    rewritten(source / "part-00002.csv")

    with pytest.raises(
        InputError, match=r"part-00002.csv: was written.* after this run began.*gc OUT --incomplete"
    ):
        split(source, tmp_path / "out", workers=1)
    headrace.collect(tmp_path / "out", incomplete="remove")
    assert "computed" == split(source, tmp_path / "out", workers=1).how


def test_a_file_that_comes_into_the_source_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = small_source(tmp_path / "in", count=3)
    notes: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, StageBegan) and event.stage == "split":
            shutil.copy(source / "part-00000.csv", source / "part-00009.csv")
        if isinstance(event, Note):
            notes.append(event.text)

    prepared = split(source, tmp_path / "out", on_event=listen)

    assert 3 == prepared.manifest.source["files"]
    assert any(
        "part-00009.csv was added to the source during the run and is not part of it" in each
        for each in notes
    )


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", RECIPES)
def test_any_change_at_any_stage_of_any_recipe_is_noticed(
    tmp_path: Path, name: str, change: str
) -> None:
    for number, stage in enumerate(stages_of(tmp_path / "stages", name)):
        change_during(tmp_path / str(number), name, stage, CHANGES[change])
