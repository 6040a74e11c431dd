"""Read row groups of a local Parquet file with Polars, as the types that pyarrow gives.

Polars reads by position, in its own threads, without the interpreter lock. It opens a file by its
name each time, so whoever calls compares the identity of the file before and after. It maps the
footer while it parses it, once for each version of a file: a file that is cut in that instant ends
the process, as in `headrace.gate.mapped`.

Polars does not check page checksums: `has_checksums` finds the files that have them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.decoders import polars_reads, saved_ns
from headrace.gate.pages import PageError, first_pages_have_checksums

if TYPE_CHECKING:
    import polars as pl

# Claims of a footer that Polars would reserve memory for: more are left to pyarrow, which raises.
_MOST_BYTES = 1 << 32
_WIDEST = 16  # bytes of a value that is no text
_VIEWED = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}


class UnlikeError(Exception):
    """Polars reads other types than pyarrow, or other rows than the footer says."""


class PolarsFile:
    """A version of a file: which columns Polars reads, and where its row groups begin. Thread-safe.

    rates: by the file's names of all these columns, the nanoseconds that a value saves. Empty if
    the footer is one that Polars should not see.
    """

    def __init__(self, path: Path, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
        self._path = path
        self._types = dict(zip(schema.names, schema.types, strict=True))
        self._names = schema.names
        self.rates = _rates(metadata, schema)
        self._first_rows = [0]
        for number in range(metadata.num_row_groups):
            rows = metadata.row_group(number).num_rows
            self._first_rows.append(self._first_rows[-1] + rows)
            if not 0 <= rows * _WIDEST * len(self.rates) <= _MOST_BYTES:
                self.rates = {}
        self._frames: dict[tuple[str, ...], pl.LazyFrame] = {}

    @cached_property
    def has_checksums(self) -> bool:
        """Whether pages have checksums, or the file does not begin with pages as writers lay them.

        Writers give checksums to all pages of a file or to none. Two are looked at, as a damaged
        header may hide its own. They are found without the metadata of column chunks: reading
        damaged ones from Python ends the process (a C++ exception that pyarrow does not declare).

        Raises `OSError`.
        """
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            return first_pages_have_checksums(descriptor, os.fstat(descriptor).st_size)
        except PageError:
            return True
        finally:
            os.close(descriptor)

    def read(self, groups: range, columns: Sequence[str]) -> pa.Table:
        """Read columns of adjacent row groups, in this order, as the types that pyarrow gives.

        Raises `UnlikeError` where Polars finds others, or nothing that it can read. It is not asked
        again for such a column of this file.
        """
        import polars as pl

        first = self._first_rows[groups.start]
        stop = self._first_rows[groups.stop]
        try:
            frame = self._frame(tuple(columns)).slice(first, stop - first)
            table = pa.table(frame.collect(engine="in-memory"))
        except (pl.exceptions.PanicException, Exception) as error:
            self.rates = {}
            raise UnlikeError from error
        if table.num_rows != stop - first:
            self.rates = {}
            raise UnlikeError
        arrays = []
        for name, column in zip(columns, table.columns, strict=True):
            type_ = self._types[name]
            if column.type == _VIEWED.get(type_):
                column = column.cast(type_)  # more than 2 GiB of text raises
            if column.type != type_:
                self.rates = {other: rate for other, rate in self.rates.items() if other != name}
                raise UnlikeError
            arrays.append(column)
        return pa.table(arrays, list(columns))

    def _frame(self, columns: tuple[str, ...]) -> pl.LazyFrame:
        """Return the query for columns, which keeps the parsed footer."""
        if columns not in self._frames:
            import polars as pl

            frame = pl.scan_parquet(
                self._path,
                parallel="none",  # blocks are read in threads
                glob=False,
                hive_partitioning=False,
                use_statistics=False,
            )
            frame.collect_schema()
            if list(columns) != self._names:
                frame = frame.select(columns)
            self._frames[columns] = frame
        return self._frames[columns]


def _rates(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, float]:
    """Return the rates of the flat columns that Polars reads; none if names are repeated."""
    readable = {field.name: saved_ns(field) for field in schema if polars_reads(field.type)}
    if len(set(schema.names)) < len(schema):
        return {}
    for leaf in range(metadata.num_columns):
        column = metadata.schema.column(leaf)
        if column.physical_type == "INT96":  # times before 1677 and after 2262 wrap around
            readable.pop(column.path, None)
    return readable
