"""A mapped file that is cut between two batches is named by an error; the process lives."""

from pathlib import Path

import pytest
from cut_while_mapped import READERS
from forks import run_child


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_cut_before_its_rows_are_touched_is_named(tmp_path: Path, name: str) -> None:
    ended = run_child(
        "cut_while_mapped:child", name, str(tmp_path / "place"), output=tmp_path / "told.txt"
    )

    assert 0 == ended.code, ended.output[-3000:]
    assert "refused .arrow" in ended.output
    # a block that was not begun is opened, and is no Arrow file any more
    assert "was cut while it was in use" in ended.output or "cannot be read" in ended.output
