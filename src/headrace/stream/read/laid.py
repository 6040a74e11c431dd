"""Lay out the rows of a large pool for chunks that are gathered one after the other.

Each chunk of a pool takes rows from everywhere in its blocks. Taken at random from hundreds of
megabytes, each value costs a miss of the processor's cache, five times what it costs from a chunk.
So blocks are read front to back once, and the rows of each chunk are laid close together. Inside a
chunk they stay in the order of the blocks until it is gathered, within the cache.

A pool is laid in sections, each a sixteenth of its rows, so that blocks are dropped as soon as
their rows are laid. What a section has for one chunk takes pages of its own. The pages of a chunk
are free once it was gathered, and the next pool is laid into them while this one is used. So the
rows of one pool and of a section are there at any time, and their memory is touched for the first
time only once.

Lists of numbers have no pages: those of a chunk are appended to one array, section by section. A
chunk is a view of it, so its lists are copied once. The array belongs to the batches of the chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, ranges
from headrace.dataset.index import int64_array
from headrace.stream.order.epoch import Pool
from headrace.stream.read.ahead import Piece
from headrace.stream.read.buffers import Buffers
from headrace.stream.read.columns import Column, Columns, concatenate, gather
from headrace.stream.read.ragged import AppendedRows, ListSource, Ragged

_SECTIONS = 16
_PAGE_ROWS = 256


class Pages:
    """Memory for the rows of columns that numpy holds, in pages that are taken and given back.

    example: columns of any rows. What no page needed yet is reserved, but not touched.
    """

    def __init__(self, example: Columns, count: int) -> None:
        self.count = count
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        for name, column in example.items():
            if isinstance(column, np.ndarray):
                shape = (count * _PAGE_ROWS, *column.shape[1:])
                self.arrays[name] = np.empty(shape, column.dtype)
        # a stack: memory that was touched is used again first
        self._stack = np.arange(count, dtype=np.int64)[::-1].copy()
        self.free = count

    def take(self, count: int) -> I64:
        """Return the numbers of this many pages, which must be free."""
        self.free -= count
        return self._stack[self.free : self.free + count].copy()

    def give_back(self, pages: I64) -> None:
        """Free these pages."""
        self._stack[self.free : self.free + len(pages)] = pages
        self.free += len(pages)


@dataclass(frozen=True, slots=True, eq=False)
class PoolSection:
    """The next rows of a pool, and where they go.

    parts: their columns. target: int64, their rows in the pages; -1: another rank delivers it.
    by_chunk: the numbers of those that each chunk takes. complete: whether all are delivered.
    """

    parts: list[Columns]
    target: I64
    by_chunk: list[I64]
    complete: bool


class LaidPool:
    """The rows of a pool: item i is row `index[i]` of them; only the last item may be repeated.

    sections: the pieces that are not laid yet. pages: those of the pool before this one; they serve
    this one too if they are enough for all of it and a section of the next one.
    """

    def __init__(
        self, pool: Pool, sections: list[list[Piece]], pages: Pages | None, *, chunk_rows: int
    ) -> None:
        assert pool.index is not None
        index = pool.index
        self.sections = deque(sections)
        self.rows = pool.rows
        self.laid_rows = 0
        self.names: list[str] = []
        self._items = len(index)
        self._chunk_rows = chunk_rows
        differs = int(np.argmax(index[::-1] != index[-1]))  # counted from the end; 0 if none does
        distinct = len(index) - differs + 1 if differs else 1
        self.chunks = -(-distinct // chunk_rows)
        self._chunk_type = np.min_scalar_type(self.chunks)
        self._item_of: npt.NDArray[np.signedinteger[Any]]
        self._item_of = np.full(pool.rows, -1, np.int32 if distinct < 1 << 31 else np.int64)
        self._item_of[index[:distinct]] = np.arange(distinct, dtype=self._item_of.dtype)
        self._row = np.empty(distinct, np.int64)  # of each item, in the pages
        self._taken: list[list[I64]] = [[] for _ in range(self.chunks)]
        # The lists of numbers of each chunk are appended to one array, section by section.
        self._lists: dict[str, list[AppendedRows]] = {}
        # Texts and the like are gathered from each section, and once more from there.
        self._others: dict[str, list[list[Column]]] = {}
        self._turn = np.empty(0, np.int64)  # of each item, in these
        self._turns = np.zeros(self.chunks, np.int64)
        # each chunk may fill a page of each section in part
        self._section_pages = -(-section_rows(self.rows) // _PAGE_ROWS) + self.chunks
        self._most_pages = self._section_pages * (len(sections) + 1)
        self.pages = pages
        if pages is not None and pages.count < self._most_pages:
            self.pages = None

    @property
    def fits(self) -> bool:
        """True if there are sections left, and free pages for the next one."""
        if not self.sections:
            return False
        return self.pages is None or self.pages.free >= self._section_pages

    def allot(self, parts: list[Columns]) -> PoolSection:
        """Find pages for the next rows of the pool, the columns `parts`."""
        if not self.names:
            self._begin(parts[0])
        assert self.pages is not None
        rows = sum(len(next(iter(part.values()))) for part in parts)
        items = self._item_of[self.laid_rows : self.laid_rows + rows]
        self.laid_rows += rows
        complete = int(items.min(initial=0)) >= 0
        delivered = None if complete else np.flatnonzero(items >= 0)
        if delivered is not None:
            items = items[delivered]
        chunk = (items // self._chunk_rows).astype(self._chunk_type)
        counts = np.bincount(chunk, minlength=self.chunks)
        along = np.argsort(chunk, kind="stable")  # of small numbers: by their digits, in one pass
        page_rows = self._take(counts)
        items = items[along].astype(np.int64)
        self._row[items] = page_rows
        if self._turns_matter:
            self._turn[items] = ranges(self._turns, counts)
            self._turns += counts
        if delivered is not None:
            along = delivered[along]
        target = np.full(rows, -1, np.int64) if delivered is not None else np.empty(rows, np.int64)
        target[along] = page_rows
        by_chunk = np.split(along, np.cumsum(counts)[:-1])
        return PoolSection(parts, target, by_chunk, complete=complete)

    def _take(self, counts: I64) -> I64:
        """Take pages for this many rows of each chunk, and return the rows in them."""
        assert self.pages is not None
        page_counts = -(-counts // _PAGE_ROWS)
        ends = np.cumsum(page_counts)
        pages = self.pages.take(int(ends[-1]))
        sizes = np.full(len(pages), _PAGE_ROWS)
        some = page_counts > 0
        sizes[ends[some] - 1] -= (page_counts * _PAGE_ROWS - counts)[some]
        for number, of_chunk in enumerate(np.split(pages, ends[:-1])):
            self._taken[number].append(of_chunk)
        return ranges(pages * _PAGE_ROWS, sizes)

    def _begin(self, example: Columns) -> None:
        self.names = list(example)
        for name, column in example.items():
            if isinstance(column, Ragged):
                self._lists[name] = [
                    AppendedRows(self._distinct_of(number)) for number in range(self.chunks)
                ]
            elif not isinstance(column, np.ndarray):
                self._others[name] = [[] for _ in range(self.chunks)]
        if self._turns_matter:
            self._turn = np.empty(len(self._row), np.int64)
        if self.pages is None:
            self.pages = Pages(example, self._most_pages)

    def lay(self, section: PoolSection, names: Sequence[str]) -> None:
        """Lay these columns of a section; several threads may lay other ones at the same time."""
        assert self.pages is not None
        arrays = {name: self.pages.arrays[name] for name in names if name in self.pages.arrays}
        first = 0
        for part in section.parts:
            target = section.target[first : first + len(next(iter(part.values())))]
            first += len(target)
            if section.complete:
                for name, array in arrays.items():
                    array[target] = part[name]
            else:
                delivered = np.flatnonzero(target >= 0)
                target = target[delivered]
                for name, array in arrays.items():
                    array[target] = part[name][delivered]
        for name in names:
            if name in arrays:
                continue
            columns: list[Any] = [part[name] for part in section.parts]
            if name in self._lists:
                self._append(self._lists[name], ListSource(columns), section)
                continue
            joined: Any = concatenate(columns)
            for number, rows in enumerate(section.by_chunk):
                if len(rows):
                    self._others[name][number].append(joined.take(int64_array(rows)))

    @staticmethod
    def _append(chunks: list[AppendedRows], source: ListSource, section: PoolSection) -> None:
        for chunk, rows in zip(chunks, section.by_chunk, strict=True):
            if len(rows):
                chunk.append(source, rows)

    @property
    def _turns_matter(self) -> bool:
        """True if there are columns outside the pages."""
        return bool(self._lists or self._others)

    def _distinct_of(self, number: int) -> int:
        """Count the distinct items of a chunk."""
        return min(self._chunk_rows, len(self._row) - number * self._chunk_rows)

    def items_of(self, number: int) -> int:
        """Count the items of a chunk; the last one has the repetitions too."""
        if number == self.chunks - 1:
            return self._items - number * self._chunk_rows
        return self._chunk_rows

    def chunk(self, number: int, names: Sequence[str], memory: Buffers) -> Columns:
        """Gather these columns of a chunk, in this order."""
        assert self.pages is not None
        items = np.arange(self.items_of(number)) + number * self._chunk_rows
        np.minimum(items, len(self._row) - 1, out=items)
        rows = self._row[items]
        gathered: Columns = {}
        others = [name for name in names if name in self._others]
        for name in names:
            if name in self._others:
                continue
            if name in self._lists:
                gathered[name] = self._lists[name][number].rows()[self._turn[items]]
                continue
            array = self.pages.arrays[name]
            column = memory.empty((len(rows), *array.shape[1:]), array.dtype)
            np.take(array, rows, axis=0, out=column, mode="clip")
            gathered[name] = column
        if others:
            sections = zip(*(self._others[name][number] for name in others), strict=True)
            sources: list[Columns] = [
                dict(zip(others, section, strict=True)) for section in sections
            ]
            gathered.update(gather(sources, self._turn[items], memory))
        return {name: gathered[name] for name in names}

    def free(self, number: int) -> None:
        """Free the memory of a chunk that was gathered."""
        assert self.pages is not None
        for pages in self._taken[number]:
            self.pages.give_back(pages)
        for texts in self._others.values():
            texts[number].clear()
        for lists in self._lists.values():
            lists[number].clear()


def section_rows(rows: int) -> int:
    """Return the rows of each section of a pool."""
    return -(-rows // _SECTIONS)


def cut_sections(pool: Pool) -> list[list[Piece]]:
    """Cut the pieces of a pool into sections."""
    sections: list[list[Piece]] = [[]]
    room = size = section_rows(pool.rows)
    for block, first, stop in pool.spans:
        start = first
        while start < stop:
            if not room:
                sections.append([])
                room = size
            end = min(stop, start + room)
            sections[-1].append((block, start, end))
            room -= end - start
            start = end
    return sections
