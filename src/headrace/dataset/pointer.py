"""The pointer: which run a trainer sees that reads paths, and whether it sees that run whole.

    runs/<run_id>/splits/<name> -> ../<directory>   the run's own links, made before its manifest, never changed
    splits -> runs/<run_id>/splits                  one link, so one rename replaces all splits together
    <file> -> splits/../<file>                      files beside splits/ change hands with the same rename

An object store has no links. There `splits.json` names the run and its directories, and one PUT replaces it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.dataset.manifest import Manifest
from headrace.errors import CorruptShard
from headrace.storage.local import TEMP_PREFIX
from headrace.storage.places import place_of

SPLITS, POINTER = "splits", "splits.json"
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TO_RUN = re.compile(rf"runs/({RUN_ID.pattern})/{SPLITS}")
_SINGLE = re.compile(rf"\.\./runs/{RUN_ID.pattern}/.+")  # earlier versions: a link a split, and files beside them
_BESIDE = re.compile(rf"runs/{RUN_ID.pattern}/.+")
_AGAIN = "prepare the run again, or open it by its run id"


def pointer_of(root: Path) -> Path:
    """The link or file of a dataset directory that leads to its newest run."""
    return root / (SPLITS if place_of(root).has_links else POINTER)


def pointed_run(root: Path) -> str | None:
    """The run id that the pointer of a dataset directory names, or None where there is no pointer.

    A directory `splits/` of single links is what earlier versions made; the first link that leads to a run counts.
    Raises `CorruptShard` for a `splits.json` that names no run.
    """
    if not place_of(root).has_links:
        return _named(root)
    pointer = root / SPLITS
    if pointer.is_symlink():
        match = _TO_RUN.fullmatch(os.readlink(pointer))
        return match[1] if match else None
    for link in sorted(pointer.glob("*")):
        found = RUN_ID.search(os.readlink(link)) if link.is_symlink() else None
        if found:
            return found[0]
    return _named(root)  # a copy of a dataset that was in a store


def pointer_record(run_id: str, manifest: Manifest) -> dict[str, Any]:
    """What `splits.json` says of a run; paths are relative to the dataset."""
    return {
        "run": run_id,
        "splits": _below_run(run_id, manifest.facts["directories"]),
        "published": _below_run(run_id, manifest.facts.get("published", {})),
    }


def own_links(manifest: Manifest) -> dict[str, str]:
    """Name → text of each link in a run's own `splits/`. A split whose directory is already there needs none."""
    places = manifest.facts["directories"].items()
    return {name: os.path.relpath(place, SPLITS) for name, place in places if place != f"{SPLITS}/{name}"}


def beside_links(manifest: Manifest) -> dict[str, str]:
    """Name → text of each link beside `splits/`. The kernel follows `splits` first, so `..` is the run."""
    return {name: f"{SPLITS}/../{place}" for name, place in manifest.facts.get("published", {}).items()}


def leads_into_a_run(link: Path, root: Path) -> bool:
    """Whether a name directly below `root`, or below a directory of single links in it, is a link that headrace made.

    A link of the user's, e.g. `best -> runs/<run_id>`, has another name than what it leads to.
    """
    if not link.is_symlink() or link.name.startswith(TEMP_PREFIX):
        return False
    text = os.readlink(link)
    if link.parent != root:
        return _SINGLE.fullmatch(text) is not None
    return text.startswith(f"{SPLITS}/../") or (_BESIDE.fullmatch(text) is not None and Path(text).name == link.name)


def pointer_problem(root: Path, run: Path, manifest: Manifest) -> str | None:
    """What a trainer that reads the paths of `root` sees other than this run, or None if it sees this run whole."""
    if not place_of(root).has_links:
        return _json_problem(root, run, manifest)
    pointer, wanted = root / SPLITS, f"runs/{run.name}/{SPLITS}"
    if pointer.is_symlink():
        text = os.readlink(pointer)
        if text != wanted:
            return f"{pointer}: leads to {text}, not to {wanted}; delete the link and {_AGAIN}"
        problem = own_links_problem(run, manifest)
    elif pointer.is_dir():
        problem = _single_links_problem(pointer, run, manifest)
    elif os.path.lexists(pointer):
        return f"{pointer}: is a file, not a link to {wanted}; move it away and {_AGAIN}"
    elif (root / POINTER).is_file():
        return _json_problem(root, run, manifest)
    else:
        return f"{pointer}: is missing, so trainers that read paths find no split; {_AGAIN}"
    return problem or _beside_problem(root, run, manifest)


def own_links_problem(run: Path, manifest: Manifest) -> str | None:
    """The first name in a run's own `splits/` that does not lead where the manifest says, or None."""
    directory, links = run / SPLITS, own_links(manifest)
    for name, place in sorted(manifest.facts["directories"].items()):
        entry = directory / name
        if name in links and (not entry.is_symlink() or os.readlink(entry) != links[name]):
            return f"{entry}: is not a link to {links[name]}; restore it or prepare the run again"
        if (name not in links and entry.is_symlink()) or not entry.is_dir():
            return f"{entry}: does not lead to the directory {place} of the run; restore it or prepare the run again"
    for entry in sorted(directory.iterdir()):
        if entry.name not in manifest.facts["directories"] and not entry.name.startswith(TEMP_PREFIX):
            return f"{entry}: is not part of this run; move it away"
    return None


def _single_links_problem(pointer: Path, run: Path, manifest: Manifest) -> str | None:
    """The same of the layout of earlier versions: a directory with one link a split."""
    places = manifest.facts["directories"]
    entries = sorted(each for each in pointer.iterdir() if not each.name.startswith(TEMP_PREFIX))
    for entry in entries:
        if not entry.is_symlink():
            return f"{entry}: is not a link into a run; move it away and {_AGAIN}"
        if entry.name not in places or not _same_place(entry, run / places[entry.name]):
            return f"{entry}: leads to {os.readlink(entry)}, which is not a split of run {run.name}; {_AGAIN}"
    missing = sorted(set(places) - {each.name for each in entries})
    return f"{pointer / missing[0]}: is missing; {_AGAIN}" if missing else None


def _beside_problem(root: Path, run: Path, manifest: Manifest) -> str | None:
    beside = manifest.facts.get("published", {})
    for name, place in sorted(beside.items()):
        if not _same_place(root / name, run / place):
            return f"{root / name}: does not lead to {place} of run {run.name}; move it away and {_AGAIN}"
    for entry in sorted(root.iterdir()):
        if entry.name not in (SPLITS, *beside) and leads_into_a_run(entry, root):
            return f"{entry}: is a link of another run than {run.name}; delete it"
    return None


def _same_place(link: Path, target: Path) -> bool:
    return link.exists() and target.exists() and link.samefile(target)


def _json_problem(root: Path, run: Path, manifest: Manifest) -> str | None:
    place = root / POINTER
    try:
        record = json.loads(place.read_bytes())
    except FileNotFoundError:
        return f"{place}: is missing, so readers of the store cannot tell which run is the newest; {_AGAIN}"
    except ValueError:
        return f"{place}: is not JSON; {_AGAIN}"
    same = record == pointer_record(run.name, manifest)
    return None if same else f"{place}: does not name run {run.name} and its splits; {_AGAIN}"


def _named(root: Path) -> str | None:
    """The run that `splits.json` names."""
    try:
        name = json.loads((root / POINTER).read_bytes())["run"]
        return name if RUN_ID.fullmatch(name) else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptShard(f"{root / POINTER}: names no run ({error}); delete it and prepare again") from error


def _below_run(run_id: str, names: Mapping[str, str]) -> dict[str, str]:
    return {name: f"runs/{run_id}/{relative}" for name, relative in sorted(names.items())}
