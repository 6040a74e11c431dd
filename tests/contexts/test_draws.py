import numpy as np
from context_reference import below, log_uniform
from hypothesis import given
from hypothesis import strategies as st

from headrace.draws import context_keys, draw, permuted, segment_keys

KEYS = context_keys(3, 0, np.arange(60_000))


def sigmas(counts, expected):
    """How far a chi-square of equal expectations is from its mean, in its standard deviations."""
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@given(st.integers(0, 2**63), st.integers(1, 5000))
def test_every_place_has_its_own(key, size):
    found = permuted(np.uint64(key), np.int64(size), np.arange(size))

    assert list(range(size)) == sorted(found.tolist())


def test_large_sizes_are_permuted_without_repeats():
    places = np.arange(0, 3_000_000_000, 30_000)
    found = permuted(np.uint64(7), np.int64(3_000_000_000), places)

    assert len(set(found.tolist())) == len(places)
    assert 0 <= found.min() <= found.max() < 3_000_000_000


def test_places_are_uniform_alone_and_in_pairs():
    for size in (3, 7, 30, 97):
        found = permuted(KEYS[:, None], np.int64(size), np.arange(2)[None, :])
        pairs = np.bincount(found[:, 0] * size + found[:, 1], minlength=size * size).reshape(
            size, size
        )
        apart = pairs[~np.eye(size, dtype=bool)]

        assert 0 == pairs.trace()
        assert abs(sigmas(np.bincount(found[:, 0], minlength=size), len(KEYS) / size)) < 5
        assert abs(sigmas(apart, len(KEYS) / apart.size)) < 5


def test_windows_are_log_uniform_and_keep_their_ends():
    low, high = np.full(len(KEYS), 50), np.full(len(KEYS), 800_000)
    found = log_uniform(draw(KEYS, 3), low, high)
    share = np.log(found / 50) / np.log(800_001 / 50)

    assert 50 <= found.min() < 52
    assert 790_000 < found.max() <= 800_000
    assert (
        abs(
            sigmas(
                np.histogram(share[found > 2000], 20, (0.5, 1))[0],
                (share[found > 2000] >= 0.5).sum() / 20,
            )
        )
        < 5
    )
    assert log_uniform(draw(KEYS[:9], 3), low[:9], low[:9]).tolist() == [50] * 9


def test_the_numbers_do_not_change_between_versions():
    keys = context_keys(0, 1, np.array([0, 1, 2**40]))

    assert [10, 10, 10] == [len(set(draw(key, np.arange(10)).tolist())) for key in keys]
    assert PINNED == [
        int(draw(keys, 1)[2]),
        int(segment_keys(keys, np.array([0, 1, 2]))[1]),
        *below(draw(keys, 2), 1000).tolist(),
        *permuted(keys[0], np.int64(9), np.arange(9)).tolist(),
        *log_uniform(draw(keys, 3), np.array([1, 1, 1]), np.array([10**6] * 3)).tolist(),
    ]


PINNED = [
    2250745852873607202,
    6334512783697593975,
    230,
    507,
    879,
    1,
    6,
    2,
    4,
    0,
    3,
    5,
    8,
    7,
    10,
    318912,
    6,
]
