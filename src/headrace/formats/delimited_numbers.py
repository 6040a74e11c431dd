"""Declared numbers of CSV and TSV, parsed by Arrow from the bytes straight into numbers: no text is made in between.

Arrow's parser and its cast from text read numbers by the same rule, but for space around one, which the parser drops.
So this is taken where nothing is odd: strict quotes, line ends of one kind, no field with space at an edge, all of it
UTF-8. What it then delivers is what parsing to text and casting deliver; where anything is odd, or a value does not
fit, it delivers nothing, and that path (`delimited`, `typed`) has the rows, or the error that names them.
Memory is O(block).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    numbers = [field.name for field in wanted if _is_number(field.type)]
    texts = [field.name for field in wanted if not _is_number(field.type)]
    if not data or len(names) < 2 or not numbers or any('"' in each for each in null_values):
        return None
    quoted = b'"' in data
    if len(wanted) <= FEW_COLUMNS < len(names) and not quoted:  # these are cut from the bytes
        return None
    if not _is_plain(data, ord(separator), quoted=quoted):
        return None
    if not data.endswith(b"\n"):  # else Arrow takes an empty field at the end for one in quotes if that before it was
        data += b"\n"
    block = _Block(data, separator, names, wanted, quoted)
    absent = ("", *null_values)
    try:
        if not texts:
            return block.read(numbers, absent, in_quotes="absent")
        if not null_values and not (quoted and b'""' in data):
            return block.read(wanted.names, absent, in_quotes="text")
        found = block.read(numbers, absent, in_quotes="absent"), block.read(texts, ("",), in_quotes="text")
    except (pa.ArrowInvalid, pa.ArrowCancelled):  # cancelled: a signal came; Python's handler has had it, and goes on
        return None
    columns = {name: part for part in found for name, part in zip(part.column_names, part.columns, strict=True)}
    return pa.table({name: columns[name] for name in wanted.names})


@dataclass(frozen=True)
class _Block:
    data: bytes
    separator: str
    names: Sequence[str]
    wanted: pa.Schema
    quoted: bool

    def read(self, columns: Sequence[str], absent: Sequence[str], in_quotes: Literal["absent", "text"]) -> pa.Table:
        """Some columns, parsed at once. in_quotes: what a value of `absent` in quotes is. Raises `pa.ArrowInvalid`."""
        place = {name: str(at) for at, name in enumerate(self.names)}
        kinds = {name: self.wanted.field(name).type for name in columns}
        table = pc.read_csv(
            pa.BufferReader(self.data),
            read_options=pc.ReadOptions(
                use_threads=False,
                column_names=list(place.values()),
                block_size=max(_AT_ONCE, _FIELD * len(self.names)),
            ),
            parse_options=pc.ParseOptions(
                delimiter=self.separator,
                quote_char='"' if self.quoted else False,
                newlines_in_values=self.quoted,
                ignore_empty_lines=True,
            ),
            convert_options=pc.ConvertOptions(
                column_types={
                    place[name]: kind if _is_number(kind) else pa.large_string() for name, kind in kinds.items()
                },
                include_columns=[place[name] for name in columns],
                null_values=list(absent),
                strings_can_be_null=True,
                quoted_strings_can_be_null=in_quotes == "absent",
            ),
        )
        return table.combine_chunks().rename_columns(list(columns))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_plain(data: bytes, separator: int, *, quoted: bool) -> bool:
    """Whether all readers agree on the fields, and none has space at an edge but quoted text inside."""
    if data.startswith(_BOM) or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n")):
        return False
    if not (data.isascii() or records.is_utf8(data)):
        return False
    array = records.as_bytes(data)
    quotes = records.quote_positions(array) if quoted else np.empty(0, np.int64)
    if quoted and not _are_strict(array, quotes, separator):
        return False
    blanks = [byte for byte in (_SPACE, _TAB) if byte != separator and bytes([byte]) in data]
    return not any(_at_an_edge(array, quotes, byte, separator) for byte in blanks)


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
