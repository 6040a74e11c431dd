"""What a pass has cost its loop: steps, rows, seconds waited and spent, blocks read."""

import threading
import time

import pytest
from option_cases import ALONE, KINDS, Kinds, kinds_dataset
from packing_stream_cases import some_lengths, write_rows
from stream_cases import index_of, ranks
from torch.utils.data import DataLoader

import headrace
from headrace.errors import StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.stats import MOST_WAITS, Progress
from raised import raised

ROWS = (17, 0, 40, 1, 23)
TOTAL = sum(ROWS)


def loader_of(topology=ALONE, **settings):
    options = StreamOptions(**{"batch_size": 4, "columns": ["row"], **settings})
    return StreamLoader(index_of(ROWS, schema=KINDS), Kinds(ROWS), options, topology=topology)


def test_before_the_first_batch_there_is_nothing():
    stats = loader_of().stats()

    assert (0, 0, 0, 0.0, 0.0, 0.0, 0.0) == (
        stats.steps, stats.rows, stats.blocks_read, stats.waited_s, stats.loop_s, stats.mean_wait_s, stats.wait_share,
    )  # fmt: skip


@pytest.mark.parametrize(
    "settings", [{}, {"distribution": "by_size"}, {"remainder": "drop"}, {"shuffle": True}]
)
@pytest.mark.parametrize("world_size", [1, 3])
def test_rows_are_those_that_were_received_without_filling_ones(world_size, settings):
    rows = 0
    for topology in ranks(world_size):
        loader, own = loader_of(topology, **settings), 0
        for step, batch in enumerate(loader, start=1):
            own += int(batch["valid"].sum())
            assert (step, own) == (loader.stats().steps, loader.stats().rows)
        assert (len(loader), own) == (loader.stats().steps, loader.stats().rows)
        rows += own

    assert TOTAL - loader.dropped_rows == rows


def test_after_a_resume_they_are_of_the_rest():
    first, second = loader_of(), loader_of()
    batches = iter(first)
    for _ in range(3):
        next(batches)
    second.load_state_dict(first.state_dict())
    batches.close()
    list(second)

    assert (3, 12) == (first.stats().steps, first.stats().rows)
    assert (second.current.steps, TOTAL - 12) == (second.stats().steps, second.stats().rows)


def test_bins_are_counted_where_rows_are_packed(tmp_path):
    path = write_rows(tmp_path / "rows", some_lengths(300))
    pack = headrace.PackRows(capacity=100, buffer_rows=64)
    opened = headrace.open(path, cache_dir=tmp_path / "cache")
    for topology in ranks(2):
        stream = opened.stream(pack=pack, batch_size=3, topology=topology)
        bins = sum(int(batch["valid"].sum()) for batch in stream)
        assert bins == stream.stats().rows


def test_blocks_are_counted_as_they_are_read_and_a_small_split_is_read_once():
    loader = loader_of(shuffle=True)
    counts = []
    for _ in range(2):
        list(loader)
        counts.append(loader.stats().blocks_read)

    assert [sum(rows > 0 for rows in ROWS), 0] == counts


def test_what_the_loop_spends_is_its_own_and_what_it_waits_for_is_waiting():
    go = threading.Event()

    def slow(batch):
        go.wait(0.05)
        return batch

    loader = loader_of(transform=slow)
    for number, _ in enumerate(loader):
        if number == 0:
            go.set()
            time.sleep(0.05)
    stats = loader.stats()

    assert stats.first_wait_s >= 0.05
    assert stats.loop_s >= 0.05
    assert stats.max_wait_s >= stats.first_wait_s
    assert stats.waited_s >= stats.max_wait_s >= stats.p95_wait_s >= stats.p50_wait_s >= 0
    assert stats.waited_s / stats.steps == stats.mean_wait_s
    assert 0 <= stats.wait_share <= 1
    assert stats.rows / (stats.waited_s + stats.loop_s) == stats.rows_per_s


def test_a_loop_that_leaves_keeps_what_it_spent():
    loader = loader_of()
    for _ in loader:
        time.sleep(0.05)
        break

    assert (1, 4) == (loader.stats().steps, loader.stats().rows)
    assert loader.stats().loop_s >= 0.05


def test_quantiles_are_of_the_last_steps_and_memory_is_bounded():
    waits = Progress()
    for number in range(MOST_WAITS + 100):
        waits.note(float(number))
    stats = waits.stats(rows=0)

    assert MOST_WAITS == len(waits.lately)
    assert MOST_WAITS + 100 == stats.steps
    assert (0.0, MOST_WAITS / 2 + 100, MOST_WAITS + 99.0) == (
        stats.first_wait_s,
        stats.p50_wait_s,
        stats.max_wait_s,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_of_ours_knows_them_with_workers_too(workers):
    dataset = kinds_dataset(workers, columns=["row"])
    loader = dataset.data_loader(method="fork")
    list(loader)

    assert (len(loader), TOTAL) == (loader.stats().steps, loader.stats().rows)
    assert loader.stats() == dataset.stats()
    assert dataset.stats().blocks_read > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_data_loader_of_your_own_with_workers_is_not_seen():
    dataset = kinds_dataset(0, columns=["row"])
    list(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork"))

    with raised(StreamError, remedy="loop over data_loader()"):
        dataset.stats()
    list(
        dataset.watched(
            DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork"),
            workers=1,
        )
    )
    assert TOTAL == dataset.stats().rows
