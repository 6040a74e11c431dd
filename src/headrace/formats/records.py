"""Find records and fields in delimited text (RFC 4180), over whole buffers at once. Pure.

A newline ends a record if an even number of quotes precedes it. With quotes doubled inside quoted
fields this is exact and needs no state machine, only the positions of quotes and newlines and one
binary search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U8, Bools
from headrace.formats.dialect import TextDialect

Stops = dict[int, I64]
Data: TypeAlias = bytes | pa.Buffer

NEWLINE = 10
QUOTE = 34
BACKSLASH = 92
_LETTER = ord("x")
RETURN = 13
_WINDOW = 1 << 20  # bytes searched at once
_NONE = np.empty(0, np.int64)
_FIRST_WORDS = 8  # of a quoted field: with text, these usually hold a separator or the whole field
_EACH_BYTE = 0x0101010101010101
_SHORT = 12  # longest value that an Arrow view holds inline, in place of head, buffer and offset
_VIEW = np.dtype([("size", "<i4"), ("head", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])


class Marked(NamedTuple):
    """Whole records, and what of them splits: quotes, separators and line ends.

    marks: the bytes, without those that are escaped. quotes: ascending; none without quoting.
    """

    data: Data
    marks: U8
    quotes: I64


def mark(data: Data, dialect: TextDialect) -> Marked:
    """Find what splits data, which begin with a record."""
    marks = as_bytes(data)
    if dialect.escape is not None:
        marks = without_escaped(marks)
    if dialect.quoting == "none":
        return Marked(data, marks, _NONE)
    return Marked(data, marks, quote_positions(marks))


def as_bytes(data: Data) -> U8:
    """View a buffer as a uint8 array, without a copy."""
    return np.frombuffer(data, np.uint8)


def without_escaped(data: U8) -> U8:
    """Return a copy in which every byte after a backslash that escapes it is a letter.

    So what it shows of quotes, separators and line ends is what splits the data. Of several
    backslashes in a row, every second one is escaped itself. Data begin with a record.
    """
    at = np.flatnonzero(data == BACKSLASH)
    if not len(at):
        return data
    starts_run = np.diff(at, prepend=-2) != 1
    run_start = np.maximum.accumulate(np.where(starts_run, at, 0))
    escaped = at[(at - run_start) & 1 == 0] + 1
    masked = data.copy()
    masked[escaped[escaped < len(data)]] = _LETTER
    return masked


def quote_positions(data: U8) -> I64:
    """Find the quotes, ascending."""
    return _positions(data, QUOTE, _NONE, _NONE)


def outside_quotes(data: U8, quotes: I64, byte: int) -> I64:
    """Find a byte outside quoted fields, ascending.

    quotes: `quote_positions(data)`, or an empty array.
    """
    opening = quotes[0::2]
    closing = quotes[1::2]
    if len(opening) > len(closing):  # a field that is still open reaches to the end
        closing = np.append(closing, len(data))
    return _positions(data, byte, opening, closing)


def record_ends(data: U8, quotes: I64 | None = None) -> I64:
    """Find the end position of each record, ascending; a last record without newline ends at the
    end.

    quotes: `quote_positions(data)`, computed if not given; an empty array for formats without
    quoting.
    """
    ends = outside_quotes(data, quote_positions(data) if quotes is None else quotes, NEWLINE)
    ends += 1
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    return ends


def _windows(
    data: U8, match: Callable[[U8], Bools], opening: I64, closing: I64
) -> Iterator[tuple[int, I64]]:
    """Yield (start of a window, matches in it), except for matches between an opening and its
    closing.

    Windows are small enough to stay in the CPU cache.
    """
    first_span = np.searchsorted(closing, np.arange(0, len(data), _WINDOW))
    last_span = np.searchsorted(opening, np.arange(_WINDOW, len(data) + _WINDOW, _WINDOW))
    for window, start in enumerate(range(0, len(data), _WINDOW)):
        mask = match(data[start : start + _WINDOW])
        spans = slice(int(first_span[window]), int(last_span[window]))
        if spans.start < spans.stop:
            begin = np.maximum(opening[spans] - start, 0)
            count = np.minimum(closing[spans] - start, len(mask)) - begin
            mask[
                np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
            ] = False
        yield start, np.flatnonzero(mask)


def _positions(data: U8, byte: int, opening: I64, closing: I64) -> I64:
    """Find a byte, except between an opening and its closing."""
    parts = list(_windows(data, lambda window: window == byte, opening, closing))
    positions = np.empty(sum(len(part) for _, part in parts), np.int64)
    filled = 0
    for start, part in parts:
        np.add(part, start, out=positions[filled : filled + len(part)])
        filled += len(part)
    return positions


def field_stops(
    data: U8, quotes: I64, *, rows: int, separator: int, width: int, columns: Sequence[int]
) -> Stops | None:
    """Find where fields end: int64 [rows] for each wanted column index; the last field ends at the
    line end.

    None if some record does not have exactly `width` fields: separators and line ends must
    alternate in one pattern.
    """
    stops: Stops = {column: np.empty(rows, np.int64) for column in columns}
    opening = quotes[0::2]
    closing = quotes[1::2]
    count = 0
    expected = rows * width
    for start, at in _windows(data, lambda w: (w == separator) | (w == NEWLINE), opening, closing):
        if count + len(at) > expected:
            return None
        ends_line = data[start + at] == NEWLINE
        regular = ends_line[(width - 1 - count) % width :: width]
        if not regular.all() or np.count_nonzero(ends_line) != len(regular):
            return None
        for index, column in stops.items():
            first = (index - count) % width
            chosen = at[first::width]
            row = (count + first) // width
            np.add(chosen, start, out=column[row : row + len(chosen)])
        count += len(at)
    if len(data) and data[-1] != NEWLINE:  # the last line ends with the data
        if width - 1 in stops and rows:
            stops[width - 1][-1] = len(data)
        count += 1
    if count == expected:
        return stops
    return None


def last_record_end(data: U8, quotes: I64) -> int:
    """Find the end of the last record that certainly ends in `data`; 0 if none does."""
    stop = len(data)
    step = 1 << 12
    while stop > 0:
        start = max(0, stop - step)
        newlines = np.flatnonzero(data[start:stop] == NEWLINE) + start
        outside = newlines[np.searchsorted(quotes, newlines) & 1 == 0]
        if len(outside):
            return int(outside[-1]) + 1
        stop = start
        step = step * 4
    return 0


def slices(data: Data, ends: I64) -> pa.LargeBinaryArray:
    """Return one binary value per record, line end included, sharing the memory of `data`."""
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def first_lone_return(data: U8, quotes: I64) -> int | None:
    """Find the first carriage return outside quotes that no newline follows, or None.

    Some readers end a record there and others read it as text, so no reading of it is safe.
    """
    for start in range(0, len(data), _WINDOW):  # a fast check, in quotes too
        window = data[start : start + _WINDOW + 1]
        returns = window[:-1] == RETURN
        if returns.any() and (returns & (window[1:] != NEWLINE)).any():
            break
    else:
        if not len(data) or data[-1] != RETURN:
            return None
    at = outside_quotes(data, quotes, RETURN)
    lone = at[data[np.minimum(at + 1, len(data) - 1)] != NEWLINE]
    if len(lone):
        return int(lone[0])
    return None


def is_utf8(data: Data) -> bool:
    """Check whether data are valid UTF-8."""
    try:
        slices(data, np.array([len(data)])).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def joined(records: pa.LargeBinaryArray) -> pa.Buffer:
    """Return the bytes of consecutive values of a freshly filtered binary array as one buffer."""
    offsets = records.buffers()[1]
    values = records.buffers()[2]
    if values is None or len(records) == 0:
        return pa.py_buffer(b"")
    bounds = np.frombuffer(offsets, np.int64)[records.offset : records.offset + len(records) + 1]
    return values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))


def blank(array: U8, ends: I64) -> npt.NDArray[np.bool_]:
    """Mask the records that consist of a line end only."""
    if not len(ends):
        return np.zeros(0, np.bool_)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    sizes = ends - starts
    first = array[starts]
    mask: npt.NDArray[np.bool_] = (sizes == 1) & (first == NEWLINE)
    mask |= (
        (sizes == 2)
        & (first == RETURN)
        & (array[np.minimum(starts + 1, len(array) - 1)] == NEWLINE)
    )
    return mask


def without_blank(data: Data, ends: I64) -> Data:
    """Remove the records that consist of a line end only."""
    blanks = blank(as_bytes(data), ends)
    if not blanks.any():
        return data
    return bytes(joined(slices(data, ends).filter(pa.array(~blanks))))


def fields_per_record(at: I64, ends: I64) -> I64:
    """Count the fields of every record from the positions of the separators."""
    return np.diff(np.concatenate([np.zeros(1, np.int64), np.searchsorted(at, ends)])) + 1


def cut(data: Data, starts: I64, stops: I64) -> pa.LargeBinaryArray:
    """Cut the bytes from each start to its stop; spans ascend and do not overlap."""
    bounds = np.empty(2 * len(starts) + 1, np.int64)
    bounds[0:-1:2], bounds[1::2], bounds[-1] = starts, stops, len(data)
    alternating = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * len(starts), [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return alternating.take(pa.array(np.arange(0, 2 * len(starts), 2)))


def field_edges(separator: int, *others: int) -> Bools:
    """Mask the bytes that stand between fields, and others: [256]."""
    return np.isin(np.arange(256), [separator, NEWLINE, RETURN, *others])


def starts_field(data: U8, at: I64, edge: Bools) -> Bools:
    """Mask the positions of the first bytes of fields. edge: `field_edges`."""
    return np.asarray((at == 0) | edge[data[np.maximum(at - 1, 0)]])


def ends_field(data: U8, at: I64, edge: Bools) -> Bools:
    """Mask the positions of the last bytes of fields."""
    return np.asarray((at == len(data) - 1) | edge[data[np.minimum(at + 1, len(data) - 1)]])


def first_stray_quote(data: U8, quotes: I64, separator: int) -> int | None:
    """Find the first quote that readers interpret differently, or None.

    A quote opens a field at the field's beginning and closes it at its end. Elsewhere it is plain
    text to some readers and quoting to others, which is harmless only if there is no separator,
    newline or carriage return between the pair.
    """
    pairs = len(quotes) // 2
    opening = quotes[0 : 2 * pairs : 2]
    closing = quotes[1 : 2 * pairs : 2]
    if not pairs:
        return None
    edge = field_edges(separator, QUOTE)
    opens = starts_field(data, opening, edge)
    closes = ends_field(data, closing, edge)
    if opens.all() and closes.all():
        return None
    for pair in np.flatnonzero(~(opens & closes)).tolist():
        inside = data[opening[pair] : closing[pair]]
        if opens[pair] or np.isin(inside, [separator, NEWLINE, RETURN]).any():
            return int(closing[pair] if opens[pair] else opening[pair])
    return None


def loose_quotes(data: U8, quotes: I64, separator: int) -> I64:
    """Find the quotes of whole records that a writer with minimal quoting would not write.

    One position for each such stretch of quotes, ascending: around a field without separator,
    newline and quote, or inside an unquoted field. Quotes around a field must pair up, and those
    inside it must be doubled.
    """
    if not len(quotes):
        return quotes
    opening = quotes[0::2]
    closing = quotes[1::2]
    doubled = opening[1:] == closing[:-1] + 1
    first = np.append(True, ~doubled)
    last = np.append(~doubled, True)
    starts = opening[first]
    ends = closing[last]
    inside = np.diff(np.append(np.flatnonzero(first), len(opening))) > 1
    left = np.flatnonzero(~inside)
    inside[left] = _hold_any(data, (separator, NEWLINE), starts[left], ends[left])
    edge = field_edges(separator)
    loose: I64 = starts[~(inside & starts_field(data, starts, edge) & ends_field(data, ends, edge))]
    return loose


def _hold_any(data: U8, searched: Sequence[int], starts: I64, ends: I64) -> Bools:
    """Mask the spans that hold one of these bytes strictly between their first and last byte.

    The first words of each span are searched eight bytes at a time; the whole data only if a longer
    span is undecided.
    """
    matches = np.zeros(len(starts), np.bool_)
    left = np.arange(len(starts))
    if len(data) < 8:
        data = np.append(data, np.zeros(8, np.uint8))
    # the 8 bytes from any position on
    word_at = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, strides=(1,))
    for step in range(_FIRST_WORDS):
        at = starts[left] + (1 + 8 * step)
        size = ends[left] - at
        left = left[size > 0]
        at = at[size > 0]
        size = size[size > 0]
        if not len(left):
            return matches
        start = np.minimum(at, len(word_at) - 1)
        words = word_at[start] >> (8 * (at - start)).astype(np.uint64)
        past_end = np.where(
            size < 8, ~np.uint64(0) << (8 * np.minimum(size, 7)).astype(np.uint64), np.uint64(0)
        )
        hits = np.zeros(len(left), np.bool_)
        for byte in searched:
            others = (words ^ np.uint64(byte * _EACH_BYTE)) | past_end  # the wanted byte becomes 0
            hits |= (others - np.uint64(_EACH_BYTE)) & ~others & np.uint64(_EACH_BYTE << 7) != 0
        matches[left[hits]] = True
        left = left[~hits]
    for byte in searched:
        left = left[~matches[left]]
        if len(left):
            positions = _positions(data, byte, _NONE, _NONE)
            after = np.append(positions, np.iinfo(np.int64).max)[
                np.searchsorted(positions, starts[left])
            ]
            matches[left] = after < ends[left]
    return matches


def views(data: Data, starts: I64, ends: I64) -> pa.Array:
    """View the bytes from each start to its end as binary values, in the memory of `data`, of less
    than 2 GiB.
    """
    array = as_bytes(data)
    sizes = ends - starts
    entries = np.zeros(len(starts), _VIEW)
    entries["size"] = sizes
    entries["offset"] = starts
    if len(array) >= 4:  # else all values are short
        four_at = np.ndarray((len(array) - 3,), np.dtype("<u4"), array, strides=(1,))
        entries["head"] = four_at[np.minimum(starts, len(four_at) - 1)]
    short = np.flatnonzero(sizes <= _SHORT)
    if len(short):  # inline in the view
        at = starts[short, None] + np.arange(_SHORT)
        inline = np.where(at < ends[short, None], array[np.minimum(at, len(array) - 1)], 0).astype(
            np.uint8
        )
        entries.view(np.uint8).reshape(-1, 16)[short, 4:] = inline
    return pa.Array.from_buffers(
        pa.binary_view(), len(entries), [None, pa.py_buffer(entries), pa.py_buffer(data)]
    )
