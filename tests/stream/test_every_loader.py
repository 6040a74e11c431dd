"""The laws of every loader, whatever its batches are made of: one set of members, one order, every item exactly once."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prepared_histories import prepared
from series_cases import window_ids, write_run
from stream_cases import ranks

import headrace
import headrace.windows
from headrace.contexts import open_contexts
from headrace.stream.loader.stream_loader import StreamLoader

ALONE = ranks(1)[0]
GLOBAL_BATCH = 12  # of 1, 2, 3 and 4 ranks
NAMES = (
    "rows",
    "blend",
    "windows",
    "chunked windows",
    "contexts",
    "contexts by row",
    "contexts in order",
)
OF_PROCESSES = ("rows", "contexts")


@dataclass(frozen=True)
class Source:
    """Something to stream. stream: makes a loader; ids: an id of each item of a batch, filling ones too."""

    stream: Callable[..., Any]
    ids: Callable[[dict[str, Any]], list[Any]]
    epochs: int = 1  # that have every item once
    dataset: Callable[..., Any] | None = None  # makes a torch dataset


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    for name, rows in (("one", 61), ("two", 30)):
        (root / name).mkdir()
        pq.write_table(pa.table({"row": np.arange(rows), "of": [name] * rows}), root / name / "a.parquet", row_group_size=20)  # fmt: skip
    opened = [headrace.open(root / name, cache_dir=root / "cache") for name in ("one", "two")]
    write_run(root / "series", (40, 25, 30, 52), missing=0)
    windows = headrace.windows.open(root / "series", "train", input_length=5, output_length=2)
    out = prepared(root, small=200, large=2)
    found = {
        "rows": Source(streamed(opened[0], shuffle=True), lambda batch: batch["row"].tolist()),
        "blend": Source(
            streamed(headrace.blend(opened), shuffle=True),
            lambda batch: list(zip(batch["of"], batch["row"].tolist(), strict=True)),
        ),
        "windows": Source(streamed(windows), window_ids),
        "chunked windows": Source(streamed(windows, chunk_size=2), window_ids, epochs=2),
    }
    for name, shuffle in (
        ("contexts", "contexts"),
        ("contexts by row", "rows"),
        ("contexts in order", "none"),
    ):
        contexts = open_contexts(
            out, seed=3, context_tokens=128, rows="measurements", shuffle=shuffle
        )
        found[name] = Source(
            streamed(contexts),
            lambda batch: [row.tobytes() for row in batch["inputs"]],
            dataset=datasets(contexts),
        )
    return found


def streamed(opened, **fixed):
    return lambda **options: opened.stream(**{"batch_format": "numpy", **fixed, **options})


def datasets(opened):
    return lambda **options: opened.torch_dataset(**{"batch_format": "numpy", **options})


def loaders(source, world_size, **options):
    return [
        source.stream(batch_size=GLOBAL_BATCH // world_size, topology=each, **options)
        for each in ranks(world_size)
    ]


def global_batches(source, on_ranks, steps=None):
    """The items of each step of all ranks, in the order of the epoch."""
    given = []
    for loader in on_ranks:
        own = []
        for batch in loader:
            own.append(
                [
                    item
                    for item, valid in zip(source.ids(batch), batch["valid"], strict=True)
                    if valid
                ]
            )
            if len(own) == steps:
                break
        given.append(own)
    assert 1 == len({len(own) for own in given})  # as many steps on every rank
    return [
        [
            batch[place]
            for place in range(max(map(len, step)))
            for batch in step
            if place < len(batch)
        ]
        for step in zip(*given, strict=True)
    ]


def members(loader):
    return {name for name in dir(loader) if not name.startswith("_")}


@pytest.mark.parametrize("name", NAMES)
def test_every_loader_has_the_members_of_the_row_loader(sources, name):
    loader = sources[name].stream(batch_size=GLOBAL_BATCH, topology=ALONE)
    state = loader.state_dict()

    assert members(StreamLoader) <= members(loader)
    assert len(loader) == loader.plan().steps_per_rank == len(list(loader))
    assert loader.plan().rows_per_rank.sum() == loader.stats().rows
    assert 1.0 == loader.plan().read_amplification
    assert (0, False, True) == (
        loader.dropped_rows,
        loader.partial_epoch,
        loader.is_shuffled or "in order" in name,
    )
    assert loader.epoch_start() == state
    loader.set_epoch(4)
    assert 4 == loader.epoch == loader.state_dict()["epoch"]
    loader.load_state_dict(state)
    assert state == loader.state_dict()


@pytest.mark.parametrize("name", NAMES)
def test_one_state_format_is_that_of_every_loader(sources, name):
    rows = sources["rows"].stream(batch_size=4, topology=ALONE).state_dict()
    state = sources[name].stream(batch_size=4, topology=ALONE).state_dict()

    assert (rows["kind"], rows["format_version"]) == (state["kind"], state["format_version"])
    assert rows.keys() <= state.keys()


@pytest.mark.slow
@pytest.mark.smoke(every=2)
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_ranks_has_the_same_global_batches_and_every_item_once(sources, name):
    source = sources[name]
    on_ranks = {world_size: loaders(source, world_size) for world_size in (1, 2, 3, 4)}
    seen = []
    for _ in range(source.epochs):
        alone = global_batches(source, on_ranks[1])
        for world_size in (2, 3, 4):
            assert alone == global_batches(source, on_ranks[world_size])
        seen += sum(alone, [])

    assert len(seen) == len(set(seen))
    again = [sum(global_batches(source, on_ranks[1]), []) for _ in range(source.epochs)]
    if not name.startswith("contexts"):  # of another epoch: other contexts
        assert sorted(seen) == sorted(sum(again, []))
    assert name == "contexts in order" or seen != sum(again, [])


@pytest.mark.smoke(every=2)
@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_epoch_goes_on_exactly_on_any_ranks(sources, name):
    source = sources[name]
    whole = global_batches(source, loaders(source, 1))
    for before, after in ((1, 1), (1, 3), (3, 2), (4, 1), (2, 4)):
        stopped = loaders(source, before)
        found = global_batches(source, stopped, steps=2)
        states = [json.loads(json.dumps(each.state_dict())) for each in stopped]
        assert all(each == states[0] for each in states)
        going_on = loaders(source, after)
        for each in going_on:
            each.load_state_dict(states[0])
            assert each.partial_epoch
        left = going_on[0].remaining
        rest = global_batches(source, going_on)

        assert left == len(rest)
        assert whole == found + rest


@pytest.mark.slow
@pytest.mark.smoke("rows")
@pytest.mark.parametrize("name", OF_PROCESSES)
def test_workers_that_run_a_transform_change_no_batch(sources, name):
    source = sources[name]
    with_workers = loaders(source, 1, transform=as_caller_type, workers=2)

    assert global_batches(source, loaders(source, 1)) == global_batches(source, with_workers)


@pytest.mark.slow
@pytest.mark.smoke("3")
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_workers_of_a_data_loader_change_no_batch_of_contexts(sources, world_size):
    source = sources["contexts"]
    stopped = source.stream(batch_size=GLOBAL_BATCH, topology=ALONE)
    before = global_batches(source, [stopped], steps=3)
    given = []
    for each in ranks(world_size):
        dataset = source.dataset(
            batch_size=GLOBAL_BATCH // world_size, num_workers=2, topology=each
        )
        dataset.load_state_dict(stopped.state_dict())
        given.append(dataset.data_loader(method="fork"))

    assert global_batches(source, loaders(source, world_size)) == before + global_batches(
        source, given
    )


def as_caller_type(batch):
    return batch
