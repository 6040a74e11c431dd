"""A stream whose transform runs in worker processes: `headrace.open(...).stream(..., transform=f, workers=4)`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from headrace.stream.loader.rebatched import refuse_sharing_again
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import Batch


class WorkerStream(StreamLoader):
    """A stream whose transform runs in worker processes; see `StreamingDataset`. The batches are the same.

    Workers are spawned when a pass begins, and end with it.
    """

    def __init__(self, *parts: Any, workers: int, topology: Topology | None = None) -> None:
        super().__init__(*parts, topology=topology)
        self.workers = workers
        StreamingDataset.over(self, num_workers=workers)  # what is wrong with workers is said now

    def __iter__(self) -> Iterator[Batch]:
        """A pass, from its beginning. Raises `StreamError` if two passes of one loader are read at a time."""
        refuse_sharing_again(self, world_size=self.topology.world_size, caller=sys._getframe(1))
        return iter(StreamingDataset.over(self, num_workers=self.workers).data_loader())
