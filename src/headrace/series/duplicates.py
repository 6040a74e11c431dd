"""Find entities that are one series under two names: the same cleaned values, times and cuts.

Each entity is digested when it is cleaned; digests of all are compared in memory, O(entities). The first of each series
is the original, in the order of entities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b

import numpy as np

from headrace.digest import canonical_json
from headrace.series.clean import Cleaned

REASON = "duplicate"
_SHOWN = 3  # copies in a message


def series_digest(cleaned: Cleaned) -> str:
    """Digest the values, times and cuts of an entity; missing values and zeros of either sign are the same."""
    values = np.add(cleaned.values, 0.0, order="C")  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan  # of all the bit patterns that are NaN
    axis, cut = cleaned.axis, cleaned.cut
    where = [axis.frequency.word, axis.first, axis.anchor, *values.shape, cut.val_row, cut.test_row]
    digest = blake2b(canonical_json(where), digest_size=16)
    digest.update(values.data)
    return digest.hexdigest()


def find_copies(series: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Map each entity whose series an earlier one has to the first that has it. series: entities, what to compare."""
    first: dict[object, str] = {}
    found = ((entity, first.setdefault(own, entity)) for entity, own in series)
    return {entity: original for entity, original in found if entity != original}


def why_left_out(original: str) -> str:
    """Say why a copy is left out."""
    return f"has the values and times of {original!r}"


def copies_told(copies: Mapping[str, str], entities: int) -> Iterator[str]:
    """Warn of copies that stay."""
    if copies:
        shown = ", ".join(f"{each!r} those of {copies[each]!r}" for each in list(copies)[:_SHOWN])
        more = f" and {len(copies) - _SHOWN:,} more" if len(copies) > _SHOWN else ""
        yield (
            f"{len(copies):,} of {entities:,} entities have the values and times of an earlier one under another name: "
            f'{shown}{more}; choose duplicates="drop" to leave them out'
        )
