"""Histories of so many measurements that each pass takes a while, merged from runs or not."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, SHARDS, ENTITIES, PEERS = 300_000, 10, 500, 64
IN_MEMORY: dict[str, Any] = {"partitions": 6, "memory_limit": 2 << 30}
MERGED: dict[str, Any] = {
    "partitions": 3,
    "memory_limit": 128 << 20,
}  # two shards at a time, slices of 32,768
MERGED_ALONE: dict[str, Any] = {"partitions": 4, "memory_limit": 64 << 20}


def write_large(directory: Path, rows: int = ROWS) -> Path:
    """Shards in no order of time. One entity has more than a quarter of all measurements, and half of the entities
    have less than one in 4,000 each; there are ties and failures."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(rows)
    weights = 1 / np.arange(1, ENTITIES + 1) ** 1.3
    entity = random.choice(ENTITIES, size=rows, p=random.permutation(weights / weights.sum()))
    second = 1_700_000_000 + random.integers(40_000, size=rows)
    table = pa.table(
        {
            "rtt": np.where(random.random(rows) < 0.1, np.nan, random.lognormal(3, 1.5, rows)),
            "src_addr": _addresses(random, ENTITIES)[entity],
            "event_time": pa.array(
                second * 1_000_000 + random.choice([0, 5], size=rows), pa.timestamp("us", "UTC")
            ),
            "dst_addr": _addresses(random, PEERS)[random.integers(PEERS, size=rows)],
        }
    )
    for number in range(SHARDS):
        mine = table.take(pa.array(np.arange(number, rows, SHARDS)))
        pq.write_table(mine, directory / f"part-{number:05d}.parquet", row_group_size=10_000)
    return directory


def _addresses(random: np.random.Generator, count: int) -> np.ndarray:
    of_4 = [str(ipaddress.IPv4Address(random.bytes(4))) for _ in range(count // 2)]
    of_6 = [str(ipaddress.IPv6Address(random.bytes(16))) for _ in range(count - len(of_4))]
    return np.array(of_4 + of_6, object)
