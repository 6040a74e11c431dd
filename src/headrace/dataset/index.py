"""Define the index: one row per block, from which a stream is planned.

A block is the part of a shard that can be read independently: a Parquet row group, or a byte range
of a text file that begins and ends on a record. `SplitIndex` holds one split's blocks as parallel
arrays in natural order (shards by name, blocks by position); planning and reading need nothing
else. A run keeps its index as index.parquet, and plain shards as a file that processes map; see
`stored_index`.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.arrays import I64, offsets_from_lengths
from headrace.digest import canonical_json, loads


def text_array(texts: Sequence[str]) -> pa.LargeStringArray:
    """Make an Arrow array of texts without importing pandas.

    `pa.array` imports pandas if it is installed, which would delay a short command by a sixth of a
    second.
    """
    words = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, words)], dtype=np.int64)
    return pa.LargeStringArray.from_buffers(
        len(words), pa.py_buffer(ends), pa.py_buffer(b"".join(words))
    )


def int64_array(numbers: I64) -> pa.Int64Array:
    """Make an Arrow array of numbers that shares their memory, without importing pandas."""
    return pa.Array.from_buffers(
        pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers, np.int64))]
    )


class Texts(Sequence[str]):
    """Texts that stay in an Arrow array, often a view of a file; equal to a tuple of the same
    texts.
    """

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, position: int) -> str: ...

    @overload
    def __getitem__(self, position: slice) -> tuple[str, ...]: ...

    def __getitem__(self, position: int | slice) -> str | tuple[str, ...]:
        if isinstance(position, slice):
            return tuple(self._values[position].to_pylist())
        return str(self._values[int(position)].as_py())

    def __iter__(self) -> Iterator[str]:
        return iter(self._values.to_pylist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Texts):
            return self._values is other._values or tuple(self) == tuple(other)
        if isinstance(other, tuple):
            return tuple(self) == other
        return NotImplemented

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:  # noqa: A002 - the name Arrow passes
        if type is None:
            return self._values
        return self._values.cast(type)

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrow pickles the whole buffers of a slice, so the texts are copied first.
        return Texts, (self._values.take(pa.array(np.arange(len(self)))),)


@dataclass(frozen=True)
class MappedSplit:
    """The fields of a `SplitIndex` that are views of a file, by name; pickled as a reference to
    that file.

    digest: of the file's stream, in hex; inode: the file's device and inode. map_again: maps the
    split of such a file in another process.
    """

    path: Path
    digest: str
    inode: tuple[int, int]
    split: str
    fields: Mapping[str, Any]
    map_again: Callable[[Path, str, str], MappedSplit]

    def is_there(self) -> bool:
        """Return whether the path still names the file that was mapped."""
        with suppress(OSError):
            stat = os.stat(self.path)
            return (stat.st_dev, stat.st_ino) == self.inode
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return self.map_again, (self.path, self.digest, self.split)


@dataclass(frozen=True, kw_only=True)
class SplitIndex:
    """The blocks of one split. Arrays are indexed by block: [B].

    shards: paths relative to the dataset root, with forward slashes.
    formats: the format of each shard, parallel to `shards`: "parquet", "csv.gz", "csv-semicolon" …
    shard_of_block: index in `shards`; block: ordinal of the block inside its shard.
    rows: rows in the block; offset, length: its byte range in the file (text; for Parquet
    informational). schema: the logical columns a reader delivers, the same for all shards.
    condition: digest of the filter that left these rows; "" for all rows.
    checksums: XXH3-128 of each shard, parallel to `shards`; "" or an empty sequence if unknown
    (plain shards). stamps: size and modification time of each shard when it was indexed, [shards,
    2]; None if checksums are known. partitioned: columns in the names of shards that the files
    lack; see `formats.partitions`. layouts: the columns that shards themselves have, if some are
    not those of `schema` and are fitted to it, see `formats.widen`; layout_of_shard: index in them
    of each shard, [shards]. stored_as_text: columns that the files hold as text, whatever their
    format, though the schema has another type. gaps: columns of whole numbers or truths that lack a
    value in some rows, by the evidence of all rows; tensors have them as float64 with NaN.
    mapped: the file that fields are views of. A process spawned on this machine maps that file too;
    any other pickle carries the values.
    """

    split: str
    schema: pa.Schema
    shards: Sequence[str]
    formats: Sequence[str]
    shard_of_block: I64
    block: I64
    rows: I64
    offset: I64
    length: I64
    checksums: Sequence[str] = ()
    condition: str = ""
    stamps: I64 | None = None
    partitioned: tuple[str, ...] = ()
    layouts: tuple[pa.Schema, ...] = ()
    layout_of_shard: I64 | None = None
    stored_as_text: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    mapped: MappedSplit | None = field(default=None, repr=False, compare=False)

    @cached_property
    def total_rows(self) -> int:
        """The number of rows N of the split."""
        return int(self.rows.sum())

    @cached_property
    def first_row(self) -> I64:
        """The row number in the split at which each block begins: [B]."""
        return offsets_from_lengths(self.rows)[:-1]

    @cached_property
    def identity(self) -> str:
        """A digest of the rows and their order: shard names, blocks, their row counts and positions
        in files.

        It includes the checksums of shards if they are known; otherwise other rows in blocks of
        equal lengths go unnoticed.
        """
        counts = [len(self.shards), len(self.checksums), len(self.rows)]
        digest = hashlib.sha256(canonical_json([self.split, self.condition, *counts]))
        for texts in (self.shards, self.checksums):
            # no path or checksum contains a NUL
            joined = "\0".join(texts).encode("utf-8", "surrogateescape")
            digest.update(len(joined).to_bytes(8, "little"))
            digest.update(joined)
        for array in (self.shard_of_block, self.block, self.rows, self.offset, self.length):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    @cached_property
    def fitted(self) -> Sequence[pa.Schema | None]:
        """The layouts that are fitted to the schema; None in place of its own columns."""
        schema = self.schema
        fitted: list[pa.Schema | None] = []
        for layout in self.layouts:
            is_same = layout.names == schema.names and layout.types == schema.types
            fitted.append(None if is_same else layout)
        return fitted or [None]

    def layout_number(self, shard: int) -> int:
        """Return the index of a shard's columns in `fitted`."""
        if self.layout_of_shard is None or not self.layouts:
            return 0
        return int(self.layout_of_shard[shard])

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field_.name: getattr(self, field_.name) for field_ in fields(self)}
        if "identity" in vars(self):  # computing it takes a second for a million blocks
            values["identity"] = self.identity
        mapped = values.pop("mapped")
        if mapped is None or get_spawning_popen() is None or not mapped.is_there():
            return _unpickled, (type(self), values, None)
        extras = {
            name: value for name, value in values.items() if value is not mapped.fields.get(name)
        }
        return _unpickled, (type(self), extras, mapped)


def _unpickled(
    cls: type[SplitIndex], values: dict[str, Any], mapped: MappedSplit | None
) -> SplitIndex:
    index = object.__new__(cls)
    vars(index).update({**({} if mapped is None else mapped.fields), **values, "mapped": mapped})
    return index


@dataclass(frozen=True)
class IndexRow:
    """One block, as a row of index.parquet.

    shard: path relative to the run directory, or to the plain files' root.

    digest, checksum: SHA-256 and XXH3-128 of the whole shard file.
    key_min, key_max: the smallest and largest row key of the block (TemporalSplit: the date,
    microseconds).
    """

    split: str
    shard: str
    format: str
    block: int
    first_row: int
    rows: int
    offset: int
    length: int
    digest: str
    checksum: str
    source_shard: str
    key_min: int | None
    key_max: int | None


_TYPES = {"str": pa.string(), "int": pa.int64(), "int | None": pa.int64()}
INDEX_SCHEMA = pa.schema(
    [
        pa.field(field_.name, _TYPES[str(field_.type)], nullable="None" in str(field_.type))
        for field_ in fields(IndexRow)
    ]
)
_SCHEMA_KEY = b"headrace.schema"
_DIALECT_KEY = b"headrace.dialect"
_TEXTS_KEY = b"headrace.texts"
_GAPS_KEY = b"headrace.gaps"


def index_bytes(
    rows: Sequence[IndexRow],
    schema: pa.Schema,
    dialect: Mapping[str, Any],
    texts: Mapping[str, pa.DataType],
    gaps: Collection[str] = (),
) -> bytes:
    """Encode index.parquet: one row per block, with the logical schema in the metadata.

    texts: the types that all values of a column of text fit, if it is not text alone. gaps: as in
    `SplitIndex`.
    """
    columns = []
    for column in INDEX_SCHEMA:
        columns.append(pa.array([getattr(row, column.name) for row in rows], column.type))
    table = pa.Table.from_arrays(columns, schema=INDEX_SCHEMA)
    return table_bytes(table, schema, dialect, texts, gaps)


def table_bytes(
    table: pa.Table,
    schema: pa.Schema,
    dialect: Mapping[str, Any],
    texts: Mapping[str, pa.DataType] | None = None,
    gaps: Collection[str] = (),
) -> bytes:
    """Encode a table of blocks in `INDEX_SCHEMA` as index.parquet."""
    sink = io.BytesIO()
    metadata = columns_metadata(schema, dialect, gaps)
    texts_schema = pa.schema(sorted((texts or {}).items()))
    metadata[_TEXTS_KEY] = base64.b64encode(texts_schema.serialize().to_pybytes())
    table = table.replace_schema_metadata(metadata)
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def encode_schema(schema: pa.Schema) -> bytes:
    """Encode a schema as text."""
    return base64.b64encode(schema.serialize().to_pybytes())


def decode_schema(data: str | bytes) -> pa.Schema:
    """Decode a schema. Raises one of the errors that `read_index` catches."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data)))


def columns_metadata(
    schema: pa.Schema, dialect: Mapping[str, Any], gaps: Collection[str]
) -> dict[bytes, bytes]:
    """Encode the logical schema, the dialect of text and the columns with gaps, for the metadata of
    an index file.
    """
    metadata = {_SCHEMA_KEY: encode_schema(schema), _DIALECT_KEY: canonical_json(dialect)}
    if gaps:
        metadata[_GAPS_KEY] = canonical_json(sorted(gaps))
    return metadata


class IndexColumns(NamedTuple):
    """What `columns_metadata` encodes."""

    schema: pa.Schema
    dialect: Mapping[str, Any]
    gaps: tuple[str, ...]


def columns_of(metadata: Mapping[bytes, bytes]) -> IndexColumns:
    """Decode `columns_metadata`. Raises one of the errors that `read_index` catches."""
    schema = decode_schema(metadata[_SCHEMA_KEY])
    dialect = loads(metadata[_DIALECT_KEY])
    if not isinstance(dialect, dict):
        raise ValueError("its dialect is not a mapping")
    gaps = loads(metadata.get(_GAPS_KEY, b"[]"))
    if not isinstance(gaps, list) or not set(gaps) <= set(schema.names):
        raise ValueError("columns with gaps are not in its schema")
    return IndexColumns(schema, dialect, tuple(gaps))


def texts_of(metadata: Mapping[bytes, bytes]) -> dict[str, pa.DataType]:
    """Decode the types that texts fit, of an index of a run.

    Raises one of the errors that `read_index` catches.
    """
    texts = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(metadata[_TEXTS_KEY])))
    return dict(zip(texts.names, texts.types, strict=True))


class Index(ABC):
    """The blocks of all splits.

    schema: the logical columns; dialect: of text files, as `TextDialect.stored` gives it.
    """

    def __init__(self, schema: pa.Schema, dialect: Mapping[str, Any]) -> None:
        self.schema = schema
        self.dialect = dialect

    @abstractmethod
    def split(self, split: str) -> SplitIndex:
        """Return the blocks of one split in natural order."""


class RunIndex(Index):
    """The index of a finished run, or of a fold of it.

    table: one row per block, in `INDEX_SCHEMA`. texts: the types that all values of a column of
    text fit, which `typed` delivers. gaps: as in `SplitIndex`.
    """

    def __init__(
        self,
        table: pa.Table,
        schema: pa.Schema,
        dialect: Mapping[str, Any],
        texts: Mapping[str, pa.DataType],
        gaps: tuple[str, ...],
    ) -> None:
        super().__init__(schema, dialect)
        self.table = table
        self.texts = texts
        self.gaps = gaps
        self._cells: Mapping[str, Sequence[str]] | None = None
        self._stored_as_text: tuple[str, ...] = ()

    def typed(self) -> RunIndex:
        """Return the index with columns of text as the types that all of their values fit."""
        index = copy.copy(self)
        fields = [field.with_type(self.texts.get(field.name, field.type)) for field in self.schema]
        index.schema = pa.schema(fields)
        index._stored_as_text = tuple(name for name in self.schema.names if name in self.texts)
        return index

    def with_cells(self, cells: Mapping[str, Sequence[str]]) -> RunIndex:
        """Return the index of a fold. cells: the splits of the table that make up each of its
        splits.
        """
        index = copy.copy(self)
        index._cells = cells
        return index

    def split(self, split: str) -> SplitIndex:
        """Return the blocks of one split in natural order."""
        cells = pa.array([split] if self._cells is None else self._cells[split], pa.string())
        table = self.table.filter(pc.is_in(self.table["split"], value_set=cells))
        # Table.sort_by would import pandas if it is installed.
        table = table.take(pc.sort_indices(table, [("shard", "ascending"), ("block", "ascending")]))
        # sorted already: coded in order of appearance
        names = table["shard"].combine_chunks().dictionary_encode()
        codes = np.asarray(names.indices.to_numpy(), np.int64)
        first = pa.array(np.flatnonzero(np.diff(codes, prepend=-1)))

        def of_shards(column: str) -> Texts:
            return Texts(table[column].take(first).combine_chunks())

        def of_blocks(column: str) -> I64:
            return np.asarray(table[column].to_numpy(), np.int64)

        return SplitIndex(
            split=split,
            schema=self.schema,
            shards=Texts(names.dictionary),
            formats=of_shards("format"),
            shard_of_block=codes,
            block=of_blocks("block"),
            rows=of_blocks("rows"),
            offset=of_blocks("offset"),
            length=of_blocks("length"),
            checksums=of_shards("checksum"),
            stored_as_text=self._stored_as_text,
            gaps=self.gaps,
        )
