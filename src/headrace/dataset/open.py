"""Open what `prepare` made: the newest finished run of a dataset directory, or a run by itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from headrace.dataset.index import Index, read_index
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import INDEX, MANIFEST, Manifest, finished_at, read_manifest
from headrace.dataset.pointer import RUN_ID, pointed_run
from headrace.dataset.sound import index_problem
from headrace.errors import CorruptShard, InputError
from headrace.storage.places import path_of, place_of


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
    def finished_at(self) -> str:
        """When the run was finished, in ISO 8601, UTC."""
        return finished_at(self.root)

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
    return place_of(path).holds_any((MANIFEST, "runs", "receipts"))


def find_run(path: str | Path, run: str | None = None) -> tuple[Path, Manifest]:
    """The run directory and manifest behind a path: a dataset directory, or a run directory itself.

    Of a dataset directory the run that `splits` points at (in an object store `splits.json`), else the newest by the
    time of its manifest.
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
        manifest = read_manifest(chosen) if RUN_ID.fullmatch(run) else None
        if manifest is None:
            raise InputError(f"{root}: has no finished run {run!r}; it has {', '.join(_finished(root)) or 'none'}")
        return chosen, manifest
    linked = pointed_run(root)
    if linked is not None:
        manifest = read_manifest(root / "runs" / linked)
        if manifest is not None:
            return root / "runs" / linked, manifest
    finished: list[tuple[str, Path, Manifest]] = []
    for name in _finished(root):
        manifest = read_manifest(root / "runs" / name)
        if manifest is not None:
            finished.append((finished_at(root / "runs" / name), root / "runs" / name, manifest))
    if not finished:
        raise InputError(
            f"{root}: holds no finished run; prepare it first, e.g. with `headrace split SOURCE --out {root}`"
        )
    _, newest, manifest = max(finished, key=lambda each: each[:2])
    return newest, manifest


def _finished(root: Path) -> list[str]:
    runs = root / "runs"
    if not runs.is_dir():
        return []
    return sorted(each.name for each in runs.iterdir() if RUN_ID.fullmatch(each.name) and (each / MANIFEST).exists())
