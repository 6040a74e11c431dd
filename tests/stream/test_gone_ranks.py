"""A rank that is killed is named on all others of its machine, whoever keeps the store; nobody else is."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gone_rank_cases import (
    ROWS,
    STEPS,
    WHENS,
    begin_again,
    differ,
    fail_and_leave,
    leave_early,
    lose,
    suspend,
)
from rank_processes import end_ranks, free_ports
from test_restarts import gone

import headrace

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Unix sockets of Linux"),
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="needs torch with gloo",
    ),
]

WORLD_SIZE = 3
HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(HERE), str(HERE.parent)])
BOUND_S = 50.0  # about one on an idle machine; a block of `Slow` takes longer, and gloo minutes


def told(folder, *, but=()):
    return [
        json.loads((folder / f"rank-{rank}.json").read_text())
        for rank in range(WORLD_SIZE)
        if rank not in but
    ]


def run(function, folder, *arguments):
    with free_ports(1) as (port,):
        return end_ranks(function, WORLD_SIZE, WORLD_SIZE, port, str(folder), *arguments)


def check_nothing_is_left(folder, who):
    """No socket and no worker of any rank outlives it."""
    sockets = Path("/proc/net/unix").read_text()
    for rank in told(folder, but=[who]):
        assert rank["socket"] not in sockets
    for children in folder.glob("workers-*"):
        for pid in json.loads(children.read_text()):
            assert gone(pid)


def check_named(folder, who):
    """The killed rank is named soon, by all others, once."""
    killed = float((folder / "killed").read_text())
    for rank in told(folder, but=[who]):
        assert "RankGone" == rank["kind"], rank
        assert [who, who] == rank["gone"][:2]
        assert f"rank {who} of {WORLD_SIZE} (PID {rank['gone'][2]}) has gone: " in rank["error"]
        assert rank["time"] - killed < BOUND_S
        assert 1 == sum("has gone" in line for line in rank["log"])
    assert 1 == len({rank["gone"][2] for rank in told(folder, but=[who])})


@pytest.mark.parametrize("when", ["barrier", "middle"])
def test_a_killed_rank_that_kept_the_store_is_named(tmp_path, when):
    run(lose, tmp_path, 0, when, 0)

    check_named(tmp_path, 0)
    check_nothing_is_left(tmp_path, 0)


@pytest.mark.faults
@pytest.mark.parametrize("who", range(WORLD_SIZE))
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("when", WHENS)
def test_a_killed_rank_is_named_on_all_others(tmp_path, when, workers, who):
    codes = run(lose, tmp_path, who, when, workers)

    assert [-signal.SIGKILL if rank == who else 0 for rank in range(WORLD_SIZE)] == codes
    check_named(tmp_path, who)
    check_nothing_is_left(tmp_path, who)


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 2])
def test_a_killed_rank_is_named_under_torchrun(tmp_path, who):
    command = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "0"]
    subprocess.run(
        [
            *(sys.executable, *command, "--nproc-per-node", str(WORLD_SIZE)),
            *(str(HERE / "gone_rank_cases.py"), str(tmp_path), str(who), "middle", "0"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS},
        capture_output=True,
        check=False,
    )

    check_named(tmp_path, who)


@pytest.mark.smoke("in a pass-0")
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("how", ["in a pass", "between passes", "destroys"])
def test_a_rank_that_ends_in_order_stops_no_pass_but_the_next_one(tmp_path, how, who):
    codes = run(leave_early, tmp_path, who, how)

    assert [0] * WORLD_SIZE == codes
    for rank in told(tmp_path, but=[who]):
        assert STEPS == rank["batches"]
        assert not any("has gone" in line for line in rank["log"])
        if how == "in a pass":
            assert "" == rank["error"]
        else:
            assert "StreamError" == rank["kind"], rank


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_fails_and_leaves_at_once_is_heard_at_the_start(tmp_path, who):
    codes = run(fail_and_leave, tmp_path, who)

    assert [0] * WORLD_SIZE == codes
    for rank in told(tmp_path, but=[who]):
        assert "StreamError" == rank["kind"], rank
        assert f"rank {who} of {WORLD_SIZE} stopped the stream: the cause" in rank["error"]


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_suspended_rank_is_not_called_dead(tmp_path, who):
    codes = run(suspend, tmp_path, who)

    assert [0] * WORLD_SIZE == codes
    for rank in told(tmp_path):
        assert (STEPS, "") == (rank["batches"], rank["error"])


@pytest.mark.smoke("0-0")
@pytest.mark.parametrize("who", range(WORLD_SIZE))
@pytest.mark.parametrize("number", range(8))
def test_every_rank_raises_the_same_difference_though_all_leave_at_once(tmp_path, number, who):
    codes = run(differ, tmp_path, number, who)
    ranks = told(tmp_path)

    assert [3] * WORLD_SIZE == codes, ranks
    assert [0] * WORLD_SIZE == [rank["batches"] for rank in ranks]
    assert 1 == len({json.dumps(rank["differences"]) for rank in ranks})
    words = {rank["error"].partition(": ")[2] for rank in ranks}
    assert 1 == len(words)
    for values in ranks[0]["differences"].values():
        assert {str(who), "1" if who == 0 else "0"} == set(values)


@pytest.mark.smoke("True-0-1")
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first", [True, False])
def test_a_rank_that_begins_an_epoch_again_while_others_begin_the_next_is_named(
    tmp_path, first, workers, who
):
    run(begin_again, tmp_path, who, workers, first)

    words = f"rank {who} left epoch 0 early and begins it again, while rank "
    for rank in told(tmp_path):
        assert "StreamError" == rank["kind"], rank
        assert words in rank["error"]
        assert rank["error"].count("begins epoch 1") == 1


def test_the_cases_are_as_long_as_they_say():
    assert 3 * 5 * STEPS == sum(ROWS)
