"""Define the facts about a source shard before its rows are read, and the chunks it is read in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import InputError
from headrace.formats.detect import Kind
from headrace.formats.schema import hint, plain

BOM = b"\xef\xbb\xbf"
SEPARATOR = {"csv": ",", "tsv": "\t"}
SEPARATOR_NAMES = {",": "comma", ";": "semicolon", "|": "pipe", "\t": "tab"}


def column_name(raw: str) -> str:
    """Translate a column name: `__DOT__` means a dot in files that cannot have dots in names."""
    return raw.replace("__DOT__", ".")


def word_of(kind: Kind, separator: str | None) -> str:
    """Return a format's word in the index: "csv.gz", "parquet"; "csv-semicolon.gz" for an unusual separator."""
    word = kind.extension.removeprefix(".")
    if separator is None or SEPARATOR.get(kind.format) == separator:
        return word
    format_, dot, compression = word.partition(".")
    return f"{format_}-{SEPARATOR_NAMES[separator]}{dot}{compression}"


def separator_of(word: str) -> tuple[str, str | None]:
    """Split a word of the index into the word without a separator, and the separator (None if it has none).

    Raises `KeyError` for an unknown separator name.
    """
    format_, dot, compression = word.partition(".")
    plain, mark, name = format_.partition("-")
    separator = {name: each for each, name in SEPARATOR_NAMES.items()}[name] if mark else SEPARATOR.get(plain)
    return f"{plain}{dot}{compression}", separator


@dataclass(frozen=True)
class Dialect:
    """The dialect of a delimited text file. `header_bytes` counts decompressed bytes, byte-order mark included."""

    separator: str
    newline: str
    bom: bool = False
    header_bytes: int = 0


def each_once(path: Path, names: Sequence[str], where: str = "") -> None:
    """Raise `InputError` if a column name is repeated."""
    repeated = min((name for name, count in Counter(names).items() if count > 1), default=None)
    if repeated is not None:
        raise InputError(
            f"{path}: column name {repeated!r} appears more than once{where}; rename one of them{hint(names)}"
        )


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One source file, surveyed.

    name: path relative to the source root, with forward slashes; the stable identity of the shard.
    size, mtime_ns: from before its content was read; a change while reading is an error.
    schema: its own columns, `__DOT__` already read as a dot.
    null_columns: columns that may hold nulls (all, if the format does not say).
    content: "nothing" if the file has neither columns nor rows: 0 bytes, blank lines, a table of no columns. Such a
    shard is read as no rows, and fits any schema.
    partition: columns of the schema that its name holds and the file does not, as text; see `formats.partitions`.
    Raises `InputError` on a column name, at any depth, that holds a zero byte.
    """

    path: Path
    name: str
    size: int
    mtime_ns: int
    kind: Kind
    schema: pa.Schema
    null_columns: frozenset[str] = frozenset()
    dialect: Dialect | None = None
    content: Literal["table", "nothing"] = "table"
    partition: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        odd = next((each for each in _names(self.schema) if "\0" in each), None)
        if odd is not None:  # C libraries end names at a zero byte
            raise InputError(f"{self.path}: column name {odd!r} holds a zero byte; rename it")

    @classmethod
    def unread(cls, path: Path, name: str, kind: Kind) -> Shard:
        """Return the facts of a file that was not read yet, as a shard of content "nothing"."""
        stat = path.stat()
        return cls(
            path=path,
            name=name,
            size=stat.st_size,
            mtime_ns=stat.st_mtime_ns,
            kind=kind,
            schema=pa.schema([]),
            content="nothing",
        )

    def with_columns(self, own: pa.Schema, nulls: Iterable[str]) -> Shard:
        """Return the shard with the columns of its file. nulls: the file's names of those that may hold nulls.

        Raises `InputError` if a name is repeated.
        """
        names = [column_name(each) for each in own.names]
        each_once(self.path, names)
        schema = pa.schema([(name, plain(kind)) for name, kind in zip(names, own.types, strict=True)])
        return replace(self, schema=schema, null_columns=frozenset(map(column_name, nulls)), content="table")

    @property
    def word(self) -> str:
        """The word of its format in an index."""
        return word_of(self.kind, None if self.dialect is None else self.dialect.separator)


def _names(fields: Iterable[pa.Field]) -> Iterator[str]:
    for each in fields:
        yield each.name
        if each.type.num_fields:
            yield from _names(each.type.field(place) for place in range(each.type.num_fields))


class Chunk(Protocol):
    """Consecutive rows of a shard, held in memory."""

    first_row: int

    @property
    def rows(self) -> int:
        """The number of rows."""

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as columns of the shard's own types; all columns in file order, or the given ones."""

    def sizes(self) -> npt.NDArray[np.int32] | None:
        """Return each row's bytes in the file, line end included; None if rows cannot be copied as bytes."""
