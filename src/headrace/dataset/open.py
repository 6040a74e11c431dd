"""Open what `prepare` made: the newest finished run of a dataset directory, a run by itself, or a
fold of a run.

A fold names for each of its splits some splits of the run, called cells. The rows of every cell
were written once, in shards of their own, and a fold joins the blocks of its cells into one index.
So opening a fold costs a pass over the index of the run, and whatever holds for a split holds for a
split of a fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import pyarrow as pa

from headrace.dataset.index import (
    INDEX_SCHEMA,
    Index,
    RunIndex,
    SplitIndex,
    columns_of,
    texts_of,
)
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import INDEX, MANIFEST, Manifest, finished_at, read_manifest
from headrace.dataset.pointer import RUN_ID, pointed_run
from headrace.dataset.sound import damaged, index_problem
from headrace.errors import InputError, SettingsError
from headrace.gate.parquet import read_run_table
from headrace.shortage import refuse_small_address_space
from headrace.storage.places import path_of, place_of


class FinishedRun(IndexedDataset):
    """A finished run, read-only.

    root: the run directory; every path in the index is relative to it. texts: whether columns of
    text are delivered as they are "stored", or "typed" by the evidence of all their values.
    """

    def __init__(
        self, root: Path, manifest: Manifest, *, texts: Literal["stored", "typed"] = "stored"
    ) -> None:
        super().__init__(root)
        self.manifest = manifest
        self._texts = texts

    @cached_property
    def index(self) -> RunIndex:
        """All blocks of the run; its bytes are checked against the manifest, and its names stay
        below the run.
        """
        index = read_index(self.root / INDEX, self.manifest.index_digest)
        if self._texts == "typed":
            return index.typed()
        return index

    def split_index(self, split: str | None = None) -> SplitIndex:
        """Return the blocks of a split; see `IndexedDataset.split_index`.

        Raises `InputError` if only folds have it.
        """
        folds = self.manifest.folds
        if folds and (split is None or self.split_named(split) is None):
            raise InputError(
                f"is prepared in {len(folds)} folds, each with {', '.join(folds[0])}",
                path=self.root,
                remedy="choose one, with --fold 0 or headrace.open(…).fold(0)",
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


class Fold(IndexedDataset):
    """One fold of a finished run, read-only: the same shards as its other folds, in other
    splits.
    """

    def __init__(self, run: FinishedRun, number: int) -> None:
        super().__init__(run.root)
        folds = run.manifest.folds
        if not folds:
            raise SettingsError(
                "was prepared as one split and has no folds",
                path=run.root,
                remedy="prepare it in folds",
            )
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(folds):
            raise SettingsError(
                f"the run has folds 0 to {len(folds) - 1}",
                path=run.root,
                setting="fold",
                value=number,
                remedy="choose one of them",
            )
        self._run = run
        self._cells = folds[number]
        self.manifest = run.manifest.fold(number)
        self.number, self.folds = number, len(folds)

    def __str__(self) -> str:
        rows = ", ".join(f"{name} {count:,}" for name, count in self.split_rows.items())
        return f"fold {self.number} of {self.folds}, {rows} rows"

    @property
    def index(self) -> Index:
        """The blocks of all splits of the fold."""
        return self._run.index.with_cells(self._cells)

    @property
    def contents(self) -> str:
        """A digest that changes whenever the rows may."""
        return f"{self._run.contents} fold {self.number}"

    @property
    def split_rows(self) -> Mapping[str, int]:
        """The number of rows of each split."""
        return {split: totals.rows for split, totals in self.manifest.splits.items()}


def is_prepared(path: Path) -> bool:
    """Return whether `prepare` made a directory, finished or not."""
    return place_of(path).holds_any((MANIFEST, "runs", "receipts"))


def find_run(path: str | Path, run: str | None = None) -> tuple[Path, Manifest]:
    """Find the run directory and manifest of a path: a dataset directory, or a run directory
    itself.

    In a dataset directory, this is the run that `splits` points at (in an object store
    `splits.json`), else the newest by the time of its manifest.
    run: a run_id, to choose another.
    Raises `InputError` if there is no finished run, `StoreError` if the process may use too little
    address space to read one.
    """
    refuse_small_address_space()  # libraries that read rows of a run may hang without
    root = path_of(path)
    if not root.is_dir():
        raise InputError(
            "no such directory", path=root, remedy="give the --out directory of a prepared dataset"
        )
    manifest = read_manifest(root) if (root / MANIFEST).exists() else None
    if manifest is not None:
        return root, manifest
    if run is not None:
        chosen = root / "runs" / run
        manifest = read_manifest(chosen) if RUN_ID.fullmatch(run) else None
        if manifest is None:
            raise InputError(
                "there is no such finished run",
                path=root,
                setting="run",
                value=run,
                remedy=f"choose one of {', '.join(_finished(root)) or 'those that will finish'}",
            )
        return chosen, manifest
    for candidate in _newest_first(root):
        manifest = read_manifest(candidate)
        if manifest is not None:
            return candidate, manifest
    raise InputError(
        "holds no finished run",
        path=root,
        remedy="prepare it first, with `headrace run` or `headrace.prepare`",
    )


def _newest_first(root: Path) -> Iterator[Path]:
    """Yield the run that `splits` points at, and then the finished runs from the newest on."""
    linked = pointed_run(root)
    if linked is not None:
        yield root / "runs" / linked
    runs = [root / "runs" / name for name in _finished(root)]
    yield from sorted(runs, key=lambda run: (finished_at(run), run), reverse=True)


def _finished(root: Path) -> list[str]:
    runs = root / "runs"
    if not runs.is_dir():
        return []
    return sorted(
        path.name
        for path in runs.iterdir()
        if RUN_ID.fullmatch(path.name) and (path / MANIFEST).exists()
    )


def read_index(path: Path, digest: str = "") -> RunIndex:
    """Read index.parquet, whose names stay below the run.

    digest: SHA-256 of its bytes, "" if they are not to be checked. Raises `CorruptShard`.
    """
    table = read_run_table(path, INDEX_SCHEMA, sha256=digest)
    problem = index_problem(table)
    if problem is not None:
        raise damaged(path, problem)
    try:
        metadata = table.schema.metadata or {}
        columns = columns_of(metadata)
        texts = texts_of(metadata)
        return RunIndex(table, columns.schema, columns.dialect, texts=texts, gaps=columns.gaps)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"cannot be read as an index ({error})") from error
