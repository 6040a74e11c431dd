"""A store larger than the memory it may take: windows come straight from the mapped file, or chunk by chunk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from series_cases import write_run

CASES = Path(__file__).with_name("memory_cases.py")
STORE_MIB = 24 * 100_000 * 0.6 * 12 / (1 << 20)  # train rows of 3 float32


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_an_epoch_takes_a_small_part_of_the_store_as_memory_of_its_own(tmp_path):
    write_run(tmp_path, [100_000] * 24, missing=0.0, shards=6)
    cases = [{"shuffle": "nearby", "lane_windows": 512}, {"chunk_size": 2}, {"chunk_size": 24}]
    command = [sys.executable, str(CASES), str(tmp_path), json.dumps(cases)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stderr
    nearby, chunked, whole = json.loads(done.stdout)
    assert nearby < STORE_MIB / 3
    assert chunked < STORE_MIB / 3
    assert whole > STORE_MIB  # so it is what is measured
