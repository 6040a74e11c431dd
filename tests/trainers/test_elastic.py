"""A job of torchrun with --nnodes=1:3 that loses a machine and gains one: the rows, the steps and the losses of one rank.

Each agent of torchrun is a machine here. Nothing waits for a time: steps are allowed when the ranks they need are there.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from rank_processes import free_ports

import headrace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a minute on an idle machine
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="needs torch with gloo",
    ),
]

HERE = Path(__file__).parent
ROWS, GLOBAL_BATCH, EPOCHS = 49, 12, 4
EPOCH_STEPS = -(-ROWS // GLOBAL_BATCH)
STEPS = EPOCHS * EPOCH_STEPS
BOUND_S = 400  # of a wait for something that is bound to happen
# a machine that is silent for 12 s is gone; a round without all three begins after 5 s
RENDEZVOUS = "last_call_timeout=5,keep_alive_interval=2,keep_alive_max_attempt=6"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(headrace.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
FLAGS = ["--global-batch-size", str(GLOBAL_BATCH), "--epochs", str(EPOCHS)]


def lives_in(folder):
    """The lines of each life, its place first."""
    lives = []
    for path in folder.glob("life-*.jsonl"):
        text = path.read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        if lines:
            lives.append(lines)
    return lives


class Job:
    """The agents of a job and the log of its ranks."""

    def __init__(self, folder, port):
        self.folder, self.port = folder, port
        self.agents = []

    def allow(self, steps):
        (self.folder / "allowed.new").write_text(str(steps))
        os.replace(self.folder / "allowed.new", self.folder / "allowed")

    def add(self):
        """Start a machine; the first one keeps the store of the rendezvous."""
        number = len(self.agents)
        rendezvous = f"{RENDEZVOUS},is_host={int(number == 0)}"
        command = [
            *[sys.executable, "-m", "torch.distributed.run", "--nnodes=1:3", "--max-restarts=20"],
            *[
                "--nproc-per-node=1",
                "--rdzv-backend=c10d",
                "--rdzv-id=job",
                "--local-addr=127.0.0.1",
            ],
            *[f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-conf={rendezvous}"],
            *[str(HERE / "elastic_cases.py"), str(self.folder), *FLAGS],
            *["--checkpoint", str(self.folder / "newest.pt"), "--out", str(self.folder / "shards")],
        ]
        with (self.folder / f"agent-{number}.txt").open("w") as output:
            agent = subprocess.Popen(
                command, env=ENVIRONMENT, stdout=output, stderr=output, start_new_session=True
            )
        self.agents.append(agent)

    def alive(self):
        """The lives that have not ended."""
        return [life for life in lives_in(self.folder) if Path(f"/proc/{life[0]['pid']}").exists()]

    def await_step(self, step, *, ranks):
        """Wait until so many live ranks have all taken a step together."""
        until = time.monotonic() + BOUND_S
        while True:
            reached = [
                life[-1].get("step", 0) >= step and life[0]["world_size"] == ranks
                for life in self.alive()
            ]
            if [True] * ranks == reached:
                return
            died = [agent.returncode for agent in self.agents if agent.poll()]
            assert set(died) <= {-signal.SIGKILL}, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.05)

    def kill(self, number):
        """Lose a machine: its agent and its worker at once."""
        agent = self.agents[number]
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        agent.kill()
        for worker in map(int, children):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        agent.wait()

    def said(self):
        """The ends of what the agents printed."""
        return "\n".join(
            path.read_text()[-3000:] for path in sorted(self.folder.glob("agent-*.txt"))
        )

    def end(self):
        """Wait for the agents that are left."""
        return [agent.wait(BOUND_S) for agent in self.agents]

    def stop(self):
        """Leave no process behind."""
        for life in self.alive():
            with suppress(ProcessLookupError):
                os.kill(life[0]["pid"], signal.SIGKILL)
        for agent in self.agents:
            with suppress(ProcessLookupError):
                agent.kill()
            agent.wait()


@pytest.fixture
def job(tmp_path):
    with free_ports(1) as (port,):
        one = Job(tmp_path, port)
        yield one
        one.stop()


def steps_of(lives):
    """The lines of each step, by the start of the job that took it; without a start's last step that not all wrote."""
    steps = defaultdict(lambda: defaultdict(list))
    for life in lives:
        for line in life[1:]:
            steps[line["step"]][line["master_port"]].append(line)
    for starts in steps.values():
        for port, lines in list(starts.items()):
            if len(lines) < lines[0]["world_size"]:
                del starts[port]
    return steps


def on_one_rank(folder):
    """The steps of the same job on one rank that nothing stops."""
    (folder / "allowed").write_text(str(STEPS + 1))
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [str(HERE / "elastic_cases.py"), str(folder), *FLAGS]
    checkpoint = ["--checkpoint", str(folder / "newest.pt"), "--out", str(folder / "shards")]
    subprocess.run(
        [sys.executable, *command, *checkpoint], env=ENVIRONMENT | place, check=True, text=True
    )
    return steps_of(lives_in(folder))


def test_a_lost_and_a_gained_machine_change_neither_rows_nor_losses(job, tmp_path):
    job.allow(1)
    for _ in range(3):
        job.add()
    job.await_step(1, ranks=3)
    job.allow(7)
    job.await_step(7, ranks=3)  # the newest checkpoint is of step 6
    job.kill(2)
    job.allow(12)
    job.await_step(12, ranks=2)
    job.add()
    job.await_step(12, ranks=3)
    job.allow(STEPS + 1)

    assert [0, 0, -signal.SIGKILL, 0] == job.end(), job.said()
    (tmp_path / "alone").mkdir()
    alone = on_one_rank(tmp_path / "alone")
    steps = steps_of(lives_in(tmp_path))
    assert list(range(1, STEPS + 1)) == sorted(steps) == sorted(alone)
    for step, starts in steps.items():
        (expected,) = alone[step][0]
        for lines in starts.values():
            ranks = lines[0]["world_size"]
            rows = [line["rows"] for line in lines]
            assert list(range(ranks)) == sorted(line["rank"] for line in lines)
            assert {GLOBAL_BATCH // ranks} == {line["batch"] for line in lines}
            assert sorted(expected["rows"]) == sorted(sum(rows, []))
            assert pytest.approx(expected["loss"], rel=1e-4) == lines[0]["loss"]
    # a machine that came late may have let others begin without it
    for step, ranks in ((7, 3), (12, 2), (12, 3), (STEPS, 3)):
        assert ranks in {len(lines) for lines in steps[step].values()}
    for epoch in range(EPOCHS):
        trained = [
            alone[epoch * EPOCH_STEPS + step][0][0]["rows"] for step in range(1, EPOCH_STEPS + 1)
        ]
        assert list(range(ROWS)) == sorted(sum(trained, []))
