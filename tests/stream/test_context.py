"""What a transform is told of its batch: which transforms are, and that it does not depend on ranks or workers."""

import functools
import json

import numpy as np
import pytest
import torch
from option_cases import ALONE, KINDS, Kinds, kinds_dataset
from packing_stream_cases import some_lengths, write_rows
from stream_cases import index_of, ranks

import headrace
from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.read.transform import TransformContext, takes_context
from raised import raised

ROWS = (30, 0, 41, 1, 27, 60, 38, 52)
TOTAL = sum(ROWS)
SETTINGS = {
    "batch_size": 12,
    "shuffle": True,
    "seed": 7,
    "lanes": 12,
    "shuffle_rows": 48,
    "columns": ["row"],
}


def augmented(batch, context):
    """Noise that is a function of seed, epoch and position."""
    return {
        "row": batch["row"],
        "valid": batch["valid"],
        "noise": torch.from_numpy(context.uniform(2)),
        "position": torch.from_numpy(context.positions),
        "step": context.step,
        "where": (context.seed, context.epoch, context.rank),
    }


def dataset_on(topology, workers, **settings):
    settings = {**SETTINGS, **settings}
    return kinds_dataset(workers, rows=ROWS, topology=topology, transform=augmented, **settings)


def told(batches):
    """row → (position, noise) of the real rows; a filling row has no position."""
    found = {}
    for batch in batches:
        valid = batch["valid"]
        assert [-1] * int((~valid).sum()) == batch["position"][~valid].tolist()
        rows = zip(
            batch["row"][valid].tolist(),
            batch["position"][valid].tolist(),
            batch["noise"][valid].tolist(),
            strict=True,
        )
        for row, position, noise in rows:
            assert row not in found
            found[row] = position, noise
    return found


@functools.cache
def reference(epoch=0):
    dataset = dataset_on(ALONE, 0)
    dataset.set_epoch(epoch)
    return told(dataset)


# --- the law ---


def test_alone_the_positions_are_those_of_the_epoch():
    batches = list(dataset_on(ALONE, 0))

    assert list(range(TOTAL)) == [
        position for batch in batches for position in batch["position"].tolist()
    ]
    assert list(range(len(batches))) == [batch["step"] for batch in batches]
    assert {(7, 0, 0)} == {batch["where"] for batch in batches}
    noise = np.concatenate([batch["noise"].numpy() for batch in batches])
    assert 2 * TOTAL == len(np.unique(noise))
    assert 0 <= noise.min() < 0.05 < 0.95 < noise.max() < 1


@pytest.mark.slow
@pytest.mark.smoke("1-1", "3-2", "4-0")
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_augmentation_by_context_is_the_same_on_any_ranks_and_workers(world_size, workers):
    given = {}
    for topology in ranks(world_size):
        dataset = dataset_on(topology, workers)
        batches = list(dataset.data_loader(method="fork") if workers else dataset)
        assert list(range(len(batches))) == [batch["step"] for batch in batches]
        assert {(7, 0, topology.rank)} == {batch["where"] for batch in batches}
        given |= told(batches)

    assert reference() == given


@pytest.mark.slow
@pytest.mark.smoke("2-3-3-2", "4-2-2-0")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("before", "after", "steps"), [(1, 1, 5), (2, 3, 3), (4, 2, 2), (3, 4, 4), (2, 1, 3)]
)
def test_a_resume_augments_what_is_left_as_if_never_stopped(before, after, steps, workers):
    given, states = {}, []
    for topology in ranks(before):
        dataset = dataset_on(topology, 0)
        batches = iter(dataset)
        given |= told([next(batches) for _ in range(steps)])
        states.append(dataset.state_dict())
        batches.close()
    assert all(state == states[0] for state in states)
    for topology in ranks(after):
        dataset = dataset_on(topology, workers)
        dataset.load_state_dict(json.loads(json.dumps(states[0])))
        batches = list(dataset.data_loader(method="fork") if workers else dataset)
        first = steps * before // after
        assert list(range(first, first + len(batches))) == [batch["step"] for batch in batches]
        given |= told(batches)

    assert reference() == given


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_another_epoch_draws_other_numbers_in_the_same_workers(workers):
    dataset = dataset_on(ALONE, workers)
    loader = dataset.data_loader(method="fork")
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append(told(loader))

    assert [reference(0), reference(1)] == epochs
    assert not {tuple(noise) for _, noise in epochs[0].values()} & {
        tuple(noise) for _, noise in epochs[1].values()
    }


def test_with_whole_shards_each_row_keeps_its_position_and_filling_ones_have_none():
    given = {}
    for topology in ranks(3):
        given |= told(dataset_on(topology, 0, distribution="by_size", lanes=None))

    assert list(range(TOTAL)) == sorted(given)
    assert list(range(TOTAL)) == sorted(position for position, _ in given.values())


def test_rows_packed_while_they_are_streamed_have_steps_and_no_positions(tmp_path):
    path = write_rows(tmp_path / "rows", some_lengths(400))
    seen = []

    def note(batch, context):
        seen.append(context)
        return batch

    dataset = headrace.open(path, cache_dir=tmp_path / "cache")
    pack = headrace.PackRows(capacity=100, buffer_rows=64)
    stream = dataset.stream(pack=pack, batch_size=2, seed=5, transform=note)
    batches = iter(stream)
    for _ in range(3):
        next(batches)
    resumed = dataset.stream(pack=pack, batch_size=2, seed=5, transform=note)
    resumed.load_state_dict(stream.state_dict())
    batches.close()
    seen.clear()
    steps = len(list(resumed))

    assert list(range(3, 3 + steps)) == [context.step for context in seen]
    assert {None} == {context.positions for context in seen}
    with raised(
        SettingsError, setting="transform", remedy="default_rng((context.seed, context.epoch"
    ):
        seen[0].uniform()


# --- numbers ---


def test_numbers_belong_to_position_draw_purpose_epoch_and_seed_and_to_nothing_else():
    def context(**values):
        given = {
            "seed": 1,
            "epoch": 2,
            "step": 3,
            "rank": 0,
            "positions": np.array([5, -1, 9]),
            **values,
        }
        return TransformContext(**given)

    numbers = context().uniform(3)

    assert (3, 3) == numbers.shape
    assert np.array_equal(numbers, context(step=8, rank=4).uniform(3))
    assert np.array_equal(numbers[:, :2], context().uniform(np.int64(2)))
    assert np.array_equal(numbers[::-1], context(positions=np.array([9, -1, 5])).uniform(3))
    for other in (
        context(seed=2).uniform(3),
        context(epoch=3).uniform(3),
        context().uniform(3, purpose="crop"),
    ):
        assert not np.isin(other, numbers).any()
    assert (0, 1) == context(positions=np.array([], np.int64)).uniform().shape
    with pytest.raises(SettingsError, match="draws"):
        context().uniform(0)


# --- who is told ---


class Called:
    def __call__(self, batch, context):
        return batch, context


class Plain:
    def __call__(self, batch):
        return batch

    def method(self, batch, context):
        return batch, context


def scaled(batch, scale):
    return batch, scale


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda batch: batch, False),
        (lambda batch, context: batch, True),
        (lambda batch, anything: batch, True),
        (lambda batch, context=None: batch, True),
        (lambda batch, scale=2: batch, False),
        (lambda batch, *, context=None: batch, False),
        (lambda *batches: batches, False),
        (lambda batch, *rest: batch, False),
        (Called(), True),
        (Plain(), False),
        (Plain().method, True),
        (functools.partial(scaled, scale=2), False),
        (functools.partial(lambda scale, batch, context: batch, 3), True),
        (functools.partial(Called()), True),
        (np.asarray, False),
        (dict, False),
        (torch.nn.Identity(), False),
    ],
)
def test_a_transform_with_a_second_positional_parameter_is_told(transform, expected):
    assert expected is takes_context(transform)


def test_a_partial_that_bound_its_second_parameter_gets_the_batch_alone():
    options = StreamOptions(
        batch_size=4, columns=["row"], transform=functools.partial(scaled, scale=2)
    )

    assert {2} == {
        scale for _, scale in StreamLoader(index_of(ROWS, schema=KINDS), Kinds(ROWS), options)
    }
