"""Ranks that are about to read different things are all told so before the first batch, by field and both values."""

import json

import pytest
import torch
from contract_cases import absent_on_rank, cases, differ_on_rank, write_data
from rank_processes import run_ranks
from series_cases import write_run
from stream_cases import ranks

import headrace

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch with gloo",
)

WORLD_SIZE = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("contracts")
    write_data(root)
    write_run(root / "series", (60, 45, 80))
    stream = headrace.open(root / "data", cache_dir=root / "cache").stream(
        batch_size=5, shuffle=True, seed=3, columns=["row"], topology=ranks(WORLD_SIZE)[0]
    )
    batches = iter(stream)
    for _ in range(4):
        next(batches)
    (root / "state.json").write_text(json.dumps(stream.state_dict()))
    return root


@pytest.fixture(scope="module")
def told(folder):
    run_ranks(differ_on_rank, WORLD_SIZE, WORLD_SIZE, str(folder), str(folder / "series"))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(WORLD_SIZE)]


@pytest.mark.slow
def test_every_difference_is_an_error_on_every_rank_before_the_first_batch(told, folder):
    for name, (_, _, says) in cases(folder, str(folder / "series"), {}).items():
        for rank, each in enumerate(told):
            assert 0 == each[name]["batches"], (name, rank)
            assert (
                f"RanksDiffer: rank {rank} of 3: the ranks are about to read different data"
                in each[name]["error"]
            )
            assert says in each[name]["error"], (name, rank)
            assert each[name]["error"].partition(": ")[2] == told[0][name]["error"].partition(": ")[
                2
            ].replace("rank 0 of 3", f"rank {rank} of 3")
            assert "topology=headrace.Topology(rank=0, world_size=1)" in each[name]["error"]


@pytest.mark.slow
def test_values_are_escaped_and_cut_to_a_sane_length(told):
    for each in told:
        assert len(each["a long name"]["error"]) < 1500
        assert "\x1b" not in each["a long name"]["error"]


@pytest.mark.slow
def test_ranks_that_were_told_go_on_together(told):
    assert 180 == sum(each["alike"]["rows"] for each in told)


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named_after_a_while_and_one_that_reads_alone_waits_for_nobody(
    folder, tmp_path
):
    write_data(tmp_path)
    run_ranks(absent_on_rank, WORLD_SIZE, WORLD_SIZE, str(tmp_path))
    *present, absent = [
        json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(WORLD_SIZE)
    ]

    assert 180 == absent["alone"]
    assert [0, 0, 0] == [each["batches"] for each in (*present, absent)]
    for each in present:
        assert "for rank 2 to start epoch 0 of 'all'" in each["error"]
        assert "start the same passes on every rank" in each["error"]
    assert "stopped the stream: " in absent["error"]
