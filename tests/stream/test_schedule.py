"""Scheduled blends: every row in its turn, shares at every prefix, limits, and a resume anywhere on any ranks."""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pure_order import lay
from stream_cases import index_of, ranks

from headrace.errors import SettingsError
from headrace.stream.loader.blend import join_indexes
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.order import layout
from headrace.stream.order.joined import parts_of
from headrace.stream.order.layout import begin_mixture, lay_epoch, schedule_of
from headrace.stream.order.mixed import Leg
from headrace.stream.order.mixture import Mixture
from laws import examples
from raised import raised

NAMES = "abcde"


@pytest.fixture(autouse=True, scope="module")
def some_sources_are_small():
    """Let cases have sources that every rank holds whole, and others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SMALL_SOURCE_ROWS", 24)
        yield


@dataclass(frozen=True)
class Case:
    """Sources of some blocks, and what is asked of them.

    stages: (row of the run, weight of each source).
    """

    sources: list
    stages: list
    limits: dict
    epoch_rows: int

    @cached_property
    def index(self):
        schedule = [(f"{begin} rows" if begin else 0, weights) for begin, weights in self.stages]
        names = NAMES[: len(self.sources)]
        mixture = Mixture.build(names, schedule=schedule, limits=self.limits)
        return join_indexes(list(map(index_of, self.sources)), mixture)

    def begin(self):
        """What the state of a run keeps of the mixture."""
        return begin_mixture(self.index, samples_per_epoch=self.epoch_rows, global_batch=1)

    @cached_property
    def sizes(self):
        return [sum(blocks) for blocks in self.sources]

    @cached_property
    def firsts(self):
        return np.cumsum([0, *self.sizes])

    def most(self, number):
        limit = self.limits.get(NAMES[number])
        return None if limit is None else int(limit * self.sizes[number])


@st.composite
def cases(draw, most_limits=3):
    sources = draw(
        st.lists(
            st.lists(st.integers(0, 14), min_size=1, max_size=7).filter(lambda rows: sum(rows) > 8),
            min_size=1,
            max_size=4,
        )
    )
    weight = st.sampled_from([0, 0.2, 1, 1, 3.7])
    weights = st.lists(weight, min_size=len(sources), max_size=len(sources)).filter(any)
    begins = draw(st.sets(st.integers(1, 250), max_size=2))
    stages = [(begin, draw(weights)) for begin in (0, *sorted(begins))]
    last = [1.0 if each else 0.0 for each in stages[-1][1]]
    stages[-1] = (stages[-1][0], last)
    limits = draw(
        st.dictionaries(
            st.sampled_from(NAMES[: len(sources)]),
            st.sampled_from([0.5, 1, 2, 3]),
            max_size=most_limits,
        )
    )
    return Case(sources, stages, limits, draw(st.integers(40, 120)))


def rows_of_run(case, epochs, order):
    """The number of the row at each position of the first epochs, as far as the limits go."""
    rows = []
    whole = schedule_of(case.index, case.begin(), epoch_rows=case.epoch_rows).epochs
    for epoch in range(epochs if whole is None else min(epochs, whole)):
        laid = lay(case.index, epoch=epoch, samples_per_epoch=case.epoch_rows, **order)
        blocks, inside = laid.locate(laid.line_of(np.arange(laid.rows)))
        rows.append(case.index.first_row[blocks] + inside)
    return np.concatenate([np.empty(0, np.int64), *rows])


def check_own_epochs(case, run):
    """As many consecutive rows as a source has are every row once."""
    for first, size in zip(case.firsts, case.sizes, strict=False):
        mine = run[(run >= first) & (run < first + size)]
        for begin in range(0, len(mine), size):
            own = mine[begin : begin + size]
            assert len(np.unique(own)) == len(own)


orders = st.sampled_from([(1, 1), (4, 1), (4, 2), (6, 6), (12, 4)]).flatmap(
    lambda cut: st.fixed_dictionaries(
        {
            "seed": st.integers(0, 9),
            "lanes": st.just(cut[0]),
            "groups": st.just(cut[1]),
            "window_rows": st.integers(1, 9),
            "shuffle": st.booleans(),
        }
    )
)


@settings(max_examples=examples(200), deadline=None)
@given(cases(), orders, st.integers(1, 4))
def test_each_row_comes_once_in_its_turn_and_limits_hold(case, order, epochs):
    run = rows_of_run(case, epochs, order)
    check_own_epochs(case, run)
    source = np.searchsorted(case.firsts, run, side="right") - 1
    for number in range(len(case.sizes)):
        most = case.most(number)
        assert most is None or np.count_nonzero(source == number) <= most


@settings(max_examples=examples(200), deadline=None)
@given(cases(most_limits=0), orders, st.integers(1, 3))
def test_shares_hold_at_every_prefix_of_a_stage(case, order, epochs):
    run = rows_of_run(case, epochs, order)
    source = np.searchsorted(case.firsts, run, side="right") - 1
    borders = [begin for begin, _ in case.stages if begin < len(run)] + [len(run)]
    for (_, weights), begin, end in zip(case.stages, borders, borders[1:], strict=False):
        for number, weight in enumerate(weights):
            drawn = np.cumsum(source[begin:end] == number)
            asked = weight / sum(weights) * np.arange(1, end - begin + 1)
            assert np.abs(drawn - asked).max(initial=0) < 6


def test_epochs_do_not_round_alike():
    third = 1 / 3
    case = Case([[10], [10], [10]], [(0, [third, third, third])], {}, 10)
    schedule = schedule_of(case.index, case.begin(), epoch_rows=10)
    for epochs in (1, 2, 3, 100, 1_000_003):
        assert np.ptp(schedule.drawn_before(10 * epochs)) <= 2


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.floats(1e-3, 1), min_size=2, max_size=9),
    st.integers(1, 3000),
    st.integers(0, 1 << 20),
)
def test_counts_follow_the_run_whatever_the_length_of_an_epoch(weights, epoch_rows, epochs):
    case = Case([[9]] * len(weights), [(0, weights)], {}, epoch_rows)
    object.__setattr__(case, "index", index_of_weights(weights))
    schedule = schedule_of(case.index, case.begin(), epoch_rows=epoch_rows)
    rows = epochs * epoch_rows
    shares = np.array(weights) / sum(weights)
    drawn = schedule.drawn_before(rows)

    assert drawn.sum() == rows
    # a period of 2^30 rows rounds to a row
    assert np.abs(drawn - shares * rows).max() < 6 + rows / (1 << 29)


def index_of_weights(weights):
    names = "abcdefghi"[: len(weights)]
    return join_indexes([index_of([9])] * len(weights), Mixture.build(names, weights=weights))


@pytest.mark.parametrize("groups", [1, 48])
def test_tiny_sources_beside_a_large_one_are_in_their_turns(groups):
    sources = [[1], [7, 3], [16_384] * 62]
    case = Case(sources, [(0, [1, 1, 1])], {}, 1_000_000)
    order = {"seed": 1, "lanes": 48, "groups": groups, "window_rows": 400, "shuffle": True}
    laid = lay(case.index, epoch=1, samples_per_epoch=case.epoch_rows, **order)
    blocks, inside = laid.locate(laid.line_of(np.arange(laid.rows)))
    rows = case.index.first_row[blocks] + inside
    of_ten = rows[(rows >= 1) & (rows < 11)] - 1
    first = -333_333 % 10  # the first epoch ended inside an own epoch
    own = of_ten[first:][: len(of_ten[first:]) // 10 * 10].reshape(-1, 10)

    assert abs(np.count_nonzero(rows == 0) - 333_333) <= 6
    assert (np.sort(own, axis=1) == np.arange(10)).all()
    assert len(np.unique(own, axis=0)) > 20_000  # each own epoch has an order of its own
    assert np.bincount(rows[rows >= 11]).max() == 1


@settings(max_examples=examples(100), deadline=None)
@given(cases())
def test_a_limited_source_ends_exactly_and_the_others_take_its_share(case):
    assume(case.limits)
    order = {"seed": 1, "lanes": 4, "groups": 4, "window_rows": 3, "shuffle": True}
    run = rows_of_run(case, 5, order)
    source = np.searchsorted(case.firsts, run, side="right") - 1
    begin, weights = case.stages[-1]
    drawn = np.bincount(source, minlength=len(case.sizes))
    left = [
        weight > 0 and (case.most(number) is None or drawn[number] < case.most(number))
        for number, weight in enumerate(weights)
    ]
    after = source[max(begin, len(run) - 40) :]

    assert any(left) or len(run) < 5 * case.epoch_rows
    for number in np.unique(after).tolist():
        if not left[number] and case.most(number) is not None:
            assert drawn[number] == case.most(number)


@st.composite
def legs_of(draw, case, shuffle):
    """Other lanes from some positions of the run on."""
    legs = []
    epoch = 0
    for _ in range(draw(st.integers(0, 3))):
        epoch += draw(st.integers(0, 1))
        position = draw(st.integers(0, case.epoch_rows - 1))
        groups = draw(st.sampled_from([1, 2, 3, 4, 5, 7]))
        lanes = groups * draw(st.integers(1, 3)) if shuffle else groups
        begin = epoch * case.epoch_rows + position
        leg = Leg(begin, lanes, draw(st.integers(1, 4)), groups)
        if not legs or legs[-1].begin < begin:
            legs.append(leg)
    return tuple(legs)


@settings(max_examples=examples(100), deadline=None)
@given(cases(most_limits=0), orders, st.data())
def test_rows_come_once_and_shares_hold_through_any_changes_of_ranks(case, order, data):
    if not order["shuffle"]:
        order["groups"] = order["lanes"]
    mixture = replace(case.begin(), legs=data.draw(legs_of(case, order["shuffle"])))
    run = []
    sources = []
    for epoch in range(3):
        laid = lay_epoch(
            case.index, samples_per_epoch=case.epoch_rows, mixture=mixture, epoch=epoch, **order
        )
        blocks, inside = laid.locate(laid.line_of(np.arange(laid.rows)))
        rows = case.index.first_row[blocks] + inside
        for begin, end, part in parts_of(laid):
            pool = part.pool_of(np.arange(end - begin))
            pooled = np.concatenate(
                [case.index.first_row[block] + np.arange(*span) for block, *span in pool.spans]
            )
            assert (
                pooled[slice(None) if pool.index is None else pool.index] == rows[begin:end]
            ).all()
            reads = part.reads(
                np.array([0]), np.array([(end - begin - 1) // part.groups * part.groups])
            )
            assert set(blocks[begin : end : part.groups].tolist()) <= set(reads.block.tolist())
        which, positions = laid.positions_of_rows(blocks[:3], inside[:3])
        for row in range(min(3, laid.rows)):
            same = np.flatnonzero(rows == rows[row])
            assert same.tolist() == sorted(positions[which == row].tolist())
        run.append(rows)
        sources.append(np.searchsorted(case.firsts, rows, side="right") - 1)
    run = np.concatenate(run)
    unchanged = rows_of_run(case, 3, order)

    assert (
        np.concatenate(sources).tolist()
        == (np.searchsorted(case.firsts, unchanged, side="right") - 1).tolist()
    )
    check_own_epochs(case, run)


@dataclass(frozen=True)
class Blocks:
    """Blocks of all sources, end to end, with the numbers of rows and sources."""

    sources: list

    def __call__(self, block, columns):
        rows = [count for blocks in self.sources for count in blocks]
        source = np.repeat(np.arange(len(self.sources)), list(map(len, self.sources)))
        first = sum(rows[:block])
        values = {
            "row": np.arange(first, first + rows[block]),
            "text": [str(number) for number in range(first, first + rows[block])],
            "blend_source": np.full(rows[block], source[block]),
        }
        table = pa.table(values)
        return table if columns is None else table.select(columns)


def loaders_of(case, world_size, **options):
    given = {"batch_size": 24 // world_size, "shuffle": True, "lanes": 12, "shuffle_rows": 60}
    stream = StreamOptions(
        samples_per_epoch=case.epoch_rows, seed=3, batch_format="numpy", **{**given, **options}
    )
    return [
        StreamLoader(case.index, Blocks(case.sources), stream, topology=topology)
        for topology in ranks(world_size)
    ]


def read(loaders, stop=None):
    """(row, source) of the global batches, and the state after them."""
    passes = [iter(loader) for loader in loaders]
    batches = []
    while stop is None or len(batches) < stop:
        step = [next(each, None) for each in passes]
        if step[0] is None:
            break
        rows = []
        for item in range(len(step[0]["row"])):
            for batch in step:
                if batch.get("valid", np.ones(1 << 10, bool))[item : item + 1].any():
                    rows.append((int(batch["row"][item]), int(batch["blend_source"][item])))
        batches.append(rows)
    states = [json.dumps(loader.state_dict()) for loader in loaders]
    for each in passes:
        each.close()
    assert len(set(states)) == 1
    return batches, json.loads(states[0])


@settings(max_examples=examples(30), deadline=None)
@given(
    cases(most_limits=0),
    st.sampled_from([1, 2, 3, 4, 6]),
    st.sampled_from([1, 2, 4, 5, 8]),
    st.integers(0, 9),
    st.booleans(),
)
def test_batches_are_the_same_on_any_ranks_and_a_resume_goes_on(
    case, world_size, other, stop, small
):
    options = {"lanes": None, "shuffle_rows": None} if small else {}
    whole, _ = read(loaders_of(case, 1, remainder="pad", **options))
    head, state = read(loaders_of(case, world_size, remainder="pad", **options), stop)
    size = 24 // other
    rest = loaders_of(case, other, remainder="pad", batch_size=size, **options)
    for loader in rest:
        loader.load_state_dict(state)
    tail, _ = read(rest)

    assert whole[: len(head)] == head
    if 24 % other == 0 and (small or 12 % other == 0):
        assert whole == head + tail
    expected = [source for batch in whole for _, source in batch]
    seen = [row for batch in head + tail for row in batch]
    assert expected == [source for _, source in seen]
    check_own_epochs(case, np.array([row for row, _ in seen]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_workers_of_any_number_deliver_a_schedule_and_its_rest(seed):
    """Each seed has other weights, ranks, workers and a stop."""
    draw = np.random.default_rng(seed)
    weights = [1.0, *draw.choice([0.2, 1, 3.7], 2).tolist()]
    stages = [(0, weights), (int(draw.integers(20, 90)), weights[::-1])]
    case = Case([[14, 5], [9], [30, 2, 11]], stages, {}, 96)
    whole, _ = read(loaders_of(case, 1, remainder="pad"))
    head, states = [], []
    for topology in ranks(2):
        batches, state = _from_workers(case, topology, workers=1 + seed % 2, stop=2)
        head.append(batches)
        states.append(state)
    rest = []
    for topology in ranks(4):
        rest.append(_from_workers(case, topology, workers=(2, 0, 1)[seed], state=states[0])[0])

    assert states[0] == states[1]
    expected = [sorted(row for row, _ in batch) for batch in whole]
    assert expected == [
        sorted(sum(step, [])) for batches in (head, rest) for step in zip(*batches, strict=True)
    ]


def _from_workers(case, topology, *, workers, stop=None, state=None):
    """The rows of each batch of a rank, and the state after them."""
    options = StreamOptions(
        samples_per_epoch=case.epoch_rows,
        seed=3,
        batch_size=24 // topology.world_size,
        shuffle=True,
        lanes=12,
        shuffle_rows=60,
        columns=["row", "blend_source"],
    )
    dataset = StreamingDataset(
        case.index, Blocks(case.sources), options, num_workers=workers, topology=topology
    )
    if state is not None:
        dataset.load_state_dict(json.loads(state))
    batches = islice(dataset.data_loader(method="fork"), stop)
    rows = [batch["row"][batch["valid"]].tolist() for batch in batches]
    return rows, json.dumps(dataset.state_after(len(rows)))


def test_the_plan_says_the_rows_of_each_stage():
    case = Case([[30], [10, 10]], [(0, [1, 1]), (60, [3, 1])], {"b": 2}, 200)
    (loader,) = loaders_of(case, 1)
    stages = loader.plan().stages

    assert [(0, 60), (60, 100), (100, 200)] == [stage[:2] for stage in stages]
    assert [{"a": 30, "b": 30}, {"a": 30, "b": 10}, {"a": 100, "b": 0}] == [
        stage.rows for stage in stages
    ]
    assert "rows 60 to 100" in loader.plan()._repr_html_()


def test_stages_begin_at_steps_rows_and_shares_and_keep_their_rows():
    case = Case([[60], [40]], [(0, [1, 1])], {}, 1000)
    for begin in ("5 steps", "120 rows", "12%", 0.12, "0.12k rows"):
        mixture = Mixture.build("ab", schedule=[(0, [1, 0]), (begin, "uniform")])
        index = join_indexes(list(map(index_of, case.sources)), mixture)
        options = StreamOptions(batch_size=24, samples_per_epoch=1000, batch_format="numpy")
        loader = StreamLoader(index, Blocks(case.sources), options, topology=ranks(1)[0])
        state = loader.state_dict()

        assert [0, 120] == state["mixture"]["mixtures"][-1]["stages"]
        assert {"a": 120, "b": 0} == loader.plan().stages[0].rows


def test_limits_and_borders_are_those_that_were_written():
    limited = Mixture.build("ab", limits={"a": 0.7, "b": 2.3})
    assert (7, 23) == limited.most_rows([10, 10])

    near = [
        Mixture.build("ab", schedule=[(0, [1, 1]), (border, [1, 2])])
        for border in ("80.00001%", "80.00002%")
    ]
    assert near[0].description != near[1].description


def test_temperatures_are_weights_from_sizes():
    sizes = [900, 100, 1]
    for temperature, expected in (
        ("proportional", [900, 100, 1]),
        ("sqrt", [30, 10, 1]),
        (2, [30, 10, 1]),
        ("uniform", [1, 1, 1]),
    ):
        (stage,) = Mixture.build("abc", temperature=temperature).stages
        shares = np.array(stage.shares(sizes), float)
        assert shares / shares.sum() == pytest.approx(np.array(expected) / sum(expected))


@pytest.mark.parametrize(
    ("asked", "where", "remedy"),
    [
        ({"schedule": [(5, [1, 1])]}, "schedule", "a number with its unit"),
        ({"schedule": [("5 rows", [1, 1])]}, "schedule", "begin at 0"),
        ({"schedule": [(0, [1, 1]), ("9 weeks", [1, 1])]}, "schedule", "a number with its unit"),
        ({"schedule": [(0, [0, 0])]}, "schedule", "give one dataset a weight"),
        ({"schedule": [(0, {"a": 1, "c": 1})]}, "schedule", "give one of each"),
        ({"schedule": [(0, [1, -1])]}, "schedule", "give a positive number"),
        ({"schedule": []}, "schedule", "give a list of stages"),
        ({"schedule": [(0, "warm")]}, "schedule", "from 1 on, or one of"),
        ({"temperature": 0.5}, "temperature", "from 1 on, or one of"),
        ({"temperature": 2, "weights": [1, 1]}, "temperature", "give one of them"),
        ({"limits": {"c": 1}}, "limits", "by name"),
        ({"limits": {"a": 0}}, "limits", "give a positive number"),
        ({"limits": {1: 1, "z": 1}}, "limits", "by name"),
        ({"weights": {1: 1, "z": 1}}, "weights", "give one of each"),
        ({"weights": [10**400, 1]}, "weights", "give a positive number"),
        ({"temperature": 10**400}, "temperature", "from 1 on, or one of"),
    ],
)
def test_mixtures_that_are_none_are_refused(asked, where, remedy):
    with raised(SettingsError, setting=where, remedy=remedy):
        Mixture.build("ab", **asked)


def test_stages_out_of_order_and_epochs_beyond_all_limits_are_refused():
    mixture = Mixture.build("ab", schedule=[(0, [1, 1]), ("9 rows", [1, 1]), ("8%", [1, 1])])
    with raised(SettingsError, setting="schedule", value=8, remedy="in their order"):
        mixture.stage_rows(epoch_rows=100, global_batch=1)
    case = Case([[30], [10]], [(0, [1, 1])], {"a": 1, "b": 2}, 50)
    (loader,) = loaders_of(case, 1)
    loader.set_epoch(1)
    with raised(SettingsError, setting="limits", value=1, remedy="train for fewer epochs"):
        next(iter(loader))


def test_a_state_keeps_the_rows_of_its_stages_whatever_the_batch_size():
    """Eight rows a step would put the third stage before the second."""
    mixture = Mixture.build(
        "ab", schedule=[(0, [1, 1]), ("100 rows", [2, 1]), ("20 steps", [1, 3])]
    )
    index = join_indexes(list(map(index_of, [[300], [200]])), mixture)
    case = Case([[300], [200]], [(0, [1, 1])], {}, 500)
    object.__setattr__(case, "index", index)
    _, state = read(loaders_of(case, 1), 2)
    (other,) = loaders_of(case, 1, batch_size=4)

    with raised(SettingsError, setting="schedule", value=80, remedy="in their order"):
        other.plan()
    other.load_state_dict(state)
    assert [0, 100, 480] == other.state_dict()["mixture"]["mixtures"][-1]["stages"]
    assert 500 - 48 == sum(len(batch["row"]) for batch in other)


def test_a_state_from_before_the_first_step_keeps_the_rows_of_its_stages():
    mixture = Mixture.build("ab", schedule=[(0, [1, 1]), ("5 steps", [2, 1])])
    case = Case([[300], [200]], [(0, [1, 1])], {}, 500)
    object.__setattr__(case, "index", join_indexes(list(map(index_of, case.sources)), mixture))
    (first,) = loaders_of(case, 1)
    others = loaders_of(case, 5, batch_size=3)

    for other in others:
        other.load_state_dict(first.state_dict())
    assert [0, 120] == others[0].state_dict()["mixture"]["mixtures"][-1]["stages"]


def test_numbers_of_numpy_are_numbers():
    plain = Mixture.build("ab", schedule=[(0, [1, 3]), (0.5, 2)], limits={"a": 2})
    borders = [(np.int64(0), np.array([1, 3])), (np.float32(0.5), np.int64(2))]
    assert plain == Mixture.build("ab", schedule=borders, limits={"a": np.float32(2)})


def test_a_border_beyond_all_rows_and_a_limit_of_no_row_are_refused():
    mixture = Mixture.build("ab", schedule=[(0, [1, 1]), ("9999999T rows", [1, 1])])
    with raised(SettingsError, setting="schedule", remedy="leave it out"):
        mixture.stage_rows(epoch_rows=100, global_batch=1)
    with raised(SettingsError, setting="limits", value=0.01, remedy="raise it"):
        loaders_of(Case([[30], [30]], [(0, [1, 1])], {"b": 0.01}, 50), 1)


def test_the_rows_that_limits_leave_are_those_until_a_stage_has_no_source():
    case = Case([[30], [20]], [(0, [1, 1]), (70, [1, 0])], {"a": 1}, 100)
    (loader,) = loaders_of(case, 1)
    with raised(SettingsError, setting="limits", remedy="train for fewer epochs") as error:
        loader.plan()
    assert "it leaves 70 rows, which are 0 whole epochs of 100" in str(error.value)


def test_a_blend_without_rows_has_no_batches():
    for asked in ({}, {"weights": [1, 1]}, {"limits": {"a": 1}}):
        index = join_indexes([index_of([]), index_of([0])], Mixture.build("ab", **asked))
        options = StreamOptions(batch_size=4, batch_format="numpy")
        loader = StreamLoader(index, Blocks([[], [0]]), options, topology=ranks(1)[0])
        assert [] == list(loader)
        assert [] == loader.plan().stages


def test_a_limit_is_the_decimal_that_was_written_and_a_huge_one_is_none():
    mixture = Mixture.build("abc", limits={"a": 0.7, "b": 1e300, "c": 2.3})
    assert (7, None, 23) == mixture.most_rows([10, 10, 10])
