"""A process that fails, is killed, or ends on an error of the training loop is named in all others of its group."""

import json
import signal
import subprocess
import sys

import pytest
import torch
from lost_process_cases import BEFORE, ROWS, claim_in_replicas, lose_one
from rank_processes import end_ranks, run_ranks
from series_cases import write_run
from stream_cases import Numbers, index_of
from test_shared_failure import Board, write

from headrace.errors import StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology
from raised import raised

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch with gloo",
)
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs Unix sockets of Linux"
)


def told(folder, processes, *, but=()):
    return [
        json.loads((folder / f"process-{process}.json").read_text())
        for process in range(processes)
        if process not in but
    ]


# --- processes of one rank, as under tensor parallelism ---


@pytest.mark.slow
def test_a_failure_in_one_process_of_the_only_rank_ends_the_other(tmp_path):
    run_ranks(lose_one, 2, 2, str(tmp_path), "broken", 1, 0)
    other, own = told(tmp_path, 2)
    words = "process 1 of 2 (rank 0 of 1) stopped the stream: part-00004.parquet block 0: "

    assert other["kind"] == own["kind"] == "StreamError"
    assert "the disk has gone" in own["error"]
    assert other["error"].startswith(words)
    assert "the disk has gone" in other["error"]
    assert other["error"].endswith(
        "; fix the cause there, then resume all ranks from the last saved state"
    )
    assert other["batches"] == BEFORE
    assert any(line.startswith(words) for line in own["log"])


@pytest.mark.smoke("2-1-0")
@linux
@pytest.mark.parametrize(("processes", "ranks", "workers"), [(2, 1, 0), (3, 3, 1)])
def test_a_killed_process_ends_the_others_by_name(tmp_path, processes, ranks, workers):
    codes = end_ranks(lose_one, processes, processes, str(tmp_path), "killed", ranks, workers)
    last = processes - 1
    who = (
        f"rank {last} of {ranks} (PID "
        if ranks == processes
        else f"process {last} of {processes} (rank 0 of {ranks}, PID "
    )

    assert [*[0] * last, -signal.SIGKILL] == codes
    for other in told(tmp_path, processes, but=[last]):
        assert other["kind"] == "RankGone"
        assert other["error"].startswith(who)
        assert (
            "has gone: its process died during epoch 0 without reporting an error, as happens when"
            in other["error"]
        )
        assert other["batches"] == BEFORE
        assert 1 == sum("has gone" in line for line in other["log"])


@pytest.mark.slow
@linux
def test_a_killed_process_ends_the_others_that_read_windows(tmp_path):
    write_run(tmp_path / "series", (60, 45, 80))
    codes = end_ranks(lose_one, 2, 2, str(tmp_path), "killed", 2, 0, str(tmp_path / "series"))
    (other,) = told(tmp_path, 2, but=[1])

    assert [0, -signal.SIGKILL] == codes
    assert (BEFORE, "RankGone") == (other["batches"], other["kind"])
    assert other["error"].startswith("rank 1 of 2 (PID ")


@pytest.mark.slow
def test_dynamic_sharing_refuses_two_processes_of_one_rank(tmp_path):
    run_ranks(claim_in_replicas, 4, 4, str(tmp_path))
    processes = told(tmp_path, 4)

    for rank, each in zip((0, 0, 1, 1), processes, strict=True):
        assert (
            f"topology says rank {rank} of 2, the process group has 4 processes"
            in each["2"]["error"]
        )
        assert list(range(sum(ROWS))) == each["1"]["rows"]  # one rank: nobody to share with


def test_dynamic_sharing_refuses_two_processes_of_one_rank_in_a_store_of_their_own():
    options = StreamOptions(batch_size=10, distribution="dynamic", batch_format="numpy")
    store, topology = Board(), Topology(rank=1, world_size=2)
    streams = [
        StreamLoader(index_of(ROWS), Numbers(ROWS), options, topology=topology, store=store)
        for _ in range(2)
    ]
    streams[1].passes.name = streams[0].passes.name  # as in two processes
    first = iter(streams[0])
    next(first)

    with raised(StreamError, setting="distribution", remedy='use distribution="balanced"'):
        next(iter(streams[1]))
    first.close()


# --- an error of the loop itself ---

FAILS = """
import logging, sys, time, torch, headrace

class Heard(logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())

rank, folder = int(sys.argv[1]), sys.argv[2]
logging.getLogger("headrace").addHandler(Heard())
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
for number, batch in enumerate(headrace.open(f"{folder}/shards", cache_dir=f"{folder}/cache-{rank}").stream(batch_size=10)):
    if number == 2:
        torch.distributed.barrier()
        assert rank == 0, "the loss is not finite"
        until = time.monotonic() + 120
        while not any("stopped the stream" in line for line in Heard.lines) and time.monotonic() < until:
            time.sleep(0.02)
"""


@pytest.mark.slow
def test_an_error_of_the_training_loop_ends_the_other_ranks_too(tmp_path):
    write(tmp_path / "shards", 1)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", FAILS, str(rank), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=200)[1] for rank in ranks]

    assert [1, 1] == [rank.returncode for rank in ranks], said
    assert "AssertionError: the loss is not finite" in said[1]
    words = "rank 1 of 2 stopped the stream: AssertionError: the loss is not finite"
    assert (
        f"StreamError: {words}; fix the cause there, then resume all ranks from the last saved state"
        in said[0]
    )
