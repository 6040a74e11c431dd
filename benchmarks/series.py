"""Windows of series: headrace beside the fastest gather we know and two usual designs, in one run, on one core.

    python benchmarks/series.py [--tables windows,index,ranks,memory,peers] [--basins 100] [--index-basins 500]
                                [--rounds 5] [--peers DIR]

Windows are 365 + 7 days of six forcing columns and streamflow, 256 in a batch, in random order. Every loader reads the
same prepared run. Rounds go through all loaders in turn; printed are medians of windows a second of CPU time of this
process, and of the ratio to the reference in the same round: both say the same on a busy machine. One number of every
tensor is read. The designs, in our own words:

- reference: all rows copied to one matrix, starts as an array, one `index_select` on an overlapping view a batch.
- per sample, as in neuralhydrology: a lookup table window → (basin, row), tensors of each basin, slices in
  `__getitem__`, a collate function that stacks.
- per sample, as the specification's data set: a tensor of each column, a list of (basin, start, end), a dict of row
  offsets, columns stacked in `__getitem__`, torch's default collate.

The table `peers` has the packages themselves, each asked for its own batches by a loader in `series_peers/`, every one
in a process of its own, in turns: windows a second of that process's CPU time, and how often headrace's pace. They do
not get along in one environment, so each has its own, named as the package, in the directory that --peers names:

    sh benchmarks/series_peers/install.sh peers
    python benchmarks/series.py --tables peers --peers peers

Without --peers, those that the running Python can import are taken. What is not there is named in the table. "windows"
are how many an epoch has, of how many that such a rule finds in our rows; "are ours" how many of the first batch's were
found there, value by value.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import Cell, Table, figure, ratio
from reporting import parser, publish
from series_data import ATTRIBUTES, FEATURES, write_basins
from series_peers.given import Given, save
from series_peers.table import table as peers_table
from torch.utils.data import DataLoader, Dataset, RandomSampler

import headrace
import headrace.windows
from headrace.series.windows.windows import Windows, windows_of
from headrace.stream.ranks.topology import Topology
from headrace.windows import open_windows

INPUT, HORIZON, BATCH = 365, 7, 256
RULE = {"input_length": INPUT, "output_length": HORIZON}
TRAIN = {"train_ratio": 0.6, "val_ratio": 0.2}


def prepare(folder: Path, basins: int) -> Path:
    """A prepared run of so many basins."""
    write_basins(folder, basins)
    settings = headrace.Series(
        source=str(folder / "raw"),
        target="streamflow",
        future_features=FEATURES,
        static=str(folder / "attributes.parquet"),
        static_entity="gauge",
        static_features=ATTRIBUTES,
        layout="packed",
        frequency="1d",
        **TRAIN,
    )
    headrace.prepare(settings, folder / "out")
    return folder / "out"


class Rows:
    """What all loaders start from: the train rows of all basins in one matrix, and the windows in it."""

    def __init__(self, windows: Windows) -> None:
        copy = windows.in_memory(np.arange(len(windows.store.entities)))
        self.values = copy.matrices.matrices[0]
        self.starts, _ = copy.segments.locate(np.arange(len(copy)))
        self.first_rows = copy.starts
        self.static = torch.from_numpy(windows.store.static[windows.store.entities.static_row])
        self.names = windows.entity_names(range(len(windows.store.entities)))
        self.entity = np.repeat(copy.segments.entity, copy.segments.count)


def touch(value: Any) -> None:
    """Read one number of every tensor, so that nothing lazy gets away with it."""
    if isinstance(value, torch.Tensor):
        if value.numel():
            value[(-1,) * value.ndim].item()
    elif isinstance(value, dict):
        for each in value.values():
            touch(each)


def reference(rows: Rows, *, contiguous: bool = False) -> Iterator[dict[str, torch.Tensor]]:
    """One `index_select` on an overlapping view a batch."""
    window = INPUT + HORIZON
    matrix = torch.from_numpy(rows.values)
    width = matrix.shape[1]
    view = matrix.as_strided((len(matrix) - window + 1, window * width), (width, 1))
    starts, ends = (
        torch.from_numpy(rows.starts),
        torch.from_numpy(np.append(rows.first_rows[1:], len(matrix))),
    )
    for chosen in torch.randperm(len(starts)).split(BATCH):
        first = starts[chosen]
        block = view.index_select(0, first).view(-1, window, width)
        entity = torch.searchsorted(ends, first, right=True)
        batch = {
            "X": block[:, :INPUT, 1:],
            "y": block[:, INPUT:, 0],
            "future": block[:, INPUT:, 1:],
        }
        if contiguous:
            batch = {name: value.contiguous() for name, value in batch.items()}
        yield {**batch, "static": rows.static[entity]}


class ByBasin(Dataset[dict[str, torch.Tensor]]):
    """A lookup table and tensors of each basin, as neuralhydrology has them."""

    def __init__(self, rows: Rows) -> None:
        ends = np.append(rows.first_rows[1:], len(rows.values))
        self.x = {
            n: torch.from_numpy(rows.values[b:e, 1:].copy())
            for n, b, e in zip(rows.names, rows.first_rows, ends, strict=True)
        }
        self.y = {
            n: torch.from_numpy(rows.values[b:e, :1].copy())
            for n, b, e in zip(rows.names, rows.first_rows, ends, strict=True)
        }
        self.static = dict(zip(rows.names, rows.static, strict=True))
        last = rows.starts - rows.first_rows[rows.entity] + INPUT + HORIZON - 1
        self.lookup = {
            i: (rows.names[e], int(r))
            for i, (e, r) in enumerate(zip(rows.entity.tolist(), last, strict=True))
        }

    def __len__(self) -> int:
        return len(self.lookup)

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        basin, last = self.lookup[item]
        rows = slice(last - INPUT - HORIZON + 1, last + 1)
        return {"x_d": self.x[basin][rows], "y": self.y[basin][rows], "x_s": self.static[basin]}


def stacked(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Its collate function."""
    return {name: torch.stack([each[name] for each in samples]) for name in samples[0]}


class ByColumn(Dataset[dict[str, Any]]):
    """A tensor of each column and a list of tuples, as the specification has them."""

    def __init__(self, rows: Rows) -> None:
        names = ("streamflow", *FEATURES)
        self.columns = {
            name: torch.from_numpy(rows.values[:, at].copy()) for at, name in enumerate(names)
        }
        self.row_map = dict(zip(rows.names, rows.first_rows.tolist(), strict=True))
        first = rows.starts - rows.first_rows[rows.entity]
        self.entries = [
            (rows.names[entity], start, start + INPUT + HORIZON)
            for entity, start in zip(rows.entity.tolist(), first.tolist(), strict=True)
        ]
        self.static = dict(zip(rows.names, rows.static, strict=True))

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, item: int) -> dict[str, Any]:
        basin, start, end = self.entries[item]
        base = self.row_map[basin]
        window = {name: column[base + start : base + end] for name, column in self.columns.items()}
        return {
            "X": torch.stack([window[name][:INPUT] for name in FEATURES], -1),
            "y": window["streamflow"][INPUT:],
            "future": torch.stack([window[name][INPUT:] for name in FEATURES], -1),
            "static": self.static[basin],
            "basin": basin,
        }


def pace(batches: Iterator[dict[str, Any]], seconds: float) -> float:
    """Windows a second of CPU time, after three batches."""
    for batch in islice(batches, 3):
        touch(batch)
    count, begun = 0, time.process_time()
    for batch in batches:
        touch(batch)
        count += len(batch["y"])
        if time.process_time() - begun > seconds:
            break
    return count / (time.process_time() - begun)


def table_windows(out: Path, rounds: int, seconds: float) -> Table:
    """Windows a second of CPU time by every loader."""
    train = headrace.windows.open(out, "train", **RULE, verify="never")
    copies = headrace.windows.open(out, "train", **RULE, verify="never", layout="contiguous")
    rows = Rows(train.windows)
    by_basin, by_column = ByBasin(rows), ByColumn(rows)
    chunked = train.stream(batch_size=BATCH, chunk_size=max(1, len(rows.names) // 2))
    chunked.epochs.windows(0)
    chunked.epochs.windows(1)
    streams = {
        "headrace, mapped, views": train.stream(batch_size=BATCH),
        "headrace, mapped, contiguous": copies.stream(batch_size=BATCH),
        "headrace, mapped, nearby": train.stream(batch_size=BATCH, shuffle="nearby"),
        "headrace, chunks in memory": chunked,
    }
    for stream in streams.values():
        next(iter(stream))
    loaders: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "reference gather": lambda: reference(rows),
        "reference, contiguous": lambda: reference(rows, contiguous=True),
        **{name: (lambda each=each: iter(each)) for name, each in streams.items()},
        "per sample, neuralhydrology's design": lambda: iter(
            DataLoader(by_basin, BATCH, sampler=RandomSampler(by_basin), collate_fn=stacked)
        ),
        "per sample, the specification's design": lambda: iter(
            DataLoader(by_column, BATCH, sampler=RandomSampler(by_column))
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, loader in loaders.items():
            found[name].append(pace(loader(), seconds))
    lines: list[tuple[Cell, ...]] = []
    for name, paces in found.items():
        base = found["reference, contiguous" if "contiguous" in name else "reference gather"]
        lines.append((name, figure(paces, 0), ratio(paces, base)))
    title = f"{len(rows.starts):,} windows of {INPUT} + {HORIZON} days, {len(rows.names)} basins, batches of {BATCH}"
    return Table("windows", title, ("loader", "windows a CPU second", "of the reference"), lines)


def table_index(out: Path, rounds: int) -> Table:
    """The index of all train windows: finding what is missing, and the windows; beside convolutions and tuples."""
    windows = open_windows(out, "train", **RULE)
    rows = Rows(windows)
    took: dict[str, list[float]] = {
        "headrace: scan and index": [],
        "and all starts as an array": [],
        "convolutions and tuples": [],
    }
    for _ in range(rounds):
        begun = time.process_time()
        found = windows_of(windows.store, "train", windows.options)
        middle = time.process_time()
        starts, _ = found.segments.locate(np.arange(len(found)))
        took["headrace: scan and index"].append(middle - begun)
        took["and all starts as an array"].append(time.process_time() - begun)
    begun = time.process_time()
    tuples = convolutions(rows)
    took["convolutions and tuples"].append(time.process_time() - begun)
    assert len(tuples) == len(starts)
    title = f"The index of {len(starts):,} windows over {windows.matrices.rows:,} rows"
    return Table(
        "index",
        title,
        ("what", "CPU s"),
        [(name, figure(seconds, 3)) for name, seconds in took.items()],
    )


def convolutions(rows: Rows) -> list[tuple[str, int, int]]:
    """The specification's way: two convolutions an entity, then a list of tuples. Its scan is in the time as well."""
    complete = ~np.isnan(rows.values).any(1)
    inputs = ~np.isnan(rows.values[:, 1:]).any(1)
    found = []
    ends = np.append(rows.first_rows[1:], len(complete))
    for name, begin, end in zip(rows.names, rows.first_rows.tolist(), ends.tolist(), strict=True):
        if end - begin < INPUT + HORIZON:
            continue
        past = np.convolve(inputs[begin:end].astype(int), np.ones(INPUT, int), "valid") == INPUT
        coming = (
            np.convolve(complete[begin:end].astype(int), np.ones(HORIZON, int), "valid") == HORIZON
        )
        count = end - begin - INPUT - HORIZON + 1
        found += [
            (name, int(s), int(s) + INPUT + HORIZON)
            for s in np.flatnonzero(past[:count] & coming[INPUT : INPUT + count])
        ]
    return found


def one_rank(out: str, rank: int, world: int, seconds: float, results: Any) -> None:
    """The pace of one of several processes that share an epoch."""
    torch.set_num_threads(1)
    train = headrace.windows.open(out, "train", **RULE, verify="never")
    stream = train.stream(batch_size=BATCH, topology=Topology(rank=rank, world_size=world))
    results.put((rank, pace(iter(stream), seconds)))


def table_ranks(out: Path, rounds: int, seconds: float) -> Table:
    """Windows a second of CPU time of each rank, alone and of two at the same time."""
    spawn = multiprocessing.get_context("spawn")
    paces: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for world in (1, 2):
            results = spawn.Queue()
            ranks = [
                spawn.Process(target=one_rank, args=(str(out), rank, world, seconds, results))
                for rank in range(world)
            ]
            for each in ranks:
                each.start()
            paces[world] += [results.get()[1] for _ in ranks]
            for each in ranks:
                each.join()
    heads = ("ranks at a time", "windows a CPU second, of a rank")
    return Table(
        "ranks",
        "Ranks at a time",
        heads,
        [(str(world), figure(found, 0)) for world, found in paces.items()],
    )


def table_peers(
    out: Path, folder: Path, environments: Path | None, rounds: int, seconds: float
) -> Table:
    """The packages themselves, on rows that lie in `folder`."""
    windows = open_windows(out, "train", **RULE)
    rows = Rows(windows)
    given = Given(
        folder=folder,
        run=str(out),
        names=list(rows.names),
        features=sorted(FEATURES),
        attributes=list(windows.store.static_names),
        input=INPUT,
        horizon=HORIZON,
        batch=BATCH,
        rows=rows.values,
        begins=rows.first_rows,
        starts_all=rows.starts,
        starts_any=Rows(open_windows(out, "train", **RULE, targets="any")).starts,
        starts_whole=Rows(open_windows(out, "train", **RULE, is_autoregressive=True)).starts,
        static=rows.static.numpy(),
    )
    folder.mkdir()
    save(given)
    return peers_table(folder, environments, rounds, seconds)


def own_memory() -> float:
    """MiB of this process that are not pages of mapped files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) / 1024


def one_memory(out: str, options: dict[str, Any], results: Any) -> None:
    """The most memory of its own that a process takes over two epochs, from when the run is open."""
    torch.set_num_threads(1)
    train = headrace.windows.open(out, "train", **RULE, verify="never")
    before = most = own_memory()
    stream = train.stream(batch_size=BATCH, **options)
    for _ in range(2):
        for step, batch in enumerate(stream):
            touch(batch)
            if step % 20 == 0:
                most = max(most, own_memory())
    results.put(
        (
            before,
            most,
            len(train.windows),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )
    )


def table_memory(folder: Path, small: int, large: int) -> Table:
    """Memory of two epochs from runs of two sizes."""
    spawn = multiprocessing.get_context("spawn")
    lines: list[tuple[Cell, ...]] = []
    for name, options in (
        ("nearby, from the mapped store", {"shuffle": "nearby"}),
        ("chunks of 25 basins", {"chunk_size": 25}),
        ("everywhere", {}),
    ):
        for basins in (small, large):
            results = spawn.Queue()
            process = spawn.Process(
                target=one_memory, args=(str(folder / str(basins) / "out"), options, results)
            )
            process.start()
            before, most, windows, _ = results.get()
            process.join()
            lines.append((name, f"{basins:,}", f"{windows:,}", f"{before:.0f}", f"{most:.0f}"))
    heads = ("order", "basins", "windows", "MiB before", "MiB at most")
    return Table("memory", "Memory of two epochs", heads, lines)


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Those asked for, of runs that are prepared first."""
    names = set(asked.tables.split(","))
    torch.set_num_threads(1)  # more wait for each other where cores are shared
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        wanted = {asked.basins} if {"windows", "ranks", "peers"} & names else set()
        wanted |= {asked.index_basins} if "index" in names else set()
        wanted |= {asked.basins, asked.index_basins} if "memory" in names else set()
        for basins in sorted(wanted):
            (Path(folder) / str(basins)).mkdir()
            runs[basins] = prepare(Path(folder) / str(basins), basins)
        if "windows" in names:
            yield table_windows(runs[asked.basins], asked.rounds, asked.seconds)
        if "index" in names:
            yield table_index(runs[asked.index_basins], asked.rounds)
        if "ranks" in names:
            yield table_ranks(runs[asked.basins], asked.rounds, asked.seconds)
        if "peers" in names:
            environments = None if asked.peers is None else asked.peers.absolute()
            yield table_peers(
                runs[asked.basins],
                Path(folder) / "given",
                environments,
                asked.rounds,
                asked.seconds,
            )
        if "memory" in names:
            yield table_memory(Path(folder), asked.basins, asked.index_basins)


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--tables", default="windows,index,ranks,memory,peers")
    made.add_argument("--basins", type=int, default=100)
    made.add_argument("--index-basins", type=int, default=500)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--seconds", type=float, default=1.0)
    made.add_argument(
        "--peers", type=Path, help="directory of environments, one named as each package"
    )
    asked = made.parse_args()
    publish(tables(asked), asked.json, ["torch"])


if __name__ == "__main__":
    main()
