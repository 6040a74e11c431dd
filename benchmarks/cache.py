"""How close later epochs of cache="decoded" come to copying memory: one ratio, of CPU seconds.

    python benchmarks/cache.py [--rows 2000000] [--columns 28] [--dir DIR]

Decodes every block once through `CachedBlocks`, then compares, pass by pass and in turn: copying every column of every
mapped block into a buffer, against copying the same arrays from memory into the same buffer.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace
from headrace.stream.cache import CachedBlocks

BLOCK_ROWS = 65_536


def cpu_s(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=28)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None)
    asked = parser.parse_args()
    where = Path(tempfile.mkdtemp(prefix="headrace-cache-", dir=asked.dir))
    try:
        random = np.random.default_rng(0)
        numbers = {f"f{n:02d}": random.standard_normal(asked.rows, np.float32) for n in range(asked.columns)}
        pq.write_table(pa.table(numbers), where / "a.parquet", row_group_size=BLOCK_ROWS)
        del numbers
        dataset = headrace.open(where / "a.parquet", cache_dir=where / "index")
        blocks = range(len(dataset.split_index().rows))
        cached = CachedBlocks(
            dataset.block_reader(), contents=dataset.contents, directory=where / "decoded", limit_bytes=1 << 40
        )
        first = cpu_s(lambda: [cached(block, None) for block in blocks])
        checked = cpu_s(lambda: [cached(block, None) for block in blocks])
        buffer = np.empty(BLOCK_ROWS, np.float32)

        def copy(table: pa.Table) -> None:
            for column in table.columns:
                array = column.chunk(0).to_numpy(zero_copy_only=True)
                np.copyto(buffer[: len(array)], array)

        memory = [dataset.block_reader()(block, None) for block in blocks]
        ratios = []
        for _ in range(asked.passes):
            mapped = cpu_s(lambda: [copy(cached(block, None)) for block in blocks])
            copied = cpu_s(lambda: [copy(table) for table in memory])
            ratios.append((copied / mapped, mapped, copied))
        ratio, mapped, copied = sorted(ratios)[len(ratios) // 2]
        size = asked.rows * asked.columns * 4
        print(f"{asked.rows:,} rows, {asked.columns} float32 columns, {size / 1e6:,.0f} MB, {len(blocks)} blocks")
        print(f"first epoch   decode and store  {first:.3f} CPU s")
        print(f"second epoch  map and check     {checked:.3f} CPU s (once in each process)")
        print(f"later epochs  map and copy      {mapped:.3f} CPU s, {size / mapped / 1e9:.1f} GB/s")
        print(f"memcpy        copy from memory  {copied:.3f} CPU s, {size / copied / 1e9:.1f} GB/s")
        print(f"ratio {ratio:.2f}, {cached.counts}")
    finally:
        shutil.rmtree(where)


if __name__ == "__main__":
    main()
