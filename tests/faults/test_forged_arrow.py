"""A mapped Arrow file whose lengths and offsets lie ends in an error of headrace or in rows, and never in a crash."""

import json
from pathlib import Path

import pytest
from fault_table import note
from forged_arrow import KINDS
from forks import run_child


def forged(tmp_path: Path, name: str, most: int) -> dict[str, int]:
    ended = run_child(
        "forged_arrow:child",
        name,
        str(tmp_path / "place"),
        most,
        output=tmp_path / "told.txt",
        limit_s=240 + most,  # 3,000 take one to three minutes of a core that is shared
    )

    assert 0 == ended.code, ended.output[-3000:]
    told = json.loads(ended.output.splitlines()[-1])
    assert [] == told["wrong"]
    return dict(told["ends"])


@pytest.mark.parametrize("name", KINDS)
def test_some_forged_files_are_refused_or_read(tmp_path: Path, name: str) -> None:
    ends = forged(tmp_path, name, 70)

    assert sum(ends.values()) == 70
    assert ends["refused"] > 5


@pytest.mark.faults
@pytest.mark.parametrize("name", KINDS)
def test_thousands_of_forged_files_are_refused_or_read(tmp_path: Path, name: str) -> None:
    ends = forged(tmp_path, name, 3000)

    assert ends["refused"] > 500
    note("forged Arrow file", name, tried=sum(ends.values()), refused=ends["refused"])
