"""Commands leave pandas alone, which Arrow would import at its first conversion."""

from __future__ import annotations

import subprocess
import sys

import polars as pl
import pytest

pytest.importorskip("pandas")

_SPLIT = """
import sys
from headrace.cli import command

sys.argv = ["headrace", *sys.argv[1:]]
try:
    command()
except SystemExit as end:
    assert not end.code, end.code
assert "pandas" not in sys.modules

import pandas as pd
import pyarrow as pa

assert list(pa.table({"a": [1]}).to_pandas()["a"]) == [1]
assert pa.array(pd.Series([1.0, None])).null_count == 1
"""


def test_a_run_of_the_command_line_imports_no_pandas_and_arrow_finds_it_later(tmp_path):
    days = ["2024-01-01", "2024-01-02", "2024-03-01", "2024-03-02"] * 1000  # all stages work
    frame = pl.DataFrame({"customer": range(4000), "when": days, "amount": range(4000)})
    frame.write_parquet(tmp_path / "rows.parquet")
    arguments = ["split", str(tmp_path / "rows.parquet"), "--time", "when", "--entity", "customer"]
    arguments += ["--split-date", "2024-02-01", "--out", str(tmp_path / "out"), "--report", "never"]

    ended = subprocess.run(
        [sys.executable, "-c", _SPLIT, *arguments], capture_output=True, text=True, check=False
    )

    assert 0 == ended.returncode, ended.stderr
