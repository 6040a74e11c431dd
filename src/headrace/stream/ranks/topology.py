"""Which rank of how many: found out once, in the parent process, and carried to workers.

Asked in this order: explicit arguments; torch.distributed, if torch is loaded and a group is initialised; the
environment (RANK and WORLD_SIZE). A launcher that is visible while the rank is unknown is an error: taking it for
"rank 0 of 1" would train every process on every row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.errors import SettingsError, StreamError

Source = Literal["arguments", "torch.distributed", "environment", "alone"]

# How many processes each launcher started, and what it calls the number of this one.
_LAUNCHERS = (
    ("SLURM_NTASKS", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
)
_REMEDY = (
    "start with torchrun, initialise torch.distributed first, or pass topology=headrace.Topology(rank=…, world_size=…)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """This process is `rank` of `world_size`; source says who said so.

    Passed as `topology=` where the ranks that share out the rows are not the processes of the job: under tensor or
    pipeline parallelism every process of one replica of the model passes the same data-parallel rank, and receives the
    same batches. Raises `SettingsError` unless rank is one of 0..world_size-1.
    """

    rank: int
    world_size: int
    source: Source = "arguments"

    def __post_init__(self) -> None:
        if not (_whole(self.rank) and _whole(self.world_size) and 0 <= self.rank < self.world_size):
            raise SettingsError(
                f"topology: rank {self.rank!r} of world_size {self.world_size!r} (from {self.source}) does not exist;"
                " ranks are the integers 0..world_size-1"
            )


def capture(
    *, rank: int | None = None, world_size: int | None = None, environ: Mapping[str, str] | None = None
) -> Topology:
    """The topology of this process. Raises `StreamError` if there are other processes but no rank is known.

    environ: stands in for the process environment.
    """
    if rank is not None and world_size is not None:
        return Topology(rank=rank, world_size=world_size, source="arguments")
    if rank is not None or world_size is not None:
        raise SettingsError(f"topology: rank is {rank}, world_size is {world_size}; pass both or neither")
    group = _torch_group()
    if group is not None:
        return Topology(rank=group[0], world_size=group[1], source="torch.distributed")
    # The one environment read below cli.py: launchers tell a process its rank in no other way, and a library user who
    # does not know that must not silently read every row on every rank.
    return _from_environment(os.environ if environ is None else environ)


def confirm(topology: Topology) -> None:
    """Raise `StreamError` if torch.distributed now says otherwise than `topology` said when it was captured.

    Catches a stream built before init_process_group, and a worker that was started for another rank.
    """
    group = _torch_group()
    if topology.source == "arguments" or group is None or group == (topology.rank, topology.world_size):
        return
    raise StreamError(
        f"topology: the stream was built as rank {topology.rank} of {topology.world_size} (from {topology.source}),"
        f" but torch.distributed says rank {group[0]} of {group[1]};"
        " build the stream after init_process_group, or pass topology=headrace.Topology(rank=…, world_size=…)"
    )


def _torch_group() -> tuple[int, int] | None:
    torch = sys.modules.get("torch")  # never imported here: a process without torch has no torch group
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def _from_environment(environ: Mapping[str, str]) -> Topology:
    rank, world_size = environ.get("RANK"), environ.get("WORLD_SIZE")
    if rank is not None and world_size is not None:
        return Topology(rank=_number("RANK", rank), world_size=_number("WORLD_SIZE", world_size), source="environment")
    if rank is not None:
        raise StreamError(f"topology: RANK is {rank} but WORLD_SIZE is not set; {_REMEDY}")
    if world_size is not None:
        if _number("WORLD_SIZE", world_size) == 1:
            return Topology(rank=0, world_size=1, source="environment")
        raise StreamError(f"topology: WORLD_SIZE is {world_size} but RANK is not set; {_REMEDY}")
    for count, number in _LAUNCHERS:
        started = environ.get(count)
        if started is not None and _number(count, started) > 1:
            raise StreamError(
                f"topology: {count} is {started} ({number} is {environ.get(number, 'not set')}), so there are other"
                f" processes, but RANK and WORLD_SIZE are not set and torch.distributed is not initialised; {_REMEDY}"
            )
    return Topology(rank=0, world_size=1, source="alone")


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise StreamError(f"topology: {name} is {text!r} in the environment; expected an integer; {_REMEDY}") from None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
