"""A run with a file of any kind that somebody changed and sealed again: every reader refuses it, or reads what is there."""

import json
from pathlib import Path

import pytest
from fault_recipes import undisturbed
from fault_table import note
from forks import run_child
from hostile_runs import GIB, HARMS, KIT, LIMIT_S, READERS, kinds

from headrace.recipe import recipes

FEW = 9  # one of so many cases of each kind of file, in `make test-all`


def other_file(name: str, suffix: str) -> Path:
    """A file of the same suffix in a run of another recipe."""
    recipe = undisturbed(name).manifest.recipe
    for other in KIT:
        if undisturbed(other).manifest.recipe == recipe:
            continue
        run = undisturbed(other).run
        for file in kinds(run).values():
            if file.endswith(suffix) and file not in ("index.parquet", "manifest.json"):
                return run / file
    return undisturbed(name).run / "config.json"


def meet(directory: Path, name: str, every: int, first: int = 0) -> None:
    """Let all readers meet each kind of file of a run, in every so many-th of its harms."""
    whole = undisturbed(name)
    number = first
    for kind, file in kinds(whole.run).items():
        for harm in HARMS[Path(file).suffix]:
            number += 1
            if number % every:
                continue
            meet_one(directory / str(number), name, kind, harm, other_file(name, Path(file).suffix))


def meet_one(directory: Path, name: str, kind: str, harm: str, other: Path) -> None:
    directory.mkdir()
    ended = run_child(
        "hostile_runs:child",
        *(str(undisturbed(name).out), str(directory / "out"), kind, harm, str(other)),
        output=directory / "output.txt",
    )

    assert 0 == ended.code, (name, kind, harm, ended.output[-3000:])
    assert ended.peak_bytes < GIB, (name, kind, harm)
    ends = [json.loads(line) for line in ended.output.splitlines() if line.startswith('{"reader')]
    if "NOT MADE" == ends[0]["ended"]:
        return
    assert list(READERS) == [end["reader"] for end in ends]
    assert [] == [end for end in ends if "RAW" == end["ended"]], (name, kind, harm)
    assert max(end["cpu_s"] for end in ends) < LIMIT_S, (name, kind, harm, ends)
    note(
        "hostile run",
        f"{name}: {Path(kind).name}",
        refused=sum("ACCEPTED" != end["ended"] for end in ends),
        readers=len(ends),
    )


def test_every_registered_recipe_has_a_run_here() -> None:
    made = {undisturbed(name).manifest.recipe for name in KIT}

    assert set(recipes()) <= made


@pytest.mark.parametrize(
    ("name", "kind", "harm"),
    [
        ("split csv.gz", "index.parquet", "equal rows"),
        ("series", "entities.parquet", "equal rows"),
        ("histories", "rows.parquet", "a long text"),
        ("packed series", "quality_reports.parquet", "other types"),
        ("packed", "packing_metadata.json", "deep"),
        ("preferences", "config.json", "null values"),
        ("rewrite", "data/part-N.parquet", "nested"),
    ],
)
def test_some_changes_are_refused(tmp_path: Path, name: str, kind: str, harm: str) -> None:
    file = kinds(undisturbed(name).run)[kind]
    meet_one(tmp_path / "one", name, kind, harm, other_file(name, Path(file).suffix))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", KIT)
def test_changed_files_are_refused(tmp_path: Path, name: str) -> None:
    meet(tmp_path, name, FEW, list(KIT).index(name))


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", KIT)
def test_changed_files_are_refused_in_full_number(tmp_path: Path, name: str) -> None:
    meet(tmp_path, name, 1)
