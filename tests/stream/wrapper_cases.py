"""Datasets that wrap a stream, and what ranks that read them tell; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from script_processes import tell_rank
from stream_cases import Numbers, index_of
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch_cases import ROWS, dataset_of

from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology


def stream_of(topology: Topology | None = None, **settings: Any) -> StreamLoader:
    options = StreamOptions(**{"batch_size": 5, "shuffle": True, "lanes": 8, **settings})
    return StreamLoader(index_of(ROWS), Numbers(ROWS), options, topology=topology)


def read_whole(stream: StreamLoader) -> list[int]:
    """The rows of a pass in a process that was given the stream."""
    return [row for batch in stream for row in batch["row"].tolist()]


class Wrapped(IterableDataset[Any]):
    """A dataset of one's own over a stream, which hides it and passes on its batches."""

    def __init__(self, stream: StreamLoader) -> None:
        self._hidden = [stream]

    def __iter__(self) -> Iterator[Any]:
        for batch in self._hidden[0]:
            yield dict(batch)

    def state_dict(self) -> dict[str, Any]:
        return self._hidden[0].state_dict()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self._hidden[0].load_state_dict(values)


class InOneWorker(Wrapped):
    """A wrapper that reads in the first worker alone, as datasets does with what has one shard."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None or info.id == 0:
            yield from super().__iter__()


class Begun(Wrapped):
    """A wrapper that goes on with a loop over its stream, whoever asks."""

    def __init__(self, stream: StreamLoader) -> None:
        super().__init__(stream)
        self.batches = iter(stream)

    def __iter__(self) -> Iterator[Any]:
        return self.batches


class Asking(Wrapped):
    """A wrapper that asks its stream where it is, or how long, before its first batch."""

    def __init__(self, stream: StreamLoader, asks: str) -> None:
        super().__init__(stream)
        self._asks = asks

    def __iter__(self) -> Iterator[Any]:
        stream = self._hidden[0]
        if self._asks == "length":
            yield {"length": len(stream)}
        elif self._asks == "state":
            yield stream.state_dict()
        else:
            yield stream.state_after(1)


def prepare_on_rank(rank: int, world_size: int, port: int, folder: str) -> None:
    """What this rank is told when a wrapper is prepared, which Accelerate reads on rank 0 for all ranks."""
    from accelerate import Accelerator

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tell_rank(rank, world_size, port)
    accelerator = Accelerator(cpu=True)
    told = {}
    for title, made, workers in (
        ("stream", stream_of(columns=["row"]), 0),
        ("stream in a worker", stream_of(columns=["row"]), 1),
        ("dataset", dataset_of(0, columns=["row"]), 0),
        ("dataset in a worker", dataset_of(1, columns=["row"]), 1),
    ):
        loader = DataLoader(
            Wrapped(made),
            batch_size=None,
            num_workers=workers,
            multiprocessing_context="spawn" if workers else None,
        )
        if rank:  # it would wait for what rank 0 sends to it
            continue
        try:
            list(accelerator.prepare(loader))
        except SettingsError as error:
            told[title] = str(error)
        told[f"left of {title}"] = accelerator.gradient_state.in_dataloader
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(told))
    accelerator.wait_for_everyone()
    torch.distributed.destroy_process_group()
