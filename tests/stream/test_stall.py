"""A rank that waits for data is named, with shard, block and phase: the sentences, and real ranks with a slow block."""

import json
import logging
import threading

import pytest
import torch
from rank_processes import run_ranks
from stall_cases import ROWS, SLOW, Said, SlowBlocks, stall_on_rank
from stream_cases import index_of, ranks

from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks import watch
from headrace.stream.ranks.group import RUNNING, Group
from headrace.stream.ranks.stats import Progress, Snapshot, complaints, due
from raised import raised


def moment(phase="loop", *, seconds=0.1, batches=100, waited=1.0, elapsed=100.0, place=""):
    return Snapshot(
        phase=phase, seconds=seconds, batches=batches, waited=waited, elapsed=elapsed, reading=place
    )


def test_nothing_is_said_while_all_is_well():
    busy = {
        rank: moment("decode", seconds=4.9, batches=100 - rank, place="a block 0")
        for rank in range(4)
    }

    assert complaints(busy, stall_seconds=5) == {}
    assert (
        complaints({0: moment(waited=99.0)}, stall_seconds=5) == {}
    )  # alone, a slow source delays nobody
    assert complaints({}, stall_seconds=5) == {}


def test_a_long_wait_names_rank_block_phase_and_how_far_others_are():
    slow = moment("decode", seconds=6.2, batches=88, place="part-00003.parquet block 7")
    said = complaints({0: moment(), 1: moment(batches=99), 2: slow}, stall_seconds=5)

    sentence = "rank 2 has waited 6 s for part-00003.parquet block 7 (decode)"
    assert said == {("waits", 2): f"{sentence}; rank 0 is 12 batches ahead"}
    assert complaints({2: slow}, stall_seconds=5) == {("waits", 2): sentence}


def test_a_rank_far_behind_is_named_until_it_is_done():
    behind = {0: moment(batches=150), 1: moment(batches=100, waited=70.0)}

    assert complaints(behind, stall_seconds=5) == {
        (
            "behind",
            1,
        ): "rank 1 is 50 batches behind rank 0; it spent 70% of its time waiting for data, and is now in"
        " the training loop (loop)"
    }
    assert complaints({**behind, 1: moment("done")}, stall_seconds=5) == {}


def test_a_rank_that_waits_more_than_the_others_is_named():
    said = complaints(
        {0: moment(waited=4.0), 1: moment(waited=6.0), 2: moment(waited=40.0)}, stall_seconds=5
    )

    assert list(said) == [("share", 2)]
    assert said["share", 2].startswith(
        "rank 2 spent 40% of its time waiting for data, the other ranks 5%"
    )


def test_a_rank_that_waits_for_one_block_after_the_other_is_named_once_in_half_a_minute():
    said, lines = {}, []
    for second in range(60):
        waits = moment("decode", seconds=6.0, place=f"part-{second:05d}.parquet block 0")
        lines += due(complaints({0: waits, 1: waits}, stall_seconds=5), said, now=float(second))

    assert ["rank 0", "rank 1"] * 2 == [line.partition(" has waited")[0] for line in lines]


def test_progress_names_the_block_that_has_been_read_for_longest():
    progress = Progress(index_of([5, 5, 5]))
    assert progress.snapshot().phase == "loop"

    progress.wait()
    assert progress.snapshot().phase == "gather"

    seen = []

    def read_block(block, columns):
        seen.append(progress.snapshot())

    progress.noted(read_block)(2, None)
    assert (seen[0].phase, seen[0].reading) == ("decode", "part-00002.parquet block 0")
    assert progress.snapshot().reading == ""

    progress.got()
    assert progress.snapshot().batches == 1


@pytest.fixture
def said(tmp_path):
    """A file that exists once the slow block was named."""
    listener = Said(SLOW, tmp_path / "said")
    logging.getLogger("headrace").addHandler(listener)
    yield listener.path
    logging.getLogger("headrace").removeHandler(listener)


@pytest.mark.slow
def test_one_process_logs_its_own_wait_once(caplog, own_threads, said):
    settings = StreamOptions(batch_size=1024, stall_seconds=0.2, batch_format="numpy")
    slow = SlowBlocks(2, seconds=2.2, until=(said,))  # two more looks
    loader = StreamLoader(index_of(ROWS), slow, settings, topology=ranks(1)[0])
    with caplog.at_level(logging.WARNING, "headrace"):
        list(loader)

    (line,) = [record.getMessage() for record in caplog.records if SLOW in record.getMessage()]
    assert line.startswith("rank 0 has waited ")
    assert line.endswith(f"s for {SLOW}")
    assert own_threads.left() == []


@pytest.mark.slow
def test_without_stall_seconds_nothing_is_logged_and_no_thread_runs(caplog, own_threads):
    settings = StreamOptions(
        batch_size=1024, stall_seconds=None, batch_format="numpy", shuffle=False
    )
    loader = StreamLoader(index_of(ROWS), SlowBlocks(3, 1.5), settings, topology=ranks(1)[0])
    with caplog.at_level(logging.WARNING, "headrace"):
        for _ in loader:
            assert "headrace-watch" not in [thread.name for thread in own_threads.now()]

    assert caplog.records == []
    with raised(SettingsError, setting="stall_seconds", value=0):
        StreamOptions(batch_size=1, stall_seconds=0)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_a_slow_block_on_one_rank_is_named_on_that_rank_and_on_rank_0(tmp_path):
    run_ranks(stall_on_rank, 2, 2, str(tmp_path))
    got = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]

    for name in ("threads", "workers"):
        for lines in (got[0][name], got[1][name]):
            found = [line for line in lines if SLOW in line]
            assert found
            assert all(line.startswith("rank 1 has waited ") for line in found)


# --- the end of the thread ---


class Busy(dict):
    """A store whose answers take until somebody lets them go."""

    def __init__(self):
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def check(self, _keys):
        self.asked.set()
        self.go.wait()
        return False


def test_a_watch_whose_store_is_busy_is_waited_for_again_before_the_interpreter_ends(monkeypatch):
    store = Busy()
    monkeypatch.setattr(watch, "default_group", lambda: Group(store, process=0, processes=2))
    monkeypatch.setattr(watch, "_END_S", 0.01)
    stream = StreamLoader(
        index_of(ROWS), SlowBlocks(2), StreamOptions(batch_size=1024), topology=ranks(2)[0]
    )
    watched = watch.Watch(stream, contract=None)
    with watched:
        store.asked.wait()
    assert watched in RUNNING
    store.go.set()
    monkeypatch.setattr(watch, "_END_S", 240.0)
    watched.stop()

    assert watched not in RUNNING
    assert not watched._thread.is_alive()
