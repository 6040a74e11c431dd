"""How long the first batch takes, beside a bare reading of the rows it must wait for, in one run.

    python benchmarks/first_batch.py [--root DIR] [--rounds 15]

The files are those of `streaming.py`. A shuffled stream has to decode one window before it can hand out any of its
rows: the bare contestant reads just the row groups of that window with two threads of pyarrow and takes its rows in
their order, as torch tensors. Both begin from an opened dataset; ratios are of the same round.

A second table has the first batch after a resume, from states at random places of an epoch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from figures import Table, figure, ratio
from reporting import parser, publish
from streaming_data import NUMBERS, make_data

import headrace
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.pools import Pool, least_pool_rows, plan_pools


def first_pool(loader: StreamLoader) -> Pool:
    """What the first batch waits for."""
    plan = loader.plan()
    row_bytes = int(plan.block_bytes.sum()) // max(1, plan.split_rows)
    share = plan.share(rank=0)
    return next(plan_pools(plan.order, plan.remaining, share, least_rows=least_pool_rows(row_bytes)))


def window_reading(loader: StreamLoader, root: Path) -> Callable[[], int]:
    """Decode the window's row groups, cut its pieces, take its rows."""
    index, pool = loader.index, first_pool(loader)
    places = {
        block: (root / index.shards[index.shard_of_block[block]], int(index.block[block])) for block in pool.blocks
    }
    order = None if pool.index is None else pa.array(pool.index)

    def decode(block: int) -> pa.Table:
        path, group = places[block]
        with pq.ParquetFile(path) as file:
            return file.read_row_group(group, columns=NUMBERS, use_threads=False)

    def read() -> int:
        with ThreadPoolExecutor(2) as threads:
            decoded = dict(zip(pool.blocks, threads.map(decode, pool.blocks), strict=True))
        table = pa.concat_tables([decoded[block].slice(start, stop - start) for block, start, stop in pool.pieces])
        table = table if order is None else table.take(order)
        for column in table.columns:
            torch.from_numpy(np.array(column.to_numpy()))
        return table.num_rows

    return read


def resumed(dataset: headrace.Dataset, *, shuffle: bool, rounds: int) -> list[float]:
    """Seconds from an opened dataset and a state to the first batch, at so many random places of an epoch."""
    options = {"batch_size": 1024, "shuffle": shuffle, "columns": NUMBERS}
    whole = dataset.torch_dataset(**options)
    draw, found = random.Random(0), []
    for _ in range(rounds):
        state = whole.state_after(draw.randrange(len(whole)))
        began = time.perf_counter()
        stream = dataset.stream(**options)
        stream.load_state_dict(state)
        batches = iter(stream)
        next(batches)
        found.append(time.perf_counter() - began)
        batches.close()
    return found


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def tables(root: Path, rounds: int) -> Iterator[Table]:
    """From an opened dataset, and from a state."""
    dataset = headrace.open(root / "numbers", cache_dir=root / "first-batch-index")
    rows = []
    for shuffle, order in ((True, "shuffled"), (False, "in order")):
        loader = dataset.stream(batch_size=1024, shuffle=shuffle, columns=NUMBERS)
        read = window_reading(loader, root / "numbers")
        bare, ours = [], []
        for _ in range(rounds):
            bare.append(1e3 * seconds_of(read))
            batches = iter(dataset.stream(batch_size=1024, shuffle=shuffle, columns=NUMBERS))
            ours.append(1e3 * seconds_of(lambda batches=batches: next(batches)))
            batches.close()
        rows.append((order, f"{read():,}", figure(bare, 1), figure(ours, 1), ratio(ours, bare)))
    heads = ("order", "rows of the window", "reading the window, ms", "first batch, ms", "ratio")
    yield Table("beginning", "The first batch of an epoch", heads, rows)
    resumes = [
        (order, figure([1e3 * each for each in resumed(dataset, shuffle=shuffle, rounds=rounds)], 1))
        for shuffle, order in ((True, "shuffled"), (False, "in order"))
    ]
    yield Table("resume", "After a resume in the midst of an epoch", ("order", "first batch, ms"), resumes)


def main() -> None:
    """Parse, make data, alternate, print."""
    made = parser(__doc__)
    made.add_argument("--root", type=Path, default=Path("/tmp/headrace-bench/streaming"))
    made.add_argument("--rounds", type=int, default=15)
    asked = made.parse_args()
    make_data(asked.root)
    publish(tables(asked.root, asked.rounds), asked.json, ["torch"])


if __name__ == "__main__":
    main()
