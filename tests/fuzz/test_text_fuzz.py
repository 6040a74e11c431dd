"""Random text is read as others read it, or refused. `make fuzz SECONDS=600`: for so long each, `SEED=…`: other files."""

from pathlib import Path

import pytest
from fault_table import note
from fuzz_run import run_fuzz, seconds_in_full, seed_in_full

PLAIN, RUNS = ("csv_text", "tsv_text", "jsonl_text"), ("csv_runs", "jsonl_runs")
FEW, FEW_RUNS = 300, 12
READ = 0.15  # at least this share of the inputs must be read, else the law holds for nothing


@pytest.mark.smoke("jsonl_text-300")
@pytest.mark.parametrize(
    ("parser", "inputs"), [*((each, FEW) for each in PLAIN), *((each, FEW_RUNS) for each in RUNS)]
)
def test_text_is_read_as_others_read_it_or_refused(
    tmp_path: Path, parser: str, inputs: int
) -> None:
    found = run_fuzz(f"text_laws:{parser}", tmp_path, seed=0, inputs=inputs)

    assert inputs == found["tried"]
    assert inputs * READ < found["read"]


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("parser", [*PLAIN, *RUNS])
def test_text_is_read_as_others_read_it_or_refused_in_full(tmp_path: Path, parser: str) -> None:
    found = run_fuzz(
        f"text_laws:{parser}", tmp_path, seed=seed_in_full(), seconds=seconds_in_full()
    )

    assert found["tried"] * READ < found["read"]
    note("differential fuzzing", parser, seconds=seconds_in_full(), **found)
