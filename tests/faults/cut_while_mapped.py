"""Files that are cut while they are mapped: what a process does that reads on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from prepared_histories import prepared
from series_cases import write_run

import headrace
from headrace.contexts import open_contexts
from headrace.errors import CorruptShard
from headrace.windows import open as open_dataset
from headrace.windows import open_windows
from waits import until_at_rest


def child(name: str, directory: str) -> None:
    """Read a batch, cut every file that is mapped to nothing, and read on."""
    place = Path(directory)
    place.mkdir()
    files, read = READERS[name](place)
    next(read)
    until_at_rest(0.5)  # what is read ahead has been read
    for path in place.glob(files):
        os.truncate(path, 0)
    rows = 0
    try:
        for batch in read:
            rows += len(next(iter(batch.values())))
    except CorruptShard as error:
        print("refused", Path(error.path or "").suffix, str(error))
    else:
        print("read on", rows)


def _windows(place: Path) -> tuple[str, Iterator[Any]]:
    write_run(place, (4000, 4500, 5000), shards=2)
    windows = open_windows(place, "train", input_length=5, output_length=2)
    return "runs/*/store/*.arrow", (
        windows.batch(range(first, first + 50)) for first in range(0, len(windows) - 50, 50)
    )


def _window_stream(place: Path) -> tuple[str, Iterator[Any]]:
    write_run(place, (4000, 4500, 5000), shards=2)
    windows = open_dataset(place, "train", input_length=5, output_length=2)
    return "runs/*/store/*.arrow", iter(windows.stream(batch_size=32))


def _contexts(place: Path) -> tuple[str, Iterator[Any]]:
    out = prepared(place, format_="arrow", small=20, large=1, large_n=4000)
    contexts = open_contexts(out, context_tokens=128, measurements_per_context=5, seed=3)
    return "out/runs/*/*/train/*.arrow", (contexts.batch([n]) for n in range(len(contexts)))


def _rows(place: Path, **options: Any) -> Iterator[Any]:
    dataset = headrace.open(place / "a.arrow", cache_dir=place / "cache")
    return iter(dataset.stream(batch_size=1024, shuffle=False, prefetch_blocks=1, **options))


def _table(place: Path) -> None:
    numbers = range(1_500_000)  # too many to be decoded at once and kept
    table = pa.table({"i": pa.array(numbers), "s": [f"{n:09d}" for n in numbers]})
    with pa.ipc.new_file(str(place / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=20_000)


def _shard(place: Path) -> tuple[str, Iterator[Any]]:
    _table(place)
    return "*.arrow", _rows(place)


READERS: dict[str, Callable[[Path], tuple[str, Iterator[Any]]]] = {
    "windows": _windows,
    "stream of windows": _window_stream,
    "contexts": _contexts,
    "source file": _shard,
}
