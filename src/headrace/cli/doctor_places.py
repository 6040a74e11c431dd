"""Try what a directory or a bucket can do: whether it answers, may be written, and keeps what headrace relies on."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headrace.cli.doctor import Finding
from headrace.errors import CorruptShard, HeadraceError
from headrace.storage.places import expanded, is_address, path_of, place_of

_SLOW_SYNC_MS = 50.0
_PATIENCE_S = 30.0  # for a store that does not answer
_SYNCS = 5
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "gluster", "9p", "afs", "fuse.", "virtiofs")
_OF_A_NETWORK = "of a network: keep it mounted alike on all machines, and runs that make one output together on one"
_NO_LOCKS = "two runs into one output are not kept apart here; start one at a time"
_SLOW_SYNC = "each shard is synced before it counts as done: give runs of many small shards a larger shard size"
_MOUNTS = Path("/proc/self/mountinfo")


def look_at(place: str) -> list[Finding]:
    """Say all there is to say of a place. Small files are written and deleted again."""
    if not is_address(place):
        return directory(expanded(Path(place)))
    try:
        path = path_of(place)
        return within(_PATIENCE_S, str(path), lambda: store(path))
    except HeadraceError as error:
        return [_failed(error)]


def directory(out: Path) -> list[Finding]:
    """Try whether a run can be written there, or data read: names, links, locks, syncing, room; which file system."""
    standing = next(each for each in (out.absolute(), *out.absolute().parents) if each.exists())
    if not standing.is_dir():
        return [Finding("place", f"{standing}: is a file", "problem", "give a directory")]
    try:
        found = [
            Finding("place", f"{standing}: {shutil.disk_usage(standing).free / 1e9:,.1f} GB free"),
            *_tried(standing),
        ]
    except PermissionError as error:
        found = [Finding("place", f"{standing}: {error.strerror}", "problem", "choose a directory you may write to")]
        if out.exists() and os.access(out, os.R_OK):
            told = f"{out}: may be read and not written ({error.strerror})"
            found = [Finding("place", told, "note", "data may lie here; runs need another directory")]
    except OSError as error:
        advice = "mend the file system, or choose another"
        found = [Finding("place", f"{standing}: {error.strerror}", "problem", advice)]
    kind = file_system(standing) or "unknown"
    network = kind.startswith(_NETWORK)
    return [*found, Finding("file system", kind, "note" if network else "ok", _OF_A_NETWORK if network else "")]


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
        slow = middle > _SLOW_SYNC_MS
        sync = Finding("fsync", f"{middle:,.1f} ms", "note" if slow else "ok", _SLOW_SYNC if slow else "")
        return [links, _locks(file), sync]


def _locks(file: Path) -> Finding:
    """Two openings of a file: a lock of the one keeps the other out, as two processes of a run are kept apart."""
    with file.open("rb") as first, file.open("rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return Finding("locks", f"none ({error.strerror})", "note", _NO_LOCKS)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return Finding("locks", "hold")
    return Finding("locks", "do not hold", "note", _NO_LOCKS)


def file_system(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the type of the file system that holds a path; None where nothing tells. mounts: as Linux lists them."""
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
        if real.is_relative_to(point) and len(point.parts) >= best:  # of mounts on one point the last one counts
            best, found = len(point.parts), right.split()[0]
    return found


def store(path: Path) -> list[Finding]:
    """Try whether a bucket answers, and whether new objects can be put there without replacing others."""
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
        return [*found, Finding("writing", f"refused: {error}", "note", "data may lie here; runs need another place")]
    told = f"an object in {took:,.0f} ms, names are claimed once"
    try:
        trial.put_new(b"another")
        advice = "this store replaces objects: two runs into one output would spoil each other"
        return [*found, Finding("writing", told, "problem", advice)]
    except CorruptShard:  # the name is taken, as it should be
        return [*found, Finding("writing", told)]
    finally:
        trial.delete()


def within(patience_s: float, what: str, work: Callable[[], list[Finding]]) -> list[Finding]:
    """Return what the work finds, or that there was no answer in so many seconds."""
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
