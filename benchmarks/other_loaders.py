"""What other loaders deliver of the same rows: how often each comes, in which global batches, and after a stop.

    python benchmarks/other_loaders.py [--rows 1003 1009 10007] [--shards 6] [--loaders headrace grain]

No clock: counts only, so any machine gives the same. Real processes, from one to eight of them, read the same rows with
the same global batch of 48, without worker processes; `loader_workers.py` is with them. Each loader is used as its
documentation says, and with another setting beside it where that serves it better: shuffled, an epoch; on two ranks six
steps and a saved state; the rest on as many ranks, and on three. Its global batches are compared with its own on one
rank without workers, and after a stop with those of the run without a stop. Delivered is what the loop receives, a
filling row counted unless the batch says that it is one.

Whether ranks get equal steps, and how many rows are left over, depends on the number of rows: 1,003 are dealt evenly
where 1,009 are not. So the table has several numbers of rows.

Each loader and number of ranks is a process group of its own, so what one refuses or hangs in costs the others nothing.
A library that is not installed is named. Without what they depend on, which asks for another torch:
`pip install --no-deps mosaicml-streaming litdata lancedb pylance lance-namespace lance-namespace-urllib3-client` and
`pip install brotli catalogue deprecation grain lightning-utilities overrides pillow python-snappy torchdata zstd`.
Not compared: Ray Data, whose ranks are not processes of their own here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from figures import Cell, Table
from other_loaders_peers import PEERS, Pass
from reporting import parser, publish

GLOBAL_BATCH, STOP, SMALL, LARGE = 48, 6, 2, 3
WORLDS = (1, 2, 3, 4, 6, 8)
ROWS = (1003, 1009, 10_007)
PATIENCE_S = 600  # for a group of processes to give all its passes
HEADS = (
    "loader",
    "rows again",
    "rows never",
    "equal steps on all ranks",
    "global batches as on one rank without workers",
    "resumed on 2: batches as without a stop",
    "resumed on 3",
)

Batches = list[list[int]]
# (ranks, workers, kind of pass) → the batches of each rank, or why there are none
Found = dict[tuple[int, int, str], list[Batches] | str]


def write_shards(root: Path, rows: int, shards: int) -> None:
    """Parquet files of unequal sizes; column row counts them all."""
    weights = 10 + np.arange(shards) * 7 % 5
    borders = np.concatenate([[0], np.cumsum(weights) * rows // weights.sum()])
    for shard in range(shards):
        row = pa.array(np.arange(borders[shard], borders[shard + 1], dtype=np.int64))
        pq.write_table(
            pa.table({"row": row, "x": row.cast(pa.float32())}), root / f"part-{shard:05d}.parquet"
        )


def on_rank(rank: int, world_size: int, name: str, folder: str, workers: tuple[int, ...]) -> None:
    """All passes of one loader on one rank; each is kept in a file as soon as it is there."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    multiprocessing.set_start_method(
        "fork", force=True
    )  # of DataLoader workers, as under torchrun on Linux
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
    }
    os.environ.update({key: str(value) for key, value in names.items()})
    store = f"file://{folder}/{name}-{world_size}.store"
    patience = timedelta(seconds=PATIENCE_S)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=world_size, timeout=patience
    )

    def run(kind: str, workers: int, *, resumed: bool = False, stop: int | None = None) -> None:
        saved = [_file(folder, name, SMALL, other, workers, "before") for other in range(SMALL)]
        if resumed and not all(
            path.exists() for path in saved
        ):  # the two ranks did not get that far
            return
        try:
            states = [pickle.loads(path.read_bytes())[1] for path in saved] if resumed else None
            work = Path(folder, f"work-{name}-{world_size}-{workers}-{kind}")
            asked = Pass(
                data=Path(folder, "data"),
                work=work,
                batch_size=GLOBAL_BATCH // world_size,
                workers=workers,
                states=states,
                stop=stop,
            )
            found = PEERS[name].read(asked)
        except Exception as error:  # noqa: BLE001 - whatever a loader refuses with is its answer
            found = f"{type(error).__name__}: {error}", None
        _file(folder, name, world_size, rank, workers, kind).write_bytes(pickle.dumps(found))
        dist.barrier()

    for each in plays(name, world_size, workers):
        run("whole", each)
        if world_size == SMALL:
            run("before", each, stop=STOP)
        if world_size in (SMALL, LARGE):
            run("rest", each, resumed=True)
    dist.destroy_process_group()


def plays(name: str, world_size: int, workers: tuple[int, ...]) -> tuple[int, ...]:
    """With how many workers a loader is played on so many ranks: dozens of interpreters would take an hour."""
    return (
        workers
        if PEERS[name].workers == "forked" or world_size <= LARGE
        else tuple(each for each in workers if not each)
    )


def _file(folder: str, name: str, world_size: int, rank: int, workers: int, kind: str) -> Path:
    return Path(folder, f"{name}-{world_size}-{rank}-{workers}-{kind}.pickle")


def played(name: str, folder: str, workers: tuple[int, ...]) -> Found:
    """All passes of one loader, on every number of ranks in turn: three go on from the states of two."""
    found: Found = {}
    for world_size in WORLDS:
        group = torch.multiprocessing.start_processes(
            on_rank,
            (world_size, name, folder, workers),
            nprocs=world_size,
            join=False,
            start_method="forkserver",
        )
        why = ended(group)
        for each in plays(name, world_size, workers):
            for kind in ("whole", "before", "rest"):
                files = [
                    _file(folder, name, world_size, rank, each, kind) for rank in range(world_size)
                ]
                if all(path.exists() for path in files):
                    batches = [pickle.loads(path.read_bytes())[0] for path in files]
                    refused = next((one for one in batches if isinstance(one, str)), None)
                    found[world_size, each, kind] = batches if refused is None else refused
                elif kind == "whole":
                    found[world_size, each, kind] = why or "ended early"
        for path in Path(folder).glob(f"work-{name}-{world_size}-*"):
            shutil.rmtree(path)
    return found


def ended(group: Any) -> str | None:
    """Wait for the processes of a group; why it has not ended well, if it has not."""
    until = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < until:
            if group.join(timeout=5):
                return None
    except (
        torch.multiprocessing.ProcessExitedException,
        torch.multiprocessing.ProcessRaisedException,
    ) as error:
        return f"{error}".strip().splitlines()[-1]
    for process in group.processes:
        process.kill()
    return f"not ready in {PATIENCE_S} s"


def counted(batches: Iterable[Batches], rows: int) -> tuple[int, int]:
    """Rows that came again, and rows that never came, over the batches of all ranks."""
    counts = Counter(row for rank in batches for batch in rank for row in batch)
    return sum(counts.values()) - len(counts), rows - len(counts)


def steps(ranks: list[Batches]) -> list[frozenset[int]]:
    """The rows of each global step."""
    return [frozenset(chain.from_iterable(step)) for step in zip_longest(*ranks, fillvalue=[])]


def line(name: str, second: str, workers: int, found: Found, rows: int) -> tuple[Cell, ...]:
    """One loader with one number of workers in a table. second: its second cell."""
    whole = {
        world: found[world, workers, "whole"]
        for world in WORLDS
        if (world, workers, "whole") in found
    }
    given = {world: ranks for world, ranks in whole.items() if not isinstance(ranks, str)}
    if not given:
        return (name, second, *["refused"] * (len(HEADS) - 1))
    again, never = zip(*(counted(ranks, rows) for ranks in given.values()), strict=True)
    equal = sum(len({len(rank) for rank in ranks}) == 1 for ranks in given.values())
    wanted = found[1, 0, "whole"]
    assert not isinstance(wanted, str)
    same = []
    for ranks in given.values():
        pairs = zip(steps(wanted), steps(ranks), strict=False)
        same.append((sum(a == b for a, b in pairs), max(map(len, [*wanted, *ranks]))))
    fewest, most = min(same), max(same)
    cells = [_range(again), _range(never), f"{equal} of {len(given)} worlds"]
    cells.append(f"{_range([a for a, _ in same])} of {_range([b for _, b in same])}")
    if fewest == most and fewest[0] == fewest[1]:
        cells[-1] = f"all {fewest[1]}"
    if len(given) < len(WORLDS):
        cells[-1] += f", on {len(given)} of {len(WORLDS)} worlds"
    return (
        name,
        second,
        *cells,
        *(_resumed(world, workers, found, rows) for world in (SMALL, LARGE)),
    )


def _range(values: Iterable[int]) -> str:
    least, most = min(values := list(values)), max(values)
    return str(least) if least == most else f"{least}–{most}"


def _resumed(world_size: int, workers: int, found: Found, rows: int) -> str:
    passes = (SMALL, workers, "whole"), (SMALL, workers, "before"), (world_size, workers, "rest")
    if any(each not in found for each in passes):  # the processes did not get that far
        return "not counted"
    straight, before, rest = (found[each] for each in passes)
    if isinstance(straight, str) or isinstance(before, str) or isinstance(rest, str):
        return "refused"
    wanted = steps(straight)[STOP:]
    again, never = counted([*before, *rest], rows)
    kept = sum(a == b for a, b in zip(wanted, steps(rest), strict=False))
    return f"{kept} of {len(wanted)}; {again} again, {never} never"


def refusals(name: str, found: Found) -> str:
    """What a loader refused, in its own words: each answer once, with where it was given first."""
    said: dict[str, list[str]] = {}
    for (world_size, workers, kind), answer in found.items():
        if isinstance(answer, str):
            where = (
                f"{world_size} ranks with {workers} workers{', resumed' if kind == 'rest' else ''}"
            )
            said.setdefault(answer.strip().splitlines()[-1][:160], []).append(where)
    return " ".join(
        f"{name} on {'; '.join(where)}: {answer.rstrip('.')}." for answer, where in said.items()
    )


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Every loader that is there, one after the other, with several sizes of data."""
    loaders, missing = present(asked.loaders)
    by_size, notes = [], []
    for name in loaders:
        for rows in asked.rows:
            found = delivered(name, rows, asked.shards, (0,))
            by_size.append(line(titled(name), f"{rows:,}", 0, found, rows))
            notes.append(refusals(f"{name}, {rows:,} rows,", found))
    yield Table(
        "sizes",
        f"Without workers, {how(asked.shards)}",
        (HEADS[0], "rows", *HEADS[1:]),
        by_size,
        note=" ".join(filter(None, notes)),
        missing=missing,
    )


def present(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The loaders that are there, and why each of the others is not."""
    missing = {name: why for name in names if (why := PEERS[name].missing()) is not None}
    return [name for name in names if name not in missing], missing


def how(shards: int) -> str:
    """What is done with the rows, for titles."""
    return (
        f"{shards} shards of unequal sizes, global batches of {GLOBAL_BATCH}, shuffled, on"
        f" {', '.join(map(str, WORLDS))} ranks; stopped after {STOP} steps on {SMALL}"
    )


def titled(name: str) -> str:
    """The loader with its version."""
    return f"{name} {PEERS[name].version()}"


def delivered(name: str, rows: int, shards: int, workers: tuple[int, ...]) -> Found:
    """Write so many rows, and play a loader on them."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        data = Path(folder, "data")
        data.mkdir()
        write_shards(data, rows, shards)
        PEERS[name].prepare(data)
        return played(name, folder, workers)


def run(made: argparse.ArgumentParser, tables: Callable[..., Iterator[Table]]) -> None:
    """Parse, count, print."""
    made.add_argument("--shards", type=int, default=6)
    made.add_argument("--loaders", nargs="+", choices=PEERS, default=list(PEERS))
    asked = made.parse_args()
    preload = ["other_loaders_peers"]  # imported once, not by every rank
    for name in asked.loaders:
        preload += PEERS[name].preload
    multiprocessing.set_forkserver_preload(preload)
    publish(
        tables(asked), asked.json, [*dict.fromkeys(PEERS[name].package for name in asked.loaders)]
    )


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--rows", type=int, nargs="+", default=ROWS)
    run(options, tables)
