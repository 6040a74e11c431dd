"""A dry run of a source in an object store knows its sizes and what is finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from store_cases import split_of, upload, write_raw
from typer.testing import CliRunner

from headrace.cli import app


def test_the_command_says_it_and_knows_what_is_finished(s3: str, tmp_path: Path) -> None:
    upload(write_raw(tmp_path / "raw"), f"{s3}/raw")
    settings = {**split_of(f"{s3}/raw").config(), "out": f"{s3}/out"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))

    def told(*flags: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["run", str(tmp_path / "c.yaml"), "--json", *flags])
        assert done.exit_code == 0, (done.output, done.exception)
        record: dict[str, Any] = json.loads(done.stdout)
        return record

    before = told("--dry-run")
    made = told("--work-dir", str(tmp_path / "work"))
    after = told("--dry-run")

    assert before["source_bytes"] == sum(
        path.stat().st_size for path in (tmp_path / "raw").iterdir()
    )
    assert before["out_bytes"] >= sum(each["bytes"] for each in made["splits"].values())
    assert ("new", "finished: it would be reused") == (before["state"], after["state"])
    assert before["run"] == made["run"]
