"""Compute the identity of a run from its recipe, settings and source, and check that the source
does not change.

Size and modification time are part of the identity, and a program that rewrites a file can set both
back. It cannot set back the time of change (ctime) or choose the inode; in an object store, the tag
distinguishes versions. So both are compared before and after each task and once more before the
manifest. One `stat` per file costs less than opening it.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from headrace.dataset.manifest import FORMAT_VERSION as FORMAT_VERSION
from headrace.digest import canonical_json, sha256_file, sha256_hex
from headrace.engine.local import run_tasks
from headrace.errors import CorruptShard, InputError, SettingsError, setting_name
from headrace.gate.json import read_object
from headrace.storage import local
from headrace.storage.place import Fact
from headrace.storage.places import parallel_reads, path_of, place_of

Result = TypeVar("Result")
Fingerprint = Literal["stat", "content"]
Version = tuple[int, str | int]  # size of a file, and its time, tag, commit or digest

NAMESPACE = uuid.UUID("b6c7d7de-6f0e-5d53-9d0a-0d6c6a4e7a11")
_BEGUN = "source.json"


def run_id(recipe: str, settings: Mapping[str, Any], source_fingerprint: str) -> str:
    """Return the id of a run, which depends on everything that can change a byte of its output.

    It is the UUIDv5 of the SHA-256 of (recipe, every setting that can change a byte, source
    fingerprint, format version).
    """
    text = canonical_json([recipe, dict(settings), source_fingerprint, FORMAT_VERSION])
    return str(uuid.uuid5(NAMESPACE, hashlib.sha256(text).hexdigest()))


@dataclass(frozen=True)
class SourceState:
    """The size, times and tag of each file of the source when the run began, by path."""

    metadata: Mapping[Path, Fact]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> SourceState:
        """Read the state of these files. Raises `InputError` if one is missing."""
        states = {}
        for path, fact in zip(paths, _of_all(_stat, paths), strict=True):
            if fact is None:
                raise InputError("no such file", path=path, remedy="check the source")
            states[path] = fact
        return cls(states)

    def part(self, paths: Iterable[Path]) -> SourceState:
        """Return the state of some files only; paths outside the source are left out."""
        return SourceState({path: self.metadata[path] for path in paths if path in self.metadata})

    def check(self) -> None:
        """Raise `InputError` that names the first file that has changed."""
        paths = list(self.metadata)
        for path, now in zip(paths, _of_all(_stat, paths), strict=True):
            then = self.metadata[path]
            if now is None:
                raise InputError(
                    "was deleted while it was read",
                    path=path,
                    remedy="run again once the source is complete",
                )
            if now != then:
                grown = f"{then.size:,} → {now.size:,} bytes"
                how = "same size, other time or inode"
                if then.size != now.size:
                    how = grown
                raise InputError(
                    "changed while it was read",
                    path=path,
                    remedy=f"run again once it is complete ({how})",
                )

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check before and after the enclosed work, also if it fails, because a change explains the
        error.
        """
        self.check()
        try:
            yield
        except Exception:
            self.check()
            raise
        self.check()


def fingerprint(
    files: Sequence[tuple[Path, str]], how: Fingerprint = "stat", state: SourceState | None = None
) -> str:
    """Return a digest of the source.

    It covers the relative name and size of each file, and its mtime ("stat") or SHA-256
    ("content"). An object in a store has its tag instead of the mtime.
    state: of these files, if it is known already.
    """
    versions = versions_of(files, how, state or SourceState.of([path for path, _ in files]))
    return fingerprint_of(files, versions)


def fingerprint_of(files: Sequence[tuple[Path, str]], versions: Mapping[Path, Version]) -> str:
    """Return the digest of a source whose files have these versions."""
    return sha256_hex(canonical_json([[name, *versions[path]] for path, name in files]))


def versions_of(
    files: Sequence[tuple[Path, str]], how: Fingerprint, state: SourceState
) -> dict[Path, Version]:
    """Return what tells the content of each file from another; see `fingerprint`."""
    paths = [path for path, _ in files]
    versions: Sequence[str | int]
    if how == "content":
        versions = _of_all(sha256_file, paths)
    else:
        versions = [place_of(path).version(state.metadata[path]) for path in paths]
    sizes = [state.metadata[path].size for path in paths]
    return dict(zip(paths, zip(sizes, versions, strict=True), strict=True))


def keep_beginning(stage: Path, state: SourceState, files: Sequence[tuple[Path, str]]) -> None:
    """Save the state with which a run begins, beside its intermediate files, or compare it with the
    saved one.

    Receipts of an earlier attempt describe the source as it was then. Raises `InputError` if the
    source has changed since.
    """
    states = [
        (name, state.metadata[path]) for path, name in files
    ]  # two data sets may name one file
    now = {name: [fact.size, fact.mtime_ns, fact.etag] for name, fact in states}
    record_path = stage / _BEGUN
    if not record_path.exists():
        local.make_directory(stage)
        local.write_new(record_path, canonical_json(now), sync="none")
    try:
        then = read_object(record_path)
    except CorruptShard:  # damaged, for example by a power failure
        then = None
    if then != now:
        changed = []
        for path, name in files:
            if (then or {}).get(name) != now[name]:
                changed.append(path)
        raise InputError(
            "was written, moved or replaced after this run began, so its work so far may be from"
            " other bytes",
            path=changed[0] if changed else stage,
            remedy="run `headrace gc OUT --incomplete`, then again",
        )


def check_output(out: Path) -> None:
    """Raise `SettingsError` unless `out` is a directory or can be made one: nothing in its path
    may be a file, or a link that leads nowhere.
    """
    if not place_of(out).has_links:
        return
    there = next(
        path for path in (out.absolute(), *out.absolute().parents) if os.path.lexists(path)
    )
    if there.is_dir():
        return
    if not there.is_symlink():
        raise SettingsError(
            "is a file, not a directory",
            path=there,
            setting="out",
            remedy="choose another output directory",
        )
    target = os.readlink(there)
    if there.exists():
        raise SettingsError(
            f"is a link to {target}, which is a file",
            path=there,
            setting="out",
            remedy="choose another output directory",
        )
    raise SettingsError(
        f"is a link to {target}, which does not exist or leads back to the link",
        path=there,
        setting="out",
        remedy="make that directory, or remove the link",
    )


def check_disjoint(
    out: Path, paths: Iterable[str | Path], files: Sequence[tuple[Path, str]]
) -> None:
    """Raise `SettingsError` if `out` is in a directory of the source, or the source is in `out`'s
    runs or splits.

    A directory with runs in it is a prepared dataset to every reader, so raw shards beside them
    would be hidden. Links are followed. paths: as given to the recipe; a file contains nothing but
    itself.
    """
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise SettingsError(
            "the name is not UTF-8",
            setting="out",
            value=str(out),
            remedy="choose another output directory",
        ) from None
    target = place_of(out).real().parts
    for path in map(path_of, paths):
        inner = place_of(path).real().parts
        requested_names_only = place_of(path).reads == "requests"
        if target[: len(inner)] == inner and (requested_names_only or path.is_dir()):
            if target == inner:
                where = "is the source itself"
            else:
                where = f"is inside the source {path}"
            raise SettingsError(
                f"{setting_name('out')} {out} {where}, whose shards its runs would hide",
                remedy="give an output elsewhere",
            )
    for directory in sorted({os.path.dirname(str(path)) for path, _ in files}):
        inner = place_of(path_of(directory)).real().parts
        if inner[: len(target)] == target and inner[len(target) : len(target) + 1] in (
            ("runs",),
            ("splits",),
        ):
            raise SettingsError(
                f"{setting_name('out')} {out} holds the source itself, in {directory}, which a run"
                " next to it would hide",
                remedy="give an output elsewhere",
            )


def _of_all(look: Callable[[Path], Result], paths: Sequence[Path]) -> list[Result]:
    """Read the state of every file, many at a time if each is a request."""
    threads = parallel_reads(paths)
    if threads > 1:
        return run_tasks([partial(look, path) for path in paths], threads)
    return [look(path) for path in paths]


def _stat(path: Path) -> Fact | None:
    try:
        return place_of(path).stat()
    except FileNotFoundError:
        return None
