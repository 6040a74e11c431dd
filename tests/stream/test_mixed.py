"""Epochs that are no whole pass: the sequences of their sources, continued from epoch to epoch, every row in its turn."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pure_order import lay, make_plan, positions_of_row
from stream_cases import Numbers, flat, index_of, ranks, read_ranks

from headrace.errors import SettingsError, StreamError
from headrace.stream.loader.blend import join_indexes
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import RowPasses
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.mixture import Mixture
from headrace.stream.order.whereabouts import find_row
from headrace.stream.ranks.topology import Topology
from laws import examples
from raised import raised

blocks = st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any)
orders = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 9),
        "cut": st.sampled_from(
            [
                (lanes, each)
                for lanes in range(1, 9)
                for each in range(1, lanes + 1)
                if not lanes % each
            ]
        ),
        "window_rows": st.integers(1, 9),
        "shuffle": st.booleans(),
    }
).map(
    lambda order: {
        **{k: v for k, v in order.items() if k != "cut"},
        "lanes": order["cut"][0],
        "groups": order["cut"][1],
    }
)


def delivered(order):
    """(block, row) of every position."""
    numbers, rows = order.locate(order.line_of(np.arange(order.rows)))
    return list(zip(numbers.tolist(), rows.tolist(), strict=True))


def check_own_epochs(sequence, rows):
    """As many consecutive rows as a source has are every row once."""
    total = sum(rows)
    for begin in range(0, len(sequence), total):
        own = sequence[begin : begin + total]
        assert len(set(own)) == len(own)


def read_run(index, epochs, samples, order):
    """(block, row) of every position of the first epochs."""
    run = []
    for epoch in range(epochs):
        laid = lay(index, epoch=epoch, samples_per_epoch=samples, **order)
        run.append(delivered(laid))
    return run


@given(blocks, orders, st.integers(1, 90), st.integers(1, 4))
def test_an_epoch_continues_where_the_last_one_ended(rows, order, samples, epochs):
    run = read_run(index_of(rows), epochs, samples, order)

    assert {samples} == {len(epoch) for epoch in run}
    check_own_epochs([pair for epoch in run for pair in epoch], rows)


@given(blocks, blocks, orders, st.integers(0, 2))
def test_a_blend_without_weights_is_every_row_once(first, second, order, epoch):
    index = join_indexes([index_of(first), index_of(second)], Mixture.build("ab", weights=None))
    found = delivered(lay(index, epoch=epoch, **order))

    assert len(set(found)) == len(found) == sum(first) + sum(second)


@given(blocks, blocks, orders, st.floats(0.2, 5), st.integers(20, 150), st.integers(1, 3))
def test_each_source_of_a_blend_is_read_in_turns_of_its_own(
    first, second, order, weight, samples, epochs
):
    mixture = Mixture.build("ab", weights=[weight, 1.0])
    index = join_indexes([index_of(first), index_of(second)], mixture)
    run = read_run(index, epochs, samples, order)
    for rows, begin in ((first, 0), (second, len(first))):
        of_source = []
        for number, epoch in enumerate(run):
            mine = [pair for pair in epoch if begin <= pair[0] < begin + len(rows)]
            of_source += mine
            share = (weight if not begin else 1) / (weight + 1)
            assert abs(len(of_source) - share * samples * (number + 1)) < 6
        check_own_epochs(of_source, rows)


@pytest.mark.slow
@given(blocks, blocks, orders, st.integers(20, 150))
def test_a_row_is_found_at_every_position_that_delivers_it(first, second, order, samples):
    index = join_indexes([index_of(first), index_of(second)], Mixture.build("ab", weights=[2, 1]))
    laid = lay(index, epoch=1, samples_per_epoch=samples, **order)
    found = delivered(laid)
    for block in range(len(index.rows)):
        for row in range(int(index.rows[block])):
            expected = [position for position, pair in enumerate(found) if pair == (block, row)]
            assert positions_of_row(laid, block, row).tolist() == expected


@given(blocks, blocks, orders, st.integers(20, 150), st.data())
def test_reads_name_every_block_that_is_needed(first, second, order, samples, data):
    index = join_indexes([index_of(first), index_of(second)], Mixture.build("ab", weights=[1, 3]))
    laid = lay(index, epoch=2, samples_per_epoch=samples, **order)
    begin = data.draw(st.integers(0, samples - 1))
    last = (
        data.draw(st.integers(begin, samples - 1)) // laid.groups * laid.groups
        + begin % laid.groups
    )
    last = max(begin, last if last < samples else last - laid.groups)
    reads = laid.reads(np.array([begin]), np.array([last]))
    numbers, _ = laid.locate(laid.line_of(np.arange(begin, last + 1, laid.groups)))

    assert set(numbers.tolist()) <= set(reads.block.tolist())


def test_datasets_with_the_same_shard_names_do_not_shuffle_alike():
    index = join_indexes([index_of([40]), index_of([40])], Mixture.build("ab"))
    found = delivered(lay(index, seed=1, epoch=0, lanes=4, window_rows=10, groups=2, shuffle=True))

    assert [row for block, row in found if block == 0] != [
        row for block, row in found if block == 1
    ]


def test_drift_stays_under_a_global_batch_when_lanes_are_chosen():
    parts = [index_of([1000] * 3), index_of([700] * 5), index_of([64] * 9), index_of([10, 3])]
    index = join_indexes(parts, Mixture.build("abcd", weights=[0.5, 0.2, 0.2, 0.1]))
    firsts = np.cumsum([0, *(len(part.rows) for part in parts)])
    for world_size, batch_size in ((1, 32), (2, 16), (3, 24), (8, 8)):
        plan = make_plan(index, batch_size=batch_size, world_size=world_size, shuffle=True)
        numbers, _ = plan.order.locate(plan.order.line_of(np.arange(plan.order.rows)))
        source = np.searchsorted(firsts, numbers, side="right") - 1
        for number, weight in enumerate((0.5, 0.2, 0.2, 0.1)):
            count = np.cumsum(source == number)
            drift = np.abs(count - weight * np.arange(1, plan.order.rows + 1))

            assert drift.max() < world_size * batch_size


def test_a_blend_whose_lanes_fit_decodes_hardly_anything_twice():
    parts = [
        index_of([100_000] * 400),
        index_of([50_000] * 300),
    ]  # more than a reader keeps in memory
    index = join_indexes(parts, Mixture.build("ab", weights=[3, 1]))

    assert make_plan(index, batch_size=256, world_size=4, shuffle=True).read_amplification < 1.1
    assert (
        make_plan(index, batch_size=256, world_size=4, lanes=15, shuffle=True).read_amplification
        > 1.9
    )


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_other_ranks_decode_each_block_of_a_source_once_and_one_more_per_rank(share):
    """B + R - 1 times in all: no less is possible while every rank reads every source."""
    parts = [index_of([4096] * 60)] * 50
    index = join_indexes(parts, Mixture.build([f"s{number}" for number in range(50)]))

    def passes(world_size):
        settings = StreamOptions(batch_size=16, shuffle=True, lanes=64, shuffle_rows=1 << 16)
        topology = Topology(rank=0, world_size=world_size)
        return RowPasses(index, Numbers([]), settings, topology)

    before = passes(64).begin(0)
    start = before.after(int(before.steps * share)).start
    after = passes(63)
    plan = after.at(after.continued(after.checked(start.to_dict()))).plan()

    decoded = plan.bytes_per_rank.sum() / plan.block_bytes[0]
    assert decoded <= 50 * (60 + 63) + 50


CASE = (30, 1, 0, 17, 44)
TOTAL = sum(CASE)


def read_all(loaders, limit=None):
    """Rows of all ranks in the order of steps, taking turns item by item."""
    rows = []
    passes = [iter(loader) for loader in loaders]
    for batches in islice(zip(*passes, strict=True), limit):
        for item in range(max(len(batch["row"]) for batch in batches)):
            for batch in batches:
                if item < len(batch["row"]) and batch.get("valid", np.ones(1 << 10, bool))[item]:
                    rows.append(int(batch["row"][item]))
    states = [loader.state_dict() for loader in loaders]
    for each in passes:
        each.close()
    assert all(state == states[0] for state in states)
    return rows, json.loads(json.dumps(states[0]))


def loaders_of(world_size, **options):
    settings = {"batch_size": 5, "shuffle": True, "seed": 3, "batch_format": "numpy", **options}
    index = index_of(CASE)
    return [
        StreamLoader(index, Numbers(CASE), StreamOptions(**settings), topology=topology)
        for topology in ranks(world_size)
    ]


@settings(max_examples=examples(20))
@given(
    st.integers(20, 260), st.integers(1, 4), st.integers(0, 4), st.integers(1, 4), st.integers(1, 7)
)
def test_a_sub_epoch_resumes_on_any_topology(samples, world_size, stop, other, batch_size):
    whole, _ = read_all(
        loaders_of(
            1, batch_size=5 * world_size, samples_per_epoch=samples, lanes=8, shuffle_rows=48
        )
    )
    first = loaders_of(world_size, samples_per_epoch=samples, lanes=8, shuffle_rows=48)
    head, state = read_all(first, limit=min(stop, len(first[0])))
    rest = loaders_of(other, samples_per_epoch=samples, batch_size=batch_size)
    for loader in rest:
        loader.load_state_dict(state)
    tail, _ = read_all(rest)

    check_own_epochs(head + tail, CASE)
    assert len(whole) == len(head + tail)
    if state["groups"] % other == 0:
        assert whole == head + tail


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from([3, 5, 6, 7]))
def test_sub_epochs_go_on_after_a_change_of_ranks_until_every_row_came_once(
    world_size, epochs, other
):
    samples = TOTAL // 6
    cut = {"samples_per_epoch": samples, "lanes": 8, "shuffle_rows": 48, "batch_size": 2}
    loaders = loaders_of(world_size, **cut)
    seen = [row for _ in range(epochs) for row in flat(read_ranks(loaders)[0])]
    head, state = read_ranks(loaders, 1)
    rest = loaders_of(other, **cut)
    for loader in rest:
        loader.load_state_dict(state)
    seen += flat(head)
    for _ in range(6 - epochs):
        rows, after = read_ranks(rest)
        seen += flat(rows)

    assert len(seen) == 6 * samples == len(set(seen))
    assert (after["lanes"], after["groups"]) == (state["lanes"], state["groups"])


def test_consecutive_sub_epochs_are_every_row_once():
    (loader,) = loaders_of(1, samples_per_epoch=TOTAL // 4)
    rows = [row for _ in range(4) for row in read_all([loader])[0]]

    assert sorted(rows) == list(range(TOTAL))
    assert loader.state_dict()["samples_per_epoch"] == TOTAL // 4


def test_where_says_the_step_that_delivers_a_row():
    (loader,) = loaders_of(1, samples_per_epoch=40)
    batches = [batch["row"].tolist() for batch in loader]
    firsts = index_of(CASE).first_row
    for block, rows in enumerate(CASE):
        for row in range(rows):
            number = int(firsts[block]) + row
            found = find_row(make_plan_of(loader), block=block, row=row)
            steps = [
                (step, batch.index(number)) for step, batch in enumerate(batches) if number in batch
            ]

            assert steps == ([] if found is None else [(found.step, found.batch_row)])


def make_plan_of(loader):
    again = loaders_of(1, samples_per_epoch=loader.options.samples_per_epoch)[0]
    return again.plan()


def test_a_state_of_other_samples_per_epoch_is_refused():
    (loader,) = loaders_of(1, samples_per_epoch=40)
    (other,) = loaders_of(1, samples_per_epoch=41)
    with raised(StreamError, setting="samples_per_epoch", remedy="pass the saved setting"):
        other.load_state_dict(loader.state_dict())
    with raised(StreamError, setting="samples_per_epoch", remedy="pass the saved setting"):
        loaders_of(1)[0].load_state_dict(loader.state_dict())


def test_settings_that_would_read_nothing_are_refused():
    with pytest.raises(SettingsError, match="samples_per_epoch is 0"):
        loaders_of(1, samples_per_epoch=0)
    with raised(SettingsError, setting="samples_per_epoch", remedy="leave it out"):
        StreamLoader(
            index_of([0]),
            Numbers((0,)),
            StreamOptions(batch_size=1, samples_per_epoch=5, batch_format="numpy"),
            topology=ranks(1)[0],
        )
