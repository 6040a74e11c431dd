"""Where the rows of many entities are delivered, and what it costs to erase some.

    python benchmarks/lineage.py [--rows 100000000] [--asked 1000] [--directory DIR]

Rows are one int64 column in 100 Parquet files, ten rows an entity at random. Measured in this process: making the index
of entities, finding the rows of those asked for, their places in an epoch of 1, 8 and 64 ranks, and erasing two of
a rewritten run. Seconds are of processors, so that other work on the machine does not count. `written` is the bytes
that the disk holds more, over those of the shards that were written again.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Table
from reporting import parser, publish

FILES = 100


def write_rows(directory: Path, rows: int) -> None:
    """Write the shards."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir()
    for number in range(FILES):
        entity = np.random.default_rng(number).integers(0, rows // 10, rows // FILES)
        pq.write_table(pa.table({"entity": entity}), directory / f"part-{number:05d}.parquet", compression="none")


def disk_bytes(directory: Path) -> int:
    """Bytes of all files, hard links counted once."""
    files = (path.stat() for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return sum({each.st_ino: each.st_size for each in files}.values())


def tables(rows: int, asked: int, root: Path) -> Iterator[Table]:
    """Measure in one directory, which holds the rows twice."""
    import numpy as np

    import headrace
    from headrace import Topology
    from headrace.stream.order.whereabouts import find_rows

    os.environ["HOME"] = str(root)
    write_rows(root / "rows", rows)
    dataset = headrace.open(root / "rows")
    began = time.process_time()
    index = dataset.entity_index("entity")
    made_s = time.process_time() - began
    names = [str(each) for each in np.random.default_rng(5).integers(0, rows // 10, asked)]
    began = time.process_time()
    _, found = index.rows_of("all", names)
    found_s = time.process_time() - began
    heads = ("ranks", "index, CPU s", "bytes a row", "rows found", "finding them, CPU s", "their places, CPU s")
    lines = []
    for ranks, batch_size in ((1, 1024), (8, 1024), (64, 256)):
        topology = Topology(rank=0, world_size=ranks)
        plan = dataset.stream(batch_size=batch_size, shuffle=True, topology=topology, batch_format="numpy").plan()
        began = time.process_time()
        assert len(find_rows(plan, found).row) == len(found)
        places_s = time.process_time() - began
        numbers = (f"{made_s:.1f}", f"{index.bytes / rows:.2f}", f"{len(found):,}", f"{found_s:.3f}", f"{places_s:.3f}")
        lines.append((f"{ranks}", *numbers))
    yield Table("where", f"The rows of {asked:,} of {rows // 10:,} entities among {rows:,}", heads, lines)

    headrace.rewrite(root / "rows", root / "run")
    before = disk_bytes(root / "run")
    began = time.process_time()
    done = headrace.forget(root / "run", names[:2], entity_column="entity")
    seconds = time.process_time() - began
    written = (disk_bytes(root / "run") - before) / done.bytes_before
    heads = ("rows erased", "shards", "of", "CPU s", "written")
    line = (f"{done.rows:,}", f"{done.shards}", f"{FILES}", f"{seconds:.1f}", f"{written:.4f}")
    yield Table("forget", f"Erasing two entities from {rows:,} rows", heads, [line])


def main() -> None:
    """Measure in a temporary directory."""
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=100_000_000)
    made.add_argument("--asked", type=int, default=1000)
    made.add_argument("--directory", type=Path)
    asked = made.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as root:
        publish(tables(asked.rows, asked.asked, Path(root)), asked.json)


if __name__ == "__main__":
    main()
