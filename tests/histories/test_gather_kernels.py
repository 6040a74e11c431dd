"""Pass 1: codes of values as the rules say, and spill files that give back their measurements."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from history_reference import encode_latencies
from hypothesis import given
from hypothesis import strategies as st

from headrace.histories.codec.addresses import Addresses, from_words
from headrace.histories.codec.values import LARGEST_US
from headrace.histories.config import Histories
from headrace.histories.parse import REASONS, latency_codes
from headrace.histories.sort import read_blocks
from headrace.histories.spill import (
    ALONE,
    WITH_PEER,
    Parsed,
    SpillWriter,
    find_parts,
    hash_entities,
    join_chunks,
    mix_measured,
    mix_peers,
    multiset_sum,
    partition_of,
    read_records,
    record_type,
)

EDGES = [
    0.0,
    -0.0,
    0.0005,
    0.0015,
    2.047,
    2.0475,
    2.048,
    4.095,
    4.0955,
    2047 * 2.0**31 / 1000,
    1e300,
    -1e300,
]
VALUES = st.lists(
    st.floats()
    | st.floats(0, 1e5)
    | st.sampled_from([*EDGES, float("nan"), float("inf"), float("-inf")])
    | st.integers(0, 1 << 50).map(lambda micros: micros / 1000),
    max_size=30,
)
RULES = [
    *itertools.product(["failed", "drop", "error"], ["failed", "drop"], ["value", "failed", "drop"])
]


@given(
    values=VALUES,
    rules=st.sampled_from(RULES),
    unit=st.sampled_from(["us", "ms", "s"]),
    draw=st.randoms(use_true_random=False),
)
def test_values_have_the_codes_and_reasons_that_the_rules_give_each(
    values: list[float], rules: tuple[str, str, str], unit: str, draw: object
) -> None:
    missing, negative, zero = rules
    settings = Histories(source="s", missing=missing, negative=negative, zero=zero, value_unit=unit)
    before = [draw.choice([0, 0, 0, REASONS.index("null_peer") + 1]) for _ in values]  # type: ignore[attr-defined]
    reason = np.array(before, np.int8)
    found, counted = latency_codes(np.array(values, np.float64), settings, reason)

    factor, clamped = {"us": 1, "ms": 1_000, "s": 1_000_000}[unit], 0
    for value, had, has, code in zip(values, before, reason.tolist(), found.tolist(), strict=True):
        word = (
            "missing"
            if math.isnan(value)
            else "negative"
            if value < 0
            else "zero"
            if value == 0
            else ""
        )
        rule = {"missing": missing, "negative": negative, "zero": zero, "": "value"}[word]
        if had or math.isinf(value) or rule in ("drop", "error"):
            word = "unreadable_value" if math.isinf(value) else f"{word}_value"
            assert has == (had or REASONS.index(word) + 1)
            continue
        assert has == 0
        micros = 1 if rule == "failed" else max(round(min(value, 1e13) * factor), 1)
        clamped += micros > LARGEST_US
        expected = encode_latencies(
            np.array([min(micros, LARGEST_US)]), np.array([rule == "failed"])
        ).codes
        assert expected.tolist() == [code]
    assert clamped == counted


@pytest.mark.parametrize("peers", ["peers", "no peers"])
@pytest.mark.parametrize("values", [0, 2])
@pytest.mark.parametrize("span", [2**40, 2**50])
def test_a_spill_file_gives_back_its_measurements(
    peers: str, values: int, span: int, tmp_path: Path
) -> None:
    rng, path, seen = np.random.default_rng(values), tmp_path / "piece", []
    parsed = [_parsed(rng, peers=peers, values=values, span=span) for _ in range(3)]
    together = join_chunks(parsed)
    hashes = hash_entities(together.entities, "address", 5).order
    with path.open("wb") as file:
        writer = SpillWriter(file, 3, 1_000_000)
        total = writer.append(together, hashes)
        writer.finish()
    mixed = mix_measured(
        None if together.peers is None else mix_peers(together.peers)[together.peer],
        together.values,
    )
    assert total == multiset_sum(
        hashes[together.entity], together.micros // 1_000_000, mixed, together.codes
    )
    record = record_type(ALONE if peers == "no peers" else WITH_PEER, values)
    for partition in range(3):
        found = find_parts([path], partition, record)
        entities = found.entities()
        places = np.arange(len(entities), dtype=np.uint32)
        words = from_words(
            entities["family"], np.column_stack([entities["word0"], entities["word1"]])
        )
        assert {partition} >= set(
            partition_of(hash_entities(words, "address", 5).order, 3).tolist()
        )
        for block in read_blocks(found, places, record, 999):
            names = [
                name
                for name in ("micros", "code", "word0", "word1", "family")
                if name in (record.names or ())
            ]
            columns = [block[name].tolist() for name in names]
            more = block["values"].tolist() if values else [[]] * len(block)
            own = entities[block["entity"]]
            keys = zip(*(own[name].tolist() for name in ("word0", "word1", "family")), strict=True)
            seen += [
                (*key, *row, *words) for key, *row, words in zip(keys, *columns, more, strict=True)
            ]

    expected = []
    for each in parsed:
        columns = [each.micros.tolist(), each.codes.tolist()]
        if each.peers is not None:
            columns += [
                *each.peers.words()[each.peer].T.tolist(),
                each.peers.family[each.peer].tolist(),
            ]
        more = [[]] * len(each.micros) if each.values is None else each.values.tolist()
        keys = zip(
            *each.entities.words()[each.entity].T.tolist(),
            each.entities.family[each.entity].tolist(),
            strict=True,
        )
        expected += [
            (*key, *row, *words) for key, *row, words in zip(keys, *columns, more, strict=True)
        ]
    assert sorted(expected) == sorted(seen)
    narrow = peers == "peers" and span < 2**48
    assert narrow == any(
        find_parts([path], partition, record).count[:, 1].any() for partition in range(3)
    )


def _parsed(rng: np.random.Generator, *, peers: str, values: int, span: int) -> Parsed:
    """5,000 measurements of 300 entities, of which some are the same whatever the state of `rng`."""
    rows, entities = 5_000, 300

    def addresses(rng: np.random.Generator, count: int) -> Addresses:
        family, words = (
            rng.choice(np.array([4, 6], np.uint8), count),
            rng.integers(0, 2**64, (count, 2), np.uint64),
        )
        words[family == 4] &= np.array([0xFFFFFFFF00000000, 0], np.uint64)
        return from_words(family, words)

    return Parsed(
        micros=1_700_000_000_000_000 + rng.integers(0, span, rows),
        codes=rng.integers(0, 2**16, rows).astype(np.uint16),
        clamped=0,
        entities=addresses(np.random.default_rng(1), entities),
        entity=rng.integers(0, entities, rows),
        peers=addresses(rng, 90) if peers == "peers" else None,
        peer=rng.integers(0, 90, rows) if peers == "peers" else None,
        values=rng.integers(0, 2**64, (rows, values), np.uint64) if values else None,
    )


def test_a_file_that_cannot_be_opened_is_the_error_that_is_raised(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(bytes(8))
    paths, zero, one = (
        [tmp_path / "here", tmp_path / "gone"],
        np.zeros(2, np.int64),
        np.ones(2, np.int64),
    )

    with pytest.raises(FileNotFoundError, match="gone"):
        read_records(np.zeros(2, "<u8").view([("word", "<u8")]), paths, np.arange(2), zero, one)
