"""An epoch whose ranks change on the way: every row once, equal steps, resumable, and read about once."""

import json
import logging
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from damaged_states import resealed
from hypothesis import given, settings
from hypothesis import strategies as st
from pure_order import positions_of_row
from stream_cases import Numbers, flat, index_of, ranks, read_ranks

from headrace.errors import StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import Reading, RowPasses
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.joined import parts_of
from headrace.stream.order.layout import order_of_state
from headrace.stream.order.plan import plan_pools
from headrace.stream.order.remaining import Remaining
from headrace.stream.order.state import MOST_CHANGES, StreamState
from headrace.stream.order.whereabouts import find_row, seen_per_shard
from headrace.stream.ranks.topology import Topology
from laws import examples

WORLDS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16)


def passes_of(rows, world_size, *, rank=0, read_block=None, schema=None, **options):
    """Passes over blocks of these rows, as one rank of so many makes them."""
    index = index_of(rows) if schema is None else index_of(rows, schema=schema)
    values = {
        "batch_size": 3,
        "shuffle": True,
        "seed": 5,
        "batch_format": "numpy",
        "remainder": "pad",
        **options,
    }
    topology = Topology(rank=rank, world_size=world_size)
    return RowPasses(index, read_block or Numbers(tuple(rows)), StreamOptions(**values), topology)


def rows_at(order, positions):
    """(block, row) of each position."""
    blocks, rows = order.locate(order.line_of(positions))
    return list(zip(blocks.tolist(), rows.tolist(), strict=True))


def moved(state, position):
    """The state with everything up to a position received, as batches of some size would have it."""
    return state.at(Remaining.of(state.rows, position=position, holes=()), batches=0)


@st.composite
def splits(draw):
    """Block rows and how they are cut: one block to many, small data that is one round and data of many rounds."""
    size = draw(st.sampled_from([(1, 60), (4, 30), (30, 12), (120, 5)]))
    rows = draw(st.lists(st.integers(0, size[1]), min_size=1, max_size=size[0]).filter(any))
    cut = {"shuffle": draw(st.sampled_from([True, True, True, False]))}
    if draw(st.integers(0, 3)) == 0:  # an epoch that is no whole pass
        cut |= {"samples_per_epoch": draw(st.integers(1, 2 * sum(rows)))}
    if draw(st.booleans()):
        cut |= {
            "lanes": draw(st.sampled_from([1, 2, 6, 12, 24, 48])),
            "shuffle_rows": draw(st.integers(1, 90)),
        }
    return rows, cut


@st.composite
def stops(draw, state, order):
    """A position to stop at: anywhere, in the rest of a round, at its border, where a part begins, or at the ends."""
    here = state.position
    round_rows = order.lanes * order.window_rows
    places = [
        here,
        state.rows,
        here // round_rows * round_rows + round_rows,
        *(part.begin for part in parts_of(order)),
    ]
    places += [min(here + 1, state.rows), draw(st.integers(here, state.rows))]
    return draw(st.sampled_from(sorted({place for place in places if here <= place <= state.rows})))


@st.composite
def chains(draw):
    """(block rows, settings, the state that each of up to six elastic resumes began with)."""
    rows, cut = draw(splits())
    began = passes_of(
        rows, draw(st.sampled_from(WORLDS)), batch_size=draw(st.integers(1, 8)), **cut
    )
    state = began.begin(draw(st.integers(0, 2))).start
    states = [state]
    for _ in range(draw(st.integers(1, 6))):
        stopped = moved(state, draw(stops(state, order_of_state(began.index, state))))
        resumed = passes_of(
            rows, draw(st.sampled_from(WORLDS)), batch_size=draw(st.integers(1, 8)), **cut
        )
        state = resumed.resume(json.loads(json.dumps(stopped.to_dict()))).start
        states.append(state)
    return rows, cut, states


@settings(deadline=None)
@given(chains())
def test_every_row_comes_once_whatever_the_ranks_were(chain):
    rows, _, states = chain
    index, begun = index_of(rows), states[0]
    stops = [*(state.position for state in states[1:]), begun.rows]
    seen = []
    for state, stop in zip(states, stops, strict=True):
        seen += rows_at(order_of_state(index, state), np.arange(state.position, stop))
    every = [(block, row) for block, count in enumerate(rows) for row in range(count)]

    if begun.samples_per_epoch is None:
        assert sorted(seen) == every
    else:  # once per own epoch, of which this epoch has parts or all
        first = begun.epoch * begun.rows
        own = range(0, first + begun.rows + len(every), len(every))
        touched = [
            (max(first, start), min(first + begun.rows, start + len(every))) for start in own
        ]
        parts = [end - start for start, end in touched if start < end]
        times = Counter(seen)
        assert sum(parts) == len(seen)
        assert all(parts.count(len(every)) <= times[row] <= len(parts) for row in every)
    assert all(state.holes == () for state in states)


@pytest.mark.slow
@settings(deadline=None)
@given(
    splits(),
    st.lists(
        st.tuples(st.sampled_from(WORLDS), st.integers(1, 9), st.integers(0, 9)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["pad", "drop"]),
)
def test_steps_are_equal_and_each_has_a_row_in_any_chain(split, passes, remainder):
    rows, cut = split
    received, state = [], None
    for world_size, batch_size, batches in passes:
        every = [
            passes_of(
                rows, world_size, rank=rank, batch_size=batch_size, remainder=remainder, **cut
            )
            for rank in range(world_size)
        ]
        begun = [each.begin(1) if state is None else each.resume(state) for each in every]
        plan, steps = begun[0].plan(), begun[0].steps
        shares = [plan.rank_rows(rank) for rank in range(world_size)]
        batches = min(batches, steps)
        states = [each.state_after(batches) for each in begun]

        assert all(each == states[0] for each in states)  # every rank saves the same
        assert {share.steps for share in shares} == {steps} == {each.steps for each in begun}
        assert len({share.items for share in shares}) == 1
        given_rows = 0
        for share in shares:
            own = plan.remaining.positions(share.indices(0, min(share.rows, batches * batch_size)))
            found = rows_at(plan.order, own)
            received += found
            given_rows += len(found)
        assert plan.remaining.total - begun[0].after(batches).start.remaining.total == given_rows
        assert all(
            share.rows > (steps - 1) * batch_size for share in shares[:1] if steps
        )  # a valid row in each
        state = json.loads(json.dumps(states[0]))

    (last,) = [passes_of(rows, 1, **cut)]
    rest = last.resume(state)
    received += rows_at(rest.plan().order, np.arange(rest.start.position, rest.start.rows))
    fresh = rest.start.fresh(rest.epoch)
    assert sorted(received) == sorted(
        rows_at(order_of_state(last.index, fresh), np.arange(fresh.rows))
    )


@settings(deadline=None)
@given(chains(), st.data())
def test_ranks_that_divide_the_groups_go_on_as_if_there_had_been_no_stop(chain, data):
    rows, cut, states = chain
    state = states[-1]
    order = order_of_state(index_of(rows), state)
    stopped = moved(state, data.draw(stops(state, order)))
    last = state.changes[-1] if state.changes else state
    divisors = [each for each in WORLDS if (last.groups or last.ranks) % each == 0]
    resumed = passes_of(
        rows, data.draw(st.sampled_from(divisors)), batch_size=data.draw(st.integers(1, 9)), **cut
    )
    went_on = resumed.resume(stopped.to_dict()).start

    if stopped.position or state.changes:
        assert went_on == stopped
    left = np.arange(stopped.position, stopped.rows)
    assert stopped.position == 0 or rows_at(order, left) == rows_at(
        order_of_state(index_of(rows), went_on), left
    )


@settings(deadline=None)
@given(chains(), st.data())
def test_what_an_order_says_of_positions_rows_and_blocks_agrees(chain, data):
    rows, _, states = chain
    state = states[-1]
    order = order_of_state(index_of(rows), state)
    whole = rows_at(order, np.arange(order.rows))
    known = {}
    for position, row in enumerate(whole):
        known.setdefault(row, []).append(position)
    for block, row in data.draw(st.lists(st.sampled_from(whole), min_size=1, max_size=5)):
        assert positions_of_row(order, block, row).tolist() == known[block, row]
    for begin, end, part in parts_of(order):
        if begin == end:
            continue
        first = np.arange(min(part.groups, end - begin))
        reads = part.reads(first, first + (end - begin - 1 - first) // part.groups * part.groups)
        for residue in first.tolist():
            own = whole[begin + residue : end : part.groups]
            assert {block for block, _ in own} <= set(reads.block[reads.run == residue].tolist())


@settings(deadline=None)
@given(chains(), st.sampled_from(WORLDS), st.sampled_from([1, 20, 1 << 13]))
def test_pools_hold_what_a_rank_takes_of_a_chain(chain, world_size, least_rows):
    rows, cut, states = chain
    plan = passes_of(rows, world_size, **cut).resume(states[-1].to_dict()).plan()
    for rank in range(world_size):
        share = plan.rank_rows(rank)
        got = []
        for pool in plan_pools(plan.order, plan.remaining, share, least_rows=least_rows):
            laid = [(block, row) for block, start, stop in pool.spans for row in range(start, stop)]
            if plan.order.rows <= sum(rows):  # else rows come more than once
                assert len(set(laid)) == len(laid)
            got += laid if pool.index is None else [laid[item] for item in pool.index.tolist()]

        own = plan.remaining.positions(share.indices(0, share.rows))
        assert got[: share.rows] == (rows_at(plan.order, own) if share.rows else [])
        assert len(got) == share.items


@pytest.mark.smoke(every=4)
@pytest.mark.parametrize(
    "kind",
    [{}, {"shuffle": False}, {"samples_per_epoch": 3000}, {"distribution": "by_size"}],
    ids=str,
)
@pytest.mark.parametrize(
    ("rows", "lanes", "shuffle_rows"),
    [((40,) * 90, 12, 240), ((500,) * 60, None, 3000), ((0, 900, 7, 3000, 5), 6, 60)],
)
@pytest.mark.parametrize(("before", "ranks_now"), [(4, 3), (3, 5), (6, 4), (1, 7)])
def test_a_plan_of_a_chain_bounds_what_a_real_stream_decodes(
    rows, lanes, shuffle_rows, before, ranks_now, kind
):
    """Not a byte more than the plan says, and hardly any less in all: what is said is worth something."""
    cut = {"lanes": lanes, "shuffle_rows": shuffle_rows, "batch_size": 20, **kind}
    begun = passes_of(rows, before, **cut).begin(0)
    state = begun.state_after(begun.steps // 3)
    numbers, counted = Numbers(rows), []
    for rank in range(ranks_now):
        reads = []

        def read_block(block, columns, reads=reads):
            reads.append(block)  # from several threads, each of which appends whole
            return numbers(block, columns)

        resumed = passes_of(rows, ranks_now, rank=rank, read_block=read_block, **cut).resume(state)
        for _ in resumed.batches(Reading(read_block)):
            pass
        counted.append(sum(int(resumed.plan().block_bytes[block]) for block in reads))
    said = resumed.plan().bytes_per_rank.tolist()

    assert all(read <= bound for read, bound in zip(counted, said, strict=True))
    assert sum(counted) > 0.6 * sum(said)


COLUMNS = pa.schema([(f"c{number}", pa.float32()) for number in range(28)])


def factor_of(rows, before, ranks_now, **options):
    """How often what is left of half an epoch is decoded, counted over all ranks."""
    begun = passes_of(rows, before, schema=COLUMNS, batch_size=256, **options).begin(0)
    resumed = passes_of(rows, ranks_now, schema=COLUMNS, batch_size=256, **options)
    return resumed.resume(begun.state_after(begun.steps // 2)).plan().read_amplification


@pytest.mark.parametrize("blocks", [(65_536,) * 300, (65_536,) * 1500, (16_384,) * 6000])
def test_blocks_are_decoded_about_once_before_and_after_a_change_of_ranks(blocks):
    for world_size in (1, 2, 3, 4, 8, 12, 16, 32, 64):
        begun = passes_of(blocks, world_size, schema=COLUMNS, batch_size=256).begin(0)
        assert begun.plan().read_amplification <= 1.25, world_size
    for before, ranks_now in ((16, 15), (16, 12), (16, 5), (8, 7)):
        assert factor_of(blocks, before, ranks_now) <= 2.2, (before, ranks_now)
    assert factor_of(blocks, 64, 63) <= 2.8
    assert factor_of(blocks, 16, 8) <= 1.25


@pytest.mark.parametrize(
    "kind", [{"samples_per_epoch": 40_000_000}, {"distribution": "by_size"}, {"shuffle": False}]
)
@pytest.mark.parametrize(("before", "ranks_now"), [(16, 15), (16, 12), (16, 5), (16, 8), (8, 7)])
def test_what_is_left_of_other_epochs_is_decoded_about_once_too(kind, before, ranks_now):
    # the source of a part of the rows is cut again as a whole, and the part needs some of each lane
    most = {"distribution": 1.7, "samples_per_epoch": 1.4, "shuffle": 1.25}
    assert factor_of((65_536,) * 1500, before, ranks_now, **kind) <= most[next(iter(kind))]


CUT = {
    "lanes": 6,
    "shuffle_rows": 60,
    "batch_size": 6,
}  # rounds of 60 rows; six groups on one to three ranks
BLOCKS = (30, 1, 0, 17, 44, 8, 100)


def loaders_of(world_size, **options):
    values = {"shuffle": True, "seed": 3, "batch_format": "numpy", **CUT, **options}
    return [
        StreamLoader(index_of(BLOCKS), Numbers(BLOCKS), StreamOptions(**values), topology=topology)
        for topology in ranks(world_size)
    ]


def resumed(state, world_size, **options):
    loaders = loaders_of(world_size, **options)
    for loader in loaders:
        loader.load_state_dict(state)
    return loaders


def test_a_resume_deals_out_the_rest_of_the_round_and_cuts_the_rest_again():
    _, state = read_ranks(loaders_of(2), 3)
    changed = resumed(state, 5)[0].state_dict()
    rest = {"position": 36, "ranks": 5}

    assert state["changes"] == []
    assert changed["changes"][0] == rest
    assert (changed["changes"][1]["position"], changed["changes"][1]["groups"] % 5) == (60, 0)
    assert state == resealed(changed, changes=[])
    assert (
        state == resumed(state, 3)[0].state_dict() == resumed(state, 6)[0].state_dict()
    )  # they divide the groups


def test_a_resume_at_the_border_of_a_round_only_cuts_again():
    _, state = read_ranks(loaders_of(2), 5)
    (change,) = resumed(state, 5)[0].state_dict()["changes"]

    assert (state["position"], change["position"], change["groups"] % 5) == (60, 60, 0)


def test_a_second_change_replaces_what_the_first_one_planned():
    _, state = read_ranks(loaders_of(2), 3)
    _, state = read_ranks(resumed(state, 5, batch_size=2), 1)
    again = resumed(state, 4)[0].state_dict()["changes"]
    kept = resumed(state, 5)[0].state_dict()["changes"]

    assert [36, 60] == [
        change["position"] for change in again
    ]  # the rest of the round stays as it was dealt
    assert again[0] == kept[0] == {"position": 36, "ranks": 5}
    assert 0 == again[1]["groups"] % 4


def test_the_next_epoch_has_no_changes_and_lanes_for_these_ranks():
    _, state = read_ranks(loaders_of(2, lanes=None, shuffle_rows=30), 3)
    group = resumed(state, 5, lanes=None, shuffle_rows=30)
    read_ranks(group)
    rows, after = read_ranks(group)

    assert sorted(flat(rows)) == list(range(sum(BLOCKS)))
    assert (after["epoch"], after["changes"], after["lanes"] % 5) == (1, [], 0)


def test_a_state_before_the_first_batch_simply_begins_on_the_new_ranks():
    state = loaders_of(2, lanes=None, shuffle_rows=30)[0].state_dict()
    new = resumed(state, 5, lanes=None, shuffle_rows=30)[0].state_dict()

    assert (new["changes"], new["lanes"] % 5) == ([], 0)


def test_a_state_of_the_end_leaves_nothing_on_any_ranks():
    _, state = read_ranks(loaders_of(2))
    for world_size in (3, 5):
        group = resumed(state, world_size)
        assert [0] * world_size == [loader.remaining for loader in group]
        assert state == group[0].state_dict()


def test_small_data_goes_on_in_its_permutation_on_any_ranks():
    begun = loaders_of(2, lanes=None, shuffle_rows=None)
    _, state = read_ranks(begun, 3)

    assert state == resumed(state, 5, lanes=None, shuffle_rows=None)[0].state_dict()


def test_where_and_seen_answer_for_a_changed_epoch():
    _, state = read_ranks(loaders_of(2), 3)
    group = resumed(state, 5)
    plan = group[0].plan()
    rows, after = read_ranks(group, 4)
    saved = StreamState.from_dict(after)
    index = index_of(BLOCKS)

    assert (seen_per_shard(index, saved).sum(), saved.remaining.total) == (
        36 + 120,
        sum(BLOCKS) - 156,
    )
    for rank, own in enumerate(rows):
        for step, batch in enumerate(own):
            for place, row in enumerate(batch):
                block = int(np.searchsorted(np.cumsum(BLOCKS), row, side="right"))
                found = find_row(plan, block=block, row=row - int(index.first_row[block]))
                assert found is not None
                assert (rank, step, place) == (found.rank, found.step, found.batch_row)


def test_after_too_many_changes_the_order_is_kept():
    rows = (50,) * 80
    cut = {"lanes": 4, "shuffle_rows": 8, "batch_size": 1}
    state = passes_of(rows, 4, **cut).begin(0).start
    index = index_of(rows)
    for number in range(MOST_CHANGES):
        stopped = moved(state, state.position + 3)
        state = passes_of(rows, 3 + 2 * (number % 2), **cut).resume(stopped.to_dict()).start
    left = rows_at(order_of_state(index, state), np.arange(sum(rows)))

    assert len(state.changes) <= MOST_CHANGES
    assert len(set(left)) == sum(rows)


HUGE = 1 << 24


@pytest.mark.parametrize(
    "changes",
    [
        [{"position": 30, "lanes": 5, "window_rows": 4, "groups": 5}],  # lanes stand in the middle of windows
        [{"position": 30, "ranks": 3}, {"position": 61, "lanes": 2, "window_rows": 9, "groups": 1}],
        [{"position": 60, "lanes": 2, "window_rows": 9, "groups": 1}, {"position": 120, "lanes": 2, "window_rows": 9, "groups": 1}],
    ],
)  # fmt: skip
def test_changes_that_the_order_cannot_have_are_refused(changes):
    _, state = read_ranks(loaders_of(2), 3)
    for world_size in (1, 2, 5):
        with pytest.raises(StreamError, match="expected lanes to be cut at borders of rounds"):
            resumed(resealed(state, changes=changes, position=140), world_size)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.fixed_dictionaries(
            {"position": st.integers(0, 199)}, optional={"ranks": st.integers(1, 9)}
        )
        | st.fixed_dictionaries(
            {
                "position": st.integers(0, 199),
                "lanes": st.integers(1, 9),
                "window_rows": st.integers(1, 99),
            }
        ).map(lambda change: {**change, "groups": change["lanes"]}),
        max_size=4,
        unique_by=lambda change: change["position"],
    ),
    st.integers(0, 200),
    st.integers(1, 5),
)
def test_any_changes_are_refused_or_deliver_every_row_once(changes, position, world_size):
    state = loaders_of(2)[0].state_dict()
    made = resealed(
        state, changes=sorted(changes, key=lambda change: change["position"]), position=position
    )
    try:
        start = passes_of(BLOCKS, world_size, **CUT, seed=3).resume(made).start
        order = order_of_state(index_of(BLOCKS), start)
    except StreamError:
        return

    assert len(set(rows_at(order, np.arange(200)))) == 200


@pytest.mark.slow
@pytest.mark.smoke("changed1", "changed2", "changed3")
@pytest.mark.parametrize(
    "changed",
    [
        {"lanes": HUGE, "groups": 1},
        {"window_rows": (1 << 62) // 6},
        {"lanes": HUGE, "groups": 1 << 12, "window_rows": 1 << 38},
        {"changes": [{"position": 30, "ranks": HUGE - 1}, {"position": 60, "lanes": 1, "window_rows": 1 << 62, "groups": 1}]},
        {"changes": [{"position": 60, "lanes": HUGE, "window_rows": 1 << 38, "groups": 1}]},
    ],
)  # fmt: skip
def test_numbers_at_their_bounds_deliver_every_row_once(changed):
    """Nothing overflows, and nothing is held that grows with what a state says alone."""
    state = loaders_of(2)[0].state_dict()
    made = resealed(state, **{"position": 140, **changed})
    resumed_ = passes_of(BLOCKS, 1, **CUT, seed=3).resume(made)
    order = resumed_.plan().order

    assert len(set(rows_at(order, np.arange(200)))) == 200
    assert resumed_.steps == 10


def test_a_row_is_looked_for_in_parts_that_do_not_hold_it():
    """Rows of the first part lie before, behind and between what the line of the last part holds of their blocks."""
    state = passes_of((16,), 1, lanes=1, shuffle_rows=1).begin(0).after(3).start  # batches of 3
    order = order_of_state(
        index_of((16,)), passes_of((16,), 7, lanes=1, shuffle_rows=1).resume(state.to_dict()).start
    )
    whole = rows_at(order, np.arange(16))

    assert [[position] for position in range(16)] == [
        positions_of_row(order, *row).tolist() for row in whole
    ]


@pytest.mark.parametrize("kind", [{}, {"samples_per_epoch": 150}, {"shuffle": False}], ids=str)
def test_the_start_of_a_changed_epoch_is_in_the_order_that_its_ranks_gave_it(kind):
    group = loaders_of(2, **kind)
    head, state = read_ranks(group, 3)
    group = resumed(state, 5, **kind)
    tail, _ = read_ranks(group, 2)
    whole = order_of_state(index_of(BLOCKS), StreamState.from_dict(group[0].epoch_start()))
    firsts = np.concatenate([[0], np.cumsum(BLOCKS)])
    rows = [int(firsts[block]) + row for block, row in rows_at(whole, np.arange(36 + 60))]

    assert group[0].epoch_start()["position"] == 0
    assert sorted(rows[:36]) == sorted(flat(head))
    assert sorted(rows[36:]) == sorted(flat(tail))


@pytest.mark.parametrize(
    ("blocks", "options", "level", "words"),
    [
        ((65_536,) * 300, {}, "INFO", r"15 ranks go on with 9830400 of 19660800 rows of epoch 0; over all, these are decoded 1\.\d times$"),
        ((4_000_000,) * 6, {}, "WARNING", r"decoded 7\.\d times; resume on a number of ranks that divides 16 to decode them once"),
        ((4_000_000,) * 6, {"distribution": "by_size"}, "WARNING", r"decoded \d\.\d times; resume on 16 ranks to decode them once"),
    ],
)  # fmt: skip
def test_the_log_says_what_a_change_of_ranks_costs_and_warns_above_twice(
    blocks, options, level, words, caplog
):
    caplog.set_level(logging.INFO, "headrace")
    factor_of(blocks, 16, 15, **options)
    (record,) = [record for record in caplog.records if "go on with" in record.message]

    assert record.levelname == level
    assert re.search(words, record.message), record.message
