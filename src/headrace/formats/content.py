"""Compare rows by their content: which columns count, a digest of each row, and which digests come again. Pure.

A digest is 64 bits of the values of a row's compared columns. The function is ours, so it is the same on every machine,
in every version of the libraries, and however the rows are cut into files and chunks. It finds repeats; a forger could
make two rows of one digest. Two different rows have one by chance once in 10^19 pairs.

Two values of a column are the same if they are equal in the one type that the column has in all shards: 1 in an int32
shard is 1 in an int64 shard, and 1.0 where another shard holds floats. 0.0 and -0.0 are the same. Null, NaN, empty
text, an empty list and a struct of nothing else are all "missing", and the same. A row whose compared columns are all
missing has no content: its digest is `NOTHING`, and it repeats no other.

Numbers cost four vector operations a value, text about fifteen for every eight bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U64, Bools, Ints
from headrace.draws import GAMMA, MIX_A, mix
from headrace.errors import InputError
from headrace.formats.schema import is_text

LINEAGE = ("source_shard", "source_row")
NOTHING = 0

_MISSING = np.uint64(0x6E6F7468696E6721)
_BATCH_ROWS, _NESTED_ROWS = 1 << 16, 1 << 12  # digested together: a column stays in the processor's cache
_BATCH_WORDS = 1 << 16  # of text
_LOW = np.uint64(3)  # bits of a digest that give way to the number of a split


def content_columns(names: Sequence[str], roles: Collection[str | None]) -> tuple[str, ...]:
    """Select the columns that are compared unless others are named: all but those with a role, and lineage.

    roles: the columns of time, entity, label and targets.
    """
    return tuple(name for name in names if name not in roles and name not in LINEAGE)


def row_digests(table: pa.Table) -> U64:
    """Digest every row of a table. uint64 [N]; the order of the columns counts, their names do not.

    Raises `InputError` for a column whose type has no values to compare.
    """
    if not table.num_columns:
        return np.full(table.num_rows, NOTHING, np.uint64)
    nested = any(pa.types.is_nested(kind) for kind in table.schema.types)
    parts = [np.empty(0, np.uint64)]
    for batch in table.combine_chunks().to_batches(_NESTED_ROWS if nested else _BATCH_ROWS):
        digests, held = _chained(batch.columns, batch.schema.names)
        digests = mix(digests)
        digests[digests == NOTHING] = 1
        digests[~held] = NOTHING
        parts.append(digests)
    return np.concatenate(parts)


def chain(digests: U64, words: U64) -> None:
    """Take the next word of every row into its digest, in place: a bijection of either, given the other."""
    digests += words
    digests *= np.uint64(MIX_A)
    digests ^= digests >> np.uint64(32)


def _chained(columns: Sequence[pa.Array], names: Sequence[str]) -> tuple[U64, Bools]:
    """Digest parallel columns, and say which rows hold any value."""
    count = len(columns[0])
    digests, held = np.full(count, GAMMA, np.uint64), np.zeros(count, np.bool_)
    for column, name in zip(columns, names, strict=True):
        words, missing = _words(column, name)
        if missing is None:
            held[:] = True
        else:
            words = np.where(missing, _MISSING, words)
            held |= ~missing
        chain(digests, words)
    return digests, held


def _words(column: pa.Array, name: str) -> tuple[U64, Bools | None]:
    """Give every value a word, equal for equal values; and which are missing, None if none is."""
    kind = column.type
    missing = np.asarray(column.is_null()) if column.null_count else None
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64), np.ones(len(column), np.bool_)
    if pa.types.is_floating(kind):
        filled = column.fill_null(float("nan")) if column.null_count else column
        values = np.asarray(filled.to_numpy(zero_copy_only=False), np.float64) + 0.0  # -0.0 + 0.0 is 0.0
        return values.view(np.uint64), np.isnan(values) if np.isnan(values.min(initial=0.0)) else None
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        elif pa.types.is_temporal(kind):
            column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        numbers = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
        return numbers.astype(np.uint64 if numbers.dtype.kind == "u" else np.int64, copy=False).view(np.uint64), missing
    if pa.types.is_struct(kind):
        fields = column.flatten()
        if not fields:
            return np.zeros(len(column), np.uint64), np.ones(len(column), np.bool_)
        words, held = _chained(fields, [f"{name}.{each.name}" for each in kind])
        return mix(words), ~held
    if pa.types.is_nested(kind):
        if pa.types.is_map(kind):
            offsets = np.asarray(column.offsets, np.int64)
            part = slice(int(offsets[0]), int(offsets[-1]))
            items = pa.StructArray.from_arrays([column.keys[part], column.items[part]], ["key", "value"])
            counts = np.diff(offsets)
        else:
            items, counts = column.flatten(), np.asarray(pc.list_value_length(column).fill_null(0), np.int64)
        words, absent = _words(items, name)
        words = words if absent is None else np.where(absent, _MISSING, words)
        return mix(_sums(words, counts) + counts.astype(np.uint64)), counts == 0
    if pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    elif pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    elif not (is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise InputError(f"column {name} is {kind}, which cannot be compared; leave the column out")
    return _text_words(column)


def _text_words(texts: pa.Array) -> tuple[U64, Bools]:
    """Give every text a word, from its bytes taken eight at a time, and its size."""
    count = len(texts)
    if not count:
        return np.empty(0, np.uint64), np.empty(0, np.bool_)
    absent = np.asarray(texts.is_null())
    texts = texts.cast(pa.large_binary())
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + count + 1]
    sizes = np.where(absent, 0, np.diff(offsets))
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)  # eight bytes more: every word can be read whole
    if last > first:
        data[:-8] = np.frombuffer(texts.buffers()[2], np.uint8)[first:last]
    word_at = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, strides=(1,))
    starts, counts = offsets[:-1] - first, (sizes + 7) >> 3
    found = np.empty(count, np.uint64)
    for part in _parts(counts):
        start, held, size = starts[part], counts[part], sizes[part]
        ends = np.cumsum(held)
        words = word_at[np.repeat(start - 8 * (ends - held), held) + 8 * np.arange(ends[-1])]
        filled = held > 0
        words[ends[filled] - 1] <<= ((8 * held - size)[filled] << 3).astype(np.uint64)  # what is behind the text
        found[part] = _sums(words, held) + size.astype(np.uint64)
    return mix(found), sizes == 0


def _parts(counts: I64) -> Iterator[slice]:
    """Cut rows into parts of about `_BATCH_WORDS` words; a row of more is a part of its own."""
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        before = int(ends[begin - 1]) if begin else 0
        stop = max(begin + 1, int(np.searchsorted(ends, before + _BATCH_WORDS, side="right")))
        yield slice(begin, stop)
        begin = stop


def _sums(words: U64, counts: I64) -> U64:
    """Mix each word with its place in its row, and add up the words of each row. counts: words of each row [N]."""
    first = np.cumsum(counts) - counts
    place = np.arange(len(words)) - np.repeat(first, counts)
    mixed = mix(words + (place.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA))
    sums, filled = np.zeros(len(counts), np.uint64), counts > 0
    if len(words):
        sums[filled] = np.add.reduceat(mixed, first[filled])
    return sums


def tagged(digests: U64, split: int | Ints) -> U64:
    """Put the number of a split, 0 to 3, into the low bits of digests; rows without content are left out."""
    words: U64 = (digests & ~_LOW | np.asarray(split, np.uint64))[digests != NOTHING]
    return words


@dataclass(frozen=True)
class Repeated:
    """Rows that repeat others, by split. earlier: whose content is in an earlier split; own: in an earlier row of
    their own."""

    earlier: Mapping[str, int]
    own: Mapping[str, int]


def count_repeats(words: U64, splits: Sequence[str]) -> Repeated:
    """Count repeats among tagged digests of all splits, which are sorted in place. 11 bytes a row."""
    words.sort()
    again = np.zeros(len(words), np.bool_)
    again[1:] = words[1:] >> np.uint64(2) == words[:-1] >> np.uint64(2)
    together = again.copy()
    together[:-1] |= again[1:]  # of content that stands more than once, the first as well
    words, begins = words[together], np.flatnonzero(~again[together])
    lengths = np.diff(np.append(begins, len(words)))
    code = (words & _LOW).astype(np.int64)
    first = np.repeat(code[begins], lengths)
    twice = np.zeros(len(words), np.bool_)
    twice[1:] = words[1:] == words[:-1]
    earlier, own = (np.bincount(code[mask], minlength=len(splits)) for mask in (first < code, twice))
    return Repeated(
        {name: int(earlier[place]) for place, name in enumerate(splits) if place},
        {name: int(own[place]) for place, name in enumerate(splits)},
    )


def count_sorted(parts: Sequence[U64], splits: Sequence[str], most: int = 1 << 23) -> Repeated:
    """Count repeats among tagged digests in parts, each ascending, such as mapped files.

    A range of digests after the other is counted, of about `most` rows each, so memory does not grow with the rows.
    """
    ranges = max(1, -(-sum(map(len, parts)) // most))
    borders = np.array([((number << 62) // ranges) << 2 for number in range(1, ranges)], np.uint64)
    cuts = [[0, *np.searchsorted(part, borders).tolist(), len(part)] for part in parts]
    earlier, own = dict.fromkeys(splits[1:], 0), dict.fromkeys(splits, 0)
    for number in range(ranges):
        slices = [part[cut[number] : cut[number + 1]] for part, cut in zip(parts, cuts, strict=True)]
        found = count_repeats(np.concatenate([np.empty(0, np.uint64), *slices]), splits)
        earlier = {name: rows + found.earlier[name] for name, rows in earlier.items()}
        own = {name: rows + found.own[name] for name, rows in own.items()}
    return Repeated(earlier, own)


def among(digests: U64, known: U64) -> Bools:
    """Mask the digests that are among known ones, which are ascending."""
    if not len(known):
        return np.zeros(len(digests), np.bool_)
    found: Bools = known[np.minimum(np.searchsorted(known, digests), len(known) - 1)] == digests
    return found
