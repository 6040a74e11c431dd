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


def train_everywhere(folder):
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


def check_two_epochs(ranks):
    check_equal_steps(ranks)
    for epoch in ("0", "1"):
        assert list(range(TOTAL)) == sorted(rows_of(ranks, epoch))
    assert rows_of(ranks, "0") != rows_of(ranks, "1")
    assert all(rank["len"] == len(rank["seen"]["1"]) for rank in ranks)


def check_same_resume(whole, rest, *, stop):
    for before, after in zip(whole, rest, strict=True):
        assert before["seen"]["1"][stop:] == after["seen"]["1"]


def check_other_resume(whole, rest, *, stop):
    check_equal_steps(rest)
    assert list(range(TOTAL)) == sorted(rows_of(whole, "1", steps=slice(stop)) + rows_of(rest, "1"))
    assert list(range(TOTAL)) == sorted(rows_of(rest, "2"))


def test_two_epochs_are_whole_and_a_stop_resumes_exactly_on_the_same_and_on_other_ranks(tmp_path):
    runs = train_everywhere(tmp_path)  # one test: a fixture would run once in every process of pytest-xdist
    two, three, back = runs["two"], runs["three"], runs["back"]

    for ranks in (two["whole"], two["workers"], two["fsdp"], three["whole"]):
        check_two_epochs(ranks)
    check_same_resume(two["whole"], two["same"], stop=STOP[1])
    check_same_resume(two["workers"], two["same workers"], stop=EVEN)
    check_same_resume(two["fsdp"], two["same fsdp"], stop=STOP[1])
    check_other_resume(two["whole"], three["of two"], stop=STOP[1])
    check_other_resume(two["workers"], three["of two workers"], stop=EVEN)
    check_other_resume(two["fsdp"], three["of fsdp"], stop=STOP[1])
    check_other_resume(three["whole"], back["of three"], stop=STOP[1])
    check_other_resume(three["whole"], back["of three, with workers"], stop=STOP[1])
