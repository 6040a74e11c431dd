"""What the ranks of the tests of beginnings run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from fault_cases import Lines, join_group
from stream_cases import Numbers, index_of
from torch_cases import real_rows

import headrace
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset

ROWS = (40,) * 6


class Rank:
    """One rank, its streams and what came of them."""

    def __init__(self, log: Lines) -> None:
        self.log, self.told = log, {}

    def stream(self, state=None, topology=None, **settings):
        options = StreamOptions(**{"batch_size": 5, "shuffle": True, "lanes": 6, **settings})
        stream = StreamLoader(index_of(ROWS), Numbers(ROWS), options, topology=topology)
        if state is not None:
            stream.load_state_dict(state)
        return stream

    def loader(self, state=None, epoch=None):
        options = StreamOptions(batch_size=5, shuffle=True, lanes=6)
        dataset = StreamingDataset(index_of(ROWS), Numbers(ROWS), options, num_workers=1)
        if state is not None:
            dataset.load_state_dict(state)
        if epoch is not None:
            dataset.set_epoch(epoch)
        return dataset.data_loader(method="fork")

    def read(self, name, batches, most=None):
        """As a loop reads them; all ranks wait for each other afterwards."""
        rows = []
        try:
            for batch in islice(batches, most):
                rows.append(real_rows(batch))
            self.told[name] = {"rows": rows, "error": ""}
        except headrace.HeadraceError as error:
            self.told[name] = {"rows": rows, "error": str(error)}
        dist.barrier()

    def in_step(self, name, stream, *leaves):
        """Passes with a collective at every batch, each left after so many, None: at its end; epochs of its batches."""
        epochs = []
        for most in leaves:
            for _ in stream if most is None else islice(stream, most):
                dist.all_reduce(torch.ones(1))
            epochs.append(stream.epoch)
        self.told[name] = {"error": "", "epochs": epochs}
        dist.barrier()


def begin_on_rank(number: int, world_size: int, folder: str) -> None:
    """Passes that begin unlike on the last rank, and passes that look unlike and are not."""
    log = join_group(number, world_size, folder)
    logging.getLogger("headrace").setLevel(logging.ERROR)
    rank, other = Rank(log), number == world_size - 1
    # alike: a look at a batch, a pass that is left and begun again, more epochs, a stop and its rest, other streams
    stream = rank.stream()
    if other:
        next(iter(rank.stream(batch_size=3, topology=headrace.Topology(rank=0, world_size=1))))
        next(iter(stream))
    rank.read("after a look", stream)
    rank.read("the next epoch", stream)
    rank.read("stopped", stream, 4)
    state = stream.state_dict()
    rank.read("again", stream)
    stream.load_state_dict(state)
    rank.read("the rest", stream)
    rank.read("the rest in workers", rank.loader(state))
    stream = rank.stream()
    if other:
        list(islice(stream, 3))  # a look at some batches, alone
    rank.in_step("a long look, in step", stream, None, None)
    rank.in_step("left on all, in step", rank.stream(), 3, None)
    # unlike, and not to be told from a look; nobody begins the next epoch before all do
    stream = rank.stream()
    if other:
        list(islice(stream, 3))
    rank.read("left on one", stream)
    rank.read("left on one, the next epoch", stream)
    # unlike
    stream = rank.stream()
    stream.set_epoch(5 + other)
    rank.read("other epochs", stream)
    rank.read("other epochs in workers", rank.loader(epoch=5 + other))
    stream = rank.stream()
    for _ in islice(stream, 4 + other):
        pass
    stream.load_state_dict(stream.state_dict())
    rank.read("other states", stream)
    rank.read("after all, the rest", rank.stream(state))
    Path(folder, f"rank-{number}.json").write_text(json.dumps(rank.told))
    dist.barrier()
    dist.destroy_process_group()
