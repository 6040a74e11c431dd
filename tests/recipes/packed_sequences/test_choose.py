"""Who goes where: every file, row and bin in exactly one place, in the shares that were asked for."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace.packing.blend import SPLITS, BlendSource
from headrace.packing.choose import copies_of, ratio_counts, split_units
from headrace.packing.encode import assign_files, row_hashes
from headrace.packing.shards import even_cuts, shard_counts
from raised import raised

RATIOS = st.sampled_from(
    [(0.98, 0.01, 0.01), (0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.34, 0.33, 0.33)]
)


def sources_of(weights: list[float], **more: list[float]) -> list[BlendSource]:
    """Datasets with these weights; more: other settings, a value each."""
    settings = [
        dict(zip(more, values, strict=True)) for values in zip(*more.values(), strict=True)
    ] or [{}] * len(weights)
    return [
        BlendSource(name=f"d{place}", path=["x"], weight=weight, **own)
        for place, (weight, own) in enumerate(zip(weights, settings, strict=True))
    ]


def hashes(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return row_hashes(seed, "test", 7, np.arange(count))


@given(sizes=st.lists(st.integers(0, 10**9), min_size=1, max_size=40), shards=st.integers(1, 60))
def test_every_row_of_every_file_is_read_by_exactly_one_task(sizes: list[int], shards: int) -> None:
    names = [f"file-{place:03d}" for place in range(len(sizes))]

    tasks = assign_files(sizes, names, shards)

    assert shards == len(tasks)
    for file in range(len(sizes)):
        parts = [part for task in tasks for part in task if part.file == file]
        modulus = parts[0].modulus
        assert {modulus} == {part.modulus for part in parts}
        assert list(range(modulus)) == sorted(part.remainder for part in parts)


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=40), shards=st.integers(1, 10))
def test_loads_of_whole_files_differ_by_no_more_than_the_largest_file(
    sizes: list[int], shards: int
) -> None:
    if len(sizes) < shards:
        return
    tasks = assign_files(sizes, [f"{place:03d}" for place in range(len(sizes))], shards)
    loads = [sum(sizes[part.file] for part in task) for task in tasks]

    assert max(loads) - min(loads) <= max(sizes)


def test_files_go_largest_first_then_by_name_to_the_least_loaded_task() -> None:
    tasks = assign_files([10, 30, 20, 20], ["d", "c", "b", "a"], 2)

    # c (30) -> 0, a (20) -> 1, b (20) -> 1, d (10) -> 0
    assert [["c", "d"], ["a", "b"]] == [
        [["d", "c", "b", "a"][part.file] for part in task] for task in tasks
    ]


def test_few_large_files_get_tasks_by_size() -> None:
    tasks = assign_files([900, 100], ["big", "small"], 10)

    assert [9] * 9 + [1] == [task[0].modulus for task in tasks]


def test_the_order_in_which_files_are_found_changes_nothing() -> None:
    names, sizes = ["a", "b", "c", "d"], [5, 5, 9, 1]
    straight = assign_files(sizes, names, 3)
    turned = assign_files(sizes[::-1], names[::-1], 3)

    assert [[names[part.file] for part in task] for task in straight] == [
        [names[::-1][part.file] for part in task] for task in turned
    ]


@given(count=st.integers(3, 5000), ratios=RATIOS)
def test_splits_have_exactly_their_rounded_share_and_none_is_empty(
    count: int, ratios: tuple[float, ...]
) -> None:
    asked = dict(zip(SPLITS, ratios, strict=True))
    side, counts = split_units(*hashes(count), asked, "rows")

    assert count == sum(counts.values())
    assert [counts[split] for split in SPLITS] == np.bincount(side, minlength=3).tolist()
    for split in ("valid", "test"):
        if asked[split] == 0:
            assert counts[split] == 0
        elif count > 100:
            assert abs(counts[split] - Fraction(repr(asked[split])) * count) <= max(
                1, Fraction(1, 2)
            )
    assert all(counts[split] >= 1 for split in SPLITS if asked[split] > 0)


def test_fewer_rows_than_splits_is_an_error_that_states_the_counts() -> None:
    with raised(InputError, remedy="set the ratio of a split to 0") as caught:
        ratio_counts(2, {"train": 0.98, "valid": 0.01, "test": 0.01}, "rows of tiny")
    assert "(train 0.98, valid 0.01, test 0.01)" in str(caught.value)


@given(keys=st.lists(st.integers(0, 30), min_size=60, max_size=200))
def test_rows_of_one_key_are_never_in_two_splits(keys: list[int]) -> None:
    high, low = hashes(31)
    rows = np.array(keys)
    if len(set(keys)) < 3:
        return
    side, counts = split_units(
        high[rows], low[rows], {"train": 0.6, "valid": 0.2, "test": 0.2}, "keys"
    )

    assert len(set(keys)) == sum(counts.values())
    for key in set(keys):
        assert len(set(side[rows == key].tolist())) == 1


def test_the_order_of_rows_has_no_part_in_their_split() -> None:
    high, low = hashes(1000)
    ratios = {"train": 0.9, "valid": 0.05, "test": 0.05}
    side, _ = split_units(high, low, ratios, "rows")
    order = np.random.default_rng(0).permutation(1000)

    turned, _ = split_units(high[order], low[order], ratios, "rows")

    np.testing.assert_array_equal(side[order], turned)


@given(
    weights=st.lists(st.sampled_from([0.22, 0.5, 1.0, 3.0, 0.0]), min_size=2, max_size=5),
    seed=st.integers(0, 1000),
)
def test_token_shares_are_as_near_to_the_weights_as_whole_rows_allow(
    weights: list[float], seed: int
) -> None:
    if not any(weights):
        return
    random = np.random.default_rng(seed)
    tokens = [random.integers(1, 500, random.integers(20, 400)) for _ in weights]
    orders = [hashes(len(each), place)[0] for place, each in enumerate(tokens)]

    taken = copies_of(sources_of(weights), tokens, orders, repeats=True)

    assert all(set(each.tolist()) <= {0, 1} for each in taken)
    got = [int((each * times).sum()) for each, times in zip(tokens, taken, strict=True)]
    totals = [int(each.sum()) for each in tokens]
    assert all(taken == 0 for taken, weight in zip(got, weights, strict=True) if weight == 0)
    positive = [place for place, weight in enumerate(weights) if weight > 0]
    if len({weights[place] for place in positive}) == 1:
        assert all(got[place] == totals[place] for place in positive)
        return
    scale = min(totals[place] / weights[place] for place in positive)
    for place in positive:
        assert abs(got[place] - scale * weights[place]) <= max(1, tokens[place].max() / 2 + 1)
    assert any(got[place] == totals[place] for place in positive)


def test_a_weight_of_022_is_not_a_weight_of_1() -> None:
    tokens = [np.full(1000, 10), np.full(1000, 10)]
    orders = [hashes(1000, 0)[0], hashes(1000, 1)[0]]

    taken = copies_of(sources_of([1.0, 0.22]), tokens, orders, repeats=True)

    assert [1000, 220] == [int(times.sum()) for times in taken]


def test_weights_have_no_unit() -> None:
    tokens = [np.full(300, 7), np.full(900, 3)]
    orders = [hashes(300, 0)[0], hashes(900, 1)[0]]

    for one, other in zip(
        *(
            copies_of(sources_of(weights), tokens, orders, repeats=True)
            for weights in ([1, 3], [0.5, 1.5])
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@given(
    data=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 40)), min_size=2, max_size=5
    ),
    seed=st.integers(0, 99),
)
def test_a_dataset_may_be_repeated_to_reach_its_share(
    data: list[tuple[int, int, int]], seed: int
) -> None:
    tokens = [
        np.random.default_rng(seed + place).integers(1, 50, rows)
        for place, (_, _, rows) in enumerate(data)
    ]
    orders = [hashes(len(each), place)[0] for place, each in enumerate(tokens)]
    repeat, weights = (
        [times / 2 + 0.5 for times, _, _ in data],
        [float(weight) for _, weight, _ in data],
    )
    taken = copies_of(sources_of(weights, repeat=repeat), tokens, orders, repeats=True)

    got = [int((each * times).sum()) for each, times in zip(tokens, taken, strict=True)]
    totals = [int(each.sum()) for each in tokens]
    if len(set(weights)) == 1 and set(repeat) == {1}:
        assert got == totals
        return
    scale = min(
        total * times / weight for total, times, weight in zip(totals, repeat, weights, strict=True)
    )
    for each, own, times, weight in zip(tokens, got, taken, weights, strict=True):
        assert abs(own - scale * weight) <= max(
            1 if own > each.max() else each.max(), each.max() / 2 + 1
        )
        assert times.max() - times.min() <= 1


@given(
    epochs=st.integers(1, 40).map(lambda number: number / 8),
    rows=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_epochs_take_rows_so_often_and_only_in_train(epochs: float, rows: int, seed: int) -> None:
    tokens = [np.random.default_rng(seed).integers(1, 50, rows), np.full(5, 7)]
    orders = [hashes(len(each), place)[0] for place, each in enumerate(tokens)]
    sources = sources_of([1.0, 1.0], epochs=[epochs, 1.0])
    (taken, other), once = (
        copies_of(sources, tokens, orders, repeats=each) for each in (True, False)
    )

    assert (
        abs(int((taken * tokens[0]).sum()) - epochs * tokens[0].sum()) <= tokens[0].max() / 2 + 1
        or taken.sum() == 1
    )
    assert taken.max() - taken.min() <= 1
    assert other.tolist() == [1] * 5
    assert all(each.tolist() == [1] * len(each) for each in once)


def test_output_shards_follow_bins_and_no_split_with_bins_is_left_without() -> None:
    bins = {"train": 980, "valid": 10, "test": 10}
    tokens = {split: 4096 * count for split, count in bins.items()}

    assert {"train": 8, "valid": 1, "test": 1} == shard_counts(bins, tokens, 8)
    assert {"train": 1, "valid": 1, "test": 1} == shard_counts(bins, tokens, None)
    assert {"train": 0, "valid": 3} == shard_counts(
        {"train": 0, "valid": 3}, {"train": 0, "valid": 9}, 100
    )


@given(count=st.integers(0, 1000), shards=st.integers(1, 50))
def test_cuts_cover_all_bins_once_and_evenly(count: int, shards: int) -> None:
    cuts = even_cuts(count, shards)

    assert [place for start, stop in cuts for place in range(start, stop)] == list(range(count))
    assert (
        max(stop - start for start, stop in cuts) - min(stop - start for start, stop in cuts) <= 1
    )
