"""The fuzzer itself: the same inputs for the same seed, and a small input where a check fails."""

import random

import pytest
from fuzz_run import Difference, fuzz, smallest

from headrace.errors import InputError


def make(random_: random.Random) -> bytes:
    return random_.randbytes(64)


def test_inputs_depend_on_name_and_seed_alone() -> None:
    def seen(name: str, seed: int) -> list[bytes]:
        found: list[bytes] = []
        fuzz(name, make, found.append, seed=seed, inputs=5)
        return found

    assert seen("a", 0) == seen("a", 0)
    assert len({*seen("a", 0), *seen("a", 1), *seen("b", 0)}) == 15


def test_a_difference_is_told_with_seed_number_and_a_small_input(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def check(data: bytes) -> None:
        if 7 in data:
            raise Difference("a seven")

    with pytest.raises(Difference, match="a seven"):
        fuzz("sevens", make, check, seed=3, inputs=500)

    told = capsys.readouterr().out
    assert "of seed 3 fails: a seven" in told
    assert r"smallest input that fails: b'\x07'" in told


def test_a_refusal_is_content() -> None:
    def check(data: bytes) -> None:
        raise InputError("a.csv: line 1: is odd; make it even")

    assert 4 == fuzz("refused", make, check, seed=0, inputs=4)


def test_the_smallest_part_keeps_what_is_needed_from_both_ends() -> None:
    assert [1, 9] == smallest(list(range(10)), lambda part: 1 in part and 9 in part)
