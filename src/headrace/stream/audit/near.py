"""Find near duplicates across and inside the splits of a dataset; sequences of packed rows are
compared by tokens.

A row's document is all its texts in the compared columns, end to end. Signatures and the shingles
of compared documents are in a directory of temporary files while this runs; see
`headrace.near.stages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64, U64, Ints, components, concatenated, offsets_from_lengths
from headrace.dataset.contents import map_blocks
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import IndexedDataset
from headrace.errors import CorruptShard
from headrace.gate import RESTORE
from headrace.near.shingles import Shingles, shingles_of_texts, shingles_of_tokens, take_sequences
from headrace.near.stages import DocumentPart, Near, find_near
from headrace.run.context import RunContext
from headrace.stream.audit.overlap import texts_of
from headrace.stream.order.whereabouts import row_in_shard

# columns of packed rows
TOKEN_IDS = "input_ids"
STARTS = "seq_start_id"
_PART_ROWS = 1 << 16
_PART_BYTES = 64 << 20
# bounds of the texts whose words are in memory at once
_TEXT_ROWS = 1 << 13
_TEXT_BYTES = 8 << 20
_EXAMPLES = 5


@dataclass(frozen=True)
class SplitBlocks:
    """One split, to be read block by block."""

    dataset: IndexedDataset
    name: str
    workers: int

    @property
    def index(self) -> SplitIndex:
        return self.dataset.split_index(self.name)

    def map(
        self, columns: Sequence[str] | None, work: Any, blocks: Sequence[int] | None = None
    ) -> list[Any]:
        """Apply a function to the table of each block, in threads; return the results in the order
        of blocks.
        """
        return map_blocks(self.dataset, self.name, self.workers, columns, work, blocks)

    def location(self, row: int) -> str:
        """Name a row by its shard and its number in the shard, from 0."""
        [shard], [inside] = row_in_shard(self.index, np.array([row]))
        return f"{self.index.shards[shard]}:{inside}"

    def spread(self, rows: int) -> range:
        """Return evenly spaced blocks with about this many rows."""
        return range(0, len(self.index.rows), max(1, -(-self.index.total_rows // rows)))


@dataclass(frozen=True, kw_only=True)
class NearShared:
    """Rows of `split` that are near a row of an earlier split, or equal to one.

    fraction: of its rows, 0 to 1.

    examples: up to five pairs of rows, SHARD:ROW in the earlier split and in this one, and their
    Jaccard index; for packed rows SHARD:ROW:SEQUENCE, all from 0. Pairs that are not equal come
    first.
    """

    earlier: str
    split: str
    rows: int
    fraction: float
    examples: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """Rows whose shingles have a Jaccard index of `threshold` or more.

    repeated: rows of each split that are near an earlier row of the same split. shared: for each
    pair of splits. groups: sets of rows that near pairs connect. largest: rows of the largest
    group.
    not_compared: upper bound of the pairs from different groups that were skipped, because they
    resemble too many others.
    """

    threshold: float
    repeated: Mapping[str, int]
    shared: tuple[NearShared, ...]
    groups: int
    largest: int
    not_compared: int


def near_duplicates(
    splits: Sequence[SplitBlocks], columns: Sequence[str], near: float, *, packed: bool
) -> NearDuplicates:
    """Compare all rows of all splits.

    columns: those with texts; of packed rows, `TOKEN_IDS` and `STARTS`.
    """
    counts = [_sequences_of_rows(split) if packed else None for split in splits]
    parts: list[DocumentPart] = []
    for split, counts_of_split in zip(splits, counts, strict=True):
        parts.extend(_parts(split, columns, counts_of_split))
    with TemporaryDirectory(prefix="headrace-near-") as folder:
        context = RunContext(Path(folder), splits[0].workers, lambda _: None)
        near_pairs = find_near(context, parts, near)
    sizes = []
    for blocks, counts_of_split in zip(splits, counts, strict=True):
        if counts_of_split is None:
            sizes.append(blocks.index.total_rows)
        else:
            sizes.append(int(counts_of_split.sum()))
    side = np.repeat(np.arange(len(splits)), sizes)
    content, least = _nearest(near_pairs, side, len(splits))
    first_of_split = np.cumsum([0, *sizes])

    def location(document: int) -> str:
        split = int(side[document])
        row = document - int(first_of_split[split])
        counts_of_split = counts[split]
        if counts_of_split is None:
            return splits[split].location(row)
        ends = np.cumsum(counts_of_split)
        bin_ = int(np.searchsorted(ends, row, "right"))
        return f"{splits[split].location(bin_)}:{row - int(ends[bin_] - counts_of_split[bin_])}"

    shared = []
    for early, late in combinations(range(len(splits)), 2):
        rows = int((least[content[side == late], early] < len(side)).sum())
        pairs = _examples(near_pairs, content, side, early, late)
        shared.append(
            NearShared(
                earlier=splits[early].name,
                split=splits[late].name,
                rows=rows,
                fraction=rows / max(1, sizes[late]),
                examples=tuple((location(a), location(b), jaccard) for a, b, jaccard in pairs),
            )
        )
    again = least[content, side] < np.arange(len(side))
    of_group = np.bincount(near_pairs.group, minlength=1)
    return NearDuplicates(
        threshold=near,
        repeated={
            split.name: int(again[side == number].sum()) for number, split in enumerate(splits)
        },
        shared=tuple(shared),
        groups=int((of_group > 1).sum()),
        largest=int(of_group.max()),
        not_compared=near_pairs.not_compared,
    )


def _nearest(pairs: Near, side: I64, splits: int) -> tuple[I64, I64]:
    """Return the first document with equal shingles of each [N], and the first near or equal
    document in each split.

    int64 [N] and [N, splits], the latter indexed by the former; N means none. Pairs name the first
    copies, so a document near a first copy is near all copies.
    """
    same = pairs.jaccard == 1
    content = components(len(side), pairs.first[same], pairs.second[same])
    nearest = np.full((len(side), splits), len(side))
    np.minimum.at(nearest, (content, side), np.arange(len(side)))
    least = nearest.copy()
    for one, other in ((pairs.first, pairs.second), (pairs.second, pairs.first)):
        np.minimum.at(least, content[one], nearest[content[other]])
    return content, least


def _examples(
    near_pairs: Near, content: I64, side: I64, early: int, late: int
) -> list[tuple[int, int, float]]:
    """Return the first pairs of two splits, unequal ones before equal ones, as documents and their
    Jaccard index.
    """
    lowest = np.full((len(side), 2), len(side))
    for half, split in enumerate((early, late)):
        documents = np.flatnonzero(side == split)
        np.minimum.at(lowest[:, half], content[documents], documents)
    itself = np.arange(len(side))
    one = np.concatenate([near_pairs.first, near_pairs.second, itself])
    other = np.concatenate([near_pairs.second, near_pairs.first, itself])
    jaccard: F64 = np.concatenate([near_pairs.jaccard, near_pairs.jaccard, np.ones(len(side))])
    a = lowest[content[one], 0]
    b = lowest[content[other], 1]
    there = np.flatnonzero((a < len(side)) & (b < len(side)))
    order = there[np.lexsort((a[there], b[there], jaccard[there] == 1))]
    pairs = dict.fromkeys(
        zip(a[order].tolist(), b[order].tolist(), jaccard[order].tolist(), strict=True)
    )
    return list(pairs)[:_EXAMPLES]


def _sequences_of_rows(split: SplitBlocks) -> I64:
    """Count the sequences of each packed row."""
    counts = split.map(
        [STARTS], lambda table: pc.list_value_length(table[STARTS].combine_chunks()).to_numpy()
    )
    return concatenated(counts, np.int64).astype(np.int64)


def _parts(
    split: SplitBlocks, columns: Sequence[str], sequences: I64 | None
) -> Iterator[DocumentPart]:
    """Cut a split into parts of whole blocks.

    sequences: the number in each packed row; None: a row is a document.
    """
    index = split.index
    read_block = split.dataset.block_reader(split.name)
    documents = index.rows
    if sequences is not None:
        documents = np.diff(
            offsets_from_lengths(sequences)[np.append(index.first_row, index.total_rows)]
        )

    def shingles(blocks: I64, chosen: I64 | None) -> Iterator[Shingles]:
        begin = 0
        for block, count in zip(blocks.tolist(), documents[blocks].tolist(), strict=True):
            mine = None
            if chosen is not None:
                mine = chosen[slice(*np.searchsorted(chosen, (begin, begin + count)))] - begin
            begin += count
            if mine is not None and not len(mine):
                continue
            table = read_block(block, list(columns)).select(columns)
            if sequences is None:
                yield from shingles_of_rows(table if mine is None else table.take(mine))
            else:
                tokens, starts = _sequences_of(table)
                yield shingles_of_tokens(
                    *take_sequences(tokens, np.diff(starts, append=len(tokens)), mine)
                )

    part = np.maximum(np.cumsum(index.rows) // _PART_ROWS, np.cumsum(index.length) // _PART_BYTES)
    for number in np.unique(part).tolist():
        blocks = np.flatnonzero(part == number)
        bytes_read = int(index.length[blocks].sum())
        yield DocumentPart(
            f"{split.name} from block {blocks[0]:,}", bytes_read, partial(shingles, blocks)
        )


def shingles_of_rows(table: pa.Table) -> Iterator[Shingles]:
    """Yield the shingles of rows, a bounded number of rows at a time; a row's document is all its
    texts end to end.
    """
    step = max(1, min(_TEXT_ROWS, _TEXT_BYTES * len(table) // max(1, table.nbytes)))
    for first in range(0, len(table), step):
        rows = table.slice(first, step)
        texts = texts_of(rows)
        yield shingles_of_texts(texts.texts, texts.row, len(rows))


def sequence_digests(table: pa.Table) -> U64:
    """Hash the token ids of each sequence of packed rows."""
    tokens, starts = _sequences_of(table)
    tokens = np.ascontiguousarray(tokens.astype("<i4"))
    offsets = np.append(starts, len(tokens)) * 4
    blobs = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(starts),
        [None, pa.py_buffer(offsets.astype("<i8")), pa.py_buffer(tokens)],
    )
    return pl.Series(pl.from_arrow(blobs)).hash(seed=0).to_numpy()


def _sequences_of(table: pa.Table) -> tuple[Ints, I64]:
    """Return the tokens of packed rows, end to end, and the start of each sequence in them, int64
    [sequences].

    Raises `CorruptShard` for starts outside their row, which would be read outside its memory.
    """
    ids = table[TOKEN_IDS].combine_chunks()
    inside = table[STARTS].combine_chunks()
    if any(lists.null_count or lists.flatten().null_count for lists in (ids, inside)):
        raise _outside("it holds null values")
    lengths = pc.list_value_length(ids).to_numpy().astype(np.int64)
    counts = pc.list_value_length(inside).to_numpy().astype(np.int64)
    starts = inside.flatten().to_numpy().astype(np.int64)
    limits = np.repeat(lengths, counts)
    if ((starts < 0) | (starts > limits)).any():
        raise _outside("a sequence begins outside its row")
    starts += np.repeat(np.cumsum(lengths) - lengths, counts)
    if (np.diff(starts) < 0).any():
        raise _outside("a sequence begins before the one that precedes it")
    return ids.flatten().to_numpy(), starts


def _outside(problem: str) -> CorruptShard:
    return CorruptShard(problem, column=STARTS, remedy=RESTORE)
