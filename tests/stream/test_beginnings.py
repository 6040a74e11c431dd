"""Ranks that begin a pass at different places are stopped by name; a look at a batch, a stop and its rest are no such thing."""

import json

import pytest
import torch
from beginning_cases import ROWS, begin_on_rank
from rank_processes import run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="needs torch with gloo"
)

WORLD_SIZE = 2
EVERY = list(range(sum(ROWS)))


def flat(ranks, name):
    return [row for rank in ranks for batch in rank[name]["rows"] for row in batch]


def test_ranks_that_begin_unlike_are_stopped_and_no_others(tmp_path):
    run_ranks(begin_on_rank, WORLD_SIZE, WORLD_SIZE, str(tmp_path))
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(WORLD_SIZE)]

    for rank in ranks:
        unlike = {name for name, each in rank.items() if each["error"]}
        assert {"other epochs", "other epochs in workers", "other states"} == unlike
    for name in ("a long look, in step", "left on all, in step"):
        assert [[], []] == [rank[name]["log"] for rank in ranks]
    fine, (behind,) = (rank["left on one, in step"]["log"] for rank in ranks)
    assert [] == fine
    assert behind.startswith("rank 1 of 2: left this pass after 3 batches and began it again at epoch 0, position 0, ")
    assert behind.endswith("call set_epoch before each pass")
    for name in ("after a look", "the next epoch", "again"):
        assert EVERY == sorted(flat(ranks, name))
    for name in ("the rest", "the rest in workers", "after all, the rest"):
        assert EVERY == sorted(flat(ranks, "stopped") + flat(ranks, name))
    for name, places in (
        ("other epochs", ("epoch 5, position 0", "epoch 6, position 0")),
        ("other epochs in workers", ("epoch 5, position 0", "epoch 6, position 0")),
        ("other states", ("epoch 0, position 40", "epoch 0, position 50")),
    ):
        for rank in ranks:
            assert "load the same state and set the same epoch on every rank" in rank[name]["error"]
            assert all(place in rank[name]["error"] for place in places)
