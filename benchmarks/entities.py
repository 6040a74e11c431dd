"""Memory and time of allocating entities to train and val.

    python benchmarks/entities.py [--entities 1000000 10000000]

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


def measure(entities: int) -> dict[str, float]:
    """Allocate in this process; figures in bytes and seconds."""
    import numpy as np
    import pyarrow as pa

    from headrace.recipes.temporal_split.allocate import EntitySet, allocate, hash_entities

    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    per_shard = min(entities, 500_000)
    seen = EntitySet()
    hashing = 0.0
    began = time.perf_counter()
    for first in range(0, entities, per_shard):
        numbers = np.arange(first, min(first + per_shard, entities))
        numbers = np.concatenate([numbers, numbers[::10]])
        texts = pa.array(np.char.mod("C%09d", numbers))
        hashed = time.perf_counter()
        seen.add(hash_entities(texts, 42))
        hashing += time.perf_counter() - hashed
    allocation = allocate(seen.ordered(), 0.9)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    sides = allocation.side_of(allocation.known)
    lookup = time.perf_counter() - began
    assert int((sides == 0).sum()) == allocation.train == int(entities * 0.9)
    kept = allocation.known.high.nbytes + allocation.known.low.nbytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - start
    return {"kept": kept, "peak": peak, "seconds": seconds, "hashing": hashing, "lookup": lookup}


def main() -> None:
    """One row a size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entities", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    print(f"{'entities':>12}{'kept B/entity':>15}{'peak B/entity':>15}{'hash ns':>10}{'lookup ns':>11}{'total s':>9}")
    for entities in options.entities:
        command = [sys.executable, __file__, "--child", str(entities)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        each = {name: value / entities for name, value in found.items()}
        print(
            f"{entities:>12,}{each['kept']:>15.1f}{each['peak']:>15.1f}"
            f"{each['hashing'] * 1e9:>10.0f}{each['lookup'] * 1e9:>11.0f}{found['seconds']:>9.1f}"
        )


if __name__ == "__main__":
    main()
