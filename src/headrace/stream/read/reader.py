"""One consumer's rows, from blocks to batches.

For each pool (see `pools`) the blocks it needs are decoded ahead in threads, sliced to what is needed, and gathered by
one index for all columns; batches are then views. The next pool is gathered in a thread while this one is used. What
coming pools need of a block stays decoded. Only a batch that crosses a pool border is copied again. Memory is three
pools, about half of the rows of their open blocks, and what is decoded ahead.

The loop waits for the first pool. Where that takes few rows of many blocks, and at most an eighth of all, only these
rows are kept, and the blocks are decoded again for the next pool, while the first one is used. Most of the time of a
first round goes into memory that a process never used before: keeping all rows of its blocks would take several times
as long.

A small split that is shuffled is decoded whole, once, and stays in memory for later passes (see `KeptSplit`): its order
is one permutation, so that every batch needs every block. The threads copy each block to its place as it is decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.errors import CorruptShard, HeadraceError, InputError, StoreError, StreamError
from headrace.stream.loader.options import IN_ARROW, VALID, StreamOptions
from headrace.stream.order.epoch import Pool, span_rows
from headrace.stream.order.plan import Plan
from headrace.stream.order.pools import MOST_POOLS_AHEAD, least_pool_rows, plan_pools
from headrace.stream.order.share import Share
from headrace.stream.read.ahead import made_ahead
from headrace.stream.read.batch import Batch, make_batches
from headrace.stream.read.buffers import Buffers
from headrace.stream.read.columns import Column, Columns, concatenate, cut, from_table, gather, join
from headrace.stream.read.fetch import Fetcher
from headrace.stream.read.quarantine import Quarantine

ReadBlock = Callable[[int, Sequence[str] | None], pa.Table]


class KeptSplit:
    """The decoded columns of a small split, block after block; whoever streams it passes one to every pass."""

    def __init__(self) -> None:
        self._columns: Columns | None = None

    @property
    def is_there(self) -> bool:
        """Whether the columns are decoded."""
        return self._columns is not None

    def columns(self, decode: Callable[[], Columns]) -> Columns:
        """The columns; decoded by the first pass that asks."""
        if self._columns is None:
            self._columns = decode()
        return self._columns

    def __getstate__(self) -> dict[str, Any]:
        return {"_columns": None}  # another process decodes for itself


_MOST_PLACES = 1 << 18  # looked up at a time, which takes a dozen arrays of as many numbers
_POOLS_OF_BUFFERS = 3  # one in use, one ready, one being gathered
_MANY_TIMES = 8  # so many blocks for each that would be decoded twice to bring the first batch sooner


def read_share(
    index: SplitIndex,
    read_block: ReadBlock,
    *,
    plan: Plan,
    share: Share,
    options: StreamOptions,
    columns: Sequence[str],
    reader: str,
    quarantine: Quarantine | None = None,
    kept: KeptSplit | None = None,
    make: Callable[[Columns, int], Iterator[Any]] | None = None,
) -> Generator[Any, None, None]:
    """The batches of one consumer, in order; exactly `share.steps` of them.

    reader: names this consumer in messages. quarantine: says how many rows are only filling ones because of their
    block; then the last column is `VALID`. kept: where a small split stays decoded; None: for this pass alone.
    make: makes batches of so many rows of columns; None: as the options say.
    Threads end when the iterator is exhausted, closed or dropped, or raises. Raises what reading a block raised, with
    rank, shard and block.
    """
    mapped = options.cache == "decoded" or "arrow" in index.formats  # what is not read of them takes no memory
    fetcher = Fetcher(
        lambda block: decode_block(index, read_block, block, columns, reader, arrow=options.batch_format in IN_ARROW),
        lambda block: int(plan.block_bytes[block]),
        threads=options.read_threads,
        ahead_bytes=options.prefetch_bytes,
        ahead_blocks=options.prefetch_blocks,
        keep="views" if mapped or not plan.order.shuffle else "copies",  # in order few blocks are open
    )
    batcher = _Batcher(share, options, quarantine=quarantine, make=make)
    least_rows = least_pool_rows(int(plan.block_bytes.sum()) // max(1, plan.split_rows))
    if plan.keeps_split and quarantine is None:
        pools = _from_memory(kept or KeptSplit(), fetcher, index, plan, share, names=columns, least_rows=least_rows)
    else:
        planned = plan_pools(plan.order, plan.remaining, share, least_rows=least_rows)
        pools = _gathered(fetcher, planned, index, plan, options)
    ready = made_ahead(pools, thread_name="headrace-read-pool")
    with closing(ready), fetcher:  # the fetcher ends first, so that nothing waits for blocks any more
        for items, rows in ready:
            yield from batcher.batches(rows, items)


def _gathered(
    fetcher: Fetcher, pools: Iterator[Pool], index: SplitIndex, plan: Plan, options: StreamOptions
) -> Iterator[tuple[int, Columns]]:
    """Each pool's number of items and its columns."""
    buffers = Buffers()
    ahead: deque[Pool] = deque()
    first = next(pools, None)
    if first is None:
        return
    count = len(first.blocks)
    few_of_all = options.read_threads < count and count * plan.world_size * _MANY_TIMES <= len(index.rows)
    if options.shuffle and few_of_all and 4 * first.rows <= int(index.rows[first.blocks].sum()):
        yield first.items, gather(fetcher.get_alone(first.pieces), first.index, buffers)
        _announce(fetcher, pools, ahead)
    else:
        ahead.append(first)
        fetcher.announce(first.pieces)
    while ahead:
        pool = ahead.popleft()
        pieces = fetcher.get(pool.pieces)
        columns = gather(pieces, pool.index, buffers)
        buffers.trim(_POOLS_OF_BUFFERS * len(columns))
        if pool is first:  # the loop waits for it, so nothing else is begun before
            yield pool.items, columns
        _announce(fetcher, pools, ahead)  # before the release: what both need of a block stays decoded
        del pieces  # or they would live while the next pool is waited for
        fetcher.release(pool.pieces)
        if pool is not first:
            yield pool.items, columns
        del columns


def _from_memory(
    kept: KeptSplit,
    fetcher: Fetcher,
    index: SplitIndex,
    plan: Plan,
    share: Share,
    *,
    names: Sequence[str],
    least_rows: int,
) -> Iterator[tuple[int, Columns]]:
    """The same items as pools of `_gathered` have, from a split that is decoded as a whole."""
    if not share.items:
        return
    begun = 0
    if not kept.is_there and share.rows > share.batch_size and len(index.rows) > _MANY_TIMES * share.batch_size:
        # Many small files: the first batch waits for its own blocks alone.
        begun = share.batch_size
        block, row = plan.order.locate(plan.order.line_of(plan.remaining.positions(share.places(0, begun))))
        blocks, which = np.unique(block, return_inverse=True)
        found = span_rows(blocks, which, row)
        yield begun, gather(fetcher.get_alone(found.pieces), found.index)
    columns, buffers = kept.columns(lambda: _decode_whole(fetcher, index, names)), Buffers()
    for begin in range(begun, max(1, share.rows), _MOST_PLACES):
        places = share.places(begin, begin + _MOST_PLACES) if share.rows else np.array([share.place_of(0)], np.int64)
        block, row = plan.order.locate(plan.order.line_of(plan.remaining.positions(places)))
        rows = index.first_row[block] + row
        if begin + len(rows) >= share.rows:  # the last row also fills the last step
            rows = np.append(rows, np.full(share.items - max(1, share.rows), rows[-1]))
        for start in range(0, len(rows), least_rows):
            taken = rows[start : start + least_rows]
            yield len(taken), gather([columns], taken, buffers)
            buffers.trim(_POOLS_OF_BUFFERS * len(columns))


def _decode_whole(fetcher: Fetcher, index: SplitIndex, columns: Sequence[str]) -> Columns:
    """All rows of a split. Arrays are filled in place: beside them only the blocks at work take memory."""
    laid: dict[str, Any] = {}
    others: dict[str, dict[int, Column]] = {}  # which cannot be filled in place, by first row
    lock = Lock()

    def lay(block: int, decoded: Columns) -> None:
        first = int(index.first_row[block])
        for name, column in decoded.items():
            if not isinstance(column, np.ndarray):
                others.setdefault(name, {})[first] = column
                continue
            with lock:  # one thread makes the array that all of them fill
                if name not in laid:
                    laid[name] = np.empty((index.total_rows, *column.shape[1:]), column.dtype)
            np.copyto(laid[name][first : first + len(column)], column, casting="no")

    fetcher.decode_each(np.flatnonzero(index.rows).tolist(), lay)
    for name in list(others):
        rows = others.pop(name)
        laid[name] = concatenate([rows[first] for first in sorted(rows)])
    return {name: laid[name] for name in columns}


def _announce(fetcher: Fetcher, pools: Iterator[Pool], ahead: deque[Pool]) -> None:
    """Announce the next pool in any case, and more as long as the fetcher has room."""
    while not ahead or (fetcher.has_room and len(ahead) < MOST_POOLS_AHEAD):
        pool = next(pools, None)
        if pool is None:
            return
        ahead.append(pool)
        fetcher.announce(pool.pieces)


class _Batcher:
    """Cuts pools into batches of batch_size items; keeps what a pool leaves over."""

    def __init__(
        self,
        share: Share,
        options: StreamOptions,
        *,
        quarantine: Quarantine | None = None,
        make: Callable[[Columns, int], Iterator[Any]] | None = None,
    ) -> None:
        self._make = make
        self._share = share
        self._quarantine = quarantine
        self._options = options
        self._left: list[Columns] = []
        self._left_items = 0
        self._given = 0

    def batches(self, columns: Columns, items: int) -> Iterator[Batch]:
        """The batches that this pool completes."""
        size = self._options.batch_size
        begun = min(items, size - self._left_items) if self._left_items else 0
        whole = begun + (items - begun) // size * size
        yield from self._keep(columns, 0, begun)
        if begun < whole:
            inside = columns if (begun, whole) == (0, items) else cut(columns, begun, whole)
            yield from self._made(self._masked_by(inside, whole - begun), size)
        yield from self._keep(columns, whole, items)

    def _keep(self, columns: Columns, start: int, stop: int) -> Iterator[Batch]:
        """Items that are no whole batch of their own; the batch that they complete, if they do."""
        if start == stop:
            return
        self._left.append(cut(columns, start, stop))
        self._left_items += stop - start
        if self._left_items == min(self._options.batch_size, self._share.items - self._given):
            rows, items = join(self._left), self._left_items
            self._left, self._left_items = [], 0
            yield from self._made(self._masked_by(rows, items), items)

    def _made(self, columns: Columns, batch_size: int) -> Iterator[Batch]:
        options = self._options
        if self._make is not None:
            return self._make(columns, batch_size)
        return make_batches(columns, batch_size, options.batch_format, options.padding, options.packed_batches)

    def _masked_by(self, columns: Columns, items: int) -> Columns:
        """The columns and the mask of real rows, which belongs to these rows alone: a loop may write into it."""
        own = self._share.rows - self._given
        self._given += items
        rows = dict(columns)
        valid = np.ones(items, np.bool_)
        valid[max(0, own) :] = False
        rows[VALID] = valid if self._quarantine is None else self._quarantine.sift(rows, valid)
        return rows


def decode_block(
    index: SplitIndex, read_block: ReadBlock, block: int, columns: Sequence[str], reader: str, *, arrow: bool
) -> Columns:
    """Columns of one block. Errors say which reader met them, and where; `CorruptShard` if rows are missing."""
    try:
        table = read_block(block, columns)
    except HeadraceError as error:
        if type(error) not in (InputError, CorruptShard, StoreError, StreamError):
            raise  # a kind that says more than a text
        raise type(error)(f"{_where(index, block, reader)}: {error}") from error
    except Exception as error:
        raise StreamError(
            f"{_where(index, block, reader)}: cannot be read: {type(error).__name__}: {error};"
            " see that the shard is whole and readable, then resume from the last state"
        ) from error
    if table.num_rows != index.rows[block]:
        raise CorruptShard(
            f"{_where(index, block, reader)}: has {table.num_rows} rows, the index says {index.rows[block]};"
            " the shard changed after it was indexed: restore it or index the dataset again"
        )
    return from_table(table.select(list(columns)), arrow=arrow, where=_where(index, block, reader))


def _where(index: SplitIndex, block: int, reader: str) -> str:
    return f"{reader}: {index.shards[index.shard_of_block[block]]} block {index.block[block]}"
