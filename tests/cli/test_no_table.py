"""Of shards that are no table nothing is planned: no figure would mean anything, as they cannot be streamed."""

from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.errors import InputError


@pytest.mark.parametrize("form", ["array_record", "arrow"])
def test_histories_are_planned_where_they_can_be_streamed(form: str, tmp_path: Path) -> None:
    if form == "array_record":
        pytest.importorskip("array_record")
    rows = {
        "src_addr": [f"10.0.0.{n % 9}" for n in range(90)],
        "event_time": range(90),
        "rtt": [20.0] * 90,
    }
    pl.DataFrame(rows).write_csv(tmp_path / "pings.csv")
    headrace.prepare(headrace.Histories(source=tmp_path / "pings.csv", dialect={"time_format": "epoch_s"}, partitions=1, format=form), tmp_path / "out")  # fmt: skip
    epoch = ["--split", "train", "--ranks", "1", "--batch-size", "2"]
    for words in (["plan"], ["where", "--row", f"part-00000.{form}:1"]):
        done = CliRunner().invoke(app, [words[0], str(tmp_path / "out"), *words[1:], *epoch])

        if form == "arrow":
            assert 0 == done.exit_code
        else:
            assert isinstance(done.exception, InputError)
            assert "`headrace histories plan` counts them" in str(done.exception)
