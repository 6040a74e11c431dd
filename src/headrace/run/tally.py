"""Build the index and the totals of a run from the shards that its tasks wrote. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import SplitTotals
from headrace.run.receipts import FileRecord


@dataclass(frozen=True)
class ShardRecord:
    """A published shard.

    blocks: the first row, rows, offset, length, and smallest and largest key of each. format: its
    word in the index. source_shard: the shard its rows come from; "" for several.
    """

    split: str
    file: FileRecord
    blocks: Sequence[Mapping[str, Any]]
    format: str
    source_shard: str = ""


def tally(
    shards: Iterable[ShardRecord], splits: Iterable[str]
) -> tuple[list[IndexRow], dict[str, SplitTotals]]:
    """Return one index row per block, ordered by split, shard and block, and the totals of each
    split.

    A shard without blocks has no rows and appears in neither.
    """
    held = sorted(
        (each for each in shards if each.blocks), key=lambda each: (each.split, each.file.path)
    )
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
