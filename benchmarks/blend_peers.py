"""Blends of other loaders: their shares, repeats and resumes; and what batches by length leave to padding.

    python benchmarks/blend_peers.py [--rounds 5] [--rows 40000]

The first table counts, without a clock. Three sources of 1,000, 300 and 100 rows are blended 5 : 3 : 2 for 3,000 rows in
global batches of 24, on one rank, on two, and after a stop of two ranks on two and on three. A row comes early again if
it comes before every row of its source did. After a stop, batches are compared with those of two ranks without one.

The second streams rows of 3 to 59 tokens, all lengths alike, into padded batches of at most 4,096 tokens (of 64 rows
where a loader bounds rows), from Parquet here and from lists in memory elsewhere. With `--rounds` it also takes the
processor time, in turn.

Each loader is used as its documentation says. Peers are installed with `--no-deps`: lhotse lilcom cytoolz toolz
intervaltree tabulate; mosaicml-streaming catalogue zstd brotli python-snappy; levanter 1.2.dev1644 with jax, haliax and
what it imports. A library that is missing is named.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import pickle
import resource
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from figures import Cell, Table, figure
from other_loaders_peers import mosaic_modules
from reporting import parser, publish

import headrace

SOURCES = {"web": 1000, "code": 300, "talks": 100}
WEIGHTS = {"web": 5, "code": 3, "talks": 2}
GLOBAL_BATCH, STEPS, STOP, FIRST = 24, 125, 40, 10_000
TOKENS, ROWS = 4096, 64

Read = Callable[[Path, int, int | None, Any], tuple[list[list[int]], Any]]


def ours(data: Path, size: int, stop: int | None, state: Any) -> Any:
    """A stream."""
    sources = {name: headrace.open(data / f"{name}.parquet", cache_dir=data) for name in SOURCES}
    stream = headrace.blend(sources, weights=WEIGHTS).stream(
        batch_size=size, shuffle=True, seed=1, samples_per_epoch=GLOBAL_BATCH * STEPS
    )
    if state is not None:
        stream.load_state_dict(state)
    batches = [batch["row"].tolist() for batch in islice(stream, stop)]
    return batches, stream.state_dict()


def lhotse_mux(data: Path, size: int, stop: int | None, state: Any) -> Any:
    """CutSet.mux of endless sources, in a DynamicCutSampler, which picks every R-th batch."""
    from lhotse import CutSet
    from lhotse.dataset import DynamicCutSampler
    from lhotse.testing.dummies import dummy_cut

    del data
    sets = []
    for number, rows in enumerate(SOURCES.values()):
        cuts = [dummy_cut(FIRST * number + row, duration=1.0) for row in range(rows)]
        sets.append(CutSet.from_cuts(cuts).repeat(preserve_id=True))
    sampler = DynamicCutSampler(
        CutSet.mux(*sets, weights=list(WEIGHTS.values()), seed=1),
        max_cuts=size,
        shuffle=True,
        seed=1,
        world_size=dist.get_world_size(),
        rank=dist.get_rank(),
    )
    done = 0
    if state is not None:
        sampler.load_state_dict(state[0])
        done = state[1]
    left = STEPS - done if stop is None else stop
    batches = [[int(cut.id.split("-")[-1]) for cut in cuts] for cuts in islice(sampler, left)]
    return batches, (sampler.state_dict(), done + len(batches))


def mosaic(data: Path, size: int, stop: int | None, state: Any) -> Any:
    """Streams with proportions, as llm-foundry's loaders take them."""
    base = mosaic_modules()
    world = f"{dist.get_world_size()}-{stop}-{state is None}"
    streams = []
    total = sum(WEIGHTS.values())
    for number, (name, rows) in enumerate(SOURCES.items()):
        local = data / f"mds-{world}-{name}"
        if dist.get_rank() == 0:
            with base.MDSWriter(out=str(local), columns={"row": "int64"}, size_limit=1500) as out:
                for row in range(rows):
                    out.write({"row": FIRST * number + row})
        streams.append(base.Stream(local=str(local), proportion=WEIGHTS[name] / total))
    dist.barrier()
    dataset = base.StreamingDataset(
        streams=streams,
        epoch_size=GLOBAL_BATCH * STEPS,
        shuffle=True,
        shuffle_seed=1,
        batch_size=size,
    )
    loader = base.StreamingDataLoader(dataset, batch_size=size, num_workers=0)
    if state is not None:
        loader.load_state_dict(state)
    batches = [batch["row"].tolist() for batch in islice(loader, stop)]
    return batches, loader.state_dict() if stop is not None else None


def levanter_mixture(data: Path, size: int, stop: int | None, state: Any) -> Any:
    """MixtureDataset, of which each process takes its rows of a global batch; its position is a number of steps."""
    import jax
    from levanter.data.dataset import ListAsyncDataset
    from levanter.data.mixture import MixtureDataset

    del data
    sources = {}
    for number, (name, rows) in enumerate(SOURCES.items()):
        listed = ListAsyncDataset([FIRST * number + row for row in range(rows)], is_complete=True)
        sources[name] = listed.shuffle(jax.random.PRNGKey(number))
    mixture = MixtureDataset(sources, WEIGHTS, block_size=2048, key=jax.random.PRNGKey(9))
    first = state or 0
    end = STEPS if stop is None else first + stop
    batches = []
    for step in range(first, end):
        begin = step * GLOBAL_BATCH + dist.get_rank() * size
        batches.append(
            [int(row) for row in asyncio.run(mixture.get_batch(list(range(begin, begin + size))))]
        )
    return batches, end


LOADERS: dict[str, tuple[str, Read]] = {
    "headrace": ("headrace", ours),
    "Lhotse, CutSet.mux": ("lhotse", lhotse_mux),
    "mosaicml-streaming, proportion": ("mosaicml-streaming", mosaic),
    "Levanter, MixtureDataset": ("levanter", levanter_mixture),
}


def on_rank(rank: int, world: int, name: str, folder: str) -> None:
    """The passes of one loader on one rank, each kept in a file: its batches or why there are none, and its state."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)
    for key, value in {"RANK": rank, "WORLD_SIZE": world}.items():
        os.environ[key] = os.environ[f"LOCAL_{key}"] = str(value)
    store = f"file://{folder}/{world}.store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    read = LOADERS[name][1]
    passes: list[tuple[str, int | None]] = [("whole", None)]
    if world == 2:
        passes.append(("before", STOP))
    if world > 1:
        passes.append(("rest", None))
    for kind, stop in passes:
        state = None
        if kind == "rest":
            state = pickle.loads(kept_in(folder, 2, rank % 2, "before").read_bytes())[1]
        try:
            found = read(Path(folder, "data"), GLOBAL_BATCH // world, stop, state)
        except Exception as error:  # noqa: BLE001 - whatever a loader refuses with is its answer
            found = f"{type(error).__name__}: {error}".split("\n")[0][:90], None
        kept_in(folder, world, rank, kind).write_bytes(pickle.dumps(found))
        dist.barrier()
    dist.destroy_process_group()


def kept_in(folder: str, world: int, rank: int, kind: str) -> Path:
    """The file of a pass."""
    return Path(folder, f"{world}-{rank}-{kind}.pickle")


def steps_of(folder: str, world: int, kind: str) -> list[list[int]] | str:
    """The rows of each global batch of a pass, or why there are none."""
    given = [
        pickle.loads(kept_in(folder, world, rank, kind).read_bytes())[0] for rank in range(world)
    ]
    refused = [each for each in given if isinstance(each, str)]
    if refused:
        return refused[0]
    return [[row for batch in step for row in batch] for step in zip(*given, strict=False)]


def farthest(rows: np.ndarray[Any, Any]) -> float:
    """The most rows by which a source lies off its share of any prefix."""
    share = np.array(list(WEIGHTS.values())) / sum(WEIGHTS.values())
    off = [
        np.abs(np.cumsum(rows // FIRST == number) - share[number] * np.arange(1, len(rows) + 1))
        for number in range(len(share))
    ]
    return float(np.max(off))


def early(rows: np.ndarray[Any, Any]) -> int:
    """How many rows come again before every row of their source did."""
    again = 0
    for number, size in enumerate(SOURCES.values()):
        mine = rows[rows // FIRST == number]
        for begin in range(0, len(mine), size):
            own = mine[begin : begin + size]
            again += len(own) - len(np.unique(own))
    return again


def compared(steps: list[list[int]] | str, expected: list[list[int]]) -> str:
    """How many global batches have the same rows, and which rows come again or never."""
    if isinstance(steps, str):
        return steps
    same = sum(sorted(a) == sorted(b) for a, b in zip(steps, expected, strict=False))
    mine = Counter(row for step in steps for row in step)
    other = Counter(row for step in expected for row in step)
    if mine == other and same == len(expected):
        return f"all {same}"
    return (
        f"{same} of {len(expected)}; {(mine - other).total()} more, {(other - mine).total()} fewer"
    )


def blends() -> Table:
    """The table of what is counted."""
    rows: list[tuple[Cell, ...]] = []
    missing = {}
    for name in LOADERS:
        with tempfile.TemporaryDirectory() as folder:
            write_sources(Path(folder, "data"))
            try:
                for world in (1, 2, 3):
                    torch.multiprocessing.start_processes(
                        on_rank, (world, name, folder), nprocs=world, start_method="spawn"
                    )
            except Exception as error:  # noqa: BLE001 - its processes ended
                missing[name] = f"{error}".strip().split("\n")[-1]
                continue
            alone = steps_of(folder, 1, "whole")
            two = steps_of(folder, 2, "whole")
            if isinstance(alone, str) or isinstance(two, str):
                missing[name] = str(alone if isinstance(alone, str) else two)
                continue
            run = np.array([row for step in alone for row in step])
            rows.append(
                (
                    name,
                    f"{farthest(run):.1f}",
                    f"{early(run):,} of {len(run):,}",
                    compared(two, alone),
                    compared(steps_of(folder, 2, "rest"), two[STOP:]),
                    compared(steps_of(folder, 3, "rest"), two[STOP:]),
                )
            )
    heads = (
        "loader",
        "farthest from a share at any prefix, rows",
        "rows early again",
        "global batches on 2 ranks as on 1",
        "resumed on 2",
        "resumed on 3",
    )
    title = "Three sources 5 : 3 : 2, 3,000 rows in global batches of 24"
    return Table("blends", title, heads, rows, missing=missing)


def write_sources(data: Path) -> None:
    """A Parquet file of each source; a row is its number."""
    data.mkdir()
    for number, (name, rows) in enumerate(SOURCES.items()):
        table = pa.table({"row": np.arange(FIRST * number, FIRST * number + rows)})
        pq.write_table(table, data / f"{name}.parquet", row_group_size=50)


def padded(ids: list[np.ndarray[Any, Any]], rows: Any) -> tuple[int, int]:
    """Make a tensor of rows as the collators do; return its tokens and places."""
    chosen = [torch.from_numpy(ids[row]) for row in rows]
    batch = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
    return sum(map(len, chosen)), batch.numel()


def by_headrace(path: Path, ids: Any) -> Iterator[tuple[int, int]]:
    """Batches by tokens, read from Parquet."""
    del ids
    stream = headrace.open(path, cache_dir=path.parent).stream(
        shuffle=True, batch_tokens=TOKENS, lists="padded"
    )
    for batch in stream:
        yield int(batch["input_ids_lengths"].sum()), batch["input_ids"].numel()


def by_transformers(path: Path, ids: Any) -> Iterator[tuple[int, int]]:
    """What TRL's and Hugging Face's `group_by_length` is: mega-batches of 50 batches, sorted."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    del path
    order = list(LengthGroupedSampler(ROWS, lengths=list(map(len, ids))))
    for begin in range(0, len(order), ROWS):
        yield padded(ids, order[begin : begin + ROWS])


def by_lhotse(path: Path, ids: Any) -> Iterator[tuple[int, int]]:
    """DynamicBucketingSampler of 30 buckets; its bound counts the tokens of rows, padding included here."""
    from lhotse import CutSet
    from lhotse.dataset import DynamicBucketingSampler
    from lhotse.dataset.sampling.base import TimeConstraint
    from lhotse.testing.dummies import dummy_cut

    del path
    cuts = CutSet.from_cuts(
        dummy_cut(row, duration=float(len(each))) for row, each in enumerate(ids)
    )
    bound = TimeConstraint(max_duration=float(TOKENS), quadratic_duration=None)
    for batch in DynamicBucketingSampler(
        cuts, constraint=bound, num_buckets=30, shuffle=True, seed=1
    ):
        yield padded(ids, [int(cut.id.split("-")[-1]) for cut in batch])


GROUPERS = {
    "headrace, batch_tokens": by_headrace,
    "transformers and TRL, group_by_length": by_transformers,
    "Lhotse, DynamicBucketingSampler": by_lhotse,
}


def lengths(asked: argparse.Namespace) -> Table:
    """The table of padding and processor time."""
    drawn = np.random.default_rng(0).integers(3, 60, asked.rows)
    ids = [np.full(length, row, np.int64) for row, length in enumerate(drawn.tolist())]
    seconds: dict[str, list[float]] = {name: [] for name in GROUPERS}
    real: dict[str, float] = {}
    missing = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        pq.write_table(pa.table({"input_ids": ids}), path, row_group_size=4096)
        for number in range(asked.rounds + 1):  # the first imports, and is not timed
            for name, read in GROUPERS.items():
                before = processor_s()
                try:
                    counts = np.array(list(read(path, ids)))
                except ImportError as error:
                    missing[name] = str(error)
                    continue
                if number:
                    seconds[name].append(processor_s() - before)
                real[name] = counts[:, 0].sum() / counts[:, 1].sum()
                assert counts[:, 0].sum() == drawn.sum()
    rows: list[tuple[Cell, ...]] = []
    for name, share in real.items():
        row: tuple[Cell, ...] = (name, f"{share:.1%}")
        if asked.rounds:
            row = (*row, figure([each / asked.rows * 1e6 for each in seconds[name]], 1))
        rows.append(row)
    heads: tuple[str, ...] = ("loader", "real tokens")
    if asked.rounds:
        heads = (*heads, "CPU s per M rows")
    title = f"{asked.rows:,} rows of 3 to 59 tokens in padded batches"
    return Table("lengths", title, heads, rows, missing=missing)


def processor_s() -> float:
    """Processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Both, one after the other."""
    yield blends()
    yield lengths(asked)


def main() -> None:
    """Count, measure and print."""
    asking = parser(__doc__)
    asking.add_argument("--rounds", type=int, default=0, help="of processor time")
    asking.add_argument("--rows", type=int, default=40_000)
    asked = asking.parse_args()
    packages = [package for package, _ in LOADERS.values() if package != "headrace"]
    publish(tables(asked), asked.json, [*packages, "torch", "transformers"])


if __name__ == "__main__":
    main()
