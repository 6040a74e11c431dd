"""The index of plain shards, built from the files themselves: footers of Parquet, one scan of text.

Files are looked at in threads, some hundred at a time; of each stays its row in a few columns, and of equal schemas
one. Memory is O(blocks) numbers and names, whatever number of columns the files have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.dataset.stored_index import stored_bytes
from headrace.engine.local import run_tasks
from headrace.errors import SettingsError
from headrace.formats.blocks import look
from headrace.formats.listing import Listing
from headrace.formats.named_splits import in_order
from headrace.formats.shard import Shard
from headrace.formats.source import common_schema

ALL = "all"
OnProgress = Callable[[int, int], None]
_FILES_A_TASK = 64  # so that a task costs little beside the footers it reads


class _Looked(NamedTuple):
    """A task's findings. kinds: those of its files that differ in what they say of columns.

    counts: blocks of each file; spans: block, rows, offset and length of each block, int64 [blocks, 4].
    """

    kinds: list[Shard]
    formats: list[str]
    counts: list[int]
    spans: I64


def build(
    listing: Listing,
    kinds: Mapping[str, pa.DataType],
    null_values: Sequence[str],
    workers: int,
    files: str,
    on_progress: OnProgress = lambda done, total: None,
) -> bytes:
    """The index of the listed files as the bytes of a file; see `stored_index`.

    kinds: types of CSV and TSV columns. files: a digest of the files, kept in the index. on_progress: hears (files
    done, files) from any thread. Raises `InputError` if a file cannot be read or files differ in their columns,
    `SettingsError` on types of columns that no text file has.
    """
    done = 0

    def task(start: int) -> _Looked:
        nonlocal done
        places = range(start, min(start + _FILES_A_TASK, len(listing.names)))
        found = _look(listing, places, kinds)
        done += len(places)
        on_progress(done, len(listing.names))
        return found

    found = run_tasks([partial(task, start) for start in range(0, len(listing.names), _FILES_A_TASK)], workers)
    shards = _distinct([shard for each in found for shard in each.kinds])
    text = {name for shard in shards if shard.dialect is not None for name in shard.schema.names}
    unknown = sorted(set(kinds) - text)
    if unknown:
        raise SettingsError(
            f"types: {unknown[0]!r} is no column of a CSV or TSV file; those have {sorted(text) or 'no columns'}"
        )
    schema = common_schema(shards, "error")
    formats = [word for each in found for word in each.formats]
    counts = np.array([count for each in found for count in each.counts], np.int64)
    spans = np.concatenate([each.spans for each in found])
    return stored_bytes(_splits(listing, formats, counts, spans, schema), schema, null_values, files)


def _look(listing: Listing, places: Sequence[int], kinds: Mapping[str, pa.DataType]) -> _Looked:
    found = _Looked([], [], [], np.empty((0, 4), np.int64))
    spans: list[tuple[int, int, int, int]] = []
    for place in places:
        shard, blocks = look(listing.path(place), listing.names[place], found.kinds[-1] if found.kinds else None)
        if shard.dialect is not None and kinds:  # the declared types of text columns
            declared = pa.schema([(each.name, kinds.get(each.name, each.type)) for each in shard.schema])
            shard = replace(shard, schema=declared)
        shard = replace(shard, size=int(listing.sizes[place]), mtime_ns=int(listing.mtimes_ns[place]))
        found.formats.append(shard.word)
        found.counts.append(len(blocks))
        spans += [(span.block, span.rows, span.offset, span.length) for span in blocks]
        found.kinds[:] = _distinct([*found.kinds, shard])
    return found._replace(spans=np.array(spans, np.int64).reshape(-1, 4))


def _distinct(shards: Sequence[Shard]) -> list[Shard]:
    """The first of each kind of shard: format, columns, and which of them may hold nulls."""

    def same(a: Shard, b: Shard) -> bool:
        words = [(each.kind, each.content, each.dialect is None, each.null_columns) for each in (a, b)]
        return words[0] == words[1] and (a.schema is b.schema or bool(a.schema.equals(b.schema)))

    kept: list[Shard] = []
    for shard in shards:
        if not any(same(shard, other) for other in kept):
            kept.append(shard)
    return kept


def _splits(listing: Listing, formats: Sequence[str], counts: I64, spans: I64, schema: pa.Schema) -> list[SplitIndex]:
    """The blocks of each split that names tell, or of all files; a split whose files have no rows has no blocks."""
    words, firsts = pa.array(formats), np.cumsum(counts) - counts
    stamps = np.stack([listing.sizes, listing.mtimes_ns], axis=1)
    found = []
    for split, places in files_of_splits(listing).items():
        holding = places[counts[places] > 0]
        held = counts[holding]
        shard_of_block = np.repeat(np.arange(len(holding)), held)
        inside = np.arange(len(shard_of_block)) - np.repeat(np.cumsum(held) - held, held)
        block, rows, offset, length = spans[firsts[holding][shard_of_block] + inside].T.copy()
        found.append(
            SplitIndex(
                split=split,
                schema=schema,
                shards=[listing.names[place] for place in holding.tolist()],
                formats=words.take(pa.array(holding)).to_pylist(),
                shard_of_block=shard_of_block,
                block=block,
                rows=rows,
                offset=offset,
                length=length,
                checksums=[""] * len(holding),
                stamps=stamps[holding],
            )
        )
    return found


def files_of_splits(listing: Listing) -> dict[str, I64]:
    """Places in the listing of the files of each split, sorted; of one split, "all", where names tell none."""
    if not listing.splits:
        return {ALL: np.arange(len(listing.names))}
    words = np.array(listing.splits)
    return {split: np.flatnonzero(words == split) for split in in_order(listing.splits)}
