"""A disk that is full, read-only or not permitted: whole shards or none, the path is named, and later it completes."""

import functools
from pathlib import Path

import pytest
from fault_recipes import RECIPES, make, place, settings_of
from fault_table import note
from forks import run_child
from killed_runs import expected

from headrace.run.events import Event

SIZES, PAGE = 40, 4096


@functools.cache
def need(name: str) -> int:
    """Bytes of a disk that a run fits on, about: the most that its files ever take, in pages."""
    out, most = place() / name / "measured", 0

    def listen(event: Event) -> None:
        nonlocal most
        sizes = [path.lstat().st_size for path in list(out.rglob("*")) if path.is_file()]
        most = max(most, sum(-(-size // PAGE) * PAGE for size in sizes))

    make(name, settings_of(name), out, workers=1, on_event=listen)
    return most


def fill(directory: Path, name: str, size: int) -> str:
    """How a run on a disk of so many bytes ended at first; it completes when there is room."""
    directory.mkdir()
    ended = run_child(
        "small_disk:child",
        *(name, settings_of(name), str(directory), size, expected(name).files),
        output=directory.with_suffix(".out"),
    )

    assert ended.code == 0, (size, ended.output)
    kind, first = ended.output.split("\n")[:2]
    note(f"disk full ({kind})", name, full=first == "full")
    return first


@pytest.mark.smoke("rewrite")
@pytest.mark.parametrize("name", RECIPES)
def test_a_full_disk_is_named_and_the_run_completes_once_there_is_room(
    tmp_path: Path, name: str
) -> None:
    assert "full" == fill(tmp_path / "tiny", name, 4 * PAGE)

    fill(tmp_path / "half", name, need(name) // 2)


@pytest.mark.slow
@pytest.mark.smoke("split csv.gz-read-only", "series-permission")
@pytest.mark.parametrize("why", ["read-only", "permission"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_place_that_cannot_be_written_is_named_and_stays_empty(
    tmp_path: Path, name: str, why: str
) -> None:
    expected(name)
    for private in (place(), place() / name):
        private.chmod(0o755)
    where = place() / name / why
    where.mkdir()
    ended = run_child(
        "small_disk:unwritable",
        name,
        settings_of(name),
        str(where),
        why,
        output=tmp_path / "told.txt",
    )

    assert 0 == ended.code, ended.output
    if "cannot mount" in ended.output:
        pytest.skip("mounting is not permitted here")
    assert why in ended.output
    note(why, name)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", RECIPES)
def test_a_disk_of_40_sizes(tmp_path: Path, name: str) -> None:
    found = [
        fill(tmp_path / str(number), name, max(4 * PAGE, need(name) * number // SIZES))
        for number in range(SIZES)
    ]

    assert {"full", "fits"} >= set(found) >= {"full"}
