"""What contexts are measured beside makes contexts too: whole measurements of the row, and the arrays of them."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
from context_cases import measurement_of, row_of, segments_of
from context_reference import to_arrays

from headrace.histories.contexts import vocabulary
from headrace.histories.contexts.tokens import Tokens

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def loop():
    sys.path.insert(0, str(BENCHMARKS))
    import contexts_loop

    yield contexts_loop
    sys.path.remove(str(BENCHMARKS))
    del sys.modules["contexts_loop"]


@pytest.mark.parametrize("family", [4, 6])
def test_the_loop_makes_contexts_of_whole_measurements(loop, family):
    row = row_of(3000, family=family, peer_families=(4, 6), gap=90)
    generator = random.Random(1)
    known = {
        measurement_of(row, place, stamped) for place in range(row.n) for stamped in (True, False)
    }

    texts = [loop.plain_context(row, generator, 1025) for _ in range(40)]
    for text in texts:
        [measured] = vocabulary.decode(text)
        assert set(measured) <= known
        assert len(text) == 1025
    assert np.mean([text.count(0) for text in texts]) < 60

    tokens = np.array(texts, np.int32)
    lengths = (tokens > 0).sum(axis=1)
    expected = to_arrays(
        Tokens(tokens, lengths, lengths), segments_of([row] * 40, [0] * 40), "maxtext"
    )
    made = loop.plain_arrays(texts)
    assert list(expected) == list(made)
    for name, array in made.items():
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
        assert (array == expected[name]).all(), name
