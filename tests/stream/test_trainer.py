"""Under Hugging Face's Trainer on two ranks: every row once an epoch, or an error that says how."""

import json

import pytest

pytest.importorskip("transformers", reason="needs transformers")

from rank_processes import run_ranks
from script_processes import held_store
from trainer_cases import BLOCKS, train_on_rank

EVERY = list(range(sum(BLOCKS)))
pytestmark = pytest.mark.slow  # the fast tests run the mixin of headrace.trainers.hf


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainer")
    store = held_store()
    run_ranks(train_on_rank, 2, 2, store.port, str(folder))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_comes_once_an_epoch_in_an_order_of_its_own(ranks, workers):
    passes = []
    for epoch in range(2):
        steps = [rank[f"workers={workers}"] for rank in ranks]
        length = len(steps[0]) // 2
        assert length == len(steps[1]) // 2
        passes.append(
            [
                row
                for mine in steps
                for batch in mine[epoch * length : (epoch + 1) * length]
                for row in batch
            ]
        )

    assert [EVERY, EVERY] == [sorted(each) for each in passes]
    assert passes[0] != passes[1]


def test_a_checkpoint_resumes_with_the_next_batch(ranks):
    for rank in ranks:
        assert 2 * rank["steps"] == len(rank["saved"])
        assert rank["saved"][3:] == rank["resumed"]


def test_the_trainers_own_loader_is_refused(ranks):
    for rank in ranks:
        assert (
            "for Hugging Face's Trainer override get_train_dataloader() to return it"
            in rank["plain"]
        )
