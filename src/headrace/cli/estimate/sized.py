"""The files of a source with their sizes, asked for once: of objects in a store every question costs a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.engine.local import run_tasks
from headrace.storage.places import parallel_reads, place_of


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


def sized(files: Sequence[tuple[Path, str]]) -> list[SizedFile]:
    """The files with their sizes, in the same order."""
    facts = run_tasks([place_of(path).stat for path, _ in files], parallel_reads(path for path, _ in files))
    return [SizedFile(path, name, fact.size) for (path, name), fact in zip(files, facts, strict=True)]
