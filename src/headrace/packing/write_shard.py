"""One output shard: bins of a group, gathered a row group at a time and written in the storage that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headrace.bins.alignment import ALIGNMENT_KEY
from headrace.bins.bins import Bins
from headrace.bins.rows import PackedRows
from headrace.digest import digest_file
from headrace.formats.write import Block, Written
from headrace.packing.config import PackedSequences
from headrace.packing.pack_group import Group
from headrace.packing.storage.joined import JoinedSpool
from headrace.packing.storage.legacy import LegacyPickleWriter
from headrace.packing.storage.materialise import gather
from headrace.packing.storage.packed_parquet import PackedParquet
from headrace.run.context import TaskFiles

EXTENSIONS = {"parquet": "parquet", "legacy_npy_pickle": "npy"}


@dataclass(frozen=True)
class Shard:
    """An output shard: bins start..stop-1 of the group with this number. target: its path relative to the run."""

    group: int
    start: int
    stop: int
    target: str
    input_bytes: int


def footer(settings: PackedSequences, group: Group, encoder: str) -> dict[str, str]:
    """What a shard says about itself in its key-value metadata."""
    return {
        ALIGNMENT_KEY: settings.loss_mask_alignment,
        "headrace.pack_size": str(settings.pack_size),
        "headrace.capacity": settings.capacity,
        "headrace.pad_multiple": str(settings.pad_multiple),
        "headrace.algorithm": settings.algorithm,
        "headrace.seed": str(settings.seed),
        "headrace.dataset": group.name,
        "headrace.split": group.split,
        "headrace.encoder": encoder,
    }


def write_shard(
    files: TaskFiles,
    settings: PackedSequences,
    shard: Shard,
    bins: Bins,
    spools: JoinedSpool,
    pad_id: int,
    metadata: dict[str, str],
) -> dict[str, Any]:
    """Write the shard's bins. What is written is counted here, from the gathered rows. O(row group) of memory."""
    counted = {"bins": 0, "sequences": 0, "stored_tokens": 0, "mask_sum": 0}

    def gathered() -> Iterator[PackedRows]:
        for start in range(shard.start, shard.stop, settings.row_group_size):
            rows = gather(
                spools,
                bins[start : min(start + settings.row_group_size, shard.stop)],
                alignment=settings.loss_mask_alignment,
                pad_multiple=settings.pad_multiple,
                pad_id=pad_id,
                counted=settings.capacity,
            )
            counted["bins"] += len(rows)
            counted["sequences"] += len(rows.starts)
            counted["stored_tokens"] += len(rows.ids)
            counted["mask_sum"] += int(np.sum(rows.mask, dtype=np.int64))
            yield rows

    if settings.packed_storage == "legacy_npy_pickle":
        blocks = _write_legacy(files, shard.target, gathered())
    else:
        blocks = _write_parquet(files, settings, shard.target, gathered(), metadata)
    return {"rows_read": counted["bins"], **counted, "blocks": blocks}


def _write_parquet(
    files: TaskFiles, settings: PackedSequences, target: str, rows: Iterator[PackedRows], metadata: dict[str, str]
) -> list[dict[str, Any]]:
    with PackedParquet(
        files.temporary(target),
        row_group_size=settings.row_group_size,
        compression=settings.compression,
        compression_level=settings.level,
        declared=settings.declared,
        metadata=metadata,
    ) as writer:
        for each in rows:
            writer.write_bins(each)
        written = writer.finish()
    files.finished(writer.path, target, written)
    return [asdict(block) for block in written.blocks]


def _write_legacy(files: TaskFiles, target: str, rows: Iterator[PackedRows]) -> list[dict[str, Any]]:
    """The whole shard is one block, as it is one pickle. Such files have no room for metadata."""
    temporary = files.temporary(target)
    with LegacyPickleWriter(temporary) as writer:
        for each in rows:
            writer.write_bins(each)
        result = writer.finalize()
    bins: int = result["num_bins"]
    size, digest = temporary.stat().st_size, digest_file(temporary)
    block = Block(first_row=0, rows=bins, offset=0, length=size, key_min=None, key_max=None)
    files.finished(temporary, target, Written(bins, size, digest.sha256, (block,), digest.checksum))
    return [asdict(block)]
