"""Write every row of a shard to its split, or count the reason it is dropped for. Pass 2, and joining of parts.

If rows are only moved, their bytes are copied without parsing. Otherwise the columns are read, derived and written. The
choice depends on the settings and the shard alone, so results do not depend on scheduling.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U64
from headrace.dataset.open import FinishedRun
from headrace.digest import FileDigest
from headrace.errors import InputError
from headrace.formats import delimited
from headrace.formats.common_schema import fit
from headrace.formats.content import tagged
from headrace.formats.dates import INSTANTS, MISSING, Dates, parse_dates
from headrace.formats.detect import compress_block
from headrace.formats.open_parquet import open_file
from headrace.formats.registry import FileType, index_word
from headrace.formats.shard import Dialect, Shard, unchanged
from headrace.formats.source import copied_records, read_chunks
from headrace.formats.text_columns import nulled, typed
from headrace.formats.write import Piece, ShardWriter, Written
from headrace.near.repeats import keep_words
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.run.receipts import FileRecord, Receipt
from headrace.split import columns
from headrace.split.allocate import TRAIN, UNSEEN, VAL, Allocation, Hashes
from headrace.split.content import Content, Leave
from headrace.split.cutoff import DateBins, in_utc
from headrace.split.folds import FoldCells
from headrace.split.scan import HOLDS_ITEM, INSTANT, MISSING_LABEL, NOBODY, UNREADABLE_DATE, Scanned, located, read_scan
from headrace.split.settings import GAP, LABEL_PAST, TemporalSplit
from headrace.storage.local import storing
from headrace.stream.audit.exclude import IN_BENCHMARK

SPLITS = ("train", "val", "test")
IN_NO_FOLD = "in_no_fold"
_OF_ONE_CUT = ("train_entity_after_cutoff", "val_entity_after_cutoff", "content_before_cutoff", "duplicate")
REASONS = (
    "null_time",
    "unreadable_time",
    "null_entity",
    "train_entity_after_cutoff",
    "val_entity_after_cutoff",
    "missing_label",
    IN_BENCHMARK,
    "content_before_cutoff",
    "duplicate",
    GAP,
    LABEL_PAST,
    IN_NO_FOLD,
)
_CLASS = {name: code for code, name in enumerate((*SPLITS, *REASONS))}

_NO_SIDE = 3  # beside TRAIN, VAL and UNSEEN: the row has no entity
_COPY_BYTES = 4 << 20

Clock = Literal["utc", "wall", "mixed"]
Classes = npt.NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True)
class Output:
    """How rows are written, as far as that is known before the scan.

    source: the schema common to all shards. separator: of a text file that holds a whole split; separate shards keep
    the separator of their source shard.
    """

    settings: TemporalSplit
    source: pa.Schema
    kind: FileType
    parquet_compression: str
    separator: str
    types: Mapping[str, pa.DataType] = field(default_factory=dict)


@dataclass(frozen=True)
class Folding:
    """The values that decide the cell of a row. known: entities, ascending by hash; side: side or fold of each [N].

    first: the fold from which each entity is seen [N]; None if folds are not rolling, or no entity is given.
    """

    cells: FoldCells
    known: Hashes
    side: I64
    first: I64 | None


@dataclass(frozen=True, kw_only=True)
class SplitPlan(Output):
    """Everything that pass 2 needs besides a shard; one copy, shared by all workers.

    schema: of the output.
    clock: of the dates; if it is mixed, key ranges are in UTC.
    bins: time bins in which the rows of each split are counted.
    content: the columns that rows are compared by, if they are compared.
    leave: rows that are dropped because of their content.
    near: facts about near rows, if they are searched.
    """

    schema: pa.Schema
    allocation: Allocation
    nobody: Hashes
    clock: Clock
    classes: Mapping[str, int] | None
    bins: DateBins
    content: Content | None = None
    leave: Leave | None = None
    near: Mapping[str, int] | None = None
    folding: Folding | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The splits that rows are written to, or with folds their cells."""
        return SPLITS if self.folding is None else self.folding.cells.names

    @property
    def codes(self) -> Mapping[str, int]:
        """The numbers that `classify` returns for splits and reasons to drop."""
        return _CLASS if self.folding is None else {name: code for code, name in enumerate((*self.parts, *REASONS))}


def reasons_of(settings: TemporalSplit) -> list[str]:
    """List the reasons to drop a row that a run counts, without those of settings that are not given."""
    if settings.folds is not None:
        of_folds = [reason for reason in REASONS if reason not in (*_OF_ONE_CUT, GAP, LABEL_PAST)]
        return of_folds + ["duplicate"] * (settings.duplicates == "drop")
    asked = settings.reaches_us()
    return [reason for reason in REASONS if reason in asked or reason not in (GAP, LABEL_PAST, IN_NO_FOLD)]


def clock_of(forms: Collection[str]) -> Clock:
    """Return the clock of dates of these forms."""
    instants = INSTANTS.intersection(forms)
    return "wall" if not instants else "utc" if len(instants) == len(forms) else "mixed"


def cutoff_us(settings: TemporalSplit, clock: Clock) -> int:
    """Return the cutoff in microseconds on this clock; UTC for mixed dates."""
    cutoff = settings.cutoff()
    return cutoff.wall_us if clock == "wall" else cutoff.instant_us


def key_micros(scanned: Scanned, plan: SplitPlan) -> I64:
    """Return the dates of all rows on one clock.

    A wall-clock time that clocks skip uses the offset of the day before.
    """
    if plan.clock != "mixed":
        return scanned.micros
    return in_utc(scanned.micros, (scanned.flags & INSTANT) == 0, plan.settings.time_zone)


def settings_of(run: FinishedRun) -> TemporalSplit:
    """Return the settings of a finished run."""
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    return TemporalSplit(**config)


def times_of(run: FinishedRun, settings: TemporalSplit, table: pa.Table) -> tuple[Dates, I64]:
    """Read the dates of output rows; return them, and their microseconds on the clock of the index."""
    dates = parse_dates(nulled(table[settings.time], ("", *settings.null_values)), settings.time_format)
    mixed = run.manifest.facts["date_form"] == "iso_mixed"
    return dates, in_utc(dates.micros, ~dates.instant, settings.time_zone) if mixed else dates.micros


def edge_of(scanned: Scanned, plan: SplitPlan) -> np.int64 | I64:
    """Return the cutoff on the clock of the rows; for mixed dates one value per row [N]."""
    edge = np.int64(cutoff_us(plan.settings, plan.clock))
    if plan.clock != "mixed":
        return edge
    return np.where((scanned.flags & INSTANT) == 0, plan.settings.cutoff().wall_us, edge)


def classify(scanned: Scanned, plan: SplitPlan, places: I64 | None = None) -> Classes:
    """Return split or drop reason of every row: uint16 [N], one of the plan's `codes`. Pure.

    places: index of each of the shard's entities among those of the allocation, if known.

    A row has one reason, the first of these that applies: unreadable date, no date, no entity, too close before the
    cutoff or an entity of train or val after it, no label, in a benchmark, its content.
    """
    settings = plan.settings
    if plan.folding is not None:
        return _without_repeats(_classify_folds(scanned, plan, plan.folding), scanned, plan)
    places = plan.allocation.known.places(scanned.hashes) if places is None else places
    side_of_entity = np.append(plan.allocation.sides, np.uint8(UNSEEN))[places]  # -1 indexes the last element
    nobody = int(plan.allocation.side_of(plan.nobody)[0]) if settings.null_entity == "own" else _NO_SIDE
    edge = edge_of(scanned, plan)
    before = scanned.micros < edge

    # Masked writes cost more than reading both classes of each row's entity and keeping one.
    both = _classes_of_sides(settings)[np.append(side_of_entity, np.uint8(nobody))]
    result = both.take(scanned.entity, mode="wrap")  # NOBODY is -1, which is the last element
    result >>= before.view(np.uint8) << np.uint8(3)
    result &= np.uint16(0xFF)
    flagged, reaches = scanned.flags.any(), settings.reaches_us()
    left = result < len(SPLITS)
    if flagged:
        result[left & ((scanned.flags & HOLDS_ITEM) != 0)] = _CLASS[IN_BENCHMARK]
        result[left & ((scanned.flags & MISSING_LABEL) != 0)] = _CLASS["missing_label"]
    for reason, reach in reversed(reaches.items()):  # reversed, so that the first of two reasons wins
        result[left & before & (scanned.micros >= edge - reach)] = _CLASS[reason]
    result[scanned.micros == MISSING] = _CLASS["null_time"]
    if flagged:
        result[(scanned.flags & UNREADABLE_DATE) != 0] = _CLASS["unreadable_time"]
    return _without_repeats(result, scanned, plan)


def _classes_of_sides(settings: TemporalSplit) -> Classes:
    """Return the class of a row by the side of its entity: from the cutoff on, and in the upper byte before it."""
    late = {TRAIN: "train_entity_after_cutoff"}
    if settings.val_in_test == "drop":
        late[VAL] = "val_entity_after_cutoff"
    early = {TRAIN: "train", VAL: "val"}
    if settings.entity is None:
        early = dict.fromkeys((TRAIN, VAL, UNSEEN, _NO_SIDE), "train")
    else:
        early[_NO_SIDE] = late[_NO_SIDE] = "null_entity"
    names = [(early.get(side, "test"), late.get(side, "test")) for side in (TRAIN, VAL, UNSEEN, _NO_SIDE)]
    return np.array([_CLASS[before] << 8 | _CLASS[after] for before, after in names], np.uint16)


def _without_repeats(result: Classes, scanned: Scanned, plan: SplitPlan) -> Classes:
    """Set the drop reason of rows that are dropped because of their content, in place."""
    if plan.leave is not None and scanned.compared is not None:
        once = plan.leave.first is not None
        kept = result < len(plan.parts) if once else result == _CLASS["test"]
        doomed = plan.leave.doomed(scanned.compared, scanned.number, kept)
        result[doomed] = plan.codes["duplicate" if once else "content_before_cutoff"]
    return result


def _classify_folds(scanned: Scanned, plan: SplitPlan, folding: Folding) -> Classes:
    """Return the cell or drop reason of every row; a row has one reason, in the order of `classify`."""
    side, first = None, None
    if plan.settings.entity is not None:  # NOBODY is -1, which indexes the last element; dropped below
        place = np.append(folding.known.places(scanned.hashes), -1)[scanned.entity]
        side = np.append(folding.side, UNSEEN if folding.first is not None else 0)[place]
        if folding.first is not None:
            first = np.append(folding.first, folding.cells.roles.shape[1])[place]
    instant = np.full(len(scanned.micros), plan.clock == "utc")
    if plan.clock == "mixed":
        instant = (scanned.flags & INSTANT) != 0
    cell = folding.cells.cells_of(scanned.micros, instant, side, first)
    codes = plan.codes
    result = np.where(cell < 0, codes[IN_NO_FOLD], cell).astype(np.uint16)
    result[(scanned.flags & HOLDS_ITEM) != 0] = codes[IN_BENCHMARK]
    result[(scanned.flags & MISSING_LABEL) != 0] = codes["missing_label"]
    if plan.settings.entity is not None:
        result[scanned.entity == NOBODY] = codes["null_entity"]
    result[scanned.micros == MISSING] = codes["null_time"]
    result[(scanned.flags & UNREADABLE_DATE) != 0] = codes["unreadable_time"]
    return result


def split_shard(
    files: TaskFiles, plan: SplitPlan, shard: Shard, number: int, targets: Mapping[str, str]
) -> dict[str, Any]:
    """Write the shard's rows of each split to `targets[split]`; splits without rows get no file."""
    scanned = read_scan(files.run, number, alike=plan.near is not None)
    classes, keys = classify(scanned, plan), key_micros(scanned, plan)
    parts, codes = plan.parts, plan.codes
    sizes = scanned.sizes if copies_bytes(plan, shard) else None
    dialect = output_dialect(plan, shard)
    schema = plan.schema if sizes is None else shard.schema
    digests = [np.empty(0, np.uint64) if scanned.content is None else scanned.content]
    with ExitStack() as stack:
        writers: dict[str, ShardWriter] = {}
        row = 0
        found = digests if scanned.content is None else None
        for pieces in _derived(plan, shard, found) if sizes is None else _copied(plan, shard, sizes, found):
            part = slice(row, row + len(pieces))
            if part.stop > len(classes):
                raise InputError(f"{shard.path}: changed while it was being read; run again once it is complete")
            for code in np.flatnonzero(np.bincount(classes[part], minlength=len(parts))[: len(parts)]).tolist():
                split, chosen = parts[code], classes[part] == code
                if split not in writers:
                    writer = ShardWriter(
                        files.temporary(targets[split]),
                        file_type=plan.kind,
                        schema=schema,
                        dialect=dialect,
                        parquet_compression=plan.parquet_compression,
                    )
                    writers[split] = stack.enter_context(writer)
                writers[split].append(pieces.filter(pa.array(chosen)), keys[part].compress(chosen))
            row += len(pieces)
        if row != len(classes):
            raise InputError(
                f"{shard.path}: has {row} rows now and had {len(classes)} before; run again once it is complete"
            )
        written = {split: writer.finish() for split, writer in writers.items()}
        for split, result in written.items():
            files.finished(writers[split].path, targets[split], result)
    if plan.content is not None and plan.folding is None:
        kept = classes <= _CLASS["test"]
        keep_words(files, content_file(number), tagged(np.concatenate(digests), classes, kept))
    counts = np.bincount(classes, minlength=len(codes))
    dated = plan.settings.splits if plan.folding is None else list(written)
    return {
        "rows_in": row,
        "rows_by_split": {name: int(counts[codes[name]]) for name in parts},
        "dropped_by_reason": {name: int(counts[codes[name]]) for name in reasons_of(plan.settings)},
        "dates": {name: plan.bins.counts(keys.compress(classes == codes[name])).tolist() for name in dated},
        "blocks": {split: [asdict(block) for block in result.blocks] for split, result in written.items()},
    }


def content_file(number: int) -> str:
    """Return the path of the digests of a shard's kept rows, each with its split, relative to the run."""
    return f"{STAGE_DIRECTORY}/split-{number:05d}.content.arrow"


def copies_bytes(plan: Output, shard: Shard) -> bool:
    """Return True if this shard's rows keep their bytes: same format in and out, no column added or changed."""
    settings = plan.settings
    same_format = shard.file_type.format == plan.kind.format
    derives = settings.label is not None or settings.targets is not None or settings.lineage == "columns"
    if not same_format or derives or shard.partition or plan.kind.format.content == "binary":
        return False
    if plan.kind.format.separator is None:
        return True
    return shard.schema.names == plan.source.names and shard.dialect == output_dialect(plan, shard)


def derive(table: pa.Table, plan: SplitPlan, where: str, shard_name: str, first_row: int) -> pa.Table:
    """Derive the output columns of source columns: common schema, main target, classes, declared types, lineage."""
    settings = plan.settings
    table = fit(table, plan.source)
    if settings.main_target is not None:
        values = columns.main_target(table, settings.targets or (), settings.main_target, settings.null_values)
        table = _replaced(table, settings.main_target, values)
    if settings.label is not None and plan.classes is not None:
        texts = columns.label_texts(table[settings.label], settings.null_values)
        table = _replaced(table, settings.label, columns.class_numbers(texts, plan.classes))
    read = typed(table, plan.types, settings.null_values, where, first_row)
    if plan.kind.format.separator is None:  # text files keep the text, but it must still be of the type
        table = read
    if settings.lineage == "columns":
        table = columns.with_lineage(table, shard_name, first_row)
    return table


def _copied(plan: SplitPlan, shard: Shard, sizes: npt.NDArray[np.int32], digests: list[U64] | None) -> Iterator[Piece]:
    """Yield the shard's rows as bytes. Columns with declared types are still read and checked.

    digests: a list to which digests of the compared columns are appended, if pass 1 did not compute them.
    """
    names = [name for name in plan.types if shard.dialect is not None]
    if digests is not None and plan.content is not None:
        names = list(dict.fromkeys([*names, *plan.content.schema.names]))
    if names:
        for chunk in read_chunks(shard):
            where = str(shard.path)
            table = typed(chunk.table(names), plan.types, plan.settings.null_values, where, chunk.first_row)
            if digests is not None and plan.content is not None:
                digests.append(plan.content.of_table(table))
    yield from copied_records(shard, sizes)
    unchanged(shard)


def _derived(plan: SplitPlan, shard: Shard, digests: list[U64] | None) -> Iterator[Piece]:
    """Yield the shard's rows as the output's columns. digests: as above."""
    where = str(shard.path)
    for chunk in read_chunks(shard):
        with located(where, chunk.first_row):
            table = derive(chunk.table(), plan, where, shard.name, chunk.first_row)
            if digests is not None and plan.content is not None:
                own = table.select(list(plan.content.schema.names))  # text files keep the text of declared types
                own = typed(own, plan.types, plan.settings.null_values, where, chunk.first_row)
                digests.append(plan.content.of_table(own))
        yield table


def _replaced(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), pa.field(name, values.type), values)


def output_dialect(plan: Output, shard: Shard) -> Dialect | None:
    """Return how the output text is written: like the source shard if it has the same format, plainly otherwise."""
    separator = plan.kind.format.separator
    if separator is None:
        return None
    own = shard.dialect if shard.file_type.format == plan.kind.format else None
    if own is None:
        own = Dialect(separator, "\n")
    return replace(own, separator=plan.separator) if plan.settings.layout == "single" else own


def word_of_output(plan: SplitPlan, shard: Shard) -> str:
    """Return the index's word for the format that this shard's rows are written in."""
    dialect = output_dialect(plan, shard)
    return index_word(plan.kind, None if dialect is None else dialect.separator)


def join_split(
    files: TaskFiles, plan: SplitPlan, first: Shard, split: str, parts: Sequence[Receipt], target: str
) -> dict[str, Any]:
    """Write all parts of a split, in source order, as `target`; a split without rows gets a file without rows.

    Text is copied; Parquet gets row groups of full size. first: the shard whose dialect the text takes.
    """
    if plan.kind.format.name == "parquet":
        return _join_parquet(files, plan, split, parts, target)
    temporary = files.temporary(target)
    digest, size, rows = FileDigest(), 0, 0
    blocks: list[dict[str, Any]] = []
    with storing(temporary.parent), temporary.open("xb") as sink:

        def put(data: bytes) -> None:
            nonlocal size
            sink.write(data)
            digest.update(data)
            size += len(data)

        dialect = output_dialect(plan, first)
        header = b"" if dialect is None else delimited.header_bytes(plan.schema.names, dialect)
        put(bytes(compress_block(header, plan.kind.compression)))
        for part in parts:
            for record in records_of(part, split):
                found = part.extra["blocks"][split]
                shift = size - found[0]["offset"]
                with (files.run / record.path).open("rb") as source:
                    source.seek(found[0]["offset"])  # skips the part's own header
                    while data := source.read(_COPY_BYTES):
                        put(data)
                for block in found:
                    blocks.append({**block, "offset": block["offset"] + shift, "first_row": rows})
                    rows += block["rows"]
    files.finished(temporary, target, Written(rows, size, digest.sha256, (), digest.checksum))
    return {"rows_in": rows, "blocks": blocks}


def _join_parquet(
    files: TaskFiles, plan: SplitPlan, split: str, parts: Sequence[Receipt], target: str
) -> dict[str, Any]:
    writer = ShardWriter(
        files.temporary(target),
        file_type=plan.kind,
        schema=plan.schema,
        dialect=None,
        parquet_compression=plan.parquet_compression,
    )
    with writer:
        for part in parts:
            for record in records_of(part, split):
                scanned = read_scan(files.run, part.number, alike=plan.near is not None)
                micros = key_micros(scanned, plan)[classify(scanned, plan) == plan.codes[split]]
                row = 0
                with open_file(files.run / record.path, FileType.named("parquet")) as source:
                    for group in range(source.num_row_groups):
                        table = source.read_row_group(group, use_threads=False)
                        writer.append(table, micros[row : row + table.num_rows])
                        row += table.num_rows
        written = writer.finish()
        files.finished(writer.path, target, written)
    return {"rows_in": written.rows, "blocks": [asdict(block) for block in written.blocks]}


def records_of(part: Receipt, split: str) -> list[FileRecord]:
    """Return the part's files of this split: those in a directory named after the split; at most one."""
    return [record for record in part.files if PurePosixPath(record.path).parent.name == split]
