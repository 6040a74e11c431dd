"""Near duplicates are the pairs that plain sets of shingles say, found as often as the formula says, in bounded work."""

from __future__ import annotations

import random
import re
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.arrays import components
from headrace.near.shingles import (
    HASHES,
    LEADERS,
    LEAST_RECALL,
    MOST_BANDS,
    NEXT,
    TOKENS,
    WORDS,
    Bands,
    Crowds,
    Shingles,
    distinct,
    documents_of,
    first_copies,
    jaccard,
    pair_words,
    propose,
    shingles_of_texts,
    shingles_of_tokens,
    sign,
    take_sequences,
)
from laws import examples


def plain_set(words: list[object], size: int) -> set[tuple[object, ...]]:
    """The shingles of a document, by definition."""
    return (
        {tuple(words[at : at + size]) for at in range(max(1, len(words) - size + 1))}
        if words
        else set()
    )


def plain_jaccard(a: set[object], b: set[object]) -> float:
    return len(a & b) / len(a | b) if a | b else 0.0


def lists(shingles: Shingles) -> pl.Series:
    return pl.Series(pl.from_arrow(shingles.lists()))


def of_texts(texts: list[str]) -> Shingles:
    return shingles_of_texts(pl.Series("t", texts, pl.String), np.arange(len(texts)), len(texts))


WORD = st.sampled_from(
    ["a", "b", "Ä", "éa", "13", "longer_than_eight_bytes", "中", "文字", "ไทย", ",", "!", " "]
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(WORD, max_size=12).map(" ".join), min_size=1, max_size=8))
def test_the_jaccard_index_of_texts_is_that_of_their_sets_of_words_in_a_row(
    texts: list[str],
) -> None:
    words = [re.findall(r"[中文字ไท]|[ย]|[^\W_中文字ไทย]+", text.lower()) for text in texts]
    sets = [plain_set(each, WORDS) for each in words]
    pairs = np.array(list(combinations(range(len(texts)), 2)) or [(0, 0)])
    found = jaccard(lists(of_texts(texts)), pairs[:, 0], pairs[:, 1])

    assert [plain_jaccard(sets[a], sets[b]) for a, b in pairs.tolist()] == found.tolist()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=6), st.data())
def test_the_jaccard_index_of_sequences_is_that_of_their_sets_of_tokens_in_a_row(
    sequences: list[list[int]], data: st.DataObject
) -> None:
    tokens = np.array([token for each in sequences for token in each], np.int32)
    lengths = np.array([len(each) for each in sequences])
    wanted = np.array(
        sorted(data.draw(st.sets(st.sampled_from(range(len(sequences))), min_size=1)))
    )
    found = lists(shingles_of_tokens(*take_sequences(tokens, lengths, wanted)))
    a, b = (each.ravel() for each in np.meshgrid(*[np.arange(len(wanted))] * 2))
    sets = [plain_set(sequences[number], TOKENS) for number in wanted.tolist()]

    expected = [plain_jaccard(sets[one], sets[other]) for one, other in zip(a, b, strict=True)]
    assert expected == jaccard(found, a, b).tolist()


def test_a_document_is_all_its_texts_in_their_order() -> None:
    texts = pl.Series("t", ["One two", "alone", None, "THREE, four", "", "five."])
    joined = shingles_of_texts(texts, np.array([0, 2, 1, 0, 1, 0]), 4)
    plain = of_texts(["one two three four five", "", "alone", ""])

    assert plain.offsets.tolist() == joined.offsets.tolist() == [0, 3, 3, 4, 4]
    assert plain.hashes.tolist() == joined.hashes.tolist()


def test_hashes_of_words_are_the_same_on_every_machine() -> None:
    assert of_texts(["to be or not", "be"]).hashes.tolist() == [
        4672697800586698194,
        13479966010218376118,
        12825857875676878985,
    ]


@pytest.mark.parametrize("near", [0.5, 0.6, 0.75, 0.8, 0.9, 0.97, 1.0])
def test_the_bands_of_a_threshold_reach_the_recall_in_little_state(near: float) -> None:
    bands = Bands.of(near)

    assert bands.recall(near) >= LEAST_RECALL >= 0.99
    assert bands.bands * bands.rows <= HASHES
    assert 4 * MOST_BANDS + 8 + 8 + 8 <= 200
    assert 1 - (1 - 0.8**6) ** 20 == Bands(20, 6).recall(0.8)


def test_pairs_at_the_threshold_share_a_band_as_often_as_the_formula_says() -> None:
    random_ = np.random.default_rng(1)
    bands, pairs, size = Bands.of(0.8), 3000, 90
    for jaccard_index in (0.5, 0.8):
        shared = round(size * 2 * jaccard_index / (1 + jaccard_index))
        sets = random_.integers(0, 1 << 63, (pairs, 2, size)).astype(np.uint64)
        sets[:, 1, :shared] = sets[:, 0, :shared]
        made = sign(Shingles(sets.ravel(), np.arange(0, 2 * pairs * size + 1, size)), bands).bands
        found = (made[:, ::2] == made[:, 1::2]).any(axis=0).mean()
        expected = bands.recall(shared / (2 * size - shared))

        assert abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / pairs) + 1e-3


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), max_size=9), min_size=1, max_size=9), st.randoms())
def test_a_signature_is_of_the_set_and_its_document_alone(
    sets: list[list[int]], order: random.Random
) -> None:
    bands = Bands.of(0.8)

    def signed(documents: list[list[int]]) -> list[tuple[int, list[int]]]:
        offsets = np.cumsum([0, *map(len, documents)])
        made = sign(
            Shingles(np.array([each for one in documents for each in one], np.uint64), offsets),
            bands,
        )
        return list(zip(made.digest.tolist(), made.bands.T.tolist(), strict=True))

    together = signed(sets)
    shuffled = [order.sample(each, len(each)) for each in sets]
    assert together == signed(shuffled) == [signed([each])[0] for each in sets]
    assert [not each for each in sets] == [digest == 0 for digest, _ in together]


def test_long_documents_are_signed_as_short_ones_are() -> None:
    hashes = np.random.default_rng(2).integers(0, 1 << 63, 100_000).astype(np.uint64)
    both = sign(Shingles(hashes, np.array([0, 10, 90_010, 100_000])), Bands.of(0.9))
    alone = sign(Shingles(hashes[10:90_010], np.array([0, 90_000])), Bands.of(0.9))

    assert both.bands[:, 1].tolist() == alone.bands[:, 0].tolist()
    assert both.digest[1] == alone.digest[0]


def test_copies_are_those_of_one_digest_and_empty_documents_are_of_none() -> None:
    assert [0, 1, -1, 0, -1, 1] == first_copies(np.array([7, 3, 0, 7, 0, 3], np.uint64)).tolist()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 1000))
def test_all_pairs_that_share_a_band_are_proposed_where_they_are_few(
    band: list[int], skipped: int
) -> None:
    documents = np.cumsum(np.arange(len(band)) * skipped % 7 + 1)
    pairs, crowds = propose(documents, np.array(band, np.uint32), np.zeros(len(band), np.uint32))
    expected = {
        (documents[a], documents[b])
        for a, b in combinations(range(len(band)), 2)
        if band[a] == band[b]
    }

    assert sorted(expected) == list(zip(*documents_of(pairs), strict=True))
    assert len(crowds.document) == 0


def test_a_crowd_gives_few_pairs_a_document_and_is_told() -> None:
    count = 20_000
    band = np.zeros(count, np.uint32)
    band[-3:] = 1
    following = np.random.default_rng(3).integers(0, 50, count).astype(np.uint32)
    pairs, crowds = propose(np.arange(count), band, following)
    first, second = documents_of(pairs)

    assert len(pairs) <= (NEXT + LEADERS) * count
    assert {(count - 3, count - 2), (count - 3, count - 1), (count - 2, count - 1)} <= set(
        zip(first.tolist(), second.tolist(), strict=True)
    )
    assert sorted(crowds.document.tolist()) == list(range(count - 3))
    assert components(count, first, second).tolist() == [0] * (count - 3) + [count - 3] * 3
    joined = Crowds.joined([crowds, Crowds(np.empty(0, np.int64), np.empty(0, np.int64)), crowds])
    assert joined.pairs_across(np.zeros(count, np.int64)) == 0
    assert joined.pairs_across(np.arange(count) % 2) == 2 * 9998 * 9999


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=40))
def test_components_are_those_of_merging_one_pair_at_a_time(
    count: int, pairs: list[tuple[int, int]]
) -> None:
    pairs = [(a % count, b % count) for a, b in pairs]
    group = list(range(count))
    for a, b in pairs:
        low, high = sorted((group[a], group[b]))
        group = [low if each == high else each for each in group]
    first, second = (np.array([pair[half] for pair in pairs], np.int64) for half in (0, 1))

    assert group == components(count, first, second).tolist()


@given(st.lists(st.integers(0, 9)))
def test_distinct_words_are_a_sorted_set(words: list[int]) -> None:
    assert sorted(set(words)) == distinct(np.array(words, np.uint64)).tolist()


def test_a_pair_is_one_word_whatever_its_order() -> None:
    pairs = pair_words(np.array([5, 1]), np.array([2, 1 << 31]))

    assert ([2, 1], [5, 1 << 31]) == tuple(half.tolist() for half in documents_of(pairs))
