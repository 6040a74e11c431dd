"""Number entities by their index among known hashes.

Hashing a text and finding its hash takes about 200 ns. So each distinct value of a batch is hashed once, and whole
numbers, the usual ids, are looked up in a cache of those that earlier batches contained.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, Bools
from headrace.formats.text_columns import as_text
from headrace.split.allocate import Hashes, hash_entities

_LEAST_BITS, _MOST_BITS = 10, 22  # 16 bytes a slot, so up to 64 MB
_MIX = np.int64(0x1E3779B97F4A7C15)
_OTHER, _NOBODY = -1, -2


class EntityNumbers:
    """Numbers the entities of columns, as the split reads them; thread-safe. entities: ascending by hash.

    Each whole number maps to one cache slot, which holds the last number that used it. Consecutive ids do not share
    slots.
    """

    def __init__(self, entities: Hashes, null_values: Sequence[str], seed: int) -> None:
        self.entities, self._null_values, self._seed = entities, null_values, seed
        self._bits = min(_MOST_BITS, max(_LEAST_BITS, (4 * len(entities)).bit_length()))
        self._met = np.zeros((1 << self._bits, 2), np.int64)  # value and number, side by side in one cache line
        self._met[0] = 1  # 1 belongs in another slot, so no value counts as met
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return EntityNumbers, (self.entities, self._null_values, self._seed)

    def of(self, column: pa.ChunkedArray) -> tuple[I64, Bools]:
        """Return the entity number of every row, -1 for unknown ones, and which rows have no entity."""
        if pa.types.is_integer(column.type) and column.type != pa.uint64():
            values = pc.fill_null(column, 0).to_numpy().astype(np.int64, copy=False)
            slot = (values + (values >> self._bits) * _MIX) & (len(self._met) - 1)
            with self._lock:
                met = self._met.take(slot, axis=0)
                number: I64 = met[:, 1].copy()
                new = np.flatnonzero(met[:, 0] != values)
                if len(new):
                    number[new] = self._of_any(pa.chunked_array([values[new]]))
                    self._met[slot[new]] = np.stack([values[new], number[new]], axis=1)  # the last one of a slot wins
            if column.null_count:
                number[column.is_null().to_numpy()] = _NOBODY
        else:
            number = self._of_any(column)
        nobody = number == _NOBODY
        if nobody.any():
            number[nobody] = _OTHER
        return number, nobody

    def _of_any(self, column: pa.ChunkedArray) -> I64:
        """Hash each distinct value; `_NOBODY` for rows without entity."""
        encoded = column.combine_chunks().dictionary_encode()
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        texts = as_text(pa.chunked_array([encoded.dictionary]), self._null_values, "entity").combine_chunks()
        number: I64 = self.entities.places(hash_entities(pc.fill_null(texts, ""), self._seed))
        number[np.asarray(texts.is_null(), np.bool_)] = _NOBODY
        found: I64 = np.append(number, _NOBODY)[pc.fill_null(encoded.indices, len(texts)).to_numpy()]
        return found
