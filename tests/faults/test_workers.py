"""DataLoader workers that the kernel kills: noticed at once, begun anew twice, and no row is lost, doubled or in another
place. The loops are in `killed_workers`, each in a process of its own."""

import json
import re
from itertools import accumulate
from pathlib import Path

import pytest
from fault_table import note
from forks import run_child
from hypothesis import given
from hypothesis import strategies as st

from headrace.stream.loader.watched_loader import dead_workers_of
from headrace.stream.workers.deaths import death_of, why_not_again

PATIENCE_S, TRIALS, FEW = 100, 100, 3
METHODS = ("fork", "spawn", "forkserver")


def loop(directory: Path, call: str, *arguments: object, limit_s: float = 240) -> list[dict]:
    """A loop in a child process: the lines of JSON that it said."""
    output = directory / f"{call}.out"
    ended = run_child(
        f"killed_workers:{call}", str(directory / call), *arguments, output=output, limit_s=limit_s
    )

    assert 0 == ended.code, ended.output[-6000:]
    return [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]


def kills(directory: Path, first: int, trials: int, method: str) -> None:
    told = loop(directory, "at_random", first, trials, method, limit_s=PATIENCE_S * trials)

    assert trials == len(told)
    for each in told:
        assert each["after_s"] < PATIENCE_S
        note("DataLoader worker killed", method, after_s=round(each["after_s"], 3))


@pytest.mark.slow
def test_killed_workers_are_begun_anew_and_every_batch_is_as_if_they_had_lived(
    tmp_path: Path,
) -> None:
    kills(tmp_path, TRIALS, FEW, "fork")


@pytest.mark.smoke("1")
@pytest.mark.parametrize("times", [1, 2])
def test_a_row_over_which_a_transform_dies_is_transformed_again(tmp_path: Path, times: int) -> None:
    (told,) = loop(tmp_path, "at_a_row", times, "fork")

    assert "" == told["error"]
    assert times == len(told["said"])
    assert (
        "was killed by SIGKILL, as when memory ends; all workers are started again after"
        in told["said"][0]
    )


@pytest.mark.slow
def test_a_row_over_which_workers_die_each_time_is_an_error(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "at_a_row", 9, "fork")

    assert "worker " in told["error"]
    assert "workers died 3 times, and no batch came in between" in told["error"]
    received = [int(re.search(r"after (\d+) batches", line)[1]) for line in told["said"]]
    assert received == sorted(
        received
    )  # a worker that is ahead may die while batches before its row are on their way
    assert 2 == received.count(received[-1])  # twice begun anew where no batch came in between
    assert "run the transform without workers" in told["error"]


@pytest.mark.slow
def test_workers_that_die_before_any_batch_are_begun_anew_twice(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "at_every_row")

    assert "workers died 3 times, and no batch came in between" in told["error"]
    assert 2 == len(told["said"])


@pytest.mark.slow
def test_a_worker_that_dies_when_all_is_delivered_costs_nothing(tmp_path: Path) -> None:
    loop(tmp_path, "at_the_end")


@pytest.mark.slow
def test_a_batch_that_was_half_sent_does_not_hang_the_loop(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "in_a_message")

    assert 1 == len(told["said"])


@pytest.mark.slow
def test_workers_that_live_on_are_begun_anew_within_a_pass_and_between_two(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "between_passes")

    within, between = told["said"]
    assert "worker 1: " in within
    assert "batches of the pass" in within
    assert "workers [0] died between two passes" in between


@pytest.mark.slow
def test_packed_and_tabular_batches_are_as_if_nothing_had_happened(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "other_datasets")

    assert 2 == len(told["said"])


@pytest.mark.slow
def test_rows_given_up_are_counted_once_whoever_dies(tmp_path: Path) -> None:
    (told,) = loop(tmp_path, "in_quarantine")

    assert 1 == len(told["said"])


@pytest.mark.slow
def test_a_loader_of_another_make_says_what_to_do(tmp_path: Path) -> None:
    assert ["DataLoader", "StatefulDataLoader"] == [
        each["named"] for each in loop(tmp_path, "of_another_loader")
    ]


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_100_killed_workers_cost_no_row(tmp_path: Path) -> None:
    kills(tmp_path, 0, TRIALS, "fork")


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
def test_killed_workers_cost_no_row_however_they_start(tmp_path: Path, method: str) -> None:
    kills(tmp_path / "random", 2 * TRIALS, 5, method)

    assert "" == loop(tmp_path / "row", "at_a_row", 1, method)[0]["error"]


# --- what is said of deaths, and when a pass may go on ---


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "worker 0: process 7 was killed by SIGKILL, as when memory ends"),
        (-11, "worker 0: process 7 was killed by SIGSEGV"),
        (-99, "worker 0: process 7 was killed by signal 99"),
        (3, "worker 0: process 7 ended with status 3 unasked"),
        (None, "worker 0: process 7 died"),
    ],
)
def test_a_death_is_told_by_its_cause(code: int | None, words: str) -> None:
    assert words == death_of("worker 0", 7, code)


@given(st.lists(st.integers(0, 3), max_size=12))
def test_a_pass_goes_on_until_workers_die_three_times_with_nothing_between(came: list[int]) -> None:
    """came: batches that came since the deaths before."""
    earlier: list[int] = []
    for received in accumulate(came):
        why = why_not_again(earlier, ["worker 0: process 7 died"], received)

        assert (why is not None) == (earlier[-2:] == [received] * 2)
        if why is not None:
            assert why.startswith(
                "worker 0: process 7 died; workers died 3 times, and no batch came"
            )
            return
        earlier.append(received)


@pytest.mark.parametrize(
    ("error", "processes"),
    [
        (RuntimeError("DataLoader worker (pid(s) 12, 13) exited unexpectedly"), [12, 13]),
        (RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. "), [12]),
        (RuntimeError("DataLoader timed out after 5 seconds"), []),
        (OSError("DataLoader worker (pid 12) is killed by signal: Killed. "), []),
    ],
)
def test_a_torch_error_that_names_processes_is_known(
    error: Exception, processes: list[int]
) -> None:
    assert processes == dead_workers_of(error)
