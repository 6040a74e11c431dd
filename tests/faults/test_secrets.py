"""No secret in a log, an error, a manifest, a run id or a command line; and credentials in a path are refused."""

import json
from pathlib import Path

import pytest
from fault_recipes import settings_of, undisturbed
from fault_table import note
from forks import run_child
from secrets_kept import CANARY

import headrace

ERRORS, FEW = 200, 30


def hits(directory: Path) -> list[Path]:
    """Files and names below a directory in which the canary is."""
    return [
        path
        for path in directory.rglob("*")
        if CANARY in path.name or (path.is_file() and CANARY.encode() in path.read_bytes())
    ]


def force(directory: Path, errors: int) -> None:
    for name in ("split csv.gz", "packed", "histories", "rewrite", "split single parquet"):
        undisturbed(name)
        settings_of(name)
    (directory / "runs").mkdir()
    ended = run_child(
        "secrets_kept:child", str(directory / "runs"), errors, output=directory / "told.txt"
    )

    assert 0 == ended.code, ended.output
    told = json.loads(ended.output.splitlines()[-1])
    assert errors == told["forced"]
    assert told["said"] > 100 * errors
    assert [] == hits(directory)
    note("secrets: forced errors", errors=errors)


@pytest.mark.slow
def test_no_error_tells_a_secret(tmp_path: Path) -> None:
    force(tmp_path, FEW)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_no_error_of_200_tells_a_secret(tmp_path: Path) -> None:
    force(tmp_path, ERRORS)


@pytest.mark.parametrize(
    "source",
    [
        f"https://me:{CANARY}@host/a.csv",
        f"s3://b/a.csv?X-Amz-Signature={CANARY}",
        f"https://h/a.csv?sig={CANARY}",
        f"az://c/a.csv?sv=1&token={CANARY}",
    ],
)
def test_credentials_in_a_source_are_refused_and_not_repeated(source: str) -> None:
    for make in (
        lambda: headrace.TemporalSplit(
            source=source, time="d", entity="g", split_date="2025-01-01"
        ),
        lambda: headrace.Histories(source=[source]),
        lambda: headrace.Rewrite(source=source),
        lambda: headrace.PackedSequences(blend=source),
        lambda: headrace.PackedSequences(blend={"datasets": [{"name": "a", "path": source}]}),
        lambda: headrace.open(source),
    ):
        with pytest.raises(headrace.SettingsError, match="holds credentials") as raised:
            make()

        assert CANARY not in str(raised.value)
