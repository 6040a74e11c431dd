"""The job that this process is of: who started it, which rank it is, and what its environment gets wrong. Pure."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping

from headrace.cli.doctor.finding import Finding
from headrace.errors import HeadraceError

# Who starts processes, by variables that only it sets; the first that fits is nearest to the process.
_LAUNCHERS = (
    ("torchrun", ("TORCHELASTIC_RUN_ID", "GROUP_RANK")),
    ("Ray", ("RAY_JOB_ID", "RAY_CLUSTER_ID")),
    ("Open MPI", ("OMPI_COMM_WORLD_SIZE",)),
    ("MPI", ("PMI_SIZE", "MPI_LOCALNRANKS")),
    ("Slurm", ("SLURM_PROCID", "SLURM_JOB_ID")),
)
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
_POOLS = ("OMP_NUM_THREADS", "POLARS_MAX_THREADS")


def topology(environ: Mapping[str, str]) -> Finding:
    """Which rank of how many a stream would take this process for."""
    from headrace.stream.ranks.topology import capture

    try:
        found = capture(environ=environ)
    except HeadraceError as error:
        return Finding("rank", "unknown", "problem", str(error))
    where = {"alone": "no launcher is visible", "environment": "from RANK and WORLD_SIZE"}.get(
        found.source, found.source
    )
    return Finding("rank", f"{found.rank} of {found.world_size}, {where}")


def launcher(environ: Mapping[str, str]) -> Finding:
    """Who started this process, and how many of the job are on this machine."""
    names = [name for name, signs in _LAUNCHERS if any(sign in environ for sign in signs)]
    if not names and "LOCAL_RANK" in environ and "NODE_RANK" in environ:
        names = ["Lightning"]
    local = _local_size(environ)
    here = f", {local} processes on this machine" if local else ""
    return Finding("launcher", f"{', inside '.join(names)}{here}" if names else f"none{here}")


def mistakes(environ: Mapping[str, str], cores: int) -> list[Finding]:
    """What is usual and wrong; nothing where all is well. cores: that this process may use."""
    return [
        *_threads(environ, cores),
        *_ranks(environ),
        *_devices(environ),
        *_forks(environ),
    ]


def _threads(environ: Mapping[str, str], cores: int) -> list[Finding]:
    local = _local_size(environ) or 1
    found = []
    for name in _POOLS:
        text = environ.get(name)
        if text is None:
            continue
        count = _whole(text)
        if count is None or count < 1:
            found.append(
                Finding(name, repr(text), "problem", f"is no number of threads; unset {name}, or give 1 or more")
            )
        elif count * local > 2 * cores:
            advice = f"{local} processes with {count} threads share {cores} cores; set {name}={max(1, cores // local)}"
            found.append(Finding(name, text, "note", advice))
        elif count == 1 and local == 1 and cores > 1:
            advice = f"one thread where {cores} cores are free; unset {name} to prepare data faster"
            found.append(Finding(name, text, "note", advice))
    if local > 1 and "OMP_NUM_THREADS" not in environ:
        advice = f"each of {local} processes takes all {cores} cores; set OMP_NUM_THREADS={max(1, cores // local)}"
        found.append(Finding("OMP_NUM_THREADS", "not set", "note", advice))
    return found


def _ranks(environ: Mapping[str, str]) -> list[Finding]:
    found = []
    world, rank, local_rank = (_whole(environ.get(name)) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    local, tasks = _local_size(environ), _whole(environ.get("SLURM_NTASKS"))
    if local_rank is not None and local is not None and local_rank >= local:
        advice = f"there are {local} processes on this machine, numbered from 0; correct the launch script"
        found.append(Finding("LOCAL_RANK", str(local_rank), "problem", advice))
    if world is not None and world > 1 and rank is not None and not {"MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        advice = "init_process_group() needs MASTER_ADDR and MASTER_PORT; export them, or start with torchrun"
        found.append(Finding("MASTER_ADDR", "not set", "note", advice))
    if tasks is not None and tasks > 1 and world is not None and (world < tasks or world % tasks):
        advice = (
            f"Slurm started {tasks} tasks, which {world} ranks cannot be of; export WORLD_SIZE=$SLURM_NTASKS in each"
        )
        found.append(Finding("WORLD_SIZE", str(world), "problem", advice))
    return found


def _devices(environ: Mapping[str, str]) -> list[Finding]:
    visible, local = environ.get("CUDA_VISIBLE_DEVICES"), _local_size(environ)
    if visible is None or local is None or local < 2:
        return []
    count = len([each for each in visible.split(",") if each.strip()])
    if count in (0, 1) or count >= local:  # one each, as launchers set it
        return []
    advice = f"{local} processes on this machine share {count} devices; start as many as there are devices"
    return [Finding("CUDA_VISIBLE_DEVICES", visible, "note", advice)]


def _forks(environ: Mapping[str, str]) -> list[Finding]:
    """Forked DataLoader workers hang where the parent's threads held a lock."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    threads = environ.get("TOKENIZERS_PARALLELISM", "").lower() == "true"
    if method != "fork":
        return [Finding("DataLoader workers", f"start by {method}")]
    advice = ""
    if threads:
        advice = "TOKENIZERS_PARALLELISM=true and forked workers hang; unset it, or multiprocessing_context='spawn'"
    return [Finding("DataLoader workers", "start by fork", "problem" if threads else "ok", advice)]


def _local_size(environ: Mapping[str, str]) -> int | None:
    return next((size for name in _LOCAL_SIZES if (size := _whole(environ.get(name))) is not None), None)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None
