"""Compiled texts of addresses are those of the system."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.histories.codec.addresses import Addresses, parse, render

pytest.importorskip("numba", reason="needs numba, which comes with the extra histories")

GROUP = st.sampled_from([0, 0, 0, 1, 0x10, 0xABC, 0xFFFF]) | st.integers(0, 0xFFFF)


@example([[0] * 8, [0] * 7 + [1], [0] * 6 + [1, 2], [0] * 5 + [0xFFFF, 1, 2], [1, 0, 0, 2, 0, 0, 3, 4], 1 << 24])
@given(st.lists(st.lists(GROUP, min_size=8, max_size=8) | st.integers(0, 2**32 - 1), max_size=40))
def test_texts_are_those_of_the_system_and_are_read_back(drawn: list[list[int] | int]) -> None:
    from headrace.histories.codec.text_kernels import render_texts

    family = np.array([6 if isinstance(each, list) else 4 for each in drawn], np.uint8)
    data = np.zeros((len(drawn), 16), np.uint8)
    for row, each in enumerate(drawn):
        packed = b"".join(group.to_bytes(2) for group in each) if isinstance(each, list) else each.to_bytes(4)
        data[row, : len(packed)] = np.frombuffer(packed, np.uint8)
    texts = render_texts(Addresses(family, data))

    texts.validate(full=True)
    assert render(Addresses(family, data), "address") == texts.to_pylist()
    read = parse(texts, "address")
    assert read.family.tolist() == family.tolist()
    assert read.bytes.tolist() == data.tolist()
