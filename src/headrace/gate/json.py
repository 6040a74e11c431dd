"""Read the JSON files of a run, a cache or a store, whoever wrote them.

A file has at most 64 MiB, one object, no repeated keys, no NaN, and at most 64 levels. What else a
reader expects of it, the reader checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.digest import loads, sha256_hex
from headrace.errors import CorruptShard, SettingsError
from headrace.gate import RESTORE
from headrace.storage.places import place_of

LARGEST = 64 << 20  # bytes; parsed, they take up to thirty times as much
DEEPEST = 64


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Parse a JSON object. Raises `ValueError`, and nothing else."""
    if len(data) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    try:
        record = loads(data)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep") from None
    if not isinstance(record, dict):
        raise ValueError(f"it is a {type(record).__name__}, not an object")
    level: list[Any] = [record]
    for _ in range(DEEPEST):
        level = _inside(level)
        if not level:
            return record
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def read_object(path: Path, *, sha256: str = "") -> dict[str, Any]:
    """Read a file with a JSON object, local or in a store. sha256: of its bytes, "" if they are not
    to be checked.

    Raises `CorruptShard`.
    """
    data = _find(path)
    if data is None:
        raise CorruptShard("is missing", path=path, remedy=RESTORE)
    if sha256 and sha256_hex(data) != sha256:
        raise CorruptShard("its bytes are not those that were published", path=path, remedy=RESTORE)
    with _naming(path):
        return parse_object(data)


def find_object(path: Path) -> dict[str, Any] | None:
    """Read a file with a JSON object, local or in a store; None if there is no file.

    Raises `CorruptShard`.
    """
    data = _find(path)
    if data is None:
        return None
    with _naming(path):
        return parse_object(data)


def _find(path: Path) -> bytes | None:
    """Read a file of at most `LARGEST` bytes; None if there is none."""
    with _naming(path):
        try:
            file = place_of(path)
            if file.stat().size > LARGEST:
                raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
            return file.read()
        except FileNotFoundError:
            return None


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise CorruptShard(f"cannot be read ({error})", path=path, remedy=RESTORE) from error


@contextmanager
def interpreting(path: Path) -> Iterator[None]:
    """Name the file if its facts, as the block uses them, are not those that are written there.

    For values that lack a key or have another type. Raises `CorruptShard`.
    """
    try:
        yield
    except (
        SettingsError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
    ) as error:
        raise CorruptShard(
            f"does not say what it should ({type(error).__name__}: {error})",
            path=path,
            remedy=RESTORE,
        ) from error


def _inside(values: list[Any]) -> list[Any]:
    """Return the objects and lists directly inside these."""
    inner: list[Any] = []
    for value in values:
        children = value.values() if isinstance(value, dict) else value
        inner += [child for child in children if isinstance(child, dict | list)]
    return inner
