"""Every file of a run of every recipe is vouched for: deleted, swapped, emptied, longer or changed, `verify` names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from chats import small_tokenizer
from fault_recipes import RECIPES, make, place, settings_of
from recipe_cases import write_jsonl

import headrace
from headrace.dataset.manifest import NOT_VOUCHED
from headrace.recipe import BUILT_IN
from headrace.run.prepare import Prepared

MANIFEST, SUCCESS = "manifest.json", "_SUCCESS"


def _preferences(directory: Path) -> Prepared:
    rows = []
    for number in range(40):
        prompt = [{"role": "user", "content": f"how many apples are there {number}"}]
        pair = {
            name: [{"role": "assistant", "content": f"{name} {number}"}]
            for name in ("chosen", "rejected")
        }
        rows.append({"prompt": prompt, **pair})
    source = write_jsonl(directory / "in" / "part-0.jsonl", rows)
    recipe = headrace.Preferences(
        blend=source,
        tokenizer=small_tokenizer(directory / "tokenizer"),
        train_ratio=0.8,
        val_ratio=0.2,
        test_ratio=0.0,
    )
    return headrace.prepare(recipe, directory / "out", workers=2)


def _erased(directory: Path) -> Prepared:
    prepared = make("split csv.gz", settings_of("split csv.gz"), directory / "out")
    batch = next(iter(headrace.open(prepared.out).stream("train", batch_size=1)))
    headrace.forget(prepared.out, [str(batch["id"][0])], old_run="delete")
    return prepared


MADE: dict[str, Callable[[Path], Prepared]] = {
    **{
        name: lambda directory, name=name: make(name, settings_of(name), directory / "out")  # type: ignore[misc]
        for name in RECIPES
    },
    "preferences": _preferences,
    "split without some entities": _erased,
}


@cache
def whole(name: str) -> Path:
    """A dataset directory, which nobody may change."""
    directory = place() / f"vouched {name}"
    MADE[name](directory)
    return directory / "out"


def names_of(run: Path) -> list[str]:
    """Every name in a run that is not a directory, links included."""
    return sorted(
        path.relative_to(run).as_posix()
        for path in run.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


def problems_of(out: Path) -> str:
    """What `verify` says, in one text."""
    try:
        return "\n".join(headrace.verify(out, workers=1).problems)
    except headrace.HeadraceError as error:  # a manifest that is refused
        return str(error)


Harm = Callable[[Path, Path], None]


def _swap(file: Path, other: Path) -> None:
    between = file.with_name("between")
    file.rename(between)
    other.rename(file)
    between.rename(other)


def _flip(file: Path, _: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


HARMS: dict[str, Harm] = {
    "deleted": lambda file, _: file.unlink(),
    "swapped": _swap,
    "emptied": lambda file, _: file.write_bytes(b"") and None,
    "longer": lambda file, _: file.write_bytes(file.read_bytes() + b"\n") and None,
    "flipped": _flip,
}


def harms_of(file: Path) -> list[str]:
    """What can happen to a file. Deleting the empty one is no harm, and links have no bytes."""
    if file.is_symlink():
        return ["deleted"] if file.is_dir() else ["deleted", "swapped"]
    if file.name == SUCCESS:
        return ["swapped", "longer"]
    if not file.stat().st_size:
        return ["deleted", "swapped", "longer"]
    return list(HARMS)


def other_than(run: Path, file: str, names: list[str]) -> str:
    """The name before that of a file, of one that has other bytes."""
    at = names.index(file)
    for name in [*names[:at][::-1], *names[at:]]:
        path = run / name
        if path.is_file() and path.read_bytes() != (run / file).read_bytes():
            return name
    raise AssertionError("all files are the same")


@pytest.mark.timeout(900)
@pytest.mark.smoke("packed")
@pytest.mark.parametrize("name", MADE)
def test_whatever_happens_to_a_file_of_a_run_is_named(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole(name), out, symlinks=True)
    (run,) = (out / "runs").iterdir()
    (pristine,) = (whole(name) / "runs").iterdir()
    names = names_of(run)
    silent = []
    for file in names:
        if file in NOT_VOUCHED - {MANIFEST, SUCCESS}:
            continue
        other = "" if (run / file).is_dir() else other_than(run, file, names)
        for harm in harms_of(run / file):
            HARMS[harm](run / file, run / other)
            told = problems_of(out)
            named = file in told or (harm == "swapped" and other in told)
            # a run without a manifest does not exist
            if not named and not (file == MANIFEST and "no finished run" in told):
                silent.append((file, harm, told))
            for each in {file, other} - {""}:
                (run / each).unlink(missing_ok=True)
                shutil.copy2(pristine / each, run / each, follow_symlinks=False)

    assert [] == silent
    assert problems_of(out) == ""


STRAYS = [
    "extra.json",
    "training_data/train/.hidden.csv",
    "receipts/split-99999.json",
    "receipts/notes.txt",
    "stage/left.arrow",
    "training_data/.tmp-part-00000.csv-0123456789abcdef",
    ".DS_Store",
    "splits/more",
    "store/part-99999.arrow",
]


@pytest.mark.parametrize("stray", STRAYS)
def test_a_file_that_is_not_of_the_run_is_named_whatever_it_is_called(
    tmp_path: Path, stray: str
) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole("split csv.gz"), out, symlinks=True)
    (run,) = (out / "runs").iterdir()
    (run / stray).parent.mkdir(parents=True, exist_ok=True)
    (run / stray).write_bytes(b"1")

    assert str(run / stray) in problems_of(out)


def test_a_link_that_is_not_of_the_run_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole("packed"), out, symlinks=True)
    (run,) = (out / "runs").iterdir()
    (run / "elsewhere").symlink_to("datasets")

    assert str(run / "elsewhere") in problems_of(out)


def test_a_page_and_the_lock_may_change(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole("split csv.gz"), out, symlinks=True)
    (run,) = (out / "runs").iterdir()
    (run / "report.html").write_text("<html>")
    (run / ".lock").write_text("1")
    (run / SUCCESS).unlink()

    assert problems_of(out) == ""


def test_every_recipe_is_among_them() -> None:
    recipes = set()
    for name in MADE:
        (run,) = (whole(name) / "runs").iterdir()
        recipes.add(json.loads((run / MANIFEST).read_bytes())["recipe"])

    assert set(BUILT_IN) == recipes
