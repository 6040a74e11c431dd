"""Find out which rank of how many this process is.

The parent process asks once, and its DataLoader workers inherit the answer. torch.distributed
answers first, if a process group exists; the variables RANK and WORLD_SIZE answer second. A
launcher without a known rank is an error: if every process believed to be rank 0 of 1, each would
train on every row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import SettingsError, StreamError

Source = Literal["arguments", "torch.distributed", "environment", "alone"]

# Each launcher's variables for the number of processes and for the number of this process.
_LAUNCHERS = (
    ("SLURM_NTASKS", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
)
_REMEDY = (
    "start with torchrun, initialise torch.distributed first, or pass"
    " topology=headrace.Topology(rank=…, world_size=…)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """This process reads as `rank` of `world_size`; `source` says who decided that.

    Pass it as `topology=` where the ranks that share the rows are not the processes of the job.
    Under tensor or pipeline parallelism all processes of one model replica pass the same
    data-parallel rank and receive the same batches. Raises `SettingsError` unless rank is one of
    0..world_size-1.
    """

    rank: int
    world_size: int
    source: Source = "arguments"

    def __post_init__(self) -> None:
        if not (
            type(self.rank) is type(self.world_size) is int and 0 <= self.rank < self.world_size
        ):
            raise SettingsError(
                f"there is no such rank of {self.world_size!r} (from {self.source})",
                setting="rank",
                value=self.rank,
                remedy="give one of the integers 0..world_size-1",
            )

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


def capture(*, environ: Mapping[str, str] | None = None) -> Topology:
    """Return the topology of this process. environ: replaces the process environment.

    Raises `StreamError` if there are other processes but no rank is known.
    """
    distributed = initialized_distributed()
    if distributed is not None:
        return Topology(
            rank=int(distributed.get_rank()),
            world_size=int(distributed.get_world_size()),
            source="torch.distributed",
        )
    # The only environment read below the command line: launchers announce a rank in no other way,
    # and a library user who does not pass it on must not silently read every row on every rank.
    if environ is None:
        environ = os.environ
    world_size = _number(environ, "WORLD_SIZE")
    rank = _number(environ, "RANK")
    if world_size is None and rank is not None:
        raise StreamError(f"RANK is {rank} but WORLD_SIZE is not set", remedy=_REMEDY)
    if world_size is not None:
        if rank is None and world_size != 1:
            raise StreamError(f"WORLD_SIZE is {world_size} but RANK is not set", remedy=_REMEDY)
        return Topology(rank=rank or 0, world_size=world_size, source="environment")
    for count, number in _LAUNCHERS:
        if (_number(environ, count) or 1) > 1:
            raise StreamError(
                f"{count} is {environ[count]} ({number} is {environ.get(number, 'not set')}), so"
                " there are other processes, but RANK and WORLD_SIZE are not set and"
                " torch.distributed is not initialised",
                remedy=_REMEDY,
            )
    return Topology(rank=0, world_size=1, source="alone")


def confirm(topology: Topology) -> None:
    """Raise `StreamError` if torch.distributed contradicts a captured topology.

    This catches a stream built before init_process_group, and a worker started for another rank.
    """
    distributed = initialized_distributed()
    if topology.source == "arguments" or distributed is None:
        return
    rank = int(distributed.get_rank())
    world_size = int(distributed.get_world_size())
    if (rank, world_size) != (topology.rank, topology.world_size):
        raise StreamError(
            f"the stream was built as {topology} (from {topology.source}), but"
            f" torch.distributed says rank {rank} of {world_size}",
            remedy=(
                "build the stream after init_process_group, or pass"
                " topology=headrace.Topology(rank=…, world_size=…)"
            ),
        )


def initialized_distributed() -> Any:
    """Return torch.distributed if this process is in a process group, else None.

    It never imports torch: a process that has not loaded torch has no process group.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def gather(value: Any) -> list[Any]:
    """Return this value of every rank, in rank order, or of this process alone.

    Collective under torch.distributed.
    """
    distributed = initialized_distributed()
    if distributed is None:
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def _number(environ: Mapping[str, str], name: str) -> int | None:
    try:
        if name in environ:
            return int(environ[name])
        return None
    except ValueError:
        raise StreamError(
            f"the environment has {name}={environ[name]!r}, which is not an integer", remedy=_REMEDY
        ) from None
