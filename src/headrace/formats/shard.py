"""Define what is known of a source shard before its rows are read, and what the code of a format
does with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import InputError, setting
from headrace.formats.column_paths import (
    columns_of_paths,
    known_columns,
    select_paths,
    with_paths,
)
from headrace.formats.decoders import Decoder
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.header import hint
from headrace.formats.plain_types import plain_schema
from headrace.formats.registry import FileType, index_word
from headrace.formats.types import Target, in_schema

if TYPE_CHECKING:
    from headrace.formats.evidence import Evidence
    from headrace.formats.write import BlockRows, HashingFile

_TITLED = (
    "rename one of them; if the line of names stands below others, such as a title, give their"
    f" number, such as {setting('dialect', {'skip_rows': 1})}"
)
BOM = b"\xef\xbb\xbf"
Pages = Literal["check", "trust"]  # trust: the shard's own checksum was verified
Encoding = Literal["compact", "fast"]


def column_name(raw: str) -> str:
    """Translate a column name: `__DOT__` means a dot in files that cannot have dots in names."""
    return raw.replace("__DOT__", ".")


@dataclass(frozen=True)
class Dialect:
    """The dialect of a delimited text file.

    `header_bytes` counts bytes of the decompressed text in UTF-8, byte-order mark included. text:
    how its records, fields and values are written.
    """

    separator: str
    newline: str
    bom: bool = False
    header_bytes: int = 0
    text: TextDialect = PLAIN


def refuse_repeated_names(path: Path, names: Sequence[str], where: str = "") -> None:
    """Raise `InputError` if a column name is repeated."""
    repeated = min((name for name, count in Counter(names).items() if count > 1), default=None)
    if repeated is not None:
        raise InputError(
            f"it appears more than once{where}",
            path=path,
            column=repeated,
            remedy=f"rename one of them{hint(names)}" if repeated else _TITLED,
        )


class _Columns(NamedTuple):
    """The columns of a file as they are read, and the names of those that may hold nulls."""

    schema: pa.Schema
    null_columns: frozenset[str]


def _columns_as_read(file_schema: pa.Schema) -> _Columns:
    try:
        return _columns_once(file_schema)
    except TypeError:  # extension types of other packages may have no hash
        return _columns_once.__wrapped__(file_schema)


@lru_cache(maxsize=64)  # many files of a source have the same
def _columns_once(file_schema: pa.Schema) -> _Columns:
    names = list(map(column_name, file_schema.names))
    nullable = [name for name, field in zip(names, file_schema, strict=True) if field.nullable]
    return _Columns(plain_schema(names, file_schema.types), frozenset(nullable))


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One source file, surveyed.

    name: path relative to the source root, with forward slashes; the stable identity of the shard.
    size, mtime_ns: from before its content was read; a change while reading is an error.
    schema: its own columns, `__DOT__` already read as a dot.
    null_columns: columns that may hold nulls (all, if the format does not say).
    content: "nothing" if the file has neither columns nor rows: 0 bytes, blank lines, a table of no
    columns. Such a shard is read as no rows, and fits any schema.
    partition: columns of the schema that its name holds and the file does not, as text; see
    `formats.partitions`. file_schema: the columns of the file and its name, if rows are read as
    others, the schema; see `formats.widen`. complete: the same shard with all columns, if its
    columns are a choice of them. parts: of a group, the shards whose rows it has; path and time are
    then of the first of them; see `formats.grouped`.

    Raises `InputError` on a column name, at any depth, that holds a zero byte.
    """

    path: Path
    name: str
    size: int
    mtime_ns: int
    file_type: FileType
    schema: pa.Schema
    null_columns: frozenset[str] = frozenset()
    dialect: Dialect | None = None
    content: Literal["table", "nothing"] = "table"
    partition: Mapping[str, str | None] = field(default_factory=dict)
    file_schema: pa.Schema | None = None
    complete: Shard | None = None
    parts: Sequence[Shard] = ()

    def __post_init__(self) -> None:
        nested = {type_ for type_ in self.schema.types if type_.num_fields}
        inside = _names_inside(nested)
        names = [*self.schema.names, *inside]
        if "\0" in "".join(names):  # C libraries end names at a zero byte
            raise InputError(
                "its name holds a zero byte",
                path=self.path,
                column=next(name for name in names if "\0" in name),
                remedy="rename it",
            )

    @classmethod
    def unread(cls, path: Path, name: str, file_type: FileType) -> Shard:
        """Return a file that was not read yet as a shard of content "nothing"."""
        stat = path.stat()
        return cls(
            path=path,
            name=name,
            size=stat.st_size,
            mtime_ns=stat.st_mtime_ns,
            file_type=file_type,
            schema=pa.schema([]),
            content="nothing",
        )

    def with_columns(self, file_schema: pa.Schema) -> Shard:
        """Return the shard with the columns of its file. Those that are nullable may hold nulls.

        Raises `InputError` if a name is repeated.
        """
        refuse_repeated_names(self.path, list(map(column_name, file_schema.names)))
        columns = _columns_as_read(file_schema)
        return replace(
            self, schema=columns.schema, null_columns=columns.null_columns, content="table"
        )

    def with_choice(self, columns: Sequence[str]) -> Shard:
        """Return the shard with those of these columns that it has, in their order; no other is
        decoded. A path to a field of a struct becomes a column of this name.
        """
        if self.content == "nothing":
            return self
        chosen = known_columns(self.schema, columns)
        return replace(
            self,
            schema=with_paths(self.schema, chosen),
            null_columns=self.null_columns_of(chosen),
            partition={},
            complete=self,
        )

    def null_columns_of(self, columns: Sequence[str]) -> frozenset[str]:
        """Return those of these columns that may hold nulls: fields of structs always may."""
        known = set(self.schema.names)
        return frozenset(name for name in columns if name in self.null_columns or name not in known)

    @property
    def paths(self) -> list[Path]:
        """The files that its rows are read from."""
        return [part.path for part in self.parts] or [self.path]

    @property
    def word(self) -> str:
        """The word of its format in an index."""
        return index_word(self.file_type, None if self.dialect is None else self.dialect.separator)


def _names_inside(types: Iterable[pa.DataType]) -> Iterator[str]:
    """Iterate over the names of fields of nested types, at any depth."""
    for type_ in types:
        fields = [type_.field(index) for index in range(type_.num_fields)]
        yield from (field.name for field in fields)
        yield from _names_inside(field.type for field in fields)


def unchanged(shard: Shard) -> None:
    """Raise `InputError` if the file has changed since it was surveyed."""
    for part in shard.parts:
        unchanged(part)
    if shard.parts:
        return
    stat = shard.path.stat()
    if (stat.st_size, stat.st_mtime_ns) != (shard.size, shard.mtime_ns):
        raise InputError(
            "changed while it was read", path=shard.path, remedy="run again once it is complete"
        )


class Chunk(Protocol):
    """Consecutive rows of a shard, held in memory."""

    first_row: int

    @property
    def rows(self) -> int:
        """The number of rows."""

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as columns of the shard's own types; all columns in file order, or the
        given ones.
        """

    def sizes(self) -> npt.NDArray[np.int32] | None:
        """Return each row's bytes in the file, line end included; None if rows cannot be copied as
        bytes.
        """


@dataclass
class TableChunk:
    """Rows of a format whose columns are decoded when the chunk is made."""

    data: pa.Table
    first_row: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.data.num_rows)

    def sizes(self) -> None:
        """Return None, because such rows have no bytes of their own."""

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the decoded columns."""
        if columns is None:
            return self.data
        return self.data.select(list(columns))


@dataclass
class ChunkInForm:
    """Consecutive rows of a shard whose columns are read in another form; the bytes of rows are
    those of the file, unless a subclass says otherwise.
    """

    chunk: Chunk
    first_row: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.chunk.rows

    def sizes(self) -> npt.NDArray[np.int32] | None:
        """Return each row's bytes in the file, if rows can be copied as bytes."""
        return self.chunk.sizes()


@dataclass
class ChosenChunk(ChunkInForm):
    """Consecutive rows of a shard, of which some columns are chosen."""

    columns: Sequence[str]

    def sizes(self) -> None:
        """Return None, because the bytes of rows hold the other columns too."""

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as columns."""
        return self.chunk.table(list(self.columns if columns is None else columns))


@dataclass
class PathChunk(ChunkInForm):
    """Consecutive rows of a shard, of which fields of structs are read as columns.

    schema: of the shard.
    """

    schema: pa.Schema

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as columns; a name may be a path to a field of a struct."""
        if columns is None:
            return self.chunk.table()
        return select_paths(self.chunk.table(columns_of_paths(self.schema, columns)), columns)


@dataclass(frozen=True)
class Span:
    """One block of a shard: `rows` rows in `length` bytes from `offset`; a whole file begins at 0,
    header included.

    block: row group number (Parquet), record batch (Arrow), else the index among the shard's
    blocks. length: for Parquet, the uncompressed size.
    """

    block: int
    rows: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRead:
    """Which block of which file to read. Fields are those of `source.read_block`.

    content: of Parquet the bytes of the file, of text those of the block. count: of Parquet, how
    many row groups to read together, from `block` on. decoder: of Parquet.
    """

    path: Path
    file_type: FileType
    separator: str | None
    block: int
    offset: int
    length: int
    names: Sequence[str]
    dialect: TextDialect = PLAIN
    pages: Pages = "check"
    content: pa.Buffer | None = None
    rows: int | None = None
    count: int = 1
    decoder: Decoder = "pyarrow"

    @property
    def groups(self) -> range:
        """The numbers of the row groups."""
        return range(self.block, self.block + self.count)

    @property
    def words(self) -> str:
        """Which block it is, for a message."""
        return f"block {self.block} (bytes {self.offset} to {self.offset + self.length})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """How rows are written: columns, format, dialect of delimited text, and codec and encoding of
    Parquet.
    """

    schema: pa.Schema
    file_type: FileType
    dialect: Dialect | None = None
    codec: str = "lz4"
    encoding: Encoding = "compact"


class Sink(Protocol):
    """Writes the blocks of one file."""

    def write(self, batch: BlockRows) -> None:
        """Write a block: a table of the file's columns, or records as they are in a file of the
        same format.
        """

    def close(self) -> None:
        """Write what ends the file, even if it has no rows."""


class FormatCode(ABC):
    """Reads and writes one file format.

    A subclass need not split files into blocks, nor write them. One that writes has files of
    several blocks, so it lists and reads blocks too: a class without those methods is refused.

    joined_by_bytes: whether a header and the blocks of several files are a file. block_word: what
    the format calls a block; "" if a block is a range of bytes.
    """

    joined_by_bytes: ClassVar[bool] = False
    block_word: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Raise `TypeError` for a class whose files have blocks that it would not read."""
        super().__init_subclass__()
        required = {"blocks", "read_block"}
        missing = {name for name in required if getattr(cls, name) is getattr(FormatCode, name)}
        if cls.open_sink is not FormatCode.open_sink and missing:
            raise TypeError(
                f"{cls.__name__} writes files of several blocks (open_sink); write its"
                f" {' and '.join(sorted(missing))} too"
            )
        if missing and missing != required:
            raise TypeError(
                f"{cls.__name__} has {' and '.join(required - missing)} without"
                f" {' and '.join(missing)}; write both, or neither for files of one block"
            )

    @abstractmethod
    def survey(
        self,
        path: Path,
        name: str,
        file_type: FileType,
        signature: Sequence[str] | None = None,
        dialect: TextDialect = PLAIN,
    ) -> Shard:
        """Find columns and types of a file, reading as little as possible.

        signature: names of delimited columns. dialect: of delimited text.
        """

    @abstractmethod
    def read(
        self,
        shard: Shard,
        columns: Sequence[str] | None = None,
        *,
        coded: Sequence[str] = (),
        most_rows: int | None = None,
    ) -> Iterator[Chunk]:
        """Iterate over the rows of a shard in file order, with O(chunk) memory.

        columns: those that are decoded, if the format can choose. coded: text columns that may come
        as dictionaries. most_rows: of a chunk, if the format can choose.
        """

    def blocks(self, shard: Shard) -> list[Span]:
        """List the blocks that can be read alone: here one, the whole file."""
        return [Span(0, sum(chunk.rows for chunk in self.read(shard)), 0, shard.size)]

    def blocks_seen_by(self, evidence: Evidence, shard: Shard) -> list[Span]:
        """List the blocks, and show all values of a file of text columns to the evidence of their
        types.
        """
        return self.blocks(shard)

    def read_block(self, block: BlockRead, target: Target) -> pa.Table:
        """Read one block, as `blocks` or the sink of the file has it, as the target's columns: here
        the whole file.

        Raises `CorruptShard` if the bytes cannot be read.
        """
        shard = self.survey(block.path, block.path.name, block.file_type)
        names = target.schema.names
        tables = [chunk.table(names) for chunk in self.read(shard, names)]
        return in_schema(
            pa.concat_tables([target.schema.empty_table(), *tables], promote_options="default"),
            target,
        )

    def open_sink(self, file: HashingFile, settings: WriteSettings) -> Sink:
        """Begin a file of the format, which `write` fills block by block."""
        raise InputError(
            f"files of {settings.file_type.format.name} are read and not written",
            remedy="choose another format",
        )
