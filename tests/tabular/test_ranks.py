"""Real ranks of a process group with spawned, persistent workers: every row once, equal steps, one verdict."""

import json

import pytest
from rank_processes import run_ranks
from tabular_cases import on_rank, write_shards

RANKS = 2


@pytest.fixture(scope="module")
def received(tmp_path_factory):
    data, folder = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("ranks")
    total = write_shards(data)
    run_ranks(on_rank, RANKS, RANKS, str(folder), str(data))
    return total, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_comes_once_per_epoch_in_equal_steps(received, workers):
    total, ranks = received
    for epoch in (0, 1):
        parts = [rank[f"{workers} {epoch}"] for rank in ranks]

        assert list(range(total)) == sorted(row for part in parts for row in part["ids"])
        assert 1 == len({part["batches"] for part in parts})
        assert (
            {-(-total // RANKS)}
            == {part["rows"] for part in parts}
            == {part["len"] for part in parts}
        )
    assert ranks[0][f"{workers} 0"]["ids"] != ranks[0][f"{workers} 1"]["ids"]


@pytest.mark.parametrize("workers", [0, 2])
def test_diagnostics_are_those_of_each_rank(received, workers):
    _, ranks = received
    infos = [rank[f"{workers} info"] for rank in ranks]

    assert [(0, 2), (1, 2)] == [(info["rank"], info["world_size"]) for info in infos]
    assert {7} == {info["total_shards"] for info in infos}
    assert all(len(info["assigned_shards"]) == info["shards_per_rank"] for info in infos)
    assert 6 == len({shard for info in infos for shard in info["assigned_shards"]})


def test_all_ranks_come_to_the_same_verdict(received):
    _, ranks = received

    assert [True] * 4 == [rank[f"{workers} verdict"] for rank in ranks for workers in (0, 2)]
    for fault in ranks[0]["verdicts"]:
        assert [False, False] == [rank["verdicts"][fault] for rank in ranks], fault


def test_a_processor_that_fails_on_one_rank_stops_all(received):
    _, ranks = received
    for other, failed in zip(*(rank["failures"] for rank in ranks), strict=True):
        assert failed.startswith("int fails on 'text ")
        assert "rank 1 of 2" in other
        assert "int fails on 'text " in other
