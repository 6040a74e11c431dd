"""Reading packed bins: our stream beside readers that keep one row group and make Python lists of it.

    python benchmarks/packed_reading.py [--bins 3000] [--pack-size 4096] [--rounds 3]

Bins of synthetic tokens (as a tokenizer's: few are frequent) are written with row groups of 32 and of 1,000. CPU time
of the process, threads included, and wall time, per bin:

    lists, in order / random     a reader with one cached row group whose rows become Python lists
    views, in order              headrace, packed="off", one bin a batch: numpy views of a decoded row group
    varlen, padded               headrace's packed batches of 8 bins, in order; shuffled over the set
    decode alone                 what Arrow takes for the row groups, a part of all of the above
    map, random                  headrace's random access with room for one row group
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from figures import Figure, Table, figure, ratio
from reporting import parser, publish

import headrace
from headrace.bins.pack import pack
from headrace.bins.rows import PackedRows
from headrace.packing.storage.packed_parquet import ParquetShardWriter

COLUMNS = ["input_ids", "loss_mask", "seq_start_id"]
IN_ORDER, RANDOM = "lists, in order", "lists, random"


def write(path: Path, *, bins: int, pack_size: int, group: int, shard_bins: int = 1000) -> None:
    """Shards of packed bins of sequences with a mean of about 600 tokens."""
    random = np.random.default_rng(0)
    lengths = np.clip(
        random.lognormal(5.9, 1.0, bins * pack_size // 560).astype(np.int64), 2, pack_size
    )
    packed = pack(lengths, pack_size)[:bins]
    for shard, first in enumerate(range(0, bins, shard_bins)):
        part = packed[first : first + shard_bins]
        sizes = lengths[part.sequences]
        tokens = part.loads(lengths)
        ends = np.cumsum(sizes)
        offsets = np.concatenate([[0], np.cumsum(tokens)])
        begins = ends - sizes - np.repeat(offsets[:-1], part.counts)
        ids = (random.zipf(1.2, int(sizes.sum())) % 150_000).astype(np.int32)
        mask = (random.random(len(ids)) < 0.5).astype(np.uint8)
        mask[ends - 1] = 0
        rows = PackedRows(ids, mask, begins.astype(np.int32), offsets, part.offsets)
        said = {"headrace.loss_mask_alignment": "shift_left"}
        with ParquetShardWriter(
            path / f"shard_{shard:06d}.parquet", group, metadata=said
        ) as writer:
            writer.write_bins(rows)


class OneGroup:
    """Rows by number; one row group is kept; rows become Python lists."""

    def __init__(self, path: Path) -> None:
        self.files = [pq.ParquetFile(each) for each in sorted(path.glob("*.parquet"))]
        self.groups = [
            (file, group, file.metadata.row_group(group).num_rows)
            for file in self.files
            for group in range(file.metadata.num_row_groups)
        ]
        self.begins = np.cumsum([0, *(rows for _, _, rows in self.groups)])
        self.kept: tuple[int, Any] = (-1, None)

    def read(self, number: int) -> list[list[int]]:
        """Ids, mask and starts of a row."""
        group = int(np.searchsorted(self.begins, number, side="right")) - 1
        if self.kept[0] != group:
            file, place, _ = self.groups[group]
            self.kept = group, file.read_row_group(place, columns=COLUMNS)
        row = number - int(self.begins[group])
        return [self.kept[1][name][row].as_py() for name in COLUMNS]


def consume(batches: Iterable[Any]) -> int:
    """How many there are."""
    return sum(1 for _ in batches)


def measure(work: Callable[[], int], bins: int) -> tuple[float, float]:
    """(CPU, wall) milliseconds a bin."""
    used, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    wall, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return 1e3 * cpu / bins, 1e3 * wall / bins


def table(path: Path, bins: int, group: int, asked: argparse.Namespace) -> Table:
    """One line a way of reading; the ways take turns."""
    dataset = headrace.open(path, cache_dir=path.parent / "cache")
    order = np.random.default_rng(1).permutation(bins)[: asked.picks].tolist()
    row_bytes = dataset.split_index().length.sum() / bins
    room = int(1.1 * group * row_bytes)
    one_group = dataset.map_dataset(columns=COLUMNS, cache_bytes=room)

    def stream(**options: Any) -> Callable[[], int]:
        options = {"batch_format": "numpy", "batch_size": 8, **options}
        return lambda: consume(dataset.stream(**options))

    padded = headrace.PackedBatches(form="padded", pad_to_multiple_of=64)
    reader = OneGroup(path)
    ways: list[tuple[str, Callable[[], int], int]] = [
        (IN_ORDER, lambda: consume(map(reader.read, range(bins))), bins),
        (RANDOM, lambda: consume(map(reader.read, order)), len(order)),
        ("views, in order", stream(packed="off", batch_size=1), bins),
        ("varlen, in order", stream(), bins),
        ("varlen, shuffled", stream(shuffle=True), bins),
        ("varlen, shuffled, torch", stream(shuffle=True, batch_format="torch"), bins),
        ("padded, shuffled", stream(shuffle=True, packed=padded), bins),
        (
            "decode alone",
            lambda: consume(f.read_row_group(g, columns=COLUMNS) for f, g, _ in reader.groups),
            bins,
        ),
        ("map, random", lambda: consume(map(one_group.__getitem__, order)), len(order)),
    ]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in ways}
    for _ in range(asked.rounds):
        for name, work, count in ways:
            found[name].append(measure(work, count))
    cpu = {name: [each for each, _ in times] for name, times in found.items()}

    def line(name: str) -> tuple[str, Figure, Figure, Figure]:
        wall = figure([each for _, each in found[name]], 3)
        return (
            name,
            figure(cpu[name], 3),
            wall,
            ratio(cpu[RANDOM if "random" in name else IN_ORDER], cpu[name], 1),
        )

    title = f"Reading {bins:,} bins of {asked.pack_size:,} tokens, row groups of {group:,}"
    heads = ("way", "CPU ms a bin", "wall ms a bin", "lists take times as much CPU")
    return Table(f"group-{group}", title, heads, [line(name) for name, _, _ in ways])


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Write both, read both."""
    folder = Path(tempfile.mkdtemp())
    try:
        for group in (32, 1000):
            path = folder / f"group-{group}"
            path.mkdir()
            write(path, bins=asked.bins, pack_size=asked.pack_size, group=group)
            yield table(path, asked.bins, group, asked)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--bins", type=int, default=3000)
    made.add_argument("--pack-size", type=int, default=4096)
    made.add_argument("--picks", type=int, default=20, help="bins read at random")
    made.add_argument("--rounds", type=int, default=3)
    asked = made.parse_args()
    publish(tables(asked), asked.json, ["torch"])


if __name__ == "__main__":
    main()
