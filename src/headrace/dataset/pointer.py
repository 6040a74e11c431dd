"""Maintain the pointer: the run that trainers reading paths see, switched atomically.

    runs/<run_id>/splits/<name> -> ../<directory>   the run's links, made before its manifest, never
                                                    changed
    splits -> runs/<run_id>/splits                  one link, so one rename replaces all splits
    <file> -> splits/../<file>                      files beside splits/ switch with the same rename

Nothing that a reader sees changes before the rename. A process that dies at any point leaves the
old run or the new one, and preparing again finishes the rest. An object store has no links: there
`splits.json` names the run and its directories, and one PUT replaces it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from headrace.dataset.manifest import Manifest
from headrace.errors import CorruptShard, StoreError
from headrace.gate.json import find_object
from headrace.storage import local
from headrace.storage.local import TEMP_PREFIX
from headrace.storage.places import place_of

Announce = Callable[[Literal["links.made", "beside.linked", "splits.linked"], str], None]

SPLITS = "splits"
POINTER = "splits.json"
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TO_RUN = re.compile(rf"runs/({RUN_ID.pattern})/{SPLITS}")
_AGAIN = "prepare the run again, or open it by its run id"


def pointer_of(root: Path) -> Path:
    """Return the link or file of a dataset directory that leads to its newest run."""
    return root / (SPLITS if place_of(root).has_links else POINTER)


def pointed_run(root: Path) -> str | None:
    """Return the run id that the pointer of a dataset directory names, or None if there is no
    pointer.

    A dataset that was copied from a store to a disk is opened by its `splits.json`.
    Raises `CorruptShard` for a `splits.json` that names no run.
    """
    pointer = root / SPLITS
    if place_of(root).has_links and pointer.is_symlink():
        match = _TO_RUN.fullmatch(os.readlink(pointer))
        if match:
            return match[1]
        return None
    record = find_object(root / POINTER)
    if record is None:
        return None
    name = record.get("run")
    if not isinstance(name, str):
        raise CorruptShard(
            "names no run", path=root / POINTER, value=name, remedy="delete it and prepare again"
        )
    if RUN_ID.fullmatch(name):
        return name
    return None


def check_pointer(out: Path) -> None:
    """Refuse an output where the pointer cannot be made, before the work, so that no work is lost.

    Raises `StoreError` that names the file in the way, or says that the file system has no symbolic
    links.
    """
    pointer = out / SPLITS
    if os.path.lexists(pointer):
        if not pointer.is_symlink() or not _TO_RUN.fullmatch(os.readlink(pointer)):
            raise _in_the_way(pointer)
        return
    probe = local.temporary_for(pointer)
    try:
        os.symlink(SPLITS, probe)
        probe.unlink(missing_ok=True)  # `headrace gc` may have swept it
    except OSError as error:
        raise StoreError(
            f"cannot hold symbolic links ({error.strerror}), and splits/ is one",
            path=out,
            remedy="choose an output directory on another file system",
        ) from error


def make_split_links(run: Path, directories: Mapping[str, str]) -> None:
    """Make `runs/<run_id>/splits/`, durably. directories: of the splits, relative to the run."""
    links = split_links(directories)
    directory = local.make_directory(run / SPLITS)
    with local.storing(directory):
        for name, path in sorted(directories.items()):
            local.make_directory(run / path)  # a split without rows
            if name in links:
                local.link_to(directory / name, links[name])
    local.sync_directory(directory)
    local.sync_directory(run)


def point_at(out: Path, run: Path, manifest: Manifest, announce: Announce) -> None:
    """Point `splits`, and every file that the run publishes beside it, at this run.

    Raises `StoreError`.
    """
    make_split_links(run, manifest.metadata["directories"])
    announce("links.made", SPLITS)
    pointer = out / SPLITS
    beside = manifest.metadata.get("published", {})
    with local.alone(out / "runs"):  # so that each process makes all its links before the next one
        check_pointer(out)
        for name in sorted(beside):
            if os.path.lexists(out / name) and not _follows_pointer(out / name):
                raise _in_the_way(out / name)
        # dangling, or leads to the old run, until the pointer moves
        for name, target in sorted(beside.items()):
            # the kernel follows `splits` first: `..` is the run
            local.link_to(out / name, f"{SPLITS}/../{target}")
        announce("beside.linked", SPLITS)
        local.link_to(pointer, f"runs/{run.name}/{SPLITS}")
        local.sync_directory(out)
        announce("splits.linked", str(pointer))
        with local.storing(out):
            for entry in sorted(out.iterdir()):
                if entry.name not in beside and _follows_pointer(entry):
                    entry.unlink(missing_ok=True)


def point_record_at(out: Path, run_id: str, manifest: Manifest) -> None:
    """Point `splits.json` of an object store at the run as the newest."""
    record = out / POINTER
    data = (json.dumps(pointer_record(run_id, manifest), indent=1, sort_keys=True) + "\n").encode()
    with suppress(FileNotFoundError):
        if record.read_bytes() == data:
            return
    place_of(record).replace(data)


def pointer_record(run_id: str, manifest: Manifest) -> dict[str, Any]:
    """Return the content of `splits.json`; paths are relative to the dataset."""

    def below_run(names: Mapping[str, str]) -> dict[str, str]:
        return {name: f"runs/{run_id}/{relative}" for name, relative in sorted(names.items())}

    return {
        "run": run_id,
        "splits": below_run(manifest.metadata["directories"]),
        "published": below_run(manifest.metadata.get("published", {})),
    }


def pointer_problem(root: Path, run: Path, manifest: Manifest) -> str | None:
    """Describe why a trainer that reads the paths of `root` does not see this run completely; None
    if it does.
    """
    pointer = root / SPLITS
    if not place_of(root).has_links or (
        not os.path.lexists(pointer) and (root / POINTER).is_file()
    ):
        return _record_problem(root / POINTER, run, manifest)
    return _link_problem(pointer, f"runs/{run.name}/{SPLITS}") or _beside_problem(
        root, run, manifest
    )


def _record_problem(record: Path, run: Path, manifest: Manifest) -> str | None:
    try:
        actual = find_object(record)
    except CorruptShard as error:
        return f"{error}; {_AGAIN}"
    if actual is None:
        return (
            f"{record}: is missing, so readers of the store cannot tell which run is the"
            f" newest; {_AGAIN}"
        )
    if actual == pointer_record(run.name, manifest):
        return None
    return f"{record}: does not name run {run.name} and its splits; {_AGAIN}"


def _link_problem(pointer: Path, expected: str) -> str | None:
    if not os.path.lexists(pointer):
        return f"{pointer}: is missing, so trainers that read paths find no split; {_AGAIN}"
    if not pointer.is_symlink():
        file_type = "directory" if pointer.is_dir() else "file"
        return f"{pointer}: is a {file_type}, not a link to {expected}; move it away and {_AGAIN}"
    if (text := os.readlink(pointer)) != expected:
        return f"{pointer}: leads to {text}, not to {expected}; delete the link and {_AGAIN}"
    return None


def _beside_problem(root: Path, run: Path, manifest: Manifest) -> str | None:
    """Name the first link beside `splits` that does not lead into this run, or None."""
    beside = manifest.metadata.get("published", {})
    for name, path in sorted(beside.items()):
        link = root / name
        target = run / path
        if not (link.exists() and target.exists() and link.samefile(target)):
            return f"{link}: does not lead to {path} of run {run.name}; move it away and {_AGAIN}"
    for entry in sorted(root.iterdir()):
        if entry.name not in beside and _follows_pointer(entry):
            return f"{entry}: is a link of another run than {run.name}; delete it"
    return None


def split_links(directories: Mapping[str, str]) -> dict[str, str]:
    """Return name → target of each link in a run's own `splits/`; a split already inside it needs
    none.
    """
    result = {}
    for name, directory in directories.items():
        if directory != f"{SPLITS}/{name}":
            result[name] = os.path.relpath(directory, SPLITS)
    return result


def _follows_pointer(link: Path) -> bool:
    """Return whether headrace made this link beside `splits`; e.g.

    `best -> runs/<run_id>` is the user's.
    """
    return (
        link.is_symlink()
        and not link.name.startswith(TEMP_PREFIX)
        and os.readlink(link).startswith(f"{SPLITS}/../")
    )


def _in_the_way(path: Path) -> StoreError:
    return StoreError(
        "is in the way of a link of that name", path=path, remedy="move it, or choose another --out"
    )
