"""A loop over a loader that is run twice gets another order, or a warning that says how."""

import logging
from itertools import chain, islice

import pytest
from stream_cases import Numbers, index_of
from torch.utils.data import DataLoader
from torch_cases import ROWS, dataset_of, loader_of, real_rows

import headrace
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology
from headrace.tabular.dataset import PipelineIterableDataset

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"
)  # the number of workers is the subject

ALONE = Topology(rank=0, world_size=1)


def rows_of(batches):
    return list(chain.from_iterable(map(real_rows, batches)))


def epochs_of(workers):
    """The first two epochs, as `set_epoch` names them."""
    dataset = dataset_of(workers, topology=ALONE)
    passes = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        passes.append(rows_of(loader_of(dataset)))
    return passes


@pytest.fixture
def worker_log(tmp_path):
    """What this process and its forked workers log, as a file."""
    handler = logging.FileHandler(tmp_path / "headrace.log")
    logging.getLogger("headrace").addHandler(handler)
    yield tmp_path / "headrace.log"
    logging.getLogger("headrace").removeHandler(handler)
    handler.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_of_a_dataset_goes_on_to_the_next_epoch(workers):
    loader = dataset_of(workers, topology=ALONE).data_loader(method="fork")

    assert epochs_of(workers) == [rows_of(loader), rows_of(loader)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_knows_the_length_ends_the_pass_with_the_last_batch(workers):
    loader = dataset_of(workers, topology=ALONE).data_loader(method="fork")

    assert epochs_of(workers) == [rows_of(islice(loader, len(loader))) for _ in range(2)]


def test_any_loader_without_workers_goes_on_to_the_next_epoch():
    dataset = dataset_of(0, topology=ALONE)
    loader = DataLoader(dataset, batch_size=None)

    assert epochs_of(0) == [rows_of(loader), rows_of(loader)]
    dataset.set_epoch(1)
    assert epochs_of(0)[1] == rows_of(loader)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_watched_batches_go_on_to_the_next_epoch(workers):
    dataset = dataset_of(workers, topology=ALONE)
    loader = loader_of(dataset)

    assert epochs_of(workers) == [
        rows_of(dataset.watched(loader)),
        rows_of(dataset.watched(loader)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_of_ones_own_with_workers_warns_once(persistent, worker_log):
    dataset = dataset_of(2, topology=ALONE)
    loader = loader_of(dataset, persistent=persistent)
    passes = [rows_of(loader) for _ in range(3)]
    (said,) = worker_log.read_text().splitlines()
    for epoch in (1, 2, 3):
        dataset.set_epoch(epoch)
        rows_of(loader)

    assert passes[0] == passes[1] == passes[2]
    assert "start it again with the same batches; call dataset.set_epoch(epoch)" in said
    assert [said] == worker_log.read_text().splitlines()


def test_the_rest_of_a_loaded_epoch_is_followed_by_a_whole_one():
    dataset = dataset_of(0, topology=ALONE)
    dataset.load_state_dict(dataset.state_after(5))
    first, second = rows_of(dataset), rows_of(dataset)

    assert sum(ROWS) - 5 * 5 == len(first)
    assert epochs_of(0)[1] == second


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_told_the_length_of_a_rest_goes_on_to_a_whole_epoch(workers):
    dataset = dataset_of(workers, topology=ALONE)
    dataset.load_state_dict(dataset.state_after(6))
    loader = dataset.data_loader(method="fork")
    whole = len(dataset_of(workers, topology=ALONE))

    assert (whole, whole - 6) == (len(loader), dataset.remaining)
    assert whole - 6 == len(list(loader))
    assert whole == len(list(loader))


@pytest.mark.parametrize("kind", ["stream", "dataset"])
def test_a_pass_that_is_left_and_begun_again_warns_once_and_a_look_does_not(kind, caplog):
    if kind == "stream":
        loader = StreamLoader(
            index_of(ROWS),
            Numbers(ROWS),
            StreamOptions(batch_size=5, shuffle=True, stall_seconds=None),
        )
    else:
        loader = dataset_of(0, topology=ALONE, stall_seconds=None)
    with caplog.at_level(logging.WARNING):
        next(iter(loader))
        list(islice(loader, 4))
        assert [] == caplog.messages
        list(islice(loader, 4))
        list(islice(loader, 4))

    assert [
        "epoch 0: was left after 4 batches and starts again with the same batches; for another order call"
        " set_epoch(epoch) before each loop over the stream, for the rest load_state_dict(state_dict())"
    ] == caplog.messages


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_reading_in_order_again_is_what_validation_does(workers, caplog, worker_log):
    dataset = dataset_of(workers, topology=ALONE, shuffle=False, stall_seconds=None)
    loader = loader_of(dataset)
    with caplog.at_level(logging.WARNING):
        list(islice(loader, 3))
        passes = [rows_of(loader) for _ in range(3)]

    assert passes[0] == passes[1] == passes[2]
    assert [] == caplog.messages
    assert "" == worker_log.read_text()


@pytest.mark.parametrize("batch_size", [None, 8])
def test_rows_one_by_one_go_on_to_the_next_epoch_and_a_look_at_one_does_not(tmp_path, batch_size):
    (tmp_path / "a.csv").write_text("row\n" + "".join(f"{n}\n" for n in range(49)))
    settings = {"batch_size": batch_size, "shuffle_shards": True, "topology": ALONE}
    dataset = PipelineIterableDataset({}, file_dir=tmp_path, **settings)
    again = PipelineIterableDataset({}, file_dir=tmp_path, **settings)

    def values(source):
        return [str(row["row"]) for row in source]

    next(iter(dataset))
    passes = [values(dataset), values(dataset)]
    again.set_epoch(1)

    assert passes[0] != passes[1]
    assert values(again) == passes[1]


def test_packing_goes_on_to_the_next_epoch(tmp_path):
    from packing_stream_cases import some_lengths, write_rows

    path = write_rows(tmp_path / "tokens", some_lengths(60), shard_rows=30, group_rows=10)
    settings = {
        "batch_size": 2,
        "pack": headrace.PackRows(capacity=100, buffer_rows=64),
        "shuffle": True,
    }
    dataset = headrace.open(path, cache_dir=tmp_path / "cache").torch_dataset(**settings)
    first, second = ([batch["input_ids"].tolist() for batch in dataset] for _ in range(2))

    assert first != second
    assert 2 == dataset.epoch + 1
