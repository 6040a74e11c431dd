"""Read the blocks of many small shards of text together.

A block of a few rows takes a hundred times as long to read alone as its share of a larger one. The
small blocks of neighbouring shards that are alike are read when the first of them is asked for:
their bytes, joined, are parsed at once. The others are handed out from memory, each once its shard
has been seen to be unchanged. Where the joined text cannot be read, each block is read alone, so
that an error names its shard.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.errors import HeadraceError
from headrace.formats.joined import SMALL_BYTES, ended
from headrace.formats.registry import raw_errors
from headrace.formats.shard import BOM
from headrace.formats.source import file_type_of_word

_MOST_BYTES = 16 << 20  # of all small shards of a split: with more, blocks in any order need others
_GROUP_BLOCKS = 128
_Key = tuple[int, tuple[str, ...] | None]


class _Held:
    """The rows of a group of blocks, and which of them were not asked for yet."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.table: pa.Table | None = None
        self.left: set[int] = set()


class SmallShards:
    """The small blocks of a split's shards of text. Thread-safe; picklable, without the rows.

    index: of plain shards on a local disk.
    """

    def __init__(self, index: SplitIndex) -> None:
        self._group_of, self._bounds = _groups(index)
        self._index = index
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {"_group_of": self._group_of, "_bounds": self._bounds, "_index": self._index}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = Lock()
        self._loaded: dict[_Key, _Held] = {}

    def holds(self, number: int) -> bool:
        """Return whether a block is read with others."""
        return bool(self._bounds) and self._group_of[number] >= 0

    def read(
        self,
        number: int,
        columns: Sequence[str] | None,
        content_of: Callable[[int], bytes],
        parse: Callable[[int, bytes], pa.Table],
    ) -> pa.Table | None:
        """Return the rows of a block; None if it must be read alone.

        content_of: reads the bytes of a block. parse: parses bytes as those of a block.
        """
        if self._process != os.getpid():  # forked: the parent's locks may be held
            self._begin()
        group = int(self._group_of[number])
        key = (group, None if columns is None else tuple(columns))
        with self._lock:
            loaded = self._loaded.setdefault(key, _Held())
        start, stop = self._bounds[group]
        with loaded.lock:
            if number not in loaded.left:
                loaded.table = self._together(range(start, stop), content_of, parse)
                loaded.left = set(range(start, stop))
            table = loaded.table
            loaded.left.discard(number)
            if not loaded.left:
                with self._lock:
                    self._loaded.pop(key, None)
        if table is None:
            return None
        rows = self._index.rows
        first = int(rows[start:number].sum())
        return table.slice(first, int(rows[number]))

    def _together(
        self,
        numbers: range,
        content_of: Callable[[int], bytes],
        parse: Callable[[int, bytes], pa.Table],
    ) -> pa.Table | None:
        with suppress(HeadraceError, *raw_errors()):
            bodies = []
            for number in numbers:
                body = ended(content_of(number))
                if body is None or body.startswith(BOM):
                    return None
                bodies.append(body)
            table = parse(numbers.start, b"".join(bodies))
            if table.num_rows == int(self._index.rows[numbers.start : numbers.stop].sum()):
                return table.combine_chunks()
        return None


def _groups(index: SplitIndex) -> tuple[I64, list[tuple[int, int]]]:
    """Group the small blocks of text; return the group of each block, or -1, and the first block
    and the one behind the last of each group.

    A group's blocks follow each other, and are of one format and layout.
    """
    small = index.length <= SMALL_BYTES
    group_of = np.full(len(small), -1, np.int64)
    joined = {word: _joins(word) for word in set(index.formats)}
    if (
        index.partitioned
        or not any(joined.values())
        or int(index.length[small].sum()) > _MOST_BYTES
    ):
        return group_of, []
    words = {word: number for number, word in enumerate(joined)}
    shard_group = np.array(
        [words[word] if joined[word] else -1 for word in index.formats], np.int64
    )
    if index.layouts and index.layout_of_shard is not None:
        shard_group = np.where(
            shard_group < 0, -1, shard_group * len(index.layouts) + index.layout_of_shard
        )
    layout_of_block = np.where(small, shard_group[index.shard_of_block], -1)
    boundaries = np.flatnonzero(np.diff(layout_of_block)) + 1
    bounds: list[tuple[int, int]] = []
    for start, stop in zip(
        [0, *boundaries.tolist()], [*boundaries.tolist(), len(layout_of_block)], strict=True
    ):
        if start == stop or layout_of_block[start] < 0:
            continue
        for first in range(start, stop, _GROUP_BLOCKS):
            last = min(first + _GROUP_BLOCKS, stop)
            if last - first > 1:
                group_of[first:last] = len(bounds)
                bounds.append((first, last))
    return group_of, bounds


def _joins(word: str) -> bool:
    try:
        file_type = file_type_of_word(word)
    except HeadraceError:
        return False  # reading a block says so
    is_lines = file_type.format.separator is not None or file_type.format.name == "jsonl"
    return is_lines and file_type.compression == "none"
