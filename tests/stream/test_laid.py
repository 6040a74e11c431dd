"""Chunks of large pools are the rows that one gather gives, in memory that the pool before left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headrace.stream.order.epoch import Pool
from headrace.stream.read.buffers import Buffers
from headrace.stream.read.columns import Columns, cut, gather
from headrace.stream.read.laid import LaidPool, cut_sections
from headrace.stream.read.ragged import Ragged

BLOCK_ROWS = 700
CHUNK_ROWS = 400


def block(number: int) -> Columns:
    """A block with a column of each kind."""
    rows = number * BLOCK_ROWS + np.arange(BLOCK_ROWS)
    lengths = rows % 5
    long = np.where(rows % 7 == 3, 0, 250 + rows % 200)
    return {
        "row": rows,
        "pair": np.stack([rows, -rows], axis=1).astype(np.float32),
        "list": Ragged(
            values=np.repeat(rows, lengths),
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            missing=None,
        ),
        "long": Ragged(
            values=np.repeat(rows, long).astype(np.uint8),
            starts=np.cumsum(long) - long,
            lengths=long,
            missing=rows % 7 == 3 if number % 2 else None,
        ),
        "text": pa.array([f"row {row}" for row in rows]),
    }


def pools(random: np.random.Generator) -> Iterator[Pool]:
    """Pools of several sizes; some leave rows out or repeat them, and the last item."""
    for number, blocks in enumerate((4, 9, 2, 9, 6)):
        spans = [(block, 10 * block, BLOCK_ROWS - 7) for block in range(blocks)]
        rows = sum(stop - start for _, start, stop in spans)
        index = random.permutation(rows)[: rows - number % 2 * 100]
        if number == 3:
            index = np.append(index, np.full(150, index[-1]))
        if number == 4:
            index = np.concatenate([index, random.integers(0, 50, rows)])
            random.shuffle(index)
        yield pool_of(spans, index, repeats=number == 4)


def pool_of(spans: list[tuple[int, int, int]], index: np.ndarray, *, repeats: bool = False) -> Pool:
    """The pool that has row index[i] as item i; without repeats, only the last row may be there again."""
    if repeats:
        item_of = np.argsort(index, kind="stable")
        return Pool(spans=spans, item_of=item_of, row_of=index[item_of], items=len(index))
    item_of = np.full(sum(stop - start for _, start, stop in spans), -1, np.int32)
    distinct = len(dict.fromkeys(index.tolist()))
    item_of[index[:distinct]] = np.arange(distinct)
    return Pool(spans=spans, item_of=item_of, items=len(index), filling=len(index) - distinct)


def parts(spans: list[tuple[int, int, int]]) -> list[Columns]:
    return [cut(block(number), start, stop) for number, start, stop in spans]


def as_lists(columns: Columns) -> dict[str, list[object]]:
    made = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            made[name] = [None if row is None else row.tobytes() for row in column]
        else:
            made[name] = column.tolist()
    return made


@pytest.mark.parametrize("names", [["row", "pair"], ["text", "row", "list", "long", "pair"]])
def test_chunks_are_the_rows_of_one_gather(names: list[str]) -> None:
    pages = None
    memory = Buffers()
    for pool in pools(np.random.default_rng(1)):
        laid = LaidPool(pool, cut_sections(pool), pages, chunk_rows=CHUNK_ROWS)
        while laid.fits:
            laid.lay(laid.allot(of_names(parts(laid.sections.popleft()), names)), names)
        assert not laid.sections
        pages = laid.pages
        whole = gather(of_names(parts(pool.spans), names), pool.index)
        chunks = []
        for number in range(laid.chunks):
            chunks.append(as_lists(laid.chunk(number, laid.rows_of(number), names, memory)))
            laid.free(number)
            assert len(chunks[-1][names[0]]) == laid.items_of(number)
        for name, values in as_lists(whole).items():
            assert [row for chunk in chunks for row in chunk[name]] == values
        assert pages is not None
        assert pages.free == pages.count


def test_the_next_pool_is_laid_into_what_chunks_left() -> None:
    first, second = (
        pool_of(
            [(block, 0, BLOCK_ROWS) for block in range(8)],
            np.random.default_rng(seed).permutation(8 * BLOCK_ROWS),
        )
        for seed in (1, 2)
    )
    laid = LaidPool(first, cut_sections(first), None, chunk_rows=CHUNK_ROWS)
    while laid.sections:
        laid.lay(laid.allot(of_names(parts(laid.sections.popleft()), ["row"])), ["row"])
    following = LaidPool(second, cut_sections(second), laid.pages, chunk_rows=CHUNK_ROWS)
    ahead = []
    for number in range(laid.chunks):
        chunk = laid.chunk(number, laid.rows_of(number), ["row"], Buffers())["row"]
        start = number * CHUNK_ROWS
        assert chunk.tolist() == first.index[start : start + CHUNK_ROWS].tolist()
        laid.free(number)
        while following.fits:
            section = parts(following.sections.popleft())
            following.lay(following.allot(of_names(section, ["row"])), ["row"])
        ahead.append(following.laid_rows - (number + 1) * CHUNK_ROWS)

    assert following.pages is laid.pages
    assert not following.sections
    # a section or two more than the chunks that are gone
    assert max(ahead) <= 5 * BLOCK_ROWS
    found = [
        following.chunk(number, following.rows_of(number), ["row"], Buffers())["row"]
        for number in range(laid.chunks)
    ]
    assert np.concatenate(found).tolist() == second.index.tolist()


def of_names(columns: list[Columns], names: list[str]) -> list[Columns]:
    return [{name: part[name] for name in names} for part in columns]
