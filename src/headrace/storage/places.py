"""Paths from texts, and the backend that each path belongs to.

Only this module tells backends apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import cast
from urllib.parse import unquote

from headrace.credentials import refuse_credentials
from headrace.errors import SettingsError
from headrace.storage.bucket import SCHEMES
from headrace.storage.local import LocalPlace
from headrace.storage.object_store import ObjectPath, ObjectPlace
from headrace.storage.place import Place

# a scheme, or a Windows drive; `Path` merges slashes
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?:/+|\\)")


def place_of(path: PurePath) -> Place:
    """Return the path with the backend that it belongs to."""
    if isinstance(path, ObjectPath):
        return ObjectPlace(path)
    return LocalPlace(cast("Path", path))


def parallel_reads(paths: Iterable[PurePath]) -> int:
    """Return how many of these files are worth reading at a time."""
    return max((place_of(path).parallel_reads for path in paths), default=1)


def path_of(address: str | PurePath) -> Path:
    """Make a local path, or a path in an object store, of a text or of a `Path` that was made of
    one.

    `~` is the home directory and file:// a local path. Raises `SettingsError` for every other
    scheme, and for addresses with credentials or a query in them, which would end up in logs.
    """
    if isinstance(address, ObjectPath):
        return cast("Path", address)
    if not isinstance(address, str | os.PathLike):
        raise SettingsError(f"{address!r} is not a path", remedy="give a text or a pathlib.Path")
    refuse_credentials(address)
    text = str(address)
    match = _ADDRESS.match(text)
    if match is None:
        return Path(os.path.expanduser(text))
    scheme = match[1].lower()
    remainder = text[match.end() :]
    if scheme == "file":
        return _path_of_file_address(text, remainder)
    if scheme not in SCHEMES:
        if len(scheme) == 1:
            what = f"drive {match[1]}:"
        else:
            what = f"{scheme}://"
        raise SettingsError(
            f"{what} is not a place headrace reads or writes",
            remedy=f"give a local path, or {', '.join(SCHEMES)}://",
        )
    name, _, key = remainder.partition("/")
    secrets = [word for word in ("?X-", "?sig=", "?sv=") if word in remainder]
    if not name or "@" in name or ":" in name or secrets:
        raise SettingsError(
            f"{scheme}:// address: has"
            f" {('no bucket' if not name else 'credentials or a query in it')}",
            remedy=f"give {scheme}://BUCKET/KEY and leave credentials to the environment",
        )
    if any(part in (".", "..") for part in key.split("/")):
        raise SettingsError(
            f"{scheme}://{remainder}: has . or .. in it", remedy="give the key as it is"
        )
    return cast("Path", ObjectPath(f"{scheme}:", name, key))


def _path_of_file_address(text: str, remainder: str) -> Path:
    """Make a local path of file:///PATH or file://localhost/PATH."""
    host, _, below = remainder.partition("/")
    if text[5:8] == "///":
        return Path("/" + unquote(remainder))
    if text[5:7] == "//" and host == "localhost":
        return Path("/" + unquote(below))
    raise SettingsError(  # a `Path` no longer tells a host from a directory
        "file:// address: may name a host", remedy="give the path as it is on this machine"
    )


def local_path_of(address: str | PurePath, name: str) -> Path:
    """Make a path that must be local. Raises `SettingsError`, which names the setting."""
    path: PurePath = path_of(address)
    if isinstance(path, ObjectPath):
        raise SettingsError(
            "it is in an object store", setting=name, value=str(path), remedy="give a local path"
        )
    return Path(path)


def is_address(text: str) -> bool:
    """Check whether a text is an address in an object store."""
    match = _ADDRESS.match(text)
    return match is not None and match[1].lower() in SCHEMES


def expanded(path: PurePath) -> Path:
    """Replace `~` by the home directory; unchanged if there is no such user, and in a store."""
    if isinstance(path, ObjectPath):
        return cast("Path", path)
    return Path(os.path.expanduser(path))
