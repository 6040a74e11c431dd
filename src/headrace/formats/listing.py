"""The data files of a source: their names, sizes and times, for a hundred thousand of them in a moment.

A directory is read once (`scandir`), a name costs one `stat`, and no object is made per file but its name.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from headrace.arrays import I64
from headrace.digest import sha256_hex
from headrace.errors import InputError
from headrace.formats.detect import DATA_NAMES
from headrace.storage.object_store import Fact
from headrace.storage.remote_path import RemotePath, as_stat, matches, path_of

_Stat = tuple[int, int, int]  # size, modification time, time of change
_FEW_DIRECTORIES = 100  # are looked at for an error message
_Found = tuple[str, str, _Stat]  # absolute path, its real path


@dataclass(frozen=True, eq=False)
class Listing:
    """Files below one root. names: relative to it, with forward slashes, sorted; sizes, times: parallel, int64.

    ctimes_ns: of local files the time of change, which nobody can set back; 0 of objects.
    """

    root: Path
    names: list[str]
    sizes: I64
    mtimes_ns: I64
    ctimes_ns: I64

    def path(self, place: int) -> Path:
        """Where a file lies."""
        return self.root / self.names[place]

    @cached_property
    def digest(self) -> str:
        """Changes when a file comes, goes, or has another size or time."""
        text = "\0".join([str(self.root), *self.names]).encode("utf-8", "surrogateescape")
        facts = b"".join(each.tobytes() for each in (self.sizes, self.mtimes_ns, self.ctimes_ns))
        return sha256_hex(b"%d\0%s%s" % (len(text), text, facts))


def list_files(source: Sequence[str | Path]) -> Listing:
    """The files of a source, each once: links and their targets are one file, under the first of their names.

    Each entry is a file, a directory (its data files, not its subdirectories') or a glob pattern. Files whose names
    begin with "." or "_" and files of other kinds are no data. Raises `InputError` if an entry gives no file.
    """
    found: dict[str, _Found] = {}
    places = [path_of(entry) for entry in source]
    remote = [place for place in places if isinstance(place, RemotePath)]
    if remote:
        if len(remote) < len(source):
            raise InputError(f"{remote[0]}: stands beside local files; give places of one kind")
        return _remote_listing(remote)
    for place in places:
        path = str(place)
        if os.path.isdir(path):
            names, stats, links = _data_files(path)
            if not names:
                raise InputError(f"{path}: {no_data(path)}")
            if len(source) == 1 and not links:  # every file once: nothing to compare, whatever their number
                return _listing(os.path.abspath(path), names, stats)
            files = list(_below(path, names, stats, links))
        elif os.path.isfile(path):
            files = list(_looked_at([path]))
        else:
            files = list(_looked_at(each for each in glob.glob(path, recursive=True) if os.path.isfile(each)))
            if not files:
                raise InputError(f"{path}: no such file, directory or match; check the path")
        found.update((each[0], each) for each in files)
    root = os.path.commonpath({os.path.dirname(path) for path in found})
    start = len(root.rstrip(os.sep)) + 1
    named = sorted((path[start:].replace(os.sep, "/"), path) for path in found)
    once: dict[str, tuple[str, _Stat]] = {}
    for name, path in named:
        _, real, stat = found[path]
        once.setdefault(real, (name, stat))
    return _listing(root, [name for name, _ in once.values()], [stat for _, stat in once.values()])


def _remote_listing(entries: Sequence[Path]) -> Listing:
    """The same of objects: each entry is one, a prefix, or a pattern after the bucket's name."""
    found: dict[RemotePath, _Stat] = {}
    for entry in entries:
        assert isinstance(entry, RemotePath)
        files = _objects(entry)
        if not files:
            raise InputError(
                f"{entry}: no object of that name, or none with data below it; check the address and the bucket"
            )
        found |= files
    parts = [path.parent.parts for path in found]
    depth = next((at for at, each in enumerate(zip(*parts, strict=False)) if len(set(each)) > 1), min(map(len, parts)))
    if depth < 2:
        raise InputError(f"{entries[0]}: the files lie in several buckets; give those of one")
    root = RemotePath(*parts[0][:depth])
    return _listing(root, [path.relative_to(root).as_posix() for path in found], list(found.values()))


def _objects(entry: RemotePath) -> dict[RemotePath, _Stat]:
    if any(sign in entry.key for sign in "*?["):
        parts = entry.parts
        fixed = next(place for place, part in enumerate(parts) if any(sign in part for sign in "*?["))
        prefix, pattern = RemotePath(*parts[:fixed]), parts[fixed:]
        below = [each for each in prefix.below() if matches(each[1].name.split("/"), pattern)]
        return {path: _object_stat(fact) for path, fact in below if is_data_name(path.name)}
    if entry.is_file():
        return {entry: _object_stat(entry.fact())}
    _, facts = entry.store.children(entry.key)
    return {entry / fact.name: _object_stat(fact) for fact in facts if is_data_name(fact.name)}


def is_data_name(name: str) -> bool:
    """Whether a file of that name is data, as a directory's files are."""
    return name[0] not in "._" and name.lower().endswith(DATA_NAMES)


def _object_stat(fact: Fact) -> _Stat:
    stat = as_stat(fact)
    return stat.st_size, stat.st_mtime_ns, 0


def _listing(root: str | Path, names: list[str], stats: list[_Stat]) -> Listing:
    try:
        "".join([str(root), *names]).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 40) : error.start + 40]
        raise InputError(f"{str(root)!a}: a name is not UTF-8, near {near!a}; rename the file or directory") from None
    order = sorted(range(len(names)), key=names.__getitem__)
    facts = np.array(stats, np.int64).reshape(-1, 3)[order]
    return Listing(path_of(root), [names[place] for place in order], *(facts[:, each].copy() for each in range(3)))


def _data_files(directory: str) -> tuple[list[str], list[_Stat], set[str]]:
    """Names and stats of a directory's data files, and which of the names are links."""
    names: list[str] = []
    stats: list[_Stat] = []
    links: set[str] = set()
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if not is_data_name(name):
                continue
            try:
                if not entry.is_file():
                    continue
                stat = entry.stat()
            except OSError as error:
                raise _unreadable(entry.path, error) from error
            names.append(name)
            stats.append((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
            if entry.is_symlink():
                links.add(name)
    return names, stats, links


def no_data(directory: str) -> str:
    """In words, that a directory has no data files, and what to give instead, after a look at what it holds."""
    said = "holds no .csv, .tsv, .jsonl, .json, .parquet or .arrow file"
    with os.scandir(directory) as entries:
        others = sorted(each.name for each in entries if each.name[0] not in "._" and each.is_file())
    for at, (below, directories, files) in enumerate(os.walk(directory)):
        directories[:] = sorted(each for each in directories if each[0] not in "._")
        data = sorted(filter(is_data_name, files))
        if data:
            steps = os.path.relpath(below, directory).split(os.sep)
            kind = next(word for word in sorted(DATA_NAMES, key=len, reverse=True) if data[0].lower().endswith(word))
            pattern = os.path.join(directory, *"*" * len(steps), f"*{data[0][-len(kind) :]}")
            lost = f"; what names such as {steps[0]} say is no column" if "=" in steps[0] else ""
            return f"{said} itself, its subdirectories do; give {pattern!r}{lost}"
        if at == _FEW_DIRECTORIES:
            break
    if others:
        return f"{said}; it has {others[0]}: convert or unpack such files, or rename them to what they are"
    return f"{said}; give the directory of the shards"


def _below(directory: str, names: list[str], stats: list[_Stat], links: set[str]) -> Iterator[_Found]:
    absolute, real = os.path.abspath(directory), os.path.realpath(directory)
    for name, stat in zip(names, stats, strict=True):
        path = os.path.join(absolute, name)
        yield path, os.path.realpath(path) if name in links else os.path.join(real, name), stat


def _looked_at(paths: Iterable[str]) -> Iterator[_Found]:
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        yield os.path.abspath(path), os.path.realpath(path), (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({error.strerror}); check the file and its permissions")
