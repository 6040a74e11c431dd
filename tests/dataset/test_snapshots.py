"""Snapshots of Delta, Iceberg and Lance are the rows that their own libraries read, deleted ones absent."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from snapshot_cases import LISTINGS, SYSTEMS, Tables, check_rows, check_run_ids, listings, refusal

import headrace
from headrace.errors import InputError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def tables_of(system: str, root: Path) -> Tables:
    library = {"delta": "deltalake", "iceberg": "pyiceberg.catalog.sql"}[system]
    pytest.importorskip(library, reason=f"{library} is not installed")
    if not LISTINGS.is_file():
        pytest.skip(f"{LISTINGS} is not there: the data set is not in the repository")
    return SYSTEMS[system](root)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["delta", "iceberg"])
def test_a_version_has_the_rows_that_its_library_reads(system: str, tmp_path: Path) -> None:
    check_rows(tables_of(system, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("system", ["delta", "iceberg"])
def test_the_version_is_part_of_the_run_id(system: str, tmp_path: Path) -> None:
    check_run_ids(tables_of(system, tmp_path), tmp_path / "out")


@pytest.mark.parametrize("system", ["delta", "iceberg"])
def test_a_version_that_is_not_there_is_refused(system: str, tmp_path: Path) -> None:
    said = refusal(tables_of(system, tmp_path))

    assert "/table: has no snapshot 99" in said or "/table@99: deltalake cannot read it" in said


@pytest.mark.slow
def test_lance_tables_do_the_same_in_a_process_of_their_own(tmp_path: Path) -> None:
    """Once lance is imported every fork warns, so it is not imported where other tests fork."""
    if not LISTINGS.is_file():
        pytest.skip(f"{LISTINGS} is not there: the data set is not in the repository")
    if importlib.util.find_spec("lance") is None:
        pytest.skip("pylance is not installed")
    command = [sys.executable, str(Path(__file__).with_name("snapshot_cases.py")), "lance", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    assert "/table@99: lance cannot read it" in done.stdout


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        headrace.open(f"delta:{tmp_path}/nowhere@1")


def test_deletion_vectors_are_refused(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    if not LISTINGS.is_file():
        pytest.skip(f"{LISTINGS} is not there: the data set is not in the repository")
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, listings(), configuration={"delta.enableDeletionVectors": "true"})

    with pytest.raises(InputError, match="deletionVectors"):
        headrace.open(f"delta:{path}")
