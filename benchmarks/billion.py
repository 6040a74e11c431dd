"""A billion rows: how long a rank takes to begin, and to go on in the middle of an epoch on other ranks.

    python benchmarks/billion.py [--rounds 5] [--limit-s 300] [--limit-gb 16]

1. One rank of 131,072 begins an epoch over a million shards: from the start of its process to its plan and the blocks
   that it reads first, with the index that `headrace index` publishes.
2. A job of 16 ranks stopped after 70 % of 10^9 rows; rank 0 of 15 goes on. Seconds from the start of its process to the
   state loaded, and to the first batch, with all imports and the opening of the dataset.
3. The same place for other loaders, if they are installed (see other_loaders.py). Each in a process of its own with a
   limit of time and of memory; what a loader cannot do is said. Data of theirs is as small as their format allows, and
   each counts 10^9 rows. LanceDB is left out: its permutation is a table of 10^9 rows that has to be written first.

The rows are 2,000 hard links to one Parquet file of 500,000 rows, so a disk of a few megabytes will do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from billion_peers import PEERS
from figures import Table, figure
from reporting import parser, publish

SHARDS, ROWS = 2_000, 500_000
DONE = 0.7
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_mb() -> float:
    """The most memory this process has held. Where Linux tells it, without what the parent held when it was forked."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT / 1e6


def make_rows(directory: Path) -> None:
    """A billion rows: an id, and four numbers."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    columns = {f"x{column}": random.random(ROWS, np.float32) for column in range(4)}
    first = directory / "part-00000.parquet"
    pq.write_table(pa.table({"id": np.arange(ROWS), **columns}), first, row_group_size=62_500)
    for shard in range(1, SHARDS):
        os.link(first, directory / f"part-{shard:05d}.parquet")


def write_index(shards: int, path: Path) -> None:
    """The index of a million shards of 1,000 rows, as `headrace index` publishes it."""
    import numpy as np
    import pyarrow as pa

    from headrace.dataset.index import SplitIndex
    from headrace.dataset.stored_index import stored_bytes

    number = np.arange(shards, dtype=np.int64)
    schema = pa.schema([(f"x{column}", pa.float32()) for column in range(28)])
    index = SplitIndex(
        split="train",
        schema=schema,
        shards=tuple(f"part-{shard:07d}.parquet" for shard in range(shards)),
        formats=("parquet",) * shards,
        shard_of_block=number,
        block=np.zeros(shards, np.int64),
        rows=np.full(shards, 1_000),
        offset=np.zeros(shards, np.int64),
        length=np.full(shards, 112_000),
        checksums=("",) * shards,
        stamps=np.zeros((shards, 2), np.int64),
    )
    path.write_bytes(stored_bytes([index], schema, (), ""))


def start(path: Path, ranks: int, began: float) -> dict[str, float]:
    """Map the index, begin an epoch as one of many ranks, and find what is read first. began: of the process."""
    from headrace.dataset.stored_index import map_index
    from headrace.stream.loader.options import StreamOptions
    from headrace.stream.loader.passes import RowPasses
    from headrace.stream.order.plan import plan_pools
    from headrace.stream.ranks.topology import Topology

    def nothing(_block: int, _columns: Any) -> Any:
        raise AssertionError("a plan reads nothing")

    index = map_index(path).split("train")
    options = StreamOptions(batch_size=16, shuffle=True, batch_format="numpy", remainder="pad")
    plan = RowPasses(index, nothing, options, Topology(rank=5, world_size=ranks)).begin(0).plan()
    assert next(plan_pools(plan.order, plan.remaining, plan.share(5))).items
    return {"seconds": time.time() - began, "mb": peak_mb()}


def save(directory: Path, cache: Path) -> dict[str, Any]:
    """The state of 16 ranks after 70 % of an epoch; the index is made on the way, and kept."""
    import headrace

    loader = headrace.open(directory, cache_dir=cache).stream(
        batch_size=256, shuffle=True, batch_format="numpy", topology=headrace.Topology(rank=0, world_size=16)
    )
    return loader.state_after(int(len(loader) * DONE))


def go_on(directory: Path, cache: Path, state: Path, began: float) -> dict[str, float]:
    """Rank 0 of 15 goes on. began: when the process was started."""
    import headrace

    loader = headrace.open(directory, cache_dir=cache).stream(
        batch_size=256, shuffle=True, batch_format="numpy", topology=headrace.Topology(rank=0, world_size=15)
    )
    loader.load_state_dict(json.loads(state.read_text()))
    loaded = time.time() - began
    assert len(next(iter(loader))["id"]) == 256
    return {"loaded_s": loaded, "first_s": time.time() - began, "mb": peak_mb()}


def peers(limit_s: float, limit_gb: float) -> Iterator[tuple[str, str, str, str]]:
    """What other loaders do: name, seconds to the first batch, MB, and what becomes of other ranks."""
    program = Path(__file__).with_name("billion_peers.py")

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit_gb * 1e9), int(limit_gb * 1e9)))

    for name, (package, _, _, other_ranks) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            made = subprocess.run(
                [sys.executable, program, name, scratch, "make"], check=False, capture_output=True, text=True
            )
            if made.returncode:
                why = (made.stderr.strip().splitlines() or [f"ended with {made.returncode}"])[-1]
                yield name, "its data could not be made", why[:80], other_ranks
                continue
            try:
                run = subprocess.run(
                    [sys.executable, program, name, scratch, str(time.time())],
                    capture_output=True, text=True, timeout=limit_s, check=False, preexec_fn=bounded,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                yield name, f"more than {limit_s:.0f}", "", other_ranks
                continue
        if run.returncode:
            why = (run.stderr.strip().splitlines() or [f"ended with {run.returncode}"])[-1]
            yield name, "not possible", f"more than {limit_gb * 1000:,.0f}" if "emory" in why else why[:80], other_ranks
            continue
        record = json.loads(run.stdout.splitlines()[-1])
        yield name, f"{record['first_s']:.1f}", f"{record['mb']:,.0f}", other_ranks


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Each figure from processes of its own."""

    def child(*part: str) -> Any:
        run = subprocess.run([sys.executable, __file__, *part], check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(run.stdout)

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "index.arrows")
        write_index(asked.shards, path)
        begun = [
            child("--part", "start", "--at", str(path), "--ranks", str(asked.ranks), "--began", str(time.time()))
            for _ in range(asked.rounds)
        ]
    yield Table(
        "start",
        f"One rank of {asked.ranks:,} begins an epoch over {asked.shards:,} shards, from the start of its process",
        ("seconds", "MB"),
        [(figure([each["seconds"] for each in begun]), figure([each["mb"] for each in begun], 0))],
    )
    with tempfile.TemporaryDirectory() as scratch:
        rows, cache, state = Path(scratch, "rows"), Path(scratch, "cache"), Path(scratch, "state.json")
        rows.mkdir()
        make_rows(rows)
        state.write_text(json.dumps(child("--part", "save", "--at", str(rows), "--cache", str(cache))))
        place = ("--at", str(rows), "--cache", str(cache), "--state", str(state))
        gone_on = [child("--part", "go-on", *place, "--began", str(time.time())) for _ in range(asked.rounds)]
    ours = (
        "headrace",
        figure([each["first_s"] for each in gone_on]),
        figure([each["mb"] for each in gone_on], 0),
        f"yes: 16 to 15 here; the state is loaded after {figure([each['loaded_s'] for each in gone_on])} s",
    )
    others = list(peers(asked.limit_s, asked.limit_gb))
    yield Table(
        "resume",
        f"On at {DONE:.0%} of {SHARDS * ROWS:,} shuffled rows, from the start of the process to the first batch",
        ("loader", "seconds", "MB", "on another number of ranks"),
        [ours, *others],
        "",
        {name: "not installed" for name, (package, *_) in PEERS.items() if importlib.util.find_spec(package) is None},
    )


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--shards", type=int, default=1_000_000)
    made.add_argument("--ranks", type=int, default=131_072)
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--limit-s", type=float, default=300, help="for a loader to come to its first batch")
    made.add_argument("--limit-gb", type=float, default=16, help="of memory for each of the other loaders")
    for name in ("--part", "--at", "--cache", "--state", "--began"):
        made.add_argument(name, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.part == "start":
        print(json.dumps(start(Path(asked.at), asked.ranks, float(asked.began))))
    elif asked.part == "save":
        print(json.dumps(save(Path(asked.at), Path(asked.cache))))
    elif asked.part == "go-on":
        found = go_on(Path(asked.at), Path(asked.cache), Path(asked.state), float(asked.began))
        print(json.dumps(found))
    else:
        publish(tables(asked), asked.json)


if __name__ == "__main__":
    main()
