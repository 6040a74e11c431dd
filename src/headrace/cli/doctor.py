"""Check libraries, machine, job and data locations for common mistakes: `headrace doctor`.

The command tests whether a directory or a bucket responds, is writable, and provides what headrace relies on.
"""

from __future__ import annotations

import fcntl
import importlib.metadata as metadata
import os
import platform
import re
import secrets
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.cli.flags import Json
from headrace.cli.output import emit, printer, table
from headrace.errors import CorruptShard, HeadraceError

Verdict = Literal["ok", "note", "problem"]

_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_FOR_DEVELOPERS = ("test", "lint", "docs", "bench", "package", "fuzz")

_LEAST_FILES, _LEAST_SHARED, _LEAST_TEMPORARY = 1024, 64 << 20, 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_SLOW_SYNC_MS = 50.0
_PATIENCE_S = 30.0  # limit for a store that does not respond
_SYNCS = 5
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "gluster", "9p", "afs", "fuse.", "virtiofs")
_OF_A_NETWORK = (
    "network file system: mount it the same way on all machines, and start processes that share one "
    "output on one machine"
)
_NO_LOCKS = "two runs that write the same output are not kept apart here; start one at a time"
_SLOW_SYNC = "each shard is synced before it counts as finished; use larger shards for runs of many small ones"
_MOUNTS = Path("/proc/self/mountinfo")

# Launchers with the variables that only they set, innermost launcher first.
_LAUNCHERS = (
    ("torchrun", ("TORCHELASTIC_RUN_ID", "GROUP_RANK")),
    ("Ray", ("RAY_JOB_ID", "RAY_CLUSTER_ID")),
    ("Open MPI", ("OMPI_COMM_WORLD_SIZE",)),
    ("MPI", ("PMI_SIZE", "MPI_LOCALNRANKS")),
    ("Slurm", ("SLURM_PROCID", "SLURM_JOB_ID")),
)
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
_POOLS = ("OMP_NUM_THREADS", "POLARS_MAX_THREADS")


@dataclass(frozen=True)
class Finding:
    """The result of one check. advice: what to do; empty if all is well."""

    name: str
    found: str
    verdict: Verdict = "ok"
    advice: str = ""


def doctor(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            help="Directories or addresses (s3://, gs://, az://) to read data from or write runs to.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Print versions, extras, rank, limits, what places can do, and usual mistakes. Exit 1 if something is wrong.

    A place is tested: small files are written and deleted again. A place that may only be read is fine.

    Example:  headrace doctor out s3://bucket/raw
    """
    findings = [
        *libraries(),
        *extras(metadata.requires("headrace") or ()),
        topology(os.environ),
        launcher(os.environ),
        *limits(),
        *mistakes(os.environ, cores()),
        *(each for place in places or () for each in look_at(place)),
    ]
    problems = [each for each in findings if each.verdict == "problem"]
    if as_json:
        emit({"ok": not problems, "findings": [asdict(each) for each in findings]})
    else:
        from rich.text import Text

        styles = {"ok": "green", "note": "dim", "problem": "bold red"}
        made = table("headrace doctor", ("what", "found", ""))
        for each in findings:
            made.add_row(each.name, Text(each.found), Text(each.advice or each.verdict, style=styles[each.verdict]))
        printer().print(made)
    if problems:
        raise typer.Exit(1)


def libraries() -> list[Finding]:
    """Report the versions of Python and the required libraries."""
    found = [Finding("python", f"{platform.python_version()} on {platform.platform(terse=True)}")]
    for name in ("headrace", "pyarrow", "polars", "numpy", "pydantic"):
        version = _version(name)
        found.append(Finding(name, version) if version else Finding(name, "missing", "problem", f"pip install {name}"))
    return found


def extras(requirements: Iterable[str]) -> list[Finding]:
    """Report the installed libraries of each extra. requirements: from the package's metadata."""
    wanted: dict[str, list[str]] = {}
    for text in requirements:
        marker, found = _EXTRA.search(text), _REQUIREMENT.match(text)
        if marker and found and marker[1] not in _FOR_DEVELOPERS:
            inner = [each.strip() for each in (found[2] or "").split(",") if each.strip()]
            own = wanted.setdefault(marker[1], [])
            own += [f"[{each}]" for each in inner] if found[1].lower() == "headrace" else [found[1]]

    def names(extra: str) -> list[str]:
        return [name for each in wanted.get(extra, ()) for name in (names(each[1:-1]) if each[0] == "[" else [each])]

    lines, absent = [], []
    for extra in sorted(wanted):
        versions = {name: _version(name) for name in dict.fromkeys(names(extra))}
        missing = [name for name, version in versions.items() if not version]
        shown = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
        if len(missing) == len(versions):
            absent.append(extra)
            continue
        advice = f"pip install 'headrace[{extra}]' if you need it"
        lines.append(_judged(f"extra {extra}", shown, bool(missing), "note", advice))
    if absent:
        advice = "pip install 'headrace[NAME]' if you need one"
        lines.append(Finding("extras not installed", ", ".join(absent), "note", advice))
    return lines


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def cores() -> int:
    """Count the cores that this process may use, by its affinity and its container's quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    return max(1, min(bound, int(quota) // int(period))) if quota.isdigit() and period.isdigit() else bound


def limits() -> list[Finding]:
    """Report cores, memory, open files, shared memory and temporary disk space, if the system tells them."""
    all_cores = os.cpu_count() or 1
    found = [Finding("cores", f"{cores()} of {all_cores}" if cores() < all_cores else f"{all_cores}")]
    try:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        advice = "streaming opens many shards at once; raise the limit with ulimit -n 4096"
        found.append(_judged("open files", f"at most {files:,}", 0 <= files < _LEAST_FILES, "problem", advice))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        told, limit = f"{memory / 1e9:,.1f} GB", _read(_CGROUP / "memory.max")
        if limit.isdigit() and int(limit) < memory:
            told = f"{int(limit) / 1e9:,.1f} GB for this container, of {told}"
        found.append(Finding("memory", told))
    except (ImportError, OSError, ValueError):
        pass  # not a POSIX system
    shared = Path("/dev/shm")
    if shared.is_dir():
        room = shutil.disk_usage(shared).total
        advice = "DataLoader workers pass batches through it; start the container with docker run --shm-size=1g"
        found.append(_judged("shared memory", f"{room / 1e6:,.0f} MB", room < _LEAST_SHARED, "problem", advice))
    temporary = tempfile.gettempdir()
    free = shutil.disk_usage(temporary).free
    told = f"{temporary}: {free / 1e9:,.1f} GB free"
    advice = "series and samples are written there temporarily; set TMPDIR to a directory with more space"
    return [*found, _judged("temporary", told, free < _LEAST_TEMPORARY, "note", advice)]


def _judged(name: str, found: str, wrong: bool, verdict: Verdict, advice: str) -> Finding:
    """Return a finding with this verdict and advice if something is wrong, else with "ok"."""
    return Finding(name, found, verdict, advice) if wrong else Finding(name, found)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def topology(environ: Mapping[str, str]) -> Finding:
    """Report the rank and world size that a stream in this process would use."""
    from headrace.stream.ranks.topology import capture

    try:
        found = capture(environ=environ)
    except HeadraceError as error:
        return Finding("rank", "unknown", "problem", str(error))
    sources = {"alone": "no launcher was detected", "environment": "from RANK and WORLD_SIZE"}
    return Finding("rank", f"{found.rank} of {found.world_size}, {sources.get(found.source, found.source)}")


def launcher(environ: Mapping[str, str]) -> Finding:
    """Report which launcher started this process, and how many processes of the job are on this machine."""
    names = [name for name, signs in _LAUNCHERS if any(sign in environ for sign in signs)]
    if not names and "LOCAL_RANK" in environ and "NODE_RANK" in environ:
        names = ["Lightning"]
    local = _local_size(environ)
    here = f", {local} processes on this machine" if local else ""
    return Finding("launcher", f"{', inside '.join(names) or 'none'}{here}")


def mistakes(environ: Mapping[str, str], cores: int) -> list[Finding]:
    """Look for common mistakes in the environment. cores: that this process may use."""
    found, local = [], _local_size(environ)
    here = local or 1
    for name in (each for each in _POOLS if each in environ):
        text, advice = environ[name], ""
        count = _whole(text)
        if count is None or count < 1:
            advice = f"is not a valid number of threads; unset {name}, or give 1 or more"
            found.append(Finding(name, repr(text), "problem", advice))
            continue
        if count * here > 2 * cores:
            advice = f"{here} processes with {count} threads share {cores} cores; set {name}={max(1, cores // here)}"
        elif count == 1 and here == 1 and cores > 1:
            advice = f"only one thread although {cores} cores are free; unset {name} to prepare data faster"
        if advice:
            found.append(Finding(name, text, "note", advice))
    if here > 1 and "OMP_NUM_THREADS" not in environ:
        advice = f"each of {here} processes uses all {cores} cores; set OMP_NUM_THREADS={max(1, cores // here)}"
        found.append(Finding("OMP_NUM_THREADS", "not set", "note", advice))

    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "SLURM_NTASKS")
    world, rank, local_rank, tasks = (_whole(environ.get(name)) for name in names)
    if local_rank is not None and local is not None and local_rank >= local:
        advice = f"there are {local} processes on this machine, numbered from 0; fix the launch script"
        found.append(Finding("LOCAL_RANK", str(local_rank), "problem", advice))
    if world is not None and world > 1 and rank is not None and not {"MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        advice = "init_process_group() needs MASTER_ADDR and MASTER_PORT; export them, or start with torchrun"
        found.append(Finding("MASTER_ADDR", "not set", "note", advice))
    if tasks is not None and tasks > 1 and world is not None and (world < tasks or world % tasks):
        advice = (
            f"Slurm started {tasks} tasks, which does not fit {world} ranks; export WORLD_SIZE=$SLURM_NTASKS in "
            "each task"
        )
        found.append(Finding("WORLD_SIZE", str(world), "problem", advice))

    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    count = len([each for each in visible.split(",") if each.strip()])
    if 1 < count < here:  # 1 is fine: some launchers give each process its own device
        advice = f"{here} processes on this machine share {count} devices; start one process per device"
        found.append(Finding("CUDA_VISIBLE_DEVICES", visible, "note", advice))

    import multiprocessing

    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    # Forked workers hang if one of the parent's threads held a lock.
    hangs = method == "fork" and environ.get("TOKENIZERS_PARALLELISM", "").lower() == "true"
    advice = "forked workers hang with TOKENIZERS_PARALLELISM=true; unset it, or set multiprocessing_context='spawn'"
    return [*found, _judged("DataLoader workers", f"started by {method}", hangs, "problem", advice)]


def _local_size(environ: Mapping[str, str]) -> int | None:
    return next((size for name in _LOCAL_SIZES if (size := _whole(environ.get(name))) is not None), None)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def look_at(place: str) -> list[Finding]:
    """Check one location. Small files are written to it and deleted again."""
    from headrace.storage.places import expanded, is_address, path_of  # imports pyarrow, which --help does not need

    if not is_address(place):
        return directory(expanded(Path(place)))
    try:
        path = path_of(place)
        return within(_PATIENCE_S, str(path), lambda: store(path))
    except HeadraceError as error:
        return [_failed(error)]


def directory(out: Path) -> list[Finding]:
    """Check whether runs can be written to a directory, or data read from it.

    Tests hard links, locks, syncing and free space, and reports the file system.
    """
    standing = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    if not standing.is_dir():
        return [Finding("place", f"{standing}: is a file", "problem", "give a directory")]
    try:
        free = shutil.disk_usage(standing).free
        found = [Finding("place", f"{standing}: {free / 1e9:,.1f} GB free"), *_tried(standing)]
    except OSError as error:
        denied = isinstance(error, PermissionError)
        advice = "choose a directory that you may write to" if denied else "repair the file system, or choose another"
        found = [Finding("place", f"{standing}: {error.strerror}", "problem", advice)]
        if denied and out.exists() and os.access(out, os.R_OK):
            told = f"{out}: is readable but not writable ({error.strerror})"
            found = [Finding("place", told, "note", "data can be read from here; write runs to another directory")]
    kind = file_system(standing) or "unknown"
    return [*found, _judged("file system", kind, kind.startswith(_NETWORK), "note", _OF_A_NETWORK)]


def _tried(standing: Path) -> list[Finding]:
    with tempfile.TemporaryDirectory(dir=standing, prefix=".tmp-doctor-") as name:
        inside = Path(name)
        file = inside / "file"
        file.write_bytes(b"headrace")
        try:
            os.link(file, inside / "link")
            links = Finding("links", "hard links")
        except OSError as error:
            links = Finding("links", f"no hard links ({error.strerror})", "ok", "files are claimed and moved instead")
        took = []
        for number in range(_SYNCS):
            with (inside / f"sync-{number}").open("wb") as sink:
                sink.write(bytes(4096))
                sink.flush()
                began = time.perf_counter()
                os.fsync(sink.fileno())
                took.append(time.perf_counter() - began)
        middle = statistics.median(took) * 1e3
        sync = _judged("fsync", f"{middle:,.1f} ms", middle > _SLOW_SYNC_MS, "note", _SLOW_SYNC)
        return [links, _locks(file), sync]


def _locks(file: Path) -> Finding:
    """Check that a lock on one open file excludes a second one, as two processes of a run require."""
    with file.open("rb") as first, file.open("rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return Finding("locks", f"none ({error.strerror})", "note", _NO_LOCKS)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return Finding("locks", "hold")
    return Finding("locks", "do not work", "note", _NO_LOCKS)


def file_system(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the type of the file system that holds a path; None if unknown. mounts: in Linux's mountinfo format."""
    best, found = -1, None
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    real = path.resolve()
    for line in lines:
        left, dash, right = line.partition(" - ")
        fields = left.split()
        if not dash or len(fields) < 5:
            continue
        point = Path(fields[4].replace("\\040", " "))
        # The last mount on a mount point is the visible one.
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), right.split()[0]
    return found


def store(path: Path) -> list[Finding]:
    """Check whether a bucket responds, and whether new objects can be put without replacing others."""
    from headrace.storage.places import place_of

    began = time.perf_counter()
    try:
        prefixes, facts = place_of(path).children()
    except (HeadraceError, OSError) as error:
        return [_failed(error)]
    took = (time.perf_counter() - began) * 1e3
    there = f"{len(facts):,} objects and {len(prefixes):,} prefixes" if facts or prefixes else "nothing"
    found = [Finding("store", f"{path}: {there}, listed in {took:,.0f} ms")]
    trial = place_of(path / f".headrace-doctor-{secrets.token_hex(8)}")
    try:
        began = time.perf_counter()
        trial.put_new(b"headrace")
        took = (time.perf_counter() - began) * 1e3
    except (HeadraceError, OSError) as error:
        advice = "data can be read from here; write runs elsewhere"
        return [*found, Finding("writing", f"refused: {error}", "note", advice)]
    told = f"an object in {took:,.0f} ms; a name is claimed only once"
    try:
        trial.put_new(b"another")
        advice = "this store overwrites objects: two runs into one output would corrupt each other"
        return [*found, Finding("writing", told, "problem", advice)]
    except CorruptShard:  # the name is taken, as expected
        return [*found, Finding("writing", told)]
    finally:
        trial.delete()


def within(patience_s: float, what: str, work: Callable[[], list[Finding]]) -> list[Finding]:
    """Return the findings of `work`, or a problem if it does not answer within `patience_s` seconds."""
    found: list[Finding] = []
    done = threading.Event()

    def run() -> None:
        try:
            found.extend(work())
        except (HeadraceError, OSError) as error:
            found.append(_failed(error))
        finally:
            done.set()

    threading.Thread(target=run, name="headrace-doctor", daemon=True).start()
    if done.wait(patience_s):
        return found
    told = f"{what}: no answer in {patience_s:g} s"
    return [Finding("store", told, "problem", "check the endpoint, the network and its proxy, and the region")]


def _failed(error: Exception) -> Finding:
    what, _, advice = str(error).rpartition("; ")
    return Finding("store", what or advice, "problem", advice if what else "check the address and the credentials")
