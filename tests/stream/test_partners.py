"""Of the processes that hold one replica of a model, one on each machine reads, and the others get its batches."""

import json
import os
import signal
import sys

import pytest
import torch
from partner_cases import BATCH, EVERY, ROWS, STOP, kill_one, share_passes
from rank_processes import end_ranks, run_ranks

pytestmark = [
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="needs torch with gloo",
    ),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs sockets of Linux"),
]

PROCESSES = 4


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("partners")
    before = set(os.listdir("/dev/shm"))
    run_ranks(share_passes, PROCESSES, PROCESSES, str(folder))
    told = [json.loads((folder / f"process-{n}.json").read_text()) for n in range(PROCESSES)]
    return told, set(os.listdir("/dev/shm")) - before


def test_debug(records):
    told, left = records
    for each in told:
        print({k: (len(v) if isinstance(v, list) and k != "torn" else v) for k, v in each.items() if k != "state"})
    print(left)
