"""Compare rows by their content: which columns count, a digest of each row, and which digests
repeat. Pure.

A digest is 64 bits of the values of a row's compared columns. The function is our own, so it is the
same on every machine, with every version of the libraries, and however the rows are divided into
files and chunks. It finds repeats but does not resist forgery: two rows with the same digest can be
constructed. Two different rows collide by chance once in 10^19 pairs.

Two values of a column are the same if they are equal in the common type of the column over all
shards. So 1 in an int32 shard equals 1 in an int64 shard, and 1.0 if another shard holds floats.
0.0 and -0.0 are the same. Null, NaN, empty text, an empty list and a struct of only missing values
are all "missing", and the same. A row whose compared columns are all missing has no content: its
digest is `NOTHING`, and it repeats no other row.

Numbers cost six vector operations per value, none of which allocates memory. Texts of up to 12
bytes cost the two words of Arrow's views; longer ones about seven operations for every eight bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U8, U64, Bools, Ints
from headrace.draws import GAMMA, MIX_A, mix
from headrace.errors import InputError
from headrace.formats.column_paths import columns_without
from headrace.formats.types import is_text

LINEAGE = ("source_shard", "source_row")
NOTHING = 0

_MISSING = np.uint64(0x6E6F7468696E6721)
_BATCH_ROWS = 1 << 15  # rows digested at once, so that work arrays stay in the CPU cache
_NESTED_ROWS = 1 << 12
_BATCH_WORDS = 1 << 16  # the same for words of text
_RANGE_ROWS = 15 << 10  # counted at once: arrays below 128 KiB reuse memory instead of new pages
_PART_ROWS = 256  # least rows of each part that are counted at once
_INLINE = 12  # longest text that an Arrow view holds inline, in bytes
_VIEWED = 1 << 31  # views cannot address more bytes
_CHAINED_WORDS = 64  # texts of up to this length are digested side by side, word by word
_HALF = np.uint64(32)
_LOW = np.uint64(3)  # bits of a digest that hold the number of a split instead

# Returns the words of a range of a column's rows, and which of them are missing, None if none is.
# The words may be in the first row of the work array [2, rows].
_Reader = Callable[[int, int, U64], tuple[U64, Bools | None]]


def content_columns(schema: pa.Schema, roles: Collection[str | None]) -> tuple[str, ...]:
    """Select the default columns to compare: all except those with a role, and lineage.

    roles: the columns of time, entity, label and targets. Of a struct with a field that has a role,
    the others are compared, by their paths.
    """
    return tuple(columns_without(schema, {*roles, *LINEAGE}))


def row_digests(table: pa.Table) -> U64:
    """Digest every row of a table; uint64 [N].

    The order of the columns matters, their names do not.

    Raises `InputError` for a column whose type cannot be compared.
    """
    result = np.full(table.num_rows, NOTHING, np.uint64)
    begin = 0
    if not table.num_columns:
        return result
    if any(pa.types.is_nested(type_) for type_ in table.schema.types):
        batch = _NESTED_ROWS
    else:
        batch = _BATCH_ROWS
    # many small chunks
    if max(column.num_chunks for column in table.columns) * (batch >> 2) > table.num_rows:
        table = table.combine_chunks()
    spare = np.empty((2, batch), np.uint64)
    for part in table.to_batches():
        readers = [
            _reader(column, name)
            for column, name in zip(part.columns, part.schema.names, strict=True)
        ]
        for first in range(0, len(part), batch):
            stop = min(first + batch, len(part))
            digests = result[begin + first : begin + stop]
            has_value = _chain_all(digests, readers, first, stop, spare[:, : stop - first])
            digests[digests == NOTHING] = 1
            if has_value is not None:
                digests[~has_value] = NOTHING
        begin += len(part)
    return result


def chain(digests: U64, words: U64, spare: U64 | None = None) -> None:
    """Mix the next word of every row into its digest, in place; for a fixed word or digest this is
    a bijection.

    spare: a work array of the same shape.
    """
    digests += words
    digests *= np.uint64(MIX_A)
    digests ^= np.right_shift(digests, _HALF, out=spare)


def _chain_all(
    digests: U64, readers: Sequence[_Reader], first: int, stop: int, spare: U64
) -> Bools | None:
    """Digest the rows first..stop-1 of parallel columns, in place; return which rows hold a value,
    None if all do.

    spare: [2, rows], a work array that stays in the CPU cache.
    """
    digests[:] = GAMMA
    has_value: Bools | None = np.zeros(stop - first, np.bool_)
    for read in readers:
        words, missing = read(first, stop, spare)
        if missing is None:
            has_value = None
        else:
            words = np.where(missing, _MISSING, words)
            if has_value is not None:
                has_value |= ~missing
        chain(digests, words, spare[1])
    return has_value


def _float_reader(column: pa.Array) -> _Reader:
    filled = column
    if column.null_count:
        filled = column.fill_null(float("nan"))
    values = filled.to_numpy(zero_copy_only=False)

    def floats(first: int, stop: int, spare: U64) -> tuple[U64, Bools | None]:
        floats_ = spare[0].view(np.float64)
        np.add(values[first:stop], 0.0, out=floats_, dtype=np.float64)  # -0.0 + 0.0 is 0.0
        return spare[0], np.isnan(floats_) if np.isnan(floats_.min(initial=0.0)) else None

    return floats


def _integer_reader(column: pa.Array) -> _Reader:
    """Read booleans and times as integers too."""
    type_ = column.type
    absent = None
    if column.null_count:
        absent = np.asarray(column.is_null())
    if pa.types.is_boolean(type_):
        column = column.cast(pa.int8())
    elif pa.types.is_temporal(type_):
        column = column.cast(pa.int32() if type_.bit_width == 32 else pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    numbers = column.to_numpy(zero_copy_only=False)
    wide: type[np.uint64 | np.int64] = np.int64
    if numbers.dtype.kind == "u":
        wide = np.uint64

    def integers(first: int, stop: int, spare: U64) -> tuple[U64, Bools | None]:
        spare[0].view(wide)[:] = numbers[first:stop]
        return spare[0], None if absent is None else absent[first:stop]

    return integers


def _reader(column: pa.Array, name: str) -> _Reader:
    """Prepare a column once, and return a function that reads the words of a range of rows."""
    type_ = column.type
    if pa.types.is_floating(type_):
        return _float_reader(column)
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_temporal(type_):
        return _integer_reader(column)
    if pa.types.is_decimal(type_):
        return _text_reader(column.cast(pa.string()))
    if pa.types.is_fixed_size_binary(type_):
        return _text_reader(column.cast(pa.binary()))
    if is_text(type_) or pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return _text_reader(column)
    if pa.types.is_nested(type_) or pa.types.is_null(type_):
        return lambda first, stop, _: _nested_words(column.slice(first, stop - first), name)
    raise InputError(
        "it cannot be compared", column=name, value=str(type_), remedy="leave the column out"
    )


def _nested_words(column: pa.Array, name: str) -> tuple[U64, Bools | None]:
    """Return a word for every value, equal for equal values, and which values are missing; None if
    none is.
    """
    type_ = column.type
    if pa.types.is_null(type_):
        return np.zeros(len(column), np.uint64), np.ones(len(column), np.bool_)
    if pa.types.is_struct(type_):
        fields = column.flatten()
        if not fields:
            return np.zeros(len(column), np.uint64), np.ones(len(column), np.bool_)
        readers = [
            _reader(child, f"{name}.{field.name}")
            for child, field in zip(fields, type_, strict=True)
        ]
        words = np.empty(len(column), np.uint64)
        has_value = _chain_all(
            words, readers, 0, len(column), np.empty((2, len(column)), np.uint64)
        )
        return mix(words), None if has_value is None else ~has_value
    if pa.types.is_map(type_):
        offsets = np.asarray(column.offsets, np.int64)
        part = slice(int(offsets[0]), int(offsets[-1]))
        items = pa.StructArray.from_arrays(
            [column.keys[part], column.items[part]], ["key", "value"]
        )
        counts = np.diff(offsets)
    else:
        items = column.flatten()
        counts = np.asarray(pc.list_value_length(column).fill_null(0), np.int64)
    words, absent = _reader(items, name)(0, len(items), np.empty((2, len(items)), np.uint64))
    if absent is not None:
        words = np.where(absent, _MISSING, words)
    return mix(_sums(words, counts) + counts.astype(np.uint64)), counts == 0


def _text_reader(texts: pa.Array) -> _Reader:
    """Return a reader that computes a word of each text from its size and bytes.

    A text of up to 12 bytes consists of the two words of its Arrow view.
    """
    if pa.types.is_string_view(texts.type):
        texts = texts.cast(pa.large_string())  # Arrow's `take` does not support views
    if texts.null_count:
        texts = texts.fill_null("" if is_text(texts.type) else b"")
    if texts.nbytes >= _VIEWED:
        return lambda first, stop, _: _words_of_large_texts(texts.slice(first, stop - first))
    views = texts.cast(pa.binary_view())
    pairs = np.frombuffer(views.buffers()[1], np.uint64, 2 * len(views), 16 * views.offset).reshape(
        -1, 2
    )
    sizes = pairs.view(np.int32)[:, 0]

    def read(first: int, stop: int, spare: U64) -> tuple[U64, Bools | None]:
        rows = slice(first, stop)
        words = spare[0]
        np.multiply(pairs[rows, 0], np.uint64(MIX_A), out=words)
        words ^= np.right_shift(words, _HALF, out=spare[1])
        words += pairs[rows, 1]
        if sizes[rows].max(initial=0) > _INLINE:
            long = np.flatnonzero(sizes[rows] > _INLINE)
            batch = texts.slice(first, stop - first)
            words[long] = _chained_words(
                batch if len(long) == len(batch) else batch.take(pa.array(long))
            )
        return words, sizes[rows] == 0 if sizes[rows].min(initial=1) == 0 else None

    return read


def _words_of_large_texts(texts: pa.Array) -> tuple[U64, Bools | None]:
    """Return the same words as `_text_reader` for texts whose bytes exceed the range of views."""
    sizes = np.asarray(pc.binary_length(texts), np.int64)
    words = np.empty(len(texts), np.uint64)
    short = np.flatnonzero(sizes <= _INLINE)
    long = np.flatnonzero(sizes > _INLINE)
    words[short] = _text_reader(texts.take(pa.array(short)))(
        0, len(short), np.empty((2, len(short)), np.uint64)
    )[0]
    words[long] = _chained_words(texts.take(pa.array(long)))
    return words, sizes == 0


def _chained_words(texts: pa.Array) -> U64:  # noqa: PLR0914 - one computation
    """Return a word for every text from its size and its bytes, eight at a time."""
    texts = texts.cast(pa.large_binary())
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, 8 * texts.offset)
    first = int(offsets[0])
    last = int(offsets[-1])
    # one extra word, so that every word can be read whole
    data = np.zeros((last - first + 23) // 8, np.uint64)
    data.view(np.uint8)[: last - first] = np.frombuffer(texts.buffers()[2], np.uint8)[first:last]
    starts = offsets[:-1] - first
    sizes = np.diff(offsets)
    kinds = np.minimum((sizes + 7) >> 3, _CHAINED_WORDS + 1).astype(np.uint8)
    order = np.argsort(np.uint8(_CHAINED_WORDS + 1) - kinds, kind="stable")  # longest first
    starts = starts[order]
    sizes = sizes[order]
    # texts by least number of words
    longer = np.cumsum(np.bincount(kinds, minlength=_CHAINED_WORDS + 2)[::-1])[::-1]
    digests = sizes.astype(np.uint64)
    digests *= np.uint64(GAMMA)
    word_index = starts >> 3
    right = ((starts & 7) << 3).astype(np.uint64)
    left = np.uint64(64) - right
    unused_bits = ((-sizes & 7) << 3).astype(np.uint64)
    words = data.take(word_index)
    spare = np.empty_like(digests)
    for number in range(1, min(int(kinds.max()), _CHAINED_WORDS) + 1):
        rows = slice(int(longer[number]))
        ending = slice(int(longer[number + 1]), int(longer[number]))
        word_index[rows] += 1
        after = data.take(word_index[rows])
        current = words[rows]
        current >>= right[rows]
        current |= np.left_shift(after, left[rows], out=spare[rows])
        current[ending] <<= unused_bits[ending]  # drops the bytes after the text
        chain(digests[rows], current, spare[rows])
        words = after
    if longer[_CHAINED_WORDS + 1]:
        rows = slice(int(longer[_CHAINED_WORDS + 1]))
        digests[rows] = _long_text_words(data.view(np.uint8), starts[rows], sizes[rows])
    spare[order] = digests
    return mix(spare)


def _long_text_words(data: U8, starts: I64, sizes: I64) -> U64:
    """Return words of texts whose sizes differ too much to be chained side by side, as sums of
    mixed words.
    """
    word_at = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, strides=(1,))
    result = np.empty(len(starts), np.uint64)
    counts = (sizes + 7) >> 3
    every = np.cumsum(counts)
    begin = 0
    while begin < len(counts):  # about `_BATCH_WORDS` words at once, or one longer text
        before = 0
        if begin:
            before = int(every[begin - 1])
        part = slice(
            begin, max(begin + 1, int(np.searchsorted(every, before + _BATCH_WORDS, side="right")))
        )
        begin = part.stop
        start = starts[part]
        word_counts = counts[part]
        size = sizes[part]
        ends = np.cumsum(word_counts)
        words = word_at[
            np.repeat(start - 8 * (ends - word_counts), word_counts) + 8 * np.arange(ends[-1])
        ]
        # drops the bytes after the text
        words[ends - 1] <<= ((8 * word_counts - size) << 3).astype(np.uint64)
        result[part] = _sums(words, word_counts) + size.astype(np.uint64)
    return result


def _sums(words: U64, counts: I64) -> U64:
    """Mix each word with its index in its row, and sum the words of each row.

    counts: words of each row [N].
    """
    first = np.cumsum(counts) - counts
    index_in_row = np.arange(len(words)) - np.repeat(first, counts)
    mixed = mix(words + (index_in_row.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA))
    sums = np.zeros(len(counts), np.uint64)
    filled = counts > 0
    if len(words):
        sums[filled] = np.add.reduceat(mixed, first[filled])
    return sums


def tagged(digests: U64, split: int | Ints, mask: Bools | None = None) -> U64:
    """Write the number of a split, 0 to 3, into the low bits of digests.

    Rows without content are left out.

    split: one for all rows, or one per row. mask: of the rows to use, None for all.
    """
    rows = digests != NOTHING
    if mask is not None:
        rows &= mask
    words: U64 = digests.compress(rows)  # several times faster than a mask in brackets
    words &= ~_LOW
    if isinstance(split, int):
        words |= np.uint64(split)
    else:
        words |= split.compress(rows).astype(np.uint64)
    return words


@dataclass(frozen=True)
class Repeated:
    """Counts of rows that repeat others, by split.

    earlier: rows whose content is in an earlier split. same_split: rows whose content is in an
    earlier row of their own split.
    """

    earlier: Mapping[str, int]
    same_split: Mapping[str, int]


def count_repeats(words: U64, splits: Sequence[str]) -> Repeated:
    """Count repeats among tagged digests of all splits; sorts them in place.

    Memory: 11 bytes a row.
    """
    words.sort()
    again = np.zeros(len(words), np.bool_)
    again[1:] = words[1:] ^ words[:-1] <= _LOW
    earlier = same_split = np.zeros(len(splits), np.int64)
    if again.any():
        together = again.copy()
        together[:-1] |= again[1:]  # include the first row of repeated content
        words = words[together]
        starts = np.flatnonzero(~again[together])
        lengths = np.diff(np.append(starts, len(words)))
        code = (words & _LOW).astype(np.int64)
        first = np.repeat(code[starts], lengths)
        twice = np.zeros(len(words), np.bool_)
        twice[1:] = words[1:] == words[:-1]
        earlier, same_split = (
            np.bincount(code[mask], minlength=len(splits)) for mask in (first < code, twice)
        )
    return Repeated(
        {name: int(earlier[index]) for index, name in enumerate(splits) if index},
        {name: int(same_split[index]) for index, name in enumerate(splits)},
    )


def count_sorted(parts: Sequence[U64], splits: Sequence[str], most: int | None = None) -> Repeated:
    """Count repeats among tagged digests in parts, each ascending, such as mapped files.

    Digests are counted range by range, about `most` rows in each, so memory does not grow with the
    number of rows. By default, ranges fit into the CPU cache and take a few hundred rows of every
    part.
    """
    if most is None:
        most = max(_RANGE_ROWS, _PART_ROWS * len(parts))
    ranges = max(1, -(-sum(map(len, parts)) // most))
    boundaries = np.array(
        [((number << 62) // ranges) << 2 for number in range(1, ranges)], np.uint64
    )
    cuts = [[0, *np.searchsorted(part, boundaries).tolist(), len(part)] for part in parts]
    earlier = dict.fromkeys(splits[1:], 0)
    same_split = dict.fromkeys(splits, 0)
    for number in range(ranges):
        slices = [
            part[cut[number] : cut[number + 1]] for part, cut in zip(parts, cuts, strict=True)
        ]
        counts = count_repeats(np.concatenate([np.empty(0, np.uint64), *slices]), splits)
        earlier = {name: rows + counts.earlier[name] for name, rows in earlier.items()}
        same_split = {name: rows + counts.same_split[name] for name, rows in same_split.items()}
    return Repeated(earlier, same_split)


def among(digests: U64, known: U64) -> Bools:
    """Mask the digests that are among known ones, which must be ascending."""
    matches = np.zeros(len(digests), np.bool_)
    if not len(known):
        return matches
    # ascending, they find their places five times faster among millions
    order = np.argsort(digests)
    ordered = digests[order]
    matches[order] = known[np.minimum(np.searchsorted(known, ordered), len(known) - 1)] == ordered
    return matches
