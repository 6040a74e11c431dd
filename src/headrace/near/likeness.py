"""Decide which pairs are near, by their exact Jaccard index."""

from __future__ import annotations

import numpy as np
import polars as pl

from headrace.arrays import F64, I64


def jaccard(shingles: pl.Series, first: I64, second: I64) -> F64:
    """Compute the Jaccard index of pairs of documents: shared shingles ÷ all; 0 if neither has any.

    shingles: a list for each document; first, second: numbers of documents, int64 [pairs].
    """
    sets = shingles.list.unique()
    counts = sets.list.len().to_numpy().astype(np.int64)
    pairs = pl.DataFrame({"a": sets.gather(first), "b": sets.gather(second)})
    shared = pairs.select(pl.col("a").list.set_intersection("b").list.len()).to_series().to_numpy().astype(np.int64)
    return np.asarray(shared / np.maximum(counts[first] + counts[second] - shared, 1), np.float64)
