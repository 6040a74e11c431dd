"""Look at many small files of text at once: their rows, joined, are a file.

Opening a file of a few rows and parsing it take a hundred times as long as its share of a larger
text. So small files that are alike – plain CSV with the same header byte for byte, or flat JSON
lines – are joined record by record, checked and counted by one pass, and told apart again by the
ends of their bytes. What is found of each is what a look at it alone finds. A file about which
there is any doubt is left out, and looked at alone, so that errors name it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.errors import HeadraceError
from headrace.formats import delimited, records
from headrace.formats.dialect import UTF8, TextDialect
from headrace.formats.evidence import Evidence
from headrace.formats.json_parse import EXACT, Lines, Location, infer, parse
from headrace.formats.registry import (
    SEPARATOR_NAMES,
    FileType,
    file_type_of_name,
    looks_like,
    raw_errors,
)
from headrace.formats.shard import Shard, Span
from headrace.storage.places import place_of

SMALL_BYTES = 64 << 10  # of a file that takes longer to open than to parse
_MOST_ROWS = 64  # of a JSON file whose types are found in Python
_BLANK_LINES = (b"\n\n", b"\n\r\n")
_KINDS: dict[pa.DataType, set[type]] = {
    pa.bool_(): {bool},
    pa.int64(): {int},
    pa.float64(): {int, float},
    pa.string(): {str},
}


class Looked(NamedTuple):
    """What is found of a file: its columns and its blocks."""

    shard: Shard
    spans: list[Span]


class _Content(NamedTuple):
    """A small file that was read. number: its index among those asked for."""

    number: int
    path: Path
    name: str
    mtime_ns: int
    data: bytes


def look_at_small(
    files: Sequence[tuple[Path, str]],
    sizes: Sequence[int],
    dialect: TextDialect,
    evidence: Evidence | None = None,
) -> dict[int, Looked]:
    """Look at the small files of text among these that are alike; return them by index.

    sizes: of the files, as listed. evidence: of the types of columns of delimited text; it sees all
    values of the files that are returned.
    """
    of_type: dict[FileType, list[int]] = {}
    for number, size in enumerate(sizes):
        file_type = file_type_of_name(files[number][1].rpartition("/")[2])
        if file_type is None or file_type.compression != "none" or size > SMALL_BYTES:
            continue
        if file_type.format.separator is not None or file_type.format.name == "jsonl":
            of_type.setdefault(file_type, []).append(number)
    looked: dict[int, Looked] = {}
    for file_type, numbers in of_type.items():
        delimits = file_type.format.separator is not None
        if len(numbers) < 2 or (delimits and not joins(dialect)):
            continue
        with suppress(HeadraceError, *raw_errors()):
            contents = list(_read([(number, *files[number]) for number in numbers], file_type))
            if delimits:
                looked |= _look_at_delimited(contents, file_type, dialect, evidence)
            else:
                looked |= _look_at_lines(contents, file_type)
    return looked


def joins(dialect: TextDialect) -> bool:
    """Return whether records of several files in this dialect may be read as those of one."""
    return dialect.plain_records and dialect.encoding == UTF8 and not dialect.skip_rows


def ended(body: bytes, newline: bytes = b"\n") -> bytes | None:
    """Return records with the line end that the last one may lack; None if they would not be the
    same records behind and before others.
    """
    if body.count(b'"') & 1 or body.endswith(b"\r"):
        return None
    return body if not body or body.endswith(b"\n") else body + newline


def _read(files: Sequence[tuple[int, Path, str]], file_type: FileType) -> Iterator[_Content]:
    """Read the files that are what their names say, and do not change meanwhile."""
    for number, path, name in files:
        before = path.stat()
        data = place_of(path).read()
        stat = path.stat()
        if len(data) != before.st_size or stat.st_mtime_ns != before.st_mtime_ns:
            continue
        if len(data) == stat.st_size and looks_like(data[:4096], file_type):
            yield _Content(number, path, name, stat.st_mtime_ns, data)


def _look_at_delimited(
    contents: Sequence[_Content],
    file_type: FileType,
    dialect: TextDialect,
    evidence: Evidence | None,
) -> dict[int, Looked]:
    if not contents:
        return {}
    first = delimited.survey(contents[0].path, contents[0].name, file_type, dialect=dialect)
    assert first.dialect is not None
    header = contents[0].data[: first.dialect.header_bytes]
    separators = sum(separator.encode() in header for separator in SEPARATOR_NAMES)
    # else the rows of a file decide how it is read
    if separators > 1 or b'"' in header or not header.endswith(b"\n"):
        return {}
    alike = []
    bodies = []
    for content in contents:
        body = ended(content.data[len(header) :])
        if body is None or not content.data.startswith(header) or _has_blank_line(body):
            continue
        alike.append(content)
        bodies.append(body)
    marked = records.mark(b"".join(bodies), dialect)
    delimited.check_returns(first, marked, None)
    chunk = delimited.chunk_of(first, marked, 0, None)
    if evidence is not None:
        evidence.add(chunk.table(evidence.undecided(first.schema.names)))
    looked = {}
    for content, rows in zip(alike, _rows_of(bodies, chunk.ends), strict=True):
        shard = replace(
            first,
            path=content.path,
            name=content.name,
            size=len(content.data),
            mtime_ns=content.mtime_ns,
        )
        spans = []
        if rows:
            spans.append(Span(0, rows, len(header), len(content.data) - len(header)))
        looked[content.number] = Looked(shard, spans)
    return looked


def _has_blank_line(body: bytes) -> bool:
    return body.startswith((b"\n", b"\r\n")) or any(blank in body for blank in _BLANK_LINES)


def _rows_of(bodies: Sequence[bytes], ends: I64) -> list[int]:
    """Count the records of each file. ends: of all records, joined."""
    boundaries = np.cumsum([len(body) for body in bodies])
    rows: list[int] = np.diff(np.searchsorted(ends, boundaries, side="right"), prepend=0).tolist()
    return rows


def _look_at_lines(contents: Sequence[_Content], file_type: FileType) -> dict[int, Looked]:
    alike = []
    bodies = []
    for content in contents:
        if content.data.startswith(b"{") and b"__DOT__" not in content.data:
            alike.append(content)
            bodies.append(content.data.removesuffix(b"\n") + b"\n")
    if not alike:
        return {}
    lines = Lines.of(b"".join(bodies), Location(alike[0].path))
    schema = infer(lines)
    parse(lines, schema)
    is_flat = all(type_ in _KINDS or pa.types.is_null(type_) for type_ in schema.types)
    if lines.data is not lines.raw or not is_flat:
        return {}
    types = dict(zip(schema.names, schema.types, strict=True))
    shapes: dict[tuple[object, ...], pa.Schema] = {}
    looked = {}
    for content, body in zip(alike, bodies, strict=True):
        seen = _seen_in(body, types)
        if seen is None:
            continue
        file_types, nulls = seen
        # one object for all files with the same columns
        schema_as_read = shapes.setdefault((*file_types.items(),), pa.schema([*file_types.items()]))
        shard = Shard(
            path=content.path,
            name=content.name,
            size=len(content.data),
            mtime_ns=content.mtime_ns,
            file_type=file_type,
            schema=schema_as_read,
            null_columns=nulls,
        )
        span = Span(0, body.count(b"\n"), 0, len(content.data))
        looked[content.number] = Looked(shard, [span])
    return looked


def _seen_in(
    body: bytes, types: dict[str, pa.DataType]
) -> tuple[dict[str, pa.DataType], frozenset[str]] | None:
    """Find the types of the keys of valid lines, and which of them may be null; None if in doubt.

    types: of the keys in many files, these among them.
    """
    rows = body.splitlines()
    if len(rows) > _MOST_ROWS or len(rows) != body.count(b"\n"):
        return None
    python_types: dict[str, list[type]] = {}
    for row in rows:
        pairs = json.loads(row, object_pairs_hook=list)
        if len(dict(pairs)) < len(pairs):
            return None
        for key, value in pairs:
            python_types.setdefault(key, []).append(type(value))
            if type(value) is int and abs(value) > EXACT:
                return None
    file_types = {key: _type_of(set(seen), types[key]) for key, seen in python_types.items()}
    if not file_types or None in file_types.values():
        return None
    nulls = [key for key, seen in python_types.items() if len(seen) < len(rows) or NoneType in seen]
    return {key: type_ for key, type_ in file_types.items() if type_ is not None}, frozenset(nulls)


def _type_of(python_types: set[type], known: pa.DataType) -> pa.DataType | None:
    """Return the type of a key in one file; None if in doubt. known: its type in many."""
    python_types = python_types - {NoneType}
    if not python_types:
        return pa.null()
    if python_types == {int} and known in (pa.int64(), pa.float64()):
        return pa.int64()
    return known if python_types <= _KINDS.get(known, set()) else None
