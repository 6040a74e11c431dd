"""A script that ends with a stream open ends without a word: no ignored exception, no thread that is waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPT = """
import sys
import headrace

options = dict(pair.split("=") for pair in sys.argv[2:])
if "transform" in options:
    options["transform"] = lambda batch: batch
# nothing is said of long waits, which a busy machine may have
options["stall_seconds"] = float(options.get("stall_seconds", 3600))
batches = iter(headrace.open(sys.argv[1]).stream(batch_size=10, **options))
next(batches)
print("given")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("batch_format=arrow",),
        ("batch_format=torch",),
        ("distribution=dynamic",),
        ("stall_seconds=60",),
        ("transform=yes",),
        ("device=cpu",),
    ],
)
def test_a_script_may_end_with_a_stream_open(tmp_path: Path, options: tuple[str, ...]) -> None:
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "a.parquet", row_group_size=100)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path, *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ("given\n", "", 0) == (ended.stdout, ended.stderr, ended.returncode)
