"""Under Accelerate: what is prepared, what must not be, and what would happen if it were."""

import json

import pytest

pytest.importorskip("accelerate", reason="needs accelerate")

from accelerate_cases import deliver_on_rank
from rank_processes import free_ports, run_ranks
from torch_cases import ROWS


def test_a_stream_passes_through_prepare_and_resumes_and_a_prepared_loader_would_lose_rows(tmp_path):
    with free_ports(1) as (port,):
        run_ranks(deliver_on_rank, 2, 2, port, str(tmp_path))
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    every = list(range(sum(ROWS)))

    def rows(*titles):
        return sorted(row for rank in ranks for title in titles for batch in rank[title] for row in batch)

    assert all(rank["same stream"] for rank in ranks)
    assert every == rows("prepared stream")
    assert every == rows("unprepared loader")
    assert len({len(rank["prepared stream"]) for rank in ranks}) == 1
    for rank in ranks:
        assert rank["prepared stream"] == rank["before"] + rank["rest"]
    assert every == rows("before", "rest in other batches")
    assert len(set(rows("prepared loader"))) < len(every)  # why the docs warn of it
