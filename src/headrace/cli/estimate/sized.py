"""The files of a source with their sizes, asked for once: of objects in a store every question costs a request."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.engine.local import run_tasks
from headrace.storage.remote_path import RemotePath
from headrace.storage.verbs import stat

_STORE_THREADS = 32  # each waits for an answer


@dataclass(frozen=True)
class SizedFile:
    """A file of the source. name: in the run. size: in bytes, as it lies."""

    path: Path
    name: str
    size: int

    @property
    def pair(self) -> tuple[Path, str]:
        """The file as recipes know it."""
        return self.path, self.name

    def copy_to(self, target: Path) -> None:
        """Lay a local copy of it under another name."""
        if isinstance(self.path, RemotePath):
            self.path.store.fetch(self.path.key, target)
        else:
            shutil.copyfile(self.path, target)


def sized(files: Sequence[tuple[Path, str]]) -> list[SizedFile]:
    """The files with their sizes, in the same order."""
    facts = run_tasks([partial(stat, path) for path, _ in files], threads_for([path for path, _ in files]))
    return [SizedFile(path, name, fact.size) for (path, name), fact in zip(files, facts, strict=True)]


def threads_for(paths: Sequence[Path]) -> int:
    """How many files to ask for at a time."""
    return _STORE_THREADS if any(isinstance(path, RemotePath) for path in paths) else 1
