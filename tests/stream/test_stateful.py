"""Inside torchdata's StatefulDataLoader: resume equals uninterrupted on the same workers, and on any others."""

import json
from itertools import chain

import pytest
from rank_processes import run_ranks
from stream_cases import ranks
from torch_cases import ROWS, dataset_of, let_go, loader_of, real_rows

from headrace.errors import StreamError
from headrace.stream.loader.stateful import stream_state
from headrace.stream.ranks.topology import Topology

pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")

from stateful_cases import deliver_on_rank
from torchdata.stateful_dataloader import StatefulDataLoader

from raised import raised

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create"
    ),  # the number of workers is the subject
    pytest.mark.filterwarnings(
        "ignore:'set_vital' is deprecated"
    ),  # torchdata 0.11 calls it in newer torch
]

ALONE = Topology(rank=0, world_size=1)
TOTAL = sum(ROWS)


def stateful(dataset, **settings):
    workers = dataset.num_workers
    method = settings.pop("method", "fork") if workers else None
    return StatefulDataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=method, **settings
    )


def take(loader, batches):
    """So many batches of a new pass, and the loader's state after them."""
    iterator = iter(loader)
    received = [real_rows(next(iterator)) for _ in range(batches)]
    return received, json.loads(json.dumps(loader.state_dict()))


def whole_epoch(epoch, *, num_workers, topology=ALONE):
    dataset = dataset_of(num_workers, topology=topology)
    dataset.set_epoch(epoch)
    return [real_rows(batch) for batch in loader_of(dataset)]


@pytest.mark.slow
@pytest.mark.smoke("0-3", "2-7")
@pytest.mark.parametrize(("num_workers", "stop"), [(0, 3), (1, 5), (2, 7), (3, 1), (3, 11)])
def test_resume_on_the_same_workers_equals_uninterrupted(num_workers, stop):
    first = dataset_of(num_workers, topology=ALONE)
    first.set_epoch(2)
    received, saved = take(stateful(first), stop)
    second = dataset_of(num_workers, topology=ALONE)
    loader = stateful(second)
    loader.load_state_dict(saved)
    rest = [real_rows(batch) for batch in loader]

    assert whole_epoch(2, num_workers=num_workers) == received + rest
    assert second.epoch == 2


@pytest.mark.slow
def test_a_second_stop_after_a_resume_and_workers_that_are_no_forks():
    received, saved = take(stateful(dataset_of(2, topology=ALONE), method="forkserver"), 5)
    loader = stateful(dataset_of(2, topology=ALONE), method="forkserver")
    loader.load_state_dict(saved)
    more, saved = take(loader, 4)
    loader = stateful(dataset_of(2, topology=ALONE))
    loader.load_state_dict(saved)
    rest = [real_rows(batch) for batch in loader]

    assert whole_epoch(0, num_workers=2) == received + more + rest


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_set_epoch_of_the_same_epoch_keeps_the_state_and_another_one_leaves_it(num_workers):
    first = dataset_of(num_workers, topology=ALONE)
    first.set_epoch(1)
    received, saved = take(stateful(first), 4)
    second = dataset_of(num_workers, topology=ALONE)
    loader = stateful(second)
    loader.load_state_dict(saved)
    second.set_epoch(1)
    rest = [real_rows(batch) for batch in loader]
    second.set_epoch(2)
    fresh = [real_rows(batch) for batch in loader]

    assert whole_epoch(1, num_workers=num_workers) == received + rest
    assert whole_epoch(2, num_workers=num_workers) == fresh


@pytest.mark.slow
@pytest.mark.smoke("False-then1", "True-then2")
@pytest.mark.parametrize("then", [(0, 1, 7), (3, 1, 4), (2, 3, 2)])
@pytest.mark.parametrize("twice", [False, True])
def test_the_portable_state_resumes_on_other_workers_ranks_and_batch_sizes(then, twice):
    received, saved = [], None
    for rank in ranks(2):
        loader = stateful(dataset_of(2, topology=rank))
        batches, saved = take(loader, 3)
        if twice:  # once more on the same topology: workers that went on from progress of their own
            loader = stateful(dataset_of(2, topology=rank))
            loader.load_state_dict(saved)
            more, saved = take(loader, 2)
            batches += more
        received += chain.from_iterable(batches)
    workers, world_size, batch_size = then
    for rank in ranks(world_size):
        dataset = dataset_of(workers, topology=rank, batch_size=batch_size)
        dataset.load_state_dict(stream_state(saved))
        received += chain.from_iterable(real_rows(batch) for batch in stateful(dataset))

    assert sorted(received) == list(range(TOTAL))


def test_the_portable_state_is_that_of_counted_batches():
    for num_workers in (0, 3):
        dataset = dataset_of(num_workers, topology=ALONE)
        _, saved = take(stateful(dataset), 4)

        assert dataset_of(num_workers, topology=ALONE).state_after(4) == stream_state(saved)


@pytest.mark.slow
def test_another_batch_size_is_refused_and_the_remedy_named():
    _, saved = take(stateful(dataset_of(2, topology=ALONE)), 3)
    loader = stateful(dataset_of(2, topology=ALONE, batch_size=4))
    loader.load_state_dict(saved)

    with pytest.raises(
        Exception, match=r"for another topology load\s+headrace\.stream_state"
    ) as caught:
        list(loader)
    let_go(caught.tb)


def test_a_state_of_something_else_is_refused():
    with raised(StreamError, remedy="during a pass"):
        stream_state({"other": {"key": 1}})


@pytest.mark.slow
def test_states_that_the_parent_cannot_know_are_errors():
    _, saved = take(stateful(dataset_of(2, topology=ALONE)), 3)
    dataset = dataset_of(2, topology=ALONE)
    loader = stateful(dataset)
    loader.load_state_dict(saved)
    next(iter(loader))

    with raised(StreamError, remedy="headrace.stream_state(loader.state_dict())"):
        dataset.state_after(1)


def run_worlds(folder, world_sizes, num_workers):
    run_ranks(deliver_on_rank, max(world_sizes), str(folder), num_workers)
    return [
        json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(max(world_sizes))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_real_ranks_are_not_sharded_twice_and_resume_on_the_same_and_on_other_ranks(
    tmp_path, num_workers
):
    records = run_worlds(tmp_path, (2, 3), num_workers)
    two, three = [record["2"] for record in records[:2]], [record["3"] for record in records]

    def rows(*parts):
        return sorted(chain.from_iterable(chain.from_iterable(parts)))

    assert list(range(TOTAL)) == rows(*(rank["whole"] for rank in two))
    assert len({len(rank["whole"]) for rank in two}) == 1
    for rank in two:
        assert rank["whole"] == rank["before"] + rank["rest"]
    assert list(range(TOTAL)) == rows(
        *(rank["before"] for rank in two), *(rank["of two"] for rank in three)
    )
    assert len({len(rank["of two"]) for rank in three}) == 1
