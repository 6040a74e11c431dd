"""Pass 1: codes of values as the rules say, and compiled pieces with the bytes and sums of those that numpy makes."""

from __future__ import annotations

import io
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.histories.codec.addresses import Addresses, of_words
from headrace.histories.codec.latencies import LARGEST_US, encode_latencies
from headrace.histories.config import Histories
from headrace.histories.parse import REASONS, Parsed, _codes
from headrace.histories.piece import PieceWriter

EDGES = [0.0, -0.0, 0.0005, 0.0015, 2.047, 2.0475, 2.048, 4.095, 4.0955, 2047 * 2.0**31 / 1000, 1e300, -1e300]
VALUES = st.lists(
    st.floats()
    | st.floats(0, 1e5)
    | st.sampled_from([*EDGES, float("nan"), float("inf"), float("-inf")])
    | st.integers(0, 1 << 50).map(lambda micros: micros / 1000),
    max_size=30,
)
RULES = [*itertools.product(["failed", "drop", "error"], ["failed", "drop"], ["value", "failed", "drop"])]


@pytest.mark.parametrize("how", ["plain", "compiled"])
@given(
    values=VALUES,
    rules=st.sampled_from(RULES),
    unit=st.sampled_from(["us", "ms", "s"]),
    draw=st.randoms(use_true_random=False),
)
def test_values_have_the_codes_and_reasons_that_the_rules_give_each(
    how: str, values: list[float], rules: tuple[str, str, str], unit: str, draw: object
) -> None:
    if how == "compiled":
        pytest.importorskip("numba", reason="needs numba, which comes with the extra histories")
    missing, negative, zero = rules
    settings = Histories(source="s", missing=missing, negative=negative, zero=zero, value_unit=unit)
    before = [draw.choice([0, 0, 0, REASONS.index("null_peer") + 1]) for _ in values]  # type: ignore[attr-defined]
    reason = np.array(before, np.int8)
    found = _codes(np.array(values, np.float64), settings, reason, compiled=how == "compiled")

    factor, clamped = {"us": 1, "ms": 1_000, "s": 1_000_000}[unit], 0
    for value, had, has, code in zip(values, before, reason.tolist(), found.codes.tolist(), strict=True):
        word = "missing" if math.isnan(value) else "negative" if value < 0 else "zero" if value == 0 else ""
        rule = {"missing": missing, "negative": negative, "zero": zero, "": "value"}[word]
        if had or math.isinf(value) or rule in ("drop", "error"):
            word = "unreadable_value" if math.isinf(value) else f"{word}_value"
            assert has == (had or REASONS.index(word) + 1)
            continue
        assert has == 0
        micros = 1 if rule == "failed" else max(round(min(value, 1e13) * factor), 1)
        clamped += micros > LARGEST_US
        expected = encode_latencies(np.array([min(micros, LARGEST_US)]), np.array([rule == "failed"])).codes
        assert expected.tolist() == [code]
    assert clamped == found.clamped


@pytest.mark.parametrize("partitions", [1, 7])
@pytest.mark.parametrize("peers", ["peers", "no peers"])
def test_compiled_pieces_have_the_same_bytes_and_the_same_sum(partitions: int, peers: str) -> None:
    pytest.importorskip("numba", reason="needs numba, which comes with the extra histories")
    rng = np.random.default_rng(partitions)
    rows, entities = 5_000, 300

    def addresses(count: int) -> Addresses:
        return of_words(rng.choice(np.array([4, 6], np.uint8), count), rng.integers(0, 2**64, (count, 2), np.uint64))

    parsed = Parsed(
        rng.integers(0, 2**50, rows),
        rng.integers(0, 2**16, rows).astype(np.uint16),
        addresses(entities),
        rng.integers(0, entities, rows),
        addresses(90) if peers == "peers" else None,
        rng.integers(0, 90, rows) if peers == "peers" else None,
        0,
    )
    hashes = rng.integers(0, 2**64, entities, np.uint64)

    def piece(*, compiled: bool) -> tuple[int, str, bytes]:
        file = io.BytesIO()
        writer = PieceWriter(file, partitions)
        total = writer.append(parsed, hashes, compiled=compiled)
        return total, writer.finish(), file.getvalue()

    assert piece(compiled=False) == piece(compiled=True)
