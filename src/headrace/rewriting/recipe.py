"""Execute a rewrite: find which columns hold nulls, then write every output shard on its own.

There is one output shard per source shard, or shards of about equal size. Packed bins keep the
metadata of their shards.

If rows may be dropped, because they are in a benchmark or later copies, all rows are read once more
before any is written. If they are only counted, they are digested as they are written, and one
range of digests is compared at a time. If copies are dropped, digests of all rows are compared in
memory, at 32 bytes per row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64, Bools
from headrace.bins.rows import ALIGNMENT_KEY
from headrace.dataset.contents import names_told, repeats_told, roles_of
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import in_usual_order
from headrace.dataset.open import FinishedRun, find_run, is_prepared
from headrace.dataset.plain import PlainDataset, open_plain
from headrace.errors import InputError, SettingsError
from headrace.formats.content import NOTHING, Repeated, content_columns, row_digests, tagged
from headrace.formats.open_parquet import key_values
from headrace.formats.registry import FileType, stem_of_name
from headrace.formats.source import file_type_of_word
from headrace.formats.types import shorten_list
from headrace.formats.write import ShardWriter
from headrace.near.repeats import count_kept, keep_words
from headrace.recipe import recipe_of_run
from headrace.rewriting.settings import Rewrite
from headrace.run.context import STAGE_DIRECTORY, RunContext, Task, TaskFiles, read_arrow
from headrace.run.prepare import Outcome
from headrace.run.tally import ShardRecord, tally
from headrace.storage import local
from headrace.storage.places import expanded
from headrace.stream.audit.exclude import IN_BENCHMARK, read_excluded
from headrace.stream.audit.overlap import Benchmarks, texts_of

REASONS = (IN_BENCHMARK, "duplicate")
PLAIN_DIRECTORY = "data"
# Digests of the rows of a piece, relative to the run: of all rows, and of the written ones with
# their splits.
_COMPARED = f"{STAGE_DIRECTORY}/compare-{{:05d}}.arrow"
_COUNTED = f"{STAGE_DIRECTORY}/rewrite-{{:05d}}.content.arrow"
_MOST_SPLITS = 4  # limit of the split numbers in digests
_BINS = ("input_ids", "loss_mask", "seq_start_id")
# Part of the identity of runs with bins. Raise it when their output changes, so that older runs are
# not reused. Before version 1, the metadata on the alignment of the masks was lost.
BINS_LAYOUT = 1
_OURS = "headrace."
# our key, and the key of other writers
_ALIGNMENTS = (ALIGNMENT_KEY, ALIGNMENT_KEY.removeprefix(_OURS))


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


@dataclass(frozen=True)
class Kept:
    """The rows of a piece to leave out. copies, in_benchmark: their numbers, ascending int64."""

    copies: I64
    in_benchmark: I64

    def mask(self, rows: int) -> Bools:
        """Return a mask of the rows that stay."""
        stays = np.ones(rows, np.bool_)
        stays[self.copies] = stays[self.in_benchmark] = False
        return stays


def open_source(settings: Rewrite) -> IndexedDataset:
    """Open the dataset to rewrite.

    Raises `SettingsError` if types are set for a prepared dataset, `InputError` if there is none.
    """
    path = expanded(settings.source[0])
    if len(settings.source) == 1 and path.is_dir() and is_prepared(path):
        if settings.types or settings.null_values:
            raise SettingsError(
                f"{path}: types and null_values are for plain text shards; this is a prepared"
                " dataset"
            )
        return FinishedRun(*find_run(path))
    return open_plain(
        settings.source,
        types=settings.types,
        null_values=settings.null_values,
        cache_dir=settings.cache_dir,
    )


def identity_of_source(settings: Rewrite) -> dict[str, Any]:
    """Return what the source adds to the identity of a run: the run_id of a prepared one, and the
    layout of bins.
    """
    source = open_source(settings)
    found: dict[str, Any] = {
        "source_run": source.manifest.run_id if isinstance(source, FinishedRun) else None
    }
    schemas = [source.split_index(split).schema for split in source.splits[:1]]
    if any(are_bins(settings.columns or schema.names) for schema in schemas):
        found["bins"] = BINS_LAYOUT
    return found


def source_files(settings: Rewrite) -> list[tuple[Path, str]]:
    """Return the shards, including those without rows, sorted by name.

    Raises `InputError` if none holds rows.
    """
    source = open_source(settings)
    names = {name for split in source.splits for name in source.split_index(split).shards}
    if not names:
        raise InputError(f"{source.root}: holds no rows; there is nothing to rewrite")
    return [(source.root / name, name) for name in sorted({*names, *_empty_shards(source)})]


def _empty_shards(source: IndexedDataset) -> list[str]:
    if isinstance(source, PlainDataset):
        return list(source.empty_shards)
    return []


def execute(settings: Rewrite, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Rewrite the shards in the run directory."""
    source = open_source(settings)
    names = source.schema.names
    if unknown := [name for name in settings.columns or () if name not in names]:
        raise SettingsError(f"columns {unknown} are not in {source.root}; it has {shorten_list(names)}")
    directories = dict.fromkeys(source.splits, PLAIN_DIRECTORY)
    facts: dict[str, Any] = {"compression": settings.compression}
    if isinstance(source, FinishedRun):
        own = dict(source.manifest.facts)
        directories = {split: own["directories"][split] for split in source.splits}
        del own["directories"]
        if "folds" in own:
            facts |= {"folds": own.pop("folds")}
        else:
            facts |= {}
        facts |= {
            "source_recipe": source.manifest.recipe,
            "source_run": source.manifest.run_id,
            "source_facts": own,
        }
    pieces = [
        piece
        for split in source.splits
        for piece in plan_pieces(
            source.split_index(split), directories[split], settings.shard_bytes
        )
    ]
    order = in_usual_order(source.splits)
    compared = compared_columns(
        settings, source, settings.columns or names, bins=are_bins(settings.columns or names)
    )
    benchmarks = read_excluded(settings.exclude, settings.exclude_ngram)
    if benchmarks is not None and are_bins(names):
        raise SettingsError(
            "exclude: packed bins hold tokens, not texts; give it to the run that packs the chats"
        )
    kept: Sequence[Kept] | None = None
    if settings.duplicates == "drop" or benchmarks is not None:
        kept, excluded = _choose(settings, context, source, pieces, compared, benchmarks)
        if benchmarks is None:
            facts |= {}
        else:
            facts |= {"benchmarks": benchmarks.metadata(excluded)}
    if kept is not None:
        repeats = None
    else:
        repeats = known_repeats(source, order, compared)
    schema = _written_schema(context, source, pieces, settings.columns or names)
    for directory in directories.values():
        local.make_directory(context.run / directory)

    def write(number: int, piece: Piece, files: TaskFiles) -> dict[str, Any]:
        if compared and repeats is None:
            digests: list[U64] | None = []
        else:
            digests = None
        made = _write(
            files,
            settings,
            source,
            schema,
            piece,
            compared,
            digests,
            None if kept is None else kept[number],
        )
        if digests is not None:
            words = np.concatenate([np.empty(0, np.uint64), *digests])
            keep_words(files, _COUNTED.format(number), tagged(words, order.index(piece.split)))
        return made

    made = context.stage("rewrite", _tasks(source, pieces, write))
    shards = [
        ShardRecord(
            piece.split, receipt.files[0], receipt.extra["blocks"], "parquet", piece.source_shard
        )
        for piece, receipt in zip(pieces, made, strict=True)
        if receipt.extra["blocks"]
    ]
    index, totals = tally(shards, source.splits)
    facts["duplicates"] = None
    if compared:
        repeats = repeats or count_kept(
            context.run, [_COUNTED.format(number) for number in range(len(pieces))], order
        )
        told = repeats_told(repeats.earlier, {split: each.rows for split, each in totals.items()})
        how = f"compared by {names_told(compared)}; set content= to the columns that count"
        context.warn([] if told is None else [f'{told}, {how}, or choose duplicates="drop"'])
        facts["duplicates"] = {
            "are": settings.duplicates,
            "content": list(compared),
            "in_earlier_split": dict(repeats.earlier),
            "repeated": dict(repeats.same_split),
        }
    dropped = {}
    if kept is not None:
        counts = (
            sum(len(each.in_benchmark) for each in kept),
            sum(len(each.copies) for each in kept),
        )
        dropped = dict(zip(REASONS, counts, strict=True))
    return Outcome(
        schema=schema,
        index=index,
        splits=totals,
        dropped=dropped,
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": sum(receipt.rows_in for receipt in made),
            "empty_shards": _empty_shards(source),
        },
        directories=directories,
        facts=facts,
    )


def _tasks(
    source: IndexedDataset,
    pieces: Sequence[Piece],
    work: Callable[[int, Piece, TaskFiles], dict[str, Any]],
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
    """Read the rows once and choose those of each piece to keep; also count those that overlap
    benchmarks.
    """
    drop = settings.duplicates == "drop"
    dropped_by: Sequence[str] = compared if drop else ()
    columns: list[str] | None = list(dropped_by)
    if benchmarks is not None:
        columns = None  # a benchmark item may be in any column

    def look(number: int, piece: Piece, files: TaskFiles) -> dict[str, Any]:
        read = source.block_reader(piece.split)
        tables = (read(block, columns) for block in range(piece.start, piece.stop))
        return compare(files, number, tables, dropped_by, benchmarks)

    looked = context.stage("compare", _tasks(source, pieces, look), durable=False)
    rows = [piece.rows for piece in pieces]
    order = in_usual_order(source.splits)
    kept = decide(context.run, rows, [order.index(piece.split) for piece in pieces], drop=drop)
    if sum(len(each.copies) + len(each.in_benchmark) for each in kept) == sum(rows):
        raise InputError(
            f"all {sum(rows):,} rows hold items of the benchmarks in exclude; there is nothing to"
            " rewrite"
        )
    return kept, [each.extra["excluded"] for each in looked]


def compared_columns(
    settings: Rewrite, source: IndexedDataset, names: Sequence[str], *, bins: bool
) -> tuple[str, ...]:
    """Return the columns that make the content of a row; none if rows are not compared.

    These are the columns in `content`, else those that the source's own run compared, else all
    without a role in the source.
    names: columns of the output.
    Raises `SettingsError` for columns that do not exist, and if duplicates are to be dropped but
    the rows cannot be compared: packed bins, rows of a recipe that compares them itself, only
    columns with a role, or too many splits.
    """
    if settings.duplicates == "allow":
        return ()
    if unknown := [name for name in settings.content if name not in names]:
        raise SettingsError(
            f"content names {unknown}, which the output does not have; it has {', '.join(names)}"
        )
    if isinstance(source, FinishedRun):
        manifest = source.manifest
    else:
        manifest = None
    if manifest is None:
        more = None
    else:
        more = recipe_of_run(manifest.recipe).content_unit
    why = None
    if settings.content:
        found = settings.content
    elif bins or more is not None:
        what = "of a recipe that compares them itself"
        if bins:
            what = "packed bins, which hold many sequences each"
        found = ()
        why = (
            f"the rows are {what}; give duplicates to the run that made them, or name columns in"
            " content="
        )
    else:
        if manifest is None:
            own = None
        else:
            own = manifest.facts.get("duplicates")
        said = None
        if isinstance(own, dict):
            said = own.get("content")
        roles = roles_of(source)
        left_out = {
            roles.get("time"),
            roles.get("entity"),
            roles.get("label"),
            *roles.get("targets", ()),
        }
        found = tuple(name for name in said or content_columns(names, left_out) if name in names)
        why = "all columns of the output have a role; name those to compare with content="
        if found:
            why = None
    if found and len(source.splits) > _MOST_SPLITS:
        found = ()
        why = f"the source has {len(source.splits)} splits, and {_MOST_SPLITS} can be compared"
    if why is not None and settings.duplicates == "drop":
        raise SettingsError(f"duplicates is 'drop', and {why}")
    return found


def known_repeats(
    source: IndexedDataset, splits: Sequence[str], compared: Sequence[str]
) -> Repeated | None:
    """Return the repeats that a prepared source counted by the same columns; None if it did not.

    splits: of the source, in their usual order. `verify` counts again in what was written.
    """
    if (
        not isinstance(source, FinishedRun)
        or recipe_of_run(source.manifest.recipe).content_unit is not None
    ):
        return None
    said = source.manifest.facts.get("duplicates")
    if not isinstance(said, dict) or list(compared) != said.get("content"):
        return None
    earlier = said["in_earlier_split"]
    own = said["repeated"]
    if (set(earlier), set(own)) != (set(splits[1:]), set(splits)):
        return None
    return Repeated(
        {name: earlier[name] for name in splits[1:]}, {name: own[name] for name in splits}
    )


def compare(
    files: TaskFiles,
    number: int,
    tables: Iterator[pa.Table],
    compared: Sequence[str],
    benchmarks: Benchmarks | None,
) -> dict[str, Any]:
    """Write a digest of each row of a piece, and whether a benchmark has it.

    tables: its rows, block by block.
    """
    excluded: Counter[str] = Counter()
    digests = [np.empty(0, np.uint64)]
    holds = [np.empty(0, np.bool_)]
    rows = 0
    for table in tables:
        rows += len(table)
        if compared:
            digests.append(row_digests(table.select(list(compared))))
        if benchmarks is not None:
            holds.append(benchmarks.mask(texts_of(table), len(table), excluded))
    columns: dict[str, Any] = {}
    if compared:
        columns["content"] = np.concatenate(digests)
    if benchmarks is not None:
        columns["holds"] = pa.array(np.concatenate(holds))
    files.write_arrow(_COMPARED.format(number), pa.table(columns))
    counts = {} if benchmarks is None else {name: excluded[name] for name in benchmarks.digests}
    return {"rows_in": rows, "excluded": counts}


def decide(run: Path, rows: Sequence[int], splits: Sequence[int], *, drop: bool) -> list[Kept]:
    """Choose the rows to drop from the files of `compare`; of each content the first row stays,
    split by split.

    rows, splits: of each piece, the number of its rows and the index of its split.
    """
    tables = [read_arrow(run / _COMPARED.format(number)) for number in range(len(rows))]
    holds = [
        table["holds"].to_numpy() if "holds" in table.column_names else np.zeros(count, np.bool_)
        for table, count in zip(tables, rows, strict=True)
    ]
    copies = np.zeros(sum(rows), np.bool_)
    if drop:
        digests = np.concatenate(
            [np.empty(0, np.uint64), *(table["content"].to_numpy() for table in tables)]
        )
        held = np.flatnonzero((digests != NOTHING) & ~np.concatenate(holds))
        held = held[np.argsort(np.repeat(splits, rows)[held], kind="stable")]
        copies[held] = True
        copies[held[np.unique(digests[held], return_index=True)[1]]] = False
    parts = np.split(copies, np.cumsum(rows)[:-1])
    return [
        Kept(np.flatnonzero(copy), np.flatnonzero(own))
        for copy, own in zip(parts, holds, strict=True)
    ]


def _written_schema(
    context: RunContext, source: IndexedDataset, pieces: Sequence[Piece], columns: Sequence[str]
) -> pa.Schema:
    """Return the schema of these columns.

    Columns that may hold nulls are read once to see whether they do.
    """
    fields = [source.schema.field(name) for name in columns]
    unknown = [field.name for field in fields if field.nullable]
    holding: set[str] = set()
    if unknown:

        def find(_number: int, piece: Piece, _files: TaskFiles) -> dict[str, Any]:
            read = source.block_reader(piece.split)
            left = list(unknown)
            for block in range(piece.start, piece.stop):
                if not left:
                    break
                table = read(block, left)
                left = [name for name in left if not table[name].null_count]
            return {"rows_in": piece.rows, "nulls": [name for name in unknown if name not in left]}

        found = context.stage("nulls", _tasks(source, pieces, find), durable=False)
        holding = {name for receipt in found for name in receipt.extra["nulls"]}
    return pa.schema([field.with_nullable(field.name in holding) for field in fields])


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
    if kept is None:
        stays = np.ones(piece.rows, np.bool_)
    else:
        stays = kept.mask(piece.rows)
    if not stays.any():
        return {"rows_in": piece.rows, "blocks": []}
    read = source.block_reader(piece.split)
    metadata = metadata_of_bins(source.root, source.split_index(piece.split), piece, schema)
    writer = ShardWriter(
        files.temporary(piece.target),
        file_type=FileType.named("parquet"),
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
                f"{source.root / piece.source_shard}: has {rows} rows, the index says {piece.rows};"
                " it changed while it was read: run again once it is complete"
            )
        files.finished(writer.path, piece.target, written)
    return {"rows_in": rows, "blocks": [asdict(block) for block in written.blocks]}


def plan_pieces(index: SplitIndex, directory: str, shard_bytes: int | None) -> list[Piece]:
    """Plan the output shards of a split; every block is in one of them, in order.

    shard_bytes=None keeps shards and their names. Otherwise shards are numbered, and one ends with
    the block that brings it to shard_bytes or beyond, so small source shards are merged and large
    ones are divided.
    """
    if not len(index.rows):
        return []
    if shard_bytes is None:
        begins = np.flatnonzero(np.diff(index.shard_of_block, prepend=-1)).tolist()
        names = _kept_names(index, directory)
        targets = [names[int(index.shard_of_block[begin])] for begin in begins]
    else:
        begins = [0]
        held = 0
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
    inside = [
        path.relative_to(directory) if path.is_relative_to(directory) else path for path in paths
    ]
    stems = [path.with_name(stem_of_name(path.name)) for path in inside]
    names = [
        stem if stems.count(stem) == 1 else path for stem, path in zip(stems, inside, strict=True)
    ]
    return [f"{directory}/{name}.parquet" for name in names]


def are_bins(names: Iterable[str]) -> bool:
    """Check if columns of these names are packed bins."""
    return set(_BINS) <= set(names)


def metadata_of_bins(
    root: Path, index: SplitIndex, piece: Piece, schema: pa.Schema
) -> dict[str, str]:
    """Return the Parquet metadata that all source shards of a piece agree on; none if the columns
    are not bins.

    Without the key that gives the alignment of the masks, bins look like rows of lists, and which
    tokens they train is unknown. Raises `InputError` if shards to be merged differ in the alignment
    of their masks.
    """
    if not are_bins(schema.names):
        return {}
    shards = np.unique(index.shard_of_block[piece.start : piece.stop]).tolist()
    said = [_metadata(root / index.shards[shard], index.formats[shard]) for shard in shards]
    for shard, own in zip(shards, said, strict=True):
        for key in _ALIGNMENTS:
            if own.get(key) != said[0].get(key):
                raise InputError(
                    f"{root / index.shards[shard]}: its {key} is {own.get(key)!r}, of"
                    f" {index.shards[shards[0]]} it is {said[0].get(key)!r}; such bins cannot be"
                    " one shard: leave shard_bytes out"
                )
    return {
        key: value for key, value in said[0].items() if all(own.get(key) == value for own in said)
    }


def _metadata(path: Path, word: str) -> dict[str, str]:
    kind = file_type_of_word(word)
    if kind.format.name != "parquet":
        return {}
    found = key_values(path, kind)
    texts = {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for key, value in found.items()
    }
    result = {}
    for key, value in texts.items():
        if key.startswith(_OURS) or key in _ALIGNMENTS:
            result[key] = value
    return result
