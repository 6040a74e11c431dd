"""Parsers of ours meet mutated files: no crash, no hang, no error but ours. `HEADRACE_FUZZ_S`: seconds for each in full."""

import json
from pathlib import Path

import pytest
from fault_recipes import undisturbed
from fault_table import note
from forks import run_child
from fuzz_run import ENDLESS, seconds_in_full, seed_in_full
from fuzzed import PARSERS, samples_of

from headrace.dataset.index import table_bytes
from headrace.dataset.open import read_index
from headrace.errors import CorruptShard

FEW = 400


def fuzz(directory: Path, name: str, *, seed: int, inputs: int, seconds: float) -> int:
    ended = run_child(
        "fuzzed:child",
        *(name, samples_of(name), str(directory / "files"), seed, inputs, seconds),
        output=directory / "told.txt",
        limit_s=seconds + 240,
    )

    assert 0 == ended.code, ended.output[-6000:]
    return int(json.loads(ended.output.splitlines()[-1])["tried"])


@pytest.mark.slow
@pytest.mark.smoke("index", "histories row")
@pytest.mark.parametrize("name", PARSERS)
def test_no_bytes_crash_a_parser(tmp_path: Path, name: str) -> None:
    assert FEW == fuzz(tmp_path, name, seed=0, inputs=FEW, seconds=600)


def test_an_index_of_other_columns_is_damage(tmp_path: Path) -> None:
    index = read_index(undisturbed("split csv.gz").run / "index.parquet")
    data = table_bytes(index.table.drop_columns(["block"]), index.schema, ())
    (tmp_path / "index.parquet").write_bytes(data)

    with pytest.raises(CorruptShard, match="it has no column 'block'"):
        read_index(tmp_path / "index.parquet")


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PARSERS)
def test_no_bytes_crash_a_parser_in_full(tmp_path: Path, name: str) -> None:
    seconds = seconds_in_full()
    tried = fuzz(tmp_path, name, seed=seed_in_full(), inputs=ENDLESS, seconds=seconds)

    note("fuzzing", name, inputs=tried, seconds=seconds)
