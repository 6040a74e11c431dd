"""Store files on a local file system: the backend `LocalPlace`, and functions that only local files
need.

A name that is visible is whole: bytes go to a unique temporary name in the same directory, are
synced, and are then linked to their name without overwrite. Exactly one writer of a name wins; the
directory is synced by the caller once per batch of names (`sync_directory`), before anything refers
to them.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, BinaryIO, Literal

from headrace.digest import checksum_file, sha256_file
from headrace.errors import CorruptShard, StoreError
from headrace.storage.place import Fact, Put

if TYPE_CHECKING:
    import pyarrow as pa

TEMP_PREFIX = ".tmp-"

Sync = Literal["file", "none"]

# What a local path begins with that was made of an address: `s3:` of s3://bucket.
_LIKE_A_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_KEPT = "free space and run the same command again: finished shards are kept"
_CHOOSE = "choose another output directory"
_ADVICE = {  # problem and remedy
    errno.ENOSPC: ("the disk is full", _KEPT),
    errno.EDQUOT: ("the quota is used up", _KEPT),
    errno.EFBIG: ("the file would be larger than is allowed here", "raise the limit (ulimit -f)"),
    errno.EROFS: ("the file system is read-only", _CHOOSE),
    errno.EACCES: ("permission denied", "choose an output directory you may write to"),
    errno.EPERM: ("not permitted", "choose an output directory you may write to"),
    errno.ENOTDIR: ("a part of this path is a file", _CHOOSE),
}


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the enclosed writes into a `StoreError` that names the path and what to
    do.
    """
    try:
        yield
    except OSError as error:
        raise failed(path, error) from error


@contextmanager
def created(path: Path) -> Iterator[BinaryIO]:
    """Create a file; only opening and closing it is `storing`, as errors inside may be about a
    source.

    Closing writes what a buffer still holds, so on a full disk it fails again after a write that
    failed.
    """
    with storing(path):
        file = path.open("xb")
    try:
        yield file
    finally:
        with storing(path):
            file.close()


def failed(path: Path, error: Exception) -> StoreError:
    """Build the error for a failed write.

    Some libraries keep an error's text but not its number.
    """
    number = None
    if isinstance(error, OSError):
        number = error.errno
    if number is None:
        number = next((code for code in _ADVICE if os.strerror(code) in str(error)), 0)
    problem, remedy = _ADVICE.get(
        number, (f"cannot write ({error})", "check the disk and run again")
    )
    return StoreError(problem, path=path, remedy=remedy)


def make_directory(path: Path) -> Path:
    """Make a directory and its parents, durably; an existing one is fine."""
    with storing(path):
        missing = [directory for directory in (path, *path.parents) if not directory.exists()]
        for directory in missing:
            if _LIKE_A_SCHEME.fullmatch(directory.name):
                raise StoreError(
                    "is an address, not a local directory",
                    path=directory,
                    remedy="give a local path here",
                )
            if directory.is_symlink():
                raise StoreError(
                    f"is a link to {os.readlink(directory)}, which leads nowhere",
                    path=directory,
                    remedy="make that directory, or remove the link",
                )
        if path.exists() and not path.is_dir():
            raise StoreError(
                "is a file, where a directory belongs",
                path=path,
                remedy="move it away and run again",
            )
        path.mkdir(parents=True, exist_ok=True)
    for directory in missing:
        sync_directory(directory.parent)
    return path


def temporary_for(target: Path) -> Path:
    """Make a temporary name beside `target` that no other attempt uses, without creating
    the file.
    """
    return target.with_name(f"{TEMP_PREFIX}{target.name}-{secrets.token_hex(8)}")


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """Give a temporary name beside `target`. A file that still has it afterwards is removed."""
    temporary = temporary_for(target)
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def publish(
    temporary: Path,
    target: Path,
    *,
    sync: Sync = "file",
    announce: Callable[[str], None] = lambda step: None,
) -> Put:
    """Give a finished temporary file its name: synced, never overwriting; the temporary name is
    gone afterwards.

    sync="none" is for files that are checked against a digest before they are believed: they are
    not synced, so what a power failure left of them is replaced. `announce` hears "synced" and
    "linked". If `target` exists with the same bytes this is success (another attempt finished
    first): "kept".
    Raises `CorruptShard` if it exists with other bytes.
    """
    how: Put = "put"
    with storing(target):
        if sync == "file":
            sync_file(temporary)
        announce("synced")
        try:
            _link_new(temporary, target)
        except FileExistsError:
            if sync == "none":
                os.replace(temporary, target)
            elif sha256_file(temporary) != sha256_file(target):
                raise CorruptShard(
                    "exists with other bytes than this run makes; it is damaged or was made by"
                    " other library versions",
                    path=target,
                    remedy=(
                        f"delete {target.name} (or run `headrace gc --incomplete`) and run again"
                    ),
                ) from None
            else:
                how = "kept"
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        announce("linked")
    return how


def write_new(target: Path, data: bytes, *, sync: Sync = "file") -> Put:
    """Publish bytes under a name: see `publish`."""
    with storing(target), beside(target) as temporary:
        temporary.write_bytes(data)
        return publish(temporary, target, sync=sync)


def write_over(target: Path, data: bytes) -> None:
    """Write a file, whole or not at all; an older one of that name is replaced in one step."""
    make_directory(target.parent)
    with storing(target), beside(target) as temporary:
        temporary.write_bytes(data)
        replace(temporary, target)


def replace(temporary: Path, target: Path) -> None:
    """Give a finished temporary file its name, durably; a file of that name is replaced in one
    step.
    """
    with storing(target):
        sync_file(temporary)
        os.replace(temporary, target)
        sync_directory(target.parent)


def alias(existing: Path, target: Path) -> None:
    """Give a published file a second name: a hard link, or a copy where links are not possible.
    Its bytes are on the disk afterwards, as those of a published file are.

    Another file of that name is replaced in one step: it is what an earlier attempt called so.
    """
    with storing(target):
        if target.exists() and same_bytes(existing, target):
            return
        with beside(target) as temporary:
            try:
                os.link(existing, temporary)
            except OSError:
                shutil.copyfile(existing, temporary)
                sync_file(temporary)
            os.replace(temporary, target)


def same_bytes(one: Path, other: Path) -> bool:
    """Check whether two paths are one file, or have the same bytes."""
    if one.samefile(other):
        return True
    return one.stat().st_size == other.stat().st_size and sha256_file(one) == sha256_file(other)


def link_to(link: Path, text: str) -> None:
    """Make `link` a symbolic link with this text, replacing an older link in one step.

    The text is relative to the link's directory. Raises `StoreError` if `link` is a real file or
    directory.
    """
    if link.is_symlink():
        if os.readlink(link) == text:
            return
    elif link.exists():
        raise StoreError(
            "is not a link made by headrace", path=link, remedy="move it away and run again"
        )
    temporary = temporary_for(link)
    with storing(link):
        os.symlink(text, temporary)
        os.replace(temporary, link)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that its names survive a crash."""
    with storing(path):
        sync_file(path)


@contextmanager
def alone(
    lock: Path,
    *,
    others: Literal["wait", "skip"] = "wait",
    waiting: Callable[[], None] = lambda: None,
    patience_s: float = 5.0,
) -> Iterator[bool]:
    """Hold a lock file, or a directory as one; the kernel frees it when this process dies.

    Yields whether it is held.

    others: whether those that ask for it meanwhile wait, or go on without it. waiting: called once,
    in another thread, if the wait takes patience_s. A file system without locks lets everybody hold
    it. Raises `StoreError` if the file can be neither made nor opened.
    """
    acquired = True
    with storing(lock):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (
            PermissionError,
            IsADirectoryError,
        ):  # another user's lock file in a shared directory, or a directory
            descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                acquired = others == "wait"
                timer = Timer(patience_s, waiting)
                timer.daemon = True
                if acquired:
                    timer.start()
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX)
                    finally:
                        timer.cancel()
                        timer.join()
        yield acquired
    finally:
        with suppress(OSError):  # a child forked meanwhile has the descriptor too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def strays(root: Path) -> list[Path]:
    """List temporary files that unfinished attempts left below `root`, sorted."""
    result = []
    for directory, directories, names in os.walk(root):  # which passes over what vanishes
        for name in (*directories, *names):
            path = Path(directory, name)
            if name.startswith(TEMP_PREFIX) and (path.is_file() or path.is_symlink()):
                result.append(path)
    return sorted(result)


def sync_file(path: Path) -> None:
    """Sync the bytes of a file, or the names in a directory."""
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


class LocalPlace:
    """A path on a local file system. See `Place` for the promises."""

    reads: Literal["calls", "requests"] = "calls"
    parallel_reads = 1
    writes: Literal["in place", "whole files"] = "in place"
    has_links = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def absolute(self) -> Path:
        return Path(os.path.abspath(self.path))

    def real(self) -> Path:
        return Path(os.path.realpath(self.path))

    def matches(self) -> list[Path]:
        return [Path(match) for match in glob.glob(str(self.path), recursive=True)]

    def stat(self) -> Fact:
        return _fact(self.path.name, self.path.stat())

    def version(self, fact: Fact) -> int | str:
        return fact.mtime_ns

    def changed_ns(self, fact: Fact) -> int:
        return fact.mtime_ns

    def children(self) -> tuple[list[str], list[Fact]]:
        try:
            with os.scandir(self.path) as entries:
                visible = sorted(
                    (entry for entry in entries if not _is_hidden(entry.name)),
                    key=lambda entry: entry.name,
                )
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        files = []
        for entry in visible:
            with suppress(FileNotFoundError):  # deleted since it was listed
                if entry.is_file():
                    files.append(_fact(entry.name, entry.stat()))
        return [entry.name for entry in visible if entry.is_dir()], files

    def files_below(self) -> list[Fact]:
        files = (
            path for path in self.path.rglob("*") if path.is_file() and not _is_hidden(path.name)
        )
        return sorted(
            (_fact(path.relative_to(self.path).as_posix(), path.stat()) for path in files),
            key=lambda fact: fact.name,
        )

    def holds_any(self, names: Collection[str]) -> bool:
        return any((self.path / name).exists() for name in names)

    def read(self) -> bytes:
        if self.path.exists() and not self.path.is_file():
            raise CorruptShard("is not a regular file", path=self.path, remedy="delete it")
        return self.path.read_bytes()

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self.path.open("rb") as file:
            return _ranges_of(file, ranges)

    def read_covering(
        self, ranges: Sequence[tuple[int, int]], fact: Fact
    ) -> list[tuple[int, memoryview]]:
        ordered = sorted(range_ for range_ in ranges if range_[0] < range_[1])
        with self.open(fact) as file:
            chunks = _ranges_of(file, ordered)
        return [(start, memoryview(data)) for (start, _), data in zip(ordered, chunks, strict=True)]

    def tail(self, size: int) -> tuple[Fact, memoryview]:
        fact = self.stat()
        with self.open(fact) as file:
            file.seek(max(0, fact.size - size))
            return fact, memoryview(file.read())

    def open(self, fact: Fact, known: Sequence[tuple[int, memoryview]] = ()) -> BinaryIO:  # noqa: ARG002 - as in Place
        file = self.path.open("rb")
        now = _fact(fact.name, os.fstat(file.fileno()))
        if now != fact:
            file.close()
            raise CorruptShard(
                "was replaced while it was read",
                path=self.path,
                remedy="restore it or open the dataset again",
            )
        return file

    def arrow_stream(self) -> pa.NativeFile:
        import pyarrow as pa

        return pa.OSFile(str(self.path))

    def checksum(self) -> str:
        return checksum_file(self.path)

    def fetch(self, target: Path) -> None:
        self.path.stat()  # raises for a file that is missing, which is not the target's failure
        with storing(target):
            shutil.copyfile(self.path, target)

    def local_copy(self) -> AbstractContextManager[Path]:
        return nullcontext(self.path)

    def local_tree(self) -> AbstractContextManager[Path]:
        return nullcontext(self.path)

    def put_new(self, source: Path | bytes) -> Put:
        make_directory(self.path.parent)
        how = write_new(self.path, source.read_bytes() if isinstance(source, Path) else source)
        sync_directory(self.path.parent)
        return how

    def replace(self, data: bytes) -> None:
        write_over(self.path, data)

    def alias(self, target: Path) -> None:
        make_directory(target.parent)
        alias(self.path, target)

    def delete(self) -> None:
        with storing(self.path):
            self.path.unlink(missing_ok=True)

    def delete_below(self) -> int | None:
        if not self.path.is_dir():
            return None
        size = 0
        for directory, _, names in os.walk(self.path):
            for name in names:
                with suppress(FileNotFoundError):
                    size += os.stat(os.path.join(directory, name)).st_size
        with storing(self.path):
            while self.path.is_dir():
                with suppress(FileNotFoundError):  # another process deletes it too
                    shutil.rmtree(self.path)
        return size

    def sweep(self, older_than_s: float | None = None) -> None:
        with suppress(OSError):
            for stray in self.path.parent.glob(f"{TEMP_PREFIX}{glob.escape(self.path.name)}-*"):
                if older_than_s is None or time.time() - stray.stat().st_mtime > older_than_s:
                    stray.unlink(missing_ok=True)


def _is_hidden(name: str) -> bool:
    return name.startswith(TEMP_PREFIX)


def _fact(name: str, stat: os.stat_result) -> Fact:
    if stat.st_dev in _fuse_devices():
        inode = 0
    else:
        inode = stat.st_ino
    return Fact(
        name, stat.st_size, stat.st_mtime_ns, f"{inode}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"
    )


@cache
def _fuse_devices() -> frozenset[int]:
    """List devices of FUSE mounts (gcsfuse, sshfs), which may renumber a file that the kernel has
    forgotten.
    """
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return frozenset()
    numbers = []
    for mount in mounts:
        if mount[mount.index("-") + 1].startswith("fuse"):
            numbers.append(mount[2].split(":"))
    return frozenset(os.makedev(int(major), int(minor)) for major, minor in numbers)


def _ranges_of(file: BinaryIO, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read ranges.

    One may name far more bytes than there are, so the end of the file bounds each read.
    """
    size = os.fstat(file.fileno()).st_size
    chunks = []
    for start, stop in ranges:
        file.seek(min(start, size))
        chunks.append(file.read(max(0, min(stop, size) - start)))
    return chunks
