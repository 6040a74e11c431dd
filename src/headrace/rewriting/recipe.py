"""Execute a rewrite: find which columns hold nulls, then write every output shard on its own.

There is one output shard per source shard, or shards of about equal size. Packed bins keep the
metadata of their shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.bins.rows import ALIGNMENT_KEY
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.open import FinishedRun, find_run, is_prepared
from headrace.dataset.plain import (
    PlainDataset,
    PlainDeclared,
    changes_of,
    open_plain,
    refuse_plain_settings,
)
from headrace.errors import InputError, setting_name
from headrace.formats.column_paths import ColumnSelection, with_paths
from headrace.formats.parquet import key_values
from headrace.formats.registry import FileType
from headrace.formats.source import file_type_of_word
from headrace.formats.write import ShardWriter
from headrace.rewriting.pieces import Piece, are_bins, plan_outputs, read_blocks
from headrace.rewriting.shuffled import KeyedWriter, KeyRange, plan_ranges, read_range
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.storage import local
from headrace.storage.places import expanded

if TYPE_CHECKING:
    from headrace.rewriting.settings import Rewrite

PLAIN_DIRECTORY = "data"
# Part of the identity of runs with bins. Raise it when their output changes, so that older runs are
# not reused. Before version 1, the metadata on the alignment of the masks was lost.
BINS_LAYOUT = 1
_OURS = "headrace."
# our key, and the key of other writers
_ALIGNMENTS = (ALIGNMENT_KEY, ALIGNMENT_KEY.removeprefix(_OURS))


def open_source(settings: Rewrite) -> IndexedDataset:
    """Open the dataset to rewrite.

    Raises `SettingsError` if types are set for a prepared dataset, `InputError` if there is none.
    """
    declared: PlainDeclared = {
        "types": settings.types,
        "dialect": settings.dialect,
        "schema_drift": settings.schema_drift,
    }
    path = expanded(settings.source[0])
    if len(settings.source) == 1 and path.is_dir() and is_prepared(path):
        refuse_plain_settings(path, **declared)
        return FinishedRun(*find_run(path), texts="typed")
    return open_plain(settings.source, **declared, cache_dir=settings.cache_dir)


def identity_of_source(settings: Rewrite) -> dict[str, Any]:
    """Return what the source adds to the identity of a run: the run_id of a prepared one, and the
    layout of bins.
    """
    source = open_source(settings)
    identity: dict[str, Any] = {
        "source_run": source.manifest.run_id if isinstance(source, FinishedRun) else None
    }
    schemas = [source.split_index(split).schema for split in source.splits[:1]]
    selection = ColumnSelection(settings.columns, settings.drop_columns)
    if any(are_bins(selection.names_in(schema)) for schema in schemas):
        identity["bins"] = BINS_LAYOUT
    return identity


def source_files(settings: Rewrite) -> list[tuple[Path, str]]:
    """Return the shards, including those without rows, sorted by name.

    Raises `InputError` if none holds rows.
    """
    source = open_source(settings)
    names: set[str] = set()
    for split in source.splits:
        names.update(source.split_index(split).shards)
    if not names:
        raise InputError(
            "holds no rows, so there is nothing to rewrite",
            path=source.root,
            remedy="give data with rows",
        )
    return [(source.root / name, name) for name in sorted({*names, *_empty_shards(source)})]


def _empty_shards(source: IndexedDataset) -> list[str]:
    if isinstance(source, PlainDataset):
        return list(source.empty_shards)
    return []


def execute(settings: Rewrite, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Rewrite the shards in the run directory."""
    source = open_source(settings)
    if isinstance(source, PlainDataset):
        context.inform(changes_of(source.index))
    selection = ColumnSelection(settings.columns, settings.drop_columns)
    selection.check([source.schema], source.root)
    columns = selection.names_in(source.schema)
    directories, metadata = _carried_over(source)
    metadata = {"compression": settings.compression, **metadata}
    shuffled = settings.shuffle_seed is not None
    shard_bytes = None if shuffled else settings.shard_bytes
    chunks: list[Piece] = []
    gaps: set[str] = set()  # columns that are known to lack values in some rows
    for split in source.splits:
        index = source.split_index(split)
        chunks += plan_outputs(index, directories[split], shard_bytes)
        gaps.update(index.gaps)
    writer = _OutputWriter(
        settings=settings,
        source=source,
        schema=_written_schema(context, source, chunks, columns),
    )
    for directory in directories.values():
        local.make_directory(context.run / directory)
    if shuffled:
        chunks, receipts = _write_shuffled(context, writer, chunks, directories)
    else:
        receipts = context.stage("rewrite", _tasks(source, chunks, writer))
    block_index, totals = tally(_records(chunks, receipts), source.splits)
    return Outcome(
        schema=writer.schema,
        index=block_index,
        splits=totals,
        dropped={},
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": sum(receipt.rows_in for receipt in receipts),
            "empty_shards": _empty_shards(source),
        },
        directories=directories,
        metadata=metadata,
        gaps=gaps & {*writer.schema.names},
    )


def _write_shuffled(
    context: RunContext,
    writer: _OutputWriter,
    chunks: Sequence[Piece],
    directories: Mapping[str, str],
) -> tuple[list[Piece], list[Receipt]]:
    """Write the rows of each split in the order of their keys; return the shards and receipts."""
    source, settings = writer.source, writer.settings
    assert settings.shuffle_seed is not None
    keyed_writer = KeyedWriter(source, writer.schema, settings.shuffle_seed)
    context.stage("shuffle", _tasks(source, chunks, keyed_writer), durable=False)
    ranges: list[KeyRange] = []
    begin = 0
    for split in source.splits:
        of_split = [chunk for chunk in chunks if chunk.split == split]
        if of_split:
            index = source.split_index(split)
            ranges += plan_ranges(of_split, index, directories[split], settings.shard_bytes, begin)
        begin += len(of_split)
    targets = [key_range.target for key_range in ranges]
    tasks = []
    for key_range in ranges:
        target = key_range.target
        # reads the files of the stage before, and no longer the source
        tasks.append(Task(target.target, target.bytes, partial(writer.write_range, key_range)))
    return targets, context.stage("rewrite", tasks)


def _carried_over(source: IndexedDataset) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the directory of each split, and what the manifest says about the source's run."""
    if not isinstance(source, FinishedRun):
        return dict.fromkeys(source.splits, PLAIN_DIRECTORY), {}
    source_metadata = dict(source.manifest.metadata)
    directories = source_metadata.pop("directories")
    metadata: dict[str, Any] = {}
    if "folds" in source_metadata:
        metadata["folds"] = source_metadata.pop("folds")
    metadata |= {
        "source_recipe": source.manifest.recipe,
        "source_run": source.manifest.run_id,
        "source_facts": source_metadata,
    }
    return {split: directories[split] for split in source.splits}, metadata


def _records(chunks: Sequence[Piece], receipts: Sequence[Receipt]) -> list[ShardRecord]:
    """Return the records of the shards that were written; a piece without rows has none."""
    records = []
    for chunk, receipt in zip(chunks, receipts, strict=True):
        blocks = receipt.extra["blocks"]
        if blocks:
            file = receipt.files[0]
            records.append(ShardRecord(chunk.split, file, blocks, "parquet", chunk.source_shard))
    return records


def _tasks(
    source: IndexedDataset,
    chunks: Sequence[Piece],
    work: Callable[[int, Piece, TaskFiles], dict[str, Any]],
) -> list[Task]:
    """Make a task for each piece, which reads the shards that hold its blocks."""
    tasks = []
    for number, chunk in enumerate(chunks):
        index = source.split_index(chunk.split)
        shards = np.unique(index.shard_of_block[chunk.start : chunk.stop])
        reads = [source.root / index.shards[at] for at in shards]
        tasks.append(Task(chunk.target, chunk.bytes, partial(work, number, chunk), reads))
    return tasks


def _written_schema(
    context: RunContext, source: IndexedDataset, chunks: Sequence[Piece], columns: Sequence[str]
) -> pa.Schema:
    """Return the schema of these columns.

    Columns that may hold nulls are read once to see whether they do.
    """
    fields = list(with_paths(source.schema, columns))
    unknown = [field.name for field in fields if field.nullable]
    holding: set[str] = set()
    if unknown:

        def find(_number: int, chunk: Piece, _files: TaskFiles) -> dict[str, Any]:
            read = source.block_reader(chunk.split)
            left = list(unknown)
            for block in range(chunk.start, chunk.stop):
                if not left:
                    break
                table = read(block, left)
                left = [name for name in left if not table[name].null_count]
            return {"rows_in": chunk.rows, "nulls": [name for name in unknown if name not in left]}

        receipts = context.stage("nulls", _tasks(source, chunks, find), durable=False)
        for receipt in receipts:
            holding.update(receipt.extra["nulls"])
    return pa.schema([field.with_nullable(field.name in holding) for field in fields])


@dataclass(frozen=True, kw_only=True, eq=False)
class _OutputWriter:
    """Writes the rows of a piece. Picklable."""

    settings: Rewrite
    source: IndexedDataset
    schema: pa.Schema

    def __call__(self, _number: int, chunk: Piece, files: TaskFiles) -> dict[str, Any]:
        """Write a piece, block by block."""
        return self._write(chunk, read_blocks(self.source, chunk, self.schema.names), files)

    def write_range(self, key_range: KeyRange, files: TaskFiles) -> dict[str, Any]:
        """Write the rows of a range of keys."""
        table = read_range(files.run, key_range, self.schema)
        return self._write(key_range.target, [(self.source.root, table)], files)

    def _write(
        self, chunk: Piece, tables: Iterable[tuple[Path, pa.Table]], files: TaskFiles
    ) -> dict[str, Any]:
        """Write a shard. tables: with the path that each was read from."""
        writer = self._writer(chunk, files)
        rows = 0
        where = self.source.root
        with writer:
            for where, table in tables:
                rows += len(table)
                with _located(where):
                    writer.append(table)
            if not rows:
                return {"rows_in": 0, "blocks": []}
            with _located(where):
                written = writer.finish()
            files.finished(writer.path, chunk.target, written)
        return {"rows_in": rows, "blocks": [asdict(block) for block in written.blocks]}

    def _writer(self, chunk: Piece, files: TaskFiles) -> ShardWriter:
        index = self.source.split_index(chunk.split)
        schema = self.schema
        metadata = metadata_of_bins(self.source.root, index, chunk, schema)
        if metadata:
            schema = schema.with_metadata(metadata)
        return ShardWriter(
            files.temporary(chunk.target),
            file_type=FileType.named("parquet"),
            schema=schema,
            dialect=None,
            parquet_compression=self.settings.compression,
            encoding="fast",
            block_rows=self.settings.rows_per_group,
        )


@contextmanager
def _located(shard: Path) -> Iterator[None]:
    """Name the shard in input errors that name none."""
    try:
        yield
    except InputError as error:
        raise error.at(path=shard) from None


def metadata_of_bins(
    root: Path, index: SplitIndex, chunk: Piece, schema: pa.Schema
) -> dict[str, str]:
    """Return the Parquet metadata that all source shards of a piece agree on; none if the columns
    are not bins.

    Without the key that gives the alignment of the masks, bins look like rows of lists, and which
    tokens they train is unknown. Raises `InputError` if shards to be merged differ in the alignment
    of their masks.
    """
    if not are_bins(schema.names):
        return {}
    shards = np.unique(index.shard_of_block[chunk.start : chunk.stop]).tolist()
    metadata = [_metadata(root / index.shards[shard], index.formats[shard]) for shard in shards]
    for shard, shard_metadata in zip(shards, metadata, strict=True):
        for key in _ALIGNMENTS:
            if shard_metadata.get(key) != metadata[0].get(key):
                raise InputError(
                    f"its {key} is {shard_metadata.get(key)!r}, of {index.shards[shards[0]]} it is"
                    f" {metadata[0].get(key)!r}",
                    path=root / index.shards[shard],
                    remedy=(
                        f"leave {setting_name('shard_bytes')} out: such bins cannot be one shard"
                    ),
                )
    result = {}
    for key, value in metadata[0].items():
        if all(other.get(key) == value for other in metadata):
            result[key] = value
    return result


def _metadata(path: Path, word: str) -> dict[str, str]:
    file_type = file_type_of_word(word)
    if file_type.format.name != "parquet":
        return {}
    values = key_values(path, file_type)
    result = {}
    for raw_key, value in values.items():
        key = raw_key.decode("utf-8", "replace")
        if key.startswith(_OURS) or key in _ALIGNMENTS:
            result[key] = value.decode("utf-8", "replace")
    return result
