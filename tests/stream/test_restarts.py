"""Ranks that are killed and begun again by torchrun, or told to stop by SIGTERM: the epoch is as if nothing had happened.

Real processes and real signals, which ranks send themselves at a step, so that it is the same step in every run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rank_processes import end_ranks
from restart_cases import OPTIONS, ROWS, SAVE_EVERY, preempted, unprepared
from stream_cases import Numbers, index_of, ranks

import headrace
from headrace.stream.loader.stream_loader import StreamLoader

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="needs torch with gloo",
    ),
]

HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(HERE), str(HERE.parent)])
EVERY = list(range(sum(ROWS)))
STEPS = sum(ROWS) // (2 * OPTIONS.batch_size)
BOUND_S = 240


def trained(folder):
    """(rank, step) → rows, over all lives; a step that was done again had the same rows."""
    found = {}
    for path in folder.glob("life-*.rows"):
        for step, rows in map(json.loads, path.read_text().splitlines()):
            assert rows == found.setdefault((int(path.stem[-1]), step), rows)
    return found


def uninterrupted():
    """The same of an epoch that nothing stops."""
    streams = [
        StreamLoader(index_of(ROWS), Numbers(ROWS), OPTIONS, topology=rank) for rank in ranks(2)
    ]
    return {
        (rank, step): batch["row"][batch["valid"]].tolist()
        for rank, stream in enumerate(streams)
        for step, batch in enumerate(stream, start=1)
    }


def gone(process):
    """Whether this process ends within a bound."""
    until = time.monotonic() + BOUND_S
    while Path(f"/proc/{process}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return not Path(f"/proc/{process}").exists()


def left_behind(folder):
    """Workers of the first life that do not end, and names in shared memory that they or their ranks left."""
    workers = [
        pid
        for rank in range(2)
        for pid in json.loads((folder / f"workers-{rank}.json").read_text())
    ]
    names = [name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in workers)]
    return [pid for pid in workers if not gone(pid)], names, len(workers)


def check_whole(folder, lives):
    """Every row once, in equal steps; each rank has in each step what it would have had, whatever its workers."""
    rows = trained(folder)
    assert {(rank, step) for rank in range(2) for step in range(1, STEPS + 1)} == rows.keys()
    assert EVERY == sorted(sum(rows.values(), []))
    assert lives == len({path.stem[:-2] for path in folder.glob("life-*.rows")})
    assert uninterrupted() == rows


def restart(folder, workers, *kills):
    """torchrun, each of whose starts has a store of its own."""
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--max-restarts",
        "2",
        "--nproc-per-node",
        "2",
    ]
    environment = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": PATHS,
    }
    done = subprocess.run(
        [
            sys.executable,
            *command,
            str(HERE / "restart_cases.py"),
            str(folder),
            str(workers),
            *kills,
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.slow
def test_ranks_that_torchrun_begins_again_go_on_from_the_newest_state(tmp_path):
    restart(tmp_path, 0, f"0:1:{SAVE_EVERY + 3}")

    check_whole(tmp_path, lives=2)


@pytest.mark.faults
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kills", [("0:0:1", "1:1:2"), ("0:1:9", "1:0:18"), ("0:0:24", "1:1:24")])
def test_two_kills_under_torchrun_cost_no_row(tmp_path, workers, kills):
    restart(tmp_path, workers, *kills)

    check_whole(tmp_path, lives=3)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "whom"), [(0, "rank"), (2, "rank"), (2, "all")])
def test_ranks_that_are_told_to_stop_save_the_same_step_and_go_on(tmp_path, workers, whom):
    ends = [end_ranks(preempted, 2, 2, str(tmp_path), workers, whom, life) for life in range(2)]

    assert [[0, 0]] * 2 == ends
    check_whole(tmp_path, lives=2)
    assert ([], [], 2 * workers) == left_behind(tmp_path)
    first = [(tmp_path / f"life-0-{rank}.rows").read_text().count("\n") for rank in range(2)]
    assert [6, 6] == first


@pytest.mark.slow
def test_nothing_is_left_of_ranks_that_sigterm_ended_at_once(tmp_path):
    assert [-signal.SIGTERM] * 2 == end_ranks(unprepared, 2, 2, str(tmp_path), 2)
    assert ([], [], 4) == left_behind(tmp_path)
    assert SAVE_EVERY == json.loads((tmp_path / "newest.json").read_text())["step"]
