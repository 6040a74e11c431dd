"""Read and write Parquet: footers, chunks of bounded size, and files laid out for training.

Written files declare columns without nulls as such, have a checksum on every page, row groups of at
most 65,536 rows or 8 MiB, and dictionaries only where they pay off. Page checksums are verified on
every read of a file that has them.

Opening a file costs up to half of reading a narrow row group, so footers and open local files are
kept between blocks: at most 64 MiB and 128 files in a process, the least recently used go first. A
local file is opened again if device, inode, size or times of the file have changed.

Columns may be read by Polars, see `decoders`.

In a store, the footer is one request, for the last 64 KiB of the object. The byte ranges of a row
group's columns are known from it; near ones are merged, and several are fetched at a time, so a
block costs one request or a few. Arrow then decodes from memory, on the calling thread. Every
response must carry the footer's tag: an object that was replaced is an error.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import InputError
from headrace.formats.conversion import convert
from headrace.formats.decoders import may_use_polars, pays
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.polars_parquet import PolarsFile, UnlikeError
from headrace.formats.registry import DECRYPT, FileType, open_bytes, reading
from headrace.formats.shard import (
    BlockRead,
    Encoding,
    FormatCode,
    Pages,
    Shard,
    Span,
    TableChunk,
    WriteSettings,
    column_name,
    unchanged,
)
from headrace.formats.types import Target, in_schema, is_text
from headrace.formats.write import HashingFile
from headrace.gate.encryption import encryption_of
from headrace.storage.place import Fact
from headrace.storage.places import place_of

Stamp = tuple[int, int, int, int, int]

_TAIL = 64 << 10
_MOST_FOOTER_BYTES = 64 << 20
_FOOTER_GROWTH = 4  # a parsed footer takes a few times its bytes
_MOST_OPEN = 128
_TRAILER = 8  # the length of the footer, and the magic behind it
_SLACK = 100  # bytes that some old writers left out of a column's length


@dataclass(frozen=True, eq=False)
class Footer:
    """The footer of one version of a file."""

    path: Path
    version: Stamp | Fact
    metadata: pq.FileMetaData
    schema: pa.Schema

    @classmethod
    def read(cls, path: Path, version: Stamp | Fact, source: Any) -> Footer:
        """Read the footer at the end of a file."""
        file = _file(source, None, "check")
        return cls(path, version, file.metadata, file.schema_arrow)

    @cached_property
    def raw(self) -> dict[str, str]:
        """Headrace's column names → the file's own."""
        return _raw_names(self.schema)

    @cached_property
    def of_polars(self) -> PolarsFile:
        """The file as Polars reads it."""
        return PolarsFile(self.path, self.metadata, self.schema)

    @property
    def size(self) -> int:
        """The memory used, in bytes, roughly."""
        return int(self.metadata.serialized_size) * _FOOTER_GROWTH


class _OpenFiles:
    """Footers of one process, by path, and local files that no thread uses. Thread-safe."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.footers: OrderedDict[str, Footer] = OrderedDict()
        self.bytes = 0
        self._files: OrderedDict[tuple[Footer, Pages, bool], list[pq.ParquetFile]] = OrderedDict()
        self._open = 0

    @contextmanager
    def opened(self, footer: Footer, pages: Pages, *, wide: bool) -> Iterator[pq.ParquetFile]:
        """Give a local file, open, to one thread; it is kept if nothing is raised."""
        key = footer, pages, wide
        file = None
        with self.lock:
            files = self._files.get(key)
            if files:
                file = files.pop()
                self._open -= 1
        if file is None:
            source = _opened(footer.path)
            assert isinstance(footer.version, tuple)
            # not the time of its status: another thread may mark a cached file as used
            if _stamp(os.fstat(source.fileno()))[:-1] != footer.version[:-1]:
                raise pa.ArrowInvalid("it changed while it was opened")
            file = _file(source, footer.metadata, pages, wide=wide)
        yield file
        with self.lock:
            if self.footers.get(str(footer.path)) is not footer:
                return
            self._files.setdefault(key, []).append(file)
            self._files.move_to_end(key)
            self._open += 1
            while self._open > _MOST_OPEN:
                self._open -= len(self._files.popitem(last=False)[1])

    def get(self, path: str) -> Footer | None:
        with self.lock:
            if path in self.footers:
                self.footers.move_to_end(path)
            return self.footers.get(path)

    def keep(self, path: str, footer: Footer) -> None:
        self.drop(path)
        with self.lock:
            self.footers[path] = footer
            self.bytes += footer.size
            while self.bytes > _MOST_FOOTER_BYTES and len(self.footers) > 1:
                self._forget(self.footers.popitem(last=False)[1])

    def drop(self, path: str) -> None:
        with self.lock:
            before = self.footers.pop(path, None)
            if before is not None:
                self._forget(before)

    def _forget(self, footer: Footer) -> None:
        """Close the files of a footer that was taken out."""
        self.bytes -= footer.size
        for key in [key for key in self._files if key[0] is footer]:
            self._open -= len(self._files.pop(key))


_open_files = _OpenFiles()


def forget() -> None:
    """Drop all footers; a forked child calls this, because the parent's lock may be held there."""
    global _open_files
    _open_files = _OpenFiles()


os.register_at_fork(after_in_child=forget)


def stamp_of(path: Path) -> Stamp:
    """Identify the version of a local file. Raises `FileNotFoundError`."""
    return _stamp(path.stat())


def _stamp(stat: os.stat_result) -> Stamp:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def fact_of(path: Path) -> Fact:
    """Return the facts of an object as of its footer, which is fetched on this process's first
    request.
    """
    version = _footer(path).version
    assert isinstance(version, Fact)
    return version


def key_values(path: Path, file_type: FileType) -> dict[bytes, bytes]:
    """Read the key-value metadata of a file."""
    with reading(path):
        return dict(_footer_of(path, file_type).metadata.metadata or {})


def open_file(
    path: Path,
    file_type: FileType,
    pages: Pages = "check",
    *,
    footer: pq.FileMetaData | None = None,
    coded: Sequence[str] = (),
) -> pq.ParquetFile:
    """Open a Parquet file, local or in a store, maybe compressed as a whole.

    Raises `InputError` if it is not one.

    pages: "check" verifies the checksums of pages that have them; "trust" is for bytes that were
    verified otherwise. footer: of a local file, if known. coded: text columns to be read as
    dictionaries, by the file's names.
    """
    with reading(path):
        return _open(path, file_type, pages, footer=footer, coded=coded)


def _open(
    path: Path,
    file_type: FileType,
    pages: Pages,
    *,
    footer: pq.FileMetaData | None = None,
    coded: Sequence[str] = (),
    wide: bool = False,
) -> pq.ParquetFile:
    """Open a file as `open_file` does. wide: see `_file`.

    Raises what Arrow raises for a damaged file.
    """
    if file_type.compression != "none":
        with open_bytes(path, file_type.compression) as stream:
            return _file(pa.BufferReader(stream.read()), None, pages, coded, wide=wide)
    if place_of(path).reads == "calls":
        return _file(_opened(path), footer or _footer(path).metadata, pages, coded, wide=wide)
    fetched = _fetched_footer(path)
    assert isinstance(fetched.version, Fact)
    source = pa.PythonFile(place_of(path).open(fetched.version), mode="r")
    # fetches a row group's columns together
    return _file(source, fetched.metadata, pages, coded, pre_buffer=True, wide=wide)


def read_groups(block: BlockRead, columns: Sequence[str]) -> pa.Table:
    """Read the named columns of adjacent row groups, in that order, by the decoders of
    `block.decoder`; pyarrow decodes on the calling thread.

    Several small row groups take less time in one call than one after the other.
    block.content: the bytes of the file, if they are in memory. block.rows: what the groups must
    have, if that is known.

    Raises what Arrow raises for a damaged file, and `InputError` for an encrypted one.
    """
    path = block.path
    if block.file_type.compression != "none":

        def open_in_memory(*, wide: bool) -> pq.ParquetFile:
            return _open(path, block.file_type, block.pages, wide=wide)

        with open_in_memory(wide=False) as file:
            raw = _raw_names(file.schema_arrow)
        return _read(open_in_memory, block.groups, [raw[name] for name in columns], columns)
    footer = _footer(path)
    try:
        if block.rows is not None and block.groups.stop <= footer.metadata.num_row_groups:
            actual = _rows_of(footer.metadata, block.groups)
            if actual != block.rows:  # decoding it might take any memory
                raise pa.ArrowInvalid(f"it has {actual:,} rows, the index says {block.rows:,}")
        file_names = [footer.raw[name] for name in columns]
        fast = _of_polars(footer, block, file_names)
        if fast:
            with suppress(UnlikeError):  # pyarrow says what is wrong, if anything is
                return _by_both(footer, block, file_names, fast).rename_columns(list(columns))
        return _read(_opener(footer, block, file_names), block.groups, file_names, columns)
    except BaseException:
        _open_files.drop(str(path))  # read the footer again after any error
        raise


def _opener(
    footer: Footer, block: BlockRead, file_names: Sequence[str]
) -> Callable[..., AbstractContextManager[pq.ParquetFile]]:
    """Return a function that opens a file, with `wide` or not, for columns of a row group."""
    if block.content is not None:
        source: Any = pa.BufferReader(block.content)
    elif not isinstance(footer.version, Fact):
        return partial(_open_files.opened, footer, block.pages)
    else:  # fetch the bytes that are needed
        fact, metadata = footer.version, footer.metadata
        if block.groups.stop > metadata.num_row_groups:
            raise pa.ArrowInvalid(f"it has {metadata.num_row_groups} row groups")
        ranges = []
        for group in block.groups:
            ranges.extend(_column_ranges(metadata, fact.size, group, file_names))
        chunks = place_of(block.path).read_covering(ranges, fact)
        source = pa.PythonFile(place_of(block.path).open(fact, chunks), mode="r")
    return partial(_file, source, footer.metadata, block.pages)


def _of_polars(footer: Footer, block: BlockRead, file_names: Sequence[str]) -> list[str]:
    """Select the columns of row groups that Polars reads, see `decoders`."""
    in_memory = block.content is not None or isinstance(footer.version, Fact)
    unsafe = block.decoder == "auto" and block.pages == "check"
    if block.decoder == "pyarrow" or in_memory or unsafe or not may_use_polars():
        return []
    if not 0 <= block.block < block.groups.stop <= footer.metadata.num_row_groups:
        return []
    file = footer.of_polars
    rates = file.rates
    fast = [name for name in file_names if name in rates]
    rows = _rows_of(footer.metadata, block.groups)
    if not rows or not fast:
        return []
    if block.decoder == "polars":
        return [] if block.pages == "check" and file.has_checksums else fast
    fast = [name for name in fast if rates[name]]
    if not pays(sum(map(rates.__getitem__, fast)), rows):
        return []
    return fast


def _by_both(footer: Footer, block: BlockRead, file_names: list[str], fast: list[str]) -> pa.Table:
    """Read columns of row groups, those of `fast` with Polars, as the file's names.

    Raises `UnlikeError` if Polars reads others than pyarrow, or the file was replaced meanwhile.
    """
    table = footer.of_polars.read(block.groups, fast)
    if stamp_of(footer.path) != footer.version:
        raise UnlikeError
    if len(fast) == len(file_names):
        return table
    names = set(fast)
    slow = [name for name in file_names if name not in names]
    remainder = _read(_opener(footer, block, slow), block.groups, slow, slow)
    columns = [(table if name in names else remainder)[name] for name in file_names]
    return pa.table(columns, file_names)


def _file(
    source: Any,
    footer: pq.FileMetaData | None,
    pages: Pages,
    coded: Sequence[str] = (),
    *,
    pre_buffer: bool = False,
    wide: bool = False,
) -> pq.ParquetFile:
    """Open a file whose footer is known, or is read here; no column metadata are touched before it
    is seen that none is encrypted.

    wide: read texts and lists as types with offsets of 64 bits. Arrow has no others for more than
    2 GiB of nested text in a row group.
    """
    file = pq.ParquetFile(
        source,
        metadata=footer,
        page_checksum_verification=pages == "check",
        pre_buffer=pre_buffer,
        read_dictionary=list(coded),
        binary_type=pa.large_binary() if wide else None,
        list_type=pa.LargeListType if wide else None,
        # Spark writes times as INT96. Arrow would convert them to nanoseconds, which wrap around:
        # 9999-12-31 becomes 1816-03-29.
        coerce_int96_timestamp_unit="us",
    )
    if footer is None:
        _refuse_encryption(file.metadata, source)
    return file


def _opened(path: Path) -> pa.NativeFile:
    """Open a local file. It is closed with the last reference to it."""
    return pa.OSFile(str(path))


def _refuse_encryption(metadata: pq.FileMetaData, source: BinaryIO) -> None:
    """Raise `InputError` if columns of a file are encrypted. source: the file."""
    size = source.seek(0, os.SEEK_END)
    source.seek(size - _TRAILER)
    length = int.from_bytes(source.read(4), "little")
    source.seek(size - _TRAILER - length)
    encryption = encryption_of(source.read(length), metadata.serialized_size)
    if encryption is None:
        return
    names = encryption.columns
    raise InputError(
        "it is encrypted" if names else "its columns are encrypted",
        column=names[0] if names else None,
        remedy=DECRYPT,
    )


def _raw_names(schema: pa.Schema) -> dict[str, str]:
    return {column_name(raw): raw for raw in schema.names}


def _rows_of(metadata: pq.FileMetaData, groups: range) -> int:
    """Count the rows of row groups."""
    return sum(metadata.row_group(group).num_rows for group in groups)


def _read(
    opened: Callable[..., AbstractContextManager[pq.ParquetFile]],
    groups: range,
    file_names: list[str],
    columns: Sequence[str],
) -> pa.Table:
    """Read row groups. opened: opens the file, with `wide` or not."""
    table = None
    with opened(wide=False) as file, suppress(pa.ArrowNotImplementedError):
        table = file.read_row_groups(groups, columns=file_names, use_threads=False)
    if table is None:
        with opened(wide=True) as file:
            table = file.read_row_groups(groups, columns=file_names, use_threads=False)
    if table.column_names != file_names:  # the file's order
        table = table.select(file_names)
    if file_names == list(columns):
        return table
    return table.rename_columns(list(columns))


def _footer(path: Path) -> Footer:
    known = _open_files.get(str(path))
    if place_of(path).reads == "requests":
        return known or _fetched_footer(path)
    stamp = stamp_of(path)
    if known is not None and known.version == stamp:
        return known
    with path.open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        reach = min(size, _TAIL)
        file.seek(size - reach)
        tail = file.read(reach)
        reach = min(size, int.from_bytes(tail[-_TRAILER:-4], "little") + _TRAILER)
        if reach > len(tail):
            file.seek(size - reach)
            tail = file.read(reach)
    footer = Footer.read(path, stamp, pa.BufferReader(tail))
    _open_files.keep(str(path), footer)
    return footer


def footer_of(path: Path, file_type: FileType) -> Footer:
    """Read the footer of a file, local or in a store, maybe compressed as a whole.

    Raises `InputError` if it is not one of Parquet.
    """
    with reading(path):
        return _footer_of(path, file_type)


def _footer_of(path: Path, file_type: FileType) -> Footer:
    if file_type.compression == "none":
        # an object may have been replaced since
        return _footer(path) if place_of(path).reads == "calls" else _fetched_footer(path)
    with open_bytes(path, file_type.compression) as stream:
        return Footer.read(path, stamp_of(path), pa.BufferReader(stream.read()))


def _fetched_footer(path: Path) -> Footer:
    fact, tail = place_of(path).tail(_TAIL)
    # the rest on demand
    source = place_of(path).open(fact, [(fact.size - len(tail), tail)])
    footer = Footer.read(path, fact, pa.PythonFile(source, mode="r"))
    _open_files.keep(str(path), footer)
    return footer


def _column_ranges(
    metadata: pq.FileMetaData, size: int, group: int, file_names: Sequence[str]
) -> list[tuple[int, int]]:
    """List [start, stop) of every chunk of the named columns in a row group."""
    row_group = metadata.row_group(group)
    ranges = []
    for index in range(row_group.num_columns):
        chunk = row_group.column(index)
        name = chunk.path_in_schema
        if not any(name == column or name.startswith(f"{column}.") for column in file_names):
            continue
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        ranges.append((start, min(size, start + chunk.total_compressed_size + _SLACK)))
    return ranges


CHUNK_ROWS = 65_536
_SAMPLE_ROWS = 4096
_CODE_BYTES = 8  # a plain text takes four bytes of length plus its own

# Earlier pyarrow versions cannot read missing fixed-size lists from Parquet, and some cannot write
# them.
READS_MISSING_VECTORS = int(pa.__version__.split(".")[0]) >= 26


def row_groups(shard: Shard, metadata: pq.FileMetaData) -> list[Span]:
    """List the row groups of a file that have rows."""
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    unchanged(shard)
    result = []
    for number, group in enumerate(groups):
        if group.num_rows < 0:
            raise pa.ArrowInvalid(f"row group {number} has {group.num_rows} rows")
        if group.num_rows:
            # the size is a claim that Arrow does not use
            result.append(Span(number, group.num_rows, 0, max(0, group.total_byte_size)))
    return result


def surveyed(footer: Footer, name: str, file_type: FileType) -> Shard:
    """Survey a file by its footer."""
    shard = Shard.unread(footer.path, name, file_type)
    if not len(footer.schema) and not footer.metadata.num_rows:
        return shard
    # The schema alone: statistics of old writers claim no nulls where there are some.
    return shard.with_columns(footer.schema)


def _chunks(
    shard: Shard, columns: Sequence[str] | None, coded: Sequence[str], most_rows: int
) -> Iterator[TableChunk]:
    """Iterate over the rows of a shard in file order, at most `most_rows` at a time.

    coded: text columns to deliver as dictionaries if they are stored as such, so that texts are not
    decoded for every row. A chunk is then a row group, or 4 × `most_rows` rows of a larger one, so
    that each dictionary is made once.
    """
    texts = []
    for name in coded:
        if is_text(shard.schema.field(name).type):
            texts.append(name)
    if columns is None:
        selected = shard.schema.names
    else:
        selected = list(columns)
    file = _open(shard.path, shard.file_type, "check")
    metadata = file.metadata
    codes = []
    if texts:
        codes = _stored_as_codes(metadata, texts)
    raw = _raw_names(file.schema_arrow)
    file_names = [raw[name] for name in selected]
    opened = partial(_open, shard.path, shard.file_type, "check", footer=metadata, coded=codes)
    first_row = 0
    with file:
        for table in _batches(opened, file_names, "whole" if coded else "cut", most_rows):
            table = table.rename_columns(selected)
            fields = [
                (
                    table.schema.field(name)
                    if pa.types.is_dictionary(table.schema.field(name).type) and name in coded
                    else shard.schema.field(name)
                )
                for name in selected
            ]
            yield TableChunk(in_schema(table, Target.of(pa.schema(fields))), first_row)
            first_row += table.num_rows
    if selected and first_row != metadata.num_rows:
        raise pa.ArrowInvalid(f"it has {first_row} rows, its footer says {metadata.num_rows}")


def _batches(
    opened: Callable[..., pq.ParquetFile],
    columns: list[str],
    groups: Literal["whole", "cut"],
    most_rows: int,
) -> Iterator[pa.Table]:
    """Yield tables with the columns in this order; groups="whole" keeps row groups of up to 4 ×
    most_rows whole. opened: opens the file, with `wide` or not.
    """
    rows = 0
    with opened(wide=False) as file, suppress(pa.ArrowNotImplementedError):
        for table in _batches_of(file, columns, groups, most_rows):
            yield table
            rows += table.num_rows
        return
    with opened(wide=True) as file:
        for table in _batches_of(file, columns, groups, most_rows):
            if not rows:
                yield table
            rows = max(0, rows - table.num_rows)


def _batches_of(
    file: pq.ParquetFile, columns: list[str], groups: Literal["whole", "cut"], most_rows: int
) -> Iterator[pa.Table]:
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    if groups == "whole":
        rows = 4 * most_rows
    else:
        rows = most_rows
    if groups == "cut" or max(sizes, default=0) > rows:
        for batch in file.iter_batches(rows, columns=columns, use_threads=False):
            table = pa.Table.from_batches([batch])
            # for a column called a.b, Arrow reads the field b of a struct a, too
            yield table if table.column_names == columns else table.select(columns)
        return
    for group, size in enumerate(sizes):
        if size:
            yield file.read_row_group(group, columns=columns, use_threads=False).select(columns)


def _stored_as_codes(metadata: pq.FileMetaData, texts: list[str]) -> list[str]:
    """Select the columns whose values are mostly dictionary codes, judging by few uncompressed
    bytes per value.

    A writer abandons a dictionary once it is large, and making one from plain texts costs more than
    reading them.
    """
    size = dict.fromkeys(texts, 0)
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column_name(column.path_in_schema) in size:
                size[column_name(column.path_in_schema)] += column.total_uncompressed_size
    return [name for name in texts if size[name] < _CODE_BYTES * metadata.num_rows]


class ParquetCode(FormatCode):
    """Reads footers and row groups, and writes row groups."""

    block_word = "row group"

    def survey(
        self,
        path: Path,
        name: str,
        file_type: FileType,
        signature: Sequence[str] | None = None,
        dialect: TextDialect = PLAIN,
    ) -> Shard:
        """Read columns, types and which columns hold nulls from the footer alone."""
        return surveyed(_footer_of(path, file_type), name, file_type)

    def read(
        self,
        shard: Shard,
        columns: Sequence[str] | None = None,
        *,
        coded: Sequence[str] = (),
        most_rows: int | None = None,
    ) -> Iterator[TableChunk]:
        """Decode the columns of at most `CHUNK_ROWS` rows at a time."""
        return _chunks(shard, columns, coded, most_rows or CHUNK_ROWS)

    def blocks(self, shard: Shard) -> list[Span]:
        """List the row groups, from the footer."""
        return row_groups(shard, _footer_of(shard.path, shard.file_type).metadata)

    def read_block(self, block: BlockRead, target: Target) -> pa.Table:
        """Read row groups. block.content: the bytes of the file, if they are in memory."""
        return in_schema(read_groups(block, target.schema.names), target)

    def open_sink(self, file: HashingFile, settings: WriteSettings) -> ParquetSink:
        """Begin a file whose options follow from the schema and the first row group."""
        return ParquetSink(file, settings.schema, settings.codec, settings.encoding)


CODE = ParquetCode()


class ParquetSink:
    """Writes row groups to a binary file object; the schema and the first row group fix all
    options.

    encoding: "compact" uses a dictionary for every column whose first rows repeat. "fast" does so
    only for text with few values, because plain numbers decode faster.
    """

    def __init__(
        self, file: Any, schema: pa.Schema, compression: str, encoding: Encoding = "compact"
    ) -> None:
        self._file = file
        self._schema = schema
        self._compression = compression
        self._encoding = encoding
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Write one row group."""
        table = table.cast(self._schema)
        for name in () if READS_MISSING_VECTORS else table.column_names:
            missing = table[name].null_count
            if missing and pa.types.is_fixed_size_list(table.schema.field(name).type):
                raise InputError(
                    f"{missing} lists of a fixed size are missing, which pyarrow {pa.__version__}"
                    " cannot read back from Parquet",
                    column=name,
                    remedy="install pyarrow 26 or newer",
                )
        if self._writer is None:
            self._writer = self._open(table)
        try:
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        except pa.ArrowInvalid:
            remedy = "correct its values, or leave the column out"
            convert(table, _write_alone, purpose="Parquet", remedy=remedy)
            raise

    def close(self) -> None:
        """Write the footer; a file without rows still gets its schema."""
        if self._writer is None:
            self._writer = self._open(self._schema.empty_table())
        self._writer.close()

    def _open(self, sample: pa.Table) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd" if self._compression == "zst" else self._compression,
            use_dictionary=_repetitive_columns(sample.slice(0, _SAMPLE_ROWS), self._encoding),
            write_page_checksum=True,
        )


def _write_alone(table: pa.Table) -> None:
    pq.write_table(table, pa.BufferOutputStream())


def _repetitive_columns(sample: pa.Table, encoding: Encoding) -> list[str]:
    """Select the columns whose first rows repeat.

    compact: at most one distinct value in four rows (one in two for text). fast: text with at most
    one in 32, which decodes 1.4 times slower than plain text but takes a tenth of the bytes.
    """
    repeating = []
    for field in sample.schema:
        if pa.types.is_nested(field.type) or pa.types.is_boolean(field.type) or sample.num_rows < 2:
            continue
        if encoding == "fast" and not is_text(field.type):
            continue
        values = sample[field.name]
        # in half the time of count_distinct
        distinct = len(pc.unique(values)) - bool(values.null_count)
        repeats = 2 if is_text(field.type) else 4
        if encoding == "fast":
            repeats = 32
        if distinct * repeats <= sample.num_rows:
            repeating.append(field.name)
    return repeating
