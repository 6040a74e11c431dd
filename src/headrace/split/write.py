"""Write every row of a shard to its split, or count the reason it is dropped for.

Pass 2, and joining of parts.

If rows are only moved, their bytes are copied without parsing. Otherwise the columns are read,
derived and written. The choice depends on the settings and the shard alone, so results do not
depend on scheduling.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64, Bools
from headrace.digest import FileDigest
from headrace.errors import HeadraceError, InputError
from headrace.formats import delimited
from headrace.formats.column_paths import select_paths
from headrace.formats.content import tagged
from headrace.formats.grouped import at_fault
from headrace.formats.registry import compress_block, index_word
from headrace.formats.shard import Dialect, Shard, unchanged
from headrace.formats.source import copied_records, read_block, read_chunks
from headrace.formats.text_columns import typed
from headrace.formats.types import Target, is_text, rounds
from headrace.formats.write import BlockRows, ShardWriter, Written
from headrace.near.repeats import keep_words
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.run.receipts import FileRecord, Receipt
from headrace.split import columns, earlier
from headrace.split.allocate import Hashes
from headrace.split.earlier import Groups, keep_table
from headrace.split.rules import TEST_CODE, Codes, Output, SplitPlan, classify, key_micros
from headrace.split.scan import Scanned, located, read_scan
from headrace.split.settings import SplitSettings
from headrace.storage.local import storing

_COPY_BYTES = 4 << 20


@dataclass
class _SplitWriters:
    """The open output shards of one source shard, by split. A split without rows gets none."""

    files: TaskFiles
    plan: SplitPlan
    targets: Mapping[str, str]
    schema: pa.Schema
    dialect: Dialect | None
    stack: ExitStack
    writers: dict[str, ShardWriter] = field(default_factory=dict)

    def append(self, batch: BlockRows, codes: Codes, keys: I64 | None) -> None:
        """Append the rows of a piece to their splits."""
        names = self.plan.names
        counts = np.bincount(codes, minlength=len(names))[: len(names)]
        for code in np.flatnonzero(counts).tolist():
            selected: Bools = codes == code
            selected_keys = None if keys is None else keys.compress(selected)
            self._writer(names[code]).append(batch.filter(pa.array(selected)), selected_keys)

    def _writer(self, split: str) -> ShardWriter:
        if split not in self.writers:
            writer = open_writer(
                self.files, self.plan, self.targets[split], self.schema, self.dialect
            )
            self.writers[split] = self.stack.enter_context(writer)
        return self.writers[split]

    def finish(self) -> dict[str, Written]:
        """Complete all shards."""
        written = {split: writer.finish() for split, writer in self.writers.items()}
        for split, result in written.items():
            self.files.finished(self.writers[split].path, self.targets[split], result)
        return written


def open_writer(
    files: TaskFiles, plan: SplitPlan, target: str, schema: pa.Schema, dialect: Dialect | None
) -> ShardWriter:
    """Open an output shard under a temporary name."""
    return ShardWriter(
        files.temporary(target),
        file_type=plan.output.file_type,
        schema=schema,
        dialect=dialect,
        parquet_compression=plan.output.parquet_compression,
    )


def split_shard(
    files: TaskFiles, plan: SplitPlan, shard: Shard, number: int, targets: Mapping[str, str]
) -> dict[str, Any]:
    """Write the shard's rows of each split to `targets[split]`; splits without rows get no file."""
    scanned = read_scan(files.run, number, alike=plan.near is not None)
    codes = classify(scanned, plan)
    keys = key_micros(scanned, plan)
    in_time = bool(plan.settings.time_columns)
    copies = copies_bytes(plan.output, shard) and scanned.sizes is not None
    batches = _Pieces(plan, shard, scanned, copies)
    row = 0
    with ExitStack() as stack:
        if copies:
            schema = shard.schema
        else:
            schema = plan.schema
        dialect = output_dialect(plan.output, shard)
        writers = _SplitWriters(files, plan, targets, schema, dialect, stack)
        for batch in batches.read():
            rows = slice(row, row + len(batch))
            if rows.stop > len(codes):
                raise InputError(
                    "changed while it was being read",
                    path=shard.path,
                    remedy="run again once it is complete",
                )
            with located(shard.path, row):
                writers.append(batch, codes[rows], keys[rows] if in_time else None)
            row = rows.stop
        if row != len(codes):
            raise InputError(
                f"has {row} rows now and had {len(codes)} before",
                path=shard.path,
                remedy="run again once it is complete",
            )
        with located(shard.path, 0):
            written = writers.finish()
    if plan.content is not None and plan.settings.folds is None:
        words = tagged(np.concatenate(batches.digests), codes, codes <= TEST_CODE)
        if plan.settings.assignment_from is None:
            keep_words(files, content_file(plan.settings, number), words)
        else:
            words.sort()
            keep_table(files, content_file(plan.settings, number), pa.table({"content": words}))
    if plan.keeps_groups:
        keep_table(files, earlier.groups_file(number), _groups(scanned, codes, plan).table())
    return _metadata(plan, codes, keys, written)


def _metadata(
    plan: SplitPlan, codes: Codes, keys: I64, written: Mapping[str, Written]
) -> dict[str, Any]:
    """Return what the receipt of a shard records."""
    counts = np.bincount(codes, minlength=len(plan.codes))
    counted = {name: int(counts[code]) for name, code in plan.codes.items()}
    dated = plan.settings.splits if plan.settings.time_columns else ()
    if dated and plan.settings.folds is not None:
        dated = tuple(written)
    dates = {}
    for name in dated:
        dates[name] = plan.bins.counts(keys.compress(codes == plan.codes[name])).tolist()
    blocks = {}
    for split, result in written.items():
        blocks[split] = [asdict(block) for block in result.blocks]
    return {
        "rows_in": len(codes),
        "rows_by_split": {name: counted[name] for name in plan.names},
        "dropped_by_reason": {rule.reason.value: counted[rule.reason] for rule in plan.rules},
        "dates": dates,
        "blocks": blocks,
    }


@dataclass
class _Pieces:
    """The rows of a source shard, piece by piece, as they are written.

    digests: of their content, if pass 2 needs them.
    """

    plan: SplitPlan
    shard: Shard
    scanned: Scanned
    copies: bool
    digests: list[U64] = field(default_factory=list)

    def __post_init__(self) -> None:
        content = self.scanned.content
        self.digests.append(np.empty(0, np.uint64) if content is None else content)

    def read(self) -> Iterator[BlockRows]:
        """Yield bytes if rows are copied, and else tables."""
        if not self.copies:
            yield from self._derived()
            return
        assert self.scanned.sizes is not None
        self._check_types()
        yield from copied_records(self.shard, self.scanned.sizes)
        unchanged(self.shard)

    def _check_types(self) -> None:
        """Read the columns that must be of declared types, or that are compared, of a shard whose
        bytes are copied.
        """
        plan = self.plan
        shard = self.shard
        names: list[str] = []
        if shard.dialect is not None:
            names += plan.output.types
        if self._digests_here():
            assert plan.content is not None
            names += plan.content.schema.names
        if not names:
            return
        try:
            self._check_rows(names)
        except HeadraceError as error:
            if not shard.parts:
                raise
            raise at_fault(shard, error, self._try) from error

    def _check_rows(self, names: Sequence[str]) -> None:
        plan = self.plan
        shard = self.shard
        for chunk in read_chunks(shard, names):
            table = chunk.table(list(dict.fromkeys(names)))
            table = typed(
                table,
                plan.output.types,
                plan.settings.dialect,
                str(shard.path),
                chunk.first_row,
            )
            self._digest(table)

    def _derived(self) -> Iterator[BlockRows]:
        """Yield the shard's rows as the output's columns; an error of a group names the part."""
        try:
            yield from self._tables()
        except HeadraceError as error:
            if not self.shard.parts:
                raise
            raise at_fault(self.shard, error, self._try) from error

    def _try(self, part: Shard) -> None:
        for _ in replace(self, shard=part, digests=[])._tables():
            pass

    def _tables(self) -> Iterator[BlockRows]:
        plan = self.plan
        path = str(self.shard.path)
        for chunk in read_chunks(self.shard):
            with located(path, chunk.first_row):
                table = derive(chunk.table(), plan, path, self.shard.name, chunk.first_row)
                if self._digests_here():
                    assert plan.content is not None
                    # Text files keep the text of declared types.
                    compared = select_paths(table, plan.content.schema.names)
                    types = plan.output.types
                    dialect = plan.settings.dialect
                    self._digest(typed(compared, types, dialect, path, chunk.first_row))
            yield table

    def _digests_here(self) -> bool:
        return self.scanned.content is None and self.plan.content is not None

    def _digest(self, table: pa.Table) -> None:
        if self._digests_here():
            assert self.plan.content is not None
            self.digests.append(self.plan.content.digest(table))


def _groups(scanned: Scanned, codes: Codes, plan: SplitPlan) -> Groups:
    """Return the groups of the rows that are in a split."""
    null = plan.null_entity
    hashes = Hashes(
        np.append(scanned.hashes.high, null.high), np.append(scanned.hashes.low, null.low)
    )
    rows = codes <= TEST_CODE
    # NULL_ENTITY is -1, the last element
    return Groups.of(
        hashes.take(scanned.entity[rows].astype(np.int64)), codes[rows].astype(np.uint8)
    )


def content_file(settings: SplitSettings, number: int) -> str:
    """Return the path of the digests of a shard's kept rows, each with its split, relative to the
    run; they stay in a run that keeps the assignment of an earlier one.
    """
    if settings.assignment_from is not None:
        return earlier.content_file(number)
    return f"{STAGE_DIRECTORY}/split-{number:05d}.content.arrow"


def copies_bytes(output: Output, shard: Shard) -> bool:
    """Return True if this shard's rows keep their bytes: same format in and out, no column added or
    changed.
    """
    settings = output.settings
    file_format = output.file_type.format
    derives = (
        settings.label is not None or settings.targets is not None or settings.lineage == "columns"
    )
    in_full = not shard.partition and shard.complete is None
    if derives or not in_full or shard.file_type.format != file_format:
        return False
    if file_format.content == "binary":
        return False
    file_schema = shard.file_schema or shard.schema
    if file_format.separator is None:
        # an absent key is null to every reader, but digits would be lost without a word
        wide = dict(zip(output.source.names, output.source.types, strict=True))
        pairs = {
            (type_, wide[name])
            for name, type_ in zip(file_schema.names, file_schema.types, strict=True)
        }
        return not any(rounds(type_, of_output) for type_, of_output in pairs)
    dialect = shard.dialect
    if dialect is None:  # it has no header
        return False
    written = replace(dialect, text=dialect.text.written)
    return file_schema.names == output.source.names and written == output_dialect(output, shard)


def derive(
    table: pa.Table, plan: SplitPlan, path: str, shard_name: str, first_row: int
) -> pa.Table:
    """Derive the output columns of source columns: target, classes, declared types, lineage."""
    settings = plan.settings
    output = plan.output
    if settings.main_target is not None:
        values = columns.main_target(
            table, settings.targets or (), settings.main_target, settings.dialect
        )
        table = _replaced(table, settings.main_target, values)
    if settings.label is not None and plan.classes is not None:
        texts = columns.label_texts(table[settings.label], settings.dialect.null_values)
        table = _replaced(table, settings.label, columns.class_numbers(texts, plan.classes))
    read = typed(table, output.types, settings.dialect, path, first_row)
    # text files keep the text, but it must still be of the type
    if output.file_type.format.separator is None:
        table = read
    if settings.lineage == "columns":
        table = columns.with_lineage(table, shard_name, first_row)
    return table


def _replaced(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), pa.field(name, values.type), values)


def output_schema(plan: SplitPlan, filled: Collection[str]) -> pa.Schema:
    """Return the output's columns, types and nullability, by deriving an empty table.

    filled: columns without nulls, as rows that lack them are dropped, or stop the run.
    """
    settings = plan.settings
    source = plan.output.source
    never_null = set(filled)
    if settings.lineage == "columns":
        never_null |= {"source_shard", "source_row"}
    source_fields = {source_field.name: source_field for source_field in source}
    fields = []
    for derived in derive(source.empty_table(), plan, "", "", 0).schema:
        before = source_fields.get(derived.name)
        was_filled = before is not None and before.type == derived.type and not before.nullable
        data_type = derived.type
        # text files keep the text; readers convert it
        if derived.name in plan.output.types and is_text(data_type):
            data_type = plan.output.types[derived.name]
        nullable = not was_filled and derived.name not in never_null
        fields.append(pa.field(derived.name, data_type, nullable=nullable))
    return pa.schema(fields)


def output_dialect(output: Output, shard: Shard) -> Dialect | None:
    """Return how the output text is written: like the source shard if it has the same format,
    plainly otherwise.
    """
    file_format = output.file_type.format
    if file_format.separator is None:
        return None
    if shard.file_type.format == file_format:
        dialect = shard.dialect
    else:
        dialect = None
    if dialect is None:
        dialect = Dialect(file_format.separator, "\n")
    dialect = replace(dialect, text=output.settings.dialect.written)
    if output.settings.layout == "single":
        return replace(dialect, separator=output.separator)
    return dialect


def word_of_output(output: Output, shard: Shard) -> str:
    """Return the index's word for the format that this shard's rows are written in."""
    dialect = output_dialect(output, shard)
    return index_word(output.file_type, None if dialect is None else dialect.separator)


def join_split(
    files: TaskFiles,
    plan: SplitPlan,
    first: Shard,
    split: str,
    parts: Sequence[Receipt],
    target: str,
) -> dict[str, Any]:
    """Write all parts of a split, in source order, as `target`; a split without rows gets a file
    without rows.

    Text is copied; other formats get blocks of full size. first: the shard whose dialect the text
    takes.
    """
    if not plan.output.file_type.format.load().joined_by_bytes:
        return _join_rows(files, plan, word_of_output(plan.output, first), split, parts, target)
    temporary = files.temporary(target)
    digest = FileDigest()
    size = 0
    rows = 0
    blocks: list[dict[str, Any]] = []
    with storing(temporary.parent), temporary.open("xb") as sink:

        def put(data: bytes) -> None:
            nonlocal size
            sink.write(data)
            digest.update(data)
            size += len(data)

        dialect = output_dialect(plan.output, first)
        if dialect is None:
            header = b""
        else:
            header = delimited.header_bytes(plan.schema.names, dialect)
        put(bytes(compress_block(header, plan.output.file_type.compression)))
        for part in parts:
            for record in records_of(part, split):
                part_blocks = part.extra["blocks"][split]
                start = part_blocks[0]["offset"]  # after the part's header
                shift = size - start
                for data in _read_from(files.run / record.path, start):
                    put(data)
                for block in part_blocks:
                    blocks.append({**block, "offset": block["offset"] + shift, "first_row": rows})
                    rows += block["rows"]
    files.finished(temporary, target, Written(rows, size, digest.sha256, (), digest.checksum))
    return {"rows_in": rows, "blocks": blocks}


def _read_from(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb") as source:
        source.seek(offset)
        while data := source.read(_COPY_BYTES):
            yield data


def _join_rows(
    files: TaskFiles,
    plan: SplitPlan,
    word: str,
    split: str,
    parts: Sequence[Receipt],
    target: str,
) -> dict[str, Any]:
    """Read the rows of all parts and write them again. word: of the parts' format."""
    columns = Target.of(plan.schema)
    with open_writer(files, plan, target, plan.schema, None) as writer:
        for part in parts:
            for record in records_of(part, split):
                keys = _keys_of(files.run, plan, part.number, split)
                for number, block in enumerate(part.extra["blocks"][split]):
                    table = read_block(
                        files.run / record.path,
                        word,
                        block=number,
                        offset=block["offset"],
                        length=block["length"],
                        target=columns,
                        names=plan.schema.names,
                    )
                    first_row = block["first_row"]
                    part_keys = keys[first_row : first_row + block["rows"]]
                    in_time = bool(plan.settings.time_columns)
                    writer.append(table, part_keys if in_time else None)
        written = writer.finish()
        files.finished(writer.path, target, written)
    return {"rows_in": written.rows, "blocks": [asdict(block) for block in written.blocks]}


def _keys_of(run: Path, plan: SplitPlan, number: int, split: str) -> I64:
    """Return the times of a shard's rows in a split."""
    scanned = read_scan(run, number, alike=plan.near is not None)
    in_split: Bools = classify(scanned, plan) == plan.codes[split]
    return key_micros(scanned, plan)[in_split]


def records_of(part: Receipt, split: str) -> list[FileRecord]:
    """Return the part's files of this split: those in a directory named after the split; at most
    one.
    """
    result = []
    for record in part.files:
        if PurePosixPath(record.path).parent.name == split:
            result.append(record)
    return result
