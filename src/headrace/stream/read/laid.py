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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, Ints, ranges
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

    parts: their columns. rows: those that are delivered, ascending, int64; a row may repeat. None:
    all of them, once. target: their rows in the pages, int64, parallel. by_chunk: the rows that
    each chunk takes.
    """

    parts: list[Columns]
    rows: I64 | None
    target: I64
    by_chunk: list[I64]


class LaidRows(NamedTuple):
    """What a section has for one chunk: its items, ascending by row, and the pages they are in."""

    items: Ints
    pages: I64


class ChunkRows(NamedTuple):
    """Where the items of a chunk are, in their order: int64 [items].

    rows: in the pages. turns: among the rows of the chunk, section by section.
    """

    rows: I64
    turns: I64


class LaidPool:
    """The rows of a pool that has items in another order.

    sections: the pieces that are not laid yet. pages: those of the pool before this one; they serve
    this one too if they are enough for all of it and a section of the next one.
    """

    def __init__(
        self, pool: Pool, sections: list[list[Piece]], pages: Pages | None, *, chunk_rows: int
    ) -> None:
        assert pool.item_of is not None
        self.sections = deque(sections)
        self.rows = pool.rows
        self.laid_rows = 0
        self.names: list[str] = []
        self._items = pool.items
        self._item_of = pool.item_of
        self._row_of = pool.row_of
        self._chunk_rows = chunk_rows
        self._distinct = pool.items - pool.filling
        self.chunks = -(-self._distinct // chunk_rows)
        self._chunk_type = np.min_scalar_type(self.chunks)
        self._laid: list[list[LaidRows]] = [[] for _ in range(self.chunks)]
        # The lists of numbers of each chunk are appended to one array, section by section.
        self._lists: dict[str, list[AppendedRows]] = {}
        # Texts and the like are gathered from each section, and once more from there.
        self._others: dict[str, list[list[Column]]] = {}
        # each chunk may fill a page of each section in part
        most = self._most_items(sections)
        self._section_pages = -(-most // _PAGE_ROWS) + self.chunks
        pool_pages = -(-len(self._item_of) // _PAGE_ROWS) + self.chunks * len(sections)
        self._most_pages = pool_pages + self._section_pages
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
        items, delivered = self._delivered(self.laid_rows, self.laid_rows + rows)
        self.laid_rows += rows
        chunk = (items // self._chunk_rows).astype(self._chunk_type)
        counts = np.bincount(chunk, minlength=self.chunks)
        along = np.argsort(chunk, kind="stable")  # of small numbers: by their digits, in one pass
        target = np.empty(len(items), np.int64)
        target[along] = self._take(items[along], counts)
        if delivered is not None:
            along = delivered[along]
        by_chunk = np.split(along, np.cumsum(counts)[:-1])
        return PoolSection(parts, delivered, target, by_chunk)

    def _delivered(self, first: int, stop: int) -> tuple[Ints, I64 | None]:
        """Return the items that take rows first..stop-1 of the pool, by row, and their rows,
        counted from `first`; None for all rows, once.
        """
        if self._row_of is not None:
            entries = slice(*np.searchsorted(self._row_of, [first, stop]).tolist())
            return self._item_of[entries], self._row_of[entries] - first
        items = self._item_of[first:stop]
        if int(items.min(initial=0)) >= 0:
            return items, None
        delivered = np.flatnonzero(items >= 0)
        return items[delivered], delivered

    def _most_items(self, sections: list[list[Piece]]) -> int:
        """Return the most items that a section may have."""
        if self._row_of is None:
            return section_rows(self.rows)
        rows = [sum(stop - start for _, start, stop in section) for section in sections]
        before = np.searchsorted(self._row_of, np.cumsum(rows))
        return int(np.diff(before, prepend=0).max(initial=0))

    def _take(self, items: Ints, counts: I64) -> I64:
        """Take pages for these items, of which each chunk has this many, and return the rows in
        them.
        """
        assert self.pages is not None
        page_ends = np.cumsum(-(-counts // _PAGE_ROWS))
        pages = self.pages.take(int(page_ends[-1]))
        of_chunks = zip(
            self._laid,
            np.split(items, np.cumsum(counts)[:-1]),
            np.split(pages, page_ends[:-1]),
            strict=True,
        )
        for laid, of_chunk, pages_of_chunk in of_chunks:
            laid.append(LaidRows(of_chunk, pages_of_chunk))
        return _rows_in(pages, counts)

    def _begin(self, example: Columns) -> None:
        self.names = list(example)
        for name, column in example.items():
            if isinstance(column, Ragged):
                self._lists[name] = [
                    AppendedRows(self._distinct_of(number)) for number in range(self.chunks)
                ]
            elif not isinstance(column, np.ndarray):
                self._others[name] = [[] for _ in range(self.chunks)]
        if self.pages is None:
            self.pages = Pages(example, self._most_pages)

    def lay(self, section: PoolSection, names: Sequence[str]) -> None:
        """Lay these columns of a section; several threads may lay other ones at the same time."""
        assert self.pages is not None
        arrays = {name: self.pages.arrays[name] for name in names if name in self.pages.arrays}
        first = 0
        for part in section.parts:
            stop = first + len(next(iter(part.values())))
            if section.rows is None:
                target = section.target[first:stop]
                for name, array in arrays.items():
                    array[target] = part[name]
            else:
                of_part = slice(*np.searchsorted(section.rows, [first, stop]).tolist())
                delivered = section.rows[of_part] - first
                for name, array in arrays.items():
                    array[section.target[of_part]] = part[name][delivered]
            first = stop
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

    def _distinct_of(self, number: int) -> int:
        """Count the distinct items of a chunk."""
        return min(self._chunk_rows, self._distinct - number * self._chunk_rows)

    def items_of(self, number: int) -> int:
        """Count the items of a chunk; the last one has the repetitions too."""
        if number == self.chunks - 1:
            return self._items - number * self._chunk_rows
        return self._chunk_rows

    def rows_of(self, number: int) -> ChunkRows:
        """Find the items of a chunk that is laid."""
        laid = self._laid[number]
        items = np.concatenate([section.items for section in laid]) - number * self._chunk_rows
        counts = np.array([len(section.items) for section in laid])
        turns = np.empty(self.items_of(number), np.int64)
        turns[items] = np.arange(len(items))
        turns[len(items) :] = turns[len(items) - 1]
        rows = _rows_in(np.concatenate([section.pages for section in laid]), counts)
        return ChunkRows(rows[turns], turns)

    def chunk(
        self, number: int, items: ChunkRows, names: Sequence[str], memory: Buffers
    ) -> Columns:
        """Gather these columns of a chunk, in this order; several threads may gather other ones at
        the same time.

        items: of `rows_of`.
        """
        assert self.pages is not None
        gathered: Columns = {}
        others = [name for name in names if name in self._others]
        for name in names:
            if name in self._others:
                continue
            if name in self._lists:
                gathered[name] = self._lists[name][number].rows()[items.turns]
                continue
            array = self.pages.arrays[name]
            column = memory.empty((len(items.rows), *array.shape[1:]), array.dtype)
            np.take(array, items.rows, axis=0, out=column, mode="clip")
            gathered[name] = column
        if others:
            sections = zip(*(self._others[name][number] for name in others), strict=True)
            sources: list[Columns] = [
                dict(zip(others, section, strict=True)) for section in sections
            ]
            gathered.update(gather(sources, items.turns, memory))
        return {name: gathered[name] for name in names}

    def free(self, number: int) -> None:
        """Free the memory of a chunk that was gathered."""
        assert self.pages is not None
        for section in self._laid[number]:
            self.pages.give_back(section.pages)
        self._laid[number].clear()
        for texts in self._others.values():
            texts[number].clear()
        for lists in self._lists.values():
            lists[number].clear()


def _rows_in(pages: I64, counts: I64) -> I64:
    """Return the rows in pages that groups of this many rows have one after the other."""
    page_counts = -(-counts // _PAGE_ROWS)
    sizes = np.full(len(pages), _PAGE_ROWS)
    some = page_counts > 0
    sizes[np.cumsum(page_counts)[some] - 1] -= (page_counts * _PAGE_ROWS - counts)[some]
    return ranges(pages * _PAGE_ROWS, sizes)


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
