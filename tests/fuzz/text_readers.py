"""The same file read by headrace and by others, in one form: what each believes the rows to be.

A row of delimited text is a tuple of texts, the header is the first row, and a missing value is "", because csv does
not tell it from empty text. A row of JSON is a dict; null and absent are the same, booleans are no numbers, and 1 and
1.0 are equal. A reader that refuses a file raises, whatever its error.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from fuzz_run import Difference

import headrace
from headrace.formats import delimited, jsonl
from headrace.formats.plain_types import converted, settled
from headrace.formats.source import read_chunks, survey

try:  # in the extra `fuzz`; without it the peers are two
    import duckdb
except ModuleNotFoundError:
    duckdb = None  # type: ignore[assignment]

Rows = list[Any]
csv.field_size_limit(1 << 30)


def ours(path: Path, cache: Path) -> Rows:
    """What headrace reads, three times: in whole chunks, in chunks of a few bytes, and streamed as a plain shard."""
    shard = survey(path, path.name)
    rows = [row for chunk in read_chunks(shard) for row in _tuples(chunk.table())]
    module: Any = delimited if shard.dialect is not None else jsonl
    size = path.stat().st_size
    step = (
        1 + len(rows) * 7 % 50 if size < 2000 else 1 + size // 3
    )  # a long record is joined from all its chunks
    small = [
        row for chunk in module.chunks(shard, chunk_bytes=step) for row in _tuples(chunk.table())
    ]
    if rows != small:
        raise Difference(
            f"rows depend on the parser or the size of chunks: {rows!r:.300} and {small!r:.300}"
        )
    texts = shard.file_type.format.separator is not None
    opened = headrace.open(path, cache_dir=cache, types="text" if texts else None)
    streamed = (
        [
            row
            for batch in opened.stream(
                batch_size=7, batch_format="arrow", remainder="exact", read_threads=1
            )
            for row in _tuples(pa.table(batch).drop_columns("valid"))
        ]
        if rows
        else []
    )
    stored = [row for chunk in read_chunks(shard) for row in _tuples(_settled(chunk.table()))]
    if sorted(map(repr, stored)) != sorted(map(repr, streamed)):
        raise Difference(f"streamed rows are others: {stored!r:.300} and {streamed!r:.300}")
    return in_one_form(shard.schema.names, rows, "text" if shard.dialect is not None else "json")


def _settled(table: pa.Table) -> pa.Table:
    """Give nulls and structs without fields the types that they have in a stream."""
    columns = [converted(column, settled(column.type)) for column in table.columns]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _tuples(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return (
        zip(*(column.to_pylist() for column in table.columns), strict=True)
        if table.num_columns
        else iter([()] * table.num_rows)
    )


def in_one_form(names: list[str], rows: Rows, form: str) -> Rows:
    """Rows of values in the form of this module."""
    if form == "text":
        return [
            tuple(names),
            *(tuple("" if value is None else value for value in row) for row in rows),
        ]
    return [plain(dict(zip(names, row, strict=True))) for row in rows]


def plain(value: Any) -> Any:
    """A JSON value in the form of this module."""
    if isinstance(value, dict):
        return {
            key: plain(inner)
            for key, inner in value.items()
            if plain(inner) is not None and plain(inner) != {}
        }
    if isinstance(value, list):
        return [plain(each) for each in value]
    return f"bool {value}" if isinstance(value, bool) else value


# --- delimited text: (path, separator, number of columns) to rows ---


def by_csv(path: Path, separator: str, width: int) -> Rows:
    text = path.read_bytes().decode("utf-8-sig")
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    return _whole([tuple(row) or ("",) * (width == 1) for row in rows], width)


def by_pandas(path: Path, separator: str, width: int) -> Rows:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = pd.read_csv(
            path,
            sep=separator,
            header=None,
            dtype=str,
            na_filter=False,
            index_col=False,
            skip_blank_lines=width > 1,
            encoding="utf-8",
        )
    return _whole(list(frame.itertuples(index=False, name=None)), width)


def by_duckdb(path: Path, separator: str, width: int) -> Rows:
    columns = ", ".join(f"'c{place}': 'VARCHAR'" for place in range(width))
    found = (
        _duckdb()
        .execute(
            f"SELECT * FROM read_csv(?, header=false, all_varchar=true, auto_detect=false, delim=?, quote='\"', escape='\"', strict_mode=true, columns={{{columns}}})",
            [str(path), separator],
        )
        .fetchall()
    )
    return _whole([tuple("" if value is None else value for value in row) for row in found], width)


def _whole(rows: Rows, width: int) -> Rows:
    rows = [row for row in rows if row]
    if any(len(row) != width for row in rows):
        raise ValueError("a row has more or fewer fields")
    return rows


# --- JSON lines ---


def json_by_json(path: Path) -> Rows:
    lines = path.read_bytes().decode("utf-8-sig").split("\n")
    return _objects(
        json.loads(line, parse_constant=_refuse) for line in lines if line.strip(" \t\r")
    )


def json_by_pandas(path: Path) -> Rows:
    frame = pd.read_json(
        path, lines=True, dtype=False, convert_dates=False, convert_axes=False, precise_float=True
    )
    return _objects(
        {
            key: value
            for key, value in row.items()
            if not (isinstance(value, float) and value != value)
        }
        for row in frame.to_dict("records")
    )


def json_by_duckdb(path: Path) -> Rows:
    found = (
        _duckdb()
        .execute("SELECT json_merge_patch('{}', json) FROM read_ndjson_objects(?)", [str(path)])
        .fetchall()
    )
    return _objects(json.loads(text, parse_constant=_refuse) for (text,) in found)


def _objects(values: Any) -> Rows:
    rows = list(values)
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a row is no object")
    return [plain(row) for row in rows]


def _refuse(constant: str) -> None:
    raise ValueError(constant)


@functools.cache
def _duckdb() -> Any:
    return duckdb.connect(config={"threads": 1})


DELIMITED: dict[str, Callable[[Path, str, int], Rows]] = {"csv": by_csv, "pandas": by_pandas}
JSON: dict[str, Callable[[Path], Rows]] = {"json": json_by_json, "pandas": json_by_pandas}
if duckdb is not None:
    DELIMITED["DuckDB"], JSON["DuckDB"] = by_duckdb, json_by_duckdb
