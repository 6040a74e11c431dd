"""The index of very many small Parquet files: built from their footers, and opened again from the cache.

    python benchmarks/index.py [--files 100000] [--columns 8] [--rounds 3] [--dir DIR] [--keep]

Every step runs in a process of its own, round after round. The files are one row group each; all but their name is the
same, as it is the number of files that is measured.
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
}


def make(where: Path, files: int, columns: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    schema = pa.schema([pa.field("n", pa.int64()), *((f"c{n:02d}", pa.float32()) for n in range(1, columns))])
    table = pa.table([pa.array(range(10), kind).cast(kind) for kind in schema.types], schema=schema)
    pq.write_table(table, sink)
    where.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        with open(where / f"part-{number:06d}.parquet", "wb", buffering=0) as file:
            file.write(sink.getbuffer())


def step(name: str, where: Path) -> dict[str, float]:
    import headrace
    from headrace.stream.loader.dataset import open_dataset

    headrace.open  # noqa: B018 - imported before the clock starts
    wall, cpu = time.perf_counter(), time.process_time()
    dataset = open_dataset(where / "data", cache_dir=where / f"cache-{'cold' if name == 'build' else 'warm'}")
    blocks = dataset.index.table.num_rows
    if name == "split":
        blocks = len(dataset.split_index().rows)
    return {
        "blocks": blocks,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """The files, then every step of every round."""
    where = asked.dir or Path(tempfile.mkdtemp(prefix="headrace-index-"))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in STEPS}
    try:
        make(where / "data", asked.files, asked.columns)
        for _ in range(asked.rounds):
            shutil.rmtree(where / "cache-warm", ignore_errors=True)
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
            *(figure([each[key] for each in runs]) for key in ("wall_s", "cpu_s")),
            figure([each["peak_mb"] for each in runs], 0),
            f"{runs[0]['blocks']:,}",
        )
        for name, runs in found.items()
    ]
    heads = ("step", "wall s", "CPU s", "peak MB, imports included", "blocks")
    yield Table("footers", f"The index of {asked.files:,} files of {asked.columns} columns", heads, rows)


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--files", type=int, default=100_000)
    made.add_argument("--columns", type=int, default=8)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--dir", type=Path, default=None)
    made.add_argument("--keep", action="store_true", help="leave the files where they are")
    made.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.step:
        print(json.dumps(step(asked.step, asked.dir)))
        return
    publish(tables(asked), asked.json)


if __name__ == "__main__":
    main()
