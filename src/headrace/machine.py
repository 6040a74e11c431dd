"""Ask this machine about its kernel, its processes (by /proc, which Linux has) and its installed packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def boot_id() -> str:
    """A name of the running kernel from its start to its halt, the same in all its containers; "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def began(process: int) -> int | None:
    """Start of a process, in clock ticks since the kernel's. None: there is no such process, or only its remains,
    or nothing that says it.
    """
    try:
        state, *numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(numbers[18])
    except (OSError, ValueError, IndexError):
        return None


def library_version(name: str) -> str:
    """The version of an installed distribution; "unknown" where its metadata is missing, e.g. in a zipped copy."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
