"""Read lines of JSON, one object each, as columns.

Arrow reads them in two steps. `infer` finds types; the values that Arrow infers along with them are
not used if there are lists, because a null before the first value of a list shifts those behind it.
`parse` reads values under known types, which is exact. Arrow accepts more than JSON, and loses
digits, so both steps check the lines first, and the numbers that are read:

| Arrow | here |
|---|---|
| takes an object over several lines, and several on one | one object a line |
| crashes on `null` for an object, and on 100,000 nested lists | refused, as are over 60 levels |
| does not check UTF-8 | refused |
| reads NaN and Infinity | refused |
| reads whole numbers beyond 64 bits, or beside fractions, as float64 | refused beyond 2**53 |
| makes times of some texts | text |
| cannot read lists of nulls | read as text, of which there is none |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.arrays import I64
from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.json_faults import LEVELS, Kinds, first_fault
from headrace.formats.json_text import depths, string_quotes
from headrace.formats.widen import cast_chunks

EXACT = 2**53  # up to this, whole numbers are exact as float64
KeyPath = tuple[str, ...]
_CHUNK_BYTES = 16 << 20  # parsed at once: a column of text within holds less than 2 GiB
_JOINED_BYTES = 1 << 30  # a text array of Arrow holds 2 GiB
_MANY = 200  # brackets of a line; with fewer, no line is too deep for Arrow
_NO_QUOTES = np.empty(0, np.int64)
_WHITE = b" \t\r"
_OPEN = ord("{")
_CLOSE = ord("}")
_BRACKET = ord("[")
_LONG = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{16,}(?![0-9.eE])")
_STANDS_FOR_NULL = pa.string()


@dataclass(frozen=True)
class Location:
    """Where lines come from, for errors.

    first: the number of the first of them, from 1. unit: "line", "row" of an array, or "line" of a
    block that begins at the byte `offset`. after_bom: whether a byte-order mark
    stands before them.
    """

    path: Path
    first: int = 1
    unit: str = "line"
    offset: int | None = None
    after_bom: bool = False

    def row(self, line: int) -> int | str:
        """Return the `row` of an error in the line with this index."""
        number = self.first + line
        if self.unit == "row":
            return number
        if self.offset is None:
            return f"{self.unit} {number:,}"
        return f"{self.unit} {number:,} from byte {self.offset:,}"


@dataclass(frozen=True)
class Lines:
    """Lines that each begin and end like an object.

    raw: the same with blank lines, if there are some. location: of the first of `raw`.
    """

    data: bytes
    raw: bytes
    location: Location
    count: int

    @classmethod
    def of(cls, raw: bytes, location: Location) -> Lines:
        """Check lines that may be blank.

        Raises `InputError` unless they are UTF-8 and each begins and ends like an object.
        """
        if not raw:
            return cls(raw, raw, location, 0)
        if not records.is_utf8(raw):
            _explain(raw, location)
        ends = records.record_ends(records.as_bytes(raw), _NO_QUOTES)
        if _are_objects(raw, ends):
            return cls(raw, raw, location, len(ends))
        visible = [line for line in raw.split(b"\n") if line.strip(_WHITE)]
        for line in visible:
            text = line.strip(_WHITE)
            if text[:1] != b"{" or text[-1:] != b"}":
                _explain(raw, location)
        if len(visible) == len(ends):
            return cls(raw, raw, location, len(ends))
        return cls(b"\n".join([*visible, b""]), raw, location, len(visible))

    def refuse(self, schema: pa.Schema | None = None, error: Exception | None = None) -> NoReturn:
        """Raise `InputError` for the first line at fault. Arguments are those of `_explain`."""
        _explain(self.raw, self.location, schema, error)

    def chunks(self) -> Iterator[Lines]:
        """Cut the lines into chunks that Arrow reads at once."""
        if len(self.data) <= 2 * _CHUNK_BYTES:
            yield self
            return
        has_blank = self.raw is not self.data
        start = 0
        first = self.location.first
        while start < len(self.data):
            stop = self.data.find(b"\n", start + _CHUNK_BYTES) + 1 or len(self.data)
            chunk = self.data[start:stop]
            count = chunk.count(b"\n") + (not chunk.endswith(b"\n"))
            if has_blank:  # lines are counted in `raw`
                yield Lines(chunk, self.raw, self.location, count)
            else:
                yield Lines(chunk, chunk, replace(self.location, first=first), count)
            first += count
            start = stop


def _are_objects(data: bytes, ends: I64) -> bool:
    """Check for lines that each begin with { and end with }, without white space around."""
    array = records.as_bytes(data)
    starts = np.append(0, ends[:-1])
    last = ends - 1
    last = last - (array[last] == records.NEWLINE)
    last = last - (array[last] == records.RETURN)
    return bool((array[starts] == _OPEN).all() and (array[last] == _CLOSE).all())


class Inferred(NamedTuple):
    """The keys of lines, in order of appearance, with their types; and the values as a table, in
    which texts may be times.
    """

    schema: pa.Schema
    table: pa.Table


def infer(lines: Lines) -> pa.Schema:
    """Find the keys of lines, in order of appearance, and their types.

    Types are null, bool, int64, float64, text, lists and structs; null, at any depth, where all
    values are. Raises `InputError` if one key has two types.
    """
    merged: pa.Schema = pa.schema([])
    for chunk in lines.chunks():
        if chunk.data:
            merged = _merged(merged, _inferred(chunk).schema, chunk)
    return merged


def infer_values(lines: Lines) -> Inferred:
    """Find the keys and types of lines as `infer` does, and read their values.

    Raises `InputError` as `parse` does, too.
    """
    chunks = list(islice(lines.chunks(), 2))
    if len(chunks) == 1 and lines.data:
        inferred = _inferred(lines)
        # Arrow shifts what stands behind a null before the first value of a list.
        if not any(map(_holds_list, set(inferred.schema.types))):
            _check(inferred.table, lines, inferred.schema)
            return inferred
        schema = inferred.schema
    else:
        schema = infer(lines)
    return Inferred(schema, parse(lines, schema))


def _inferred(chunk: Lines) -> Inferred:
    if _deeper_than(chunk.data, LEVELS):
        chunk.refuse()
    try:
        table = _read(chunk.data, None)
    except pa.ArrowInvalid as error:
        chunk.refuse(error=error)
    types = table.schema.types
    if any(_levels(type_) >= LEVELS for type_ in set(types)):
        chunk.refuse()
    fields = zip(table.column_names, _once_for_each(_json_type, types), strict=True)
    return Inferred(pa.schema(list(fields)), table)


def _once_for_each(
    change: Callable[[pa.DataType], pa.DataType], types: Sequence[pa.DataType]
) -> list[pa.DataType]:
    """Change types; equal ones, of which a wide table has many, once."""
    changed = {type_: change(type_) for type_ in set(types)}
    return [changed[type_] for type_ in types]


def _merged(first: pa.Schema, second: pa.Schema, lines: Lines) -> pa.Schema:
    both = merged_schema(first, second)
    if both is None:
        lines.refuse(first)
    return both


def parse(lines: Lines, schema: pa.Schema) -> pa.Table:
    """Read lines as columns; an absent key is null, and other keys are ignored.

    schema: types as `infer` finds them. Raises `InputError` if a value is of another type, except
    for whole numbers as float64, or cannot be held.
    """
    if not len(schema):
        return pa.table({"": pa.nulls(lines.count)}).select([])
    types = _once_for_each(_with_texts, schema.types)
    readable = pa.schema(list(zip(schema.names, types, strict=True)))
    tables = []
    for chunk in lines.chunks():
        if not chunk.data:
            continue
        try:
            table = _read(chunk.data, readable)
        except pa.ArrowInvalid as error:
            chunk.refuse(schema, error)
        _check(table, chunk, schema)
        tables.append(table)
    table = pa.concat_tables(tables or [readable.empty_table()])
    if readable.equals(schema):
        return table
    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        columns.append(cast_chunks(column, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _check(table: pa.Table, lines: Lines, schema: pa.Schema) -> None:
    """Raise `InputError` unless each line is a row whose numbers are as written."""
    if table.num_rows != lines.count:
        lines.refuse(schema)
    _check_floats(table, lines)


def _explain(
    data: bytes,
    location: Location,
    schema: pa.Schema | None = None,
    error: Exception | None = None,
) -> NoReturn:
    """Raise `InputError` for the first line that is at fault.

    schema: of the keys as they are known from elsewhere. error: what Arrow says, for the message if
    nothing is found.
    """
    known: Kinds = {}
    if schema is not None:
        for field in schema:
            known.update(_kinds((field.name,), field.type))
    fault = first_fault(data, known)
    if fault is None:
        raise InputError(
            f"it cannot be read as JSON ({str(error).splitlines()[0] if error else 'no reason'})",
            path=location.path,
            row=location.row(0),
            remedy="correct the file",
        ) from error
    raise InputError(
        fault.problem,
        path=location.path,
        row=location.row(fault.line),
        column=fault.column,
        value=fault.value,
        remedy=fault.remedy,
    ) from None


def merged_schema(first: pa.Schema, second: pa.Schema) -> pa.Schema | None:
    """Return the keys of both with types that hold both; None if there is none for a key."""
    if not len(first):
        return second
    merged = merged_type(pa.struct(list(first)), pa.struct(list(second)))
    return None if merged is None else pa.schema(list(merged))


def merged_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return a type of JSON that holds the values of both; None if there is none.

    Whole numbers and fractions are float64, which the caller checks.
    """
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if {first, second} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(first) and pa.types.is_list(second):
        inner = merged_type(first.value_type, second.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        return _merged_struct(first, second)
    return None


def _merged_struct(first: pa.StructType, second: pa.StructType) -> pa.DataType | None:
    types: dict[str, pa.DataType] = {field.name: field.type for field in first}
    for field in second:
        both = merged_type(types.get(field.name, pa.null()), field.type)
        if both is None:
            return None
        types[field.name] = both
    return pa.struct(list(types.items()))


def leaves(path: KeyPath, values: pa.Array) -> Iterator[tuple[KeyPath, pa.Array]]:
    """Iterate over the arrays at any depth that are neither lists nor structs, with their keys."""
    if pa.types.is_struct(values.type):
        for field, child in zip(values.type, values.flatten(), strict=True):
            yield from leaves((*path, field.name), child)
    elif pa.types.is_list(values.type):
        yield from leaves(path, values.flatten())
    else:
        yield path, values


def leaves_of(table: pa.Table) -> Iterator[tuple[KeyPath, pa.Array]]:
    """Iterate over the leaves of every chunk of every column."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        for chunk in column.iterchunks():
            yield from leaves((name,), chunk)


def leaf_types(path: KeyPath, type_: pa.DataType) -> Iterator[tuple[KeyPath, pa.DataType]]:
    """Iterate over the types of `leaves`."""
    if pa.types.is_struct(type_):
        for field in type_:
            yield from leaf_types((*path, field.name), field.type)
    elif pa.types.is_list(type_):
        yield from leaf_types(path, type_.value_type)
    else:
        yield path, type_


def _read(data: bytes, schema: pa.Schema | None) -> pa.Table:
    """Read lines; without a schema, for its types. Raises `pa.ArrowInvalid`."""
    return pj.read_json(
        pa.BufferReader(data),
        # threads of Arrow do not survive a fork, and callers read several blocks at once
        pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pj.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )


def _deeper_than(data: bytes, levels: int) -> bool:
    """Check for a line whose brackets nest deeper; exact for lines with many brackets only."""
    array = records.as_bytes(data)
    brackets = np.flatnonzero((array == _OPEN) | (array == _BRACKET))
    ends = np.append(np.flatnonzero(array == records.NEWLINE), len(array))
    counts = np.diff(np.searchsorted(brackets, ends), prepend=0)
    for line in np.flatnonzero(counts > _MANY).tolist():
        start = int(ends[line - 1]) if line else 0
        if depths(array[start : int(ends[line])]).max(initial=0) > levels:
            return True
    return False


def _holds_list(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_holds_list(type_.field(index).type) for index in range(type_.num_fields))
    return bool(pa.types.is_list(type_))


def _levels(type_: pa.DataType) -> int:
    """Count the lists and structs inside each other."""
    levels = 0
    layer = [type_]
    while layer := [inner for inner in layer if pa.types.is_nested(inner)]:
        levels += 1
        layer = [inner.field(index).type for inner in layer for index in range(inner.num_fields)]
    return levels


def _json_type(type_: pa.DataType) -> pa.DataType:
    """Return an inferred type with text in place of times."""
    if pa.types.is_timestamp(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_json_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _json_type(field.type)) for field in type_])
    return type_


def _with_texts(type_: pa.DataType) -> pa.DataType:
    """Return a type with texts in place of nulls."""
    if pa.types.is_null(type_):
        return _STANDS_FOR_NULL
    if pa.types.is_list(type_):
        return pa.list_(_with_texts(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _with_texts(field.type)) for field in type_])
    return type_


def _check_floats(table: pa.Table, lines: Lines) -> None:
    """Raise `InputError` for NaN and Infinity, and for whole numbers that lost digits."""
    # One kernel for all: there may be thousands of keys.
    if _small(joined_leaves(table, pa.types.is_floating)):
        return
    suspects = []
    for path, values in leaves_of(table):
        if pa.types.is_floating(values.type) and not _small(values):
            suspects.append(path[0])
            if not _all(pc.is_finite(values)):
                lines.refuse(table.schema)
    without = _without_long(lines.data)
    if without is None:
        return
    table = table.select(list(dict.fromkeys(suspects)))
    again = _read(without, table.schema)
    pairs = zip(leaves_of(table), leaves_of(again), strict=True)
    if any(_lost(values, others) for (_, values), (_, others) in pairs):
        lines.refuse(table.schema)


def joined_leaves(table: pa.Table, has_type: Callable[[pa.DataType], bool]) -> pa.Array:
    """Return the leaves of some types of number, of all columns, one behind the other.

    Columns of one type are taken apart together, so that thousands of keys cost few calls.
    """
    chunks_by_type: dict[pa.DataType, list[pa.Array]] = {}
    for column, type_ in zip(table.columns, table.schema.types, strict=True):
        chunks_by_type.setdefault(type_, []).extend(column.iterchunks())
    joins = table.nbytes < _JOINED_BYTES
    parts = []
    for type_, chunks in chunks_by_type.items():
        if not any(has_type(leaf) for _, leaf in leaf_types((), type_)):
            continue
        for chunk in [pa.concat_arrays(chunks)] if joins and len(chunks) > 1 else chunks:
            parts += [values for _, values in leaves((), chunk) if has_type(values.type)]
    return pa.concat_arrays(parts) if parts else pa.nulls(0, pa.float64())


def _small(values: pa.Array) -> bool:
    return _all(pc.less(pc.abs(values), EXACT))


def _all(mask: pa.Array) -> bool:
    return bool(pc.all(mask, min_count=0).as_py())


def _lost(values: pa.Array, others: pa.Array) -> bool:
    """Check whether a number of at least 2**53 is null in the others."""
    if not pa.types.is_floating(values.type):
        return False
    large = pc.fill_null(pc.greater_equal(pc.abs(values), EXACT), False)
    return bool(pc.any(pc.and_(large, pc.is_null(others))).as_py())


def _without_long(data: bytes) -> bytes | None:
    """Return the lines with null in place of whole numbers of many digits; None if there are
    none.
    """
    spans = [match.span() for match in _LONG.finditer(data)]
    if not spans:
        return None
    quotes = string_quotes(records.as_bytes(data))
    starts: I64 = np.array([start for start, _ in spans])
    outside = np.searchsorted(quotes, starts) & 1 == 0
    written = bytearray(data)
    for index in np.flatnonzero(outside).tolist():
        start, stop = spans[index]
        written[start:stop] = b"null".ljust(stop - start)
    return bytes(written)


def _kinds(path: KeyPath, type_: pa.DataType) -> Mapping[KeyPath, str]:
    """Return the kinds of values, for `first_fault`, of a type and those inside it."""
    kinds: dict[KeyPath, str] = {}
    if pa.types.is_struct(type_):
        kinds[path] = "object"
        for field in type_:
            kinds.update(_kinds((*path, field.name), field.type))
    elif pa.types.is_list(type_):
        kinds[path] = "list"
        kinds.update(_kinds((*path, ""), type_.value_type))
    else:
        words = {pa.bool_(): "bool", pa.int64(): "whole", pa.float64(): "fraction"}
        words |= {pa.string(): "text", pa.large_string(): "text"}
        if type_ in words:
            kinds[path] = words[type_]
    return kinds
