"""`headrace doctor` finds what is there, what is missing and what is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.doctor_command import extras, limits, topology, writable

HEADRACE = Path(sys.executable).parent / "headrace"


def doctor(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEADRACE, "doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
        timeout=250,
    )


def test_a_healthy_place_is_ok_and_a_hidden_rank_is_a_problem(tmp_path: Path) -> None:
    record = json.loads(doctor(tmp_path / "out", "--json").stdout)
    lost = doctor(SLURM_NTASKS="4", SLURM_PROCID="2")
    found = {each["name"]: each for each in record["findings"]}

    assert record["ok"]
    assert found["rank"]["found"] == "0 of 1, no launcher is visible"
    assert found["extra torch"]["verdict"] == "ok"
    assert f"{tmp_path}: " in found["output"]["found"]
    assert list(tmp_path.iterdir()) == []
    assert lost.returncode == 1
    assert "SLURM_NTASKS is 4" in lost.stdout
    assert "Traceback" not in lost.stderr


def test_extras_are_those_of_the_package_with_what_they_stand_on() -> None:
    requirements = [
        "numpy>=1.26",
        "pyarrow>=22; extra == 'a'",
        "headrace[a]; extra == 'b'",
        'no-such-library>=1; extra == "b"',
        "ruff; extra == 'lint'",
    ]
    found = {each.name: each for each in extras(requirements)}

    assert {"extra a", "extra b"} == set(found)
    assert ("ok", "") == (found["extra a"].verdict, found["extra a"].advice)
    assert found["extra b"].found.startswith("pyarrow ")
    assert "no-such-library missing" in found["extra b"].found
    assert "pip install 'headrace[b]'" in found["extra b"].advice


@pytest.mark.parametrize(
    ("environ", "words", "verdict"),
    [
        ({}, "0 of 1", "ok"),
        ({"RANK": "3", "WORLD_SIZE": "8"}, "3 of 8, from RANK and WORLD_SIZE", "ok"),
        ({"WORLD_SIZE": "8"}, "unknown", "problem"),
    ],
)
def test_ranks_are_found_as_streams_find_them(environ: dict[str, str], words: str, verdict: str) -> None:
    found = topology(environ)

    assert words in found.found
    assert verdict == found.verdict


def test_limits_and_directories_are_named(tmp_path: Path) -> None:
    assert {"cores", "open files", "memory"} <= {each.name for each in limits()}
    assert writable(tmp_path / "not" / "there").found.startswith(f"{tmp_path}: ")
