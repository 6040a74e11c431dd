"""How close later epochs of cache="decoded" come to copying memory: one ratio, of CPU seconds.

    python benchmarks/cache.py [--rows 2000000] [--columns 28] [--dir DIR]

Decodes every block once through `CachedBlocks`, then compares, pass by pass and in turn: copying every column of every
mapped block into a buffer, against copying the same arrays from memory into the same buffer.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Cell, Table, figure, ratio
from reporting import parser, publish

import headrace
from headrace.stream.read.cache import CachedBlocks

BLOCK_ROWS = 65_536


def cpu_s(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def tables(rows: int, columns: int, passes: int, folder: Path | None) -> Iterator[Table]:
    """What every epoch costs."""
    where = Path(tempfile.mkdtemp(prefix="headrace-cache-", dir=folder))
    try:
        random = np.random.default_rng(0)
        numbers = {f"f{n:02d}": random.standard_normal(rows, np.float32) for n in range(columns)}
        pq.write_table(pa.table(numbers), where / "a.parquet", row_group_size=BLOCK_ROWS)
        del numbers
        dataset = headrace.open(where / "a.parquet", cache_dir=where / "index")
        blocks = range(len(dataset.split_index().rows))
        cached = CachedBlocks(
            dataset.block_reader(),
            contents=dataset.contents,
            directory=where / "decoded",
            limit_bytes=1 << 40,
        )
        first = cpu_s(lambda: [cached(block, None) for block in blocks])
        checked = cpu_s(lambda: [cached(block, None) for block in blocks])
        buffer = np.empty(BLOCK_ROWS, np.float32)

        def copy(table: pa.Table) -> None:
            for column in table.columns:
                array = column.chunk(0).to_numpy(zero_copy_only=True)
                np.copyto(buffer[: len(array)], array)

        memory = [dataset.block_reader()(block, None) for block in blocks]
        mapped, copied = [], []
        for _ in range(passes):
            mapped.append(cpu_s(lambda: [copy(cached(block, None)) for block in blocks]))
            copied.append(cpu_s(lambda: [copy(table) for table in memory]))
        size = rows * columns * 4

        def line(
            epoch: str, what: str, seconds: list[float], of_memory: list[float]
        ) -> tuple[Cell, ...]:
            speed = figure([size / 1e9 / each for each in seconds], 1)
            return epoch, what, figure(seconds, 3), speed, ratio(of_memory, seconds)

        yield Table(
            "epochs",
            f'cache="decoded": {rows:,} rows, {columns} float32 columns, {size / 1e6:,.0f} MB, {len(blocks)} blocks',
            ("epoch", "what is done", "CPU s", "GB/s", "speed, of memory's"),
            [
                line("first", "decode and store", [first], copied[:1]),
                line("second", "map and check, once in each process", [checked], copied[:1]),
                line("later", "map and copy", mapped, copied),
                line("–", "copy from memory", copied, copied),
            ],
        )
    finally:
        shutil.rmtree(where)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=2_000_000)
    made.add_argument("--columns", type=int, default=28)
    made.add_argument("--passes", type=int, default=5)
    made.add_argument("--dir", type=Path, default=None)
    asked = made.parse_args()
    publish(tables(asked.rows, asked.columns, asked.passes, asked.dir), asked.json)


if __name__ == "__main__":
    main()
