"""A worker that is forked from a process that serves ends in order, whatever that process waits for at its own end."""

from __future__ import annotations

import multiprocessing
import threading

import pytest

pytest.importorskip("torch", reason="needs torch")

from torch.utils.data import DataLoader
from torch_cases import dataset_of, real_rows

from headrace.stream.workers import serving

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs fork"
)


def test_forked_workers_end_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each inherits the servers of the ones before, whose threads it does not have."""
    # torch ends workers that take longer, and a busy machine may need more than its 5 s
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 120)
    for _ in range(3):
        dataset = dataset_of(2)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
        batches = iter(loader)
        workers = list(batches._workers)
        assert [real_rows(batch) for batch in batches]
        for worker in workers:
            worker.join(120)
        assert [0, 0] == [worker.exitcode for worker in workers]


def test_a_fork_does_not_wait_for_the_threads_of_its_parent() -> None:
    """One may just be starting when the process is forked, and can never be awaited there."""
    batches = iter(DataLoader(dataset_of(1), batch_size=None, num_workers=1))
    next(batches)
    starting = threading.Thread()
    for server in serving._SERVERS.values():
        server._threads.add(starting)
    forked = multiprocessing.get_context("fork").Process(target=serving._at_exit)
    forked.start()
    for server in serving._SERVERS.values():
        server._threads.discard(starting)
    forked.join(120)
    assert forked.exitcode == 0
    assert len(list(batches)) > 0
