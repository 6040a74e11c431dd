"""Processes of one machine see who of them dies, and nobody else: real processes, signals and forks."""

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from peer_cases import join, stay
from rank_processes import _run

from headrace.stream.ranks.topology import Topology
from waits import wait_until

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Unix sockets of Linux"),
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="needs a store of torch.distributed"
    ),
]


class Machine:
    """Processes that stay until they are killed."""

    def __init__(self, folder):
        self.folder = folder
        self.pids = {}
        self.children = []

    def start(self, process, phase, *, processes=9, group="group"):
        context = multiprocessing.get_context("forkserver")
        arguments = (process, processes, str(self.folder), phase, group)
        child = context.Process(target=_run, args=(0, stay, arguments))
        child.start()
        self.children.append(child)
        here = self.folder / f"here-{process}-{group}"
        wait_until(here.exists)
        self.pids[process, group] = int(here.read_text())

    def kill(self, process, group="group"):
        os.kill(self.pids[process, group], signal.SIGKILL)

    def end(self):
        (self.folder / "end").touch()
        for child in self.children:
            child.join(100)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.end()


def looked_for(peers, until, *, seconds=0.0):
    """Those that died before this was so and so many seconds more had passed, by process."""
    died = {}

    def looked():
        died.update({peer.process: peer for peer in peers.look()})
        return True

    wait_until(lambda: looked() and until())
    wait_until(lambda: not looked(), seconds)
    return died


def known(peers, processes):
    """Whether so many are alive, and have all sent their records: of one that has not, nothing but its end is known."""
    records = [peer.record for peer in peers._alive.values()]
    return len(records) == processes and None not in records


def ended(peers, processes):
    return len(peers.died) + len(peers.left) == processes


def test_one_look_finds_a_process_that_connected_and_died_since_the_last(machine):
    peers = join(machine.folder, 0, 9)
    machine.start(1, "between")
    machine.kill(1)
    machine.children[0].join()

    assert [1] == [peer.process for peer in peers.look()]
    assert peers.died[1].last.phase == "between"
    peers.close()


@pytest.mark.parametrize("first", [True, False])  # who connects to whom
def test_the_death_of_a_process_is_seen_with_its_last_record(machine, first):
    if first:
        peers = join(machine.folder, 0, 9)
    machine.start(1, "pass")
    machine.start(2, "between")
    if not first:
        peers = join(machine.folder, 0, 9)
    assert {} == looked_for(peers, lambda: known(peers, 2), seconds=0.2)
    machine.kill(1)
    machine.kill(2)
    died = looked_for(peers, lambda: ended(peers, 2))

    assert {1, 2} == set(died) == set(peers.died)
    assert [machine.pids[process, "group"] for process in (1, 2)] == [
        died[process].pid for process in (1, 2)
    ]
    assert (1, 9, 7, "pass") == tuple(vars(died[1].last).values())
    assert "between" == died[2].last.phase
    assert [] == peers.look()
    peers.close()


@pytest.mark.parametrize("phase", ["left", "stopped"])
def test_who_ends_in_order_or_because_of_a_known_error_has_not_died(machine, phase):
    machine.start(1, phase)
    peers = join(machine.folder, 0, 9)
    assert {} == looked_for(peers, lambda: known(peers, 1) or ended(peers, 1))
    machine.kill(1)

    assert {} == looked_for(peers, lambda: ended(peers, 1))
    assert [1] == list(peers.left)
    peers.close()


def test_who_stops_before_it_saw_that_another_connected_has_not_died(machine):
    machine.start(1, "stops before it looks")
    peers = join(machine.folder, 0, 9)
    (machine.folder / "met").touch()
    machine.children[0].join(100)

    assert {} == looked_for(peers, lambda: ended(peers, 1))
    assert [1] == list(peers.left)
    peers.close()


def test_a_death_is_seen_while_a_forked_child_lives_on(machine):
    peers = join(machine.folder, 0, 9)
    machine.start(1, "parent")
    machine.kill(1)

    assert [1] == list(looked_for(peers, lambda: ended(peers, 1)))
    assert Path(f"/proc/{(machine.folder / 'child-1').read_text()}").exists()
    peers.close()


def test_the_end_of_a_forked_child_and_a_suspended_process_are_no_deaths(machine):
    peers = join(machine.folder, 0, 9)
    machine.start(1, "with a worker that ends")
    assert {} == looked_for(peers, lambda: known(peers, 1))
    os.kill(machine.pids[1, "group"], signal.SIGSTOP)
    child = os.fork()
    if not child:
        os._exit(len(peers.look()) + len(peers))
    status = os.waitpid(child, 0)[1]

    assert 0 == status
    assert {} == looked_for(peers, lambda: True, seconds=0.5)
    assert 1 == len(peers)
    os.kill(machine.pids[1, "group"], signal.SIGCONT)
    peers.close()


def test_a_process_that_died_before_it_was_met_is_seen(machine):
    machine.start(1, "pass")
    machine.kill(1)
    machine.children[0].join()
    peers = join(machine.folder, 0, 9)

    assert [1] == list(looked_for(peers, lambda: ended(peers, 1)))
    assert peers.died[1].last is None
    peers.close()


def test_groups_on_one_machine_do_not_meet(machine):
    machine.start(1, "pass", group="other")
    peers = join(machine.folder, 0, 9)
    machine.kill(1, "other")

    assert {} == looked_for(peers, lambda: True, seconds=0.5)
    assert 0 == len(peers)
    peers.close()


def test_sixteen_threads_of_one_process_all_see_each_of_them(tmp_path):
    joined = {}
    threads = [
        threading.Thread(target=lambda rank=rank: joined.update({rank: join(tmp_path, rank, 16)}))
        for rank in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    joined[3].enter(threads, Topology(rank=3, world_size=16), epoch=2)
    for peers in joined.values():
        peers.look()
        peers.look()

    assert [15] * 16 == [len(peers) for peers in joined.values()]
    joined[3]._drop()  # as when its process ends
    for rank in set(range(16)) - {3}:
        assert [3] == list(looked_for(joined[rank], lambda rank=rank: ended(joined[rank], 1)))
        assert 2 == joined[rank].died[3].last.epoch
    for peers in joined.values():
        peers.close()


def test_no_descriptor_is_left_behind(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        first, second = (join(tmp_path, rank, 2, f"group-{number}") for rank in range(2))
        first.look(), second.look()
        first.close(), second.close()
    first.close()

    assert before == len(os.listdir("/proc/self/fd"))
    assert first.address not in Path("/proc/net/unix").read_text()
