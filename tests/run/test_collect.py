"""gc sweeps leftovers and nothing else."""

import fcntl
import os
from pathlib import Path

import headrace
from headrace.storage.local import TEMP_PREFIX
from raised import raised


def source(tmp_path: Path) -> Path:
    path = tmp_path / "raw.csv"
    rows = [f"e{n % 20:02d},{2025 if n % 20 > 14 else 2024}-02-03,{n}" for n in range(100)]
    path.write_text("id,date,x\n" + "\n".join(rows) + "\n")
    return path


def run_of(tmp_path: Path, **settings: object) -> headrace.types.Prepared:
    recipe = headrace.TemporalSplit(
        source=source(tmp_path), time="date", entity="id", split_date="2025-01-01", **settings
    )
    return headrace.prepare(recipe, tmp_path / "out")


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def test_a_clean_directory_loses_nothing(tmp_path: Path) -> None:
    run_of(tmp_path)
    before = files(tmp_path)

    assert headrace.collect(tmp_path / "out").removed == ()
    assert files(tmp_path) == before


def test_strays_and_old_stages_go_and_finished_files_stay(tmp_path: Path) -> None:
    run = run_of(tmp_path).run
    before = files(tmp_path)
    stray = run / "training_data" / "train" / f"{TEMP_PREFIX}part-00000.csv-0123"
    stray.write_text("half")
    stage = run / "stage" / "scan-00000.rows.arrow"
    stage.parent.mkdir()
    stage.write_text("old")
    swept = headrace.collect(tmp_path / "out")

    assert set(swept.removed) == {stray, stage.parent}
    assert swept.bytes == 7
    assert files(tmp_path) == before
    assert headrace.verify(tmp_path / "out").problems == []


def test_an_unfinished_run_is_kept_unless_asked(tmp_path: Path) -> None:
    run_of(tmp_path)
    unfinished = tmp_path / "out" / "runs" / "00000000-0000-5000-8000-000000000000"
    (unfinished / "receipts").mkdir(parents=True)
    headrace.collect(tmp_path / "out")
    assert unfinished.is_dir()

    headrace.collect(tmp_path / "out", incomplete="remove")
    assert not unfinished.exists()
    assert headrace.verify(tmp_path / "out").problems == []


def test_a_run_in_use_is_left_alone(tmp_path: Path) -> None:
    run = run_of(tmp_path).run
    stray = run / f"{TEMP_PREFIX}x"
    stray.write_text("being written")
    descriptor = os.open(run / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        swept = headrace.collect(tmp_path / "out")
    finally:
        os.close(descriptor)

    assert swept.busy == (run,)
    assert stray.exists()


def test_a_directory_of_other_things_is_refused(tmp_path: Path) -> None:
    with raised(headrace.InputError, path=tmp_path, remedy="give the --out directory"):
        headrace.collect(tmp_path)
