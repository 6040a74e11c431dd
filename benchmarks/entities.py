"""Memory and time of allocating entities to train and val.

    python benchmarks/entities.py [--entities 1000000 10000000] [--rounds 3]

Each size runs in a process of its own: hash the entity texts shard by shard (each shard sees every tenth entity twice),
gather the distinct ones, allocate, look all of them up. `kept` is what stays in memory for the whole second pass and is
shared by all workers; `peak` is the growth of the process over its start, the texts of one shard included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

from figures import Table, figure
from reporting import parser, publish


def measure(entities: int) -> dict[str, float]:
    """Allocate in this process; figures in bytes and CPU seconds."""
    import numpy as np
    import pyarrow as pa

    from headrace.split.allocate import EntitySet, allocate, hash_entities

    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    per_shard = min(entities, 500_000)
    seen = EntitySet()
    hashing = 0.0
    began = time.process_time()
    for first in range(0, entities, per_shard):
        numbers = np.arange(first, min(first + per_shard, entities))
        numbers = np.concatenate([numbers, numbers[::10]])
        texts = pa.array(np.char.mod("C%09d", numbers))
        hashed = time.process_time()
        seen.add(hash_entities(texts, 42))
        hashing += time.process_time() - hashed
    allocation = allocate(seen.ordered(), 0.9)
    seconds = time.process_time() - began
    began = time.process_time()
    sides = allocation.side_of(allocation.entities)
    lookup = time.process_time() - began
    assert int((sides == 0).sum()) == allocation.train == int(entities * 0.9)
    kept = allocation.entities.high.nbytes + allocation.entities.low.nbytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start
    return {"kept": kept, "peak": peak, "cpu": seconds, "hashing": hashing, "lookup": lookup}


def tables(sizes: list[int], rounds: int) -> Iterator[Table]:
    """One row a size."""
    rows = []
    for entities in sizes:
        command = [sys.executable, __file__, "--child", str(entities)]
        found = [
            json.loads(
                subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            )
            for _ in range(rounds)
        ]
        rows.append(
            (
                f"{entities:,}",
                *(
                    figure([each[name] / entities for each in found], 1)
                    for name in ("kept", "peak")
                ),
                *(
                    figure([each[name] / entities * 1e9 for each in found], 0)
                    for name in ("hashing", "lookup")
                ),
                figure([each["cpu"] for each in found], 1),
            )
        )
    heads = (
        "entities",
        "bytes kept, of each",
        "peak bytes, of each",
        "hashing, ns",
        "look-up, ns",
        "CPU s in all",
    )
    yield Table("allocation", "Entities of a split: distinct, ordered, allocated", heads, rows)


def main() -> None:
    """Measure each size in a process of its own."""
    made = parser(__doc__)
    made.add_argument("--entities", type=int, nargs="+", default=[1_000_000, 10_000_000])
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--child", type=int, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.child:
        print(json.dumps(measure(asked.child)))
        return
    publish(tables(asked.entities, asked.rounds), asked.json)


if __name__ == "__main__":
    main()
