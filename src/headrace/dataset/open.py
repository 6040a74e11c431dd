"""Open what `prepare` made: the newest finished run of a dataset directory, or a run by itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from headrace.dataset.index import RunIndex, SplitIndex, read_index
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import INDEX, MANIFEST, Manifest, finished_at, read_manifest
from headrace.dataset.pointer import RUN_ID, pointed_run
from headrace.dataset.sound import damaged, index_problem
from headrace.errors import InputError
from headrace.storage.places import path_of, place_of


class FinishedRun(IndexedDataset):
    """A finished run, read-only. root: the run directory; every path in the index is relative to it."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        super().__init__(root)
        self.manifest = manifest

    @cached_property
    def index(self) -> RunIndex:
        """All blocks of the run; its bytes are checked against the manifest, and its names stay below the run."""
        path = self.root / INDEX
        index = read_index(path, self.manifest.index_digest)
        problem = index_problem(index.table)
        if problem is not None:
            raise damaged(path, problem)
        return index

    def split_index(self, split: str | None = None) -> SplitIndex:
        """Return the blocks of a split; see `IndexedDataset.split_index`. Raises `InputError` if only folds have it."""
        folds = self.manifest.folds
        if folds and (split is None or self.split_named(split) is None):
            raise InputError(
                f"{self.root}: is prepared in {len(folds)} folds, each with {', '.join(folds[0])}; choose one, with "
                "--fold 0 or headrace.open(…).fold(0)"
            )
        return super().split_index(split)

    @property
    def finished_at(self) -> str:
        """The time at which the run was finished, in ISO 8601, UTC."""
        return finished_at(self.root)

    @property
    def contents(self) -> str:
        """The digest of the index, which includes the digests of all shards."""
        return self.manifest.index_digest

    @property
    def split_rows(self) -> Mapping[str, int]:
        """The number of rows of each split."""
        return {name: totals.rows for name, totals in self.manifest.splits.items()}


def is_prepared(path: Path) -> bool:
    """Return whether `prepare` made a directory, finished or not."""
    return place_of(path).holds_any((MANIFEST, "runs", "receipts"))


def find_run(path: str | Path, run: str | None = None) -> tuple[Path, Manifest]:
    """Find the run directory and manifest of a path: a dataset directory, or a run directory itself.

    In a dataset directory, this is the run that `splits` points at (in an object store `splits.json`), else the newest
    by the time of its manifest.
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
    manifest = None if linked is None else read_manifest(root / "runs" / linked)
    if linked is not None and manifest is not None:
        return root / "runs" / linked, manifest
    runs = [root / "runs" / name for name in _finished(root)]
    for newest in sorted(runs, key=lambda each: (finished_at(each), each), reverse=True):
        manifest = read_manifest(newest)
        if manifest is not None:
            return newest, manifest
    raise InputError(f"{root}: holds no finished run; prepare it first, e.g. with `headrace split SOURCE --out {root}`")


def _finished(root: Path) -> list[str]:
    runs = root / "runs"
    if not runs.is_dir():
        return []
    return sorted(each.name for each in runs.iterdir() if RUN_ID.fullmatch(each.name) and (each / MANIFEST).exists())
