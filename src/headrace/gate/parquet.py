"""Read Parquet files of a run that describe it, such as its index, whoever wrote them.

A few megabytes of Parquet can claim to hold gigabytes: pages compress without bounds, equal values
take no bytes, and one long text of a dictionary stands for many rows. So a file is decoded under a
budget, the larger of 64 MiB and 200 times its size:

1. A footer with more structs than the budget has room for is not parsed.
2. Its columns are those that the caller expects, flat, or lists of numbers.
3. The header of each page is read. It bounds the memory of the page, the values that it decodes
   to, and must agree with the rows of its row group. Pages have encodings that `pyarrow` writes and
   whose values are not longer than the page.
4. Texts are decoded as dictionaries, in batches. Their full length is counted before they are
   expanded.

The cost is a few microseconds a page.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.digest import sha256_file
from headrace.errors import CorruptShard
from headrace.gate import MOST_GROWTH, RESTORE
from headrace.gate.pages import PageHeader, count_structs, pages
from headrace.storage.places import place_of

LEAST_BUDGET = 64 << 20

_LARGEST_PAGE = 64 << 20  # writers end a page at 1 MiB, or with the text that exceeds it
_BATCH_ROWS = 1 << 16
# Arrow's memory for a parsed footer: for each of its bytes at most, and for each of its structs.
_FOOTER_GROWTH = 240
_STRUCT_BYTES = 1500
_MOST_STRUCTS = 200_000  # counting them takes a second
_LEVEL_BYTES = 4  # of a value inside a list
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA, _RLE_DICTIONARY, _BYTE_STREAM_SPLIT = 0, 2, 3, 5, 8, 9
_OF_TEXTS = frozenset({_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY})
_OF_NUMBERS = _OF_TEXTS | {_RLE, _DELTA, _BYTE_STREAM_SPLIT}
# Arrow's bytes of a value; a text is its position in a dictionary, and then its offset
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_TEXT_WIDTH = 8


class RunTable:
    """A Parquet file that describes a run, open for reading under a budget. Thread-safe.

    schema: its columns. num_rows: what its footer says, to which every read is held.
    """

    def __init__(self, path: Path, local: Path, least: int) -> None:
        self._path = path
        self._local = local
        self._fd = os.open(local, os.O_RDONLY)
        try:
            self.size = os.fstat(self._fd).st_size
            self._budget = max(least, MOST_GROWTH * self.size)
            self._check_footer()
            with pq.ParquetFile(local) as file:
                self._footer: pq.FileMetaData = file.metadata
                self.schema: pa.Schema = file.schema_arrow
        except BaseException:
            os.close(self._fd)
            raise
        self.num_rows: int = self._footer.num_rows
        self.num_row_groups: int = self._footer.num_row_groups

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def read(self, schema: pa.Schema | None = None, group: int | None = None) -> pa.Table:
        """Read the columns, or all, of a row group, or of all.

        schema: the columns, which must be of these types; null values only where it has some.
        Raises `CorruptShard`.
        """
        with _naming(self._path):
            return self._read(schema, group)

    def _read(self, schema: pa.Schema | None, group: int | None) -> pa.Table:
        names = self.schema.names
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise ValueError(f"it has several columns {repeated[0]!r}")
        columns = None
        if schema is not None:
            columns = schema.names
            _check_fields(self.schema, schema)
        schema = (schema or self.schema).with_metadata(self.schema.metadata)
        _check_flat(schema)
        groups = []
        for number in range(self.num_row_groups) if group is None else [group]:
            if self._footer.row_group(number).num_rows:  # an empty one has no place in the file
                groups.append(number)
        self._check_pages(self._leaves(columns), groups)
        rows = sum(self._footer.row_group(number).num_rows for number in groups)
        table = self._decode(schema, groups)
        if table.num_rows != rows:
            raise ValueError(f"it has {table.num_rows:,} rows, its footer says {rows:,}")
        return table

    def _check_footer(self) -> None:
        """Refuse a footer that Arrow would need more than the budget for."""
        tail = os.pread(self._fd, 8, max(0, self.size - 8))
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != b"PAR1" or length > self.size - 8:
            raise ValueError("it does not end as Parquet does")
        if length * _FOOTER_GROWTH <= self._budget:
            return
        most = min(_MOST_STRUCTS, self._budget // _STRUCT_BYTES)
        if count_structs(os.pread(self._fd, length, self.size - 8 - length), most) > most:
            raise ValueError(f"its footer has more than {most:,} parts")

    def _leaves(self, columns: Sequence[str] | None) -> list[int]:
        """List the leaves of the columns in the file."""
        leaves = range(self._footer.num_columns)
        if columns is None:
            return list(leaves)
        paths = [self._footer.schema.column(leaf).path for leaf in leaves]
        starts = tuple(f"{name}." for name in columns)
        return [leaf for leaf in leaves if f"{paths[leaf]}.".startswith(starts)]

    def _check_pages(self, leaves: Sequence[int], groups: Sequence[int]) -> None:
        """Hold every page of these leaves to the rows of its group, and all to the budget."""
        page_bytes = 0
        value_bytes = 0
        for group in groups:
            row_group = self._footer.row_group(group)
            for leaf in leaves:
                column = self._footer.schema.column(leaf)
                values = 0
                for page in self._pages_of(row_group.column(leaf), column):
                    values += 0 if page.is_dictionary else page.values
                    page_bytes += page.decoded_bytes
                    value_bytes += page.values * _width(column)
                    self._count(max(page_bytes, value_bytes))
                is_list = column.max_repetition_level > 0
                if values < row_group.num_rows or (values > row_group.num_rows and not is_list):
                    raise ValueError(
                        f"{column.path} has {values:,} values in row group {group}, whose footer"
                        f" says {row_group.num_rows:,} rows"
                    )

    def _pages_of(self, chunk: Any, column: Any) -> Iterator[PageHeader]:
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        stop = start + chunk.total_compressed_size
        if not 0 < start <= stop <= self.size:
            raise ValueError(f"{column.path} lies at {start:,} to {stop:,}")
        is_text = column.physical_type not in _WIDTHS
        allowed = _OF_TEXTS if is_text else _OF_NUMBERS
        for page in pages(self._fd, start, stop):
            if page.decoded_bytes > _LARGEST_PAGE:
                raise ValueError(f"{column.path} has a page of {page.decoded_bytes:,} bytes")
            if page.encoding not in allowed:
                raise ValueError(f"{column.path} has a page of encoding {page.encoding}")
            yield page

    def _decode(self, schema: pa.Schema, groups: Sequence[int]) -> pa.Table:
        texts = [field.name for field in schema if _is_text(field.type)]
        with pq.ParquetFile(
            self._local,
            metadata=self._footer,
            read_dictionary=texts,
            page_checksum_verification=True,
        ) as file:
            decoded = 0
            batches = []
            # Decoded on the calling thread, so that no thread outlives it.
            for batch in file.iter_batches(
                _BATCH_ROWS, row_groups=groups, columns=schema.names, use_threads=False
            ):
                decoded += _expanded_bytes(batch)
                self._count(decoded)
                batches.append(_expanded(batch, schema))
        return pa.Table.from_batches(batches, schema)

    def _count(self, size: int) -> None:
        if size > self._budget:
            raise ValueError(
                f"it decodes to more than {self._budget >> 20:,} MiB, which no file of"
                f" {self.size:,} bytes should"
            )


@contextmanager
def open_run_table(
    path: Path, *, sha256: str = "", least: int = LEAST_BUDGET
) -> Iterator[RunTable]:
    """Open a Parquet file of a run, local or in a store.

    sha256: of its bytes, "" if they are not to be checked. least: the budget of a small file, in
    bytes. Raises `CorruptShard`.
    """
    with ExitStack() as stack:
        with _naming(path):
            local = stack.enter_context(place_of(path).local_copy())
            if sha256 and sha256_file(local) != sha256:
                raise ValueError("its bytes are not those that were published")
            table = RunTable(path, local, least)
        stack.callback(table.close)
        yield table


def read_run_table(
    path: Path,
    schema: pa.Schema | None = None,
    *,
    sha256: str = "",
    least: int = LEAST_BUDGET,
) -> pa.Table:
    """Read a Parquet file of a run at once. O(rows) of memory, at most the budget.

    schema: the columns to read, which must be of these types, with null values only where it has
    some; None: all. sha256: of its bytes, "" if they are not to be checked. least: the budget of a
    small file, in bytes. Raises `CorruptShard`.
    """
    with open_run_table(path, sha256=sha256, least=least) as file:
        return file.read(schema)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise _damaged(path, "is missing") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(path, f"cannot be read ({error})") from error


def _damaged(path: Path, problem: str) -> CorruptShard:
    return CorruptShard(problem, path=path, remedy=RESTORE)


def _check_fields(actual: pa.Schema, expected: pa.Schema) -> None:
    for field in expected:
        if field.name not in actual.names:
            raise ValueError(f"it has no column {field.name!r}")
        if not actual.field(field.name).equals(field):  # nulls included
            raise ValueError(f"it has {actual.field(field.name)}, not {field}")


def _is_text(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_binary(dtype)
        or pa.types.is_large_binary(dtype)
    )


def _check_flat(schema: pa.Schema) -> None:
    """Refuse all types but flat ones and lists of numbers; others are not bounded here."""
    for field in schema:
        dtype = field.type
        if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
            dtype = dtype.value_type
            plain = pa.types.is_primitive(dtype)
        else:
            plain = pa.types.is_primitive(dtype) or _is_text(dtype)
        if not plain:
            raise ValueError(f"{field.name} is {field.type}, which no file of a run has")


def _width(column: Any) -> int:
    """Return Arrow's bytes for a value of a column of Parquet."""
    width = _WIDTHS.get(column.physical_type, _TEXT_WIDTH)
    if column.max_repetition_level > 0:
        width += _LEVEL_BYTES
    return width


def _expanded_bytes(batch: pa.RecordBatch) -> int:
    """Return the memory of a batch once its dictionaries are expanded."""
    total = 0
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            lengths = pc.take(pc.binary_length(column.dictionary), column.indices)
            total += (pc.sum(lengths).as_py() or 0) + _TEXT_WIDTH * len(column)
        else:
            total += column.nbytes
    return total


def _expanded(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        column = batch[field.name]
        columns.append(column.cast(field.type) if column.type != field.type else column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
