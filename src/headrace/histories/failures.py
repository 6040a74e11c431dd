"""Count the failed measurements by reason, with the location of the first and a few values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import numpy as np

from headrace.arrays import F64, I8, I64, U16, Bools


class Failed(TypedDict):
    """Measurements that failed for one reason. values: up to five distinct ones, in order of appearance."""

    rows: int
    first: str
    values: list[float]


_FAILURES: dict[str, Callable[[F64], Bools]] = {
    "missing": np.isnan,
    "negative": lambda values: values < 0,
    "zero": lambda values: values == 0,
}
_VALUES_TOLD, _LOOKED_AT = 5, 1 << 10


def add_failed(known: dict[str, Failed], word: str, more: Failed) -> None:
    """Add a later count of failures to the known ones."""
    before = known.get(word, Failed(rows=0, first=more["first"], values=[]))
    values = list(dict.fromkeys([*before["values"], *more["values"]]))[:_VALUES_TOLD]
    known[word] = Failed(rows=before["rows"] + more["rows"], first=before["first"], values=values)


def count_failed(values: F64, codes: U16, reason: I8, where: tuple[I64, str], known: dict[str, Failed]) -> None:
    """Count the failed measurements.

    reason: 0 for rows that are measurements.
    where: row numbers, and the file.
    """
    rows, name = where
    at = np.flatnonzero((codes == 0) & (reason == 0))
    for word, test in _FAILURES.items() if len(at) else ():
        mine = at[test(values[at])]
        if len(mine):
            found, first = np.unique(values[mine[:_LOOKED_AT]], return_index=True)
            told = found[np.argsort(first)][:_VALUES_TOLD].tolist() if word == "negative" else []
            failed = Failed(rows=len(mine), first=f"{name}: row {int(rows[mine[0]]) + 1}", values=told)
            add_failed(known, word, failed)
