"""Find out which rank of how many this process is.

The parent process asks once, and its DataLoader workers inherit the answer. torch.distributed
answers first, if a process group exists; the variables RANK and WORLD_SIZE answer second. A
launcher without a known rank is an error: if every process believed to be rank 0 of 1, each would
train on every row.

A mesh arranges the processes of a job along named dimensions. Along the dimensions of data
parallelism the rows are shared. Along the others (tensor, pipeline, context parallelism) processes
hold parts of one replica of the model, so they must receive the same batches.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.checks import as_integer
from headrace.errors import SettingsError, StreamError, setting, setting_name, spell

log = logging.getLogger("headrace")

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

# What torch, torchtitan, Accelerate, Lightning and Megatron call dimensions of one replica.
_ONE_REPLICA = frozenset(
    {
        "tp",
        "tensor",
        "tensor_parallel",
        "pp",
        "pipe",
        "pipeline",
        "pipeline_parallel",
        "cp",
        "context",
        "context_parallel",
        "sp",
        "sequence",
        "sequence_parallel",
    }
)
_IMPORTED = secrets.token_hex(8)  # process ids repeat on other machines
_OF_A_MESH = "mesh_"  # what torch calls the groups of a mesh's dimensions, before their names


def this_process() -> tuple[int, str]:
    """Return what no other process has: forks have another id, and others imported this anew."""
    return os.getpid(), _IMPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """This process reads as `rank` of `world_size`; `source` says who decided that.

    Pass it as `topology=` where the ranks that share the rows are not the processes of the job.
    Under tensor or pipeline parallelism all processes of one model replica pass the same
    data-parallel rank and receive the same batches. partners: how many processes of the job read
    as this rank; those of one machine read once, see `workers.partners`. process: the process that
    detected it. Raises `SettingsError` unless rank is one of 0..world_size-1 and partners is 1 or
    more.
    """

    rank: int
    world_size: int
    source: Source = "arguments"
    partners: int = 1
    process: tuple[int, str] = field(default_factory=this_process, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("rank", 0), ("world_size", 1), ("partners", 1)):
            value = as_integer(name, getattr(self, name), least=least)
            object.__setattr__(self, name, value)
        if self.rank >= self.world_size:
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
    """Raise `StreamError` before a pass if torch.distributed contradicts a captured topology.

    This catches what `confirm_rank` does, a device mesh whose processes share a replica of the
    model, and a stream that another process was given: two would read the same rows.
    """
    if topology.source == "arguments":
        return
    if initialized_distributed() is not None:
        _check_mesh_is_given(topology)
    confirm_rank(topology)
    if not _is_here(topology):
        raise StreamError(
            f"{topology}: process {topology.process[0]} made this stream, and process {os.getpid()}"
            " would read all of its rows too",
            remedy=(
                "make the stream in the process that reads it, or say by"
                f" {setting('topology')} which part is its"
            ),
        )


def _is_here(topology: Topology) -> bool:
    """Tell whether this process, or the one whose DataLoader worker it is, detected a topology."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return True
    return topology.process == this_process()


def confirm_rank(topology: Topology) -> None:
    """Raise `StreamError` for a stream built before init_process_group, and for a worker started
    for another rank.
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


def resolve_topology(
    topology: Topology | None, mesh: Any, data_dims: str | Sequence[str] | None
) -> Topology | None:
    """Return the topology of a stream: as given, that of a mesh, or None to detect it.

    mesh: a `torch.distributed.device_mesh.DeviceMesh` that this process belongs to. data_dims: the
    names of its dimensions that share the rows. The rank counts along them in the order of the
    mesh, the last one fastest, as a flattened mesh does.

    Raises `SettingsError` if only one of both is given, beside `topology`, or if the mesh has no
    such dimension.
    """
    if mesh is None and data_dims is None:
        return topology
    if topology is not None:
        raise SettingsError(
            "a mesh says which rank this is",
            setting="topology",
            value=str(topology),
            remedy=f"give {setting_name('mesh')} and {setting_name('data_dims')} without it",
        )
    if mesh is None:
        raise SettingsError(
            "they are dimensions of a mesh, which is not given",
            setting="data_dims",
            value=str(data_dims),
            remedy=f"give {setting('mesh')}, what init_device_mesh returns",
        )
    names = tuple(mesh.mesh_dim_names or ())
    if data_dims is None:
        raise SettingsError(
            f"its dimensions are {', '.join(names) or 'without names'}, and which of them share the"
            " rows is not said",
            setting="mesh",
            remedy=f"give {setting('data_dims', _suggested(names))}",
        )
    chosen = (data_dims,) if isinstance(data_dims, str) else tuple(data_dims)
    for name in chosen:
        if name not in names:
            raise SettingsError(
                f"the mesh has {', '.join(names) or 'no names of dimensions'}",
                setting="data_dims",
                value=name,
                remedy="give names of init_device_mesh(…, mesh_dim_names=…) that share the rows",
            )
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        raise SettingsError(
            f"this process is not part of {mesh}",
            setting="mesh",
            remedy="make the stream on the processes of the mesh only",
        )
    rank = 0
    world_size = 1
    partners = 1
    for name, size, coordinate in zip(names, mesh.shape, coordinates, strict=True):
        if name in chosen:
            rank = rank * size + coordinate
            world_size = world_size * size
        else:
            partners = partners * size
    return Topology(rank=rank, world_size=world_size, partners=partners)


def _check_mesh_is_given(topology: Topology) -> None:
    """Refuse a detected topology where this process shares a replica with others.

    torch names the process group of each dimension of a mesh. A dimension of another name than
    those in use is only logged. Raises `StreamError` for one of tensor, pipeline or context
    parallelism with more than one process.
    """
    if topology.world_size == 1:
        return
    sizes = _dimensions()
    for name, size in sizes.items():
        if size > 1 and name in _ONE_REPLICA:
            raise StreamError(
                f"{topology}: this process and {size - 1} more of dimension {name!r} of a device"
                " mesh hold one replica of the model, and each would get other rows",
                remedy=(
                    f"make the stream with {setting('mesh')} and"
                    f" {setting('data_dims', _suggested(tuple(sizes)))}, or with"
                    f" {setting('topology')} for ranks of your own"
                ),
            )
    unknown = [name for name, size in sizes.items() if size > 1 and name.startswith("dim_")]
    if len(unknown) > 1:
        _warn_once(
            "%s: the dimensions of this process's device mesh have no names, and all its processes"
            " get rows of their own; if some hold one replica of the model, give "
            + spell(f"{setting('mesh')} and {setting('data_dims')}"),
            str(topology),
        )


@functools.cache
def _warn_once(sentence: str, topology: str) -> None:
    log.warning(sentence, topology)


def _suggested(names: Sequence[str]) -> str | tuple[str, ...]:
    shared = tuple(name for name in names if name not in _ONE_REPLICA) or ("dp",)
    return shared[0] if len(shared) == 1 else shared


def _dimensions() -> dict[str, int]:
    """Return the processes along each dimension of the meshes that this process belongs to.

    A dimension along all processes of the job is missing: torch makes no group for it.
    """
    groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map
    sizes: dict[str, int] = {}
    for group in groups:
        name = getattr(group, "group_desc", "")
        if name.startswith(_OF_A_MESH):
            dimension = name.removeprefix(_OF_A_MESH)
            sizes[dimension] = max(sizes.get(dimension, 1), group.size())
    return sizes


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
