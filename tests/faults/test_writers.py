"""Eight writers of one run at once: one manifest, the same bytes, and no error but `RunBusy`."""

import fcntl
import shutil
from pathlib import Path

import pytest
from fault_recipes import RECIPES, make, settings_of
from fault_table import note
from forks import server
from killed_runs import expected

from headrace.errors import RunBusy
from headrace.storage.local import strays
from tables import digests

WRITERS, ROUNDS, FEW = 8, 200, 1


def write(name: str, settings: dict, out: str, gate: str) -> None:
    """Wait until the gate is open, then prepare."""
    with Path(gate).open() as closed:
        fcntl.flock(closed, fcntl.LOCK_SH)
    try:
        print(make(name, settings, Path(out), workers=1).how)
    except RunBusy:
        print("busy")


def race(directory: Path, name: str, rounds: int) -> None:
    for number in range(rounds):
        out, gate = directory / str(number), directory / f"gate {number}"
        closed = gate.open("w")
        fcntl.flock(closed, fcntl.LOCK_EX)
        writers = [
            server().start(
                "test_writers:write",
                *(name, settings_of(name), str(out), str(gate)),
                output=directory / f"{number} {each}.out",
            )
            for each in range(WRITERS)
        ]
        closed.close()
        ended = [writer.wait() for writer in writers]
        words = {each.output.strip() for each in ended}

        assert {0} == {each.code for each in ended}, ended
        assert {"computed"} <= words <= {"computed", "reused", "busy"}
        assert 1 == len(list(out.glob("runs/*/manifest.json")))
        assert expected(name).files == digests(next((out / "runs").iterdir()))
        assert [] == strays(out)
        note(
            "8 writers of one run", name, busy=sum(each.output.strip() == "busy" for each in ended)
        )
        shutil.rmtree(out)


@pytest.mark.smoke("packed")
@pytest.mark.parametrize("name", RECIPES)
def test_eight_writers_make_one_run(tmp_path: Path, name: str) -> None:
    race(tmp_path, name, FEW)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", RECIPES)
def test_eight_writers_in_full_number(tmp_path: Path, name: str) -> None:
    race(tmp_path, name, ROUNDS // len(RECIPES))
