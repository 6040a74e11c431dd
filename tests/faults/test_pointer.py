"""One pointer: whatever instant a process dies at, a trainer that reads paths sees one run, and verify judges that one."""

import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from fault_recipes import RECIPES, make, settings_of
from fault_table import note
from forks import server
from moved_pointers import look, settle

import headrace
from waits import wait_until

FEW, MANY = 4, 300
PAIRS = [
    ("split csv.gz", "packed"),
    ("packed", "split csv.gz"),
    ("series", "histories"),
    ("rewrite", "packed"),
]
EVERY = [(one, other) for one in RECIPES for other in RECIPES if one != other]


def both(out: Path, now: str, then: str) -> dict[str, str]:
    """Two finished runs, the pointer at the first of them; recipe → run id."""
    found = {name: make(name, settings_of(name), out).manifest.run_id for name in (then, now)}
    return found


def kill_at_every_call(directory: Path, now: str, then: str) -> None:
    before = directory / "before"
    runs = both(before, now, then)
    call, trials = 1, 0
    while True:
        out = directory / "out"
        shutil.copytree(before, out, symlinks=True)
        ended = server().start(
            "moved_pointers:move", then, settings_of(then), str(out), call, output=directory / "told.txt"
        ).wait()  # fmt: skip
        shown = look(out)
        seen = set() if shown is None else set(shown.values())
        assert len(seen) <= 1, f"call {call}: {shown}"
        assert seen <= set(runs.values())
        if seen:
            verdict = headrace.verify(out, workers=1) if trials % 4 == 0 else None
            assert verdict is None or {verdict.run_id} == seen
        if ended.code == 0:
            assert {runs[then]} == seen
            break
        assert ended.code == -signal.SIGKILL, ended
        make(then, settings_of(then), out, workers=1)
        assert {runs[then]} == set((look(out) or {}).values())
        headrace.collect(out)
        assert [] == headrace.verify(out, workers=1).problems
        assert not [each for each in os.listdir(out) if each.startswith(".tmp-")]
        shutil.rmtree(out)
        call, trials = call + 1, trials + 1
    note("SIGKILL at every call that moves the pointer", f"{now} → {then}", trials=trials)
    assert trials >= 4


def kill_at_random(directory: Path, now: str, then: str, trials: int) -> None:
    out = directory / "out"
    runs = both(out, now, then)
    steps = [(name, settings_of(name)) for name in (now, then)]
    stop, begun = directory / "stop", directory / "begun"
    reader = server().start(
        "moved_pointers:watch", str(out), str(stop), str(begun), output=directory / "seen.txt"
    )
    random_ = random.Random(f"{now} {then}")
    try:
        assert wait_until(begun.exists)
        for trial in range(trials):
            mover = server().start(
                "moved_pointers:move_on", steps, str(out), trial, output=directory / "moved.txt"
            )
            settle(random_.random() * 0.3)
            mover.kill()
            mover.wait()
            shown = look(out) or {}
            assert len(set(shown.values())) <= 1, shown
            assert set(shown.values()) <= set(runs.values())
    finally:
        stop.touch()
        ended = reader.wait()
    told = json.loads(ended.output.splitlines()[-1])

    assert [] == told["mixes"]
    assert told["looks"] > told["missing"]
    note(
        "SIGKILL while the pointer moves, a reader beside",
        f"{now}, {then}",
        trials=trials,
        looks=told["looks"],
    )


def test_a_kill_at_any_call_shows_one_run(tmp_path: Path) -> None:
    kill_at_every_call(tmp_path, "packed", "split csv.gz")


def test_a_reader_of_paths_never_sees_two_runs(tmp_path: Path) -> None:
    kill_at_random(tmp_path, "split csv.gz", "packed", FEW)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("now", "then"), EVERY)
def test_a_kill_at_any_call_shows_one_run_of_any_two_recipes(
    tmp_path: Path, now: str, then: str
) -> None:
    kill_at_every_call(tmp_path, now, then)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("now", "then"), PAIRS)
def test_300_kills_beside_a_reader_never_show_two_runs(tmp_path: Path, now: str, then: str) -> None:
    kill_at_random(tmp_path, now, then, MANY)
