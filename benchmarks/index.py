"""The index of very many small Parquet files: built from their footers, and opened again from the cache.

    python benchmarks/index.py [--files 100000] [--columns 8] [--dir DIR] [--keep]

Every step runs in a process of its own; printed are its wall and CPU seconds and its peak memory. The files are one
row group each; all but their name is the same, as it is the number of files that is measured.
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
from pathlib import Path

STEPS = ("build", "reopen", "split")


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
    from headrace.stream.dataset import open_dataset

    headrace.open  # noqa: B018 - imported before the clock starts
    wall, cpu = time.perf_counter(), time.process_time()
    dataset = open_dataset(where / "data", cache_dir=where / f"cache-{'cold' if name == 'build' else 'warm'}")
    blocks = dataset.index.table.num_rows
    if name == "split":
        blocks = len(dataset.split_index().rows)
    return {
        "blocks": blocks,
        "wall_s": round(time.perf_counter() - wall, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--keep", action="store_true", help="leave the files where they are")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        print(json.dumps(step(asked.step, asked.dir)))
        return
    where = asked.dir or Path(tempfile.mkdtemp(prefix="headrace-index-"))
    try:
        begin = time.perf_counter()
        make(where / "data", asked.files, asked.columns)
        print(f"{asked.files:,} files of {asked.columns} columns, made in {time.perf_counter() - begin:.1f} s")
        for name in STEPS:
            command = [sys.executable, __file__, "--step", name, "--dir", str(where)]
            record = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            if name == "build":
                (where / "cache-cold").rename(where / "cache-warm")
            title = {"build": "build from footers", "reopen": "open again", "split": "open again and make its split"}
            print(
                f"{title[name]:<30} {record['wall_s']:8.2f} s wall {record['cpu_s']:8.2f} s CPU"
                f" {record['peak_mb']:6,.0f} MB peak, {record['blocks']:,} blocks"
            )
    finally:
        if not asked.keep:
            shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    main()
