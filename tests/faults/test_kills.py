"""SIGKILL at any instant, every recipe: nothing torn, nothing lost, nothing doubled, at most a shard per worker redone,
and the same bytes once the run is made again."""

import random
import shutil
from pathlib import Path

import pytest
from fault_recipes import RECIPES, make, settings_of
from fault_table import note
from killed_runs import (
    LAST_STEPS,
    check_and_resume,
    expected,
    kill_at_random,
    kill_at_step,
    records,
)

import headrace
from tables import digests

TRIALS = 200  # of each recipe, in full
FEW = 2
FILE_STEPS = ("shard.written", "shard.synced", "shard.linked")


def kill_at_random_and_resume(directory: Path, name: str, numbers: range) -> None:
    for trial in numbers:
        out = directory / str(trial)
        kill_at_random(name, out, random.Random(f"{name} {trial}"))

        resumed = check_and_resume(name, out)
        note("SIGKILL at random instants", name, redone=resumed.redone, strays=resumed.strays)
        shutil.rmtree(out)


def named_kills(name: str) -> list[tuple[str, int]]:
    """Every step, at every file and every receipt of a run."""
    steps = expected(name).steps
    kills = [
        (step, count)
        for step in (*FILE_STEPS, "receipt.linked")
        for count in range(1, steps[step] + 1)
    ]
    return kills + [(step, 1) for step in LAST_STEPS if steps[step]]


def kill_at_steps_and_resume(directory: Path, name: str, kills: list[tuple[str, int]]) -> None:
    for number, (step, count) in enumerate(kills):
        out = directory / str(number)
        kill_at_step(name, out, step, count)

        check_and_resume(name, out)
        note("abort at a named step", name)
        shutil.rmtree(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_kills_at_random_instants_tear_lose_and_double_nothing(tmp_path: Path, name: str) -> None:
    kill_at_random_and_resume(tmp_path, name, range(TRIALS, TRIALS + FEW))


@pytest.mark.smoke("histories")
@pytest.mark.parametrize("name", RECIPES)
def test_kills_at_named_steps_tear_lose_and_double_nothing(tmp_path: Path, name: str) -> None:
    kills = named_kills(name)
    within, last = kills[: -len(LAST_STEPS)], kills[-len(LAST_STEPS) :]

    kill_at_steps_and_resume(tmp_path, name, [*within[5 :: len(within) // 3], *last])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["split csv.gz", "packed"])
def test_one_run_killed_again_and_again_comes_to_its_end(tmp_path: Path, name: str) -> None:
    for trial in range(3):
        kill_at_random(name, tmp_path / "out", random.Random(f"again {name} {trial}"))

    check_and_resume(name, tmp_path / "out", lives=3)


def test_a_spool_that_lost_its_receipt_or_a_byte_is_made_again(tmp_path: Path) -> None:
    kill_at_step(
        "packed", tmp_path / "out", "receipt.linked", expected("packed").steps["receipt.linked"] - 1
    )
    (run,) = (tmp_path / "out" / "runs").iterdir()
    lost, harmed = [each for each in records(run) if each["stage"] == "tokenise"][:2]
    (run / "receipts" / f"tokenise-{lost['number']:05d}.json").unlink()
    path = run / harmed["files"][0]["path"]
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)

    prepared = make("packed", settings_of("packed"), tmp_path / "out")

    assert expected("packed").files == digests(prepared.run)
    assert [] == headrace.verify(tmp_path / "out").problems


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", RECIPES)
def test_200_kills_of_every_recipe_tear_lose_and_double_nothing(tmp_path: Path, name: str) -> None:
    kill_at_random_and_resume(tmp_path, name, range(TRIALS))


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", RECIPES)
def test_a_kill_at_every_named_step_tears_loses_and_doubles_nothing(
    tmp_path: Path, name: str
) -> None:
    kill_at_steps_and_resume(tmp_path, name, named_kills(name))
