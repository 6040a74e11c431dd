"""Read the page headers of a Parquet file, which bound what its pages decode to.

A footer is a claim. A page says itself how many bytes it decompresses to and how many values it
holds, and Arrow allocates by it. Headers are structs of Thrift's compact protocol; only their
numbers are kept. A header costs a few microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

_MOST_DEPTH = 8
_MOST_NESTING = 64
_MAGIC_BYTES = 4
_CHECKSUM = 4  # the number of its field
_LONGEST_HEADER = 1 << 17  # statistics may repeat values
_FIRST_READ = 256
# types of the compact protocol
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)
_SIZES = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}


class PageError(ValueError):
    """The bytes are not a page header, or a page exceeds its column chunk."""


class CutError(Exception):
    """A struct does not end within the given bytes."""


class PageHeader(NamedTuple):
    """A page. decoded_bytes: what its body decompresses to.

    values: entries of a dictionary, or values of a data page with nulls. encoding: the number in
    Parquet's list of encodings.
    """

    is_dictionary: bool
    decoded_bytes: int
    values: int
    encoding: int


# page type: the header's field that describes it, that field's fields of values and encoding
_KINDS = {0: (5, 1, 2), 2: (7, 1, 2), 3: (8, 1, 4)}


def pages(fd: int, start: int, stop: int) -> Iterator[PageHeader]:
    """Yield the pages of a column chunk, which is the bytes [start, stop) of an open file.

    Raises `PageError`.
    """
    at = start
    while at < stop:
        header, length = _header(fd, at, stop)
        body = _integer_in(header, 3)
        decoded = _integer_in(header, 2)
        at += length + body
        page_type = _integer_in(header, 1)
        if page_type not in _KINDS or body < 0 or decoded < 0 or at > stop:
            raise PageError(f"a page header has {header}")
        struct_field, values_field, encoding_field = _KINDS[page_type]
        details = header.get(struct_field)
        if not isinstance(details, dict):
            raise PageError(f"a page header has {header}")
        values = _integer_in(details, values_field)
        if values < 0:
            raise PageError(f"a page header has {values} values")
        yield PageHeader(page_type == 2, decoded, values, _integer_in(details, encoding_field))


def first_pages_have_checksums(fd: int, size: int) -> bool:
    """Check whether one of the first two pages of a file of `size` bytes has a checksum.

    Raises `PageError` if pages do not lie there.
    """
    at = _MAGIC_BYTES
    has_checksum = False
    for _ in range(2):
        if at >= size:
            break
        header, length = _header(fd, at, size)
        if _integer_in(header, 1) not in _KINDS or _integer_in(header, 3) < 0:
            raise PageError(f"a page header has {header}")
        has_checksum = has_checksum or _CHECKSUM in header
        at += length + header[3]
    return has_checksum


def _integer_in(fields: dict[int, Any], number: int) -> int:
    """Return a field of a struct; -1 if it is missing or no integer."""
    value = fields.get(number)
    return value if isinstance(value, int) else -1


def _header(fd: int, at: int, stop: int) -> tuple[dict[int, Any], int]:
    size = _FIRST_READ
    while True:
        data = os.pread(fd, min(size, stop - at), at)
        try:
            return read_struct(data, 0, _MOST_DEPTH)
        except CutError:
            if size >= min(_LONGEST_HEADER, stop - at):
                raise PageError("a page header does not end") from None
            size *= 8


def count_structs(data: bytes, most: int) -> int:
    """Count the structs in one, such as a footer; stop soon after `most`."""
    counter = [0, most]
    # Arrow says what is wrong, unless there are too many already
    with suppress(CutError, PageError):
        _skip_struct(data, 0, 64, counter)
    return counter[0]


def read_struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Read the integers, and structs of them, of a struct; return them by field, and its end."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        number, field_type, at = _field(data, at, number)
        if field_type == 0:
            return fields, at
        if field_type in _INTEGERS:
            fields[number], at = _integer(data, at)
        elif field_type == _STRUCT and depth:
            fields[number], at = read_struct(data, at, depth - 1)
        else:
            at = _skip(data, at, field_type, depth, [0, _LONGEST_HEADER])


def fields_of(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a struct with all that they hold: numbers, bytes, lists, and structs as
    mappings of theirs. Others are None.

    Raises `PageError`, and `CutError` if it does not end within the bytes.
    """
    at = number = 0
    while True:
        number, field_type, at = _field(data, at, number)
        if field_type == 0:
            return
        value, at = _value(data, at, field_type, _MOST_NESTING)
        yield number, value


def _value(data: bytes, at: int, field_type: int, depth: int) -> tuple[Any, int]:
    """Return a value and its end."""
    if not depth:
        raise PageError("a header is nested too deeply")
    if field_type in _INTEGERS:
        return _integer(data, at)
    if field_type == _BINARY:
        length, start = _varint(data, at)
        if start + length > len(data):
            raise CutError
        return data[start : start + length], start + length
    if field_type == _STRUCT:
        fields: dict[int, Any] = {}
        number = 0
        while True:
            number, inner_type, at = _field(data, at, number)
            if inner_type == 0:
                return fields, at
            fields[number], at = _value(data, at, inner_type, depth - 1)
    if field_type == _LIST:
        return _items(data, at, depth)
    return None, _skip(data, at, field_type, depth, [0, _LONGEST_HEADER])


def _items(data: bytes, at: int, depth: int) -> tuple[list[Any] | None, int]:
    """Return the items of a list, None of truths, and its end."""
    count, item_type, at = _list_head(data, at)
    if item_type in (_TRUE, _FALSE):  # a byte each, inside a list
        return None, at + count
    items = []
    for _ in range(count):
        item, at = _value(data, at, item_type, depth - 1)
        items.append(item)
    return items, at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the number and the type of the items of a list, and where they begin."""
    if at >= len(data):
        raise CutError
    count = data[at] >> 4
    item_type = data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    if count > len(data) - at:  # each takes a byte or more
        raise CutError
    return count, item_type, at


def _field(data: bytes, at: int, before: int) -> tuple[int, int, int]:
    """Return a field's number, its type, 0 at the end of the struct, and where its value begins."""
    if at >= len(data):
        raise CutError
    head = data[at]
    field_type = head & 15
    if field_type == 0:
        return before, 0, at + 1
    if head >> 4:
        return before + (head >> 4), field_type, at + 1
    number, at = _integer(data, at + 1)
    return number, field_type, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise CutError
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise PageError("a number of a header is longer than 64 bits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _skip(data: bytes, at: int, field_type: int, depth: int, counter: list[int]) -> int:
    """Return the end of a value. counter: structs so far, and the most that are counted."""
    if field_type in _SIZES:
        return at + _SIZES[field_type]
    if field_type in _INTEGERS:
        return _varint(data, at)[1]
    if field_type == _BINARY:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise CutError
        return at + length
    if not depth:
        raise PageError("a header is nested too deeply")
    if field_type == _STRUCT:
        return _skip_struct(data, at, depth - 1, counter)
    if field_type not in (_LIST, _SET):
        raise PageError(f"a header has a value of type {field_type}")
    return _skip_list(data, at, depth - 1, counter)


def _skip_struct(data: bytes, at: int, depth: int, counter: list[int]) -> int:
    counter[0] += 1
    if counter[0] > counter[1]:
        raise PageError("a header has too many structs")
    number = 0
    while True:
        number, field_type, at = _field(data, at, number)
        if field_type == 0:
            return at
        at = _skip(data, at, field_type, depth, counter)


def _skip_list(data: bytes, at: int, depth: int, counter: list[int]) -> int:
    count, field_type, at = _list_head(data, at)
    for _ in range(count):
        if field_type in (_TRUE, _FALSE):  # a byte each, inside a list
            at += 1
        else:
            at = _skip(data, at, field_type, depth, counter)
    return at
