"""What other loaders deliver of the same rows with worker processes; `other_loaders.py` says how it is counted.

    python benchmarks/loader_workers.py [--rows 1003] [--shards 6] [--loaders headrace grain] [--workers 0 1 2 3]

LanceDB and Grain, whose workers import everything anew, are played with workers on one, two and three ranks only. An
hour in all.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from figures import Table
from other_loaders import HEADS, delivered, how, line, present, refusals, run, titled
from reporting import parser

WORKERS = (0, 1, 2, 3)


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Every loader that is there, one after the other, with several numbers of workers."""
    loaders, missing = present(asked.loaders)
    workers = tuple(asked.workers)
    rows, notes = [], []
    for name in loaders:
        found = delivered(name, asked.rows, asked.shards, workers)
        rows += [line(titled(name), str(each), each, found, asked.rows) for each in workers]
        notes.append(refusals(name, found))
    yield Table(
        "delivered",
        f"{asked.rows:,} rows in {how(asked.shards)}",
        (HEADS[0], "workers", *HEADS[1:]),
        rows,
        note=" ".join(filter(None, notes)),
        missing=missing,
    )


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=1003)
    options.add_argument("--workers", nargs="+", type=int, default=WORKERS, choices=WORKERS)
    run(options, tables)
