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
    with_rows = sorted(
        (shard for shard in shards if shard.blocks),
        key=lambda shard: (shard.split, shard.file.path),
    )
    index = []
    for shard in with_rows:
        for block, block_fields in enumerate(shard.blocks):
            row = IndexRow(
                split=shard.split,
                shard=shard.file.path,
                format=shard.format,
                block=block,
                digest=shard.file.digest,
                checksum=shard.file.checksum,
                source_shard=shard.source_shard,
                **block_fields,
            )
            index.append(row)
    totals = {}
    for split in splits:
        shards_of_split = [shard for shard in with_rows if shard.split == split]
        totals[split] = SplitTotals(
            rows=sum(block["rows"] for shard in shards_of_split for block in shard.blocks),
            shards=len(shards_of_split),
            bytes=sum(shard.file.bytes for shard in shards_of_split),
        )
    return index, totals
