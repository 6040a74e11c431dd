"""Refuse to measure on a busy machine.

    python benchmarks/quiet.py [--seconds 5]

Exits with 1 if other processes take more than a twentieth of the processors for so long. What comes later is kept
beside each table, see `reporting.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from reporting import seconds_of_others

MOST = 0.05


def busy_share(seconds: float) -> float:
    """The share of all processors that other processes take during so many seconds."""
    before, began = seconds_of_others(), time.perf_counter()
    time.sleep(seconds)
    spent, wall = seconds_of_others() - before, time.perf_counter() - began
    return spent / (wall * (os.cpu_count() or 1))


def main() -> int:
    """Look, and say what was seen if it is too much."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--seconds", type=float, default=5.0)
    share = busy_share(made.parse_args().seconds)
    if share <= MOST:
        return 0
    print(
        f"other processes take {share:.0%} of this machine: figures of it would say little."
        " End them and measure again",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
