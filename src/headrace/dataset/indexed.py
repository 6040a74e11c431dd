"""What can be streamed: splits of blocks under one root directory, as a finished run or plain shards give them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock

import pyarrow as pa

from headrace.dataset.index import Index, SplitIndex
from headrace.digest import sha256_file
from headrace.errors import CorruptShard, InputError
from headrace.formats.blocks import read_block

ReadBlock = Callable[[int, Sequence[str] | None], pa.Table]

_CHECKING = Lock()

ALIASES = {"oot": "test", "valid": "val"}


class IndexedDataset(ABC):
    """Splits of blocks, read-only. root: the directory that every path in the index is relative to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._split_indexes: dict[str, SplitIndex] = {}
        self._readers: dict[str, ReadBlock] = {}

    @property
    @abstractmethod
    def index(self) -> Index:
        """All blocks."""

    @property
    @abstractmethod
    def split_rows(self) -> Mapping[str, int]:
        """Rows of each split."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that readers deliver."""
        return self.index.schema

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.split_rows)

    def split_index(self, split: str | None = None) -> SplitIndex:
        """The blocks of a split; "oot" is "test", "valid" is "val"; None is the only split there is.

        Raises `InputError` on other names, and on None where there are several.
        """
        if split is None and len(self.splits) != 1:
            raise InputError(f"{self.root}: has {len(self.splits)} splits, {', '.join(self.splits)}; name one of them")
        asked = self.splits[0] if split is None else split
        name = asked if asked in self.splits else ALIASES.get(asked, asked)
        if name not in self.splits:
            raise InputError(f"{self.root}: has no split {split!r}; it has {', '.join(self.splits)}")
        if name not in self._split_indexes:
            self._split_indexes[name] = self.index.split(name)
        return self._split_indexes[name]

    def block_reader(self, split: str | None = None) -> ReadBlock:
        """A function (block number in `split_index`, columns or None) → the rows of that block."""
        index = self.split_index(split)
        if index.split not in self._readers:
            self._readers[index.split] = block_reader(self.root, index, self.index.null_values)
        return self._readers[index.split]


def block_reader(root: Path, index: SplitIndex, null_values: Sequence[str]) -> ReadBlock:
    """Reads blocks of a split below a root directory. Picklable parts only; safe to call from any thread.

    A shard whose digest is known is checked against it when it is first read, so that no corrupt byte is delivered:
    `CorruptShard` names it.
    """
    return _BlockReader(root, index, tuple(null_values))


class _BlockReader:
    def __init__(self, root: Path, index: SplitIndex, null_values: tuple[str, ...]) -> None:
        self._root, self._index, self._null_values = root, index, null_values
        self._whole: set[int] = set()  # shards that have their digest

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        index = self._index
        shard = int(index.shard_of_block[number])
        path = self._root / index.shards[shard]
        if shard not in self._whole and index.digests and index.digests[shard]:
            self._check(shard, path)
        return read_block(
            path,
            index.formats[shard],
            block=int(index.block[number]),
            offset=int(index.offset[number]),
            length=int(index.length[number]),
            columns=columns,
            schema=index.schema,
            null_values=self._null_values,
        )

    def _check(self, shard: int, path: Path) -> None:
        with _CHECKING:  # threads that begin blocks of one shard together read it once
            if shard in self._whole:
                return
            try:
                digest = sha256_file(path)
            except OSError as error:
                raise CorruptShard(
                    f"{path}: is missing ({error.strerror}); restore it or prepare the run again"
                ) from error
            if digest != self._index.digests[shard]:
                raise CorruptShard(
                    f"{path}: its bytes are not those that were published; restore it or prepare the run again"
                )
            self._whole.add(shard)
