"""`splits` is one link to one run, and `verify` judges what a trainer reads through it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.dataset.manifest import read_manifest
from headrace.dataset.open import FinishedRun, find_run
from headrace.errors import StoreError
from headrace.run.prepare import Prepared
from raised import raised
from tables import small_source, split


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A dataset directory with two runs, the pointer at the second; their run ids."""
    directory = tmp_path_factory.mktemp("made")
    source = (
        small_source(directory / "in", count=2) if (directory / "in").mkdir() is None else directory
    )
    first, second = (split(source, directory / "out", train_ratio=ratio) for ratio in (0.4, 0.6))
    return directory / "out", first.manifest.run_id, second.manifest.run_id


@pytest.fixture
def out(tmp_path: Path, made: tuple[Path, str, str]) -> Path:
    shutil.copytree(made[0], tmp_path / "out", symlinks=True)
    return tmp_path / "out"


def test_splits_is_one_link_and_its_names_lead_into_the_run(
    out: Path, made: tuple[Path, str, str]
) -> None:
    assert f"runs/{made[2]}/splits" == os.readlink(out / "splits")
    assert {"train", "val", "test", "oot"} == {each.name for each in (out / "splits").iterdir()}
    assert "../training_data/train" == os.readlink(out / "splits" / "train")
    assert [] == headrace.verify(out).problems


def test_preparing_the_first_run_again_moves_all_splits_back(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = small_source(tmp_path / "in", count=2)
    first = split(source, tmp_path / "out", train_ratio=0.4).manifest.run_id
    split(source, tmp_path / "out", train_ratio=0.6)
    assert "reused" == split(source, tmp_path / "out", train_ratio=0.4).how

    assert f"runs/{first}/splits" == os.readlink(tmp_path / "out" / "splits")
    assert first == headrace.verify(tmp_path / "out").run_id


def test_verify_judges_the_run_that_the_pointer_shows(
    out: Path, made: tuple[Path, str, str]
) -> None:
    (out / "splits").unlink()
    (out / "splits").symlink_to(f"runs/{made[1]}/splits")
    shard = next((out / "splits" / "train").iterdir())
    os.chmod(shard, 0o644)
    shard.write_bytes(shard.read_bytes()[:-1])
    verdict = headrace.verify(out)

    assert made[1] == verdict.run_id
    assert any(str(shard.name) in problem for problem in verdict.problems)


def replaced(path: Path, text: str) -> None:
    path.unlink()
    path.symlink_to(text)


def real_directory(out: Path, run: str) -> None:
    (out / "splits").unlink()
    shutil.copytree(out / "runs" / run / "training_data", out / "splits")


HARMS: dict[str, tuple[Callable[[Path, str, str], object], str]] = {
    "missing": (lambda out, one, two: (out / "splits").unlink(), "splits: is missing"),
    "dangling": (lambda out, one, two: replaced(out / "splits", "runs/gone/splits"), "leads to runs/gone/splits"),
    "elsewhere": (lambda out, one, two: replaced(out / "splits", "/tmp"), "leads to /tmp"),
    "a file": (lambda out, one, two: ((out / "splits").unlink(), (out / "splits").write_text("")), "is a file"),
    "real directories": (lambda out, one, two: real_directory(out, two), "splits: is a directory, not a link"),
    "one link of the other run": (
        lambda out, one, two: replaced(out / "runs" / two / "splits" / "train", f"../../{one}/training_data/train"),
        "train: is not a link to",
    ),
    "one link is gone": (lambda out, one, two: (out / "runs" / two / "splits" / "val").unlink(), "val: is not a link to"),
    "a stranger": (lambda out, one, two: (out / "splits" / "x.csv").write_text("id\n"), "x.csv: is not part of this run"),
    "a link beside of another run": (
        lambda out, one, two: (out / "blend.json").symlink_to("splits/../blend.json"), "blend.json: is a link of another run"
    ),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_verify_names_what_a_trainer_would_see_instead(
    out: Path, made: tuple[Path, str, str], harm: str
) -> None:
    change, told = HARMS[harm]
    change(out, made[1], made[2])

    problems = headrace.verify(out).problems

    assert len(problems) == 1
    assert told in problems[0]


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_what_is_in_the_way_of_the_pointer_is_named_before_the_work(
    tmp_path: Path, out: Path, kind: str
) -> None:
    pointer = out / "splits"
    pointer.unlink()
    if kind == "directory":
        pointer.mkdir()
    elif kind == "file":
        pointer.write_text("mine")
    else:
        pointer.symlink_to("/somewhere")
    (tmp_path / "in").mkdir()
    events: list[object] = []

    with raised(StoreError, path=pointer, remedy="move it, or choose another --out"):
        split(small_source(tmp_path / "in"), out, on_event=events.append)

    assert [] == events
    assert os.path.lexists(pointer)


def test_a_file_system_without_links_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "in").mkdir()
    source = small_source(tmp_path / "in")
    monkeypatch.setattr(os, "symlink", refuse)
    events: list[object] = []

    with raised(StoreError, path=tmp_path / "out", remedy="choose an output directory on another"):
        split(source, tmp_path / "out", on_event=events.append)

    assert [] == events
    assert not (tmp_path / "out").exists()


def test_a_dataset_copied_from_a_store_is_opened_by_its_record(
    out: Path, made: tuple[Path, str, str]
) -> None:
    (out / "splits").unlink()
    directories = read_manifest(out / "runs" / made[1]).metadata["directories"]  # type: ignore[union-attr]
    record = {
        "run": made[1],
        "published": {},
        "splits": {name: f"runs/{made[1]}/{each}" for name, each in directories.items()},
    }
    (out / "splits.json").write_text(json.dumps(record))

    verdict = headrace.verify(out)

    assert (made[1], []) == (verdict.run_id, verdict.problems)


def test_what_is_told_of_the_time_is_that_of_the_manifest_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    prepared: Prepared = split(small_source(tmp_path / "in"), tmp_path / "out")
    os.utime(prepared.run / "manifest.json", (86400, 86400))

    assert "1970-01-02T00:00:00+00:00" == FinishedRun(*find_run(tmp_path / "out")).finished_at


def test_links_of_the_user_beside_the_pointer_stay(out: Path, made: tuple[Path, str, str]) -> None:
    (out / "best").symlink_to(f"runs/{made[1]}")
    settings = json.loads((out / "runs" / made[1] / "config.json").read_bytes())
    split(settings["source"], out, train_ratio=0.4)

    assert f"runs/{made[1]}" == os.readlink(out / "best")
    assert [] == headrace.verify(out).problems
