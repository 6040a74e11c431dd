"""Tasks of a run by stage, and the memory that they are bounded by, as the guides say of each recipe. Estimates.

memory: beside the libraries themselves, which take some 200 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cli.estimate.measured import Estimate
from headrace.cli.estimate.sized import SizedFile
from headrace.formats.detect import kind_of_name
from headrace.formats.opened import open_file

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


def tasks_of(recipe: Any, files: Sequence[SizedFile], found: Estimate) -> dict[str, int]:
    """How many tasks each stage has, as far as that is known before the run."""
    count = {stage: _COUNT[stage](recipe, files, found) for stage in found.stages if stage in _COUNT}
    return {stage: tasks for stage, tasks in count.items() if tasks}


def memory_of(recipe: Any, files: Sequence[SizedFile], found: Estimate, workers: int) -> Bound:
    """What tasks at a time hold together at most, about."""
    return _MEMORY[recipe.recipe_name](recipe, files, found, workers)


def _files(_recipe: Any, files: Sequence[SizedFile], _found: Estimate) -> int:
    return len(files)


def _partitions(recipe: Any, _files: Sequence[SizedFile], found: Estimate) -> int:
    if recipe.partitions is not None:
        return int(recipe.partitions)
    return min(1 << 12, max(1, -(-int(found.rows * recipe.sample_rate) // int(recipe.slab_rows))))


def _pieces(recipe: Any, files: Sequence[SizedFile], _found: Estimate) -> int:
    if recipe.shard_bytes is None:
        return len(files)
    return max(1, -(-sum(file.size for file in files) // int(recipe.shard_bytes)))


def _encode(recipe: Any, _files: Sequence[SizedFile], _found: Estimate) -> int:
    from headrace.recipes.packed_sequences.tasks import TASK_BYTES, datasets_of

    return sum(recipe.num_shards or max(1, -(-sum(each.sizes) // TASK_BYTES)) for each in datasets_of(recipe))


def _batches(recipe: Any, _files: Sequence[SizedFile], found: Estimate) -> int:
    return -(-(found.entities or 0) // int(recipe.batch_size))


def _tables(_recipe: Any, files: Sequence[SizedFile], _found: Estimate) -> int:
    from headrace.recipes.series.files import SERIES

    return sum(file.name.startswith(f"{SERIES}/") for file in files)


def _splits(_recipe: Any, _files: Sequence[SizedFile], _found: Estimate) -> int:
    return 3


def _one(_recipe: Any, _files: Sequence[SizedFile], _found: Estimate) -> int:
    return 1


_COUNT: Mapping[str, Callable[[Any, Sequence[SizedFile], Estimate], int]] = {
    "scan": _files,
    "split": _files,
    "join": _splits,
    "gather": _files,
    "order": _partitions,
    "rows": _one,
    "nulls": _pieces,
    "rewrite": _pieces,
    "sample": _encode,
    "tokenise": _encode,
    "spread": _tables,
    "clean": _batches,
    "write": _batches,
    "frequency": _one,
    "fit": _one,
    "finish": _one,
}


def _of_split(_recipe: Any, files: Sequence[SizedFile], found: Estimate, workers: int) -> Bound:
    held = _COPIES * min(_CHUNK, max(map(_unpacked, files)))
    return Bound(
        workers * held + _ENTITY * found.rows,
        f"{workers} tasks with a chunk of up to {_CHUNK >> 20} MiB each, {_ENTITY} bytes an entity, at most a row each",
    )


def _of_histories(recipe: Any, _files: Sequence[SizedFile], _found: Estimate, _workers: int) -> Bound:
    return Bound(int(recipe.memory_limit) + (50 << 20), "memory_limit, and 50 MiB for a shard that is read")


def _of_rewrite(_recipe: Any, files: Sequence[SizedFile], _found: Estimate, workers: int) -> Bound:
    largest = max(map(_block, files))
    return Bound(workers * _COPIES * largest, f"{workers} tasks with blocks of up to {largest / 1e6:,.1f} MB each")


def _of_packed(_recipe: Any, files: Sequence[SizedFile], found: Estimate, workers: int) -> Bound:
    held = _COPIES * min(_CHUNK, sum(map(_unpacked, files)))
    return Bound(workers * held + _SEQUENCE * found.rows, f"{workers} tasks, and {_SEQUENCE} bytes a sequence")


def _of_series(recipe: Any, _files: Sequence[SizedFile], found: Estimate, workers: int) -> Bound:
    entities = max(1, found.entities or 1)
    batch = min(entities, int(recipe.batch_size)) * found.rows // entities * (len(recipe.columns()) + 1) * 12
    return Bound(
        workers * 2 * batch, f"{workers} tasks with the rows of {min(entities, recipe.batch_size)} entities each"
    )


def _unpacked(file: SizedFile) -> int:
    kind = kind_of_name(file.path.name)
    plain = kind is not None and kind.compression == "none" and kind.format != "parquet"
    return file.size * (1 if plain else _EXPANSION)


def _block(file: SizedFile) -> int:
    """The most bytes of one block: a row group, some MiB of text, all of a text that is compressed."""
    kind = kind_of_name(file.path.name)
    if kind is not None and kind.format == "parquet" and kind.compression == "none":
        with open_file(file.path, kind) as parquet:
            groups = [parquet.metadata.row_group(at).total_byte_size for at in range(parquet.metadata.num_row_groups)]
        return max(groups, default=0)
    if kind is not None and kind.compression == "none" and kind.format in ("csv", "tsv", "jsonl"):
        return min(_BLOCK, file.size)
    return file.size * _EXPANSION


_MEMORY: Mapping[str, Callable[[Any, Sequence[SizedFile], Estimate, int], Bound]] = {
    "histories": _of_histories,
    "packed_sequences": _of_packed,
    "rewrite": _of_rewrite,
    "series": _of_series,
    "temporal_split": _of_split,
}
