"""Join the parts of one split into one file, in source order; text is copied, Parquet gets row groups of full size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from headrace.digest import FileDigest
from headrace.formats import delimited
from headrace.formats.detect import Kind, compress_block
from headrace.formats.open_parquet import open_file
from headrace.formats.shard import Shard
from headrace.formats.write import ShardWriter, Written
from headrace.run.context import TaskFiles
from headrace.run.receipts import FileRecord, Receipt
from headrace.split.scan import read_scan
from headrace.split.split import SPLITS, SplitPlan, classify, key_micros, output_dialect
from headrace.storage.local import storing

_COPY_BYTES = 4 << 20


def join_split(
    files: TaskFiles, plan: SplitPlan, first: Shard, split: str, parts: Sequence[Receipt], target: str
) -> dict[str, Any]:
    """Write all parts of a split, in source order, as `target`; a split without rows gets a file without rows."""
    if plan.kind.format == "parquet":
        return _join_parquet(files, plan, split, parts, target)
    return _join_text(files, plan, first, split, parts, target)


def _records(part: Receipt, split: str) -> list[FileRecord]:
    """The part's file of this split, if it has one; parts lie in stage/<directory of the split>/."""
    return [record for record in part.files if PurePosixPath(record.path).parent.name == split]


def _join_text(
    files: TaskFiles, plan: SplitPlan, first: Shard, split: str, parts: Sequence[Receipt], target: str
) -> dict[str, Any]:
    temporary = files.temporary(target)
    digest, size, rows = FileDigest(), 0, 0
    blocks: list[dict[str, Any]] = []
    with storing(temporary.parent), temporary.open("xb") as sink:

        def put(data: bytes) -> None:
            nonlocal size
            sink.write(data)
            digest.update(data)
            size += len(data)

        put(_header(plan, first))
        for part in parts:
            for record in _records(part, split):
                found = part.result["blocks"][split]
                shift = size - found[0]["offset"]
                with (files.run / record.path).open("rb") as source:
                    source.seek(found[0]["offset"])
                    while data := source.read(_COPY_BYTES):
                        put(data)
                for block in found:
                    blocks.append({**block, "offset": block["offset"] + shift, "first_row": rows})
                    rows += block["rows"]
    files.finished(temporary, target, Written(rows, size, digest.sha256, (), digest.checksum))
    return {"rows_read": rows, "blocks": blocks}


def _header(plan: SplitPlan, first: Shard) -> bytes:
    dialect = output_dialect(plan, first)
    if dialect is None:
        return bytes(compress_block(b"", plan.kind.compression))
    return bytes(compress_block(delimited.header_bytes(plan.schema.names, dialect), plan.kind.compression))


def _join_parquet(
    files: TaskFiles, plan: SplitPlan, split: str, parts: Sequence[Receipt], target: str
) -> dict[str, Any]:
    writer = ShardWriter(
        files.temporary(target),
        kind=plan.kind,
        schema=plan.schema,
        dialect=None,
        parquet_compression=plan.parquet_compression,
    )
    with writer:
        for part in parts:
            for record in _records(part, split):
                scanned = read_scan(files.run, part.number)
                micros = key_micros(scanned, plan)[classify(scanned, plan) == SPLITS.index(split)]
                row = 0
                with open_file(files.run / record.path, Kind("parquet", "none")) as source:
                    for group in range(source.num_row_groups):
                        table = source.read_row_group(group, use_threads=False)
                        writer.append(table, micros[row : row + table.num_rows])
                        row += table.num_rows
        written = writer.finish()
        files.finished(writer.path, target, written)
    return {"rows_read": written.rows, "blocks": [asdict(block) for block in written.blocks]}
