"""The rewrite as a run: where nulls are has to be known, then every output shard is written on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.dataset.index import IndexRow
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import SplitTotals
from headrace.dataset.open import FinishedRun, find_run, is_prepared
from headrace.dataset.plain import PlainDataset, open_plain
from headrace.errors import InputError, SettingsError
from headrace.formats.detect import Kind
from headrace.formats.schema import few
from headrace.formats.write import ShardWriter
from headrace.rewriting.bins import BINS_LAYOUT, are_bins, metadata_of_bins
from headrace.rewriting.config import Rewrite
from headrace.rewriting.pieces import Piece, plan_pieces
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.storage import local
from headrace.storage.places import expanded

PLAIN_DIRECTORY = "data"


def open_source(settings: Rewrite) -> IndexedDataset:
    """The dataset to rewrite. Raises `SettingsError` for types of a prepared one, `InputError` if there is none."""
    path = expanded(settings.source[0])
    if len(settings.source) == 1 and path.is_dir() and is_prepared(path):
        if settings.types or settings.null_values:
            raise SettingsError(f"{path}: types and null_values are for plain text shards; this is a prepared dataset")
        return FinishedRun(*find_run(path))
    return open_plain(
        settings.source, types=settings.types, null_values=settings.null_values, cache_dir=settings.cache_dir
    )


def identity_of_source(settings: Rewrite) -> dict[str, Any]:
    """What the source adds to the identity of a run: the run id of a prepared one, and how bins are written."""
    source = open_source(settings)
    found: dict[str, Any] = {"source_run": source.manifest.run_id if isinstance(source, FinishedRun) else None}
    schemas = [source.split_index(split).schema for split in source.splits[:1]]
    if any(are_bins(settings.columns or schema.names) for schema in schemas):
        found["bins"] = BINS_LAYOUT
    return found


def source_files(settings: Rewrite) -> list[tuple[Path, str]]:
    """The shards, those without rows too, sorted by name. Raises `InputError` if none holds rows."""
    source = open_source(settings)
    names = {name for split in source.splits for name in source.split_index(split).shards}
    if not names:
        raise InputError(f"{source.root}: holds no rows; there is nothing to rewrite")
    return [(source.root / name, name) for name in sorted({*names, *_empty_shards(source)})]


def _empty_shards(source: IndexedDataset) -> list[str]:
    return list(source.empty_shards) if isinstance(source, PlainDataset) else []


def execute(settings: Rewrite, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the rewrite in the run directory."""
    source = open_source(settings)
    columns = _columns(settings, source)
    directories = _directories(source)
    pieces = [
        piece
        for split in source.splits
        for piece in plan_pieces(source.split_index(split), directories[split], settings.shard_bytes)
    ]
    schema = _schema(source, columns, pieces, context)
    for directory in directories.values():
        local.make_directory(context.run / directory)
    made = context.stage("rewrite", [_task(settings, source, schema, piece) for piece in pieces])
    return Outcome(
        schema=schema,
        index=_index(pieces, made),
        splits=_totals(source, pieces, made),
        dropped={},
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": sum(receipt.result["rows_read"] for receipt in made),
            "empty_shards": _empty_shards(source),
        },
        directories=directories,
        facts=_facts(settings, source),
    )


def _columns(settings: Rewrite, source: IndexedDataset) -> list[str]:
    names = source.schema.names
    unknown = [name for name in settings.columns or () if name not in names]
    if unknown:
        raise SettingsError(f"columns {unknown} are not in {source.root}; it has {few(names)}")
    return list(settings.columns or names)


def _directories(source: IndexedDataset) -> dict[str, str]:
    if isinstance(source, FinishedRun):
        return {split: source.manifest.facts["directories"][split] for split in source.splits}
    return dict.fromkeys(source.splits, PLAIN_DIRECTORY)


def _schema(source: IndexedDataset, columns: Sequence[str], pieces: Sequence[Piece], context: RunContext) -> pa.Schema:
    """The output's columns: nullable where there are nulls. Columns that may hold some are read once to know."""
    unknown = [name for name in columns if source.schema.field(name).nullable]
    holding: set[str] = set()
    if unknown:
        found = context.stage("nulls", [_null_task(source, unknown, piece) for piece in pieces], durable=False)
        holding = {name for receipt in found for name in receipt.result["nulls"]}
    return pa.schema([source.schema.field(name).with_nullable(name in holding) for name in columns])


def _null_task(source: IndexedDataset, columns: Sequence[str], piece: Piece) -> Task:
    def work(_: TaskFiles) -> dict[str, Any]:
        read = source.block_reader(piece.split)
        left = list(columns)
        for block in range(piece.start, piece.stop):
            if not left:
                break
            table = read(block, left)
            left = [name for name in left if not table[name].null_count]
        return {"rows_read": piece.rows, "nulls": [name for name in columns if name not in left]}

    return Task(piece.target, piece.bytes, work, _shards_of(source, piece))


def _shards_of(source: IndexedDataset, piece: Piece) -> list[Path]:
    index = source.split_index(piece.split)
    return [source.root / index.shards[each] for each in np.unique(index.shard_of_block[piece.start : piece.stop])]


def _task(settings: Rewrite, source: IndexedDataset, schema: pa.Schema, piece: Piece) -> Task:
    def work(files: TaskFiles) -> dict[str, Any]:
        read = source.block_reader(piece.split)
        metadata = metadata_of_bins(source.root, source.split_index(piece.split), piece, schema)
        writer = ShardWriter(
            files.temporary(piece.target),
            kind=Kind("parquet", "none"),
            schema=schema.with_metadata(metadata) if metadata else schema,
            dialect=None,
            parquet_compression=settings.compression,
            encoding="fast",
            block_rows=settings.rows_per_group,
        )
        with writer:
            for block in range(piece.start, piece.stop):
                writer.append(read(block, schema.names))
            written = writer.finish()
            if written.rows != piece.rows:
                raise InputError(
                    f"{source.root / piece.source_shard}: has {written.rows} rows, the index says {piece.rows}; "
                    f"it changed while it was read: run again once it is complete"
                )
            files.finished(writer.path, piece.target, written)
        return {"rows_read": written.rows, "blocks": [asdict(block) for block in written.blocks]}

    return Task(piece.target, piece.bytes, work, _shards_of(source, piece))


def _index(pieces: Sequence[Piece], made: Sequence[Receipt]) -> list[IndexRow]:
    rows = [
        IndexRow(
            split=piece.split,
            shard=piece.target,
            format="parquet",
            block=block,
            digest=receipt.files[0].digest,
            checksum=receipt.files[0].checksum,
            source_shard=piece.source_shard,
            **facts,
        )
        for piece, receipt in zip(pieces, made, strict=True)
        for block, facts in enumerate(receipt.result["blocks"])
    ]
    return sorted(rows, key=lambda row: (row.split, row.shard, row.block))


def _totals(source: IndexedDataset, pieces: Sequence[Piece], made: Sequence[Receipt]) -> Mapping[str, SplitTotals]:
    totals = {}
    for split in source.splits:
        own = [receipt for piece, receipt in zip(pieces, made, strict=True) if piece.split == split]
        totals[split] = SplitTotals(
            rows=sum(receipt.result["rows_read"] for receipt in own),
            shards=len(own),
            bytes=sum(record.bytes for receipt in own for record in receipt.files),
        )
    return totals


def _facts(settings: Rewrite, source: IndexedDataset) -> dict[str, Any]:
    facts: dict[str, Any] = {"compression": settings.compression}
    if isinstance(source, FinishedRun):
        kept = {name: value for name, value in source.manifest.facts.items() if name != "directories"}
        facts |= {"source_recipe": source.manifest.recipe, "source_run": source.manifest.run_id, "source_facts": kept}
    return facts
