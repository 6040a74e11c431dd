"""Very many files of one row: opened and streamed, split and rewritten.

    python benchmarks/small_shards.py [--files 10000] [--dir DIR]

Every step runs in a process of its own. Seconds are those of the step, without imports.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Table, figure
from reporting import parser, publish

ENDINGS = ("csv", "jsonl", "parquet")
STEPS = ("open", "epoch", "TemporalSplit", "RandomSplit", "Rewrite")


def make(where: Path, files: int, ending: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    where.mkdir(parents=True)
    for number in range(files):
        row = {
            "time": f"2024-{1 + number % 12:02d}-{1 + number % 28:02d} 10:00:00",
            "entity": f"e{number % 977}",
            "value": number * 0.5,
            "count": number,
        }
        path = where / f"part-{number:05d}.{ending}"
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist([row]), path)
        elif ending == "jsonl":
            path.write_text(json.dumps(row) + "\n")
        else:
            path.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")


def step(name: str, source: str) -> float:
    import headrace

    with tempfile.TemporaryDirectory() as place:
        if name in {"open", "epoch"}:
            import torch  # noqa: F401 - imported before the clock starts

            begun = time.perf_counter()
            dataset = headrace.open(source, cache_dir=place)
            if name == "epoch":
                begun = time.perf_counter()
                for _ in dataset.stream(batch_size=256, shuffle=True):
                    pass
            return time.perf_counter() - begun
        recipes = {
            "TemporalSplit": lambda: headrace.TemporalSplit(
                source=source, time="time", entity="entity", split_date="2024-09-01"
            ),
            "RandomSplit": lambda: headrace.RandomSplit(source=source),
            "Rewrite": lambda: headrace.Rewrite(source=source, cache_dir=place),
        }
        settings = recipes[name]()
        begun = time.perf_counter()
        headrace.prepare(settings, Path(place) / "out")
        return time.perf_counter() - begun


def measured(where: Path, files: int) -> Iterator[Table]:
    heads = ("files", *(f"{name} s" for name in STEPS))
    rows = []
    for ending in ENDINGS:
        source = where / ending
        make(source, files, ending)
        figures = []
        for name in STEPS:
            command = [sys.executable, __file__, "--step", name, "--dir", str(source)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            figures.append(figure([float(done.stdout.split()[-1])]))
        rows.append((ending, *figures))
    yield Table("small_shards", f"{files:,} files of one row", heads, rows)


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("--files", type=int, default=10_000)
    asked.add_argument("--dir", type=Path)
    asked.add_argument("--step", choices=STEPS)
    options = asked.parse_args()
    if options.step:
        print(step(options.step, str(options.dir)))
        return
    where = options.dir or Path(tempfile.mkdtemp())
    try:
        publish(measured(where, options.files), options.json)
    finally:
        if options.dir is None:
            shutil.rmtree(where)


if __name__ == "__main__":
    main()
