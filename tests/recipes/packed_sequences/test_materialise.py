"""Gathered rows are the bins by definition, and a reader that pairs them with their labels trains on the right tokens."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_cases import as_lists, made_spool, plain_bin, spools

from headrace.bins import Alignment
from headrace.bins.bins import Bins, costs, padded_lengths
from headrace.bins.pack import pack
from headrace.bins.rows import first_fault
from headrace.packing.storage.spool import SequenceSpool, gather, materialise_bin_arrays


@given(spools(), st.sampled_from(get_args(Alignment)), st.integers(9, 30))
def test_gathered_rows_are_the_bins_by_definition(spool, alignment, capacity):
    bins = pack(spool.lengths, capacity)
    rows = gather(spool, bins, alignment=alignment)

    assert [plain_bin(spool, bins.bin(b), alignment) for b in range(len(bins))] == as_lists(rows)
    assert first_fault(rows) is None


@given(spools(), st.sampled_from(get_args(Alignment)), st.integers(1, 30))
def test_one_bin_in_scratch_buffers_is_the_bin_by_definition(spool, alignment, pack_size):
    bins = Bins.of_lists([list(range(len(spool)))] if len(spool) else [])
    ids, mask = np.full(pack_size, 7, np.int32), np.full(pack_size, 7, np.uint8)
    for number in range(len(bins)):
        size, starts = materialise_bin_arrays(spool, bins, number, pack_size, ids, mask, alignment)

        expected = plain_bin(spool, bins.bin(number), alignment, pack_size)
        assert expected == (ids[:size].tolist(), mask[:size].tolist(), starts.tolist())
        assert not ids[size:].any()
        assert not mask[size:].any()
        assert starts.dtype == np.int32


@given(spools(), st.integers(1, 6), st.sampled_from(["stored", "runtime"]))
def test_padding_stands_behind_each_sequence_and_is_not_trained(spool, multiple, counted):
    bins = pack(costs(spool.lengths, counted, multiple), 40)
    plain = gather(spool, bins)
    padded = gather(spool, bins, pad_multiple=multiple, pad_id=-5, counted=counted)
    extra = 1 if counted == "runtime" else 0

    assert multiple == 1 or not ((padded.sequence_lengths - extra) % multiple).any()
    assert plain.ids.tolist() == padded.ids[padded.ids != -5].tolist()
    assert plain.mask.tolist() == padded.mask[padded.ids != -5].tolist()
    assert not padded.mask[padded.ids == -5].any()
    assert (
        padded_lengths(plain.sequence_lengths, multiple, counted).tolist()
        == padded.sequence_lengths.tolist()
    )
    assert first_fault(padded) is None


@given(spools(), st.integers(1, 4))
def test_no_bin_costs_a_reader_more_than_its_capacity(spool, multiple):
    runtime = pack(costs(spool.lengths, "runtime", multiple), 24)
    rows = gather(spool, runtime, pad_multiple=multiple, counted="runtime")
    kept = rows.sequence_lengths - 1

    assert all(
        kept[rows.start_offsets[b] : rows.start_offsets[b + 1]].sum() <= 24
        for b in range(len(rows))
    )


def trained_labels(ids, mask, starts):
    """What a reader trains on that drops the last token of every sequence and pairs the rest with the next token."""
    labels = []
    for begin, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        labels += [
            label
            for label, counts in zip(ids[begin + 1 : end], mask[begin : end - 1], strict=True)
            if counts
        ]
    return labels


def test_a_reader_trains_on_the_answers_and_nothing_else():
    user, answer = 0, 1
    turns = [user, user, answer, answer]
    spool = SequenceSpool.of_arrays([11, 12, 13, 14, 20, 21, 22, 23], turns * 2, [4, 4])
    bins = Bins.of_lists([[0, 1]])
    left, right = (as_lists(gather(spool, bins, alignment=each))[0] for each in get_args(Alignment))

    assert [13, 14, 22, 23] == trained_labels(*left)
    assert [21] == trained_labels(
        *right
    )  # of the user: why the old alignment is only for comparing


def test_mask_values_other_than_one_are_kept():
    spool = SequenceSpool.of_arrays([1, 2, 3], [0, 3, 2], [3])

    assert [3, 2, 0] == gather(spool, Bins.of_lists([[0]])).mask.tolist()


def test_gathering_row_groups_is_gathering_all():
    spool = made_spool(np.random.default_rng(0).integers(1, 50, 300))
    bins = pack(spool.lengths, 200)
    whole = as_lists(gather(spool, bins))

    assert whole == [
        each for at in range(0, len(bins), 7) for each in as_lists(gather(spool, bins[at : at + 7]))
    ]


def test_an_unknown_alignment_is_refused():
    with pytest.raises(ValueError, match="choose one of shift_left, legacy_roll_right"):
        gather(made_spool([3]), Bins.of_lists([[0]]), alignment="left")


def test_a_bin_of_sequences_that_are_not_there_is_an_index_error():
    with pytest.raises(IndexError, match="no sequence 5; there are 1"):
        gather(made_spool([3]), Bins.of_lists([[5]]))
