"""The datasets of a run and the tasks that tokenise them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from headrace.formats.listing import list_files
from headrace.packing.assign import Split, assign_files
from headrace.packing.blend import Source
from headrace.packing.config import PackedSequences
from headrace.packing.encode_shard import (
    EncodeTask,
    encode_shard,
    sample_file,
    sample_hashes,
)
from headrace.packing.encoder import Encoder
from headrace.run.context import RunContext, Task

TASK_BYTES = 8 << 20


@dataclass(frozen=True)
class Dataset:
    """A source with its files. split: of a blend per split. names: of the files, unique in the run."""

    source: Source
    split: Split | None
    paths: Sequence[Path]
    names: Sequence[str]
    sizes: Sequence[int]


def datasets_of(settings: PackedSequences) -> list[Dataset]:
    """The datasets with a weight above 0 and their files, in the order of the blend."""
    found = []
    for split, sources in settings.blend.groups():
        for source in sources:
            if source.weight == 0:
                continue
            listing = list_files(source.path)
            prefix = source.name if split is None else f"{split}/{source.name}"
            names = [f"{prefix}/{name}" for name in listing.names]
            paths = [listing.path(place) for place in range(len(names))]
            found.append(Dataset(source, split, paths, names, listing.sizes.tolist()))
    return found


def source_files(settings: PackedSequences) -> list[tuple[Path, str]]:
    """The files of all datasets and their names in the run, sorted by name."""
    pairs = [pair for each in datasets_of(settings) for pair in zip(each.paths, each.names, strict=True)]
    return sorted(pairs, key=lambda pair: pair[1])


def encode_tasks(
    settings: PackedSequences, context: RunContext, datasets: Sequence[Dataset]
) -> list[tuple[EncodeTask, Dataset]]:
    """Every task with its dataset, numbered through. With `sample`, a stage of its own finds out whom to take."""
    tasks: list[tuple[EncodeTask, Dataset]] = []
    for dataset in datasets:
        shards = settings.num_shards or max(1, -(-sum(dataset.sizes) // TASK_BYTES))
        for parts in assign_files(dataset.sizes, dataset.names, shards):
            task = EncodeTask(len(tasks), dataset.source.name, dataset.paths, dataset.names, parts)
            tasks.append((task, dataset))
    if settings.sample is None:
        return tasks
    context.stage("sample", [_sample_task(settings, task, dataset) for task, dataset in tasks], durable=False)
    sampled = []
    for dataset in datasets:
        own = [task for task, owner in tasks if owner is dataset]
        hashes = np.sort(np.concatenate([np.load(context.run / sample_file(task.number)) for task in own]))
        below = int(hashes[min(settings.sample, len(hashes)) - 1]) if len(hashes) else None
        sampled += [(replace(task, sample_below=below), dataset) for task in own]
    return sampled


def _bytes_of(task: EncodeTask, dataset: Dataset) -> int:
    return sum(dataset.sizes[part.file] // part.modulus for part in task.parts)


def _paths_of(task: EncodeTask) -> list[Path]:
    return [task.paths[number] for number in sorted({part.file for part in task.parts})]


def _subject(task: EncodeTask) -> str:
    part = task.parts[0]
    more = f" and {len(task.parts) - 1} more" if len(task.parts) > 1 else ""
    share = f" rows {part.remainder} mod {part.modulus}" if part.modulus > 1 else ""
    return f"{task.names[part.file]}{share}{more}"


def _sample_task(settings: PackedSequences, task: EncodeTask, dataset: Dataset) -> Task:
    work = partial(sample_hashes, settings=settings, task=task)
    return Task(_subject(task), _bytes_of(task, dataset), work, _paths_of(task))


def encode_task(settings: PackedSequences, task: EncodeTask, dataset: Dataset, encoder: Encoder) -> Task:
    """The work of one task."""
    source = dataset.source
    blank = encoder.must_pad()
    return Task(
        _subject(task),
        _bytes_of(task, dataset),
        lambda files: encode_shard(files, settings, task, encoder.of(source), blank),
        _paths_of(task),
    )
