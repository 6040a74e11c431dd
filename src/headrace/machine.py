"""Read facts about this machine: its kernel, its processes (from /proc, on Linux) and its installed
packages.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = ("headrace", "pyarrow", "polars", "numpy")  # decide which bytes are written


def boot_id() -> str:
    """Return an id of this boot of the kernel, the same in all its containers; "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def began(process: int) -> int | None:
    """Return when a process started, in clock ticks since boot.

    None if there is no such process, it is a zombie, or /proc is missing.
    """
    try:
        state, *numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        if state in "ZX":
            return None
        return int(numbers[18])
    except (OSError, ValueError, IndexError):
        return None


def library_version(name: str) -> str:
    """Return the version of an installed distribution; "unknown" if its metadata is missing, as in
    a zipped copy.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
