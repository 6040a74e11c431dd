"""Ranks that begin a pass at different places are stopped by name; a look at a batch, a stop and its rest are no such thing."""

import json

import pytest
import torch
from beginning_cases import ROWS, begin_on_rank
from rank_processes import run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch with gloo",
)

WORLD_SIZE = 2
EVERY = list(range(sum(ROWS)))


def flat(ranks, name):
    return [row for rank in ranks for batch in rank[name]["rows"] for row in batch]


@pytest.mark.slow
def test_ranks_that_begin_unlike_are_stopped_and_no_others(tmp_path):
    run_ranks(begin_on_rank, WORLD_SIZE, WORLD_SIZE, str(tmp_path))
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(WORLD_SIZE)]

    for rank in ranks:
        unlike = {name for name, each in rank.items() if each["error"]}
        assert {"other epochs", "other epochs in workers", "other states"} == unlike
    assert [[0, 1]] * 2 == [rank["a long look, in step"]["epochs"] for rank in ranks]
    assert [[0, 0]] * 2 == [rank["left on all, in step"]["epochs"] for rank in ranks]
    for name in (
        "after a look",
        "the next epoch",
        "again",
        "left on one",
        "left on one, the next epoch",
    ):
        assert EVERY == sorted(flat(ranks, name))
    for name in ("the rest", "the rest in workers", "after all, the rest"):
        assert EVERY == sorted(flat(ranks, "stopped") + flat(ranks, name))
    for name, places in (
        ("other epochs", ("epoch is 5 on rank 0 and 6 on rank 1",)),
        ("other epochs in workers", ("epoch is 5 on rank 0 and 6 on rank 1",)),
        ("other states", ("position is 40 on rank 0 and 50 on rank 1",)),
    ):
        for rank in ranks:
            assert [] == rank[name]["rows"]
            assert "load the same state and set the same epoch on every rank" in rank[name]["error"]
            assert all(place in rank[name]["error"] for place in places)
