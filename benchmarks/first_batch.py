"""How long the first batch takes, beside a bare reading of the rows it must wait for, in one run.

    python benchmarks/first_batch.py [--root DIR] [--rounds 15] [--processes 5]

The files are those of `streaming.py`. A shuffled stream has to decode one window before it can hand out any of its
rows: the bare contestant reads just the row groups of that window with two threads of pyarrow and takes its rows in
their order, as torch tensors. Both begin from an opened dataset; ratios are of the same round.

A second table has the first batch after a resume, from states at random places of an epoch.

A third one has the first shuffled batch of larger data, 100 and 300 row groups of 65,536 rows and 28 columns, and of
the largest split that is kept in memory. Each round is a new process, as memory that a process never used before costs
more than decoding does. Beside it pyarrow reads as many whole files as hold the rows of a round. Peaks are those of a
whole epoch, above what the process had when the dataset was opened. The files take 4.3 GB.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
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
from headrace.stream.order.epoch import Pool
from headrace.stream.order.plan import least_pool_rows, plan_pools

GROUP_ROWS, FILE_GROUPS = 65_536, 10
ROUND_ROWS = 262_144
LARGE = {"100 row groups": 100, "300 row groups": 300}
SMALL, SMALL_ROWS, SMALL_COLUMNS = "4,000,000 rows, kept", 4_000_000, 8


def first_pool(loader: StreamLoader) -> Pool:
    """What the first batch waits for."""
    plan = loader.plan()
    share = plan.rank_rows(rank=0)
    return next(plan_pools(plan.order, plan.remaining, share, least_rows=least_pool_rows(plan)))


def window_reading(loader: StreamLoader, root: Path) -> Callable[[], int]:
    """Decode the window's row groups, cut its pieces, take its rows."""
    index, pool = loader.index, first_pool(loader)
    places = {
        block: (root / index.shards[index.shard_of_block[block]], int(index.block[block]))
        for block in pool.blocks
    }
    order = None if pool.index is None else pa.array(pool.index)

    def decode(block: int) -> pa.Table:
        path, group = places[block]
        with pq.ParquetFile(path) as file:
            return file.read_row_group(group, columns=NUMBERS, use_threads=False)

    def read() -> int:
        with ThreadPoolExecutor(2) as threads:
            decoded = dict(zip(pool.blocks, threads.map(decode, pool.blocks), strict=True))
        table = pa.concat_tables(
            [decoded[block].slice(start, stop - start) for block, start, stop in pool.spans]
        )
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


def mixed_columns(numbers: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """28 columns: ten of float32, six of float64, eight of int64 and four of int32."""
    return {
        **{f"f{place}": numbers.standard_normal(rows, dtype=np.float32) for place in range(10)},
        **{f"d{place}": numbers.standard_normal(rows) for place in range(6)},
        **{f"i{place}": numbers.integers(0, 1 << (4 * place + 4), rows) for place in range(8)},
        **{f"s{place}": numbers.integers(0, 100, rows).astype(np.int32) for place in range(4)},
    }


def make_large(root: Path) -> dict[str, Path]:
    """Write what is missing; the folder of each kind of data."""
    folders = {kind: root / kind.replace(" ", "-").replace(",", "") for kind in (*LARGE, SMALL)}
    for kind, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        for shard in range(LARGE[kind] // FILE_GROUPS if kind in LARGE else 1):
            path = folder / f"part-{shard:05d}.parquet"
            if path.exists():
                continue
            numbers = np.random.default_rng([3, shard])
            if kind in LARGE:
                table = pa.table(mixed_columns(numbers, FILE_GROUPS * GROUP_ROWS))
            else:
                table = pa.table(
                    {
                        f"d{place}": numbers.standard_normal(SMALL_ROWS)
                        for place in range(SMALL_COLUMNS)
                    }
                )
            plain = (
                kind == SMALL
            )  # a dictionary of random numbers would make it larger than what is kept
            pq.write_table(
                table,
                path.with_suffix(".making"),
                row_group_size=GROUP_ROWS,
                use_dictionary=not plain,
            )
            path.with_suffix(".making").rename(path)
    return folders


def in_new_process(work: Callable[..., dict[str, float]], *arguments: object) -> dict[str, float]:
    """What `work` measures in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        return processes.submit(work, *arguments).result()


def beginning(folder: Path, cache: Path, batches_of: str) -> dict[str, float]:
    """Seconds to the first batch in this process, and to that of a second pass; CPU seconds; the peak in MB.

    batches_of: "epoch" reads one to its end first.
    """
    dataset = headrace.open(folder, cache_dir=cache)
    before = resident_mb("VmRSS")
    loader = dataset.stream(batch_size=1024, shuffle=True)
    worked, batches = time.process_time(), iter(loader)
    found = {"first": seconds_of(lambda: next(batches)), "cpu": time.process_time() - worked}
    if batches_of == "epoch":
        for _ in batches:
            pass
    batches.close()
    found["peak"] = resident_mb("VmHWM") - before
    loader = dataset.stream(batch_size=1024, shuffle=True, seed=1)
    batches = iter(loader)
    found["again"] = seconds_of(lambda: next(batches))
    batches.close()
    return found


def whole_files(folder: Path) -> dict[str, float]:
    """The same of pyarrow: as many whole files as hold the rows of a round, permuted; a batch is taken of them."""
    paths = sorted(folder.iterdir())[: -(-ROUND_ROWS // (FILE_GROUPS * GROUP_ROWS))]
    for path in paths:
        pq.read_metadata(path)
    before, worked = resident_mb("VmRSS"), time.process_time()

    def read() -> None:
        table = pa.concat_tables([pq.read_table(path) for path in paths])
        table = table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)))
        for column in table.slice(0, 1024).columns:
            torch.from_numpy(np.array(column.to_numpy()))

    found = {
        "first": seconds_of(read),
        "cpu": time.process_time() - worked,
        "peak": resident_mb("VmHWM") - before,
    }
    return found | {"again": seconds_of(read)}


def resident_mb(field: str) -> float:
    """A line of /proc/self/status in MB: VmRSS, or VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def large_table(root: Path, rounds: int) -> Table:
    """The first batch of larger data, in new processes."""
    rows = []
    for kind, folder in make_large(root).items():
        readers = {
            "headrace": (beginning, folder, root / "first-batch-index", "first"),
            "pyarrow, whole files": (whole_files, folder),
        }
        found: dict[str, list[dict[str, float]]] = {name: [] for name in readers}
        headrace.open(folder, cache_dir=root / "first-batch-index")
        for _ in range(rounds):
            for name, work in readers.items():
                found[name].append(in_new_process(*work))
        epoch = in_new_process(beginning, folder, root / "first-batch-index", "epoch")
        for name, measured in found.items():
            figures = [
                figure([1e3 * each[what] for each in measured], 0)
                for what in ("first", "cpu", "again")
            ]
            peak = figure(
                [epoch["peak"]] if name == "headrace" else [each["peak"] for each in measured], 0
            )
            rows.append((kind, name, *figures, peak))
    heads = ("data", "reader", "first batch, ms", "CPU ms", "of a second pass, ms", "peak MB")
    return Table("large", "The first batch in a new process", heads, rows)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def tables(root: Path, rounds: int, processes: int) -> Iterator[Table]:
    """From an opened dataset, from a state, and of larger data."""
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
        (
            order,
            figure([1e3 * each for each in resumed(dataset, shuffle=shuffle, rounds=rounds)], 1),
        )
        for shuffle, order in ((True, "shuffled"), (False, "in order"))
    ]
    yield Table(
        "resume", "After a resume in the midst of an epoch", ("order", "first batch, ms"), resumes
    )
    yield large_table(root, processes)


def main() -> None:
    """Parse, make data, alternate, print."""
    made = parser(__doc__)
    made.add_argument("--root", type=Path, default=Path("/tmp/headrace-bench/streaming"))
    made.add_argument("--rounds", type=int, default=15)
    made.add_argument("--processes", type=int, default=5)
    asked = made.parse_args()
    make_data(asked.root)
    publish(tables(asked.root, asked.rounds, asked.processes), asked.json, ["torch"])


if __name__ == "__main__":
    main()
