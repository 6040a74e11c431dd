"""The index of very many small Parquet files: made from their footers, opened from the cache, published beside them.

    python benchmarks/index.py [--files 100000] [--columns 8] [--rows 10] [--rounds 3] [--dir DIR] [--keep]

Every step runs in a process of its own, round after round. The files are one row group each; all but their name is the
same, as it is the number of files that is measured. A first batch is 256 shuffled rows, from before `headrace.open`.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Table, figure
from reporting import parser, publish

STEPS = {
    "build": "build from footers",
    "reopen": "open again",
    "split": "open again and make its split",
    "batch_bare": "first batch, no index",
    "published": "open, published index, empty cache",
    "batch_published": "first batch, published index, empty cache",
    "batch_reopen": "first batch, index in the cache",
}
WARM = ("reopen", "split", "batch_reopen")


def make(where: Path, files: int, columns: int, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    schema = pa.schema(
        [pa.field("n", pa.int64()), *((f"c{n:02d}", pa.float32()) for n in range(1, columns))]
    )
    table = pa.table(
        [pa.array(range(rows), kind).cast(kind) for kind in schema.types], schema=schema
    )
    pq.write_table(table, sink)
    where.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        with open(where / f"part-{number:06d}.parquet", "wb", buffering=0) as file:
            file.write(sink.getbuffer())


def step(name: str, where: Path) -> dict[str, float]:
    import headrace
    from headrace.stream.loader.dataset import open_dataset

    headrace.open  # noqa: B018 - imported before the clock starts
    source = where / ("published" if "published" in name else "data")
    cache = where / (
        "cache-cold" if name == "build" else "cache-warm" if name in WARM else f"cache-{name}"
    )
    wall, cpu = time.perf_counter(), time.process_time()
    dataset = open_dataset(source, cache_dir=cache)
    if name.startswith("batch"):
        blocks = len(
            next(iter(dataset.stream(batch_size=256, shuffle=True, batch_format="numpy")))["valid"]
        )
    elif name == "split":
        blocks = len(dataset.split_index().rows)
    else:
        blocks = sum(len(dataset.split_index(each).rows) for each in dataset.splits)
    return {
        "blocks": blocks,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def travel(where: Path) -> dict[str, float]:
    """What a spawned worker gets of an opened split, and what any other pickle holds."""
    import pickle
    from multiprocessing.context import set_spawning_popen

    from headrace.stream.loader.dataset import open_dataset

    dataset = open_dataset(where / "data", cache_dir=where / "cache-warm")
    found = {}
    for name, spawning in (("spawned", object()), ("other", None)):
        set_spawning_popen(spawning)
        begun = time.perf_counter()
        data = pickle.dumps((dataset.split_index(), dataset.block_reader()))
        set_spawning_popen(None)
        found[f"{name}_dump_ms"] = 1000 * (time.perf_counter() - begun)
        begun = time.perf_counter()
        pickle.loads(data)
        found[f"{name}_load_ms"] = 1000 * (time.perf_counter() - begun)
        found[f"{name}_kb"] = len(data) / 1e3
    return found


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """The files, then every step of every round."""
    where = asked.dir or Path(tempfile.mkdtemp(prefix="headrace-index-"))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*STEPS, "travel")}
    try:
        make(where / "data", asked.files, asked.columns, asked.rows)
        make(where / "published", asked.files, asked.columns, asked.rows)
        command = [
            str(Path(sys.executable).with_name("headrace")),
            "index",
            str(where / "published"),
            "--cache-dir",
            str(where / "cache-publish"),
        ]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        for _ in range(asked.rounds):
            for cache in where.glob("cache-*"):
                shutil.rmtree(cache)
            for name, runs in found.items():
                command = [sys.executable, __file__, "--step", name, "--dir", str(where)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                runs.append(json.loads(done.stdout))
                if name == "build":
                    (where / "cache-cold").rename(where / "cache-warm")
    finally:
        if not asked.keep:
            shutil.rmtree(where, ignore_errors=True)
    rows = [
        (
            STEPS[name],
            *(figure([each[key] for each in found[name]]) for key in ("wall_s", "cpu_s")),
            figure([each["peak_mb"] for each in found[name]], 0),
            f"{found[name][0]['blocks']:,}",
        )
        for name in STEPS
    ]
    title = f"{asked.files:,} files of {asked.columns} columns"
    heads = ("step", "wall s", "CPU s", "peak MB, imports included", "blocks, or rows of the batch")
    yield Table("footers", f"The index of {title}", heads, rows)
    travels = [
        (
            head,
            *(
                figure([each[f"{name}_{key}"] for each in found["travel"]])
                for key in ("kb", "dump_ms", "load_ms")
            ),
        )
        for name, head in (("spawned", "to a spawned process"), ("other", "any other"))
    ]
    yield Table(
        "travel",
        f"A pickled split of {title}",
        ("pickle", "kB", "ms to write", "ms to read"),
        travels,
    )


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--files", type=int, default=100_000)
    made.add_argument("--columns", type=int, default=8)
    made.add_argument("--rows", type=int, default=10, help="of each file")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--dir", type=Path, default=None)
    made.add_argument("--keep", action="store_true", help="leave the files where they are")
    made.add_argument("--step", choices=[*STEPS, "travel"], help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.step:
        print(
            json.dumps(travel(asked.dir) if asked.step == "travel" else step(asked.step, asked.dir))
        )
        return
    publish(tables(asked), asked.json)


if __name__ == "__main__":
    main()
