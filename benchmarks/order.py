"""The order of an epoch: the same batches on any ranks and workers, how well they mix, and what is decoded for it.

    python benchmarks/order.py [--parts batches mixing sizes law reads resume] [--rows 2000000 10000000]

No clock: counts only, so any machine gives the same.

batches: Parquet files are streamed by 1 to 16 ranks with 0 to 4 DataLoader workers each, ranks one after the other and
workers as processes. The rows of every global step are compared with those of one rank without workers.
mixing: every batch of an epoch of files that are sorted by label, of headrace's order and of the plans that
mosaicml-streaming makes with its own functions, beside a true permutation in closed form.
sizes: classes that a global batch and one rank's batch of sorted rows meet, of small, kept and larger data on 1 to 64
ranks, beside a permutation and what `headrace plan` says; and chi-squared of global batches.
law: the same for 1,000 to 50,000,000 rows in 1 to 1,000 blocks, beside what is promised: how far small and kept data are
from a permutation, and larger data from the bounds.
reads: blocks that streams of 1 to 64 ranks decode, counted where they are read, and what the plan says of it.
resume: the same for the rest of an epoch that goes on with other ranks.

mosaicml-streaming is not needed, but named where it is missing: `pip install --no-deps mosaicml-streaming` and
`pip install brotli catalogue pillow python-snappy zstd`.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from math import exp, lgamma, log
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Cell, Table
from other_loaders_peers import mosaic_modules
from reporting import parser, publish
from torch.utils.data import DataLoader

import headrace
from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import RowPasses
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.advice import (
    measure,
    natural_rows,
    permutation_mixing,
    sample_batches,
    segment_count,
    sorted_mixing,
)
from headrace.stream.order.lanes import Lanes
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import even_parts
from headrace.stream.ranks.topology import Topology

SEED, EPOCH = 5, 1
COLUMNS = 28  # of 4 bytes, beside the row's number: what the choice of lanes goes by
WIDE = pa.schema([("row", pa.int64()), ("x", pa.list_(pa.float32(), COLUMNS))])

# ---- the same global batches ----------------------------------------------------------------------------------------

WORLDS, WORKERS, GLOBAL_BATCH = (1, 2, 3, 4, 6, 8, 12, 16), range(5), 48


@dataclass(frozen=True, kw_only=True)
class Data:
    """Rows in files of unequal sizes. settings: of the stream; steps: how many are compared, None: all."""

    name: str
    words: str
    rows: int
    files: int
    block_rows: int
    settings: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None


DATA = (
    Data(
        name="small",
        words="smaller than a round: one permutation",
        rows=3007,
        files=7,
        block_rows=100,
    ),
    Data(
        name="rounds",
        words="ten rounds, `lanes=48, shuffle_rows=960`",
        rows=9607,
        files=20,
        block_rows=50,
        settings={"lanes": 48, "shuffle_rows": 960},
    ),
    Data(
        name="large",
        words="19 rounds, the first eight steps of an epoch",
        rows=4_915_207,
        files=30,
        block_rows=16_384,
        steps=8,
    ),
)


def write_files(root: Path, data: Data) -> None:
    """Parquet files; column row counts all rows."""
    weights = 10 + np.arange(data.files) * 7 % 5
    borders = np.concatenate([[0], np.cumsum(weights) * data.rows // weights.sum()])
    for number, (begin, end) in enumerate(
        zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
    ):
        table = pa.table({"row": np.arange(begin, end)})
        pq.write_table(table, root / f"part-{number:05d}.parquet", row_group_size=data.block_rows)


def global_steps(
    dataset: headrace.Dataset, data: Data, world_size: int, workers: int
) -> list[frozenset[int]]:
    """The rows of each global step, filling rows left out."""
    ranks = []
    for rank in range(world_size):
        rows = dataset.torch_dataset(
            batch_size=GLOBAL_BATCH // world_size,
            num_workers=workers,
            topology=headrace.Topology(rank=rank, world_size=world_size),
            shuffle=True,
            seed=SEED,
            **data.settings,
        )
        rows.set_epoch(EPOCH)
        loader = DataLoader(rows, batch_size=None, num_workers=workers)
        ranks.append(
            [batch["row"][batch["valid"]].tolist() for batch in islice(loader, data.steps)]
        )
    return [frozenset(chain.from_iterable(step)) for step in zip_longest(*ranks, fillvalue=[])]


def batches_tables(_asked: argparse.Namespace) -> Iterator[Table]:
    """A table for each size of data: how many of one rank's global batches every topology gives."""
    warnings.filterwarnings(
        "ignore", message="This DataLoader will create"
    )  # counts do not mind few processors
    for data in DATA:
        rows: list[tuple[Cell, ...]] = []
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "data")
            root.mkdir()
            write_files(root, data)
            dataset = headrace.open(root, cache_dir=Path(folder, "cache"))
            wanted = global_steps(dataset, data, 1, 0)
            for world_size in WORLDS:
                cells = []
                for workers in WORKERS:
                    found = global_steps(dataset, data, world_size, workers)
                    same = sum(step == other for step, other in zip(wanted, found, strict=False))
                    steps = max(len(wanted), len(found))
                    cells.append(f"all {steps}" if same == steps else f"{same} of {steps}")
                rows.append((str(world_size), *cells))
        heads = ("ranks", *(f"{workers} workers" for workers in WORKERS))
        title = (
            f"Global batches of {GLOBAL_BATCH} that are those of one rank without workers: {data.rows:,} rows,"
            f" {data.words}"
        )
        yield Table(f"batches-{data.name}", title, heads, rows)


# ---- mixing ---------------------------------------------------------------------------------------------------------

FILES, RANKS, BLOCK_ROWS, SHARD_BYTES = (1, 20, 200, 2000), 8, 65_536, 1 << 26
MOSAIC_ROWS = 4_000_000  # that its py1e and py1br shuffle among themselves on one node, by default
EPOCHS_OF_PEERS = ("py1e", "py1br", "py1s", "py2s")
# (ranks, rows in the batch of one)
ALONE, SMALL_BATCHES, BATCHES = (1, 8), (RANKS, 8), (RANKS, 32)

# (ranks, rows in a batch of one) → the natural row numbers of an epoch: int64 [steps, ranks, rows of a batch]
Epoch = Callable[[int, int], I64]


def wide_index(block_rows: Sequence[int]) -> SplitIndex:
    """An index of blocks with these rows of 28 numbers, as of one file."""
    blocks = len(block_rows)
    return SplitIndex(
        split="train",
        schema=WIDE,
        shards=("part-00000.parquet",),
        formats=("parquet",),
        shard_of_block=np.zeros(blocks, np.int64),
        block=np.arange(blocks, dtype=np.int64),
        rows=np.array(block_rows, np.int64),
        offset=np.zeros(blocks, np.int64),
        length=np.zeros(blocks, np.int64),
    )


def cut(rows: int, files: int, most: int) -> list[int]:
    """The rows of the parts that equal files are cut into, none longer than `most`."""
    return [
        min(most, rows // files - first)
        for _ in range(files)
        for first in range(0, rows // files, most)
    ]


def passes(
    index: SplitIndex, ranks: int, batch_rows: int, shuffle_rows: int | None = None
) -> RowPasses:
    """The passes of a stream that reads nothing."""
    options = StreamOptions(
        batch_size=batch_rows,
        shuffle=True,
        shuffle_rows=shuffle_rows,
        seed=SEED,
        remainder="pad",
        batch_format="numpy",
    )
    return RowPasses(index, no_block, options, Topology(rank=0, world_size=ranks))


def planned(
    index: SplitIndex, ranks: int, batch_rows: int, epoch: int, shuffle_rows: int | None = None
) -> Plan:
    """The plan of an epoch, as a stream makes it."""
    return passes(index, ranks, batch_rows, shuffle_rows).begin(epoch).plan()


def no_block(_number: int, _columns: object) -> pa.Table:
    """Nothing is read for a plan."""
    raise NotImplementedError


def ours(rows: int, files: int, shuffle_rows: int | None = None) -> Epoch:
    """Files of row groups of 65,536 rows at most."""
    index = wide_index(cut(rows, files, BLOCK_ROWS))

    def epoch(ranks: int, batch_rows: int) -> I64:
        order = planned(index, ranks, batch_rows, EPOCH, shuffle_rows).order
        steps = order.rows // (ranks * batch_rows)
        positions = np.arange(steps * ranks * batch_rows, dtype=np.int64)
        natural = np.concatenate(
            [natural_rows(index, order, part) for part in np.array_split(positions, 8)]
        )
        return natural.reshape(steps, batch_rows, ranks).swapaxes(1, 2)

    return epoch


def mosaic(algorithm: str, rows: int, files: int) -> Epoch:
    """One node, no workers; shards are files of 64 MiB at most, and all choices those of StreamingDataset."""
    mosaic_modules()
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    sizes = np.array(cut(rows, files, SHARD_BYTES // (4 * COLUMNS + 8)), np.int64)
    canonical = 64 if algorithm in ("py1s", "py2s") else 1
    block_rows = max(MOSAIC_ROWS // canonical, 1 << 18)
    shuffled: list[I64] = []

    def epoch(ranks: int, batch_rows: int) -> I64:
        if not shuffled:  # the ranks of one node do not change it
            shuffled.append(get_shuffle(algorithm, sizes, canonical, SEED, EPOCH, block_rows))
        places = get_partitions("relaxed", int(sizes.sum()), canonical, 1, ranks, 1, batch_rows)
        steps = int(sizes.sum()) // (ranks * batch_rows)
        return np.asarray(shuffled[0][places[0, :, 0, :steps].swapaxes(0, 1)])

    return epoch


def mixing_of(epoch: Epoch, rows: int) -> tuple[str, ...]:
    """The cells of one loader: of global batches, then of a rank's."""

    def measured(ranks: int, batch_rows: int, *, together: bool) -> Any:
        natural = epoch(ranks, batch_rows)
        return measure(
            natural.reshape(-1, ranks * batch_rows if together else batch_rows),
            total_rows=rows,
            batch_rows=batch_rows,
        )

    single = (
        measured(*ALONE, together=True).single_class,
        measured(*SMALL_BATCHES, together=False).single_class,
    )
    classes = [measured(*BATCHES, together=together).classes for together in (True, False)]
    return _mixing_cells(single[0], classes[0], single[1], classes[1])


def _mixing_cells(
    of_global: float, met: float, of_rank: float, met_by_rank: float
) -> tuple[str, ...]:
    return f"{100 * of_global:.2f} %", f"{met:.1f}", f"{100 * of_rank:.2f} %", f"{met_by_rank:.1f}"


def mixing_tables(asked: argparse.Namespace) -> Iterator[Table]:
    """A table for each number of rows, the first of which headrace shuffles as a whole."""
    missing = {}
    try:
        mosaic_modules()
    except ImportError as error:
        missing["mosaicml-streaming"] = f"{error}"
    (_, eight), (_, of_rank) = ALONE, BATCHES
    heads = (
        "files",
        "order",
        f"global batches of {eight}: of one class",
        f"of {RANKS * of_rank}: classes of 100",
        f"a rank's batches of {eight}: of one class",
        f"of {of_rank}: classes of 100",
    )
    for number, rows in enumerate(asked.rows):
        permuted = [permutation_mixing(rows, each) for each in (eight, RANKS * of_rank, of_rank)]
        cells = _mixing_cells(permuted[0][0], permuted[1][1], permuted[0][0], permuted[2][1])
        lines: list[tuple[Cell, ...]] = [("–", "a permutation", *cells)]
        for files in FILES:
            lines.append((f"{files:,}", "headrace", *mixing_of(ours(rows, files), rows)))
            if rows > MOSAIC_ROWS:
                widened = mixing_of(ours(rows, files, MOSAIC_ROWS), rows)
                lines.append((f"{files:,}", f"headrace, `shuffle_rows={MOSAIC_ROWS:_}`", *widened))
            for algorithm in EPOCHS_OF_PEERS if not missing else ():
                lines.append(
                    (
                        f"{files:,}",
                        f"Mosaic `{algorithm}`",
                        *mixing_of(mosaic(algorithm, rows, files), rows),
                    )
                )
        title = f"{rows:,} rows sorted by label, every batch of an epoch; global batches on 1 and {RANKS} ranks"
        yield Table(f"mixing-{number + 1}", title, heads, lines, missing=missing)


# (rows, bytes of a row, blocks): small, kept and larger data
SIZES = (
    (4_190_000, 6, 88),
    (4_200_000, 6, 88),
    (50_000_000, 6, 300),
    (4_200_000, 100, 88),
    (4_200_000, 100, 1500),
    (10_000_000, 100, 1500),
    (50_000_000, 100, 1500),
)
SIZES_RANKS, STEP_ROWS, CLASSES = (1, 8, 64), 1024, 100


def sizes_tables(_asked: argparse.Namespace) -> Iterator[Table]:
    """A line for each size and number of ranks."""
    lines: list[tuple[Cell, ...]] = []
    for rows, row_bytes, blocks in SIZES:
        index = replace(
            wide_index(even_parts(rows, blocks).tolist()),
            schema=pa.schema([("x", pa.binary(row_bytes))]),
        )
        for ranks in SIZES_RANKS:
            plan = planned(index, ranks, STEP_ROWS // ranks, EPOCH)
            said = sorted_mixing(plan)
            assert said is not None
            natural = natural_batches(plan, STEP_ROWS, 1)
            of_global = class_counts(natural, rows)
            natural = natural_batches(plan, STEP_ROWS // ranks, ranks)
            of_rank = class_counts(natural, rows)
            lines.append(
                (
                    f"{rows:,} × {row_bytes} in {blocks:,}",
                    f"{ranks}",
                    f"{plan.order.lanes:,}, {plan.order.window_rows:,}",
                    f"{(of_global > 0).sum(axis=1).mean():.1f}",
                    f"{chi_squared(of_global, STEP_ROWS):.1f}",
                    f"{(of_rank > 0).sum(axis=1).mean():.1f}",
                    f"{said.classes:.1f}",
                    f"{said.permutation_classes:.1f}",
                )
            )
    heads = (
        "rows × bytes in blocks",
        "ranks",
        "lanes, rows of a window",
        f"classes met by a global {STEP_ROWS:,}",
        "chi-squared of it, per degree of freedom",
        f"classes met by a rank's {STEP_ROWS:,} / ranks",
        "as planned",
        "a permutation's",
    )
    title = f"Rows sorted by {CLASSES} classes: what global batches and a rank's batches meet"
    yield Table("sizes", title, heads, lines)


def natural_batches(plan: Plan, batch_rows: int, ranks: int) -> I64:
    """The natural row numbers of sampled batches of one rank: int64 [batches, rows]."""
    positions = sample_batches(plan.order, batch_rows=batch_rows, ranks=ranks)
    return natural_rows(plan.index, plan.order, positions.ravel()).reshape(positions.shape)


def class_counts(natural: I64, rows: int, classes: int = CLASSES) -> I64:
    """The rows of each class in each batch of sorted rows: int64 [batches, classes]."""
    batch = np.arange(len(natural), dtype=np.int64)[:, None]
    of_class = natural * classes // rows + batch * classes
    counts = np.bincount(of_class.ravel(), minlength=len(natural) * classes)
    return counts.reshape(-1, classes)


def chi_squared(counts: I64, batch_rows: int) -> float:
    """Chi-squared of the classes of batches per degree of freedom, mean over the batches."""
    expected = batch_rows / CLASSES
    return float(((counts - expected) ** 2).sum(axis=1).mean() / expected / (CLASSES - 1))


# (rows, bytes of a row), each in as many blocks as LAW_BLOCKS says, on as many ranks as LAW_RANKS says
LAW_SIZES = (
    (1_000, 100),
    (30_000, 100),
    (1_000_000, 6),
    (1_000_000, 100),
    (3_000_000, 100),
    (10_000_000, 6),
    (10_000_000, 100),
    (50_000_000, 6),
    (50_000_000, 100),
)
LAW_BLOCKS, LAW_RANKS = (1, 30, 1_000), (1, 8, 64)
EPOCHS_ROWS = 50_000  # of small data, whose batches are those of several epochs


@dataclass(frozen=True, kw_only=True)
class Met:
    """What batches of rows sorted by 100 classes met.

    sigmas: how far they are from a permutation's, of classes and of batches of one class of two.
    share: classes, of the printed bound. spread: chi-squared per degree of freedom, of its bound. ranks: that share a
    step; 1: batches are global.
    """

    ranks: int
    sigmas: tuple[float, float]
    share: float
    spread: float


def law_tables(_asked: argparse.Namespace) -> Iterator[Table]:
    """A line for small, kept and larger data: how far batches are from what is promised of them."""
    found: dict[str, list[Met]] = {}
    for rows, row_bytes in LAW_SIZES:
        for blocks in LAW_BLOCKS:
            index = replace(
                wide_index(even_parts(rows, blocks).tolist()),
                schema=pa.schema([("x", pa.binary(row_bytes))]),
            )
            step_rows = min(STEP_ROWS, rows // 2)
            for ranks in LAW_RANKS:
                epochs = range(EPOCH, EPOCH + max(1, EPOCHS_ROWS // rows))
                plans = [planned(index, ranks, step_rows // ranks, epoch) for epoch in epochs]
                name = "larger"
                if plans[0].keeps_split:
                    name = "small" if plans[0].order.lanes == 1 else "kept"
                met = found.setdefault(name, [])
                for among in {1, ranks}:
                    met.append(batches_met(plans, step_rows // among, among))
    lines: list[tuple[Cell, ...]] = []
    for name, met in found.items():
        sigmas = [abs(sigma) for case in met for sigma in case.sigmas]
        corrected = -NormalDist().inv_cdf(0.00135 / len(sigmas))
        cells = [f"{max(sigmas):.1f} of {corrected:.1f}", "–", "–", "–"]
        if name == "larger":
            fewest = min(case.share for case in met)
            spreads = [
                [case.spread for case in met if (case.ranks > 1) is of_rank]
                for of_rank in (False, True)
            ]
            cells = ["–", f"{100 * (fewest - 1):+.1f} %", *(f"{max(each):.2f}" for each in spreads)]
        lines.append((name, f"{len(met):,}", *cells))
    heads = (
        "data",
        "cases",
        "furthest from a permutation, of three sigma corrected for the cells",
        "fewest classes, beside the printed bound",
        "most chi-squared of a global batch, of its bound",
        "of a rank's",
    )
    title = (
        f"{LAW_SIZES[0][0]:,} to {LAW_SIZES[-1][0]:,} rows sorted by class, in 1 to"
        f" {LAW_BLOCKS[-1]:,} blocks, on 1 to {LAW_RANKS[-1]} ranks: global batches, and a rank's"
    )
    yield Table("law", title, heads, lines)


def batches_met(plans: Sequence[Plan], batch_rows: int, ranks: int) -> Met:
    """Compare sampled batches of one rank, in some epochs, with a permutation's and with the bounds of larger data."""
    plan = plans[0]
    rows = plan.split_rows
    natural = np.concatenate([natural_batches(each, batch_rows, ranks) for each in plans])
    counts = class_counts(natural, rows)
    batches = len(counts)
    missed = batches * CLASSES - int((counts > 0).sum())
    alike = int((class_counts(natural, rows, classes=2).max(axis=1) == batch_rows).sum())

    single, classes = permutation_mixing(rows, batch_rows)
    one, two = (missing(rows, part * rows // CLASSES, batch_rows) for part in (1, 2))
    variance = CLASSES * one + CLASSES * (CLASSES - 1) * two - (CLASSES * one) ** 2
    s = segment_count(
        Lanes(plan.order.lanes, plan.order.window_rows, plan.order.groups),
        rows=rows,
        block_rows=float(np.median(plan.index.rows)),
        ranks=ranks,
    )
    drawn = s * (1 - (1 - 1 / s) ** batch_rows)
    bound = min(classes, CLASSES * (1 - (1 - 1 / CLASSES) ** drawn))
    return Met(
        ranks=ranks,
        sigmas=(
            deviation(missed, batches * (CLASSES - classes), batches * variance),
            deviation(alike, batches * single, batches * single * (1 - single)),
        ),
        share=(CLASSES - missed / batches) / bound,
        spread=chi_squared(counts, batch_rows) / (1 + (batch_rows - 1) / s),
    )


def missing(rows: int, others: int, drawn: int) -> float:
    """The probability that none of `drawn` rows of a permutation is among `others`."""
    if drawn > rows - others:
        return 0.0
    left = lgamma(rows - others + 1) - lgamma(rows - others - drawn + 1)
    return exp(left - lgamma(rows + 1) + lgamma(rows - drawn + 1))


def deviation(found: int, expected: float, variance: float) -> float:
    """How many standard deviations a count is from the expected one; of rare events by Poisson's distribution."""
    if expected >= 30:
        return float((found - expected) / max(variance, 1e-9) ** 0.5)
    if expected < 1e-9:
        return float("inf") if found else 0.0
    terms = [exp(k * log(expected) - expected - lgamma(k + 1)) for k in range(found + 1)]
    tail = min(sum(terms), 1 - sum(terms[:-1]))
    return -NormalDist().inv_cdf(max(tail, 1e-300)) if tail < 0.5 else 0.0


# ---- what is decoded ------------------------------------------------------------------------------------------------

READERS = (1, 2, 3, 4, 8, 12, 16, 32, 64)
READ_BLOCKS, PLANNED_BLOCKS = 300, ((300, 8192), (1500, 65_536), (6000, 16_384))
BATCH_ROWS = 256
RESUMED_BLOCKS, RESUMED_ROWS = 300, (8192, 65_536)
CHANGES = ((16, 15), (16, 12), (16, 5), (8, 7), (64, 63))


class CountedBlocks:
    """Reads row groups of a file, one column of them, and counts what it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads: Counter[int] = Counter()

    def __call__(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        self.reads[block] += 1
        with pq.ParquetFile(self.path) as file:
            return file.read_row_group(block, columns=columns)


def stream_of(index: SplitIndex, read: CountedBlocks, rank: int, world_size: int) -> StreamLoader:
    """One rank's stream; the other columns only make rows as wide as the index says."""
    options = StreamOptions(
        batch_size=BATCH_ROWS,
        shuffle=True,
        seed=SEED,
        columns=("row",),
        batch_format="numpy",
        remainder="pad",
    )
    topology = headrace.Topology(rank=rank, world_size=world_size)
    return StreamLoader(index, read, options, topology=topology)


def counted_reads(
    index: SplitIndex, path: Path, world_size: int, state: dict[str, Any] | None = None
) -> tuple[int, int]:
    """(blocks decoded by all ranks, rows delivered) from the beginning of an epoch or from a state to its end."""
    decoded = delivered = 0
    for rank in range(world_size):
        read = CountedBlocks(path)  # for each rank anew: ranks share nothing
        stream = stream_of(index, read, rank, world_size)
        if state is not None:
            stream.load_state_dict(state)
        delivered += sum(int(batch["valid"].sum()) for batch in stream)
        decoded += sum(read.reads.values())
    return decoded, delivered


def write_wide(path: Path, blocks: int, block_rows: int) -> SplitIndex:
    """A file of so many row groups with the rows' numbers alone, and an index that says how wide they would be."""
    rows = np.arange(blocks * block_rows, dtype=np.int64)
    pq.write_table(pa.table({"row": rows}), path, row_group_size=block_rows)
    return wide_index([block_rows] * blocks)


def reads_tables(_asked: argparse.Namespace) -> Iterator[Table]:
    """How often a block is decoded: counted at 300 blocks, and planned for more."""
    lines: list[tuple[Cell, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "part-00000.parquet")
        index = write_wide(path, *PLANNED_BLOCKS[0])
        for world_size in READERS:
            decoded, delivered = counted_reads(index, path, world_size)
            if delivered != index.total_rows:
                raise ValueError(
                    f"{world_size} ranks delivered {delivered} rows of {index.total_rows}"
                )
            plans = [
                planned(wide_index([rows] * blocks), world_size, BATCH_ROWS, 0)
                for blocks, rows in PLANNED_BLOCKS
            ]
            cells = (f"{plan.read_amplification:.2f} ({plan.order.lanes} lanes)" for plan in plans)
            lines.append((str(world_size), f"{decoded / len(index.rows):.2f}", *cells))
    heads = (
        "ranks",
        f"counted, {READ_BLOCKS:,} blocks",
        *(
            f"planned, at most: {blocks:,} blocks of {rows:,} rows"
            for blocks, rows in PLANNED_BLOCKS
        ),
    )
    yield Table(
        "reads", "How often a block is decoded in an epoch, over the whole job", heads, lines
    )


def resume_tables(_asked: argparse.Namespace) -> Iterator[Table]:
    """How often the blocks of the second half of an epoch are decoded by other ranks: counted, and planned for more."""
    lines: list[tuple[Cell, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        indexes = [
            write_wide(Path(folder, f"{rows}.parquet"), RESUMED_BLOCKS, rows)
            for rows in RESUMED_ROWS
        ]
        for before, after in CHANGES:
            cells = []
            for rows, index in zip(RESUMED_ROWS, indexes, strict=True):
                path = Path(folder, f"{rows}.parquet")
                decoded, delivered = counted_reads(
                    index, path, after, state=state_at_half(index, path, before)
                )
                cells.append(f"{decoded * index.total_rows / (len(index.rows) * delivered):.2f}")
            for blocks, rows in PLANNED_BLOCKS[1:]:
                cells.append(f"{planned_again(wide_index([rows] * blocks), before, after):.2f}")
            lines.append((f"{before} → {after}", *cells))
    heads = (
        "ranks",
        *(f"counted, {RESUMED_BLOCKS:,} blocks of {rows:,} rows" for rows in RESUMED_ROWS),
        *(
            f"planned, at most: {blocks:,} blocks of {rows:,} rows"
            for blocks, rows in PLANNED_BLOCKS[1:]
        ),
    )
    title = "The second half of an epoch on other ranks: decoded blocks, of the blocks that the rows left fill"
    yield Table("resume", title, heads, lines)


def planned_again(index: SplitIndex, before: int, after: int) -> float:
    """What the plan says of the second half: blocks decoded, of those that the rows left fill."""
    begun = passes(index, before, BATCH_ROWS).begin(0)
    plan = passes(index, after, BATCH_ROWS).resume(begun.state_after(begun.steps // 2)).plan()
    decoded = float(plan.bytes_per_rank.sum()) / float(plan.block_bytes[0])
    return decoded * index.total_rows / (len(index.rows) * plan.remaining.total)


def state_at_half(index: SplitIndex, path: Path, world_size: int) -> dict[str, Any]:
    """Of any rank: all have the same one."""
    stream = stream_of(index, CountedBlocks(path), 0, world_size)
    batches = iter(stream)
    for _ in islice(batches, len(stream) // 2):
        pass
    return stream.state_dict()


PARTS = {
    "batches": batches_tables,
    "mixing": mixing_tables,
    "sizes": sizes_tables,
    "law": law_tables,
    "reads": reads_tables,
    "resume": resume_tables,
}


def main() -> None:
    """Parse, count, print."""
    made = parser(__doc__)
    made.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    made.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[2_000_000, 10_000_000],
        help="of the files that are mixed",
    )
    asked = made.parse_args()
    publish(
        chain.from_iterable(PARTS[part](asked) for part in asked.parts),
        asked.json,
        ["torch", "mosaicml-streaming"],
    )


if __name__ == "__main__":
    main()
