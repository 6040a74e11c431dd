"""What the ranks of the tests of stores that outlive a group run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import os
import signal
from itertools import islice
from pathlib import Path

import torch.distributed as dist
from script_processes import tell_rank
from stream_cases import Numbers, index_of

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from waits import wait_until

ROWS = (40,) * 6
STEPS = 4


class Nothing(dist.ProcessGroup):
    """A group that is nothing but its store: gloo's leaves addresses there, and takes those of processes that are gone."""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "nothing"


def join(rank: int, world_size: int) -> None:
    """Become a rank as torchrun's ranks do, in the store that they are told of."""
    if not hasattr(dist.Backend, "NOTHING"):
        dist.Backend.register_backend(
            "nothing", lambda store, rank, size, timeout: Nothing(rank, size), devices=["cpu"]
        )
    dist.init_process_group("nothing", rank=rank, world_size=world_size)


def stream_of(distribution: str) -> StreamLoader:
    options = StreamOptions(batch_size=5, shuffle=True, distribution=distribution)
    kind = StreamLoader
    return kind(index_of(ROWS), Numbers(ROWS), options)


def read(stream: StreamLoader, most: int | None = None) -> list[int]:
    return [row for batch in islice(stream, most) for row in batch["row"][batch["valid"]].tolist()]


class Meeting:
    """Where all ranks wait for each other, by files; each meeting has its name."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.folder, self.rank, self.world_size = folder, rank, world_size

    def all_here(self, name: str) -> None:
        Path(self.folder, f"{name}-{self.rank}").touch()
        everyone = [Path(self.folder, f"{name}-{rank}") for rank in range(self.world_size)]
        wait_until(lambda: all(path.exists() for path in everyone))


def live_once(
    rank: int, world_size: int, port: int, folder: str, life: int, distribution: str
) -> None:
    """The first life saves a state and is killed in the midst of its pass; the second reads the rest."""
    tell_rank(rank, world_size, port)
    meeting = Meeting(Path(folder), rank, world_size)
    meeting.all_here(
        f"begun-{life}"
    )  # as gloo sees to: no rank is in the group before all have started
    join(rank, world_size)
    stream, saved = stream_of(distribution), Path(folder, "state.json")
    if life:
        stream.load_state_dict(json.loads(saved.read_text()))
        Path(folder, f"rest-{rank}.json").write_text(json.dumps(read(stream)))
        return
    batches = iter(stream)
    Path(folder, f"begin-{rank}.json").write_text(json.dumps(read(batches, STEPS)))
    state = stream.state_dict()
    if rank == 0:
        saved.write_text(json.dumps(state))
    next(batches)
    meeting.all_here("killed")
    os.kill(os.getpid(), signal.SIGKILL)


def regroup(rank: int, world_size: int, port: int, folder: str) -> None:
    """The same processes leave their group after half an epoch, make another one in the same store, and read the rest."""
    tell_rank(rank, world_size, port)
    meeting, rows = Meeting(Path(folder), rank, world_size), []
    state = None
    meeting.all_here("begun")
    for group in range(3):
        join(rank, world_size)
        stream = stream_of("balanced")
        if state is not None:
            stream.load_state_dict(state)
        rows += read(stream, STEPS * (group + 1))
        state = stream.state_dict()
        meeting.all_here(f"left-{group}")
        dist.destroy_process_group()
    Path(folder, f"rows-{rank}.json").write_text(json.dumps(rows))
