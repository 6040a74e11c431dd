"""`gc` while runs start, go on and end in one output: it never disturbs one, whatever it may remove."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import pytest
from fault_recipes import make, settings_of
from fault_table import note
from forks import server
from killed_runs import kill_at_step

import headrace

NAME, ROUNDS, FEW = "split single parquet", 200, 3


def work(settings: dict, out: str, seed: int) -> None:
    print(make(NAME, {**settings, "seed": seed}, Path(out), workers=1).how)


def sweep(directory: Path, incomplete: Literal["keep", "remove"], rounds: int) -> None:
    for number in range(rounds):
        out = directory / str(number)
        if number % 2:  # what a killed run has left
            kill_at_step(NAME, out, "receipt.linked", 3)
        (out / "runs").mkdir(parents=True, exist_ok=True)
        workers = [
            server().start(
                "test_sweeping:work",
                *(settings_of(NAME), str(out), 42 + each),
                output=directory / f"{number} {each}.out",
            )
            for each in range(4)
        ]
        sweeps = 0
        while len(list(out.glob("runs/*/_SUCCESS"))) < 4 and sweeps < 3000:
            headrace.collect(out, incomplete=incomplete)
            sweeps += 1
            if sweeps % 10 == 0 and any(_has_failed(directory, number)):
                break
        ended = [worker.wait() for worker in workers]

        assert [0] * 4 == [each.code for each in ended], [each.output for each in ended]
        headrace.collect(out, incomplete=incomplete)
        assert 4 == len(list(out.glob("runs/*")))
        for run in out.glob("runs/*"):
            assert [] == headrace.verify(out, run=run.name, workers=1).problems
        note("gc while four runs start", NAME, sweeps=sweeps)
        shutil.rmtree(out)


def _has_failed(directory: Path, number: int) -> list[bool]:
    return ["Error" in path.read_text() for path in directory.glob(f"{number} *.out")]


@pytest.mark.slow
@pytest.mark.parametrize("incomplete", ["keep", "remove"])
def test_gc_disturbs_no_run(tmp_path: Path, incomplete: Literal["keep", "remove"]) -> None:
    sweep(tmp_path, incomplete, FEW)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("incomplete", ["keep", "remove"])
def test_gc_disturbs_no_run_in_full_number(
    tmp_path: Path, incomplete: Literal["keep", "remove"]
) -> None:
    sweep(tmp_path, incomplete, ROUNDS)
