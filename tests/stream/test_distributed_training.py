"""DDP and FSDP over real gloo processes: equal steps, every row once per epoch, and the rest of an epoch on other ranks.

One spawn per world size does several trainings, as starting processes is what costs.
"""

import json
from itertools import chain

import pytest
import torch
from training_cases import ROWS, train_on_rank

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs torch with gloo"
)

TOTAL = sum(ROWS)
STOP = [1, 7]
EVEN = 8  # where both workers of a rank gave as many batches


def flat(parts):
    return list(chain.from_iterable(parts))


def spawn(world_size, folder, jobs):
    """What each rank saw, per job: [job][rank]["seen"][epoch] is a list of batches."""
    torch.multiprocessing.spawn(train_on_rank, (world_size, str(folder), list(jobs.values())), nprocs=world_size)
    ranks = [json.loads((folder / f"world-{world_size}-rank-{rank}.json").read_text()) for rank in range(world_size)]
    return dict(zip(jobs, zip(*ranks, strict=True), strict=True))


def rows_of(ranks, epoch, *, steps=slice(None)):
    return [row for rank in ranks for row in flat(rank["seen"][epoch][steps])]


def check_equal_steps(ranks):
    for epoch in ranks[0]["seen"]:
        assert len({len(rank["seen"][epoch]) for rank in ranks}) == 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    whole = {"model": "ddp", "workers": 0, "batch_size": 5, "epochs": [0, 1], "stop": STOP}
    rest = {"model": "ddp", "workers": 0, "batch_size": 5, "epochs": [1, 2]}
    two = spawn(
        2,
        folder,
        {
            "whole": {**whole, "save": "two.json"},
            "workers": {**whole, "workers": 2, "stop": [1, EVEN], "save": "two-workers.json"},
            "fsdp": {**whole, "model": "fsdp", "save": "fsdp.json"},
            "same": {**rest, "state": "two.json"},
            "same workers": {**rest, "workers": 2, "state": "two-workers.json"},
            "same fsdp": {**rest, "model": "fsdp", "state": "fsdp.json"},
        },
    )
    three = spawn(
        3,
        folder,
        {
            "whole": {**whole, "batch_size": 4, "save": "three.json"},
            "of two": {**rest, "batch_size": 4, "state": "two.json"},
            "of two workers": {**rest, "batch_size": 3, "workers": 1, "state": "two-workers.json"},
            "of fsdp": {**rest, "batch_size": 7, "state": "fsdp.json"},
        },
    )
    (folder / "group-2").unlink(missing_ok=True)
    back = spawn(
        2,
        folder,
        {
            "of three": {**rest, "batch_size": 6, "state": "three.json"},
            "of three, with workers": {**rest, "batch_size": 2, "workers": 2, "state": "three.json"},
        },
    )
    return {"two": two, "three": three, "back": back}


@pytest.mark.parametrize(("world", "job"), [("two", "whole"), ("two", "workers"), ("two", "fsdp"), ("three", "whole")])
def test_two_epochs_deliver_every_row_once_in_equal_steps_and_new_orders(runs, world, job):
    ranks = runs[world][job]

    check_equal_steps(ranks)
    for epoch in ("0", "1"):
        assert list(range(TOTAL)) == sorted(rows_of(ranks, epoch))
    assert rows_of(ranks, "0") != rows_of(ranks, "1")
    assert all(rank["len"] == len(rank["seen"]["1"]) for rank in ranks)


@pytest.mark.parametrize(("first", "resumed"), [("whole", "same"), ("workers", "same workers"), ("fsdp", "same fsdp")])
def test_a_resume_on_the_same_topology_equals_the_uninterrupted_training(runs, first, resumed):
    for whole, rest in zip(runs["two"][first], runs["two"][resumed], strict=True):
        assert whole["seen"]["1"][EVEN if first == "workers" else STOP[1] :] == rest["seen"]["1"]


@pytest.mark.parametrize(
    ("old", "first", "new", "resumed"),
    [
        ("two", "whole", "three", "of two"),
        ("two", "workers", "three", "of two workers"),
        ("two", "fsdp", "three", "of fsdp"),
        ("three", "whole", "back", "of three"),
        ("three", "whole", "back", "of three, with workers"),
    ],
)
def test_a_resume_on_other_ranks_delivers_the_rest_once_and_then_whole_epochs(runs, old, first, new, resumed):
    ranks = runs[new][resumed]
    before = rows_of(runs[old][first], "1", steps=slice(EVEN if first == "workers" else STOP[1]))

    check_equal_steps(ranks)
    assert list(range(TOTAL)) == sorted(before + rows_of(ranks, "1"))
    assert list(range(TOTAL)) == sorted(rows_of(ranks, "2"))
