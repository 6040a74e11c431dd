"""Execute a rewrite: find which columns hold nulls, then write every output shard on its own.

There is one output shard per source shard, or shards of about equal size. Packed bins keep the metadata of their
shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import U64
from headrace.bins.rows import ALIGNMENT_KEY
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import in_usual_order
from headrace.dataset.open import FinishedRun, find_run, is_prepared
from headrace.dataset.plain import PlainDataset, open_plain
from headrace.errors import InputError, SettingsError
from headrace.formats.blocks import kind_of_word
from headrace.formats.content import row_digests
from headrace.formats.detect import Kind, stem_of_name
from headrace.formats.open_parquet import key_values
from headrace.formats.schema import few
from headrace.formats.write import ShardWriter
from headrace.rewriting.contents import (
    REASONS,
    Kept,
    check_left,
    compare,
    compared_columns,
    counted_file,
    decide,
    keep_digests,
    known_repeats,
    told,
)
from headrace.rewriting.settings import Rewrite
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.prepare import Outcome
from headrace.run.repeats import count_kept
from headrace.run.tally import ShardRecord, tally
from headrace.storage import local
from headrace.storage.places import expanded
from headrace.stream.audit.exclude import IN_BENCHMARK, read_excluded
from headrace.stream.audit.overlap import Benchmarks

PLAIN_DIRECTORY = "data"
_BINS = ("input_ids", "loss_mask", "seq_start_id")
# Part of the identity of runs with bins. Raise it when their output changes, so that older runs are not reused.
# Before version 1, the metadata on the alignment of the masks was lost.
BINS_LAYOUT = 1
_OURS = "headrace."
_ALIGNMENTS = (ALIGNMENT_KEY, ALIGNMENT_KEY.removeprefix(_OURS))  # our key, and the key of other writers


@dataclass(frozen=True)
class Piece:
    """One output shard: the blocks start..stop-1 of a split, in order.

    source_shard: the shard of these rows; "" if they come from several.
    bytes: of the blocks, as the index records them.
    """

    split: str
    target: str
    start: int
    stop: int
    rows: int
    bytes: int
    source_shard: str


def open_source(settings: Rewrite) -> IndexedDataset:
    """Open the dataset to rewrite.

    Raises `SettingsError` if types are set for a prepared dataset, `InputError` if there is none.
    """
    path = expanded(settings.source[0])
    if len(settings.source) == 1 and path.is_dir() and is_prepared(path):
        if settings.types or settings.null_values:
            raise SettingsError(f"{path}: types and null_values are for plain text shards; this is a prepared dataset")
        return FinishedRun(*find_run(path))
    return open_plain(
        settings.source, types=settings.types, null_values=settings.null_values, cache_dir=settings.cache_dir
    )


def identity_of_source(settings: Rewrite) -> dict[str, Any]:
    """Return what the source adds to the identity of a run: the run_id of a prepared one, and the layout of bins."""
    source = open_source(settings)
    found: dict[str, Any] = {"source_run": source.manifest.run_id if isinstance(source, FinishedRun) else None}
    schemas = [source.split_index(split).schema for split in source.splits[:1]]
    if any(are_bins(settings.columns or schema.names) for schema in schemas):
        found["bins"] = BINS_LAYOUT
    return found


def source_files(settings: Rewrite) -> list[tuple[Path, str]]:
    """Return the shards, including those without rows, sorted by name. Raises `InputError` if none holds rows."""
    source = open_source(settings)
    names = {name for split in source.splits for name in source.split_index(split).shards}
    if not names:
        raise InputError(f"{source.root}: holds no rows; there is nothing to rewrite")
    return [(source.root / name, name) for name in sorted({*names, *_empty_shards(source)})]


def _empty_shards(source: IndexedDataset) -> list[str]:
    return list(source.empty_shards) if isinstance(source, PlainDataset) else []


def execute(settings: Rewrite, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Rewrite the shards in the run directory."""
    source = open_source(settings)
    names = source.schema.names
    if unknown := [name for name in settings.columns or () if name not in names]:
        raise SettingsError(f"columns {unknown} are not in {source.root}; it has {few(names)}")
    directories = dict.fromkeys(source.splits, PLAIN_DIRECTORY)
    facts: dict[str, Any] = {"compression": settings.compression}
    if isinstance(source, FinishedRun):
        own = dict(source.manifest.facts)
        directories = {split: own["directories"][split] for split in source.splits}
        del own["directories"]
        facts |= {"folds": own.pop("folds")} if "folds" in own else {}
        facts |= {"source_recipe": source.manifest.recipe, "source_run": source.manifest.run_id, "source_facts": own}
    pieces = [
        piece
        for split in source.splits
        for piece in plan_pieces(source.split_index(split), directories[split], settings.shard_bytes)
    ]
    order = in_usual_order(source.splits)
    compared = compared_columns(settings, source, settings.columns or names, bins=are_bins(settings.columns or names))
    benchmarks = read_excluded(settings.exclude, settings.exclude_ngram)
    if benchmarks is not None and are_bins(names):
        raise SettingsError("exclude: packed bins hold tokens, not texts; give it to the run that packs the chats")
    kept: Sequence[Kept] | None = None
    if settings.duplicates == "drop" or benchmarks is not None:
        kept, excluded = _choose(settings, context, source, pieces, compared, benchmarks)
        facts |= {} if benchmarks is None else {"benchmarks": benchmarks.facts(excluded)}
    repeats = None if kept is not None else known_repeats(source, order, compared)
    schema = _written_schema(context, source, pieces, settings.columns or names)
    for directory in directories.values():
        local.make_directory(context.run / directory)

    def write(number: int, piece: Piece, files: TaskFiles) -> dict[str, Any]:
        digests: list[U64] | None = [] if compared and repeats is None else None
        made = _write(files, settings, source, schema, piece, compared, digests, None if kept is None else kept[number])
        if digests is not None:
            keep_digests(files, number, digests, order.index(piece.split))
        return made

    made = context.stage("rewrite", _tasks(source, pieces, write))
    shards = [
        ShardRecord(piece.split, receipt.files[0], receipt.result["blocks"], "parquet", piece.source_shard)
        for piece, receipt in zip(pieces, made, strict=True)
        if receipt.result["blocks"]
    ]
    index, totals = tally(shards, source.splits)
    facts["duplicates"] = None
    if compared:
        repeats = repeats or count_kept(context.run, map(counted_file, range(len(pieces))), order)
        context.warn(told(repeats, {split: each.rows for split, each in totals.items()}, compared))
        facts["duplicates"] = {
            "are": settings.duplicates,
            "content": list(compared),
            "in_earlier_split": dict(repeats.earlier),
            "repeated": dict(repeats.own),
        }
    dropped = {} if kept is None else dict.fromkeys(REASONS, 0)
    for each in kept or ():
        dropped["duplicate"] += len(each.copies)
        dropped[IN_BENCHMARK] += len(each.in_benchmark)
    return Outcome(
        schema=schema,
        index=index,
        splits=totals,
        dropped=dropped,
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": sum(receipt.result["rows_read"] for receipt in made),
            "empty_shards": _empty_shards(source),
        },
        directories=directories,
        facts=facts,
    )


def _tasks(
    source: IndexedDataset, pieces: Sequence[Piece], work: Callable[[int, Piece, TaskFiles], dict[str, Any]]
) -> list[Task]:
    """Make a task for each piece, which reads the shards that hold its blocks."""
    made = []
    for number, piece in enumerate(pieces):
        index = source.split_index(piece.split)
        shards = np.unique(index.shard_of_block[piece.start : piece.stop])
        reads = [source.root / index.shards[at] for at in shards]
        made.append(Task(piece.target, piece.bytes, partial(work, number, piece), reads))
    return made


def _choose(
    settings: Rewrite,
    context: RunContext,
    source: IndexedDataset,
    pieces: Sequence[Piece],
    compared: Sequence[str],
    benchmarks: Benchmarks | None,
) -> tuple[Sequence[Kept], list[Mapping[str, int]]]:
    """Read the rows once and choose those of each piece to keep; also count those that overlap benchmarks."""
    drop = settings.duplicates == "drop"
    asked = compared if drop else ()
    columns = None if benchmarks is not None else list(asked)  # a benchmark item may be in any column

    def look(number: int, piece: Piece, files: TaskFiles) -> dict[str, Any]:
        read = source.block_reader(piece.split)
        tables = (read(block, columns) for block in range(piece.start, piece.stop))
        return compare(files, number, tables, asked, benchmarks)

    looked = context.stage("compare", _tasks(source, pieces, look), durable=False)
    rows, order = [piece.rows for piece in pieces], in_usual_order(source.splits)
    kept = decide(context.run, rows, [order.index(piece.split) for piece in pieces], drop=drop)
    check_left(kept, rows)
    return kept, [each.result["excluded"] for each in looked]


def _written_schema(
    context: RunContext, source: IndexedDataset, pieces: Sequence[Piece], columns: Sequence[str]
) -> pa.Schema:
    """Return the schema of these columns. Columns that may hold nulls are read once to see whether they do."""
    fields = [source.schema.field(name) for name in columns]
    unknown = [field.name for field in fields if field.nullable]
    holding: set[str] = set()
    if unknown:

        def find(_number: int, piece: Piece, _files: TaskFiles) -> dict[str, Any]:
            return _find_nulls(source, unknown, piece)

        found = context.stage("nulls", _tasks(source, pieces, find), durable=False)
        holding = {name for receipt in found for name in receipt.result["nulls"]}
    return pa.schema([field.with_nullable(field.name in holding) for field in fields])


def _find_nulls(source: IndexedDataset, columns: Sequence[str], piece: Piece) -> dict[str, Any]:
    read = source.block_reader(piece.split)
    left = list(columns)
    for block in range(piece.start, piece.stop):
        if not left:
            break
        table = read(block, left)
        left = [name for name in left if not table[name].null_count]
    return {"rows_read": piece.rows, "nulls": [name for name in columns if name not in left]}


def _write(
    files: TaskFiles,
    settings: Rewrite,
    source: IndexedDataset,
    schema: pa.Schema,
    piece: Piece,
    compared: Sequence[str],
    digests: list[U64] | None,
    kept: Kept | None,
) -> dict[str, Any]:
    """Write the rows of a piece that stay; write no file if none does.

    digests: a list to which the digests of the rows are appended.
    """
    stays = np.ones(piece.rows, np.bool_) if kept is None else kept.mask(piece.rows)
    if not stays.any():
        return {"rows_read": piece.rows, "blocks": []}
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
        rows = 0
        for block in range(piece.start, piece.stop):
            table = read(block, schema.names)
            own = stays[rows : rows + len(table)]
            rows += len(table)
            if not own.all():
                table = table.filter(pa.array(own))
            if digests is not None:
                digests.append(row_digests(table.select(list(compared))))
            if len(table):
                writer.append(table)
        written = writer.finish()
        if rows != piece.rows:
            raise InputError(
                f"{source.root / piece.source_shard}: has {rows} rows, the index says {piece.rows}; "
                f"it changed while it was read: run again once it is complete"
            )
        files.finished(writer.path, piece.target, written)
    return {"rows_read": rows, "blocks": [asdict(block) for block in written.blocks]}


def plan_pieces(index: SplitIndex, directory: str, shard_bytes: int | None) -> list[Piece]:
    """Plan the output shards of a split; every block is in one of them, in order.

    shard_bytes=None keeps shards and their names. Otherwise shards are numbered, and one ends with the block that
    brings it to shard_bytes or beyond, so small source shards are merged and large ones are divided.
    """
    if not len(index.rows):
        return []
    if shard_bytes is None:
        begins = np.flatnonzero(np.diff(index.shard_of_block, prepend=-1)).tolist()
        names = _kept_names(index, directory)
        targets = [names[int(index.shard_of_block[begin])] for begin in begins]
    else:
        begins, held = [0], 0
        for block, size in enumerate(index.length.tolist()):
            if held >= shard_bytes:
                begins.append(block)
                held = 0
            held += size
        targets = [f"{directory}/part-{number:05d}.parquet" for number in range(len(begins))]
    pieces = []
    for target, start, stop in zip(targets, begins, [*begins[1:], len(index.rows)], strict=True):
        shards = np.unique(index.shard_of_block[start:stop])
        pieces.append(
            Piece(
                split=index.split,
                target=target,
                start=start,
                stop=stop,
                rows=int(index.rows[start:stop].sum()),
                bytes=int(index.length[start:stop].sum()),
                source_shard=index.shards[int(shards[0])] if len(shards) == 1 else "",
            )
        )
    return pieces


def _kept_names(index: SplitIndex, directory: str) -> list[str]:
    """Return the path of each shard below the split's directory: its name as a Parquet file.

    If two shards would get the same name, both keep their extension in it.
    """
    paths = [PurePosixPath(name) for name in index.shards]
    inside = [path.relative_to(directory) if path.is_relative_to(directory) else path for path in paths]
    stems = [path.with_name(stem_of_name(path.name)) for path in inside]
    names = [stem if stems.count(stem) == 1 else path for stem, path in zip(stems, inside, strict=True)]
    return [f"{directory}/{name}.parquet" for name in names]


def are_bins(names: Iterable[str]) -> bool:
    """Check if columns of these names are packed bins."""
    return set(_BINS) <= set(names)


def metadata_of_bins(root: Path, index: SplitIndex, piece: Piece, schema: pa.Schema) -> dict[str, str]:
    """Return the Parquet metadata that all source shards of a piece agree on; none if the columns are not bins.

    Without the key that gives the alignment of the masks, bins look like rows of lists, and which tokens they train is
    unknown. Raises `InputError` if shards to be merged differ in the alignment of their masks.
    """
    if not are_bins(schema.names):
        return {}
    shards = np.unique(index.shard_of_block[piece.start : piece.stop]).tolist()
    said = [_metadata(root / index.shards[shard], index.formats[shard]) for shard in shards]
    for shard, own in zip(shards, said, strict=True):
        for key in _ALIGNMENTS:
            if own.get(key) != said[0].get(key):
                raise InputError(
                    f"{root / index.shards[shard]}: its {key} is {own.get(key)!r}, of {index.shards[shards[0]]} it is"
                    f" {said[0].get(key)!r}; such bins cannot be one shard: leave shard_bytes out"
                )
    return {key: value for key, value in said[0].items() if all(own.get(key) == value for own in said)}


def _metadata(path: Path, word: str) -> dict[str, str]:
    kind = kind_of_word(word)
    if kind.format != "parquet":
        return {}
    found = key_values(path, kind)
    texts = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in found.items()}
    return {key: value for key, value in texts.items() if key.startswith(_OURS) or key in _ALIGNMENTS}
