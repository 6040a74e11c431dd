"""Under a real DataLoader and a real process group: every row once, equal steps, epochs and states that arrive."""

import functools
import json
import logging
import pickle
import random
import subprocess
import sys
from itertools import chain

import pytest
import torch
from stream_cases import Numbers, index_of, ranks
from torch.utils.data import dataloader
from torch_cases import ROWS, dataset_of, let_go, loader_of, real_rows

from headrace.errors import CorruptShard, SettingsError, StreamError
from headrace.stream.loader import watched_loader
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.ranks.topology import Topology
from headrace.stream.workers import guarded_workers
from raised import raised

# The number of workers is the test's subject, whatever machine it runs on.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

TOTAL = sum(ROWS)
ALONE = Topology(rank=0, world_size=1)


def flat(parts):
    return list(chain.from_iterable(parts))


def batches_of(dataset, **settings):
    return [real_rows(batch) for batch in loader_of(dataset, **settings)]


@pytest.mark.smoke("fork")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_deliver_the_batches_of_a_loop_without_any(method):
    dataset = dataset_of(2, topology=ALONE)
    batches = batches_of(dataset, method=method)

    assert len(batches) == len(dataset)
    assert sorted(flat(batches)) == list(range(TOTAL))
    assert batches == [real_rows(batch) for batch in dataset_of(0, topology=ALONE)]


@pytest.mark.slow
def test_two_ranks_with_workers_share_the_epoch_in_equal_steps():
    group = [dataset_of(3, topology=topology) for topology in ranks(2)]
    batches = [batches_of(dataset) for dataset in group]

    assert {len(part) for part in batches} == {len(dataset) for dataset in group}
    assert sorted(flat(flat(batches))) == list(range(TOTAL))


@pytest.mark.slow
@pytest.mark.smoke("fork")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_persistent_workers_see_set_epoch(method):
    dataset = dataset_of(2, topology=ALONE)
    loader = loader_of(dataset, method=method, persistent=True)
    passes = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        passes.append([real_rows(batch) for batch in loader])
    expected = []
    for epoch in (0, 1):
        fresh = dataset_of(2, topology=ALONE)
        fresh.set_epoch(epoch)
        expected.append(batches_of(fresh))

    assert passes == [expected[0], expected[1], expected[0]]
    assert expected[0] != expected[1]


@pytest.mark.slow
@pytest.mark.smoke("1")
@pytest.mark.parametrize("number", range(4))
def test_a_stop_between_workers_resumes_on_other_workers(number):
    dice = random.Random(number)
    state, received = dataset_of(0, topology=ALONE).state_dict(), []
    for num_workers in (3, 2, 0):  # the last pass takes all that is left
        dataset = dataset_of(num_workers, topology=ALONE, batch_size=dice.randint(1, 9))
        dataset.load_state_dict(json.loads(json.dumps(state)))
        batches = batches_of(dataset)
        taken = dice.randint(0, len(batches)) if num_workers else len(batches)
        received += flat(batches[:taken])
        state = dataset.state_after(taken)

    assert sorted(received) == list(range(TOTAL))
    assert (state["position"], state["holes"]) == (TOTAL, [])


@pytest.mark.slow
def test_a_loaded_state_is_kept_by_set_epoch_of_its_epoch_and_left_by_another():
    first = dataset_of(2, topology=ALONE)
    first.set_epoch(1)
    whole = batches_of(first)
    dataset = dataset_of(2, topology=ALONE)
    dataset.load_state_dict(first.state_after(4))
    dataset.set_epoch(1)
    loader = loader_of(dataset, persistent=True)
    rest = [real_rows(batch) for batch in loader]
    dataset.set_epoch(2)
    fresh = [real_rows(batch) for batch in loader]

    assert sorted(flat(whole[:4] + rest)) == list(range(TOTAL))
    assert sorted(flat(fresh)) == list(range(TOTAL))


def test_living_workers_go_on_from_a_state_that_is_loaded_between_passes():
    dataset = dataset_of(2, topology=ALONE)
    loader = loader_of(dataset, persistent=True)
    whole = [real_rows(batch) for batch in loader]
    for received in (3, 0, 8):
        dataset.load_state_dict(dataset_of(0, topology=ALONE).state_after(received))

        assert whole[received:] == [real_rows(batch) for batch in loader]


@pytest.mark.slow
def test_the_state_counts_received_batches_where_it_can_know_them():
    dataset = dataset_of(0, topology=ALONE)
    for number, _ in enumerate(loader_of(dataset), start=1):
        assert dataset.state_dict() == dataset.state_after(number)
    dataset = dataset_of(2, topology=ALONE)
    batches = iter(loader_of(dataset))
    next(batches)
    with raised(StreamError, remedy="call state_after"):
        dataset.state_dict()
    batches = iter(dataset.data_loader(method="fork"))
    for number in range(1, 4):
        next(batches)
        assert (
            dataset.state_dict()
            == dataset.state_after(number)
            == dataset_of(0, topology=ALONE).state_after(number)
        )


@pytest.mark.slow
def test_a_data_loader_of_your_own_has_any_number_of_workers():
    dataset, whole = dataset_of(2, topology=ALONE), batches_of(dataset_of(0, topology=ALONE))
    for workers in (0, 1, 3):
        dataset.num_workers = workers
        loader = loader_of(dataset)
        dataset.num_workers = 2
        dataset.set_epoch(0)

        assert whole == [real_rows(batch) for batch in loader]
    with pytest.raises(SettingsError, match="num_workers is -1"):
        dataset_of(-1, topology=ALONE)


def test_an_error_of_reading_reaches_the_loop_through_its_worker():
    reader = Numbers((*ROWS[:-1], 3))
    dataset = StreamingDataset(
        index_of(ROWS), reader, StreamOptions(batch_size=5), num_workers=1, topology=ALONE
    )

    says = "rank 0 of 1: part-00005.parquet block 0: has 3 rows, the index says 17"
    with pytest.raises(CorruptShard, match=says) as caught:
        list(loader_of(dataset))
    let_go(caught.tb)


def test_a_pickled_dataset_is_small_and_gives_the_same_batches():
    dataset = dataset_of(0, topology=Topology(rank=1, world_size=2))
    data = pickle.dumps(dataset)

    assert len(data) < 5000
    assert [real_rows(b) for b in pickle.loads(data)] == [real_rows(b) for b in dataset]


def test_a_stream_built_before_the_process_group_is_refused(tmp_path):
    dataset = dataset_of(0)
    assert dataset.topology == Topology(rank=0, world_size=1, source=dataset.topology.source)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert len(dataset) == len(dataset_of(0))  # rank 0 of 1 is what the group says too
        stale = dataset_of(0, topology=Topology(rank=0, world_size=2, source="environment"))
        for use in (len, lambda stream: next(iter(stream)), pickle.dumps):
            with raised(StreamError, remedy="build the stream after init_process_group"):
                use(stale)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.smoke("use1")
@pytest.mark.parametrize(
    "use",
    [
        "import headrace.stream.loader.torch_dataset",
        "from stream_cases import *; from headrace.stream.loader.stream_loader import *;"
        " StreamLoader(index_of([1]), Numbers((1,)), StreamOptions(batch_size=1))",
    ],
)
def test_without_torch_the_error_names_the_extra(use):
    paths = "import sys; sys.path[:0] = " + repr([path for path in sys.path if path])
    code = f"{paths}; sys.modules['torch'] = None\n{use}"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert (
        "MissingExtra: torch is not installed; install it with: pip install 'headrace[torch]'"
        in child.stderr
    )


def test_two_passes_at_a_time_are_an_error():
    dataset = dataset_of(0, topology=ALONE)
    first, second = iter(dataset), iter(dataset)
    next(first)
    next(second)

    with raised(StreamError, remedy="make a second stream"):
        next(first)


def test_the_dataset_is_iterable_style():
    assert issubclass(StreamingDataset, torch.utils.data.IterableDataset)


# --- a torch whose loader has another form ---


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["class", "field"])
def test_a_torch_of_another_form_reads_without_a_guard_and_says_so_once(monkeypatch, caplog, gone):
    expected = [
        real_rows(batch) for batch in dataset_of(2, topology=ALONE).data_loader(method="fork")
    ]
    if gone == "class":
        known = dataloader._MultiProcessingDataLoaderIter
        monkeypatch.delitem(sys.modules, "headrace.stream.workers.guarded_workers")
        monkeypatch.delattr(dataloader, "_MultiProcessingDataLoaderIter")
        monkeypatch.setattr(dataloader.DataLoader, "_get_iterator", lambda loader: known(loader))
    else:
        monkeypatch.setattr(guarded_workers, "_FIELDS", ("_workers", "_of_later"))
    monkeypatch.setattr(
        watched_loader, "_say_once", functools.cache(watched_loader._say_once.__wrapped__)
    )
    dataset = dataset_of(2, topology=ALONE)
    with caplog.at_level(logging.WARNING, "headrace"):
        got = []
        for _ in range(2):
            dataset.set_epoch(0)
            got.append([real_rows(batch) for batch in dataset.data_loader(method="fork")])

    said = [record.getMessage() for record in caplog.records]
    (line,) = [
        each for each in said if "DataLoader workers are not guarded" in each
    ]  # and who waits, if they do
    assert [expected] * 2 == got
    assert line.startswith(f"torch {torch.__version__}: ")
    assert ("_MultiProcessingDataLoaderIter" if gone == "class" else "has no _of_later; ") in line
