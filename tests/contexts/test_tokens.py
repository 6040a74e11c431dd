import numpy as np
import pytest
from context_cases import measurement_of, plain_loop, row_of, segments_of
from context_reference import permuted_prefixes
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.histories.contexts import sample, vocabulary
from headrace.histories.contexts.sample import FULL, NONE, PARTIAL, find_candidates
from headrace.histories.contexts.tokens import make_tokens
from laws import examples
from raised import raised

ROOM = 1025

KINDS = st.fixed_dictionaries(
    {
        "n": st.integers(1, 400),
        "family": st.sampled_from([4, 6]),
        "peers": st.sampled_from([0, 1, 9]),
        "peer_families": st.sampled_from([(4,), (6,), (4, 6)]),
        "gap": st.sampled_from([0, 30, 240, 3000]),
        "failed": st.sampled_from([0.0, 0.1, 1.0]),
    }
)


def built(rows, modes, **settings_of):
    segments = segments_of(rows, modes, **settings_of)
    found = find_candidates(segments, dict(enumerate(rows)), ROOM)
    contexts = int(segments.context.max()) + 1
    return segments, found, make_tokens(segments, found, contexts, ROOM), contexts


@settings(max_examples=examples(25))
@given(
    st.lists(st.tuples(KINDS, st.sampled_from([FULL, PARTIAL, NONE])), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_tokens_are_what_a_plain_loop_writes(kinds, seed):
    rows = [row_of(**kind, seed=seed + number) for number, (kind, _) in enumerate(kinds)]
    modes = [mode for _, mode in kinds]

    segments, _, made, contexts = built(rows, modes, seed=seed)
    tokens, taken = plain_loop(segments, rows, ROOM, contexts)
    assert (made.tokens_BT == tokens).all()
    assert made.measurements.tolist() == [len(each) for each in taken]


def test_tokens_decode_to_the_measurements_that_were_taken():
    rows = [
        row_of(9 + 70 * number, seed=number, family=4 + 2 * (number % 2), gap=200)
        for number in range(30)
    ]
    modes = [number % 3 for number in range(30)]
    segments, found, made, contexts = built(rows, modes)
    _, taken = plain_loop(segments, rows, ROOM, contexts)

    for context, row in enumerate(rows):
        [measured] = vocabulary.decode(made.tokens_BT[context])
        assert [measurement_of(row, *each) for each in taken[context]] == measured
        index = found.index[found.offsets[context] :][: made.measurements[context]].tolist()
        assert sorted(index) == sorted(place for place, _ in taken[context])
        assert len(set(index)) == len(index)
        times = [each.time for each in measured if each.time is not None]
        assert times == sorted(times)


def test_several_segments_share_a_context_in_order():
    rows = [row_of(5, seed=number) for number in range(12)]
    segments, _, made, contexts = built(
        rows, [0, 1, 2] * 4, sampled=False, context=np.arange(12) // 4
    )
    tokens, _ = plain_loop(segments, rows, ROOM, contexts)

    assert (made.tokens_BT == tokens).all()
    assert made.measurements.tolist() == [5] * 12
    assert (made.lengths.reshape(3, 4).sum(axis=1) == (tokens > 0).sum(axis=1)).all()


@pytest.mark.parametrize("family", [4, 6])
def test_contexts_of_large_rows_are_full(family):
    rows = [row_of(5000, seed=1, family=family, peer_families=(family,))] * 200
    for mode in (FULL, PARTIAL, NONE):
        _, _, made, _ = built(rows, [mode] * len(rows))
        assert (made.tokens_BT > 0).mean() > (0.985 if family == 4 else 0.97)


def test_every_field_order_and_every_place_are_as_likely():
    rows = [row_of(5000, seed=3, failed=0.0)] * 400
    _, _, made, _ = built(rows, [PARTIAL] * len(rows), fractions=np.full(len(rows), 0.5))
    places, orders = np.zeros(80), {}
    for line in made.tokens_BT:
        [measured] = vocabulary.decode(line)
        places[: len(measured)] += [each.time is None for each in measured]
        for measurement in np.split(line, np.flatnonzero(line == vocabulary.START))[1:]:
            ids = [
                each for each in measurement.tolist() if vocabulary.START < each < vocabulary.BYTE
            ]
            roles = tuple(
                {vocabulary.TIME_LONG_DELTA: vocabulary.TIME_DELTA}.get(each, each) for each in ids
            )
            if len(roles) == 4 and vocabulary.TIME_ABSOLUTE not in roles:
                orders[roles] = orders.get(roles, 0) + 1

    assert len(orders) == 24
    assert min(orders.values()) > 0.7 * max(orders.values())
    assert 0.4 * 400 < places[:50].min() <= places[:50].max() < 0.6 * 400


def test_damaged_tokens_are_refused_with_their_place():
    _, _, made, _ = built([row_of(3)], [FULL])
    tokens = made.tokens_BT[0].copy()

    for position, value in ((0, 5), (1, 10), (2, 3)):
        wrong = tokens.copy()
        wrong[position] = value
        with raised(InputError, remedy="give complete measurements of one segment"):
            vocabulary.decode(wrong)
    with raised(InputError, row="position 4", remedy="give complete measurements"):
        vocabulary.decode(tokens[:6])


@given(
    st.lists(
        st.tuples(st.integers(0, 2**62), st.integers(1, 2**40), st.integers(0, 50)),
        min_size=1,
        max_size=9,
    )
)
def test_compiled_permutations_are_the_same(asked):
    keys = np.array([key for key, _, _ in asked], np.uint64)
    sizes = np.array([size for _, size, _ in asked])
    offsets = np.concatenate([[0], np.cumsum([min(size, count) for _, size, count in asked])])

    found = sample.permuted_prefixes(keys, sizes, np.zeros(len(keys), np.int64), offsets)
    assert permuted_prefixes(keys, sizes, offsets).tolist() == found.tolist()
