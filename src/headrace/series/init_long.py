"""Long tables looked at whole: which entities there are, and all rows of a few of them.

An entity's rows may lie anywhere, side by side with those of others in order of time, say, so the first rows tell
neither how long a series is nor how many there are. One pass reads the columns that matter, and keeps the rows of the
entities whose keyed hashes are the smallest so far: one that is among them at the end was so from its first row on.
O(entities + rows of `ENTITIES` of them) of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64
from headrace.digest import derive_key, hash_texts
from headrace.formats.text_columns import as_text
from headrace.series.config import Series
from headrace.series.observed import Observed, parse, tables

ENTITIES = 16  # whose rows are read whole
MOST_BYTES = 2 << 30  # of files that are read for it

_KEY = derive_key(0, "init.entities")


class Looked:
    """What has been seen of long tables so far: `names` of all entities, and rows of a few."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._series = Series(**settings, min_train_years=0)
        self._columns = self._series.columns()
        self._parts: dict[str, list[tuple[I64, F64]]] = {}
        self._hashes: dict[str, tuple[int, int]] = {}
        self.names: set[str] = set()

    def read(self, files: Iterable[tuple[Path, str]]) -> None:
        """All rows of some files. Raises `InputError` for one that cannot be read or lacks a column."""
        wanted = [self._series.entity, self._series.time, *self._columns]
        for path, name in files:
            for table in tables(path, name, wanted):
                self.add(table)

    def add(self, table: pa.Table) -> None:
        """Some rows more."""
        keys = as_text(table[self._series.entity], self._series.null_values, self._series.entity)
        keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        self._choose(keys.unique().drop_null())
        chosen = pc.is_in(keys, value_set=pa.array(sorted(self._hashes), keys.type))
        kept, keys = table.filter(chosen), keys.filter(chosen)
        if not kept.num_rows:
            return
        parsed = parse(self._series, self._columns, kept, 0)
        encoded = keys.dictionary_encode()
        codes = encoded.indices.to_numpy()
        for code, entity in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(codes == code)
            self._parts.setdefault(entity, []).append((parsed.times[rows], parsed.values[rows]))

    def observed(self) -> list[tuple[str, Observed]]:
        """The entities that were read, by name, each with its rows in the order of the source."""
        return [
            (entity, Observed(np.concatenate([t for t, _ in parts]), np.concatenate([v for _, v in parts])))
            for entity, parts in sorted(self._parts.items())
        ]

    def _choose(self, present: pa.Array) -> None:
        """Take in new names; let go of entities that are no longer among the first."""
        new = pa.array([each for each in present.to_pylist() if each not in self.names], pa.string())
        if not len(new):
            return
        high, low = hash_texts(_KEY, new)
        first = np.lexsort((low, high))[:ENTITIES]
        self.names |= set(new.to_pylist())
        self._hashes |= {new[int(at)].as_py(): (int(high[at]), int(low[at])) for at in first}
        for entity in sorted(self._hashes, key=lambda each: self._hashes[each])[ENTITIES:]:
            del self._hashes[entity]
            self._parts.pop(entity, None)
