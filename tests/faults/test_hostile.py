"""Files whose writer means harm are refused: quickly, in little memory, by an error that says what to do."""

import json
from pathlib import Path

import pytest
from fault_recipes import settings_of, undisturbed
from fault_table import note
from forks import run_child
from hostile_files import CASES, GIB

LIMIT_S = 5  # of processor time: other work on the machine plays no part


@pytest.mark.slow
@pytest.mark.smoke(*list(CASES)[::7])
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    whole = {each: str(undisturbed(each).out) for each in ("split csv.gz", "split single parquet")}
    whole["settings"] = json.dumps(settings_of("split csv.gz"))
    (tmp_path / "place").mkdir()
    ended = run_child(
        "hostile_files:child",
        name,
        str(tmp_path / "place" / "inner"),
        whole,
        output=tmp_path / "told.txt",
    )

    assert 0 == ended.code, ended.output[-3000:]
    told = json.loads(ended.output.splitlines()[-1])
    assert "ACCEPTED" != told["ended"]
    assert CASES[name].says in told["message"], told
    assert ";" in told["message"] or ": " in told["message"], told
    assert len(told["message"]) < 4000, told["message"][:4000]
    assert [] == told["outside"]
    assert ended.cpu_s < LIMIT_S
    assert ended.peak_bytes < GIB
    note(
        "hostile file",
        name.partition(":")[0],
        cpu_s=round(ended.cpu_s, 2),
        peak_mb=ended.peak_bytes >> 20,
    )


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 60
    assert sum(name.startswith("drift") for name in CASES) >= 12
