"""Local files of objects' bytes, for readers that map files or take names only."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from headrace.storage.remote_path import RemotePath

_THREADS = 8


@contextmanager
def local_tree(path: Path) -> Iterator[Path]:
    """The directory itself, or a copy of all objects below the prefix, which is removed afterwards.

    Takes the room of all of them in the directory for temporary files. Raises `StoreError`.
    """
    if not isinstance(path, RemotePath):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        root = Path(directory) / path.name

        def fetch(name: str) -> None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            path.store.fetch((path / name).key, root / name)

        with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-get") as pool:
            list(pool.map(fetch, [fact.name for fact in path.store.below(path.key)]))
        yield root


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
