"""Declared numbers of CSV and TSV, parsed by Arrow from the bytes straight into numbers: no text is made in between.

Arrow's parser and its cast from text read numbers by the same rule, but for space around one, which the parser drops.
So this is taken where nothing is odd: strict quotes, line ends of one kind, no field with space at an edge, all of it
UTF-8. What it then delivers is what parsing to text and casting deliver; where anything is odd, or a value does not
fit, it delivers nothing, and that path (`delimited`, `typed`) has the rows, or the error that names them.
Memory is O(block).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from headrace.arrays import I64, U8
from headrace.formats import records
from headrace.formats.delimited import FEW_COLUMNS

_AT_ONCE = 1 << 20  # bytes parsed together: more do not stay in the processor's cache
_FIELD = 256  # bytes a field of a very wide row may have on average
_SPACE, _TAB = 32, 9
_BOM = b"\xef\xbb\xbf"


def parse_numbers(
    data: bytes, *, separator: str, names: Sequence[str], wanted: pa.Schema, null_values: Sequence[str]
) -> pa.Table | None:
    """The wanted columns of whole records: integers and floats as they are declared, the others as large strings.

    names: of all fields of a record, in order. null_values: texts that mean a missing number, beside the empty one.
    None where this path is not to be taken: it is no faster, or something is odd or wrong.
    """
    if not data or len(names) < 2 or not any(map(_is_number, wanted.types)):
        return None
    if len(wanted) <= FEW_COLUMNS < len(names) and b'"' not in data:  # these are cut from the bytes
        return None
    quotes = records.quote_positions(records.as_bytes(data)) if b'"' in data else np.empty(0, np.int64)
    if not _is_plain(data, quotes, ord(separator)) or any('"' in each for each in null_values):
        return None
    numbers = [field.name for field in wanted if _is_number(field.type)]
    texts = [field.name for field in wanted if not _is_number(field.type)]
    try:
        if not texts:
            return _parse(data, separator, names, wanted, null_values=("", *null_values), quoted="null")
        if not null_values and b'""' not in data:
            return _parse(data, separator, names, wanted, null_values=("",), quoted="text")
        parts = [
            _parse(data, separator, names, _of(wanted, numbers), null_values=("", *null_values), quoted="null"),
            _parse(data, separator, names, _of(wanted, texts), null_values=("",), quoted="text"),
        ]
    except pa.ArrowInvalid:
        return None
    found = {name: part[name] for part in parts for name in part.column_names}
    return pa.table({name: found[name] for name in wanted.names})


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _of(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def _parse(
    data: bytes, separator: str, names: Sequence[str], wanted: pa.Schema, *, null_values: Sequence[str], quoted: str
) -> pa.Table:
    """Columns parsed at once. quoted: whether a value in quotes may be "null". Raises `pa.ArrowInvalid`."""
    place = {name: str(at) for at, name in enumerate(names)}
    kinds = {place[field.name]: field.type if _is_number(field.type) else pa.large_string() for field in wanted}
    in_quotes = b'"' in data
    table = pc.read_csv(
        pa.BufferReader(data),
        read_options=pc.ReadOptions(
            use_threads=False,
            column_names=list(place.values()),
            block_size=max(_AT_ONCE, _FIELD * len(names)),
        ),
        parse_options=pc.ParseOptions(
            delimiter=separator,
            quote_char='"' if in_quotes else False,
            newlines_in_values=in_quotes,
            ignore_empty_lines=True,
        ),
        convert_options=pc.ConvertOptions(
            column_types=kinds,
            include_columns=list(kinds),
            null_values=list(null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=quoted == "null",
        ),
    )
    return table.combine_chunks().rename_columns(wanted.names)


def _is_plain(data: bytes, quotes: I64, separator: int) -> bool:
    """Whether all readers agree on the fields, and no field but quoted text within has space at an edge."""
    if data.startswith(_BOM) or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n")):
        return False
    if not (data.isascii() or _is_utf8(data)):
        return False
    array = records.as_bytes(data)
    if len(quotes) and not _are_strict(array, quotes, separator):
        return False
    blanks = [byte for byte in (_SPACE, _TAB) if byte != separator and bytes([byte]) in data]
    return not any(_at_an_edge(array, quotes, byte, separator) for byte in blanks)


def _is_utf8(data: bytes) -> bool:
    try:
        records.slices(data, np.array([len(data)])).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _are_strict(array: U8, quotes: I64, separator: int) -> bool:
    """Whether each quoted field is quoted from end to end, its quotes doubled, and begins and ends with no space."""
    if len(quotes) & 1:
        return False
    opening, closing = quotes[0::2], quotes[1::2]
    apart = opening[1:] != closing[:-1] + 1  # else a doubled quote inside a field
    first, last = opening[np.append(True, apart)], closing[np.append(apart, True)]
    edge = np.zeros(256, np.bool_)
    edge[[separator, records.NEWLINE, records.RETURN]] = True
    begins = (first == 0) | edge[array[np.maximum(first - 1, 0)]]
    ends = (last == len(array) - 1) | edge[array[np.minimum(last + 1, len(array) - 1)]]
    within = np.concatenate([array[first + 1], array[last - 1]])
    return bool(begins.all() and ends.all()) and not ((within == _SPACE) | (within == _TAB)).any()


def _at_an_edge(array: U8, quotes: I64, byte: int, separator: int) -> bool:
    """Whether a byte outside quotes is the first or last of its field."""
    at = records.outside_quotes(array, quotes, byte)
    edge = np.zeros(256, np.bool_)
    edge[[separator, records.NEWLINE, records.RETURN]] = True
    begins = (at == 0) | edge[array[np.maximum(at - 1, 0)]]
    ends = (at == len(array) - 1) | edge[array[np.minimum(at + 1, len(array) - 1)]]
    return bool((begins | ends).any())
