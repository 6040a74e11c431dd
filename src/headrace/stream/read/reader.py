"""Read one consumer's rows, from blocks to batches.

For each pool (see `plan_pools`) threads decode the needed blocks ahead. The blocks are sliced to
the needed rows and gathered by one index for all columns; batches are then views. In file order,
batches of numbers are views of the blocks themselves. A thread gathers the next pool while this one
is used, and another plans the one after it. Rows that coming pools need of a block stay decoded.
Only a batch that crosses a pool border is copied again. Memory is the rows of a round, about half
of the rows of the open blocks, and what is decoded ahead. A large pool is laid out for chunks,
section by section, while the one before is used, and gathered chunk by chunk, see `laid`.

The loop waits for the first pool. If that takes few rows of many blocks, and at most an eighth of
all blocks, only these rows are kept. The blocks are decoded again for the next pool, while the
first one is used. Most of the time of a first round goes into memory that the process never used
before, so keeping all rows of its blocks would take several times as long.

A split that fits into memory is decoded whole, once, if all ranks need all its lanes, and stays
there for later passes (see `DecodedSplit`): every round needs every block. The threads copy each
block to its position as it is decoded. Batches are gathered from there, and a round is never
copied. The rows of the next batches are looked up ahead, so that the next round is permuted while
this one is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, Bools
from headrace.dataset.index import SplitIndex
from headrace.errors import CorruptShard, HeadraceError, StreamError
from headrace.gate.mapped import while_mapped
from headrace.stream.loader.options import (
    BLEND_SOURCE,
    IN_ARROW,
    STORE_THREADS,
    VALID,
    StreamOptions,
)
from headrace.stream.order.epoch import Pool, natural_rows, span_rows
from headrace.stream.order.joined import parts_of
from headrace.stream.order.layout import BlendIndex
from headrace.stream.order.mixed import MixedOrder
from headrace.stream.order.plan import MOST_POOLS_AHEAD, Plan, least_pool_rows, plan_pools
from headrace.stream.order.remaining import RankRows
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.ahead import (
    Fetcher,
    Keep,
    Piece,
    end_threads,
    prefetched,
    start_threads,
)
from headrace.stream.read.batch import make_batches
from headrace.stream.read.buffers import Buffers
from headrace.stream.read.by_source import SourceCounts
from headrace.stream.read.columns import (
    Column,
    Columns,
    concatenate,
    cut,
    from_table,
    gather,
    join,
)
from headrace.stream.read.laid import LaidPool, cut_sections
from headrace.stream.read.mask import KEPT
from headrace.stream.read.quarantine import Quarantine
from headrace.stream.read.ragged import Ragged
from headrace.stream.read.runs import continues_of, run_reader

ReadBlock = Callable[[int, Sequence[str] | None], pa.Table]
MakeBatches = Callable[[Columns, int], Iterator[Any]]


@dataclass(eq=False)
class DecodedSplit:
    """The decoded columns of a split, block after block; the stream passes the same object to every
    pass.
    """

    columns: Columns | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"columns": None}  # another process decodes its own


_MOST_PLACES = 1 << 18  # per lookup, which takes a dozen arrays of this length
_WORTH_A_THREAD = 4096  # rows of a pool
_POOLS_OF_MEMORY = 3  # in the loop, waiting for it, and being gathered
_CHUNK_POOLS = 4  # smallest pools that a chunk of a large pool is long
_LEAST_PIECE = 4  # batches of a piece: the one that crosses its border is copied
_MANY_TIMES = 8  # blocks per block that may be decoded twice for an earlier first batch


def read_share(  # noqa: PLR0913, PLR0914 - all are settings
    plan: Plan,
    read_block: ReadBlock,
    options: StreamOptions,
    *,
    topology: Topology,
    quarantine: Quarantine | None = None,
    memory: DecodedSplit | None = None,
    make: MakeBatches | None = None,
    counts: SourceCounts | None = None,
) -> Generator[Any, None, None]:
    """Yield the batches of one rank in order, exactly `plan.steps_per_rank` of them.

    quarantine: takes blocks that cannot be read. memory: keeps a split decoded; None, and where
    blocks may be given up: for this pass alone. make: makes batches of a given number of rows from
    columns; None: as the options say. counts: takes rows and tokens by source, of a blend. Threads
    end when the iterator is exhausted, closed or dropped, or raises. Raises what reading a block
    raised, with rank, shard and block.
    """
    index = plan.index
    rank_rows = plan.rank_rows(topology.rank)
    reader = str(topology)
    columns = options.check_columns(index.schema)
    read_block, columns = reading_real(read_block, columns, options, quarantine)
    # unread rows of a mapped block take no memory
    mapped = "arrow" in index.formats
    keep: Keep = "copies"
    if mapped or not plan.order.shuffle:
        keep = "views"  # in file order few blocks are open
    elif _has_long_lanes(plan):
        keep = "copies of the rest"
    fetcher = Fetcher(
        lambda blocks: decode_run(
            index, read_block, blocks, columns, reader, arrow=options.batch_format in IN_ARROW
        ),
        lambda block: int(plan.block_bytes[block]),
        continues_of(read_block),
        threads=options.threads,
        ahead_bytes=plan.ahead_bytes(options.prefetch_bytes),
        ahead_blocks=options.prefetch_blocks,
        keep=keep,
    )
    if make is None:
        make = partial(
            make_batches,
            batch_format=options.batch_format,
            padding=options.padding,
            form=options.form,
        )
    if plan.keeps_split:
        if memory is None or quarantine is not None:
            memory = DecodedSplit()
        pools = _from_memory(memory, fetcher, plan, rank_rows, columns)
    else:
        planned = plan_pools(
            plan.order, plan.remaining, rank_rows, least_rows=least_pool_rows(plan)
        )
        pools = _gathered(
            fetcher, prefetched(planned, thread_name="headrace-read-plan"), plan, options
        )
    ready = prefetched(pools, thread_name="headrace-read-pool")
    with closing(ready), fetcher:  # the fetcher ends first, so nothing still waits for blocks
        delivered = 0
        for items, rows in while_mapped(full_batches(ready, options.batch_size)):
            is_row = np.arange(delivered, delivered + items) < rank_rows.rows
            delivered += items
            rows = mark_real(rows, is_row, quarantine)
            if isinstance(index, BlendIndex):
                rows = mark_sources(rows)
                if counts is not None:
                    counts.add_columns(rows, options.batch_size, len(index.names))
            batches = make(rows, options.batch_size)
            # shuffled rows are copies, and nothing is mapped any more
            yield from batches if plan.order.shuffle else while_mapped(batches)


def _has_long_lanes(plan: Plan) -> bool:
    """Check whether, in a block shared by two lanes, one lane arrives long after the other has
    left.

    Then a lane's first block need not be held for both. Long means three blocks, and more pools
    than are planned ahead.
    """
    lanes = plan.order.lanes
    block_rows = int(plan.index.rows.max(initial=0))
    pool_rows = max(lanes * plan.order.window_rows, plan.world_size * least_pool_rows(plan))
    return plan.order.rows >= max(3 * lanes * block_rows, (MOST_POOLS_AHEAD + 2) * pool_rows)


def _may_repeat(plan: Plan) -> bool:
    """Return whether rows may come several times in a pool, or in pools that share blocks."""
    return any(isinstance(part.order, MixedOrder) for part in parts_of(plan.order))


class _Gather:
    """A gatherer of pools in reused memory; it gathers half of the columns of a large pool in a
    second thread.

    At the ends of an epoch little or nothing is decoded at the same time, and a core would be idle.
    """

    # reachable even after the interpreter has cleared this module
    _end_threads = staticmethod(end_threads)

    def __init__(self) -> None:
        self._buffers = Buffers(), Buffers()
        self._second = start_threads(1, name="headrace-read-gather")

    def __call__(self, parts: Sequence[Columns], index: I64 | None, rows: int) -> Columns:
        def gathered(names: list[str], buffers: Buffers) -> Columns:
            return gather([{name: part[name] for name in names} for part in parts], index, buffers)

        return self._both(list(parts[0]), rows, gathered)

    def lay(self, laid: LaidPool, parts: list[Columns]) -> None:
        """Lay the next section of a large pool."""
        section = laid.allot(parts)

        def lay(names: list[str], _: Buffers) -> Columns:
            laid.lay(section, names)
            return {}

        self._both(laid.names, len(section.target), lay)

    def chunk(self, laid: LaidPool, number: int) -> tuple[int, Columns]:
        """Return the number of items and the columns of a chunk, whose memory is then free."""
        items = laid.items_of(number)
        columns = self._both(laid.names, items, partial(laid.chunk, number, laid.rows_of(number)))
        laid.free(number)
        return items, columns

    def _both(
        self, names: list[str], rows: int, use: Callable[[list[str], Buffers], Columns]
    ) -> Columns:
        """Use half of the columns in the second thread, if there is enough to do."""
        half = 0
        if rows >= _WORTH_A_THREAD:
            half = len(names) // 2
        if half:
            second = self._second.submit(use, names[:half], self._buffers[1])
        columns = use(names[half:], self._buffers[0])
        if half:
            columns = {**second.result(), **columns}
        for part in self._buffers:
            part.trim(_POOLS_OF_MEMORY * (len(names) - half))
        return columns

    def close(self) -> None:
        self._end_threads(self._second)


class _Pools:
    """The pools of a reader, announced to its fetcher in sections; a small pool is one section.

    piece_rows: of pieces that are worth being cut into batches without a copy; None if they may
    not be written to.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        planned: Iterator[Pool],
        gathered: _Gather,
        plan: Plan,
        *,
        piece_rows: int | None,
    ) -> None:
        self._fetcher = fetcher
        self._planned = planned
        self._gathered = gathered
        self._block_rows = plan.index.rows
        self._chunk_rows = _CHUNK_POOLS * least_pool_rows(plan)
        self._piece_rows = piece_rows
        self.ahead: deque[tuple[Pool, list[list[Piece]]]] = deque()
        self._next: LaidPool | None = None  # the next pool, if some of it is laid

    def announce(self, least: int) -> None:
        """Announce pools until `least` of them wait, and more while the fetcher has room."""
        while len(self.ahead) < least or (
            self._fetcher.has_room and len(self.ahead) < MOST_POOLS_AHEAD
        ):
            pool = next(self._planned, None)
            if pool is None:
                return
            self.add(pool)

    def add(self, pool: Pool) -> None:
        """Announce one pool."""
        sections = [pool.spans]
        if self._is_large(pool):
            sections = cut_sections(pool)
        self.ahead.append((pool, sections))
        for section in sections:
            self._fetcher.announce(section)

    def read(self, *, is_first: bool) -> Iterator[tuple[int, Columns]]:
        """Yield the numbers of items and the columns of the next pool.

        is_first: the loop waits for this pool, so nothing else begins before it is there.
        """
        pool, sections = self.ahead.popleft()
        if not is_first:  # decode for the next pool while waiting for this one
            self.announce(1)
        if self._is_large(pool):
            laid = self._next or LaidPool(pool, sections, None, chunk_rows=self._chunk_rows)
            self._next = None
            del pool
            yield from self._chunks(laid, sections, is_first=is_first)
            return
        parts = self._fetcher.get(pool.spans)
        index = pool.index
        if index is None and self._are_batches(parts, pool.rows):
            ready = [(_rows_of(part), part) for part in parts]
        else:
            columns = self._gathered(parts, index, pool.items)
            if pool.row_of is not None:
                columns = _with_lists(columns, Ragged.compact)
            ready = [(pool.items, columns)]
        if is_first:
            yield from ready
            # before the release, so rows that both need stay decoded
            self.announce(1)
        del parts  # or they would stay alive during the wait for the next pool
        self._fetcher.release(pool.spans)
        if not is_first:
            yield from ready

    def _chunks(
        self, laid: LaidPool, sections: list[list[Piece]], *, is_first: bool
    ) -> Iterator[tuple[int, Columns]]:
        """Yield a large pool in chunks, and lay as much of the next one after each of them."""
        shared: set[int] = set()
        if is_first:
            shared = self._shared_blocks(sections)
        while laid.sections:
            # of a store, all threads fetch at once
            self._fetcher.begin(chain.from_iterable(laid.sections))
            self._lay(laid, shared)
        for number in range(laid.chunks):
            yield self._gathered.chunk(laid, number)
            if is_first and number == 0:
                self.announce(1)
                for section in sections:
                    self._fetcher.release([span for span in section if span[0] in shared])
            self._lay_next(laid, (number + 1) / laid.chunks)

    def _lay_next(self, laid: LaidPool, fraction: float) -> None:
        """Lay this fraction of the next pool into pages that `laid` left, if it is large."""
        if not self.ahead or not self._is_large(self.ahead[0][0]):
            return
        self.announce(2)  # before the release, as in `read`
        if self._next is None:
            pool, sections = self.ahead[0]
            self._next = LaidPool(pool, sections, laid.pages, chunk_rows=self._chunk_rows)
        while self._next.fits and self._next.laid_rows < fraction * self._next.rows:
            self._lay(self._next, set())

    def _are_batches(self, parts: list[Columns], rows: int) -> bool:
        """Return whether pieces of blocks may be cut into batches without a copy."""
        if self._piece_rows is None or len(parts) * self._piece_rows > rows:
            return False
        return all(
            isinstance(column, np.ndarray) and column.flags.writeable
            for part in parts
            for column in part.values()
        )

    def _lay(self, laid: LaidPool, shared: set[int]) -> None:
        """Lay a section, and release its rows of all other blocks than the shared ones."""
        section = laid.sections.popleft()
        self._gathered.lay(laid, self._fetcher.get(section))
        self._fetcher.release([span for span in section if span[0] not in shared])

    def _shared_blocks(self, sections: list[list[Piece]]) -> set[int]:
        """Return the blocks of which these sections leave rows to pools not announced yet."""
        rows: dict[int, int] = {}
        for block, start, stop in chain.from_iterable(sections):
            rows[block] = rows.get(block, 0) + stop - start
        return {block for block, used in rows.items() if used < self._block_rows[block]}

    def _is_large(self, pool: Pool) -> bool:
        """Return whether a pool is laid out for chunks."""
        return pool.item_of is not None and pool.items > self._chunk_rows


def _rows_of(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _gathered(
    fetcher: Fetcher, planned: Generator[Pool, None, None], plan: Plan, options: StreamOptions
) -> Iterator[tuple[int, Columns]]:
    """Yield each pool's number of items and its columns."""
    with closing(planned), closing(_Gather()) as gathered:
        first = next(planned, None)
        if first is None:
            return
        index = plan.index
        # A loop may write to its batches, so they are views of nothing that outlives a pass.
        decoded = all(name.startswith("parquet") for name in set(index.formats))
        decoded = decoded and not _may_repeat(plan)
        piece_rows = _LEAST_PIECE * options.batch_size if decoded else None
        pools = _Pools(fetcher, planned, gathered, plan, piece_rows=piece_rows)
        count = len(first.blocks)
        # With STORE_THREADS the data is in an object store, where fetching twice costs more than
        # memory.
        few_threads = options.threads < min(
            count, STORE_THREADS
        ) and count * plan.world_size * _MANY_TIMES <= len(index.rows)
        if (
            options.shuffle
            and few_threads
            and 4 * first.rows <= int(index.rows[first.blocks].sum())
        ):
            yield first.items, gathered(fetcher.get_alone(first.spans), first.index, first.items)
            pools.announce(1)
        else:
            pools.add(first)
            yield from pools.read(is_first=True)
        del first
        while pools.ahead:
            yield from pools.read(is_first=False)


def _from_memory(
    memory: DecodedSplit, fetcher: Fetcher, plan: Plan, rank_rows: RankRows, names: Sequence[str]
) -> Iterator[tuple[int, Columns]]:
    """Yield the same items as `_gathered`, from a split that is decoded as a whole."""
    if not rank_rows.items:
        return
    index = plan.index
    begun = 0
    if (
        memory.columns is None
        and rank_rows.rows > rank_rows.batch_size
        and len(index.rows) > _MANY_TIMES * rank_rows.batch_size
    ):
        # With many small files, the first batch waits only for its own blocks.
        begun = rank_rows.batch_size
        block, row = plan.order.locate(
            plan.order.line_of(plan.remaining.positions(rank_rows.indices(0, begun)))
        )
        first_rows = span_rows(block, row)
        yield begun, gather(fetcher.get_alone(first_rows.spans), first_rows.index)
    if memory.columns is None:
        memory.columns = _decode_all(fetcher, index, names)
    columns = memory.columns
    size = least_pool_rows(plan)
    repeats = _may_repeat(plan)
    looked_up = prefetched(
        _rows_in_memory(plan, rank_rows, begun), thread_name="headrace-read-plan"
    )
    with closing(looked_up), closing(_Gather()) as gathered:
        for rows in looked_up:
            for start in range(0, len(rows), size):
                batch_rows = rows[start : start + size]
                batches = gathered([columns], batch_rows, len(batch_rows))
                if repeats:
                    batches = _with_lists(batches, Ragged.compact)
                yield len(batch_rows), batches


def _rows_in_memory(plan: Plan, rank_rows: RankRows, begin: int) -> Iterator[I64]:
    """Yield the row numbers in the split of a rank's items from `begin` on, in order."""
    while begin < max(1, rank_rows.rows):
        if rank_rows.rows:
            indices = rank_rows.indices(begin, begin + _MOST_PLACES)
        else:
            indices = np.array([rank_rows.index_of(0)], np.int64)
        rows = natural_rows(plan.index, plan.order, plan.remaining.positions(indices))
        begin += len(rows)
        if begin >= rank_rows.rows:  # the last row also fills the last step
            rows = np.append(rows, np.full(rank_rows.items - max(1, rank_rows.rows), rows[-1]))
        yield rows


def _decode_all(fetcher: Fetcher, index: SplitIndex, columns: Sequence[str]) -> Columns:
    """Decode all rows of a split.

    Arrays are filled in place, so only the blocks being decoded take further memory.
    """
    laid: dict[str, Any] = {}
    # columns that cannot be filled in place, by first row
    others: dict[str, dict[int, Column]] = {}
    lock = Lock()

    def lay(block: int, decoded: Columns) -> None:
        first = int(index.first_row[block])
        for name, column in decoded.items():
            if not isinstance(column, np.ndarray):
                others.setdefault(name, {})[first] = column
                continue
            with lock:  # one thread allocates the array that all fill
                if name not in laid:
                    laid[name] = np.empty((index.total_rows, *column.shape[1:]), column.dtype)
            np.copyto(laid[name][first : first + len(column)], column, casting="no")

    fetcher.decode_blocks(np.flatnonzero(index.rows).tolist(), lay)
    for name in list(others):
        rows = others.pop(name)
        laid[name] = concatenate([rows[first] for first in sorted(rows)])
    return {name: laid[name] for name in columns}


def full_batches(pools: Iterator[tuple[int, Columns]], size: int) -> Iterator[tuple[int, Columns]]:
    """Cut and join pools, given with their numbers of items, to whole batches of `size`; the last
    has the rest.
    """
    left: list[Columns] = []  # less than a batch
    left_items = 0
    for items, columns in pools:
        begun = 0
        if left_items:
            begun = min(items, size - left_items)
        if begun:
            left.append(cut(columns, 0, begun))
            left_items += begun
        if left_items == size:
            # before the yield, so that the memory of its pools is free
            batch = join(left)
            left = []
            left_items = 0
            yield size, batch
        full_until = begun + (items - begun) // size * size
        if begun < full_until:
            yield (
                full_until - begun,
                (columns if (begun, full_until) == (0, items) else cut(columns, begun, full_until)),
            )
        if full_until < items:
            left.append(cut(columns, full_until, items))
            left_items += items - full_until
    if left:
        yield left_items, join(left)


def reading_real(
    read_block: ReadBlock,
    columns: Sequence[str],
    options: StreamOptions,
    quarantine: Quarantine | None,
) -> tuple[ReadBlock, tuple[str, ...]]:
    """Return a reader of blocks, and the columns to read, such that `mark_real` knows which rows
    are real.
    """
    if quarantine is not None:
        read_block = quarantine.around(read_block)
        columns = (*columns, VALID)
    if options.mask is not None:
        read_block = options.mask.around(read_block)
        columns = (*columns, KEPT)
    return read_block, tuple(columns)


def mark_real(columns: Columns, is_row: Bools, quarantine: Quarantine | None) -> Columns:
    """Return the columns with `VALID`: rows of one's own that are neither in bad blocks nor masked.

    is_row: false for rows that only fill the last step. Batches of these columns share no mask, so
    a loop may write to it.
    """
    rows = dict(columns)
    retained = rows.pop(KEPT, None)
    if quarantine is None:
        valid = is_row
    else:
        valid = quarantine.sift(rows, is_row)
    if retained is None:
        rows[VALID] = valid
    else:
        rows[VALID] = valid & np.asarray(retained, np.bool_)
    return rows


def mark_sources(columns: Columns) -> Columns:
    """Return the columns of a blend with no source in rows that are not valid."""
    valid = np.asarray(columns[VALID])
    if valid.all():
        return columns
    return {**columns, BLEND_SOURCE: np.where(valid, np.asarray(columns[BLEND_SOURCE]), -1)}


def _with_lists(columns: Columns, change: Callable[[Ragged], Ragged]) -> Columns:
    """Return the same rows; columns of lists are changed by `change`, a method of theirs.

    Narrowed ones count no values of other rows as theirs. Compact ones do not share the values of
    rows that are there several times.
    """
    changed = dict(columns)
    for name, column in columns.items():
        if isinstance(column, Ragged):
            changed[name] = change(column)
    return changed


def decode_run(
    index: SplitIndex,
    read_block: ReadBlock,
    blocks: range,
    columns: Sequence[str],
    reader: str,
    *,
    arrow: bool,
) -> list[Columns]:
    """Return the columns of adjacent blocks. Errors are those of `decode_block`."""
    runs = run_reader(read_block)
    if len(blocks) > 1 and runs is not None:
        with suppress(Exception):  # each block is read alone then, and says what is wrong
            table = runs.read_run(blocks, columns)
            rows = index.rows[blocks.start : blocks.stop]
            if table.num_rows == rows.sum():
                table = table.select(list(columns))
                together = from_table(table, arrow=arrow, where=reader, gaps=index.gaps)
                stops = np.cumsum(rows)
                return [
                    _with_lists(cut(together, start, stop), Ragged.narrow)
                    for start, stop in zip((stops - rows).tolist(), stops.tolist(), strict=True)
                ]
    return [
        decode_block(index, read_block, block, columns, reader, arrow=arrow) for block in blocks
    ]


def decode_block(
    index: SplitIndex,
    read_block: ReadBlock,
    block: int,
    columns: Sequence[str],
    reader: str,
    *,
    arrow: bool,
) -> Columns:
    """Return the columns of one block.

    Errors name the reader and the block; `CorruptShard` if rows are missing.
    """
    where = f"{reader}: {index.shards[index.shard_of_block[block]]} block {index.block[block]}"
    try:
        table = read_block(block, columns)
    except HeadraceError as error:
        located = copy(error)
        located.path = where if error.path is None else f"{where}: {error.path}"
        raise located from error
    except Exception as error:
        raise StreamError(
            f"cannot be read: {type(error).__name__}: {error}",
            path=where,
            remedy="see that the shard is whole and readable, then resume from the last state",
        ) from error
    if table.num_rows != index.rows[block]:
        raise CorruptShard(
            f"has {table.num_rows} rows, the index says {index.rows[block]}, as the shard changed"
            " after it was indexed",
            path=where,
            remedy="restore it or index the dataset again",
        )
    return from_table(table.select(list(columns)), arrow=arrow, where=where, gaps=index.gaps)
