"""Features that are the target in another unit: what is predicted would be among the inputs.

Within an entity such a feature is a x target + b, so their correlation is 1 or -1 to many digits; a and b may differ
between entities (discharge over the area of each basin). Columns that hardly vary, or have few values beside the
target's, tell nothing and are not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.arrays import F64, I64
from headrace.series.arrays.statistics import means, present, sums, variances

ALIKE = 0.9999
LEAST_VALUES = 30


def correlations(matrix: F64, offsets: I64, target: int) -> F64:
    """Correlate each column with the column `target` in each group (Pearson's), [G, C]; NaN where it tells nothing.

    Over rows where both have a value; at least `LEAST_VALUES` of them.
    """
    wanted, columns = matrix[:, target : target + 1], matrix.shape[1]
    both = ~np.isnan(matrix) & ~np.isnan(wanted)
    paired = np.concatenate([np.where(both, matrix, np.nan), np.where(both, wanted, np.nan)], axis=1)
    n, mean = means(paired, offsets)

    def products(rows: F64, group: I64) -> F64:
        apart = rows - mean[group]
        return present(apart[:, :columns] * apart[:, columns:])

    with np.errstate(invalid="ignore", divide="ignore"):
        var = variances(paired, offsets, n, mean)
        flat = (var <= 1e-20 * np.square(mean)) | (n < LEAST_VALUES)
        r = sums(paired, offsets, products) / n[:, :columns] / np.sqrt(var[:, :columns] * var[:, columns:])
    return np.where(flat[:, :columns] | flat[:, columns:], np.nan, r)


def tally(columns: Sequence[str], r: F64) -> dict[str, list[int]]:
    """Count, by column, [groups where it is the target in another unit, groups where that could be told].

    r: from `correlations`, of columns without the target. Tallies of batches add up.
    """
    alike, judged = (np.abs(r) > ALIKE).sum(axis=0), (~np.isnan(r)).sum(axis=0)
    return {name: [int(alike[at]), int(judged[at])] for at, name in enumerate(columns)}


def add(tallies: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Add up tallies of different groups."""
    names = sorted({name for each in tallies for name in each})
    return {name: [sum(each[name][at] for each in tallies if name in each) for at in (0, 1)] for name in names}


def suspects(tallies: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Return the columns that are the target in another unit in more than half of the groups that could be judged."""
    return {name: counts for name, counts in add(tallies).items() if counts[0] * 2 > counts[1]}


def warning(target: str, found: Mapping[str, Sequence[int]]) -> str | None:
    """Write a warning about these suspects; None where there are none."""
    if not found:
        return None
    told = "; ".join(f"{name} in {alike:,} of {judged:,} entities" for name, (alike, judged) in found.items())
    return f"looks like {target} in another unit: {told}; leave it out, unless it is known when predicting"
