"""Choose bins for sequences: one call for all packers.

Pack a whole data set at once, not a batch of it: fill grows with the choice. 1 M lengths, lognormal with mean 600,
capacity 4,096:

    first_fit_decreasing   99.99 % full; bins of 1 to more than 200 sequences; the fastest
    best_fit_shuffle       99.8 % full; bins of even size
    exact_fit_shuffle      99.6 % full here; of chats the least number of bins there can be; bins of even size
    fullest_shuffle        of best fit and exact fit the one with fewer bins
    concatenative          about 85 % full; keeps the order
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64
from headrace.bins.best_fit import best_fit_shuffle
from headrace.bins.bins import Bins
from headrace.bins.concatenative import concatenative
from headrace.bins.decreasing import first_fit_decreasing
from headrace.bins.exact_fit import exact_fit_shuffle

Algorithm = Literal[
    "best_fit_shuffle",
    "exact_fit_shuffle",
    "fullest_shuffle",
    "first_fit_decreasing",
    "concatenative",
]

_MANY = 1_000_000  # sequences above which exact fit takes longer than its few bins are worth

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


def pack(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    algorithm: Algorithm = "best_fit_shuffle",
    seed: int = 0,
    max_sequences: int | None = None,
) -> Bins:
    """Every sequence in exactly one bin, no bin dearer than `capacity`; the same for the same arguments anywhere.

    lengths: integers [n], what each sequence costs, 1..capacity. That is its tokens, or where a reader drops one token
    of each sequence its tokens - 1, at least 1. What is longer has to be cut or dropped before, and counted.
    seed: of the shuffling packers; the two others have nothing to shuffle. max_sequences: most sequences in a bin.
    The order of the bins is the packer's; `Bins.shuffled` makes it random. Raises `ValueError` naming the sequence.
    """
    costs = _checked(lengths, capacity)
    if max_sequences is not None and max_sequences < 1:
        raise ValueError(f"pack: max_sequences is {max_sequences}; give at least 1, or None for no limit")
    if algorithm == "best_fit_shuffle":
        return best_fit_shuffle(costs, capacity, seed=seed, max_sequences=max_sequences)
    if algorithm == "fullest_shuffle":
        best = best_fit_shuffle(costs, capacity, seed=seed, max_sequences=max_sequences)
        if len(costs) > _MANY or len(best) * capacity < int(costs.sum()) + capacity:
            return best
        exact = exact_fit_shuffle(costs, capacity, seed=seed, max_sequences=max_sequences)
        return exact if len(exact) < len(best) else best
    if algorithm == "exact_fit_shuffle":
        return exact_fit_shuffle(costs, capacity, seed=seed, max_sequences=max_sequences)
    if algorithm == "first_fit_decreasing":
        return first_fit_decreasing(costs, capacity, max_sequences=max_sequences)
    if algorithm == "concatenative":
        return concatenative(costs, capacity, max_sequences=max_sequences)
    raise ValueError(f"pack: algorithm is {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")


def _checked(lengths: npt.ArrayLike, capacity: int) -> I64:
    if capacity < 1:
        raise ValueError(f"pack: capacity is {capacity}; give the size of a bin in tokens, at least 1")
    given = np.asarray(lengths)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise ValueError(f"pack: lengths have shape {given.shape} and type {given.dtype}; give integers in one axis")
    outside = np.flatnonzero((given < 1) | (given > capacity)) if len(given) else given
    if len(outside):
        first = int(outside[0])
        raise ValueError(
            f"pack: sequence {first} costs {given[first]}, a bin holds 1 to {capacity} ({len(outside)} do not fit); "
            f"cut, split or drop them before, and count them"
        )
    return given.astype(np.int64, copy=False)
