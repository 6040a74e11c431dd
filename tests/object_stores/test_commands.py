"""Every command takes places in object stores where it takes directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from store_cases import upload, write_raw
from store_servers import CANARY
from typer.testing import CliRunner

from headrace.cli import app
from headrace.errors import HeadraceError


def call(*arguments: Any, fails: int = 0) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    told = done.output
    if fails:
        assert isinstance(done.exception, HeadraceError)
        assert done.exception.exit_code == fails
        told += str(done.exception)
    else:
        assert done.exit_code == 0, (done.output, done.exception)
    assert CANARY not in told
    return told


@pytest.fixture
def out(s3: str, tmp_path: Path) -> str:
    """A dataset that the command line has split from a store into a store."""
    upload(write_raw(tmp_path / "raw"), f"{s3}/raw")
    columns = [
        "--time",
        "time",
        "--entity",
        "entity",
        "--split-date",
        "2025-01-01",
        "--format",
        "parquet",
    ]
    told = call(
        "split", f"{s3}/raw", "--out", f"{s3}/out", *columns, "--work-dir", tmp_path / "work"
    )

    assert f"{s3}/out/splits.json" in told
    assert f"{s3}/out/runs/" in told
    return f"{s3}/out"


@pytest.mark.slow
def test_commands_read_what_lies_in_a_store(out: str, tmp_path: Path) -> None:
    manifest = json.loads(call("inspect", out, "--json"))
    rows = manifest["splits"]["train"]["rows"]

    assert json.loads(call("verify", out, "--json"))["ok"]
    assert json.loads(call("gc", out, "--work-dir", tmp_path / "work", "--json"))["removed"] == []
    assert (
        len(json.loads(call("peek", out, "--split", "train", "--rows", 3, "--json"))["rows"]) == 3
    )
    planned = json.loads(
        call("plan", out, "--split", "train", "--ranks", 1, "--batch-size", 8, "--json")
    )
    assert planned["rows"] == rows
    assert call("rewrite", out, "--out", tmp_path / "fast")
    assert call("run", _config(out, tmp_path), "--work-dir", tmp_path / "work")


def _config(out: str, tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"recipe": "rewrite", "source": out, "out": f"{out}-fast"}))
    return path


def test_what_cannot_be_is_said_on_one_line(s3: str, tmp_path: Path) -> None:
    assert f"{s3}/nothing" in call("inspect", f"{s3}/nothing", fails=1)
    assert "credentials" in call("inspect", "s3://key:word@bucket/out", fails=2)
    assert "is not a place" in call("peek", "http://example.org/data", fails=2)
    assert f"{s3}/none.csv" in call("peek", f"{s3}/none.csv", fails=1)
