"""Blends that are changed on purpose: every dataset goes on where it was, and the run goes on as one."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_cases import index_of, ranks
from test_schedule import read

import headrace
from headrace.errors import SettingsError, StreamError
from headrace.stream.loader.blend import join_indexes
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order import layout
from headrace.stream.order.mixture import Mixture
from laws import examples
from raised import raised

SIZES = {"a": [9, 31], "b": [14, 14, 14], "c": [7], "d": [20, 5, 3]}
FIRSTS = {"a": 0, "b": 100, "c": 200, "d": 300}
EPOCH_ROWS = 72


@pytest.fixture(autouse=True, scope="module")
def some_sources_are_small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SMALL_SOURCE_ROWS", 10)
        yield


class Blocks:
    """Blocks of named sources, end to end; a row has the same number in any blend."""

    def __init__(self, names):
        self.blocks = []
        for source, name in enumerate(names):
            first = FIRSTS[name]
            for rows in SIZES[name]:
                self.blocks.append((source, first, rows))
                first += rows

    def __call__(self, block, columns):
        source, first, rows = self.blocks[block]
        values = {
            "row": np.arange(first, first + rows),
            "text": [str(number) for number in range(first, first + rows)],
            "blend_source": np.full(rows, source),
        }
        table = pa.table(values)
        return table if columns is None else table.select(columns)


def loaders_of(weights, world_size, *, sizes=SIZES, **options):
    mixture = Mixture.build(tuple(weights), weights=weights)
    index = join_indexes([index_of(sizes[name]) for name in weights], mixture)
    given = {
        "batch_size": 12 // world_size,
        "shuffle": True,
        "lanes": 12,
        "shuffle_rows": 48,
        "samples_per_epoch": EPOCH_ROWS,
        "remainder": "pad",
    }
    stream = StreamOptions(seed=3, batch_format="numpy", **{**given, **options})
    return [
        StreamLoader(index, Blocks(weights), stream, topology=topology)
        for topology in ranks(world_size)
    ]


def loaded(loaders, state, **changed):
    for loader in loaders:
        loader.load_state_dict(state, **changed)
    return loaders


def rows_of(batches):
    return [row for batch in batches for row, _ in batch]


def check_own_epochs(rows):
    """As many consecutive rows as a source has are every row once, through all changes."""
    for name, first in FIRSTS.items():
        size = sum(SIZES[name])
        mine = [row for row in rows if first <= row < first + size]
        for begin in range(0, len(mine), size):
            own = mine[begin : begin + size]
            assert len(set(own)) == len(own)


def read_epochs(loaders, epochs):
    """The batches of whole epochs, the rest of the present one first, and the state after them."""
    batches = []
    state = None
    for _ in range(epochs):
        more, state = read(loaders)
        batches += more
    return batches, state


blends = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: st.sampled_from([0.2, 1, 1, 3.7]) for name in names})
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(blends, min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6)), min_size=3, max_size=3),
    st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=4, max_size=4),
    st.booleans(),
)
def test_rows_come_once_through_any_changes_and_a_resume_goes_on(mixtures, stops, sizes, shuffle):
    rows = []
    state = None
    for weights, world_size, (epochs, stop) in zip(mixtures[:-1], sizes, stops, strict=False):
        loaders = loaders_of(weights, world_size, shuffle=shuffle)
        if state is not None:
            loaded(loaders, state, changed="datasets")
        batches, _ = read_epochs(loaders, epochs)
        rows += rows_of(batches)
        batches, state = read(loaders, stop)
        rows += rows_of(batches)
    weights = mixtures[-1]
    loaders = loaders_of(weights, sizes[-1], shuffle=shuffle)
    loaded(loaders, state, changed="datasets")
    first = json.loads(json.dumps(loaders[0].state_dict()))
    whole, _ = read_epochs(loaders, 2)
    rows += rows_of(whole)
    check_own_epochs(rows)
    last = rows_of(whole)
    for name, weight in weights.items():
        share = weight / sum(weights.values()) * len(last)
        mine = [row for row in last if FIRSTS[name] <= row < FIRSTS[name] + sum(SIZES[name])]
        assert abs(len(mine) - share) < 8

    # Whoever goes on from the changed state has the same batches.
    others = loaded(loaders_of(weights, 1, batch_size=12, shuffle=shuffle), first)
    head, saved = read(others, stops[0][1])
    assert head == whole[: len(head)]
    rest = loaded(loaders_of(weights, sizes[-1], shuffle=shuffle), saved)
    tail, _ = read_epochs(rest, 2)
    if shuffle and saved["mixture"]["legs"] == first["mixture"]["legs"]:
        joined = [row for batch in head + tail for row in batch]
        expected = [row for batch in whole for row in batch]
        assert joined[: len(expected)] == expected[: len(joined)]
    check_own_epochs(rows[: -len(last)] + rows_of(head) + rows_of(tail))


def test_weights_may_change_alone_and_anything_else_is_refused():
    old = {"a": 1, "b": 1}
    _, state = read(loaders_of(old, 1), 2)
    (other,) = loaders_of({"a": 1, "b": 3}, 1)
    with raised(StreamError, setting="blend", remedy='changed="weights"'):
        other.load_state_dict(state)
    other.load_state_dict(state, changed="weights")
    (other,) = loaders_of({"a": 1, "c": 3}, 1)
    with raised(StreamError, setting="changed", value="b", remedy='changed="datasets"'):
        other.load_state_dict(state, changed="weights")
    (other,) = loaders_of(old, 1, samples_per_epoch=80)
    with raised(StreamError, setting="samples_per_epoch", value=80, remedy="72"):
        other.load_state_dict(state, changed="weights")
    (other,) = loaders_of(old, 1, sizes={**SIZES, "b": [14, 14, 13]})
    with raised(StreamError, setting="datasets", value="b", remedy="another name"):
        other.load_state_dict(state, changed="datasets")
    with raised(SettingsError, setting="changed", value="seed", remedy='"weights"'):
        other.load_state_dict(state, changed="seed")
    (other,) = loaders_of(old, 1, shuffle=False)
    with raised(StreamError, remedy="pass the saved setting"):
        other.load_state_dict(state, changed="weights")


def test_an_epoch_before_the_change_is_refused():
    (loader,) = loaders_of({"a": 1, "b": 1}, 1)
    _, state = read_epochs([loader], 2)
    (other,) = loaders_of({"a": 1, "b": 3}, 1)
    other.load_state_dict(state, changed="weights")
    with raised(StreamError, setting="epoch", value=0, remedy="as it was before"):
        other.set_epoch(0)
        next(iter(other))


def test_an_epoch_that_changed_is_read_again_as_it_was():
    weights = {"a": 1, "b": 1}
    batches, state = read(loaders_of(weights, 1), 2)
    others = loaded(loaders_of({"a": 1, "b": 3}, 1), state, changed="weights")
    more, _ = read(others)
    start = others[0].epoch_start()
    for world_size in (1, 5):
        size = {"batch_size": 12 if world_size == 1 else 3}
        again, _ = read(loaded(loaders_of({"a": 1, "b": 3}, world_size, **size), start))
        assert rows_of(again) == rows_of(batches + more)


def test_the_plan_after_a_change_has_the_new_shares():
    _, state = read(loaders_of({"a": 1, "b": 1}, 1), 2)
    (other,) = loaders_of({"c": 3, "a": 1}, 1)
    other.load_state_dict(state, changed="datasets")

    before, after = other.plan().stages
    assert (before.begin, before.end, set(before.rows)) == (0, 24, {"a", "b", "c"})
    assert (after.begin, after.end, after.rows) == (24, 72, {"a": 12, "c": 36})
    read([other])
    other.set_epoch(1)
    assert [{"a": 18, "c": 54}] == [stage.rows for stage in other.plan().stages]


def test_what_did_not_change_goes_on_as_if_nobody_had_asked():
    weights = {"a": 1, "b": 2}
    _, state = read(loaders_of(weights, 1), 2)
    for changed in ("weights", "datasets"):
        (plain,) = loaded(loaders_of(weights, 1), state)
        (other,) = loaded(loaders_of(weights, 1), state, changed=changed)
        assert plain.state_dict() == other.state_dict()
        assert read([plain])[0] == read([other])[0]


BINNED = [
    {"batch_tokens": 60, "lists": "padded", "batch_size": 60},
    {"pack": headrace.PackRows(capacity=30, buffer_rows=16), "batch_size": 1, "columns": ["input_ids"]},
]  # fmt: skip


@pytest.fixture(scope="module")
def token_rows(tmp_path_factory):
    """Datasets of lists; the values of a row are its number."""
    root = tmp_path_factory.mktemp("remixed")
    opened = {}
    for number, (name, rows) in enumerate({"a": 90, "b": 64, "c": 30}.items()):
        lengths = np.random.default_rng(number).integers(1, 12, rows)
        ids = [[1000 * number + row] * length for row, length in enumerate(lengths.tolist())]
        table = pa.table({"input_ids": pa.array(ids, pa.list_(pa.int32()))})
        table = table.append_column("row", [[row[0] for row in ids]])
        pq.write_table(table, root / f"{name}.parquet", row_group_size=15)
        opened[name] = headrace.open(root / f"{name}.parquet", cache_dir=root / "cache")
    return opened


def binned(token_rows, weights, world_size, options, schedule=None):
    blend = headrace.blend(
        {name: token_rows[name] for name in weights},
        **({"weights": weights} if schedule is None else {"schedule": schedule}),
    )
    given = {"shuffle": True, "seed": 3, "batch_format": "numpy", "samples_per_epoch": 120}
    return [
        blend.stream(topology=topology, **{**given, **options}) for topology in ranks(world_size)
    ]


def rows_of_binned(loaders, stop=None):
    """The rows of each step, and the state after them; a rank's part is of any number of rows."""
    passes = [iter(loader) for loader in loaders]
    steps = []
    while stop is None or len(steps) < stop:
        batches = [next(each, None) for each in passes]
        assert len({batch is None for batch in batches}) == 1
        if batches[0] is None:
            break
        steps.append([rows for batch in batches for rows in real_rows(batch)])
    states = [json.dumps(loader.state_dict()) for loader in loaders]
    assert 1 == len(set(states))
    return steps, json.loads(states[0])


def real_rows(batch):
    if "cu_seqlens" not in batch:
        return batch["row"][batch["valid"]].tolist()
    starts = batch["cu_seqlens"][:-1]
    return batch["input_ids"].ravel()[starts][batch["blend_source"] >= 0].tolist()


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(BINNED),
    st.tuples(*[st.sampled_from([1, 2, 3])] * 3),
    st.tuples(*[st.integers(0, 9)] * 2),
    st.sampled_from([{"a": 1, "b": 4}, {"b": 1, "a": 1, "c": 2}]),
)
def test_bins_of_a_changed_blend_hold_each_row_once_in_its_turn(
    token_rows, options, sizes, stops, weights
):
    changed = "weights" if len(weights) == 2 else "datasets"
    head, state = rows_of_binned(binned(token_rows, {"a": 2, "b": 1}, sizes[0], options), stops[0])
    loaders = loaded(binned(token_rows, weights, sizes[1], options), state, changed=changed)
    first = json.loads(json.dumps(loaders[0].state_dict()))
    more, state = rows_of_binned(loaders, stops[1])
    again, _ = rows_of_binned(loaded(binned(token_rows, weights, sizes[1], options), first))
    last = loaded(binned(token_rows, weights, sizes[2], options), state)
    rest, _ = rows_of_binned(last)
    following, _ = rows_of_binned(last)

    assert again[: len(more)] == more
    if sizes[2] == sizes[1]:
        assert again == more + rest
    rows = np.array([row for step in head + more + rest for row in step])
    assert 120 == len(rows)
    later = np.array([row for step in following for row in step])
    for run in (rows, np.concatenate([rows, later])):
        for number, size in enumerate((90, 64, 30)):
            counts = np.bincount(run[run // 1000 == number] - 1000 * number, minlength=size)
            assert np.ptp(counts) <= 1  # whole own epochs, and a part of the next
    for number, name in enumerate("abc"):
        share = 120 * weights.get(name, 0) / sum(weights.values())
        assert abs(np.count_nonzero(later // 1000 == number) - share) < 8


@pytest.mark.parametrize("options", BINNED, ids=["batch_tokens", "pack"])
def test_bins_of_a_blend_that_did_not_change_go_on_and_a_dataset_may_not_leave(token_rows, options):
    weights = {"a": 2, "b": 1}
    whole, _ = rows_of_binned(binned(token_rows, weights, 1, options))
    head, state = rows_of_binned(binned(token_rows, weights, 1, options), 3)
    same = loaded(binned(token_rows, weights, 1, options), state, changed="weights")
    assert whole == head + rows_of_binned(same)[0]

    (other,) = binned(token_rows, {"a": 1}, 1, options)
    with raised(StreamError, setting="datasets", value="b", remedy="schedule"):
        other.load_state_dict(state, changed="datasets")
    (other,) = binned(token_rows, weights, 1, options, schedule=[(0, {"a": 1})])
    other.load_state_dict(state, changed="weights")
    rest, _ = rows_of_binned([other])
    assert 120 == sum(map(len, head + rest))
    assert {0} == {row // 1000 for row in rows_of_binned([other])[0][0]}
