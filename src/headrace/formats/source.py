"""Find the files of a source, survey them, list their blocks and read them, whatever their format.

A block can be read alone: a row group of Parquet, known from the footer; a record batch of Arrow;
of uncompressed text a byte range on record borders, at most 65,536 rows or about 8 MiB. Compressed
text and JSON arrays that headrace did not write cannot be read from the middle: the whole file is
one block, so reading takes memory in proportion to the file. Rows are counted exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.arrays import I32
from headrace.errors import CorruptShard, HeadraceError, InputError, SettingsError
from headrace.formats import parquet, records
from headrace.formats.column_paths import columns_of_paths, known_columns
from headrace.formats.decoders import Decoder
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.evidence import Evidence
from headrace.formats.grouped import GroupChunk, group_records, joined_chunk
from headrace.formats.joined import Looked, look_at_small
from headrace.formats.listing import list_files
from headrace.formats.partitions import PartitionChunk, in_partition, stored
from headrace.formats.plain_types import check_read
from headrace.formats.registry import (
    FileType,
    detect,
    file_type_of_name,
    holds_nothing,
    open_text,
    parse_index_word,
    raw_errors,
    reading,
)
from headrace.formats.shard import (
    BlockRead,
    ChosenChunk,
    Chunk,
    FormatCode,
    Pages,
    PathChunk,
    Shard,
    Span,
    unchanged,
)
from headrace.formats.types import Target
from headrace.formats.widen import WidenedChunk
from headrace.gate import RESTORE
from headrace.recipe import recipes

COPY_BYTES = 16 << 20  # bytes copied at once


def find_files(source: Sequence[str | Path]) -> list[tuple[Path, str]]:
    """List the files of a source and their names relative to its root, sorted by name, each once.

    Each entry is a file, a directory (its data files, not its subdirectories') or a glob pattern.
    Files whose names begin with "." or "_" and files of other kinds are not data. Raises
    `InputError` if an entry matches no file.
    """
    listing = list_files(source)
    return [(listing.path(index), name) for index, name in enumerate(listing.names)]


def read_signature(path: Path) -> list[str]:
    """Read column names from a file of one comma-separated line."""
    try:
        lines = []
        for line in path.read_text("utf-8-sig").split("\n"):
            if line.strip():
                lines.append(line)
    except OSError as error:
        raise SettingsError(
            f"it cannot be read ({error.strerror})",
            setting="signature",
            value=str(path),
            remedy="check the path",
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"it is not UTF-8 (byte {error.start})",
            setting="signature",
            value=str(path),
            remedy="convert it to UTF-8",
        ) from error
    if len(lines) != 1:
        raise SettingsError(
            f"it has {len(lines)} lines",
            setting="signature",
            value=str(path),
            remedy="give a file of one line, with the names of columns between commas",
        )
    return [name.strip() for name in lines[0].split(",")]


def survey(
    path: Path,
    name: str,
    signature: Sequence[str] | None = None,
    partitions: Mapping[str, pa.DataType] | None = None,
    dialect: TextDialect = PLAIN,
) -> Shard:
    """Find format, columns and types of one file, without reading its rows (except for JSON).

    A file without content is a shard of content "nothing", unless a signature names its columns.
    partitions: `partition_types` of the source, for columns that names hold. dialect: of delimited
    text.
    """
    with reading(path):
        file_type = detect(path)
        is_named = signature is not None and file_type.format.separator is not None
        if not is_named and holds_nothing(path, file_type, dialect):
            shard = Shard.unread(path, name, file_type)
        else:
            shard = file_type.format.load().survey(path, name, file_type, signature, dialect)
    return in_partition(shard, partitions)


def survey_all(
    files: Sequence[tuple[Path, str]],
    signature: Sequence[str] | None = None,
    partitions: Mapping[str, pa.DataType] | None = None,
    dialect: TextDialect = PLAIN,
) -> list[Shard]:
    """Survey several files, small ones of text at once. Arguments are those of `survey`."""
    small: Mapping[int, Looked] = {}
    if signature is None and len(files) > 1:
        sizes = []
        for path, _ in files:
            with reading(path):
                sizes.append(path.stat().st_size)
        small = look_at_small(files, sizes, dialect)
    shards = []
    for number, (path, name) in enumerate(files):
        if number in small:
            shards.append(in_partition(small[number].shard, partitions))
        else:
            shards.append(survey(path, name, signature, partitions, dialect))
    return shards


def read_chunks(
    shard: Shard, columns: Sequence[str] | None = None, *, coded: Sequence[str] = ()
) -> Iterator[Chunk]:
    """Iterate over the rows of a shard in file order, with O(chunk) memory.

    columns: the columns that Parquet chunks decode; a name may be a path to a field of a struct.
    coded: text columns that may come as dictionaries if that is cheaper.
    """
    if shard.content == "nothing":
        unchanged(shard)
        return
    if columns is not None and not set(shard.schema.names).issuperset(columns):
        yield from _read_paths(shard, columns, coded)
        return
    if shard.file_schema is not None:
        yield from _read_widened(shard, columns, coded)
        return
    if shard.complete is not None:
        chosen = shard.schema.names
        for chunk in read_chunks(shard.complete, columns or chosen, coded=coded):
            yield ChosenChunk(chunk, chunk.first_row, chosen)
        return
    if shard.partition:
        yield from _read_partition(shard, columns, coded)
        return
    _check_read(shard, columns)
    if shard.parts:
        yield from _read_group(shard, columns)
        return
    with reading(shard.path):
        yield from shard.file_type.format.load().read(shard, columns, coded=coded)
    unchanged(shard)


def _check_read(shard: Shard, columns: Sequence[str] | None) -> None:
    """Raise `InputError` for a column to read whose type is not read."""
    schema = shard.schema
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    check_read(schema, shard.path)


def _read_paths(shard: Shard, columns: Sequence[str], coded: Sequence[str]) -> Iterator[PathChunk]:
    """Iterate over the rows of a shard, of which some columns are fields of structs."""
    in_file = columns_of_paths(shard.schema, columns)
    coded = [name for name in coded if name in in_file]
    for chunk in read_chunks(shard, in_file, coded=coded):
        yield PathChunk(chunk, chunk.first_row, shard.schema)


def _read_partition(
    shard: Shard, columns: Sequence[str] | None, coded: Sequence[str]
) -> Iterator[PartitionChunk]:
    """Iterate over the rows of a shard with the columns of its name."""
    in_file = None
    if columns is not None:
        in_file = [name for name in columns if name not in shard.partition]
    if in_file == []:  # the rows must still be counted
        in_file = [name for name in shard.schema.names if name not in shard.partition][:1]
    coded = [name for name in coded if name not in shard.partition]
    for chunk in read_chunks(stored(shard), in_file, coded=coded):
        yield PartitionChunk(chunk, chunk.first_row, shard)


def _read_group(group: Shard, columns: Sequence[str] | None) -> Iterator[GroupChunk]:
    """Iterate over the rows of a group: all at once, or the chunks of its parts put together."""
    joined = joined_chunk(group)
    if joined is not None:
        unchanged(group)
        yield joined
        return
    complete: GroupChunk | None = None
    current = GroupChunk([], 0, [])
    for part in group.parts:
        rows = 0
        for chunk in read_chunks(part, columns):
            current.chunks.append(chunk)
            rows += chunk.rows
            if current.rows >= parquet.CHUNK_ROWS:
                if complete is not None:
                    yield complete
                complete, current = current, GroupChunk([], current.first_row + current.rows, [])
        if not rows:
            current.without_rows.append(part.name)
    if complete is not None:
        if not current.chunks:
            complete.without_rows += current.without_rows
        yield complete
    if current.chunks:
        yield current


def _read_widened(
    shard: Shard, columns: Sequence[str] | None, coded: Sequence[str]
) -> Iterator[Chunk]:
    """Iterate over the rows of a shard as the columns of all shards."""
    in_file = replace(shard, schema=shard.file_schema, file_schema=None)
    names = known_columns(in_file.schema, shard.schema.names if columns is None else columns)
    if not names:  # the rows must still be counted
        names = in_file.schema.names[:1]
    coded = [name for name in coded if name in names]
    for chunk in read_chunks(in_file, names, coded=coded):
        yield WidenedChunk(chunk, chunk.first_row, shard)


def scan(shard: Shard, evidence: Evidence | None = None) -> list[Span]:
    """List the non-empty blocks of a shard.

    evidence: of the types of text columns; it sees all rows of files that are text. Raises
    `InputError` if the file cannot be read to its end.
    """
    if shard.content == "nothing":
        return []
    code = shard.file_type.format.load()
    with reading(shard.path):
        if evidence is None:
            spans = code.blocks(shard)
        else:
            spans = code.blocks_seen_by(evidence, shard)
    unchanged(shard)
    return [span for span in spans if span.rows]


def look(
    path: Path,
    name: str,
    partitions: Mapping[str, pa.DataType] | None = None,
    dialect: TextDialect = PLAIN,
    evidence: Evidence | None = None,
) -> tuple[Shard, list[Span]]:
    """Survey and scan a file; a Parquet file is opened once for both.

    partitions: `partition_types` of the source, for columns that names hold. dialect: of delimited
    text. evidence: as in `scan`.
    """
    if file_type_of_name(path.name) == FileType.named("parquet"):
        surveyed = _look_at_parquet(path, name)
        if surveyed is not None:
            return in_partition(surveyed[0], partitions), surveyed[1]
    shard = survey(path, name, dialect=dialect)
    return in_partition(shard, partitions), scan(shard, evidence)


def look_at_all(
    files: Sequence[tuple[Path, str]],
    sizes: Sequence[int],
    partitions: Mapping[str, pa.DataType] | None = None,
    dialect: TextDialect = PLAIN,
    evidence: Evidence | None = None,
) -> Iterator[tuple[Shard, list[Span]]]:
    """Survey and scan several files, small ones of text at once; yield what `look` returns of each.

    files: paths and names. sizes: in bytes, as listed.
    """
    small = look_at_small(files, sizes, dialect, evidence)
    for number, (path, name) in enumerate(files):
        if number in small:
            shard, spans = small[number]
            yield in_partition(shard, partitions), spans
        else:
            yield look(path, name, partitions, dialect, evidence)


def _look_at_parquet(path: Path, name: str) -> tuple[Shard, list[Span]] | None:
    """Survey and scan a Parquet file; None for one without content. Raises `InputError`."""
    file_type = FileType.named("parquet")
    try:
        with reading(path):
            footer = parquet.footer_of(path, file_type)
            shard = parquet.surveyed(footer, name, file_type)
            return shard, parquet.row_groups(shard, footer.metadata)
    except (InputError, OSError):
        if survey(path, name).content != "nothing":  # raises with the actual format, if recognised
            raise
        return None


def file_type_of_word(word: str) -> FileType:
    """Parse a format word of an index, such as "csv.gz", "csv-semicolon" or "parquet"."""
    try:
        return parse_index_word(word)[0]
    except KeyError:
        for recipe in recipes().values():
            if word in recipe.readers:
                raise InputError(recipe.readers[word]) from None
        raise CorruptShard(
            f"format {word!r} of the index is not known to this version",
            value=word,
            remedy="upgrade headrace",
        ) from None


def read_block(  # noqa: PLR0913 - all are settings
    path: Path,
    word: str,
    *,
    block: int,
    offset: int,
    length: int,
    target: Target,
    names: Sequence[str],
    dialect: TextDialect = PLAIN,
    pages: Pages = "check",
    content: pa.Buffer | None = None,
    rows: int | None = None,
    count: int = 1,
    of_run: bool = True,
    decoder: Decoder = "pyarrow",
) -> pa.Table:
    """Read one block, or adjacent row groups of Parquet, as the target's columns.

    word: the format, as in an index. block: row group number (Parquet) or record batch (Arrow).
    offset, length: byte range (text, Arrow streams); a CSV or TSV block at offset 0 begins with the
    header of its file, which is not a row. names: of all columns of the file, which delimited text
    needs, with its dialect. pages: "trust" skips the page checksums of Parquet, if the bytes of the
    file were verified before. content: these bytes, if they are in memory. rows: of the block, as
    it was planned; a Parquet file with others is refused before it is decoded. count: of row groups
    to read, from `block` on. of_run: whether headrace wrote the file. decoder: of Parquet, see
    `decoders`. Thread-safe; the work releases the interpreter lock.

    Raises `CorruptShard` naming file and block if the bytes of a run cannot be read as they were
    written, and `InputError` if those of a source cannot be read, or a text is not of its declared
    type.
    """
    file_type = file_type_of_word(word)
    block_read = BlockRead(
        path=path,
        file_type=file_type,
        separator=parse_index_word(word)[1],
        block=block,
        offset=offset,
        length=length,
        names=names,
        dialect=dialect,
        pages=pages,
        content=content,
        rows=rows,
        count=count,
        decoder=decoder,
    )
    code = file_type.format.load()
    where = block_read.words
    if code.block_word:
        where = f"{code.block_word} {block}"
    if of_run:
        return _read_run_block(code, block_read, target, where)
    return _read_source_block(code, block_read, target, where)


def _read_run_block(code: FormatCode, block: BlockRead, target: Target, where: str) -> pa.Table:
    """Read a block that headrace wrote. Raises `CorruptShard` for all that is not as written."""
    path = block.path
    try:
        return code.read_block(block, target)
    except FileNotFoundError as error:
        raise CorruptShard("is missing", path=path, remedy=RESTORE) from error
    except CorruptShard as error:
        raise error.at(path=path, row=where) from error.__cause__
    except raw_errors() as error:  # such as null values that the schema excludes
        raise CorruptShard(
            f"cannot be read as the index says ({error})", path=path, row=where, remedy=RESTORE
        ) from error


def _read_source_block(code: FormatCode, block: BlockRead, target: Target, where: str) -> pa.Table:
    """Read a block of a source; an error names the column of a binary format that is at fault."""
    try:
        with reading(block.path, where):
            return code.read_block(block, target)
    except InputError as error:
        if error.column is None and code.block_word:
            error.column = _column_at_fault(code, block, target.schema)
        raise


def _column_at_fault(code: FormatCode, block: BlockRead, schema: pa.Schema) -> str | None:
    """Return the first column that cannot be read alone."""
    for field in schema:
        try:
            with reading(block.path):
                code.read_block(block, Target.of(pa.schema([field])))
        except HeadraceError:
            return str(field.name)
    return None


def copied_records(
    shard: Shard, sizes: I32, chunk_bytes: int = COPY_BYTES
) -> Iterator[pa.LargeBinaryArray]:
    """Iterate over the bytes of each row in file order, in UTF-8, in chunks; the last row gets a
    line end if it has none.

    sizes: bytes of every row, int32 [rows]. Raises `InputError` if the file no longer has these
    rows.
    """
    if shard.parts:
        yield from group_records(shard, sizes)
        return
    ends = np.cumsum(sizes, dtype=np.int64)
    if shard.dialect is not None:
        newline = shard.dialect.newline.encode()
    else:
        newline = b"\n"
    row = 0
    text = PLAIN
    if shard.dialect is not None:
        text = shard.dialect.text
    with reading(shard.path), open_text(shard.path, shard.file_type.compression, text) as stream:
        if shard.dialect is not None and shard.dialect.header_bytes:
            stream.read(shard.dialect.header_bytes)
        while row < len(ends):
            start = 0
            if row:
                start = int(ends[row - 1])
            stop_row = max(row + 1, int(np.searchsorted(ends, start + chunk_bytes, side="right")))
            size = int(ends[stop_row - 1]) - start
            data = stream.read_buffer(size)
            bounds = ends[row:stop_row] - start
            if len(data) == size and stop_row == len(ends) and data[-1:].to_pybytes() != b"\n":
                data = pa.py_buffer(data.to_pybytes() + newline)
                bounds = np.append(bounds[:-1], len(data))
            if len(data) < size:
                raise InputError(
                    "is shorter than it was",
                    path=shard.path,
                    remedy="run again once it is complete",
                )
            yield records.slices(data, bounds)
            row = stop_row


def describe_empty(names: Sequence[str], files: int, what: str = "source files") -> str:
    """Return a sentence about the files of a source that have no rows."""
    listed = ", ".join(names[:5]) + (f", … ({len(names):,} in all)" if len(names) > 5 else "")
    verbs = "have no rows and are"
    if len(names) == 1:
        verbs = "has no rows and is"
    return f"{len(names):,} of {files:,} {what} {verbs} skipped: {listed}"
