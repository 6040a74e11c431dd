"""Find rows that hold the same content, and join them to units that share a split. Pure.

Rows are joined where they ask the same (the same digest of user turns, or of named columns), where a sequence of one is
a sequence of the other, token for token and label for label, where sequences of theirs are near if that is asked for,
and where they have one entity. What is joined through others is joined: a unit is a connected component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U64, least_of_component, number_rows
from headrace.packing.sequences import Origins


@dataclass(frozen=True)
class Repeats:
    """Rows of all datasets end to end [R], compared with each other.

    unit: the number of each row's component; unit_high, unit_low: what the component is drawn by, the least hash of
    its rows, so that a row that repeats no other is drawn as it would be alone.
    content: the number of what each row asks; is_copy: whether all of a row is in an earlier one.
    """

    unit: I64
    unit_high: U64
    unit_low: U64
    content: I64
    is_copy: npt.NDArray[np.bool_]

    @property
    def facts(self) -> dict[str, int]:
        """Count the rows, those that ask what an earlier one asks, the copies, and the rows of the largest unit."""
        return {
            "rows": len(self.unit),
            "same_content": len(self.content) - int(self.content.max(initial=-1)) - 1,
            "copies": int(self.is_copy.sum()),
            "largest": int(np.bincount(self.unit).max(initial=0)),
        }


def find_repeats(origins: Sequence[Origins], least_tokens: int, near: I64 | None = None) -> Repeats:
    """Compare all rows of all datasets. least_tokens: shorter sequences join no rows.

    near: numbers of all sequences, int64; those that are near have one.
    """
    every = Origins.joined(origins)
    counts = np.concatenate([np.diff(each.first_of_row, append=len(each)) for each in origins])
    first = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(counts)), counts)
    entity = number_rows(every.unit_high[first], every.unit_low[first])
    content = number_rows(every.content_high[first], every.content_low[first])
    long = every.lengths >= least_tokens
    sequence = number_rows(every.prints[long])
    groups = [(np.arange(len(counts)), entity), (np.arange(len(counts)), content), (row[long], sequence)]
    least = least_of_component(len(counts), groups if near is None else [*groups, (row, near)])
    numbers, unit = np.unique(least, return_inverse=True)

    order = np.lexsort((every.unit_low[first], every.unit_high[first]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    lowest = np.full(len(numbers), len(order))
    np.minimum.at(lowest, unit, rank)
    drawn = first[order[lowest[unit]]]

    sums = np.add.reduceat(every.prints, first) if len(first) else every.prints
    _, first_copy = np.unique(number_rows(content.astype(np.uint64), sums, counts.astype(np.uint64)), return_index=True)
    is_copy = np.ones(len(counts), np.bool_)
    is_copy[first_copy] = False
    return Repeats(unit, every.unit_high[drawn], every.unit_low[drawn], content, is_copy)
