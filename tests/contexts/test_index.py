"""Which contexts an epoch has: exactly once for small rows, K for large ones, the same number in every epoch."""

import pickle
from collections import Counter

import numpy as np
import pytest
from context_cases import Memory, measurement_of, row_of
from context_reference import log_uniform, numbered
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import draws
from headrace.errors import CorruptShard, SettingsError
from headrace.histories.contexts import vocabulary
from headrace.histories.contexts.contexts import build
from headrace.histories.contexts.index import Requested, index_rows
from headrace.histories.contexts.options import ContextOptions
from headrace.histories.contexts.sample import (
    FULL,
    NONE,
    PARTIAL,
    ContextSegments,
    draw_indices,
    find_candidates,
)
from headrace.histories.contexts.tokens import to_arrays
from laws import examples
from raised import raised

PROBES = Memory(
    [row_of(3 + number % 40, seed=number, gap=700 if number % 2 else 100) for number in range(600)]
)
MIXED = Memory(
    [*PROBES.rows[:300], *(row_of(200 * number, seed=number) for number in range(1, 12))]
)


def epoch_of(store, epoch, **options):
    options = ContextOptions(**options)
    index = index_rows(store, options)
    return index, build(index, store, np.arange(len(index)) + epoch * len(index))


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(
    st.lists(
        st.tuples(
            st.integers(1, 120), st.sampled_from([4, 6]), st.sampled_from([0, 30, 300, 4000])
        ),
        max_size=20,
    ),
    st.integers(0, 20),
    st.sampled_from([None, 1, 3]),
)
def test_small_rows_give_every_measurement_once_an_epoch(kinds, epoch, max_segments):
    rows = Memory(
        [
            row_of(n, seed=k, family=f, gap=g, peer_families=(4, 6))
            for k, (n, f, g) in enumerate(kinds)
        ]
    )
    index, built = epoch_of(rows, epoch, max_segments=max_segments, seed=epoch)
    delivered = Counter()
    for context in range(len(index)):
        mine = np.flatnonzero(built.segments.context == context)
        assert max_segments is None or len(mine) <= max_segments
        segment, _ = numbered(built.tokens, built.segments)
        for row, measured in zip(
            built.segments.row[mine],
            vocabulary.decode(built.tokens.tokens_BT[context], segment[context]),
            strict=True,
        ):
            delivered.update((int(row), each._replace(time=None)) for each in measured)
    expected = Counter(
        (int(row), measurement_of(rows.rows[row], place, False))
        for row in index.small_rows
        for place in range(rows.rows[row].n)
    )
    large = set(index.large_rows.tolist())

    assert expected == Counter(
        {key: count for key, count in delivered.items() if key[0] not in large}
    )


def test_large_rows_have_the_contexts_that_the_options_say():
    for options, expected in (
        ({}, lambda n: min(-(-n // 30), 16)),
        ({"contexts_per_row": 3}, lambda n: min(-(-n // 30), 3)),
        ({"rows": "measurements"}, lambda n: -(-n // 30)),
        ({"rows": "measurements", "measurements_per_context": 70}, lambda n: -(-n // 70)),
    ):
        index, built = epoch_of(MIXED, 0, **options)
        times = Counter(built.segments.row[built.segments.sampled].tolist())

        assert times == {row: expected(MIXED.rows[row].n) for row in range(300, 311)}
        ids = np.arange(index.small_contexts, len(index))
        rows = index.segments(Requested(np.zeros_like(ids), ids)).row
        assert rows.tolist() == [row for row in range(300, 311) for _ in range(times[row])]


@pytest.mark.parametrize("shuffle", ["contexts", "rows", "none"])
def test_an_order_has_every_context_once_in_each_epoch(shuffle):
    index = index_rows(MIXED, ContextOptions(shuffle=shuffle))
    requested = index.at(np.arange(3 * len(index)))
    epochs, ids = requested.epochs, requested.ids

    assert epochs.tolist() == np.repeat([0, 1, 2], len(index)).tolist()
    for epoch in ids.reshape(3, -1):
        assert list(range(len(index))) == sorted(epoch.tolist())
    assert (ids[: len(index)] == ids[len(index) : 2 * len(index)]).all() == (shuffle == "none")
    if shuffle == "rows":
        large = ids[: len(index)][ids[: len(index)] >= index.small_contexts]
        rows = index.segments(Requested(np.zeros_like(large), large)).row
        assert (np.diff(rows) != 0).sum() == len(index.large_rows) - 1


def test_every_epoch_has_as_many_contexts_and_a_row_sees_every_mode():
    index = index_rows(PROBES, ContextOptions())
    seen = {row: Counter() for row in range(600)}
    shares = []
    for epoch in range(10):
        segments = build(index, PROBES, np.arange(len(index)) + epoch * len(index)).segments
        assert set(segments.context.tolist()) == set(range(len(index)))
        for row, mode in {
            (int(row), int(mode)) for row, mode in zip(segments.row, segments.mode, strict=True)
        }:
            seen[row][mode] += 1
        shares.append(np.bincount(segments.mode, minlength=3) / len(segments.mode))

    assert all(each == {FULL: 4, PARTIAL: 3, NONE: 3} for each in seen.values())
    assert np.abs(np.array(shares) - [0.4, 0.3, 0.3]).max() < 0.06


@pytest.mark.slow
def test_contexts_depend_on_seed_epoch_and_number_alone():
    index, built = epoch_of(MIXED, 3, seed=5)
    total = len(index)
    apart = pickle.loads(pickle.dumps(index_rows(MIXED, ContextOptions(seed=5))))
    order = np.random.default_rng(0).permutation(total)
    for part in np.array_split(order, 7):
        alone = build(apart, MIXED, part + 3 * total)
        assert (alone.tokens.tokens_BT == built.tokens.tokens_BT[part]).all()
    other = build(
        index_rows(MIXED, ContextOptions(seed=6)), MIXED, np.arange(total)
    ).tokens.tokens_BT

    assert (other != built.tokens.tokens_BT).any(axis=1).mean() > 0.95


@pytest.mark.parametrize("large", [0, 20])
def test_less_than_a_twentieth_is_padding(large):
    rows = [
        row_of(3 + number % 40, seed=number, gap=700 if number % 2 else 100)
        for number in range(1500)
    ]
    _, built = epoch_of(
        Memory([*rows, *(row_of(150 * number, seed=number) for number in range(1, large))]), 0
    )

    assert (built.tokens.tokens_BT[:, :-1] == 0).mean() < 0.05


def test_modes_windows_and_offsets_of_large_rows_are_spread():
    rows = Memory([row_of(20_000, seed=1)])
    _, built = epoch_of(rows, 0, rows="measurements")
    modes = np.bincount(built.segments.mode, minlength=3) / len(built.segments.mode)
    found = find_candidates(built.segments, {0: rows.rows[0]}, 1025)
    spans = np.array(
        [
            np.ptp(found.index[a:b]) + 1
            for a, b in zip(found.offsets, found.offsets[1:], strict=False)
        ]
    )

    assert np.abs(modes - [0.4, 0.3, 0.3]).max() < 0.06
    assert spans.min() < 200
    assert spans.max() > 15_000
    assert 0.4 < (np.log(spans / 80) / np.log(20_000 / 80)).mean() < 0.6


@pytest.mark.slow
@pytest.mark.parametrize(("start", "n", "fills"), [(0, 400, 20), (7, 60, 59), (3, 31, 31)])
def test_the_offset_of_a_window_is_uniform_over_all_that_keep_it_in_the_row(start, n, fills):
    keys = draws.context_keys(3, 0, np.arange(20_000))
    window = log_uniform(
        draws.draw(keys, draws.WINDOW), np.full(len(keys), fills), np.full(len(keys), n)
    )
    nothing = np.zeros(len(keys), np.int64)
    columns = (
        nothing,
        nothing,
        nothing + start,
        nothing + n,
        nothing == 0,
        nothing.astype(np.uint8),
    )
    segments = ContextSegments(*columns, nothing.astype(np.uint64), keys)
    offsets = np.concatenate([[0], np.cumsum(window)])  # every place of every window
    index = draw_indices(segments, nothing + fills, offsets)
    begin, end = np.minimum.reduceat(index, offsets[:-1]), np.maximum.reduceat(index, offsets[:-1])
    slack = n - window

    assert (end - begin + 1 == window).all()
    assert begin.min() >= start
    assert end.max() < start + n
    at = (begin - start + 0.5) / (slack + 1)
    free = slack >= 20
    if free.any():
        deciles = np.histogram(at[free], 10, (0, 1))[0] / free.sum()
        assert np.abs(deciles - 0.1).max() < 0.015
    for few in range(1, min(20, n - fills + 1)):
        counts = np.bincount(begin[slack == few] - start, minlength=few + 1)
        assert len(counts) == few + 1
        assert np.abs(counts - counts.mean()).max() < 6 * np.sqrt(counts.mean()) + 1


def test_a_row_that_changed_is_not_delivered_cut():
    index = index_rows(PROBES, ContextOptions())
    longer = Memory([row_of(row.n, seed=9, family=6) for row in PROBES.rows])

    with raised(CorruptShard, remedy="open the run again"):
        build(index, longer, np.arange(len(index)))


@pytest.mark.slow
def test_targets_are_the_next_token_of_the_same_segment():
    index, built = epoch_of(MIXED, 0)
    batch = to_arrays(built.tokens, built.segments, "maxtext")
    four = to_arrays(built.tokens, built.segments, "four")
    drawn = built.tokens.tokens_BT
    segment, _ = numbered(built.tokens, built.segments)

    assert all(
        each.dtype == np.int32 and each.shape == (len(index), 1024)
        for each in [*batch.values(), *four.values()]
    )
    assert (batch["inputs"] == drawn[:, :1024]).all()
    for b in range(0, len(index), 5):
        for t in range(1024):
            same = segment[b, t] > 0 and segment[b, t] == segment[b, t + 1]
            assert batch["targets"][b, t] == (drawn[b, t + 1] if same else 0)
            assert batch["targets_segmentation"][b, t] == (segment[b, t] if same else 0)
            assert batch["inputs_position"][b, t] == (
                t > 0 and segment[b, t] > 0 and segment[b, t] == segment[b, t - 1]
            ) * (batch["inputs_position"][b, t - 1] + 1)
    assert (batch["targets_position"] == batch["inputs_position"]).all()
    assert (four["inputs"] == batch["inputs"]).all()
    assert (four["segmentation"] == batch["inputs_segmentation"]).all()
    assert (four["positions"] == batch["inputs_position"]).all()
    assert ((four["targets"] != 0) == (batch["targets_segmentation"] > 0)).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"context_tokens": 10},
        {"rows": "all"},
        {"seed": 1.5},
        {"max_segments": 0},
        {"shuffle": True},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        ContextOptions(**wrong)
