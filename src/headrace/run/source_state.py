"""The state of the source when a run began, and whether it is still the same: a run is of one moment of its source.

Size and modification time are part of the run's identity, and whoever rewrites a file can set both back. Nobody can set
back the time of change (ctime) or choose the inode; in an object store the tag tells versions apart. So both are
compared before and after each task and once more before the manifest. One `stat` a file costs less than opening it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from headrace.digest import canonical_json
from headrace.engine.local import run_tasks
from headrace.errors import InputError
from headrace.storage import local
from headrace.storage.place import Fact
from headrace.storage.places import parallel_reads, place_of

Found = TypeVar("Found")

_BEGUN = "source.json"


@dataclass(frozen=True)
class SourceState:
    """Path → size, times and tag of each file of the source when the run began."""

    facts: Mapping[Path, Fact]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> SourceState:
        """Look at these files. Raises `InputError` for one that is not there."""
        return cls(dict(zip(paths, _facts(paths, _present), strict=True)))

    def part(self, paths: Iterable[Path]) -> SourceState:
        """The state of some files only; paths that are not of the source are left out."""
        return SourceState({path: self.facts[path] for path in paths if path in self.facts})

    def check(self) -> None:
        """Raise `InputError` that names the first file that is not what it was."""
        paths = list(self.facts)
        for path, now in zip(paths, _facts(paths, _now), strict=True):
            if now is None or now != self.facts[path]:
                raise InputError(f"{path}: {_difference(self.facts[path], now)}")

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check before and after the enclosed work, and where it fails: a change explains the error."""
        self.check()
        try:
            yield
        except Exception:
            self.check()
            raise
        self.check()


def keep_beginning(stage: Path, state: SourceState, files: Sequence[tuple[Path, str]]) -> None:
    """Keep the state with which a run begins, beside its intermediate files, or compare it with the one kept.

    Receipts of an earlier attempt are of the source as it was then. Raises `InputError` if it is another one now.
    """
    facts = [(name, state.facts[path]) for path, name in files]  # two data sets may name one file
    now = {name: [fact.size, fact.mtime_ns, fact.etag] for name, fact in facts}
    place = stage / _BEGUN
    if not place.exists():
        local.make_directory(stage)
        local.write_new(place, canonical_json(now), sync="none")
    try:
        then = json.loads(place.read_bytes())
    except ValueError:  # what a power failure left of it
        then = None
    if then != now:
        changed = [path for path, name in files if (then or {}).get(name) != now[name]]
        raise InputError(
            f"{changed[0] if changed else stage}: was written, moved or replaced since this run was begun, so what the "
            "run has made so far may be of other bytes; run `headrace gc OUT --incomplete`, then again"
        )


def _facts(paths: Sequence[Path], look: Callable[[Path], Found]) -> list[Found]:
    threads = parallel_reads(paths)
    return (
        run_tasks([partial(look, path) for path in paths], threads) if threads > 1 else [look(path) for path in paths]
    )


def _present(path: Path) -> Fact:
    try:
        return place_of(path).stat()
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; check the source") from error


def _now(path: Path) -> Fact | None:
    try:
        return place_of(path).stat()
    except FileNotFoundError:
        return None


def _difference(then: Fact, now: Fact | None) -> str:
    if now is None:
        return "was deleted while it was read; run again once the source is complete"
    how = f"{then.size:,} → {now.size:,} bytes" if then.size != now.size else "same size, other time or inode"
    return f"changed while it was read; run again once it is complete ({how})"
