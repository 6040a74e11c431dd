"""Open what `prepare` made: the newest finished run of a dataset directory, or a run by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from headrace.dataset.index import Index, read_index
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import INDEX, MANIFEST, Manifest, read_manifest
from headrace.dataset.sound import index_problem
from headrace.errors import CorruptShard, InputError
from headrace.storage.remote_path import RemotePath, path_of

POINTER = "splits.json"
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class FinishedRun(IndexedDataset):
    """A finished run, read-only. root: the run directory; every path in the index is relative to it."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        super().__init__(root)
        self.manifest = manifest

    @cached_property
    def index(self) -> Index:
        """All blocks of the run; its bytes are checked against the manifest, and its names stay below the run."""
        path = self.root / INDEX
        index = read_index(path, self.manifest.index_digest)
        problem = index_problem(index.table)
        if problem is not None:
            raise CorruptShard(f"{path}: {problem}; restore it or prepare the run again")
        return index

    @property
    def contents(self) -> str:
        """The digest of the index, which has the digests of all shards."""
        return self.manifest.index_digest

    @property
    def split_rows(self) -> Mapping[str, int]:
        """Rows of each split."""
        return {name: totals.rows for name, totals in self.manifest.splits.items()}


def is_prepared(path: Path) -> bool:
    """Whether a directory was made by `prepare`, finished or not."""
    if isinstance(path, RemotePath):
        prefixes, facts = path.store.children(path.key)
        return bool({MANIFEST, "runs", "receipts"} & {*prefixes, *(fact.name for fact in facts)})
    return any((path / name).exists() for name in (MANIFEST, "runs", "receipts"))


def find_run(path: str | Path, run: str | None = None) -> tuple[Path, Manifest]:
    """The run directory and manifest behind a path: a dataset directory, or a run directory itself.

    Of a dataset directory the run that `splits/` points at (in an object store `splits.json`), else the newest.
    run: a run_id, to choose another.
    Raises `InputError` if there is no finished run.
    """
    root = path_of(path)
    if not root.is_dir():
        raise InputError(f"{root}: no such directory; give the --out directory of a prepared dataset")
    manifest = read_manifest(root) if (root / MANIFEST).exists() else None
    if manifest is not None:
        return root, manifest
    if run is not None:
        chosen = root / "runs" / run
        manifest = read_manifest(chosen) if _RUN_ID.fullmatch(run) else None
        if manifest is None:
            raise InputError(f"{root}: has no finished run {run!r}; it has {', '.join(_finished(root)) or 'none'}")
        return chosen, manifest
    linked = _linked_run(root)
    if linked is not None:
        manifest = read_manifest(root / "runs" / linked)
        if manifest is not None:
            return root / "runs" / linked, manifest
    newest: tuple[Path, Manifest] | None = None
    for name in _finished(root):
        manifest = read_manifest(root / "runs" / name)
        if manifest is not None and (newest is None or manifest.created_at > newest[1].created_at):
            newest = (root / "runs" / name, manifest)
    if newest is None:
        raise InputError(
            f"{root}: holds no finished run; prepare it first, e.g. with `headrace split SOURCE --out {root}`"
        )
    return newest


def _finished(root: Path) -> list[str]:
    runs = root / "runs"
    if not runs.is_dir():
        return []
    return sorted(each.name for each in runs.iterdir() if _RUN_ID.fullmatch(each.name) and (each / MANIFEST).exists())


def newest_named(root: Path) -> str | None:
    """The run that `splits.json` of a dataset in an object store names; stores have no links."""
    try:
        record = json.loads((root / POINTER).read_bytes())
        name = record["run"]
        return name if _RUN_ID.fullmatch(name) else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptShard(f"{root / POINTER}: names no run ({error}); delete it and prepare again") from error


def _linked_run(root: Path) -> str | None:
    if isinstance(root, RemotePath):
        return newest_named(root)
    for link in sorted((root / "splits").glob("*")):
        match = _RUN_ID.search(str(link.readlink())) if link.is_symlink() else None
        if match:
            return match[0]
    return None
