"""Places that are too small, read-only, or not permitted; what a child does in them.

A small disk is a tmpfs in a mount namespace that only the child has, so that nothing stays mounted. Where that is not
allowed the limit on the size of a file stands in for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
from pathlib import Path

from fault_recipes import Settings, make

from headrace.errors import HeadraceError, StoreError
from headrace.storage.local import TEMP_PREFIX
from tables import digests

_NEW_NAMESPACE, _PRIVATE, _READ_ONLY, _REMOUNT = 0x20000, (1 << 18) | 16384, 1, 32
NOBODY = 65534


def mount(place: Path, size: int, flags: int = 0) -> bool:
    """A tmpfs of so many bytes for this process alone. False where this is not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not flags and (
        libc.unshare(_NEW_NAMESPACE) or libc.mount(b"none", b"/", None, _PRIVATE, None)
    ):
        return False
    return not libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", flags, f"size={size}".encode())


def child(
    name: str, settings: Settings, directory: str, size: int, expected: dict[str, str]
) -> None:
    """Prepare on a disk of so many bytes; then with room, on the same files. Prints which kind of disk it was."""
    place = Path(directory)
    out = place / "out"
    mounted = mount(place, size)
    if not mounted:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    print("tmpfs" if mounted else "file size", flush=True)
    try:
        make(name, settings, out)
        print("fits")
    except StoreError as error:
        full = "the disk is full" if mounted else "larger than is allowed here"
        assert str(error).startswith(str(place)), error  # noqa: PT017 - a child has no pytest
        assert full in str(error), error  # noqa: PT017 - a child has no pytest
        print("full")
    left = list(out.rglob(f"{TEMP_PREFIX}*"))
    assert not left, left
    for path in out.glob("runs/*/receipts/*.json"):
        for each in json.loads(path.read_bytes())["files"]:
            whole = path.parents[1] / each["path"]
            assert not whole.exists() or whole.stat().st_size == each["bytes"], whole
    if mounted:  # the same files, with more room
        assert mount(place, 1 << 30, _REMOUNT)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert digests(make(name, settings, out).run) == expected


def unwritable(name: str, settings: Settings, directory: str, why: str) -> None:
    """Prepare where nothing can be written: on a read-only tmpfs, or as nobody in root's directory."""
    place = Path(directory)
    if why == "read-only":
        if not (mount(place, 1 << 20) and mount(place, 1 << 20, _REMOUNT | _READ_ONLY)):
            print("cannot mount")
            return
    elif os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    else:
        place.chmod(0o500)
    try:
        make(name, settings, place / "out")
    except HeadraceError as error:
        assert isinstance(error, StoreError), error  # noqa: PT017 - a child has no pytest
        assert str(error).startswith(str(place)), error  # noqa: PT017 - a child has no pytest
        print(
            "read-only"
            if "read-only" in str(error)
            else "permission"
            if "permission denied" in str(error)
            else error
        )
    assert not list(place.iterdir())
