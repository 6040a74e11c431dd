"""How good a packing is, in the numbers that trainers and reports ask for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.bins.bins import Bins


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingMetrics:
    """Of one packing. All counts; `dataclasses.asdict` is JSON.

    bound: bins that no packing can do without. fill: share of the capacity that is used, 0..1; packing_efficiency is
    the same in percent. packing_factor: sequences a bin. least_load, greatest_load: cost of the emptiest and the
    fullest bin. sequences_p50, …: sequences in a bin.
    """

    sequences: int
    tokens: int
    capacity: int
    bins: int
    bound: int
    fill: float
    packing_factor: float
    packing_efficiency: float
    longest_sequence: int
    least_load: int
    greatest_load: int
    sequences_p50: float
    sequences_p99: float
    sequences_max: int


def packing_metrics(lengths: npt.ArrayLike, bins: Bins, capacity: int) -> PackingMetrics:
    """Of the costs that were given to `pack`; all zero without bins."""
    costs = np.asarray(lengths, np.int64)
    counts, loads = bins.counts, bins.loads(costs)
    tokens = int(loads.sum())
    fill = tokens / (len(bins) * capacity) if len(bins) else 0.0
    p50, p99 = np.percentile(counts, [50, 99]).tolist() if len(bins) else (0.0, 0.0)
    return PackingMetrics(
        sequences=len(bins.sequences),
        tokens=tokens,
        capacity=capacity,
        bins=len(bins),
        bound=-(-tokens // capacity),
        fill=fill,
        packing_factor=len(bins.sequences) / len(bins) if len(bins) else 0.0,
        packing_efficiency=100 * fill,
        longest_sequence=int(costs[bins.sequences].max(initial=0)),
        least_load=int(loads.min()) if len(bins) else 0,
        greatest_load=int(loads.max(initial=0)),
        sequences_p50=p50,
        sequences_p99=p99,
        sequences_max=int(counts.max(initial=0)),
    )
