"""A local file of an object's bytes, for readers that map files or take names only."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.storage.remote_path import RemotePath


@contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """The file itself, or a copy of the object of the same name, which is removed afterwards.

    Copies take the room of the object in the directory for temporary files. Raises `FileNotFoundError`, `StoreError`.
    """
    if not isinstance(path, RemotePath):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        place = Path(directory) / path.name
        path.store.fetch(path.key, place)
        yield place
