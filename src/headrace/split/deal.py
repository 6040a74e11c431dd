"""Deal entities to folds, so that folds are of equal size, or of equal size and mixture. Pure.

Both rules are greedy: the heaviest entities come first, and each goes to the fold that needs it most. Entities of equal
weight keep the order in which they are given, which is that of a keyed hash. The numpy work is per distinct weight, not
per entity, and most data have few distinct weights.
"""

from __future__ import annotations

import numpy as np

from headrace.arrays import F64, I64


def deal(rows: I64, folds: int) -> I64:
    """Return the fold of each entity [E], by its rows, which are positive.

    Entities go in descending order of rows to the fold with the fewest rows so far; ties go to the first fold. Cost is
    O(E log E + distinct sizes × folds).
    """
    order = np.argsort(-rows, kind="stable")
    sizes, begin = np.unique(-rows[order], return_index=True)
    dealt = np.empty(len(rows), np.int64)
    load = np.zeros(folds, np.int64)
    for size, first, stop in zip((-sizes).tolist(), begin.tolist(), [*begin[1:].tolist(), len(rows)], strict=True):
        count = stop - first
        # Fold j takes its next entities at loads load[j], load[j] + size, …, so a merge deals all at once.
        spread = int(load.max() - load.min())
        depth = min(count, -(-count // folds) + -(-spread // size) + 1)
        offers = load[:, None] + size * np.arange(depth)
        # Offers are listed fold by fold, so a stable sort keeps the first fold first among equal loads.
        chosen = np.argsort(offers.ravel(), kind="stable")[:count] // depth
        dealt[order[first:stop]] = chosen
        load += size * np.bincount(chosen, minlength=folds)
    return dealt


def deal_stratified(rows: I64, folds: int) -> I64:
    """Return the fold of each entity [E], by its rows of each class [E, C].

    Entities are dealt in descending order of how unevenly their rows are spread over classes. Each goes to the fold
    that leaves the shares of classes most alike across folds; ties go to the fold with the fewest rows. Among entities
    with the same rows of every class, each fold first gets an equal number, and only the remainder is dealt this way.
    Cost is O(E log E + distinct rows of C × folds²).
    """
    kinds, kind, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    kind = kind.reshape(-1)
    spread = rows.shape[1] * (kinds**2).sum(axis=1) - kinds.sum(axis=1) ** 2  # C² times the variance, exactly
    members = np.argsort(kind, kind="stable")
    ends = np.cumsum(counts)
    total = np.maximum(rows.sum(axis=0), 1).astype(np.float64)
    dealt = np.empty(len(rows), np.int64)
    load = np.zeros((folds, rows.shape[1]))
    for each in np.argsort(-spread, kind="stable").tolist():
        own = members[ends[each] - counts[each] : ends[each]]
        even = len(own) // folds * folds
        dealt[own[:even]] = np.arange(even) % folds
        load += kinds[each] * (even // folds)
        for entity in own[even:]:
            fold = _neediest(load, kinds[each], total)
            dealt[entity] = fold
            load[fold] += kinds[each]
    return dealt


def _neediest(load: F64, more: I64, total: F64) -> int:
    """Find the fold that leaves shares of classes most alike across folds. load: rows by fold and class [F, C]."""
    folds = len(load)
    after = np.repeat(load[None], folds, axis=0)  # [receiving fold, F, C]
    after[np.arange(folds), np.arange(folds)] += more
    uneven = (after / total).std(axis=1).mean(axis=1)
    held = load.sum(axis=1)
    best = 0
    for fold in range(1, folds):  # rounding makes equal folds differ, so nearly equal ones count as equal
        close = np.isclose(uneven[fold], uneven[best])
        if uneven[fold] < uneven[best] or (close and held[fold] < held[best]):
            best = fold
    return best
