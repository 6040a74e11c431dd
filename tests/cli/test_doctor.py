"""`headrace doctor` says what is installed, what is missing, and how the rank was found."""

import json

import pytest

from commands import headrace
from headrace.cli.doctor import extras, rank


def test_versions_extras_and_the_rank_are_printed() -> None:
    record = json.loads(headrace("doctor", "--json").stdout)
    found = {finding["name"]: finding for finding in record["findings"]}

    assert record["ok"]
    assert found["rank"]["value"] == "0 of 1, no launcher was detected"
    assert found["extra torch"]["verdict"] == "ok"
    assert {"python", "headrace", "pyarrow", "polars", "numpy", "pydantic"} < found.keys()


def test_a_hidden_rank_is_a_problem() -> None:
    lost = headrace("doctor", env={"SLURM_NTASKS": "4", "SLURM_PROCID": "2"})

    assert lost.returncode == 1
    assert "SLURM_NTASKS is 4" in lost.stdout


def test_extras_are_those_of_the_package_with_the_extras_they_include() -> None:
    requirements = [
        "numpy>=1.26",
        "pyarrow>=22; extra == 'a'",
        "headrace[a]; extra == 'b'",
        'no-such-library>=1; extra == "b"',
        "ruff; extra == 'lint'",
        "headrace[a]; extra == 'fuzz'",
        "no-such-library; extra == 'c'",
        "nor-such-library; extra == 'd'",
    ]
    found = {finding.name: finding for finding in extras(requirements)}

    assert {"extra a", "extra b", "extras not installed"} == set(found)
    assert "c, d" == found["extras not installed"].value
    assert ("ok", "") == (found["extra a"].verdict, found["extra a"].advice)
    assert found["extra b"].value.startswith("pyarrow ")
    assert "no-such-library missing" in found["extra b"].value
    assert "pip install 'headrace[b]'" in found["extra b"].advice


@pytest.mark.parametrize(
    ("environ", "words", "verdict"),
    [
        ({}, "0 of 1", "ok"),
        ({"RANK": "3", "WORLD_SIZE": "8"}, "3 of 8, from RANK and WORLD_SIZE", "ok"),
        ({"WORLD_SIZE": "8"}, "unknown", "problem"),
    ],
)
def test_ranks_are_found_as_streams_find_them(
    environ: dict[str, str], words: str, verdict: str
) -> None:
    found = rank(environ)

    assert words in found.value
    assert verdict == found.verdict
