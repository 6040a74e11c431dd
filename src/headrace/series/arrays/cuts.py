"""Cut a series into train, val and test by counts of observed targets, never by removing rows.

Of n observed targets the first floor(n × train) train and the next floor(n × val) validate; the rest tests. A part ends
with its last target's row, so rows without a target stay where time has them and every part is one run of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ROUNDING = 1e-9  # 10 × 0.7 is 7.000000000000001, 0.29 × 100 is 28.999999999999996


@dataclass(frozen=True)
class Cut:
    """Rows [0, val_row) train, [val_row, test_row) validate, the rest tests; and how many targets each part has."""

    val_row: int
    test_row: int
    train_targets: int
    val_targets: int
    test_targets: int


def cut(observed: npt.NDArray[np.bool_], train: float, val: float) -> Cut:
    """Cut the rows of one entity. observed: whether each row's target was observed, bool [T]; shares of targets."""
    rows = np.flatnonzero(observed)
    n = len(rows)
    train_targets = share_of(n, train)
    val_targets = min(share_of(n, val), n - train_targets)
    last = train_targets + val_targets
    val_row = int(rows[train_targets - 1]) + 1 if train_targets else 0
    test_row = int(rows[last - 1]) + 1 if last else 0
    return Cut(val_row, max(test_row, val_row), train_targets, val_targets, n - last)


def cut_at(observed: npt.NDArray[np.bool_], val_row: int, test_row: int) -> Cut:
    """Return the cut whose parts begin at these rows. observed: as in `cut`."""
    parts = np.split(observed, [val_row, test_row])
    return Cut(val_row, test_row, *(int(part.sum()) for part in parts))


def share_of(count: int, share: float) -> int:
    """Return floor(count × share), where a product that is meant to be whole is whole."""
    return int(np.floor(count * share + _ROUNDING))
