"""Find near duplicates across and inside the splits of a dataset; sequences of packed rows are compared by tokens.

A row's document is all its texts in the compared columns, end to end. Signatures and the shingles of compared documents
are in a directory of temporary files while this runs; see `headrace.run.near`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64, Ints, components
from headrace.near.shingles import Shingles, shingles_of_texts, shingles_of_tokens, take_sequences
from headrace.run.context import RunContext
from headrace.run.near import Near, Part, find_near
from headrace.stream.audit.overlap import texts_of

if TYPE_CHECKING:
    from headrace.stream.audit.leaks import SplitBlocks

_PART_ROWS, _PART_BYTES = 1 << 16, 64 << 20
_TEXT_ROWS, _TEXT_BYTES = 1 << 13, 8 << 20  # bounds of the texts whose words are in memory at once
_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class NearShared:
    """Rows of `split` that are near a row of an earlier split, or equal to one. share: of its rows, 0 to 1.

    examples: up to five pairs of rows, SHARD:ROW in the earlier split and in this one, and their Jaccard index; for
    packed rows SHARD:ROW:SEQUENCE, all from 0. Pairs that are not equal come first.
    """

    earlier: str
    split: str
    rows: int
    share: float
    examples: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """Rows whose shingles have a Jaccard index of `threshold` or more.

    repeated: rows of each split that are near an earlier row of the same split. shared: for each pair of splits.
    groups: sets of rows that near pairs connect. largest: rows of the largest group.
    not_compared: upper bound of the pairs from different groups that were skipped, because they resemble too many
    others.
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
    """Compare all rows of all splits. columns: those with texts, or with token ids and starts of sequences."""
    counts = [_documents_of_rows(split, columns[1]) if packed else None for split in splits]
    parts = [
        part for split, own in zip(splits, counts, strict=True) for part in _parts(split, columns, own, packed=packed)
    ]
    with TemporaryDirectory(prefix="headrace-near-") as folder:
        context = RunContext(Path(folder), splits[0].workers, lambda _: None)
        found = find_near(context, parts, near)
    sizes = [each.index.total_rows if own is None else int(own.sum()) for each, own in zip(splits, counts, strict=True)]
    side = np.repeat(np.arange(len(splits)), sizes)
    content, least = _nearest(found, side, len(splits))
    first_of_split = np.cumsum([0, *sizes])

    def place(document: int) -> str:
        split = int(side[document])
        row, own = document - int(first_of_split[split]), counts[split]
        if own is None:
            return splits[split].place(row)
        ends = np.cumsum(own)
        bin_ = int(np.searchsorted(ends, row, "right"))
        return f"{splits[split].place(bin_)}:{row - int(ends[bin_] - own[bin_])}"

    shared = []
    for early, late in combinations(range(len(splits)), 2):
        rows = int((least[content[side == late], early] < len(side)).sum())
        pairs = _examples(found, content, side, early, late)
        shared.append(
            NearShared(
                earlier=splits[early].name,
                split=splits[late].name,
                rows=rows,
                share=rows / max(1, sizes[late]),
                examples=tuple((place(a), place(b), jaccard) for a, b, jaccard in pairs),
            )
        )
    again = least[content, side] < np.arange(len(side))
    of_group = np.bincount(found.group, minlength=1)
    return NearDuplicates(
        threshold=near,
        repeated={split.name: int(again[side == number].sum()) for number, split in enumerate(splits)},
        shared=tuple(shared),
        groups=int((of_group > 1).sum()),
        largest=int(of_group.max()),
        not_compared=found.not_compared,
    )


def _nearest(found: Near, side: I64, splits: int) -> tuple[I64, I64]:
    """Return the first document with equal shingles of each [N], and the first near or equal document in each split.

    int64 [N] and [N, splits], the latter indexed by the former; N means none. Pairs name the first copies, so a
    document near a first copy is near all copies.
    """
    same = found.jaccard == 1
    content = components(len(side), found.first[same], found.second[same])
    held = np.full((len(side), splits), len(side))
    np.minimum.at(held, (content, side), np.arange(len(side)))
    least = held.copy()
    for one, other in ((found.first, found.second), (found.second, found.first)):
        np.minimum.at(least, content[one], held[content[other]])
    return content, least


def _examples(found: Near, content: I64, side: I64, early: int, late: int) -> list[tuple[int, int, float]]:
    """Return the first pairs of two splits, unequal ones before equal ones, as documents and their Jaccard index."""
    lowest = np.full((len(side), 2), len(side))
    for half, split in enumerate((early, late)):
        own = np.flatnonzero(side == split)
        np.minimum.at(lowest[:, half], content[own], own)
    itself = np.arange(len(side))
    one = np.concatenate([found.first, found.second, itself])
    other = np.concatenate([found.second, found.first, itself])
    jaccard: F64 = np.concatenate([found.jaccard, found.jaccard, np.ones(len(side))])
    a, b = lowest[content[one], 0], lowest[content[other], 1]
    there = np.flatnonzero((a < len(side)) & (b < len(side)))
    order = there[np.lexsort((a[there], b[there], jaccard[there] == 1))]
    pairs = dict.fromkeys(zip(a[order].tolist(), b[order].tolist(), jaccard[order].tolist(), strict=True))
    return list(pairs)[:_EXAMPLES]


def _documents_of_rows(split: SplitBlocks, starts: str) -> I64:
    """Count the sequences of each packed row."""
    counts = split.map([starts], lambda table: pc.list_value_length(table[starts].combine_chunks()).to_numpy())
    return np.concatenate([np.empty(0, np.int64), *counts]).astype(np.int64)


def _parts(split: SplitBlocks, columns: Sequence[str], counts: I64 | None, *, packed: bool) -> Iterator[Part]:
    """Cut a split into parts of whole blocks. counts: documents of each row; None: one per row."""
    index = split.index
    of_block = index.rows
    if counts is not None:
        of_block = np.diff(np.concatenate([[0], np.cumsum(counts)])[np.append(index.first_row, index.total_rows)])
    part = np.maximum(np.cumsum(index.rows) // _PART_ROWS, np.cumsum(index.length) // _PART_BYTES)
    for number in np.unique(part).tolist():
        blocks = np.flatnonzero(part == number)
        read = partial(
            _read, split.dataset.block_reader(split.name), blocks, of_block[blocks], tuple(columns), packed=packed
        )
        yield Part(f"{split.name} from block {blocks[0]:,}", int(index.length[blocks].sum()), read)


def _read(
    read: Any, blocks: I64, documents: I64, columns: tuple[str, ...], wanted: I64 | None, *, packed: bool
) -> Iterator[Shingles]:
    """Yield the shingles of blocks, one block at a time. documents: the number in each block."""
    begin = 0
    for block, count in zip(blocks.tolist(), documents.tolist(), strict=True):
        mine = None
        if wanted is not None:
            mine = wanted[slice(*np.searchsorted(wanted, (begin, begin + count)))] - begin
        begin += count
        if mine is not None and not len(mine):
            continue
        table = read(block, list(columns))
        if packed:
            yield _of_sequences(table, columns, mine)
            continue
        table = table.select(columns) if mine is None else table.select(columns).take(mine)
        step = max(1, min(_TEXT_ROWS, _TEXT_BYTES * len(table) // max(1, table.nbytes)))
        for first in range(0, len(table), step):
            rows = table.slice(first, step)
            texts = texts_of(rows)
            yield shingles_of_texts(texts.texts, texts.row, len(rows))


def _of_sequences(table: pa.Table, columns: tuple[str, ...], wanted: I64 | None) -> Shingles:
    tokens, begins = sequences_of(*(table[name] for name in columns))
    return shingles_of_tokens(*take_sequences(tokens, np.diff(begins, append=len(tokens)), wanted))


def sequences_of(token_ids: pa.ChunkedArray, starts: pa.ChunkedArray) -> tuple[Ints, I64]:
    """Return the tokens of packed rows, end to end, and the start of each sequence in them, int64 [sequences]."""
    ids, inside = token_ids.combine_chunks(), starts.combine_chunks()
    lengths = pc.list_value_length(ids).to_numpy().astype(np.int64)
    counts = pc.list_value_length(inside).to_numpy().astype(np.int64)
    begins = inside.flatten().to_numpy().astype(np.int64) + np.repeat(np.cumsum(lengths) - lengths, counts)
    return ids.flatten().to_numpy(), begins
