"""Hand the rows of a split to readers of tables of other libraries.

Rows come exactly as headrace's own readers deliver them: in the order of the shards, block by
block, checked as in a stream, with the types of the index and after the filter of the dataset.
Memory is one block, unless a library holds all rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa

from headrace.dataset.indexed import IndexedDataset
from headrace.errors import MissingExtra
from headrace.formats.column_paths import ColumnSelection, with_paths
from headrace.formats.conversion import convert, refused_columns
from headrace.formats.plain_types import check_read, readable
from headrace.formats.types import Target, in_schema, shorten_list
from headrace.printable import printable

if TYPE_CHECKING:
    import polars as pl


class SplitRows:
    """The rows of a split.

    Any library that accepts Arrow streams accepts this object, any number of times.
    """

    def __init__(self, dataset: IndexedDataset, split: str) -> None:
        self.split = split
        self._dataset = dataset

    def __len__(self) -> int:
        return self._dataset.split_index(self.split).total_rows

    def __repr__(self) -> str:
        return f"SplitRows({str(self._dataset.root)!r}, {self.split!r}: {len(self):,} rows)"

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._dataset.split_index(self.split).schema

    def reader(
        self,
        columns: Sequence[str] | None = None,
        *,
        drop_columns: Sequence[str] | None = None,
    ) -> pa.RecordBatchReader:
        """Read the rows in order.

        columns: which, in this order; None: all. drop_columns: those to leave out instead. Raises
        `SettingsError`.
        """
        schema = self.schema
        selection = ColumnSelection(columns, drop_columns)
        selection.check([schema], self._dataset.root)
        names = selection.names_in(schema)
        selected_schema = with_paths(schema, names)
        read = self._dataset.block_reader(self.split)
        target = Target.of(selected_schema)
        blocks = range(len(self._dataset.split_index(self.split).rows))
        batches = (
            batch
            for block in blocks
            for batch in in_schema(read(block, names), target).to_batches()
        )
        return pa.RecordBatchReader.from_batches(selected_schema, batches)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Deliver the rows to another library; see the Arrow PyCapsule interface."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        drop_columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Read the rows into memory; arguments are those of `reader`."""
        return self.reader(columns, drop_columns=drop_columns).read_all()

    def to_polars(self) -> pl.LazyFrame:
        """Scan the rows lazily: only the columns and blocks that a query needs are read, when it is
        collected.

        Warns of columns of types that headrace or polars cannot read, and leaves them out. Raises
        `InputError` if no column is left.
        """
        import polars as pl
        from polars.io.plugins import register_io_source

        def read(
            columns: list[str] | None,
            predicate: pl.Expr | None,
            rows: int | None,
            _batch_rows: int | None,
        ) -> Iterator[pl.DataFrame]:
            if rows is None:
                left = len(self)
            else:
                left = rows
            for batch in self.reader(columns or schema.names) if left else ():
                rows_read = pa.Table.from_batches([batch])
                frame = convert(rows_read, pl.DataFrame, **export).head(left)
                left -= frame.height
                yield frame if predicate is None else frame.filter(predicate)
                if left <= 0:
                    return

        schema = readable(self.schema)
        refused = refused_columns(schema, _scanned)
        schema = pa.schema([field for field in schema if field.name not in refused])
        if not len(schema):
            check_read(self.schema, self._dataset.root)
        export = _exported("polars", self._dataset.root)
        empty = convert(schema.empty_table(), pl.DataFrame, **export)
        left_out = [name for name in self.schema.names if name not in schema.names]
        if left_out:
            text = (
                f"{self._dataset.root}: left out, as their types cannot be read:"
                f" {shorten_list(left_out)}"
            )
            warnings.warn(printable(text), UserWarning, stacklevel=2)
        return register_io_source(read, schema=empty.schema, is_pure=True)

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        *,
        drop_columns: Sequence[str] | None = None,
    ) -> Any:
        """Read the rows into a pandas frame; arguments are those of `reader`.

        Raises `MissingExtra` without pandas, and `InputError` for a column that pandas cannot hold.
        """
        _library("pandas")  # Arrow needs it for `to_pandas`
        rows = self.to_arrow(columns, drop_columns=drop_columns)
        return convert(rows, pa.Table.to_pandas, **_exported("pandas", self._dataset.root))

    def to_duckdb(self, connection: Any = None) -> Any:
        """Make a DuckDB relation of the rows, in memory. connection: None, the default one.

        Raises `MissingExtra` without DuckDB.
        """
        return (connection or _library("duckdb")).from_arrow(self.to_arrow())

    def to_datasets(self) -> Any:
        """Make a Hugging Face `Dataset` of the rows, in memory. Raises `MissingExtra` without
        datasets.
        """
        return _library("datasets").Dataset(self.to_arrow())


def _scanned(table: pa.Table) -> pl.DataFrame:
    """Convert a table for polars as a scan does."""
    import polars as pl
    from polars.io.plugins import register_io_source

    frame = pl.DataFrame(table)

    def read(*_: object) -> Iterator[pl.DataFrame]:
        yield frame

    return register_io_source(read, schema=frame.schema).collect()


class _Export(TypedDict):
    purpose: str
    remedy: str
    path: Path


def _exported(library: str, path: Path) -> _Export:
    return _Export(purpose=library, remedy="read the other columns, or use to_arrow()", path=path)


def _library(name: str) -> Any:
    """Import a library that is an extra of the same name."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(name, name) from None
