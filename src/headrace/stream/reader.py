"""One consumer's rows, from blocks to batches.

Lanes advance in lockstep, so a consumer's rows of one window round (the next window of every lane it touches) lie
together in the global order: a pool. For each pool the blocks it needs are decoded ahead in threads, sliced to what is
needed, and gathered by one index per column; batches are then views. A block stays decoded while a coming pool needs
it. Only a batch that crosses a pool border is copied again. Memory is one pool, its open blocks, and what is decoded
ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.errors import CorruptShard, HeadraceError, InputError, StoreError, StreamError
from headrace.stream.batch import Batch, make_batch
from headrace.stream.columns import Columns, cut, gather, join
from headrace.stream.fetch import Fetcher
from headrace.stream.options import StreamOptions
from headrace.stream.order import EpochOrder
from headrace.stream.plan import Plan
from headrace.stream.remaining import Remaining
from headrace.stream.share import Share

I64 = npt.NDArray[np.int64]
ReadBlock = Callable[[int, Sequence[str] | None], pa.Table]

_LEAST_POOL_ROWS = 1 << 13  # small windows are taken several at a time: a pool has a fixed cost
_MOST_POOLS_AHEAD = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Rows to gather together: row `index[i]` of the needed slices laid end to end is item i of the pool.

    blocks: block numbers in order along the line; starts, stops: the rows needed of each.
    """

    blocks: list[int]
    starts: list[int]
    stops: list[int]
    index: I64


def plan_pools(order: EpochOrder, remaining: Remaining, share: Share) -> Iterator[Pool]:
    """The consumer's pools in order, all its items once; made one at a time."""
    if not share.items:
        return
    round_rows = order.lanes * (order.window_rows if order.shuffle else 1)
    rounds = -(-_LEAST_POOL_ROWS * share.consumers // round_rows)
    pool_rows = max(1, rounds) * round_rows
    border = remaining.first // pool_rows * pool_rows
    item = 0
    while item < share.rows:
        border += pool_rows
        stop = share.items_below(remaining.count_below(border))
        if stop == item:  # a hole in the order: nothing of ours before the next place that is left
            place = share.place_of(item)
            border = int(remaining.positions(np.array([place]))[0]) // pool_rows * pool_rows
            continue
        places = share.places(item, stop)
        if stop == share.rows:  # the last pool also holds the rows that fill the last step
            places = np.append(places, np.full(share.items - share.rows, share.place_of(share.items - 1)))
        yield _pool(order, remaining.positions(places))
        item = stop
    if not share.rows:
        yield _pool(order, remaining.positions(np.full(share.items, share.place_of(0))))


def _pool(order: EpochOrder, positions: I64) -> Pool:
    places = order.line_of(positions)
    along = np.searchsorted(order.line, places, side="right") - 1
    needed, which = np.unique(along, return_inverse=True)
    rows = places - order.line[along]
    starts = np.full(len(needed), np.iinfo(np.int64).max)
    stops = np.zeros(len(needed), np.int64)
    np.minimum.at(starts, which, rows)
    np.maximum.at(stops, which, rows + 1)
    begins = np.cumsum(stops - starts) - (stops - starts)
    return Pool(
        blocks=order.blocks[needed].tolist(),
        starts=starts.tolist(),
        stops=stops.tolist(),
        index=rows - starts[which] + begins[which],
    )


def read_share(
    index: SplitIndex,
    read_block: ReadBlock,
    *,
    plan: Plan,
    share: Share,
    options: StreamOptions,
    columns: Sequence[str],
    reader: str,
) -> Generator[Batch, None, None]:
    """The batches of one consumer, in order; exactly `share.steps` of them.

    reader: names this consumer in messages. Threads end when the iterator is exhausted, closed or dropped, or raises.
    Raises what reading a block raised, with rank, shard and block.
    """
    fetcher = Fetcher(
        lambda block: _decode(index, read_block, block, columns, reader),
        lambda block: int(plan.block_bytes[block]),
        threads=options.read_threads,
        ahead_bytes=options.prefetch_bytes,
        ahead_blocks=options.prefetch_blocks,
    )
    batcher = _Batcher(share, options, masked=plan.remainder == "pad")
    with fetcher:
        for pool in _announced(fetcher, plan_pools(plan.order, plan.remaining, share)):
            names = [_where(index, block, reader) for block in pool.blocks]
            rows = _gather_pool(pool, fetcher, names, arrow=options.batch_format == "arrow")
            fetcher.release(pool.blocks)
            yield from batcher.batches(rows, len(pool.index))


def _announced(fetcher: Fetcher, pools: Iterator[Pool]) -> Iterator[Pool]:
    """The pools, each after its blocks and those of at least the next pool were announced.

    The next one is announced before this one is released, so that a block both need stays decoded.
    """
    ahead: deque[Pool] = deque()
    ended = False
    while True:
        while not ended and (len(ahead) < 2 or (fetcher.has_room and len(ahead) < _MOST_POOLS_AHEAD)):
            pool = next(pools, None)
            if pool is None:
                ended = True
            else:
                ahead.append(pool)
                fetcher.announce(pool.blocks)
        if not ahead:
            return
        yield ahead.popleft()


def _gather_pool(pool: Pool, fetcher: Fetcher, names: Sequence[str], *, arrow: bool) -> Columns:
    slices = [
        table.slice(start, stop - start)
        for table, start, stop in zip(fetcher.get(pool.blocks), pool.starts, pool.stops, strict=True)
    ]
    return gather(slices, pool.index, arrow=arrow, where=names.__getitem__)


class _Batcher:
    """Cuts pools into batches of batch_size items; keeps what a pool leaves over."""

    def __init__(self, share: Share, options: StreamOptions, *, masked: bool) -> None:
        self._share = share
        self._options = options
        self._masked = masked
        self._left: list[Columns] = []
        self._left_items = 0
        self._given = 0

    def batches(self, columns: Columns, items: int) -> Iterator[Batch]:
        start = 0
        while start < items:
            missing = min(self._options.batch_size, self._share.items - self._given) - self._left_items
            stop = min(items, start + missing)
            self._left.append(cut(columns, start, stop))
            self._left_items += stop - start
            if stop - start == missing:
                yield self._batch()
            start = stop

    def _batch(self) -> Batch:
        columns, items = join(self._left), self._left_items
        valid = np.arange(self._given, self._given + items) < self._share.rows if self._masked else None
        self._left, self._left_items, self._given = [], 0, self._given + items
        return make_batch(columns, valid, self._options.batch_format)


def _decode(index: SplitIndex, read_block: ReadBlock, block: int, columns: Sequence[str], reader: str) -> pa.Table:
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
    return table.select(list(columns))


def _where(index: SplitIndex, block: int, reader: str) -> str:
    return f"{reader}: {index.shards[index.shard_of_block[block]]} block {index.block[block]}"
