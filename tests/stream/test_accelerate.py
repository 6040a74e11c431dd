"""Under Accelerate: what is prepared, what must not be, and what would happen if it were."""

import json

import pytest

pytest.importorskip("accelerate", reason="needs accelerate")

from accelerate_cases import deliver_on_rank
from rank_processes import run_ranks
from script_processes import held_store
from torch_cases import ROWS

EVERY = list(range(sum(ROWS)))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    store = held_store()
    run_ranks(deliver_on_rank, 2, 2, store.port, str(folder))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def rows(ranks, *titles):
    return sorted(row for rank in ranks for title in titles for batch in rank[title] for row in batch)


def test_a_stream_passes_through_prepare_and_gives_every_row_once(ranks):
    assert all(rank["same stream"] for rank in ranks)
    assert rows(ranks, "prepared stream") == EVERY
    assert rows(ranks, "unprepared loader") == EVERY
    assert len({len(rank["prepared stream"]) for rank in ranks}) == 1


def test_a_stream_resumes_under_accelerate(ranks):
    for rank in ranks:
        assert rank["prepared stream"] == rank["before"] + rank["rest"]
    assert rows(ranks, "before", "rest in other batches") == EVERY


def test_a_loader_that_is_prepared_without_dispatching_does_not_run(ranks):
    assert all("NoneType" in rank["no dispatch"] for rank in ranks)


def test_even_batches_repeat_rows_and_uneven_ones_are_unequal_steps(ranks):
    assert len(rows(ranks, "even")) == 23 + 7
    assert len(set(rows(ranks, "even"))) == 23
    assert [len(rank["uneven"]) for rank in ranks] == [3, 2]


def test_gathering_for_metrics_keeps_the_filling_rows_of_a_stream(ranks):
    for rank in ranks:
        assert rank["gathered for metrics"] == 2 * 5
        assert rank["real"] < 2 * 5
