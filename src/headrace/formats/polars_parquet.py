"""Read row groups of a local Parquet file with Polars, as the types that pyarrow gives.

Polars reads by position, in its own threads, without the interpreter lock. It opens a file by its
name each time, so whoever calls compares the identity of the file before and after. It maps the
footer while it parses it, once for each version of a file: a file that is cut in that instant ends
the process, as in `headrace.gate.mapped`.

Polars does not check page checksums: `has_checksums` finds the row groups that have them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.decoders import saved_ns
from headrace.gate.pages import PageError, has_checksum

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

    rates: by the file's names of these columns, the nanoseconds that a value saves. Empty if the
    footer is one that Polars should not see.
    """

    def __init__(self, path: Path, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
        self._path = path
        self._metadata = metadata
        self._types = dict(zip(schema.names, schema.types, strict=True))
        self._names = schema.names
        self._leaves: dict[str, int] = {}
        self.rates = self._rated()
        self._first_rows = [0]
        for number in range(metadata.num_row_groups):
            rows = metadata.row_group(number).num_rows
            self._first_rows.append(self._first_rows[-1] + rows)
            if not 0 <= rows * _WIDEST * len(self.rates) <= _MOST_BYTES:
                self.rates = {}
        self._frames: dict[tuple[str, ...], pl.LazyFrame] = {}
        self._checked: dict[int, bool] = {}

    def _rated(self) -> dict[str, float]:
        """Return the rates of flat columns; none if names are repeated."""
        rates = {}
        for leaf in range(self._metadata.num_columns):
            column = self._metadata.schema.column(leaf)
            path = column.path
            if path in self._leaves:
                return {}
            self._leaves[path] = leaf
            if path in self._types and column.physical_type != "INT96":  # would wrap around
                rates[path] = saved_ns(self._types[path])
        if len(self._types) < len(self._names):
            return {}
        return {name: rate for name, rate in rates.items() if rate}

    def has_checksums(self, group: int, columns: Sequence[str]) -> bool:
        """Check whether pages of a row group have checksums, or a header that cannot be read.

        Looks at the first page of the first and of the last of the columns: one damaged header does
        not hide both. Raises `OSError`.
        """
        if group not in self._checked:
            row_group = self._metadata.row_group(group)
            descriptor = os.open(self._path, os.O_RDONLY)
            try:
                self._checked[group] = any(
                    _may_have_checksum(descriptor, row_group.column(self._leaves[name]))
                    for name in (columns[0], columns[-1])
                )
            finally:
                os.close(descriptor)
        return self._checked[group]

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Read columns of a row group, in this order, as the types that pyarrow gives.

        Raises `UnlikeError` where Polars finds others, and what Polars raises.
        """
        import polars as pl

        first, stop = self._first_rows[group : group + 2]
        frame = self._frame(tuple(columns)).slice(first, stop - first)
        try:
            table = pa.table(frame.collect(engine="in-memory"))
        except (pl.exceptions.PanicException, Exception) as error:
            raise UnlikeError from error
        if table.num_rows != stop - first:
            raise UnlikeError
        arrays = []
        for name, column in zip(columns, table.columns, strict=True):
            type_ = self._types[name]
            if column.type == _VIEWED.get(type_):
                column = column.cast(type_)  # more than 2 GiB of text raises
            if column.type != type_:
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


def _may_have_checksum(descriptor: int, chunk: pq.ColumnChunkMetaData) -> bool:
    """Check whether the first page of a column chunk says a checksum, or nothing that is known."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    try:
        return has_checksum(descriptor, start, start + chunk.total_compressed_size)
    except PageError:
        return True
