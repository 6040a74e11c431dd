"""Small datasets for the tests of object stores, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import headrace
from headrace.storage.places import path_of, place_of


def upload(directory: Path, place: str, suffixes: Sequence[str] = ("",)) -> None:
    """Put the files below a directory under a prefix, as they are; links are left out."""
    for path in sorted(directory.rglob("*")):
        if (
            path.is_file()
            and not path.is_symlink()
            and path.name.endswith(tuple(suffixes))
            and path.name[0] != "."
        ):
            place_of(path_of(place) / path.relative_to(directory).as_posix()).put_new(path)


def tree(place: str | Path) -> dict[str, bytes]:
    """Every file below a place and its bytes; those that only one kind of place has are left out."""
    root = path_of(place)
    names = (fact.name for fact in place_of(root).files_below())
    return {name: (root / name).read_bytes() for name in names if not name.endswith(".lock")}


def rows_of(dataset: Any, split: str | None, **options: Any) -> list[dict[str, Any]]:
    """The rows of a split in the order they are delivered."""
    settings = {"batch_format": "rows", "stall_seconds": None, **options}
    return [row for batch in dataset.stream(split, batch_size=7, **settings) for row in batch]


def shards_of(place: str | Path) -> dict[str, bytes]:
    """The files of a dataset directory but for what tells the time or is for local file systems only."""
    found = tree(place)
    return {
        name: data
        for name, data in found.items()
        if not name.endswith(("manifest.json", ".lock"))
        and not name.startswith(("splits", "work/"))
        and not Path(name).is_symlink()
        and "/stage/" not in name
    }


def files_on_disk(out: Path) -> dict[str, bytes]:
    """The same of a local directory: its files, not its links."""
    return {name: data for name, data in shards_of(out).items() if _is_real(out / name, out)}


def _is_real(path: Path, out: Path) -> bool:
    return not any(
        each.is_symlink()
        for each in (path, *path.parents)
        if each.is_relative_to(out) and each != out
    )


def write_raw(directory: Path, shards: int = 4, rows: int = 60, suffix: str = "csv") -> Path:
    """CSV or Parquet shards with columns row, entity, time and x."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir(parents=True)
    row = 0
    for shard in range(shards):
        count = rows + 13 * shard
        table = pa.table(
            {
                "row": pa.array(range(row, row + count), pa.int64()),
                "entity": [f"e{each % 97}" for each in range(row, row + count)],
                "time": [f"20{20 + each % 6}-03-01T00:00:00" for each in range(row, row + count)],
                "x": [each % 13 / 13 for each in range(row, row + count)],
            }
        )
        path = directory / f"part-{shard:05d}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path, row_group_size=25)
        else:
            lines = [
                "row,entity,time,x",
                *(f"{r['row']},{r['entity']},{r['time']},{r['x']}" for r in table.to_pylist()),
            ]
            path.write_text("\n".join(lines) + "\n")
        row += count
    return directory


def split_of(source: Any, **settings: Any) -> headrace.TemporalSplit:
    """The temporal split of such shards."""
    return headrace.TemporalSplit(
        source=source, time="time", entity="entity", split_date="2025-01-01", **settings
    )
