"""Packing sequences, gathering their tokens, writing and reading bins: headrace beside other ways, in one run.

    python benchmarks/packing.py [--rounds 3] [--tables pack,blend,agents,gather,write,read] [--bins 4000]
                                 [--most 1000000] [--large] [--data ../shared/data] [--bridge algorithms.py]

Every contestant runs in a fresh process, round after round. Times are CPU seconds of the process (with threads), which
say nearly the same on a busy machine; ratios are of the same round. Imports and making the input are before the clock.
Packers of other projects run their own code where the package is installed (`pip install --no-deps trl llamafactory
megatron-bridge binpacking axolotl torchtune`); --bridge names `data/packing/algorithms.py` of a newer checkout. "Plain"
and "specified" ones are written in `packing_peers.py`.
--large streams 100,000 bins of 4,096.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import packing_data
import packing_peers
import pyarrow.parquet as pq
from figures import Cell, Figure, Table, figure, ratio
from reporting import parser, publish, without_paths

import headrace
from headrace.bins.bins import Bins
from headrace.bins.pack import pack
from headrace.bins.rows import PackedRows
from headrace.packing.storage.legacy import LegacyPickleWriter, read_legacy
from headrace.packing.storage.packed_parquet import (
    Declared,
    ParquetShardWriter,
    read_parquet,
    rows_of,
)
from headrace.packing.storage.spool import (
    SequenceSpool,
    SpoolWriter,
    gather,
    materialise_bin_arrays,
)
from headrace.run.context import TaskFiles

CAPACITY = 4096
GROUP = 1000
COUNTS = (2_500, 10_000, 100_000, 1_000_000)
COMPARED = {"best fit": "headrace best_fit_shuffle", "first fit": "headrace first_fit_decreasing"}
PACKAGES = (
    "numba",
    "trl",
    "llamafactory",
    "axolotl",
    "megatron-bridge",
    "torchtune",
    "binpacking",
    "tokenizers",
)


def clocked(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What the work returns, its CPU and wall time, and how far memory rose above the start."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    times = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return result, {
        **times,
        "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def one_packer(name: str, count: int, bridge: Path | None) -> dict[str, float]:
    """One packer on one set of lengths."""
    run = packing_peers.packers(bridge)[name][1]()
    lengths = packing_data.lognormal(count, CAPACITY)
    finish, times = clocked(lambda: run(lengths, CAPACITY))
    loads, counts = finish()
    p50, p99 = np.percentile(counts, [50, 99])
    bound = -(-int(lengths.sum()) // CAPACITY)
    fill = 100 * float(lengths.sum()) / (len(loads) * CAPACITY)
    return {
        **times,
        "bins": len(loads),
        "bound": bound,
        "fill": fill,
        "p50": p50,
        "p99": p99,
        "most": int(counts.max()),
    }


class Made:
    """What gathering, writing and reading work on: a spool on disk and bins of its sequences."""

    def __init__(self, root: Path, data: Path, bins: int) -> None:
        self.root = root
        self.directory = root / "spool"
        kept, self.what = packing_data.tokens(root, data)
        if not (self.directory / "manifest.json").exists():
            fitting = np.flatnonzero(kept.lengths <= CAPACITY)
            files = TaskFiles(root, durable=False)
            with SpoolWriter(files, "spool") as writer:
                writer.add(*kept.take(fitting))
            files.publish(lambda event: None)
        self.spool = SequenceSpool.open(self.directory)
        kept_bins = root / f"bins-{bins}.npz"
        if not kept_bins.exists():  # packed in another process than is measured
            chosen = packing_data.repeated(self.spool, bins * CAPACITY)
            packed = pack(self.spool.lengths[chosen], CAPACITY)[:bins]
            np.savez(kept_bins, offsets=packed.offsets, sequences=chosen[packed.sequences])
        with np.load(kept_bins) as found:
            self.bins = Bins(found["offsets"], found["sequences"])
        self.tokens = int(self.bins.loads(self.spool.lengths).sum())

    def groups(self) -> list[PackedRows]:
        """All bins with their tokens."""
        return [
            gather(self.spool, self.bins[at : at + GROUP]) for at in range(0, len(self.bins), GROUP)
        ]

    def written(self, group: int, declared: Declared = "nullable") -> Path:
        """A shard with row groups of this size."""
        path = self.root / f"rows-{group}-{len(self.bins)}-{declared}.parquet"
        if not path.exists():
            with ParquetShardWriter(path, row_group_size=group, declared=declared) as writer:
                for rows in self.groups():
                    writer.write_bins(rows)
        return path


def one_gather(name: str, made: Made) -> dict[str, float]:
    """All bins, by one way to gather them."""
    ids, mask = np.zeros(CAPACITY, np.int32), np.zeros(CAPACITY, np.uint8)

    def grouped() -> int:
        return sum(
            len(gather(made.spool, made.bins[at : at + GROUP]).ids)
            for at in range(0, len(made.bins), GROUP)
        )

    def single() -> int:
        return sum(
            len(
                ids[
                    : materialise_bin_arrays(made.spool, made.bins, b, CAPACITY, ids, mask)[0]
                ].copy()
            )
            for b in range(len(made.bins))
        )

    def specified() -> int:
        reader = packing_peers.PerSequenceSpool(made.directory)
        total = 0
        for number in range(len(made.bins)):
            size, _ = packing_peers.specified_bin(reader, made.bins, number, CAPACITY, ids, mask)
            total += len(ids[:size].copy()) + 0 * len(mask[:size].copy())
        return total

    gather(made.spool, made.bins[:1])  # what is loaded on first use comes before the clock
    total, times = clocked(
        {"a row group at a time": grouped, "bin by bin, mapped": single, "specified": specified}[
            name
        ]
    )
    assert total == made.tokens
    return {**times, "tokens": total}


def one_write(name: str, made: Made) -> dict[str, float]:
    """All bins into one file; making the arrays is before the clock."""
    path = made.root / "written"
    groups = made.groups()
    bins = (
        [rows.bin(number) for rows in groups for number in range(len(rows))]
        if "flat" not in name
        else []
    )

    def flat() -> None:
        with ParquetShardWriter(path) as writer:
            for rows in groups:
                writer.write_bins(rows)

    def each(make: Callable[[], Any]) -> Callable[[], None]:
        def write() -> None:
            writer = make()
            for number, arrays in enumerate(bins):
                writer.write_bin(number, *arrays)
            writer.finalize()

        return write

    ways = {
        "ParquetShardWriter, flat buffers": flat,
        "ParquetShardWriter, bin by bin": each(lambda: ParquetShardWriter(path)),
        "specified writer": each(lambda: packing_peers.SpecifiedWriter(str(path))),
        "legacy pickle": each(lambda: LegacyPickleWriter(path)),
    }
    with ParquetShardWriter(path) as writer:  # what is loaded on first use comes before the clock
        writer.write_bins(groups[0][:1])
    _, times = clocked(ways[name])
    found = {**times, "tokens": made.tokens, "bytes": path.stat().st_size}
    if name == "legacy pickle":
        found["read"] = clocked(lambda: sum(len(rows.ids) for rows in read_legacy(path)))[1]["cpu"]
    elif name.startswith("ParquetShardWriter, flat"):
        found["read"] = clocked(lambda: sum(len(rows_of(t).ids) for t in _row_groups(path)))[1][
            "cpu"
        ]
    path.unlink()
    return found


def _row_groups(path: Path) -> Any:
    file = pq.ParquetFile(path)
    return (file.read_row_group(group, use_threads=False) for group in range(file.num_row_groups))


def one_read(name: str, made: Made) -> dict[str, float]:
    """Bins one at a time as a trainer's reader takes them: one row group is kept."""
    how, _, size = name.partition(", row groups of ")
    path = made.written(int(size), "required" if "without nulls" in how else "nullable")
    get, megabytes = _cached_reader(path, int(size), how), path.stat().st_size / 1e6
    rng = np.random.default_rng(0)
    asked = rng.integers(0, len(made.bins), 60 if size == "1000" else 300).tolist()
    order = range(min(len(made.bins), 2000))
    get(0)
    random = clocked(lambda: [len(get(number)[0]) for number in asked])[1]
    rising = clocked(lambda: [len(get(number)[0]) for number in order])[1]
    return {
        "random": 1e3 * random["cpu"] / len(asked),
        "random_wall": 1e3 * random["wall"] / len(asked),
        "rising": 1e3 * rising["cpu"] / len(order),
        "size": megabytes,
    }


def _cached_reader(path: Path, size: int, how: str) -> Callable[[int], Any]:
    file = pq.ParquetFile(path)
    kept: list[Any] = [None, None]

    def get(number: int) -> Any:
        group, place = divmod(number, size)
        if kept[0] != group:
            table = file.read_row_group(group, use_threads=False)
            kept[:] = [group, rows_of(table) if "views" in how else table]
        if "views" in how:
            return kept[1].bin(place)
        return [kept[1].column(column)[place].as_py() for column in range(3)]

    return get


def one_large(made: Made) -> dict[str, float]:
    """Gather and write all bins, a row group at a time; where memory ends up at all."""
    path = made.root / "large.parquet"

    def stream() -> None:
        with ParquetShardWriter(path) as writer:
            for at in range(0, len(made.bins), GROUP):
                writer.write_bins(gather(made.spool, made.bins[at : at + GROUP]))

    _, times = clocked(stream)
    size = path.stat().st_size
    path.unlink()
    total = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**times, "tokens": made.tokens, "bytes": size, "total": total}


GATHERS = ("a row group at a time", "bin by bin, mapped", "specified")
WRITES = (
    "ParquetShardWriter, flat buffers",
    "ParquetShardWriter, bin by bin",
    "specified writer",
    "legacy pickle",
)
READS = (
    "views, row groups of 1000",
    "views without nulls, row groups of 1000",
    "views without nulls, row groups of 32",
    "views, row groups of 100",
    "views, row groups of 32",
    "lists, row groups of 1000",
    "lists, row groups of 32",
    "lists, row groups of 16",
)


def measure(case: list[Any], asked: argparse.Namespace) -> dict[str, float]:
    """One case, in this process."""
    table, name, count = case
    if table == "pack":
        return one_packer(name, count, asked.bridge)
    made = Made(asked.root, asked.data, count)
    if table == "large":
        return one_large(made)
    found: dict[str, float] = {"gather": one_gather, "write": one_write, "read": one_read}[table](
        name, made
    )
    return found


def run(case: list[Any], arguments: list[str]) -> dict[str, float] | str:
    """A case in a fresh process, or why it did not run."""
    command = [sys.executable, __file__, *arguments, "--one", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    except subprocess.TimeoutExpired:
        return "took more than 500 s"
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found: dict[str, float] = json.loads(line[7:])
            return found
    return without_paths((done.stderr.strip().splitlines() or ["no output"])[-1])[:120]


def in_turns(
    cases: dict[str, list[Any]], rounds: int, arguments: list[str]
) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """What every case found, round after round, as a machine's speed drifts; and why others did not run.

    A case that takes more than 20 s is run once.
    """
    found: dict[str, list[dict[str, float]]] = {}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name, case in cases.items():
            if name in missing or (number and found[name][0].get("wall", 0) > 20):
                continue
            one = run(case, arguments)
            if isinstance(one, str):
                missing[name] = one
                found.pop(name, None)
            else:
                found.setdefault(name, []).append(one)
    ours = [f"{name}: {why}" for name, why in missing.items() if is_ours(cases[name])]
    if ours:
        raise SystemExit("\n".join(ours))
    return found, missing


def is_ours(case: list[Any]) -> bool:
    """Whether a case that does not run is a failure, and not a package that is not there."""
    table, name, _ = case
    return table != "pack" or name.startswith("headrace")


def column(found: list[dict[str, float]], key: str, digits: int = 3) -> Figure:
    """Of every round."""
    return figure([each[key] for each in found], digits)


def pack_table(asked: argparse.Namespace, arguments: list[str]) -> Iterator[Table]:
    """Packers by number of sequences: what they take, then how full the bins are."""
    packers = packing_peers.packers(asked.bridge)
    for count in (each for each in COUNTS if each <= asked.most):
        cases = {
            name: ["pack", name, count]
            for name, (most, _) in packers.items()
            if count <= most
            and (count >= COUNTS[1] or most < COUNTS[1] or name in COMPARED.values())
        }
        found, missing = in_turns(cases, asked.rounds, arguments)
        firsts = [[each["cpu"] for each in found[name]] for name in COMPARED.values()]
        rows: list[tuple[Cell, ...]] = []
        for name, runs in found.items():
            cpu, last = [each["cpu"] for each in runs], runs[-1]
            against = (ratio(cpu, first, 1) for first in firsts)
            above = f"{last['bins'] - last['bound']:.0f} of {last['bound']:,.0f}"
            rows.append((name, column(runs, "cpu"), *against, f"{last['fill']:.3f}", above))
        title = (
            f"Packers: {count:,} lengths of lognormal sizes, mean 600, into bins of {CAPACITY:,}"
        )
        heads = (
            "packer",
            "CPU s",
            *(f"times our {name}" for name in COMPARED),
            "fill %",
            "bins over the bound",
        )
        slow = [name for name, (most, _) in packers.items() if most < count]
        note = f"Only of fewer lengths, as they take too long: {', '.join(slow)}." if slow else ""
        yield Table(f"pack-{count}", title, heads, rows, note, missing)


def token_table(
    name: str, title: str, names: tuple[str, ...], asked: argparse.Namespace, arguments: list[str]
) -> Table:
    """Ways to do the same with the same tokens."""
    found, _ = in_turns({each: [name, each, asked.bins] for each in names}, asked.rounds, arguments)
    base = [each["cpu"] for each in found[names[0]]]
    rows: list[tuple[Cell, ...]] = []
    for way, runs in found.items():
        tokens, size = runs[0]["tokens"], runs[0].get("bytes")
        nanoseconds = figure([1e9 * each["cpu"] / tokens for each in runs], 1)
        sizes = (
            (f"{size / 1e6:.1f}", column(runs, "read") if "read" in runs[0] else "–")
            if size
            else ()
        )
        rows.append(
            (
                way,
                column(runs, "cpu"),
                ratio([each["cpu"] for each in runs], base),
                nanoseconds,
                *sizes,
            )
        )
    heads = (
        "way",
        "CPU s",
        "times the first's",
        "ns a token",
        *(("MB", "CPU s to read back") if sizes else ()),
    )
    return Table(name, title, heads, rows)


def read_table(asked: argparse.Namespace, arguments: list[str]) -> Table:
    """Bins one at a time."""
    found, _ = in_turns(
        {name: ["read", name, asked.bins] for name in READS}, asked.rounds, arguments
    )
    rows = [
        (
            name,
            *(column(runs, key) for key in ("random", "random_wall")),
            column(runs, "rising", 4),
            f"{runs[0]['size']:.1f}",
        )
        for name, runs in found.items()
    ]
    heads = ("reader", "at random, CPU ms", "at random, wall ms", "in order, CPU ms", "MB")
    return Table("read", "Reading bins one at a time, one row group kept", heads, rows)


def large_table(asked: argparse.Namespace, arguments: list[str]) -> Table:
    """100,000 bins, a row group at a time."""
    Made(asked.root, asked.data, 100_000)
    found, _ = in_turns({"large": ["large", "", 100_000]}, 1, arguments)
    one = found["large"][0]
    row = (
        f"{one['tokens']:,}",
        *(f"{one[key]:.1f}" for key in ("cpu", "wall")),
        f"{one['total']:.0f}",
    )
    heads = ("tokens", "CPU s", "wall s", "MB of memory in all", "MB of file")
    return Table(
        "large", f"100,000 bins of {CAPACITY:,}", heads, [(*row, f"{one['bytes'] / 1e6:.0f}")]
    )


def blend_table(found: tuple[Path, list[Path]], asked: argparse.Namespace) -> Table:
    """How full bins are: of chats that are one source, and of the same chats as many."""
    whole, parts = found
    many = {"datasets": [{"name": path.stem, "path": str(path)} for path in parts]}
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "one source": (str(whole), {}),
        f"{len(parts)} sources, packed across the split": (many, {}),
        f"{len(parts)} sources, packed one by one": (many, {"pack_across": "dataset"}),
    }
    rows: list[tuple[Cell, ...]] = []
    for name, (blend, more) in cases.items():
        tokenizer = asked.data / "job5-tokenizer-qwen3"
        recipe = headrace.PackedSequences(
            blend=blend, tokenizer=tokenizer, pack_size=CAPACITY, **more
        )
        groups = headrace.prepare(recipe, asked.root / "blend" / "out").manifest.metadata["groups"]
        row: list[Cell] = [name]
        for split in ("train", "valid", "test"):
            own = [group for group in groups if group["split"] == split]
            bins = sum(group["bins"] for group in own)
            row += [
                f"{bins:,}",
                f"{100 * sum(group['metrics']['tokens'] for group in own) / bins / CAPACITY:.2f}",
            ]
        rows.append(tuple(row))
    heads = (
        "chats",
        *(
            f"{split}: {what}"
            for split in ("train", "valid", "test")
            for what in ("bins", "fill %")
        ),
    )
    return Table(
        "blend",
        f"3,710 chats of GSM8K in bins of {CAPACITY:,}, as one source and as many",
        heads,
        rows,
    )


def agent_table(chats: Path, asked: argparse.Namespace) -> Table:
    """What becomes of the labels of long chats, counted in the chats and again in the bins."""
    rows: list[tuple[Cell, ...]] = []
    for size in (4_096, 16_384):
        for way in ("truncate", "drop", "split"):
            recipe = headrace.PackedSequences(
                blend=chats,
                tokenizer=asked.data / "job5-tokenizer-qwen3",
                pack_size=size,
                too_long=way,
                train_ratio=1,
                val_ratio=0,
                test_ratio=0,
                duplicates="allow",
                max_bad_share=1,
            )
            out = asked.root / "agents" / "out"
            metadata = headrace.prepare(recipe, out).manifest.metadata
            shards = sorted((out / "splits" / "train").iterdir())
            trained = sum(
                int(np.sum(bins.mask, dtype=np.int64))
                for path in shards
                for bins in read_parquet(path)
            )
            labels, cut = metadata["encoded"]["encoded_labels"], metadata["too_long"]
            lost = f"{metadata['lost'].get('too_long', {}).get('labels', 0):,}"
            again = metadata.get("repeated", {}).get("too_long", {}).get("tokens", 0)
            tokens = metadata["packed"]["tokens"]
            (group,) = metadata["groups"]
            rows.append(
                (
                    f"{size:,}",
                    way,
                    f"{cut['truncated'] + cut['too_long_dropped'] + cut['divided']:,}",
                    f"{labels:,}",
                    f"{trained:,}",
                    lost,
                    f"{100 * again / tokens:.1f}",
                    f"{100 * group['metrics']['fill']:.2f}",
                )
            )
    labels_in = ("labels in the chats", "labels in the bins", "labels lost")
    heads = ("bin", "too_long", "chats too long", *labels_in, "% of tokens repeated", "fill %")
    return Table(
        "agents",
        "200 chats of agents, joined from real tool calls, in bins that many of them do not fit",
        heads,
        rows,
    )


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Those asked for."""
    arguments = ["--root", str(asked.root), "--data", str(asked.data)]
    if asked.bridge:
        arguments += ["--bridge", str(asked.bridge)]
    names = set(asked.tables.split(","))
    if "pack" in names:
        yield from pack_table(asked, arguments)
    if "blend" in names and (found := packing_data.sources(asked.root / "blend", asked.data)):
        yield blend_table(found, asked)
    if "agents" in names and (chats := packing_data.agents(asked.root / "agents", asked.data)):
        yield agent_table(chats, asked)
    if {"gather", "write", "read"} & names:
        made = Made(asked.root, asked.data, asked.bins)
        for size in (1000, 100, 32, 16):
            made.written(size)
        said = f"{len(made.bins):,} bins, {made.tokens:,} tokens drawn with replacement from {made.what}"
    if "gather" in names:
        yield token_table("gather", f"Gathering the tokens of {said}", GATHERS, asked, arguments)
    if "write" in names:
        yield token_table(
            "write", "Writing all these bins: zstd, row groups of 1,000", WRITES, asked, arguments
        )
    if "read" in names:
        yield read_table(asked, arguments)
    if asked.large:
        yield large_table(asked, arguments)


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--root", type=Path, default=Path("/tmp/headrace-bench/packing"))
    made.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--bins", type=int, default=4000)
    made.add_argument("--tables", default="pack,blend,agents,gather,write,read")
    made.add_argument(
        "--most", type=int, default=COUNTS[-1], help="no packer is asked for more lengths than this"
    )
    made.add_argument("--bridge", type=Path)
    made.add_argument("--large", action="store_true")
    made.add_argument("--one", help="measure one case in this process")
    asked = made.parse_args()
    if asked.one:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        print("RESULT " + json.dumps(measure(json.loads(asked.one), asked)), flush=True)
        return
    publish(tables(asked), asked.json, PACKAGES)


if __name__ == "__main__":
    main()
