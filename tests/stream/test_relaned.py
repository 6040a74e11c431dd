"""Relaning: what is left of an epoch in new lanes, each row once, resumable, and read by one consumer each."""

import numpy as np
import pytest
from damaged_states import resealed
from headrace.stream.order.relaned import relane
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_cases import Numbers, flat, index_of, ranks, read_ranks

from headrace.errors import StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.layout import lay_epoch, order_of_state
from headrace.stream.order.plan import make_plan
from headrace.stream.order.remaining import Remaining
from headrace.stream.order.share import advance
from headrace.stream.order.state import StreamState
from headrace.stream.order.whereabouts import find_row, seen_per_shard

CASE = (30, 1, 0, 17, 44, 8)
INDEX = index_of(CASE)
TOTAL = sum(CASE)


def loaders_of(world_size, **options):
    values = {"batch_size": 4, "shuffle": True, "seed": 3, "batch_format": "numpy", "shuffle_rows": 24, **options}
    values = {"on_topology_change": "relane", **values}
    return [
        StreamLoader(INDEX, Numbers(CASE), StreamOptions(**values), topology=topology) for topology in ranks(world_size)
    ]


def resumed(state, world_size, **options):
    loaders = loaders_of(world_size, **options)
    for loader in loaders:
        loader.load_state_dict(state)
    return loaders


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([None, 60, 150]),
)
def test_any_chain_of_stops_and_topologies_delivers_each_row_once(stops, shuffle, samples):
    options = {"shuffle": shuffle, "samples_per_epoch": samples}
    seen, state = [], None
    for world_size, steps, batch_size in stops:
        loaders = loaders_of(world_size, batch_size=batch_size, **options)
        for loader in loaders if state else ():
            loader.load_state_dict(state)
        rows, state = read_ranks(loaders, steps)
        seen += flat(rows)
    (last,) = resumed(state, 1, **options)
    seen += flat(read_ranks([last])[0])
    whole = flat(read_ranks(loaders_of(stops[0][0], **options))[0])

    assert sorted(seen) == sorted(whole)


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(2, 5), st.integers(0, 5), st.booleans())
def test_a_relaned_epoch_resumes_as_if_it_had_not_stopped(first, stop, then, again, shuffle):
    _, state = read_ranks(loaders_of(first, shuffle=shuffle), stop)
    whole, _ = read_ranks(resumed(state, then, shuffle=shuffle))
    head, middle = read_ranks(resumed(state, then, shuffle=shuffle), again)
    tail, _ = read_ranks(resumed(middle, then, shuffle=shuffle))

    assert [a + b for a, b in zip(head, tail, strict=True)] == whole


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 9),
    st.lists(st.integers(0, 400), min_size=2, max_size=6, unique=True),
)
def test_rows_are_found_where_they_are_and_reads_name_their_blocks(rows, lanes, new_lanes, window, cuts):
    cuts = sorted({min(cut, sum(rows)) for cut in cuts})
    left = Remaining(rows=sum(rows), ranges=tuple(zip(cuts[0::2], cuts[1::2], strict=False)))
    base = lay_epoch(index_of(rows), seed=1, epoch=2, lanes=lanes, window_rows=5, groups=lanes, shuffle=True)
    order = relane(base, left, seed=1, epoch=2, lanes=new_lanes, window_rows=window, groups=new_lanes)
    blocks, inside = order.locate(order.line_of(np.arange(order.rows)))
    found = list(zip(blocks.tolist(), inside.tolist(), strict=True))
    old = base.locate(base.line_of(left.positions(np.arange(left.total))))

    assert sorted(found) == sorted(zip(*(part.tolist() for part in old), strict=True))
    for block, count in enumerate(rows):
        for row in range(count):
            expected = [found.index((block, row))] if (block, row) in found else []
            assert order.positions_of_row(block, row).tolist() == expected
    first = np.arange(min(new_lanes, order.rows))
    reads = order.reads(first, first + (order.rows - 1 - first) // new_lanes * new_lanes)
    for lane in first.tolist():
        assert set(blocks[lane::new_lanes].tolist()) <= set(reads.block[reads.run == lane].tolist())


@pytest.mark.parametrize(("consumers", "workers"), [(5, 0), (3, 2), (6, 1)])
def test_relaning_ends_double_decoding(consumers, workers):
    index = index_of([1000] * 400)
    settings = {"batch_size": 10, "shuffle": True, "window_rows": 250}
    plan = make_plan(index, world_size=4, lanes=16, **settings)
    left = advance(plan.remaining, 1000, world_size=4, workers=0, batch_size=10, remainder="pad")
    kept = make_plan(index, world_size=consumers, workers=workers, lanes=16, remaining=left, **settings)
    order = relane(plan.order, left, seed=0, epoch=0, lanes=kept.consumers * 8, window_rows=125, groups=kept.consumers)
    again = make_plan(index, batch_size=10, world_size=consumers, workers=workers, order=order)

    assert again.remaining.total == left.total == again.rows_per_consumer.sum()
    assert kept.read_amplification > 1.9
    assert again.read_amplification < 1.4


def test_states_that_fit_are_kept_and_the_next_epoch_has_the_new_lanes():
    _, state = read_ranks(loaders_of(2, lanes=8), 3)
    (fits,) = resumed(state, 1)
    odd = resumed(state, 3)

    assert state == fits.state_dict()
    assert state == resealed(state, **odd[0].state_dict()["base"])
    assert 0 == odd[0].state_dict()["lanes"] % 3
    read_ranks(odd)
    rows, after = read_ranks(odd)
    assert sorted(flat(rows)) == list(range(TOTAL))
    assert (after["epoch"], after["lanes"]) == (1, odd[0].state_dict()["lanes"])
    assert "base" not in after


def test_without_relane_the_order_is_kept():
    _, state = read_ranks(loaders_of(2, lanes=8), 3)

    assert state == resumed(state, 3, on_topology_change="keep")[0].state_dict()


def test_a_state_before_the_first_batch_simply_begins_in_new_lanes():
    state = loaders_of(2, lanes=8)[0].state_dict()
    new = resumed(state, 3)[0].state_dict()

    assert 0 == new["lanes"] % 3
    assert "base" not in new


def test_relaned_parts_of_epochs_still_make_up_every_row():
    (first,) = loaders_of(1, samples_per_epoch=TOTAL // 4)
    rows, state = read_ranks([first])
    seen = flat(rows)
    loaders = loaders_of(3, samples_per_epoch=TOTAL // 4)
    for loader in loaders:
        loader.load_state_dict(state)
    for _ in range(4):
        rows, state = read_ranks(loaders)
        seen += flat(rows)

    assert sorted(seen) == list(range(TOTAL))
    assert (state["epoch"], state["lanes"] % 3, state["base"]["epoch"]) == (3, 0, 3)


def test_where_and_seen_answer_for_a_relaned_epoch():
    _, state = read_ranks(loaders_of(2, lanes=8), 3)
    loaders = resumed(state, 3)
    rows, after = read_ranks(loaders, 2)
    saved = StreamState.from_dict(after)
    assert (seen_per_shard(INDEX, saved).sum(), saved.remaining.total) == (24 + 24, TOTAL - 48)

    plan = resumed(state, 3)[0].plan()
    numbers = {
        row: (rank, step, place)
        for rank, own in enumerate(rows)
        for step, b in enumerate(own)
        for place, row in enumerate(b)
    }
    for row, expected in numbers.items():
        block = int(np.searchsorted(INDEX.first_row, row, side="right")) - 1
        while not CASE[block]:
            block -= 1
        found = find_row(plan, block=block, row=row - int(INDEX.first_row[block]))
        assert found is not None
        assert expected == (found.rank, found.step, found.place)
    assert order_of_state(INDEX, saved).rows == TOTAL - 24


def test_a_relaned_state_whose_base_does_not_fit_is_refused():
    _, state = read_ranks(loaders_of(2, lanes=8), 3)
    relaned = resumed(state, 3)[0].state_dict()
    for change in ({"rows": 5}, {"epoch": 4}, {"base": {**relaned["base"], "position": 0, "holes": []}}):
        with pytest.raises(StreamError, match="base is|position is"):
            StreamState.from_dict(resealed(relaned, **change))
