"""A store that outlives its group: what ranks said before they were killed stops nobody who goes on."""

import concurrent.futures
import json
import multiprocessing
import signal
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from present_group_cases import ROWS, STEPS, live_once, regroup
from rank_processes import end_ranks, run_ranks
from script_processes import held_store

from headrace.stream.ranks.group import Moment, group_name, process_start

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

EVERY = list(range(sum(ROWS)))


def told(folder, name):
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.smoke("balanced")
@linux
@pytest.mark.parametrize("distribution", ["balanced", "dynamic"])
def test_ranks_that_begin_again_beside_the_same_store_go_on(tmp_path, distribution):
    store = held_store()
    ends = [
        end_ranks(live_once, 2, 2, store.port, str(tmp_path), life, distribution)
        for life in range(2)
    ]

    assert [[-signal.SIGKILL] * 2, [0, 0]] == ends
    begun, rest = told(tmp_path, "begin"), told(tmp_path, "rest")
    assert STEPS * 5 == len(begun[0]) == len(begun[1])
    assert EVERY == sorted(sum(begun + rest, []))


@pytest.mark.slow
def test_processes_that_leave_a_group_and_make_another_go_on(tmp_path):
    store = held_store()
    run_ranks(regroup, 2, 2, store.port, str(tmp_path))

    assert EVERY == sorted(sum(told(tmp_path, "rows"), []))


APART_S = 10.0  # what clocks of the day may be apart


@st.composite
def lives(draw):
    """Groups one after the other: of each its processes as (machine, begun, looked), all begun before any looks."""
    clock, groups = 100.0, []
    errors = [
        draw(st.floats(-APART_S / 2, APART_S / 2)) for _ in range(3)
    ]  # of the machines' clocks of the day
    several = draw(st.booleans())
    for _ in range(draw(st.integers(1, 4))):
        processes = draw(st.integers(1, 5))
        begun = [clock + draw(st.floats(0.001, 5)) for _ in range(processes)]
        looked = [max(begun) + draw(st.floats(0.001, 50)) for _ in range(processes)]
        machines = [draw(st.integers(0, 2)) if several else 0 for _ in range(processes)]
        groups.append(sorted(zip(machines, begun, looked, strict=True), key=lambda each: each[2]))
        clock = max(looked) + (
            2 * APART_S + 1 if several else 0.001
        )  # clocks of several machines need a while
    return errors, groups


@given(lives())
def test_all_processes_of_a_group_find_one_name_and_each_group_another(drawn):
    errors, groups = drawn
    store, names, process = torch.distributed.HashStore(), [], 0

    def at(machine, seconds):
        return Moment(
            machine=f"kernel {machine}",
            since_start=seconds - 7 * machine,
            of_day=1e9 + seconds + errors[machine],
        )

    for group in groups:
        found = set()
        for machine, begun, looked in group:
            process += 1
            found.add(group_name(store, at(machine, looked), at(machine, begun), process=process))
        assert 1 == len(found)
        names += found

    assert len(groups) == len(set(names))


def test_a_process_that_does_not_know_when_it_began_takes_the_name_that_it_finds():
    store, now = torch.distributed.HashStore(), Moment.now()
    first, second = (group_name(store, now.earlier(-each), None, process=each) for each in range(2))
    third = group_name(store, now.earlier(-2), None, process=2, previous=second)

    assert first == second != third


@linux
def test_a_process_began_before_now_and_a_fork_after_its_parent():
    parent, now = process_start(), Moment.now()
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("forkserver")
    ) as pool:
        child = pool.submit(process_start).result(timeout=240)

    assert parent.certainly_before(now)
    assert not now.certainly_before(parent)
    assert parent.certainly_before(child)
    assert now.certainly_before(child.earlier(-0.02))  # the kernel counts hundredths
