"""No command line ends in a traceback, an escape sequence, a secret, pages of text, or an exit code nobody expects."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile_commands
import pytest
from fault_table import note

import headrace

CASES = hostile_commands.cases()
FEW = [name for number, name in enumerate(CASES) if number % 41 == 0]
PARTS = 24


def ended(place: Path, names: list[str]) -> dict[str, Any]:
    """How the cases of these names ended, in a directory of their own."""
    hostile_commands.lay_out(place / "inner")
    split = headrace.TemporalSplit(
        source=place / "inner" / "raw", time="day", entity="id", split_date="2024-06-01"
    )
    headrace.prepare(split, place / "inner" / "out")
    wanted, results = place / "wanted.json", place / "results.json"
    wanted.write_text(json.dumps({name: CASES[name] for name in names}))
    subprocess.run(
        [
            sys.executable,
            hostile_commands.__file__,
            str(place / "inner"),
            str(wanted),
            str(results),
        ],
        check=True,
        env={**os.environ, "HOME": str(place)},
    )
    found: dict[str, Any] = json.loads(results.read_text())
    return found


@pytest.mark.slow
def test_a_few_hostile_command_lines_end_in_a_message(tmp_path: Path) -> None:
    found = ended(tmp_path, FEW)

    assert set(FEW) == set(found)
    assert [] == [
        said for name, each in found.items() if (said := hostile_commands.problem(name, each))
    ]


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_hostile_command_line_ends_in_a_message(tmp_path: Path, part: int) -> None:
    names = list(CASES)[part::PARTS]
    found = ended(tmp_path, names)
    problems = [
        said for name, each in found.items() if (said := hostile_commands.problem(name, each))
    ]
    for name, each in found.items():
        note("hostile command line", name.partition(" ")[0], code=each["code"])

    assert [] == problems
    assert len(CASES) > 900
