"""Passes, epochs and states of a loader; what ranks receive together is the epoch."""

import json
import random
from itertools import chain

import numpy as np
import pytest
from stream_cases import Numbers, index_of, ranks

from headrace.errors import SettingsError, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology
from raised import raised

ROWS = (30, 0, 7, 1, 64, 19)
TOTAL = sum(ROWS)


def flat(parts):
    return list(chain.from_iterable(parts))


def loaders(world_size=1, rows=ROWS, **settings):
    settings = StreamOptions(
        **{
            "batch_size": 8,
            "shuffle": True,
            "batch_format": "numpy",
            "shuffle_rows": 32,
            **settings,
        }
    )
    return [
        StreamLoader(index_of(rows), Numbers(rows), settings, topology=topology)
        for topology in ranks(world_size)
    ]


def real_rows(batch):
    return (batch["row"][batch["valid"]] if "valid" in batch else batch["row"]).tolist()


def steps(group):
    """What all ranks receive together, step by step; they must end together."""
    return [
        sorted(row for batch in batches for row in real_rows(batch))
        for batches in zip(*group, strict=True)
    ]


def sequence(loader):
    return [row for batch in loader for row in real_rows(batch)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_receive_every_row_once_in_equal_steps(world_size):
    group = loaders(world_size)

    assert sorted(flat(steps(group))) == list(range(TOTAL))
    assert {len(loader) for loader in group} == {-(-TOTAL // (8 * world_size))}


def test_a_global_batch_is_the_same_on_two_ranks_and_on_three():
    two, three = (
        loaders(2, batch_size=6, lanes=6, shuffle_rows=None),
        loaders(3, batch_size=4, lanes=6, shuffle_rows=None),
    )

    assert steps(two) == steps(three)


def test_drop_says_how_many_rows_it_leaves_out():
    group = loaders(2, remainder="drop")
    delivered = flat(steps(group))

    assert group[0].dropped_rows == TOTAL - len(delivered) == TOTAL % 16
    assert len(set(delivered)) == len(delivered)
    assert loaders(2)[0].dropped_rows == 0


def test_one_rank_gets_a_shorter_last_batch_by_default():
    (loader,) = loaders()
    batches = list(loader)

    assert len(batches) == len(loader) == 16
    assert len(batches[-1]["row"]) == TOTAL % 8
    assert batches[-1]["valid"].all()


def test_passes_advance_epochs_and_set_epoch_names_one():
    (loader,) = loaders()
    first, second = sequence(loader), sequence(loader)
    assert loader.epoch == 1
    loader.set_epoch(0)

    assert sequence(loader) == first != second
    loader.set_epoch(0)
    assert sequence(loader) == first
    assert sequence(loader) == second


def test_leaving_early_begins_the_same_pass_again():
    (loader,) = loaders()
    first = next(iter(loader))

    assert real_rows(next(iter(loader))) == real_rows(first)
    assert sorted(sequence(loader)) == list(range(TOTAL))


def test_a_loop_that_stops_at_len_has_finished_the_epoch():
    (loader,) = loaders()
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    assert loader.state_dict()["position"] == TOTAL
    first = sequence(loader)

    assert loader.epoch == 1
    assert len(first) == TOTAL


@pytest.mark.parametrize("number", range(30))
def test_resumed_is_uninterrupted_on_ranks_that_divide_the_groups_and_any_batch_size(number):
    dice = random.Random(number)
    begun = {"lanes": 6, "seed": number, "batch_size": 12}
    (alone,) = loaders(**begun)
    alone.set_epoch(2)
    state = alone.state_dict()
    whole = sequence(alone)
    received = []
    assert state["groups"] == 6
    while len(received) < TOTAL:
        group = loaders(
            dice.choice([1, 2, 3, 6]),
            batch_size=dice.randint(1, 20),
            lanes=6,
            seed=number,
            remainder="pad",
        )
        for loader in group:
            loader.load_state_dict(state)
            loader.set_epoch(2)
        parts = []
        for _, batches in zip(range(dice.randint(1, 6)), zip(*group, strict=True), strict=False):
            # rank r has places r, r + ranks, ... of the step: interleave them back into the order
            columns = [(batch["row"], batch["valid"]) for batch in batches]
            order = np.stack([rows for rows, _ in columns], axis=1).ravel()
            parts += order[np.stack([valid for _, valid in columns], axis=1).ravel()].tolist()
        states = [json.dumps(loader.state_dict()) for loader in group]
        assert len(set(states)) == 1
        state = json.loads(states[0])
        received += parts

    assert received == whole


@pytest.mark.parametrize("number", range(10))
def test_any_chain_of_ranks_and_batch_sizes_receives_every_row_once(number):
    dice = random.Random(number)
    state, received = None, []
    while len(received) < TOTAL:
        group = loaders(
            dice.randint(1, 7), batch_size=dice.randint(1, 9), lanes=6, seed=number, remainder="pad"
        )
        for loader in group if state else ():
            loader.load_state_dict(state)
        for _, batches in zip(range(dice.randint(1, 6)), zip(*group, strict=True), strict=False):
            received += flat(real_rows(batch) for batch in batches)
        states = [json.dumps(loader.state_dict()) for loader in group]
        assert len(set(states)) == 1
        state = json.loads(states[0])

    assert sorted(received) == list(range(TOTAL))


def test_a_state_counts_what_was_handed_out_not_what_was_read_ahead():
    (loader,) = loaders()
    assert loader.state_dict()["position"] == 0
    for number, _ in enumerate(loader):
        assert loader.state_dict()["position"] == min(TOTAL, 8 * (number + 1))


def test_len_is_of_what_is_left():
    (loader,) = loaders()
    for _, _ in zip(range(3), loader, strict=False):
        pass
    (other,) = loaders()
    other.load_state_dict(loader.state_dict())

    assert (len(other), other.remaining, len(list(other))) == (16, 13, 13)
    assert (len(other), other.remaining) == (16, 0)


def test_a_state_of_an_epochs_end_leaves_nothing_of_it():
    (loader,) = loaders()
    sequence(loader)
    (other,) = loaders()
    other.load_state_dict(loader.state_dict())
    other.set_epoch(0)

    assert (other.remaining, sequence(other)) == (0, [])
    assert sequence(other) == sequence(loader)
    assert other.epoch == loader.epoch == 1


def test_lanes_of_a_state_stay_in_later_epochs():
    (one,) = loaders(lanes=16)
    group = loaders(2)
    for loader in group:
        loader.load_state_dict(one.state_dict())
        loader.set_epoch(5)
    one.set_epoch(5)

    assert sorted(flat(steps(group))) == list(range(TOTAL))
    assert group[0].state_dict()["lanes"] == one.state_dict()["lanes"] == 16


def test_two_passes_at_a_time_are_an_error():
    (loader,) = loaders()
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)

    with raised(StreamError, remedy="make a second stream"):
        next(first)


def test_a_state_of_another_dataset_or_seed_is_refused():
    (loader,) = loaders()
    (other,) = loaders(rows=(30, 0, 7, 1, 64, 20))
    with raised(StreamError, remedy="shards were added"):
        other.load_state_dict(loader.state_dict())
    (seeded,) = loaders(seed=1)
    with raised(StreamError, setting="seed", remedy="pass the saved setting"):
        seeded.load_state_dict(loader.state_dict())


def test_settings_that_cannot_work_are_refused_before_the_first_batch():
    with raised(SettingsError, setting="remainder", remedy='use "pad"'):
        loaders(2, remainder="exact")
    with raised(SettingsError, setting="columns", value=["nope"]):
        loaders(columns=("nope",))
    with pytest.raises(SettingsError, match="epoch is -1"):
        loaders()[0].set_epoch(-1)
    with raised(SettingsError, setting="rank", value=2):
        Topology(rank=2, world_size=2)


def test_an_empty_split_gives_no_batches():
    for loader in loaders(2, rows=(0, 0)):
        assert (len(loader), list(loader), loader.state_dict()["position"]) == (0, [], 0)


def test_more_ranks_than_rows_repeat_rows_that_are_not_valid():
    batches = [list(loader) for loader in loaders(5, rows=(2, 1), batch_size=2)]

    assert [len(part) for part in batches] == [1] * 5
    assert sorted(row for part in batches for row in real_rows(part[0])) == [0, 1, 2]
    assert all(len(part[0]["row"]) == 2 for part in batches)
