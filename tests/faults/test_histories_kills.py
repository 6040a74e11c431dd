"""SIGKILL in each pass of histories: nothing torn, lost or doubled, and the same bytes at the end."""

import random
import shutil
import signal
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fault_recipes import LARGE, settings_of, undisturbed
from fault_table import note
from killed_passes import PASSES, kill_again_and_again, stop_in_pass
from killed_runs import check_and_resume

import headrace
from headrace.storage.local import strays

WANTED = {"gather": 50, "order": 50, "rows": 5, "publish": 5}
WORKERS = {name: 1 if name == "histories alone" else 2 for name in LARGE}
TRIALS_A_KILL = 6  # a child may be quicker than its model


def check(name: str, out: Path, lives: int) -> None:
    """The run that was stopped so often goes on to the same end."""
    check_and_resume(name, out, WORKERS[name], lives=lives)

    assert [] == headrace.verify(out).problems
    assert [] == strays(out)


def kills(directory: Path, name: str) -> Counter[str]:
    """Kill until each pass has had its number. How many that were."""
    counts: Counter[str] = Counter()
    for trial in range(TRIALS_A_KILL * sum(WANTED.values())):
        short = [each for each in PASSES if counts[each] < WANTED[each]]
        if not short:
            break
        random_ = random.Random(f"pass {name} {trial}")
        out = directory / str(trial)
        ends = kill_again_and_again(name, out, WORKERS[name], random_.choice(short), random_)
        counts.update(ends)
        if ends:
            check(name, out, len(ends))
        for each in ends:
            note(f"SIGKILL in pass {each}", name)
        shutil.rmtree(out, ignore_errors=True)
    return counts


@pytest.mark.faults
@pytest.mark.parametrize("name", LARGE)
def test_the_undisturbed_run_is_what_it_is_compared_for(name: str) -> None:
    """Each measurement is there once."""
    prepared = undisturbed(name)
    asked = settings_of(name)
    source = pq.read_table(asked["source"], columns=["src_addr"])["src_addr"].to_pylist()
    rows = pq.read_table(
        prepared.run / "rows.parquet", columns=["src_id", "n_measurements", "part"]
    ).to_pydict()
    found: Counter[str] = Counter()
    for entity, count in zip(rows["src_id"], rows["n_measurements"], strict=True):
        found[entity] += count

    assert Counter(source) == found
    assert 20 < max(rows["part"])
    assert [] == headrace.verify(prepared.out).problems


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LARGE)
def test_50_kills_in_each_pass_tear_lose_and_double_nothing(tmp_path: Path, name: str) -> None:
    counts = kills(tmp_path, name)

    assert [] == [each for each in PASSES if counts[each] < WANTED[each]], counts


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_runs_that_are_told_to_stop_go_on(tmp_path: Path, number: signal.Signals) -> None:
    name, few = "histories merged", 10
    counts: Counter[str] = Counter()
    for trial in range(TRIALS_A_KILL * 2 * few):
        short = [each for each in ("gather", "order") if counts[each] < few]
        if not short:
            break
        random_ = random.Random(f"{number.name} {trial}")
        out = tmp_path / str(trial)
        end = stop_in_pass(
            name, out, WORKERS[name], random_.choice(short), random_.random(), number
        )
        if end is not None:
            counts[end] += 1
            check(name, out, 1)
            note(f"{number.name} in pass {end}", name)
        shutil.rmtree(out, ignore_errors=True)

    assert few <= min(counts["gather"], counts["order"]), counts
