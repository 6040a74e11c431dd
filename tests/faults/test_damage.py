"""Flipped bits and cut files, in every file of a run: never a wrong row, never unnoticed by `verify`, never a crash."""

import json
from collections import Counter
from pathlib import Path

import pytest
from damaged_runs import files_of
from fault_recipes import RECIPES, undisturbed
from fault_table import note
from forks import run_child

HARMS = ("flip", "cut")
TRIALS = 200  # of each recipe and harm, in full
FEW = 4


def damage(directory: Path, name: str, harm: str, first: int, trials: int) -> Counter[str]:
    """Do the trials; how each ended."""
    whole = undisturbed(name)
    expected = RECIPES[name].read(whole.out)
    ended = run_child(
        "damaged_runs:child",
        *(name, str(whole.out), str(directory / "out"), expected, harm, first, trials),
        output=directory / "told.txt",
        limit_s=3000,
    )
    told = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]

    assert ended.code == 0, ended.output
    assert trials == len(told)
    assert [] == [each for each in told if "SILENT" in (each["streamed"], each["verified"])], told
    for each in told:
        note(f"{harm} in any file", name, noticed_while_streaming=each["streamed"] != "as it was")
    return Counter(each["streamed"] for each in told)


@pytest.mark.slow
@pytest.mark.smoke("split csv.gz-flip", "histories-cut")
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", RECIPES)
def test_damage_is_an_error_and_never_another_row(tmp_path: Path, name: str, harm: str) -> None:
    damage(tmp_path, name, harm, TRIALS + 7 * HARMS.index(harm), FEW)


@pytest.mark.slow
@pytest.mark.smoke("packed-flip", "series-cut")
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", RECIPES)
def test_damage_of_the_manifest_and_the_index_is_an_error(
    tmp_path: Path, name: str, harm: str
) -> None:
    files = [path.name for path in files_of(undisturbed(name).run)]
    for number, which in enumerate(("manifest.json", "index.parquet")):
        place = files.index(which)

        assert "as it was" not in damage(tmp_path / str(number), name, harm, place, 1), which


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", RECIPES)
def test_damage_in_full_number(tmp_path: Path, name: str, harm: str) -> None:
    ended = damage(tmp_path, name, harm, 0, TRIALS)

    assert {"CorruptShard", "as it was"} <= set(ended)
