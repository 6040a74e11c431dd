"""Prepared histories for tests: real runs of the recipe, of synthetic pings."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace


def pings(path, *, small=400, large=6, large_n=2500, seed=0):
    """Shards of pings: many probes with few measurements, few with many; in random order."""
    random = np.random.default_rng(seed)
    n = np.concatenate([random.integers(1, 40, small), np.full(large, large_n)])
    probe = np.repeat(np.arange(len(n)), n)
    total = len(probe)
    address = np.array(
        [
            f"10.0.{each // 256}.{each % 256}" if each % 5 else f"2001:db8::{each:x}"
            for each in range(len(n))
        ]
    )
    peers = np.array(
        [f"192.0.2.{each}" for each in range(40)] + [f"2001:db8:1::{each:x}" for each in range(10)]
    )
    order = random.permutation(total)
    table = pa.table(
        {
            "src_addr": address[probe][order],
            "dst_addr": peers[random.integers(0, 50, total)][order],
            "event_time": pa.array(
                (1_500_000_000 + random.integers(0, 10_000_000, total))[order] * 1_000_000,
                pa.timestamp("us"),
            ),
            "rtt": np.where(random.random(total) < 0.03, -1.0, random.lognormal(3, 1, total))[
                order
            ],
        }
    )
    path.mkdir(parents=True)
    for shard in range(4):
        pq.write_table(
            table.slice(shard * total // 4, (shard + 1) * total // 4 - shard * total // 4),
            path / f"part-{shard}.parquet",
        )


def prepared(path, *, format_="array_record", max_row_bytes=1 << 13, **kinds):
    pings(path / "pings", **kinds)
    headrace.prepare(
        headrace.Histories(
            source=path / "pings",
            peer="dst_addr",
            format=format_,
            max_row_bytes=max_row_bytes,
            partitions=3,
            seed=1,
        ),
        path / "out",
    )
    return path / "out"
