"""Paths in an object store: `s3://bucket/key`, `gs://bucket/key`, `az://container/key`.

A `RemotePath` is a `Path` whose reading verbs go to the store: it joins, compares, sorts and pickles as paths do, and
`stat`, `open("rb")`, `exists`, `iterdir` and `glob` answer for objects. Every other verb of `Path` asks for a name on
the local file system first (`os.fspath`), and that is refused with an error, so nothing is done to a local file by
mistake. A directory is a prefix: it is there while an object is below it. There are no links.

Writing has one verb, `headrace.storage.verbs.put_new`: objects appear whole or not at all.
"""

from __future__ import annotations

import io
import os
import re
import stat as modes
from collections.abc import Generator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath, PurePath
from typing import Any, cast
from urllib.parse import unquote

import xxhash

from headrace.credentials import refuse_credentials
from headrace.errors import SettingsError, StoreError
from headrace.storage import object_store
from headrace.storage.object_store import Fact, ObjectStore
from headrace.storage.remote_file import RemoteFile

SCHEMES = ("s3", "gs", "az")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?:/+|\\)")  # a scheme, or a Windows drive; `Path` merges slashes


class RemotePath(PosixPath):
    """An object, or a prefix of objects. Made by `path_of`."""

    # Names

    def as_posix(self) -> str:
        parts = self.parts
        if not parts or not self._is_whole:
            return "/".join(parts) or "."
        return f"{parts[0]}//{'/'.join(parts[1:])}"

    def __str__(self) -> str:
        return self.as_posix()

    def __fspath__(self) -> str:
        raise StoreError(f"{self}: is in an object store, and this step needs a local file; copy it to a disk first")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.parts)

    @property
    def _is_whole(self) -> bool:
        """Whether it has a scheme; what `relative_to` gives has none."""
        return self.parts[0].removesuffix(":") in SCHEMES and self.parts[0].endswith(":")

    @property
    def key(self) -> str:
        """The name inside the bucket; "" for the bucket itself."""
        return "/".join(self.parts[2:])

    @property
    def store(self) -> ObjectStore:
        """The bucket."""
        return object_store.bucket(self.parts[0].removesuffix(":"), self.parts[1])

    def is_absolute(self) -> bool:
        return bool(self.parts) and self._is_whole

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: ARG002 - as in Path
        return self

    def expanduser(self) -> RemotePath:
        return self

    # What is there

    def fact(self) -> Fact:
        """Size, time and tag of the object. Raises `FileNotFoundError`."""
        return self.store.head(self.key)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - as in Path
        """Size and time of the object; the inode is a hash of its tag, so that another object is another one."""
        return as_stat(self.fact())

    def lstat(self) -> os.stat_result:
        return self.stat()

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as in Path
        return self.is_file() or self.is_dir()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as in Path
        try:
            return bool(self.key) and self.fact() is not None
        except FileNotFoundError:
            return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as in Path
        return self.store.holds_any(self.key)

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Generator[RemotePath, None, None]:
        """What lies directly below: objects and prefixes, sorted."""
        prefixes, facts = self.store.children(self.key)
        yield from (self / name for name in sorted({*prefixes, *(fact.name for fact in facts)}))

    def below(self) -> list[tuple[RemotePath, Fact]]:
        """Every object below this prefix, with its facts, sorted by name."""
        return [(self / fact.name, fact) for fact in self.store.below(self.key)]

    def glob(self, pattern: str, **_: Any) -> Generator[RemotePath, None, None]:
        """Objects whose names below this prefix match, sorted; "**" is any number of parts."""
        wanted = [*PurePath(pattern).parts]
        yield from (path for path, fact in self.below() if matches(fact.name.split("/"), wanted))

    def rglob(self, pattern: str, **_: Any) -> Generator[RemotePath, None, None]:
        yield from self.glob(f"**/{pattern}")

    def walk(self, *_: Any, **__: Any) -> Any:
        """Not here: `glob`, `iterdir` and `below` are."""
        return os.fspath(self)

    # Bytes

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """The object for reading ("rb" or "r"), with seeking; bytes are fetched as they are asked for."""
        if mode not in ("r", "rb", "rt"):
            raise StoreError(f"{self}: objects are not opened for writing (mode {mode!r}); publish whole files")
        fact = self.fact()
        raw = RemoteFile(self.store, self.key, fact)
        return raw if mode == "rb" else io.TextIOWrapper(io.BufferedReader(cast("io.RawIOBase", raw)), "utf-8")

    def read_bytes(self) -> bytes:
        return self.store.read(self.key)

    def read_text(self, encoding: str | None = None, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object. What is not there is not told apart by stores."""
        if not missing_ok:
            self.fact()
        self.store.delete([self.key])


def path_of(place: str | Path) -> Path:
    """A local path, or a path in an object store, from a text or from a `Path` that was made of one.

    `~` is the home directory and file:// a local path. Raises `SettingsError` for every other scheme, and for
    addresses with credentials or a query in them, which would end up in logs.
    """
    if isinstance(place, RemotePath):
        return place
    refuse_credentials(place)
    text = str(place)
    match = _ADDRESS.match(text)
    if match is None:
        return Path(os.path.expanduser(text))
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme == "file":
        return _local_address(text, rest)
    if scheme not in SCHEMES:
        what = f"drive {match[1]}:" if len(scheme) == 1 else f"{scheme}://"
        raise SettingsError(
            f"{what} is not a place headrace reads or writes; give a local path, or {', '.join(SCHEMES)}://"
        )
    name, _, key = rest.partition("/")
    if not name or "@" in name or ":" in name or "?X-" in rest or "?sig=" in rest or "?sv=" in rest:
        raise SettingsError(
            f"{scheme}:// address: has {'no bucket' if not name else 'credentials or a query in it'}; give"
            f" {scheme}://BUCKET/KEY and leave credentials to the environment"
        )
    if any(part in (".", "..") for part in key.split("/")):
        raise SettingsError(f"{scheme}://{rest}: has . or .. in it; give the key as it is")
    return RemotePath(f"{scheme}:", name, key)


def local_path_of(place: str | Path, what: str) -> Path:
    """The same of a path that must be local. what: the setting or option, for the message. Raises `SettingsError`."""
    path = path_of(place)
    if isinstance(path, RemotePath):
        raise SettingsError(f"{what} is {path}, in an object store; give a local path")
    return path


def _local_address(text: str, rest: str) -> Path:
    """The path of file:///path or file://localhost/path. A `Path` has lost what tells a host from a directory."""
    host, _, below = rest.partition("/")
    if text[5:8] == "///":
        return Path("/" + unquote(rest))
    if text[5:7] == "//" and host == "localhost":
        return Path("/" + unquote(below))
    raise SettingsError("file:// address: may name a host; give the path as it is on this machine")


def expanded(path: Path) -> Path:
    """The path with `~` replaced by the home directory; unchanged where there is no such user, and in a store."""
    return path if isinstance(path, RemotePath) else Path(os.path.expanduser(path))


def is_remote(place: str | Path) -> bool:
    """Whether a place is in an object store."""
    match = _ADDRESS.match(str(place))
    return isinstance(place, RemotePath) or (match is not None and match[1].lower() in SCHEMES)


def as_stat(fact: Fact) -> os.stat_result:
    """An object's facts in the form of a file's.

    Stores tell whole seconds, so the nanoseconds of the time are made of the tag: another object has another time.
    Some stores tell a tag with quotes in one answer and without them in another.
    """
    seconds = fact.mtime_ns // 1_000_000_000
    tag = xxhash.xxh3_64_intdigest(fact.etag.strip('"').encode()) >> 1
    changed_ns = seconds * 1_000_000_000 + tag % 1_000_000_000
    return os.stat_result(
        (modes.S_IFREG | 0o644, tag, 0, 1, 0, 0, fact.size, seconds, seconds, seconds),
        {"st_mtime_ns": changed_ns, "st_mtime": changed_ns / 1e9},
    )


def matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the parts of a name are those of a pattern; "**" stands for any number of parts."""
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(matches(parts[skip:], wanted[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and matches(parts[1:], wanted[1:])
