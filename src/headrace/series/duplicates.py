"""Find entities that are one series under two names: the same cleaned values, times and cuts.

Each entity is digested when it is cleaned. The digests of all are compared in memory, O(entities). The first entity of
each series, in the order of entities, is the original.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from headrace.arrays import F32, F64
from headrace.digest import canonical_json
from headrace.series.clean import Cleaned

REASON = "duplicate"


def values_digest(values: F32 | F64, *where: int | str) -> str:
    """Digest values and their positions; all missing values count as equal, and so do zeros of either sign."""
    same = np.add(values, values.dtype.type(0), order="C")  # turns -0.0 into 0.0
    same[np.isnan(same)] = np.nan  # one bit pattern for every NaN
    digest = blake2b(canonical_json([*values.shape, *where]), digest_size=16)
    digest.update(same.data)
    return digest.hexdigest()


def series_digest(cleaned: Cleaned) -> str:
    """Digest the values, times and cuts of an entity."""
    axis, cut = cleaned.axis, cleaned.cut
    return values_digest(cleaned.values, axis.first, axis.anchor, cut.val_row, cut.test_row)


def find_copies(series: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Map each entity whose series an earlier one has to the first that has it.

    series: pairs of an entity and the value to compare.
    """
    first: dict[object, str] = {}
    found = ((entity, first.setdefault(own, entity)) for entity, own in series)
    return {entity: original for entity, original in found if entity != original}
