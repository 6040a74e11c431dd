"""What this machine lends a process: cores, memory, open files, shared memory, room for temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from headrace.cli.doctor.finding import Finding

_LEAST_FILES, _LEAST_SHARED, _LEAST_TEMPORARY = 1024, 64 << 20, 1 << 30
_CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """The cores that this process may use: those it is bound to, less where a container has a share of them."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _quota()
    return bound if share is None else max(1, min(bound, int(share)))


def limits() -> list[Finding]:
    """Cores, memory, open files, shared memory and room for temporary files, as far as this system tells."""
    all_cores = os.cpu_count() or 1
    less = f" of {all_cores}" if cores() < all_cores else ""
    found = [Finding("cores", f"{cores()}{less}")]
    try:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        few = 0 <= files < _LEAST_FILES
        advice = "many shards are open at once; raise it with ulimit -n 4096" if few else ""
        found.append(Finding("open files", f"at most {files:,}", "problem" if few else "ok", advice))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = _number(_CGROUP / "memory.max")
        told = f"{memory / 1e9:,.1f} GB"
        if limit is not None and limit < memory:
            told = f"{limit / 1e9:,.1f} GB for this container, of {told}"
        found.append(Finding("memory", told))
    except (ImportError, OSError, ValueError):
        pass  # not a POSIX system
    shared = Path("/dev/shm")
    if shared.is_dir():
        room = shutil.disk_usage(shared).total
        small = room < _LEAST_SHARED
        advice = "DataLoader workers pass batches through it; docker run --shm-size=1g" if small else ""
        found.append(Finding("shared memory", f"{room / 1e6:,.0f} MB", "problem" if small else "ok", advice))
    temporary = tempfile.gettempdir()
    free = shutil.disk_usage(temporary).free
    little = free < _LEAST_TEMPORARY
    advice = "series and samples are kept there for a while; set TMPDIR to a place with room" if little else ""
    found.append(Finding("temporary", f"{temporary}: {free / 1e9:,.1f} GB free", "note" if little else "ok", advice))
    return found


def _quota() -> float | None:
    """How many cores' time a container may use; None where nothing says so."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
