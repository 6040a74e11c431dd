"""Streaming for long: memory stays flat, and no thread, file or shared memory is left."""

import json
from pathlib import Path

import pytest
from fault_recipes import undisturbed
from fault_table import note
from forks import run_child

EPOCHS, FEW = 500, 20


def soak(directory: Path, name: str, epochs: int) -> None:
    ended = run_child(
        "soak:child",
        str(undisturbed(name).out),
        epochs,
        output=directory / "told.txt",
        limit_s=3000,
    )

    assert 0 == ended.code, ended.output
    told = json.loads(ended.output.splitlines()[-1])
    assert told["last"] <= 1.05 * told["settled"]
    assert ["MainThread"] == told["threads"]
    assert told["files"] <= 0
    assert [] == told["shared"]
    note("soak", name, epochs=epochs, settled_mb=told["settled"] >> 20, last_mb=told["last"] >> 20)


@pytest.mark.slow
def test_nothing_grows_over_epochs_with_a_resume_each(tmp_path: Path) -> None:
    soak(tmp_path, "split single parquet", FEW)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["split csv.gz", "split single parquet"])
def test_nothing_grows_over_500_epochs_with_a_resume_each(tmp_path: Path, name: str) -> None:
    soak(tmp_path, name, EPOCHS)
