"""A failure on one rank is known on all: real ranks, real damage in the middle of a later epoch."""

import json
import logging
import subprocess
import sys
import time

import pytest
import torch
from fault_cases import BAD_GROUP, damage, fail_on_rank
from fault_cases import write_shards as write
from rank_processes import run_ranks
from stream_cases import Numbers, index_of
from torch_cases import let_go

import headrace
from headrace.errors import CorruptShard, InputError, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks import watch
from headrace.stream.ranks.group import Failure, Group, in_short
from headrace.stream.ranks.topology import Topology
from headrace.stream.ranks.watch import Watch

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch with gloo",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "failing", "error"),
    [
        ("flipped", 0, "InputError"),
        ("truncated", 1, "CorruptShard"),  # as its size is not that of the index
        pytest.param("missing", 1, "CorruptShard", marks=pytest.mark.faults),
    ],
)
def test_a_damaged_row_group_on_one_rank_ends_all_ranks(tmp_path, how, failing, error):
    world_size = 2
    write(tmp_path / "shards", world_size)
    run_ranks(fail_on_rank, world_size, world_size, str(tmp_path), how, failing)
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(world_size)]
    file, other = f"part-{failing:05d}.parquet", 1 - failing

    for name in ("threads", "workers", "lockstep"):
        own, others = ranks[failing][name], ranks[other][name]
        told = next(line for line in others["log"] if "stopped the stream" in line)
        block = f"block {BAD_GROUP}" if how == "flipped" else "block "
        assert own["kind"] == error
        assert f"rank {failing} of {world_size}: " in own["message"]
        assert f"{file} {block}" in own["message"]
        assert (
            others["time"] - own["time"] < 120
        )  # seconds; about one on a machine with nothing else to do
        assert told.startswith(f"rank {failing} of {world_size} stopped the stream: ")
        assert f"{file} {block}" in told
        if name != "lockstep":  # there a collective may fail before the next batch is asked for
            assert others["kind"] == "StreamError"
            assert told in others["message"]
            assert "Traceback" not in others["message"]
        assert others["batches"] < 240


@pytest.mark.smoke("fork")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_an_error_of_what_workers_ask_for_names_rank_file_and_row_group(tmp_path, method, caplog):
    write(tmp_path / "shards", 1)
    opened = headrace.open(tmp_path / "shards", cache_dir=tmp_path / "cache")
    damage(tmp_path / "shards" / "part-00000.parquet", "flipped")
    dataset = opened.torch_dataset(
        batch_size=100, num_workers=1, topology=Topology(rank=4, world_size=5), lanes=1
    )
    with caplog.at_level(logging.ERROR, "headrace"), pytest.raises(InputError) as caught:
        list(dataset.data_loader(method=method))
    let_go(caught.tb)

    place = f"part-00000.parquet block {BAD_GROUP}: "
    assert f"rank 4 of 5: {place}" in str(caught.value)
    assert f"row group {BAD_GROUP}" in str(caught.value)
    assert [record.getMessage()[:99] for record in caplog.records] == [
        f"rank 4 of 5 stopped the stream: {place}{tmp_path}"[:99]
    ]


LEFT_OPEN = """
import sys, torch, headrace
from headrace.stream.ranks.topology import Topology
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
opened = headrace.open(f"{folder}/shards", cache_dir=f"{folder}/cache-{rank}")
balanced, dynamic = (iter(opened.stream(batch_size=10, distribution=word)) for word in ("balanced", "dynamic"))
next(balanced), next(dynamic)
torch.distributed.barrier()
print("open", flush=True)
"""


@pytest.mark.slow
def test_a_process_that_ends_with_open_passes_ends_well(tmp_path):
    write(tmp_path / "shards", 1)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LEFT_OPEN, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ends = [rank.communicate(timeout=200) for rank in ranks]

    assert [(rank.returncode, out) for rank, (out, _) in zip(ranks, ends, strict=True)] == [
        (0, "open\n")
    ] * 2, ends


class Board(dict):
    """The verbs of a store, in one process."""

    def add(self, key, amount):
        self[key] = self.get(key, 0) + amount
        return self[key]

    def set(self, key, value):
        self[key] = value

    def check(self, keys):
        return all(key in self for key in keys)

    def compare_set(self, key, _expected, desired):
        return self.setdefault(key, desired)

    get = dict.__getitem__

    def __getattribute__(self, name):
        if name == "get":
            return lambda key, default=None: dict.get(self, key, default)
        return super().__getattribute__(name)


def test_a_failure_is_read_once_by_each_process_even_by_one_that_comes_later():
    store = Board()
    first, second, third = (Group(store, process=process, processes=3) for process in range(3))
    failure = Failure(rank=0, world_size=3, message="part-00000.parquet: gone")
    failure = first.post(failure)

    assert first.unread() is None
    assert second.unread() == failure
    assert not first.seen_by_all(failure)
    assert third.unread() == failure
    assert first.seen_by_all(failure)
    assert second.unread() is None

    again = third.post(Failure(rank=2, world_size=3, message="later"))

    assert (first.unread(), second.unread(), third.unread()) == (again, again, None)


@pytest.fixture
def two_processes(monkeypatch):
    """Both processes of one group, and a function that makes a watch for the first."""
    store, stream = Board(), StreamLoader(index_of([5]), Numbers((5,)), StreamOptions(batch_size=5))
    groups = [Group(store, process=process, processes=2) for process in range(2)]
    monkeypatch.setattr(watch, "default_group", lambda: groups[0])
    return *groups, lambda: Watch(stream, None)


def test_a_failure_that_comes_after_the_last_batch_is_raised_by_the_next_pass(
    two_processes, caplog
):
    group, other, watch_of_pass = two_processes
    left = watch_of_pass()
    batches = left.over(iter([1, 2]))
    assert next(batches) == 1
    other.post(Failure(rank=1, world_size=2, message="late"))
    while "late" not in caplog.text:  # the thread of the first pass has heard of it
        time.sleep(0.01)
    batches.close()
    with pytest.raises(StreamError, match="late"):
        next(watch_of_pass().over(iter([1])))

    assert group.settled == 1
    assert list(watch_of_pass().over(iter([1]))) == [1]


def test_a_failure_stops_every_pass_of_a_process(two_processes, caplog):
    _, other, watch_of_pass = two_processes
    train, val = (watch_of_pass().over(iter([1, 2])) for _ in range(2))
    next(train), next(val)
    other.post(Failure(rank=1, world_size=2, message="late"))
    while "late" not in caplog.text:
        time.sleep(0.01)
    for batches in (val, train):
        with pytest.raises(StreamError, match="late"):
            next(batches)


def test_the_message_of_a_worker_is_told_without_its_traceback():
    inside = "Caught CorruptShard in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n  File"
    error = CorruptShard(
        f"{inside}\nheadrace.errors.CorruptShard: rank 1 of 2, worker 1: a.parquet block 7: bad"
    )

    assert in_short(error) == "rank 1 of 2, worker 1: a.parquet block 7: bad"
    assert (
        str(error)
        == f"{inside}\nheadrace.errors.CorruptShard: rank 1 of 2, worker 1: a.parquet block 7: bad"
    )
    assert in_short(CorruptShard("a.parquet:", "bad")) == "a.parquet: bad"
    assert in_short(CorruptShard("a.parquet:\nbad")) == r"a.parquet:\nbad"
    assert (
        in_short(RuntimeError(f"{inside}\nValueError: of a:\nb.parquet: bad"))
        == "of a: b.parquet: bad"
    )
    assert in_short(RuntimeError(f"{inside}\nKeyError")) == "KeyError"
    assert in_short(KeyError()) == "KeyError"


def test_a_failure_without_other_ranks_is_logged_and_leaves_no_thread(caplog, own_threads):
    def read_block(block, columns):
        if block == 3:
            raise OSError("disk gone")
        return Numbers((5,) * 4)(block, columns)

    options = StreamOptions(batch_size=5, batch_format="numpy")
    loader = StreamLoader(
        index_of([5] * 4), read_block, options, topology=Topology(rank=1, world_size=2)
    )
    with caplog.at_level(logging.ERROR, "headrace"), pytest.raises(StreamError, match="disk gone"):
        list(loader)

    assert "rank 1 of 2 stopped the stream: part-00003.parquet block 0" in caplog.text
    assert own_threads.left() == []
