"""No date is read as another instant than by `datetime`, pandas or DuckDB."""

import random
import time

import pytest
from dates_fuzz import check, make_input


@pytest.mark.slow
def test_dates_agree_with_other_readers() -> None:
    for number in range(250):  # about 3,000 dates
        check(make_input(random.Random(f"dates 0 {number}")))


@pytest.mark.faults
def test_many_dates_agree_with_other_readers() -> None:
    until, number = time.monotonic() + 300, 0
    while time.monotonic() < until:
        check(make_input(random.Random(f"dates 1 {number}")))
        number += 1
    print(f"{number:,} columns of dates without a difference")
