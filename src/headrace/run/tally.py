"""Make the index and the totals of a run from the shards that its tasks wrote. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import SplitTotals
from headrace.run.receipts import FileRecord


@dataclass(frozen=True)
class ShardRecord:
    """A published shard. blocks: of each its first row, rows, offset, length, and least and largest key.

    format: the word for it in the index. source_shard: whose rows these are; "" where they are of several.
    """

    split: str
    file: FileRecord
    blocks: Sequence[Mapping[str, Any]]
    format: str
    source_shard: str = ""


def tally(shards: Iterable[ShardRecord], splits: Iterable[str]) -> tuple[list[IndexRow], dict[str, SplitTotals]]:
    """Return a row for each block, ordered by split, shard and block, and what each split holds.

    A shard without blocks, which has no rows, is in neither.
    """
    held = sorted((each for each in shards if each.blocks), key=lambda each: (each.split, each.file.path))
    index = [
        IndexRow(
            split=each.split,
            shard=each.file.path,
            format=each.format,
            block=block,
            digest=each.file.digest,
            checksum=each.file.checksum,
            source_shard=each.source_shard,
            **facts,
        )
        for each in held
        for block, facts in enumerate(each.blocks)
    ]
    totals = {}
    for split in splits:
        own = [each for each in held if each.split == split]
        totals[split] = SplitTotals(
            rows=sum(block["rows"] for each in own for block in each.blocks),
            shards=len(own),
            bytes=sum(each.file.bytes for each in own),
        )
    return index, totals
