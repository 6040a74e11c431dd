"""Keyed hashes of whole columns, and the permutations that follow from a key. Pure.

Randomness in headrace is a keyed hash of (seed, purpose, stable key), never a generator with state.
So a draw is the same on any machine, in any process, in any order of calls. `digest.derive_key`
makes the keys.

The keyed hash is SipHash-2-4 with 128-bit output (Aumasson and Bernstein, 2012), a pseudorandom
function for short inputs, computed for whole columns at once: numpy does each step for all values.
Cost is about 60 vector operations per 8 bytes of the longest value in a length class.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import U64

_ROWS_IN_CACHE = 1 << 14
_FEW_ITEMS = 16  # measured: sorting the words costs as much as comparing them with this many


def hash_words(key: tuple[int, int], words: U64) -> tuple[U64, U64]:
    """Compute SipHash-2-4-128 of rows of 64-bit words; words_NW uint64 [N, W] → two uint64 arrays
    [N].

    Equals the byte-wise hash of each row's little-endian bytes.
    """
    n, width = words.shape
    state = _sip_start(key, n)
    for column in range(width):
        _sip_word(state, words[:, column])
    _sip_word(state, np.full(n, ((8 * width) & 0xFF) << 56, np.uint64))
    return _sip_finish(state)


def hash_texts(  # noqa: PLR0914 - one kernel over words in the cache
    key: tuple[int, int], texts: pa.Array | pa.ChunkedArray
) -> tuple[U64, U64]:
    """Compute SipHash-2-4-128 of each value's UTF-8 bytes; a text column [N] → two uint64 arrays
    [N].

    Accepts any Arrow string or binary type without nulls. Independent of offsets, chunks and string
    layout.
    """
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if isinstance(texts, pa.ChunkedArray):  # zero chunks stay chunked
        if texts.num_chunks:
            texts = pa.concat_arrays(texts.chunks)
        else:
            texts = pa.array([], texts.type)
    texts = texts.cast(pa.large_binary())
    n = len(texts)
    if n == 0:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + n + 1]
    values = texts.buffers()[2]
    first = int(offsets[0])
    last = int(offsets[-1])
    # eight zero bytes behind the last value: every word can be read whole
    data = np.zeros(last - first + 8, np.uint8)
    if last > first and values is not None:
        data[:-8] = np.frombuffer(values, np.uint8)[first:last]
    # the 8 bytes from any position on
    word_at = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, strides=(1,))
    starts = offsets[:-1] - first
    sizes = np.diff(offsets)

    high = np.empty(n, np.uint64)
    low = np.empty(n, np.uint64)
    full_words = sizes >> 3
    for count in np.flatnonzero(np.bincount(full_words)):
        rows = np.flatnonzero(full_words == count)
        for begin in range(0, len(rows), _ROWS_IN_CACHE):
            part = rows[begin : begin + _ROWS_IN_CACHE]
            start = starts[part]
            size = sizes[part].astype(np.uint64)
            state = _sip_start(key, len(part))
            for word in range(int(count)):
                _sip_word(state, word_at[start + 8 * word])
            tail_bits = (size & np.uint64(7)) << np.uint64(3)
            tail = word_at[start + 8 * int(count)] & ((np.uint64(1) << tail_bits) - np.uint64(1))
            _sip_word(state, tail | (size << np.uint64(56)))
            high[part], low[part] = _sip_finish(state)
    return high, low


def permutation(key: tuple[int, int], n: int) -> npt.NDArray[np.int64]:
    """Return a pseudorandom order of 0..n-1 for this key.

    Each index is packed below random high bits from Philox4x64-10 (Salmon et al., 2011), whose raw
    output is fixed, and the words are sorted: distinct words have one sorted order, whatever the
    sorting algorithm.
    """
    if n <= 1:
        return np.arange(n, dtype=np.int64)
    words, mask = _random_words(key, n)
    _tag(words, mask)
    words.sort()
    words &= mask
    return words.view(np.int64)


def permutations(key: tuple[int, int], n: int, *, first: int, count: int) -> npt.NDArray[np.int64]:
    """Return orders number first .. first + count - 1 of 0..n-1 for this key, int64 [count, n].

    Each is the same whichever are asked for together; number 0 is `permutation`.
    """
    counters = -(-n // 4)  # Philox gives four words each
    generator = np.random.Philox(key=np.array(key, np.uint64), counter=first * counters)
    words: U64 = generator.random_raw(4 * counters * count).reshape(count, -1)[:, :n].copy()
    mask = _index_mask(n)
    words &= ~mask
    words |= np.arange(n, dtype=np.uint64)
    words.sort(axis=1)
    words &= mask
    return words.view(np.int64)


def inverse_permutation(
    key: tuple[int, int], n: int, items: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Find where `permutation(key, n)` has each of these items: its inverse, at items of 0..n-1.

    A few items are placed by counting the words below theirs, which spares the sort and the
    packing.
    """
    if n <= 1:
        return np.zeros(len(items), np.int64)
    words, mask = _random_words(key, n)
    if len(items) <= _FEW_ITEMS:
        counts = [
            # Of equal high bits those of a lower index are below.
            np.count_nonzero(words[:item] <= word | mask)
            + np.count_nonzero(words[item:] < word & ~mask)
            for item, word in zip(items.tolist(), words[items], strict=True)
        ]
        return np.array(counts, np.int64)
    _tag(words, mask)
    item_words = words[items]
    words.sort()
    return np.searchsorted(words, item_words).astype(np.int64)


def _random_words(key: tuple[int, int], n: int) -> tuple[U64, np.uint64]:
    """Return a random word for each index, and the mask of the low bits that indices take."""
    words: U64 = np.random.Philox(key=np.array(key, np.uint64)).random_raw(n)
    return words, _index_mask(n)


def _index_mask(n: int) -> np.uint64:
    """Return the low bits of a word that an index takes."""
    return np.uint64((1 << max(1, int(n - 1).bit_length())) - 1)


def _tag(words: U64, mask: np.uint64) -> None:
    """Put the index of each word into its low bits."""
    # In place and within the cache: a round has millions of rows, and to touch fresh memory for
    # their numbers takes as long as to sort them.
    for begin in range(0, len(words), _ROWS_IN_CACHE):
        part = words[begin : begin + _ROWS_IN_CACHE]
        part &= ~mask
        part |= np.arange(begin, begin + len(part), dtype=np.uint64)


def _rotl(x: U64, bits: int) -> U64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _sip_start(key: tuple[int, int], n: int) -> list[U64]:
    k0, k1 = key
    constants = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    state = [np.full(n, c ^ k, np.uint64) for c, k in zip(constants, (k0, k1, k0, k1), strict=True)]
    state[1] ^= np.uint64(0xEE)
    return state


def _sip_round(v: list[U64]) -> None:
    v[0] = v[0] + v[1]
    v[1] = _rotl(v[1], 13) ^ v[0]
    v[0] = _rotl(v[0], 32)
    v[2] = v[2] + v[3]
    v[3] = _rotl(v[3], 16) ^ v[2]
    v[0] = v[0] + v[3]
    v[3] = _rotl(v[3], 21) ^ v[0]
    v[2] = v[2] + v[1]
    v[1] = _rotl(v[1], 17) ^ v[2]
    v[2] = _rotl(v[2], 32)


def _sip_word(v: list[U64], word: U64) -> None:
    v[3] = v[3] ^ word
    _sip_round(v)
    _sip_round(v)
    v[0] = v[0] ^ word


def _sip_finish(v: list[U64]) -> tuple[U64, U64]:
    v[2] = v[2] ^ np.uint64(0xEE)
    for _ in range(4):
        _sip_round(v)
    high = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] = v[1] ^ np.uint64(0xDD)
    for _ in range(4):
        _sip_round(v)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    return high, low
