"""Parsers of ours meet mutated files: no crash, no hang, no error but ours. `HEADRACE_FUZZ_S`: seconds for each in full."""

import json
import os
from pathlib import Path

import pytest
from fault_table import note
from forks import run_child
from fuzzed import PARSERS, samples_of

FEW = 400
SECONDS = float(os.environ.get("HEADRACE_FUZZ_S", "600"))


def fuzz(directory: Path, name: str, *, seed: int, inputs: int, seconds: float) -> int:
    ended = run_child(
        "fuzzed:child",
        *(name, samples_of(name), str(directory / "files"), seed, inputs, seconds),
        output=directory / "told.txt",
        limit_s=seconds + 240,
    )

    assert 0 == ended.code, ended.output[-6000:]
    return int(json.loads(ended.output.splitlines()[-1])["tried"])


@pytest.mark.parametrize("name", PARSERS)
def test_no_bytes_crash_a_parser(tmp_path: Path, name: str) -> None:
    assert FEW == fuzz(tmp_path, name, seed=0, inputs=FEW, seconds=600)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PARSERS)
def test_no_bytes_crash_a_parser_in_full(tmp_path: Path, name: str) -> None:
    note("fuzzing", name, inputs=fuzz(tmp_path, name, seed=1, inputs=1 << 60, seconds=SECONDS), seconds=SECONDS)
