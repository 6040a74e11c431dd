"""Define short names for array types, number equal rows, and find connected components. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

Numbers = TypeVar("Numbers", I64, U64)
Scalar = TypeVar("Scalar", bound=np.generic)


def ranges(first: I64 | int, sizes: I64) -> I64:
    """Return consecutive numbers for each size, from `first` on (0 counts within each group), end
    to end: int64.
    """
    numbers: I64 = np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(
        int(sizes.sum())
    )
    return numbers


def as_array(numbers: I64 | range) -> I64:
    """Return numbers that may be given as a range."""
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    return numbers


def offsets_from_lengths(counts: npt.ArrayLike) -> I64:
    """Return where runs of these lengths begin when they are laid end to end, then their total:
    int64 [N + 1].
    """
    lengths = np.asarray(counts)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets


def concatenated(parts: Iterable[npt.NDArray[Any]], dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    """Return arrays end to end; of none, an empty one of this type."""
    return np.concatenate([np.empty(0, dtype), *parts])


def distinct(values: Numbers) -> Numbers:
    """Return each value once, ascending.

    `np.unique` of integers alone hashes them since NumPy 2.3, which takes a hundred times as long
    for millions of distinct ones.
    """
    ordered = np.sort(values)
    new = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def number_rows(*columns: U64) -> I64:
    """Number the distinct rows of parallel columns [N], from 0; equal rows have one number.

    int64 [N].
    """
    order = np.lexsort(columns)
    new = np.zeros(len(order), np.bool_)
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new)
    return numbers


def least_of_component(rows: int, groups: Sequence[tuple[I64, I64]]) -> I64:
    """Find the connected components of rows 0..rows-1: the least row of each row's component.

    int64 [rows].

    groups: (rows [M], numbers [M]); rows with one number are connected.
    """
    first = [np.empty(0, np.int64)]
    second = [np.empty(0, np.int64)]
    for row, number in groups:
        lowest = np.full(int(number.max(initial=-1)) + 1, rows)
        np.minimum.at(lowest, number, row)
        first.append(row)
        second.append(lowest[number])
    return components(rows, np.concatenate(first), np.concatenate(second))


def components(rows: int, first: I64, second: I64) -> I64:
    """Find the least row of each row's connected component. int64 [rows].

    first, second: int64 [pairs], the rows that are joined.
    Union-find over arrays: each round hangs roots that are joined below the lower one, then
    flattens all trees.
    """
    root = np.arange(rows)
    while True:
        first = root[first]
        second = root[second]
        disjoint = first != second
        if not disjoint.any():
            return root
        first = first[disjoint]
        second = second[disjoint]
        np.minimum.at(root, np.maximum(first, second), np.minimum(first, second))
        while not np.array_equal(root, flat := root[root]):
            root = flat
