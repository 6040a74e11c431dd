"""Under Accelerate: what is prepared, what must not be, and what would happen if it were."""

import json
import socket

import pytest
import torch

pytest.importorskip("accelerate", reason="needs accelerate")

from accelerate_cases import deliver_on_rank
from torch_cases import ROWS


def test_a_stream_passes_through_prepare_and_a_prepared_loader_would_lose_rows(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(deliver_on_rank, (2, port, str(tmp_path)), nprocs=2)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    every = list(range(sum(ROWS)))

    assert all(rank["same stream"] for rank in ranks)
    assert every == sorted(row for rank in ranks for row in rank["prepared stream"])
    assert every == sorted(row for rank in ranks for row in rank["unprepared loader"])
    assert len({row for rank in ranks for row in rank["prepared loader"]}) < len(every)  # why the docs warn of it
