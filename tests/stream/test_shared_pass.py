"""What of a pass lies in memory shared with workers: seen by other processes, and right after a worker was replaced."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

pytest.importorskip("torch")

from headrace.stream.workers.shared_pass import SharedFindings, SharedPass

BLOCKS = 3


def test_what_the_parent_means_is_read_back():
    shared = SharedPass()
    shared.begin(7, part="rest", loads=2)
    shared.name()

    assert (7, 2) == (shared.epoch, shared.loads)
    assert shared.is_rest
    assert shared.was_named
    assert not shared.is_workers_own


def test_a_pass_that_the_parent_begins_ends_what_workers_did_alone():
    shared = SharedPass()
    shared.go_on_alone(4)
    alone = shared.is_workers_own
    shared.begin(5, part="whole", loads=0)

    assert alone
    assert not shared.is_workers_own
    assert not shared.is_rest
    assert 5 == shared.epoch


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("travel", [lambda each: each, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_forked_worker_writes_where_its_parent_reads(travel):
    shared, findings = travel(SharedPass()), travel(SharedFindings(workers=2, threads=1, blocks=BLOCKS))
    child = os.fork()
    if not child:
        try:
            shared.go_on_alone(9)
            rows, blocks = findings.slot(1)
            rows[0], blocks[2] = 11, 1
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert 9 == shared.epoch
    assert 11 == findings.given_up
    assert [0, 0, 1] == findings.slot(1)[1].tolist()


def test_counts_after_a_restart_are_those_of_the_batches_received():
    findings = SharedFindings(workers=2, threads=1, blocks=BLOCKS)
    findings.slot(0)[1][:] = [1, 0, 1]
    findings.slot(1)[0][0] = 99
    held = {0: [4, 4, 0], 1: [0, 1, 6]}  # rows of each block in the batches of a share

    findings.go_on_after(3, lambda share, batches: batches * np.array(held[share]))

    # Of three batches share 0 gave two and share 1 one; share 1's turn is next, so worker 0 takes it.
    assert [6, 8] == [int(findings.slot(worker)[0][0]) for worker in (0, 1)]
    assert [[0, 0, 1], [1, 0, 0]] == [findings.slot(worker)[1].tolist() for worker in (0, 1)]


def test_a_worker_that_begins_a_pass_has_given_up_nothing():
    findings = SharedFindings(workers=2, threads=1, blocks=BLOCKS)
    for worker in (0, 1):
        rows, blocks = findings.slot(worker)
        rows[0], blocks[:] = 5, 1
    findings.forget(0)

    assert 5 == findings.given_up
    assert [0, 0, 0] == findings.slot(0)[1].tolist()
    assert [1, 1, 1] == findings.slot(1)[1].tolist()


def test_a_death_names_the_block_that_was_being_read_else_the_last_one():
    findings = SharedFindings(workers=2, threads=2, blocks=0)
    notes = findings.notes(1)
    before = findings.death_of(1, reader="worker 1", process=os.getpid(), code=-9)
    place = notes.begin(8)
    during = findings.death_of(1, reader="worker 1", process=os.getpid(), code=-9)
    notes.end(place)
    after = findings.death_of(1, reader="worker 1", process=os.getpid(), code=-9)

    assert ((), (8,), (8,)) == (before.blocks, during.blocks, after.blocks)
    assert [False, True, False] == [each.reading for each in (before, during, after)]
    assert 1 == findings.numbers()[os.getpid()]
