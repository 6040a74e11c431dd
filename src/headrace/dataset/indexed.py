"""What can be streamed: splits of blocks under one root directory, as a finished run or plain shards give them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Literal

import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.file_cache import FileCache
from headrace.dataset.index import Index, SplitIndex
from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.formats.blocks import read_block
from headrace.formats.open_parquet import Stamp, fact_of, stamp_of
from headrace.storage.places import place_of

Verify = Literal["first_touch", "never"]
ReadBlock = Callable[[int, Sequence[str] | None], pa.Table]

_SECOND = 1_000_000_000  # nanoseconds
_CHECKING = tuple(Lock() for _ in range(64))


def _check_anew() -> None:
    """In a forked child: a thread that was checking did not come along, and nobody would open its lock."""
    global _CHECKING
    _CHECKING = tuple(Lock() for _ in _CHECKING)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_check_anew)

ALIASES = {"oot": "test", "valid": "val", "val": "valid"}
_SYNONYMS = (("train", "training"), ("val", "valid", "validation", "dev"), ("test", "testing", "oot"))


class IndexedDataset(ABC):
    """Splits of blocks, read-only. root: the directory that every path in the index is relative to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._split_indexes: dict[str, SplitIndex] = {}
        self._readers: dict[tuple[str, Verify], ReadBlock] = {}

    @property
    @abstractmethod
    def index(self) -> Index:
        """All blocks."""

    @property
    @abstractmethod
    def split_rows(self) -> Mapping[str, int]:
        """Rows of each split."""

    @property
    def contents(self) -> str:
        """A word that changes whenever the rows may. Raises `SettingsError` for a dataset that has none."""
        raise SettingsError(f'{self.root}: has no digest of its contents to keep blocks under; leave cache="none"')

    @property
    def schema(self) -> pa.Schema:
        """The columns that readers deliver."""
        return self.index.schema

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.split_rows)

    def split_named(self, asked: str) -> str | None:
        """The split's own name, by that or an alias; None if there is no such split."""
        also = next((names for names in _SYNONYMS if asked in names), ())
        return next((name for name in (asked, *also) if name in self.splits), None)

    def split_index(self, split: str | None = None) -> SplitIndex:
        """The blocks of a split; None is the only split there is.

        "oot" and "test" are one name, and so are "val", "valid" and "validation".

        Raises `InputError` on other names, and on None where there are several.
        """
        if split is None and len(self.splits) != 1:
            raise InputError(f"{self.root}: has {len(self.splits)} splits, {', '.join(self.splits)}; name one of them")
        asked = self.splits[0] if split is None else split
        name = self.split_named(asked)
        if name is None:
            raise InputError(f"{self.root}: has no split {split!r}; it has {', '.join(self.splits)}")
        if name not in self._split_indexes:
            self._split_indexes[name] = self.index.split(name)
        return self._split_indexes[name]

    def block_reader(
        self, split: str | None = None, *, verify: Verify = "first_touch", files: FileCache | None = None
    ) -> ReadBlock:
        """A function (block number in `split_index`, columns or None) → the rows of that block.

        verify: "first_touch", each shard is checked against its checksum when this process first reads it; or "never".
        Of Parquet in an object store the pages are checked instead, in either case: see the guide to object stores.
        files: keeps local copies of whole shards of an object store, which are checked against their checksum.
        """
        index = self.split_index(split)
        checked = index if verify == "first_touch" else replace(index, checksums=())
        if files is not None:
            return _BlockReader(self.root, index, tuple(self.index.null_values), files)
        if (index.split, verify) not in self._readers:
            self._readers[index.split, verify] = _BlockReader(self.root, checked, tuple(self.index.null_values))
        return self._readers[index.split, verify]


def block_reader(root: Path, index: SplitIndex, null_values: Sequence[str]) -> ReadBlock:
    """Reads blocks of a split below a root directory. Picklable parts only; safe to call from any thread.

    A shard whose checksum is known is checked against it when it is first read, so that no corrupt byte is delivered:
    `CorruptShard` names it.
    """
    return _BlockReader(root, index, tuple(null_values))


def refuse_changed(path: Path, indexed_as: I64) -> None:
    """Raise `CorruptShard` for a plain shard whose size or time is not that of the index: its blocks lie elsewhere."""
    try:
        stat = path.stat()
    except OSError as error:
        raise CorruptShard(
            f"{path}: cannot be read ({error.strerror}); restore it or open the dataset again"
        ) from error
    if (stat.st_size, stat.st_mtime_ns) != tuple(indexed_as.tolist()):
        raise _changed(path)


def refuse_replaced(path: Path, word: str, indexed_as: I64) -> None:
    """The same of an object, by its size and tag, after a read: an object that is still the one indexed was so then.

    A Parquet object is asked for nothing: all that is read of it has the tag of its footer.
    """
    try:
        fact = fact_of(path) if word == "parquet" else place_of(path).stat()
    except FileNotFoundError as error:
        raise CorruptShard(f"{path}: is missing; restore it or open the dataset again") from error
    size, changed_ns = indexed_as.tolist()
    now_ns = place_of(path).changed_ns(fact)  # a listing may tell more of the time than a request for one object
    if (fact.size, now_ns % _SECOND) != (size, changed_ns % _SECOND):
        raise _changed(path)


def _changed(path: Path) -> CorruptShard:
    return CorruptShard(f"{path}: changed after it was indexed; open the dataset again once it is complete")


class _BlockReader:
    def __init__(
        self,
        root: Path,
        index: SplitIndex,
        null_values: tuple[str, ...],
        files: FileCache | None = None,
    ) -> None:
        self._root, self._index, self._null_values, self._files = root, index, null_values, files
        self._remote = place_of(root).reads == "requests"
        self._copies: dict[int, Path] = {}  # of shards that were as indexed when these copies had been made
        self._whole: dict[int, Stamp] = {}  # shards that have their checksum, as they were then

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        index = self._index
        shard = int(index.shard_of_block[number])
        path = self._root / index.shards[shard]
        known = bool(index.checksums) and bool(index.checksums[shard])
        copy = self._copy(path, index.checksums[shard] if known else "")
        if copy is not None:
            path = copy
        elif known and self._remote and index.formats[shard] == "parquet":
            known = False  # its pages have checksums of their own, and the rest of the object is not fetched
        if known and copy is None:
            self._check(shard, path)
        if index.stamps is not None and not self._remote:
            refuse_changed(path, index.stamps[shard])
        try:
            table = read_block(
                path,
                index.formats[shard],
                block=int(index.block[number]),
                offset=int(index.offset[number]),
                length=int(index.length[number]),
                columns=columns,
                schema=index.schema,
                null_values=self._null_values,
                pages="trust" if known else "check",
            )
        except CorruptShard:
            if copy is None or copy.exists():
                raise
            # Another process made room in this moment.
            return _BlockReader(self._root, index, self._null_values)(number, columns)
        self._refuse_replaced(shard, copy)
        return table

    def _refuse_replaced(self, shard: int, copy: Path | None) -> None:
        path, stamps = self._root / self._index.shards[shard], self._index.stamps
        if stamps is None or not self._remote:
            return
        if copy is None:
            refuse_replaced(path, self._index.formats[shard], stamps[shard])
        elif self._copies.get(shard) != copy:  # the name of a copy holds the digest of its bytes
            refuse_replaced(path, "", stamps[shard])
            self._copies[shard] = copy

    def _copy(self, path: Path, checksum: str) -> Path | None:
        """A local copy of the shard, whose bytes have been checked, where copies are kept."""
        if self._files is None or not self._remote:
            return None
        try:
            return self._files.place(path, checksum)
        except FileNotFoundError as error:
            raise CorruptShard(f"{path}: is missing; restore it or prepare the run again") from error

    def _check(self, shard: int, path: Path) -> None:
        try:
            if self._remote and shard in self._whole:
                return  # not a request for every block
            stamp = stamp_of(path)
            if self._whole.get(shard) == stamp:
                return
            with _CHECKING[shard % len(_CHECKING)]:  # threads that begin blocks of one shard together read it once
                if self._whole.get(shard) == stamp:
                    return
                if place_of(path).checksum() != self._index.checksums[shard]:
                    raise CorruptShard(
                        f"{path}: its bytes are not those that were published; restore it or prepare the run again"
                    )
                self._whole[shard] = stamp
        except OSError as error:
            raise CorruptShard(f"{path}: is missing ({error.strerror}); restore it or prepare the run again") from error
