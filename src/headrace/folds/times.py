"""Compute the times of folds whose cuts roll. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.arrays import I64
from headrace.folds.settings import Rolling


@dataclass(frozen=True)
class FoldTimes:
    """The times of rolling folds on one clock, in microseconds [F]: train has [start, end), test
    has [cut, stop).
    """

    start: I64
    end: I64
    cut: I64
    stop: I64

    @classmethod
    def of(cls, cuts: Sequence[int], rolling: Rolling, reach_us: int) -> FoldTimes:
        """Return the times of folds with these cuts.

        reach_us: how long before its cut each fold's train split ends.
        """
        cut = np.array(cuts, np.int64)
        end = cut - reach_us
        earliest = np.full(len(cut), np.iinfo(np.int64).min)
        if rolling.window_us is None:
            start = earliest
        else:
            start = end - rolling.window_us
        return cls(start, end, cut, np.append(cut[1:], cut[-1] + rolling.step_us))

    def seen_from(self, micros: I64) -> I64:
        """Return the first fold that could train on rows with these times; F if there is none."""
        return np.searchsorted(self.end, micros, side="right")
