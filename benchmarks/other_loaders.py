"""What other loaders deliver of the same rows: how often each comes, in how many steps, and after a stop.

    python benchmarks/other_loaders.py [--rows 1003] [--shards 6]

No clock: counts only, so any machine gives the same. Real processes, first two and then three of them, read the same
rows with the same global batch of 48. Each loader is used as its documentation says: shuffled, an epoch; six steps and
a saved state; the rest on as many ranks, and on three, and which of its global batches are those of the run without a
stop. Delivered is what the loop receives, a filling row counted unless the batch says that it is one.

Not compared: LanceDB, litData, Grain and Ray Data, more than three ranks, and other batches, workers or blocks; the
page says so. A library that is not installed is named. For mosaicml-streaming it is enough to have
`pip install --no-deps mosaicml-streaming` and `pip install brotli catalogue pillow python-snappy zstd`.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from figures import Table
from other_loaders_peers import PEERS
from reporting import parser, publish

GLOBAL_BATCH, STOP, SMALL, LARGE = 48, 6, 2, 3
HEADER = (
    "loader",
    "steps on 2 ranks",
    "on 3",
    "rows again, on 2",
    "on 3",
    "never, on 2",
    "on 3",
    "same batches on 2 and 3",
    "resumed on 2: batches as without a stop",
    "resumed on 3",
)

Batches = list[list[int]]


def write_shards(root: Path, rows: int, shards: int) -> None:
    """Parquet files of unequal sizes; column row counts them all."""
    weights = 10 + np.arange(shards) * 7 % 5
    borders = np.concatenate([[0], np.cumsum(weights) * rows // weights.sum()])
    for shard in range(shards):
        row = pa.array(np.arange(borders[shard], borders[shard + 1], dtype=np.int64))
        pq.write_table(pa.table({"row": row, "x": row.cast(pa.float32())}), root / f"part-{shard:05d}.parquet")


def on_rank(rank: int, world_size: int, folder: str) -> None:
    """What one rank receives of every loader; the first states are those of two ranks."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in names.items()})
    store = f"file://{folder}/{world_size}.store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    record: dict[str, dict[str, Batches]] = {}
    for name, peer in PEERS.items():
        state = Path(folder, f"{name}.{rank if peer.state == 'of each rank' else 0}.state")

        def run(kind: str, *, peer=peer, resume: bytes | None = None, stop: int | None = None, state: Path = state):
            work = Path(folder, "work", f"{peer.name}-{world_size}-{kind}")
            batches, saved = peer.read(Path(folder, "data"), work, GLOBAL_BATCH // world_size, resume, stop)
            if stop is not None and (rank == 0 or peer.state == "of each rank"):
                state.write_bytes(pickle.dumps(saved))
            dist.barrier()
            return batches

        if peer.missing() is not None:
            continue
        mine = record[name] = {"whole": run("whole")}
        if world_size == SMALL:
            mine["before"] = run("before", stop=STOP)
        # Of a rank that there was not, there is no state.
        mine["rest"] = run("rest", resume=state.read_bytes() if state.exists() else None)
    Path(folder, f"{world_size}-{rank}.json").write_text(json.dumps(record))
    dist.barrier()
    dist.destroy_process_group()


def counted(batches: Iterable[Batches], rows: int) -> tuple[int, int]:
    """Rows that came again, and rows that never came, over the batches of all ranks."""
    counts = Counter(row for rank in batches for batch in rank for row in batch)
    return sum(counts.values()) - len(counts), rows - len(counts)


def steps(ranks: list[Batches]) -> list[frozenset[int]]:
    """The rows of each global step."""
    return [frozenset(chain.from_iterable(step)) for step in zip_longest(*ranks, fillvalue=[])]


def line(name: str, rows: int, small: list[dict[str, Batches]], large: list[dict[str, Batches]]) -> tuple[str, ...]:
    """One loader in the table."""
    whole = {world: [rank["whole"] for rank in ranks] for world, ranks in ((SMALL, small), (LARGE, large))}
    again, never = zip(*(counted(ranks, rows) for ranks in whole.values()), strict=True)
    same = sum(a == b for a, b in zip(steps(whole[SMALL]), steps(whole[LARGE]), strict=False))
    cells = ["/".join(str(n) for n in sorted({len(rank) for rank in ranks})) for ranks in whole.values()]
    cells += [str(n) for n in (*again, *never)]
    cells.append(f"{same} of {max(map(len, whole[LARGE]))}")
    before = [rank["before"] for rank in small]
    straight = steps(whole[SMALL])[STOP:]
    for ranks in (small, large):
        rest = [rank["rest"] for rank in ranks]
        more, missing = counted([*before, *rest], rows)
        kept = sum(a == b for a, b in zip(straight, steps(rest), strict=False))
        cells.append(f"{kept} of {len(straight)} batches; {more} again, {missing} never")
    return name, *cells


def tables(rows: int, shards: int) -> Iterator[Table]:
    """Real processes, two and then three."""
    missing = {name: why for name, peer in PEERS.items() if (why := peer.missing()) is not None}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        data.mkdir()
        write_shards(data, rows, shards)
        for name, peer in PEERS.items():
            if name not in missing:
                peer.prepare(data)
        found = {}
        for world in (SMALL, LARGE):
            torch.multiprocessing.start_processes(on_rank, (world, folder), nprocs=world, start_method="spawn")
            found[world] = [json.loads(Path(folder, f"{world}-{rank}.json").read_text()) for rank in range(world)]
    lines = []
    for name, peer in PEERS.items():
        if name not in missing:
            small, large = ([rank[name] for rank in found[world]] for world in (SMALL, LARGE))
            lines.append(line(f"{name} {peer.version()}", rows, small, large))
    title = (
        f"{rows:,} rows in {shards} shards of unequal sizes, global batches of {GLOBAL_BATCH}, shuffled; stopped after"
        f" {STOP} steps on {SMALL} ranks"
    )
    yield Table("delivered", title, HEADER, lines, missing=missing)


def main() -> None:
    """Parse, count, print."""
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=1003)
    made.add_argument("--shards", type=int, default=6)
    asked = made.parse_args()
    publish(tables(asked.rows, asked.shards), asked.json, [*dict.fromkeys(peer.package for peer in PEERS.values())])


if __name__ == "__main__":
    main()
