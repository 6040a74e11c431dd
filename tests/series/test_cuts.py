import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.series.clean import cut_at, cut_by_shares, part_of

SHARES = st.sampled_from(
    [(0.6, 0.2), (0.5, 0.25), (0.7, 0.3), (1.0, 0.0), (0.0, 0.5), (0.1, 0.2), (1 / 3, 1 / 3)]
)


@given(st.lists(st.booleans(), max_size=60), SHARES)
def test_parts_are_runs_of_rows_with_their_share_of_targets(
    observed: list[bool], shares: tuple[float, float]
) -> None:
    rows = np.array(observed, bool)
    found = cut_at(rows, cut_by_shares(rows, *shares))

    assert 0 <= found.val_row <= found.test_row <= len(observed)
    assert found.train_targets == sum(observed[: found.val_row])
    assert found.val_targets == sum(observed[found.val_row : found.test_row])
    assert found.test_targets == sum(observed[found.test_row :])
    n = sum(observed)
    assert found.train_targets == int(n * shares[0] + 1e-6)
    assert found.val_targets == min(int(n * shares[1] + 1e-6), n - found.train_targets)


def test_no_row_is_removed_where_the_target_is_missing() -> None:
    """T1: dropping rows without a target would make rows before and after an outage neighbours."""
    observed = np.array([True, False, False, True, True, False, True])

    found = cut_at(observed, cut_by_shares(observed, 0.5, 0.25))

    assert (4, 5) == (found.val_row, found.test_row)
    assert len(observed) == found.val_row + (found.test_row - found.val_row) + (
        len(observed) - found.test_row
    )


@pytest.mark.parametrize(
    ("count", "share", "whole"),
    [(10, 0.7, 7), (100, 0.29, 29), (10, 0.6, 6), (3, 1 / 3, 1), (7, 0.5, 3)],
)
def test_whole_shares_are_whole(count: int, share: float, whole: int) -> None:
    assert whole == part_of(count, share)
