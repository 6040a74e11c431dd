"""Files on a local file system: publish whole, publish once.

A name that is visible is whole: bytes go to a unique temporary name in the same directory, are synced, and are then
linked to their name without overwrite. Exactly one writer of a name wins; the directory is synced by the caller once
per batch of names (`sync_directory`), before anything refers to them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import BinaryIO, Literal

from headrace.digest import sha256_file
from headrace.errors import CorruptShard, StoreError

TEMP_PREFIX = ".tmp-"

Sync = Literal["file", "none"]
Existing = Literal["compare", "replace"]

# What a local path begins with that was made of an address: `s3:` of s3://bucket.
_LIKE_A_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ADVICE = {
    errno.ENOSPC: "the disk is full; free space and run the same command again: finished shards are kept",
    errno.EDQUOT: "the quota is used up; free space and run the same command again: finished shards are kept",
    errno.EFBIG: "the file would be larger than is allowed here; raise the limit (ulimit -f)",
    errno.EROFS: "the file system is read-only; choose another output directory",
    errno.EACCES: "permission denied; choose an output directory you may write to",
    errno.EPERM: "not permitted; choose an output directory you may write to",
    errno.ENOTDIR: "a part of this path is a file; choose another output directory",
}


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the enclosed writes into a `StoreError` that names the path and what to do."""
    try:
        yield
    except OSError as error:
        raise failed(path, error) from error


@contextmanager
def created(path: Path) -> Iterator[BinaryIO]:
    """A new file, in whose block only what opens and closes it is `storing`: the rest may be about a source.

    Closing writes what a buffer still holds, so on a full disk it fails again after a write that failed.
    """
    with storing(path):
        file = path.open("xb")
    try:
        yield file
    finally:
        with storing(path):
            file.close()


def failed(path: Path, error: Exception) -> StoreError:
    """What to raise for a write that failed. Some libraries tell an error's words, not its number."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        number = next((each for each in _ADVICE if os.strerror(each) in str(error)), 0)
    advice = _ADVICE.get(number)
    if advice is None:
        return StoreError(f"{path}: cannot write ({error}); check the disk and run again")
    return StoreError(f"{path}: {advice}")


def make_directory(path: Path) -> Path:
    """Make a directory and its parents, durably; an existing one is fine."""
    with storing(path):
        missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in missing:
        if _LIKE_A_SCHEME.fullmatch(each.name):
            raise StoreError(f"{each}: is an address, not a local directory; give a local path here")
    with storing(path):
        path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)
    return path


def temporary_for(target: Path) -> Path:
    """A name beside `target` that no other attempt uses. Not created."""
    return target.with_name(f"{TEMP_PREFIX}{target.name}-{secrets.token_hex(8)}")


def publish(
    temporary: Path,
    target: Path,
    *,
    sync: Sync = "file",
    existing: Existing | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Give a finished temporary file its name: synced, never overwriting; the temporary name is gone afterwards.

    sync="none" is for files that are checked against a digest before they are believed: they are not synced, so what
    a power failure left of them is replaced; existing="replace" does that for synced files. `announce` hears "synced"
    and "linked". If `target` exists with the same bytes this is success (another attempt finished first). Raises
    `CorruptShard` if it exists with other bytes.
    """
    announce = announce or (lambda step: None)
    with storing(target):
        if sync == "file":
            _sync(temporary)
        announce("synced")
        try:
            _link_new(temporary, target)
        except FileExistsError:
            if (existing or ("replace" if sync == "none" else "compare")) == "replace":
                os.replace(temporary, target)
            elif sha256_file(temporary) != sha256_file(target):
                raise CorruptShard(
                    f"{target}: exists with other bytes than this run makes; it is damaged or was made by other "
                    f"library versions; delete {target.name} (or run `headrace gc --incomplete`) and run again"
                ) from None
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        announce("linked")


def write_new(target: Path, data: bytes, *, sync: Sync = "file") -> None:
    """Publish bytes under a name: see `publish`."""
    temporary = temporary_for(target)
    try:
        with storing(target):
            temporary.write_bytes(data)
        publish(temporary, target, sync=sync)
    finally:
        with suppress(OSError):
            temporary.unlink()


def replace(temporary: Path, target: Path) -> None:
    """Give a finished temporary file its name, durably; a file of that name is replaced in one step."""
    with storing(target):
        _sync(temporary)
        os.replace(temporary, target)
        sync_directory(target.parent)


def alias(existing: Path, target: Path) -> None:
    """Give a published file a second name: a hard link, or a copy where links are not possible.

    Another file of that name is replaced in one step: it is what an earlier attempt called so.
    """
    with storing(target):
        if target.exists() and same_bytes(existing, target):
            return
        temporary = temporary_for(target)
        try:
            try:
                os.link(existing, temporary)
            except OSError:
                shutil.copyfile(existing, temporary)
                _sync(temporary)
            os.replace(temporary, target)
        finally:
            with suppress(OSError):
                temporary.unlink()


def same_bytes(one: Path, other: Path) -> bool:
    """Whether two files are one, or have the same bytes."""
    if one.samefile(other):
        return True
    return one.stat().st_size == other.stat().st_size and sha256_file(one) == sha256_file(other)


def link_to(link: Path, text: str) -> None:
    """Make `link` a symbolic link with this text, replacing an older link in one step.

    The text is relative to the link's directory. Raises `StoreError` if `link` is a real file or directory.
    """
    if link.is_symlink():
        if os.readlink(link) == text:
            return
    elif link.exists():
        raise StoreError(f"{link}: is not a link made by headrace; move it away and run again")
    temporary = temporary_for(link)
    with storing(link):
        os.symlink(text, temporary)
        os.replace(temporary, link)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    with storing(path):
        _sync(path)


@contextmanager
def alone(lock: Path, *, waiting: Callable[[], None] = lambda: None, patience_s: float = 5.0) -> Iterator[None]:
    """Hold a lock file, which the others that ask for it wait for; the kernel frees it when this process dies.

    waiting: called once, in another thread, if the wait takes patience_s. A file system without locks makes nobody
    wait. Raises `StoreError` if the file can be neither made nor opened.
    """
    with storing(lock):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except PermissionError:  # another user's lock file in a shared directory
            descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                timer = Timer(patience_s, waiting)
                timer.daemon = True
                timer.start()
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                finally:
                    timer.cancel()
                    timer.join()
        yield
    finally:
        with suppress(OSError):  # a child forked meanwhile has the descriptor too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def strays(root: Path) -> list[Path]:
    """Temporary files that unfinished attempts left below `root`, sorted."""
    return sorted(path for path in root.rglob(f"{TEMP_PREFIX}*") if path.is_file() or path.is_symlink())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link_new(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        # A file system without hard links: claim the name exclusively, then move over the claim.
        claim = target.with_name(f"{TEMP_PREFIX}{target.name}-claim")
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            if target.exists():
                raise FileExistsError(errno.EEXIST, "exists", str(target))
            os.rename(temporary, target)
        finally:
            claim.unlink()
