"""The three lines of `headrace plan`: they say what the figures say, and a remedy that is named is one that works."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import headrace


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("advice")
    (root / "shards").mkdir()
    for shard in range(5):
        pq.write_table(
            pa.table({"a": np.arange(20_000)}),
            root / f"shards/{shard}.parquet",
            row_group_size=5_000,
        )
    return root


def _lines(shards: Path, *asked: object) -> list[str]:
    done = headrace("plan", "shards", *asked, cwd=shards)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _record(shards: Path, *asked: object) -> dict[str, object]:
    record: dict[str, object] = json.loads(
        headrace("plan", "shards", *asked, "--json", cwd=shards).stdout
    )
    return record


def test_a_plan_is_three_lines_and_its_figures_are_asked_for(shards: Path) -> None:
    asked = ("--ranks", 3, "--batch-size", 64, "--shuffle")
    record = _record(shards, *asked)

    verdict, reason, remedy = _lines(shards, *asked)
    detailed = _lines(shards, *asked, "--detail")

    assert f"{record['steps_per_rank']:,} steps" in verdict
    assert "all 100,000 rows come once" in verdict
    assert reason.startswith("the split fits into memory")
    assert remedy == "nothing needs to change"
    assert detailed[:3] == [verdict, reason, remedy]
    assert any("read amplification" in line for line in detailed)


def test_the_lanes_that_are_named_decode_as_little_as_was_said(shards: Path) -> None:
    asked = ("--ranks", 8, "--batch-size", 64, "--shuffle")

    _, reason, remedy = _lines(shards, *asked, "--lanes", 12)

    assert "is decoded up to" in reason
    named = re.match(r"--lanes (\d+) decodes ([\d.]+) times", remedy)
    assert named is not None, remedy
    tried = _record(shards, *asked, "--lanes", named[1])
    assert f"{tried['read_amplification']:.1f}" == named[2]


def test_rows_that_are_left_out_are_said_with_what_keeps_them(shards: Path) -> None:
    asked = ("--ranks", 4, "--batch-size", 64, "--shuffle")
    whole = ("--distribution", "by_size", "--remainder", "drop")

    verdict, _, remedy = _lines(shards, *asked, *whole)

    assert "79,872 of 100,000 rows" in verdict
    assert "--distribution balanced leaves no rows out" in remedy
    assert _record(shards, *asked, "--distribution", "balanced")["dropped_rows"] == 0
    assert _record(shards, *asked, *whole[:2], "--remainder", "pad")["dropped_rows"] == 0


def test_sorted_files_are_told_to_be_shuffled(shards: Path) -> None:
    asked = ("--ranks", 2, "--batch-size", 64)

    *_, remedy = _lines(shards, *asked, "--no-shuffle")

    assert "--shuffle mixes them" in remedy
    assert _lines(shards, *asked, "--shuffle")[2] == "nothing needs to change"
