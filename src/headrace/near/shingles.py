"""Hash the shingles of documents, which are consecutive words of texts or consecutive tokens.

Words are runs of letters and digits in lower case; in a script without blanks, each character is a word. So case,
punctuation and blanks do not count. A document with fewer words than a shingle is one shingle; one without words has
none. Hashes have 64 bits and depend only on the words, not on the machine or on versions of libraries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import I64, U64, Ints
from headrace.digest import derive_key
from headrace.draws import GAMMA, mix
from headrace.keyed_hash import hash_texts

WORDS, TOKENS = 3, 5  # in a shingle; a word of most languages is between one and two tokens

_NO_BLANKS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = rf"[{_NO_BLANKS}]|[\w&&[^{_NO_BLANKS}]]+"
_KEY = derive_key(0, "near words")


@dataclass(frozen=True)
class Shingles:
    """The hashed shingles of documents, end to end; a document may hold a shingle twice.

    hashes: uint64. offsets: int64 [documents + 1], where each document begins.
    """

    hashes: U64
    offsets: I64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lists(self) -> pa.LargeListArray:
        """Return a view of them as one list per document."""
        return pa.LargeListArray.from_arrays(pa.array(self.offsets), pa.array(self.hashes))


def words_of(texts: pl.Series) -> tuple[pl.Series, I64]:
    """Return the words of texts, end to end, and the number of words in each text."""
    lists = texts.str.to_lowercase().str.extract_all(_WORD)
    counts = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    return lists.filter(pl.Series(counts > 0)).explode(), counts


def shingles_of_texts(texts: pl.Series, document: I64, documents: int) -> Shingles:
    """Hash the shingles of documents. A document is its texts end to end, in their order.

    document: the number of each text's document, below `documents`; int64 [texts].
    """
    if len(document) and np.any(np.diff(document) < 0):
        order = np.argsort(document, kind="stable")
        texts, document = texts.gather(order), document[order]
    words, counts = words_of(texts)
    distinct = words.to_arrow().dictionary_encode()  # texts repeat words, so hash distinct words only
    hashes = hash_texts(_KEY, distinct.dictionary)[0][distinct.indices.to_numpy()]
    return _in_a_row(hashes, np.bincount(document, counts, documents).astype(np.int64), WORDS)


def shingles_of_tokens(tokens: Ints, lengths: I64) -> Shingles:
    """Hash the shingles of sequences. tokens: ids, flat; lengths: length of each sequence, int64."""
    return _in_a_row(mix(tokens.astype(np.uint64) + np.uint64(GAMMA)), lengths, TOKENS)


def take_sequences(tokens: Ints, lengths: I64, wanted: I64 | None) -> tuple[Ints, I64]:
    """Return the wanted ones of the sequences that lie end to end in `tokens`, copied, and their lengths.

    wanted: numbers of sequences; None: all, not copied.
    """
    if wanted is None:
        return tokens, lengths
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]))
    taken = pa.LargeListArray.from_arrays(ends, pa.array(tokens)).take(pa.array(wanted))
    return taken.flatten().to_numpy(), lengths[wanted]


def _in_a_row(words: U64, counts: I64, size: int) -> Shingles:
    """Hash every `size` consecutive words; of a document with fewer words, all of them.

    counts: number of words of each document.
    """
    ends = np.cumsum(counts)
    starts = ends - counts
    first = np.ones(len(words), np.bool_)  # marks the first word of each shingle
    for back in range(1, size):
        first[ends[counts > back] - back] = False
    hashes = np.zeros(len(words), np.uint64)
    whole = max(0, len(words) - size + 1)
    for turn in range(size):
        hashes[:whole] = hashes[:whole] * np.uint64(GAMMA) + words[turn : turn + whole]
    for count in range(1, size):
        at = starts[counts == count]
        hashes[at] = count
        for turn in range(count):
            hashes[at] = hashes[at] * np.uint64(GAMMA) + words[at + turn]
    own = np.where(counts > 0, np.maximum(counts - size + 1, 1), 0)
    return Shingles(mix(hashes[first]), np.concatenate([[0], np.cumsum(own)]))
