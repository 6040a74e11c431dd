"""Tasks of a run by stage, and the memory that they are bounded by, as the guides say of each recipe. Estimates.

memory: beside the libraries themselves, which take some 200 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.estimate.measured import Estimate
from headrace.formats.detect import kind_of_name

_CHUNK = 32 << 20  # of text that a task holds at a time
_COPIES = 4  # of a chunk: its bytes, what was found in them, columns, output
_BLOCK = 8 << 20
_EXPANSION = 8  # of compressed files
_ENTITY = 70  # bytes of an entity while a split is decided
_SEQUENCE = 64  # bytes of a sequence while bins are filled


@dataclass(frozen=True)
class Bound:
    """bytes, and what they are made of."""

    bytes: int
    how: str


def tasks_of(recipe: Any, files: list[tuple[Path, str]], found: Estimate) -> dict[str, int]:
    """How many tasks each stage has, as far as that is known before the run."""
    count = {stage: _COUNT[stage](recipe, files, found) for stage in found.stages if stage in _COUNT}
    return {stage: tasks for stage, tasks in count.items() if tasks}


def memory_of(recipe: Any, files: list[tuple[Path, str]], found: Estimate, workers: int) -> Bound:
    """What tasks at a time hold together at most, about."""
    return _MEMORY[recipe.recipe_name](recipe, files, found, workers)


def _files(_recipe: Any, files: list[tuple[Path, str]], _found: Estimate) -> int:
    return len(files)


def _partitions(recipe: Any, _files: list[tuple[Path, str]], found: Estimate) -> int:
    if recipe.partitions is not None:
        return int(recipe.partitions)
    return min(1 << 12, max(1, -(-int(found.rows * recipe.sample_rate) // int(recipe.slab_rows))))


def _pieces(recipe: Any, files: list[tuple[Path, str]], _found: Estimate) -> int:
    if recipe.shard_bytes is None:
        return len(files)
    return max(1, -(-sum(path.stat().st_size for path, _ in files) // int(recipe.shard_bytes)))


def _encode(recipe: Any, _files: list[tuple[Path, str]], _found: Estimate) -> int:
    from headrace.recipes.packed_sequences.tasks import TASK_BYTES, datasets_of

    return sum(recipe.num_shards or max(1, -(-sum(each.sizes) // TASK_BYTES)) for each in datasets_of(recipe))


def _batches(recipe: Any, files: list[tuple[Path, str]], _found: Estimate) -> int:
    from headrace.recipes.series.files import entity_files

    return -(-len(entity_files(recipe, files)) // int(recipe.batch_size))


def _splits(_recipe: Any, _files: list[tuple[Path, str]], _found: Estimate) -> int:
    return 3


def _one(_recipe: Any, _files: list[tuple[Path, str]], _found: Estimate) -> int:
    return 1


_COUNT: Mapping[str, Callable[[Any, list[tuple[Path, str]], Estimate], int]] = {
    "scan": _files,
    "split": _files,
    "join": _splits,
    "gather": _files,
    "order": _partitions,
    "rows": _one,
    "nulls": _pieces,
    "rewrite": _pieces,
    "tokenise": _encode,
    "clean": _batches,
    "write": _batches,
    "frequency": _one,
    "fit": _one,
    "finish": _one,
}


def _of_split(_recipe: Any, files: list[tuple[Path, str]], found: Estimate, workers: int) -> Bound:
    held = _COPIES * min(_CHUNK, max(map(_unpacked, files)))
    return Bound(
        workers * held + _ENTITY * found.rows,
        f"{workers} tasks with a chunk of up to {_CHUNK >> 20} MiB each, {_ENTITY} bytes an entity, at most a row each",
    )


def _of_histories(recipe: Any, _files: list[tuple[Path, str]], _found: Estimate, _workers: int) -> Bound:
    return Bound(int(recipe.memory_limit) + (50 << 20), "memory_limit, and 50 MiB for a shard that is read")


def _of_rewrite(_recipe: Any, files: list[tuple[Path, str]], _found: Estimate, workers: int) -> Bound:
    largest = max(_block(path, name) for path, name in files)
    return Bound(workers * _COPIES * largest, f"{workers} tasks with blocks of up to {largest / 1e6:,.1f} MB each")


def _of_packed(_recipe: Any, files: list[tuple[Path, str]], found: Estimate, workers: int) -> Bound:
    held = _COPIES * min(_CHUNK, sum(map(_unpacked, files)))
    return Bound(workers * held + _SEQUENCE * found.rows, f"{workers} tasks, and {_SEQUENCE} bytes a sequence")


def _of_series(recipe: Any, files: list[tuple[Path, str]], found: Estimate, workers: int) -> Bound:
    from headrace.recipes.series.files import entity_files

    entities = max(1, len(entity_files(recipe, files)))
    batch = min(entities, int(recipe.batch_size)) * found.rows // entities * (len(recipe.columns()) + 1) * 12
    return Bound(
        workers * 2 * batch, f"{workers} tasks with the rows of {min(entities, recipe.batch_size)} entities each"
    )


def _unpacked(file: tuple[Path, str]) -> int:
    path, name = file
    kind = kind_of_name(name.rsplit("/", 1)[-1])
    plain = kind is not None and kind.compression == "none" and kind.format != "parquet"
    return path.stat().st_size * (1 if plain else _EXPANSION)


def _block(path: Path, name: str) -> int:
    """The most bytes of one block: a row group, some MiB of text, all of a text that is compressed."""
    kind = kind_of_name(name.rsplit("/", 1)[-1])
    if kind is not None and kind.format == "parquet" and kind.compression == "none":
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            groups = [file.metadata.row_group(at).total_byte_size for at in range(file.metadata.num_row_groups)]
        return max(groups, default=0)
    if kind is not None and kind.compression == "none" and kind.format in ("csv", "tsv", "jsonl"):
        return min(_BLOCK, path.stat().st_size)
    return path.stat().st_size * _EXPANSION


_MEMORY: Mapping[str, Callable[[Any, list[tuple[Path, str]], Estimate, int], Bound]] = {
    "histories": _of_histories,
    "packed_sequences": _of_packed,
    "rewrite": _of_rewrite,
    "series": _of_series,
    "temporal_split": _of_split,
}
