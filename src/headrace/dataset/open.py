"""Open what `prepare` made: the newest finished run of a dataset directory, or a run by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from headrace.dataset.index import Index, SplitIndex, read_index
from headrace.dataset.manifest import INDEX, MANIFEST, Manifest, read_manifest
from headrace.errors import InputError
from headrace.formats.blocks import read_block

ReadBlock = Callable[[int, Sequence[str] | None], pa.Table]

_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ALIASES = {"oot": "test", "valid": "val"}


class FinishedRun:
    """A finished run, read-only. root: the run directory; every path in the index is relative to it."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root = root
        self.manifest = manifest
        self._split_indexes: dict[str, SplitIndex] = {}

    @cached_property
    def index(self) -> Index:
        """All blocks of the run; its bytes are checked against the manifest."""
        return read_index(self.root / INDEX, self.manifest.index_digest)

    @property
    def schema(self) -> pa.Schema:
        """The columns that readers deliver."""
        return self.index.schema

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.manifest.splits)

    def split_index(self, split: str) -> SplitIndex:
        """The blocks of a split; "oot" is "test", "valid" is "val". Raises `InputError` on other names."""
        name = split if split in self.manifest.splits else ALIASES.get(split, split)
        if name not in self.manifest.splits:
            raise InputError(f"{self.root}: has no split {split!r}; it has {', '.join(self.splits)}")
        if name not in self._split_indexes:
            self._split_indexes[name] = self.index.split(name)
        return self._split_indexes[name]

    def block_reader(self, split: str) -> ReadBlock:
        """A function (block number in `split_index`, columns or None) → the rows of that block."""
        return block_reader(self.root, self.split_index(split), self.index.null_values)


def block_reader(root: Path, index: SplitIndex, null_values: Sequence[str]) -> ReadBlock:
    """Reads blocks of a split below a root directory. Picklable parts only; safe to call from any thread."""
    return _BlockReader(root, index, tuple(null_values))


class _BlockReader:
    def __init__(self, root: Path, index: SplitIndex, null_values: tuple[str, ...]) -> None:
        self._root, self._index, self._null_values = root, index, null_values

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        index = self._index
        shard = int(index.shard_of_block[number])
        return read_block(
            self._root / index.shards[shard],
            index.formats[shard],
            block=int(index.block[number]),
            offset=int(index.offset[number]),
            length=int(index.length[number]),
            columns=columns,
            schema=index.schema,
            null_values=self._null_values,
        )


def find_run(path: str | Path, run: str | None = None) -> tuple[Path, Manifest]:
    """The run directory and manifest behind a path: a dataset directory, or a run directory itself.

    Of a dataset directory the run that `splits/` points at, else the newest. run: a run_id, to choose another.
    Raises `InputError` if there is no finished run.
    """
    root = Path(path)
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


def _linked_run(root: Path) -> str | None:
    for link in sorted((root / "splits").glob("*")):
        match = _RUN_ID.search(str(link.readlink())) if link.is_symlink() else None
        if match:
            return match[0]
    return None
