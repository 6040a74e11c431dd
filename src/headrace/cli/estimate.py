"""What a run will take of disk and memory, from the sizes of its source files alone: no row is read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.formats.detect import kind_of_name

_CHUNK = 32 << 20  # of text that a task holds at a time
_COPIES = 4  # of a chunk: its bytes, what was found in them, columns, output
_SHARD = 50 << 20  # of histories that is read while others are written
_COMPRESSED, _COLUMNAR = 8, 4  # times the size of compressed text, and of Parquet, that its rows take as text


@dataclass(frozen=True)
class Estimate:
    """out_bytes: bound for all shards. memory_bytes: of the tasks; the libraries take 200 MB more. how: in words."""

    out_bytes: int
    memory_bytes: int
    how: str


def estimate(recipe: Any, sizes: Mapping[Path, int], workers: int) -> Estimate:
    """Bounds for a recipe whose source files have these sizes in bytes."""
    unpacked = [size * _times(path) for path, size in sizes.items()]
    kept = getattr(recipe, "format", None) == "same" and recipe.compression is None
    output = "the source, as it lies" if kept else "the source, as text"
    if hasattr(recipe, "memory_limit"):
        memory, held = int(recipe.memory_limit) + _SHARD, "memory_limit, and 50 MiB for a shard that is read"
    else:
        chunk = min(_CHUNK, max(unpacked, default=0))
        memory, held = workers * _COPIES * chunk, f"{workers} tasks with chunks of up to {_CHUNK >> 20} MiB each"
    return Estimate(sum(sizes.values() if kept else unpacked), memory, f"output: at most {output}; memory: {held}")


def _times(path: Path) -> int:
    kind = kind_of_name(path.name)
    if kind is None or kind.compression != "none":
        return _COMPRESSED
    return _COLUMNAR if kind.format == "parquet" else 1
