"""Packed rows: views, and the faults that no reader should meet."""

import numpy as np
import pytest

from headrace.bins.rows import PackedRows, first_fault


def rows_of(*bins):
    """Rows of (number of tokens, starts) pairs."""
    sizes = [size for size, _ in bins]
    starts = [starts for _, starts in bins]
    return PackedRows(
        np.arange(sum(sizes), dtype=np.int32),
        np.ones(sum(sizes), np.uint8),
        np.array([start for each in starts for start in each], np.int32),
        np.array([0, *np.cumsum(sizes)]),
        np.array([0, *np.cumsum([len(each) for each in starts])]),
    )


SOUND = rows_of((5, [0, 2]), (1, [0]), (6, [0, 1, 5]))


def as_lists(rows):
    return [tuple(part.tolist() for part in rows.bin(number)) for number in range(len(rows))]


def test_slices_and_concatenation_keep_the_bins():
    parts = [SOUND[:1], SOUND[1:1], SOUND[1:]]

    assert as_lists(SOUND) == [each for part in parts for each in as_lists(part)]
    assert as_lists(SOUND) == as_lists(PackedRows.concatenate(parts))
    assert len(PackedRows.concatenate([])) == 0


def test_sequences_know_where_they_begin_and_how_long_they_are():
    assert [0, 2, 5, 6, 7, 11] == SOUND.sequence_starts.tolist()
    assert [2, 3, 1, 1, 4, 1] == SOUND.sequence_lengths.tolist()


def test_a_bin_is_a_view():
    assert all(np.shares_memory(part, SOUND.ids) for part in SOUND.bin(1)[:1])


@pytest.mark.parametrize("number", [-1, 3])
def test_a_bin_that_is_not_there_is_an_index_error(number):
    with pytest.raises(IndexError, match=f"no bin {number}; there are 3"):
        SOUND.bin(number)


def test_sound_rows_have_no_fault():
    assert first_fault(SOUND) is None
    assert first_fault(SOUND[:0]) is None


@pytest.mark.parametrize(
    "bad",
    [(0, []), (3, []), (0, [0]), (3, [1]), (3, [0, 0]), (3, [0, 2, 1]), (2, [0, 1, 2]), (3, [0, 3]), (3, [0, -1]), (3, [-1, 1])],
)  # fmt: skip
def test_each_fault_is_found_and_its_bin_named(bad):
    number, problem = first_fault(rows_of((5, [0, 2]), bad, (0, [])))

    assert number == 1
    assert f"{bad[0]} tokens" in problem
