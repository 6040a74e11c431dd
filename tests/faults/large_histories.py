"""Histories of so many measurements that each pass takes a while, compiled or not, and merged from runs or not."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.histories import recipe
from headrace.histories.config import Histories
from headrace.run.context import RunContext
from headrace.run.prepare import Outcome

ROWS, SHARDS, ENTITIES, PEERS = 300_000, 10, 500, 64
IN_MEMORY: dict[str, Any] = {"partitions": 6, "memory_limit": 2 << 30}
MERGED: dict[str, Any] = {"partitions": 3, "memory_limit": 128 << 20}  # two pieces at a time, slabs of 32,768
MERGED_ALONE: dict[str, Any] = {"partitions": 4, "memory_limit": 64 << 20}


class Compiled(Histories):
    """Histories that are compiled, however few they are; nothing else differs, their identity included."""

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        worth, recipe.WORTH_COMPILING = recipe.WORTH_COMPILING, 0
        try:
            return super().execute(context, files)
        finally:
            recipe.WORTH_COMPILING = worth


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
            "event_time": pa.array(second * 1_000_000 + random.choice([0, 5], size=rows), pa.timestamp("us", "UTC")),
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


def hear_kernels(say: Callable[[str], None]) -> None:
    """Say the name of a pass each time that this process calls what is compiled of it: once for a batch of a source
    shard, and once for a partition that is sorted in memory, or else for each run and each slab of it."""
    if find_spec("numba") is None:
        return
    from headrace.histories.codec import kernels, partition_kernels

    def heard(module: Any, name: str, of_pass: str) -> None:
        kernel = getattr(module, name)

        def call(*arguments: Any) -> Any:
            say(of_pass)
            return kernel(*arguments)

        setattr(module, name, call)

    heard(kernels, "grouped", "gather")
    heard(partition_kernels, "in_order", "order")
