"""List the data files of a source with names, sizes and times; fast for a hundred thousand files.

A directory is read once (`scandir`). Each name costs one `stat`, and no object per file except its
name.
"""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.digest import sha256_hex
from headrace.errors import InputError
from headrace.formats.foreign import layout_of, refuse_foreign, refuse_unfinished, table_of_file
from headrace.formats.names import (
    Mixed,
    in_order,
    is_partition,
    is_split_name,
    partition_of,
    splits_of,
)
from headrace.formats.registry import FORMATS, is_data_name
from headrace.formats.saved import VIEW, address_of, is_saved, saved_files
from headrace.printable import printable
from headrace.storage.object_store import matches
from headrace.storage.place import Fact, Place
from headrace.storage.places import path_of, place_of

if TYPE_CHECKING:
    from headrace.arrays import I64

_Stat = tuple[int, int, int]  # size, modification time, time of change
_FEW_DIRECTORIES = 100  # searched for an error message
_File = tuple[str, _Stat, bool]  # name below a directory, and whether it is a link
_Found = tuple[str, str, _Stat]  # absolute path, its real path


class NoMatch(InputError):
    """An entry of a source matches no file."""


@dataclass(frozen=True, eq=False)
class Listing:
    """Files below one root.

    names: relative to it, with forward slashes, sorted. stats: parallel to names.

    splits: the split of each file if names tell splits; else empty.
    """

    root: Path
    names: list[str]
    stats: list[_Stat]
    splits: list[str]

    @cached_property
    def stat_array(self) -> I64:
        """Size, modification time and time of change of each file, int64 [files, 3].

        Users cannot set back the time of change; it is 0 for objects.
        """
        import numpy as np  # which settings that only name their files do not wait for

        return np.array(self.stats, np.int64).reshape(-1, 3)

    @property
    def sizes(self) -> I64:
        """Bytes of each file."""
        return self.stat_array[:, 0]

    def path(self, index: int) -> Path:
        """Return the path of a file."""
        return self.root / self.names[index]

    def digest(self, below: Path | None = None) -> str:
        """Digest the listing; it changes when a file is added, removed, or has another size or
        time.

        below: a directory to which the root is made relative, so that both can move together; None:
        the absolute root.
        """
        if below is None:
            root = str(self.root)
        else:
            root = os.path.relpath(str(self.root), str(below))
        text = "\0".join([root, *self.names]).encode("utf-8", "surrogateescape")
        return sha256_hex(b"%d\0%s%s" % (len(text), text, self.stat_array.T.tobytes()))


def list_files(
    source: Sequence[str | Path], *, splits: Literal["refuse", "keep"] = "refuse"
) -> Listing:
    """List the files of a source, each once: links and their targets are one file, under the first
    name.

    Each entry is a file, a directory or a glob pattern. A directory contributes its data files, not
    those of its subdirectories. Exceptions are subdirectories named after splits, and after values
    of columns (see `formats.partitions`). Names include the directories of columns that an entry
    leaves open. Files whose names begin with "." or "_" and files of other kinds are not data. A
    directory that `save_to_disk` wrote contributes the files that it lists (see `formats.saved`).
    Directories of other systems (see `formats.foreign`) and unfinished downloads are refused.
    splits: what to do if the names below one entry tell several splits (see `formats.names`).
    "keep" keeps them in the listing, which requires that entry to be the only one. "refuse" raises,
    so that splits are not merged by accident; to merge them, give each as an entry of its own.
    Raises `InputError` if an entry matches no file.
    """
    if len(source) > 1:
        splits = "refuse"
    paths = [path_of(entry) for entry in source]
    remote = [path for path in paths if place_of(path).reads == "requests"]
    if remote:
        if len(remote) < len(source):
            raise InputError(
                f"{remote[0]}: is mixed with local files", remedy="give places of one kind"
            )
        return _remote_listing(remote, splits)
    file_of_path: dict[str, _Found] = {}
    words: dict[str, str] = {}
    tables: set[str] = set()  # directories that were checked for being those of a table
    for given_path in paths:
        path = str(given_path)
        files: list[_Found] = []
        if os.path.isdir(path):
            listed, file_splits = _directory_files(path)
            file_splits = _splits(
                address_of(path) or path, [name for name, _, _ in listed], splits, file_splits
            )
            absolute = os.path.abspath(path)
            real = os.path.realpath(path)
            # so no duplicates to look for
            if len(source) == 1 and not any(is_link for _, _, is_link in listed):
                return _listing(absolute, [(name, stat) for name, stat, _ in listed], file_splits)
            for name, stat, is_link in listed:
                absolute_path = os.path.join(absolute, name)
                files.append(
                    (
                        absolute_path,
                        os.path.realpath(absolute_path) if is_link else os.path.join(real, name),
                        stat,
                    )
                )
        elif os.path.isfile(path):
            directory = os.path.dirname(os.path.abspath(path))
            if directory not in tables:
                tables.add(directory)
                if (warning := table_of_file(given_path)) is not None:
                    warnings.warn(printable(warning), UserWarning, stacklevel=2)
            files = _looked_at([path])
            file_splits = []
        else:
            matched = _matched(path)
            file_splits = _splits(
                path, [match[len(_fixed(path)) :].replace(os.sep, "/") for match in matched], splits
            )
            files = _looked_at(matched)
        file_of_path.update((file[0], file) for file in files)
        words.update((file[0], word) for file, word in zip(files, file_splits, strict=False))
    root = os.path.commonpath({os.path.dirname(path) for path in file_of_path})
    # move the root above the directories of columns below an entry, so that names include them
    for given_path in paths:
        entry = os.path.abspath(
            str(given_path) if os.path.isdir(given_path) else _fixed(str(given_path))
        )
        below = os.path.relpath(root, entry).split(os.sep)
        kept_parts = next((at for at, part in enumerate(below) if is_partition(part)), None)
        if kept_parts is not None and below[0] != os.pardir:
            root = os.path.join(entry, *below[:kept_parts])
    start = len(root.rstrip(os.sep)) + 1
    named = sorted((path[start:].replace(os.sep, "/"), path) for path in file_of_path)
    once: dict[str, tuple[str, _Stat, str]] = {}
    for name, path in named:
        _, real, stat = file_of_path[path]
        first = once.setdefault(real, (name, stat, words.get(path, "")))
        if first[2] != words.get(path, ""):
            raise InputError(
                f"is the same file as {first[0]} of another split",
                path=path,
                remedy="remove one of the links",
            )
    file_splits = []
    if len(source) == 1 and words:
        file_splits = [word for _, _, word in once.values()]
    return _listing(root, [(name, stat) for name, stat, _ in once.values()], file_splits)


def _splits(
    entry: str | Path,
    names: Sequence[str],
    splits: Literal["refuse", "keep"],
    declared: list[str] | None = None,
) -> list[str]:
    """Return the split of each file below an entry, if names tell it.

    Raises `InputError` as in `list_files`.

    declared: the splits that the directory itself defines; None if only names can tell.
    """
    try:
        if declared is None:
            declared = splits_of(names)
    except Mixed as mixed:
        raise InputError(
            f"{entry}: {mixed.belongs} belongs to a split by its name, and {mixed.without} to none",
            remedy="give the files of one split at a time, by directory or pattern",
        ) from None
    if splits == "refuse" and len(set(declared)) > 1:
        several = in_order(declared)
        first = [names[declared.index(word)] for word in several]
        raise InputError(
            f"{entry}: holds several splits, {', '.join(several)} (such as"
            f" {' and '.join(first[:2])}), which are not merged",
            remedy=(
                "give the files of one split, or each split as an entry of its own to use them"
                " together"
            ),
        )
    return declared


def home_of(entry: str | Path) -> tuple[Path, str]:
    """Split an entry into its directory and the rest: a pattern, a file name, or nothing."""
    path = path_of(entry)
    if place_of(path).reads == "requests":  # judged by name, without a request
        first_pattern = next(
            (at for at, part in enumerate(path.parts) if any(sign in part for sign in "*?[")), None
        )
        if first_pattern is not None:
            return type(path)(*path.parts[:first_pattern]), "/".join(path.parts[first_pattern:])
        if is_data_name(path.name):
            return (path.parent, path.name)
        return (path, "")
    text = os.path.abspath(path)
    if os.path.isdir(text):
        return Path(text), ""
    if os.path.isfile(text):
        directory = os.path.dirname(text)
    else:
        directory = _fixed(text)
    return Path(directory), os.path.relpath(text, directory)


def _fixed(pattern: str) -> str:
    """Return the leading directories of a pattern without wildcards, with a trailing slash."""
    sign = re.search(r"[*?\[]", pattern)
    if sign is None:
        return pattern
    return pattern[: pattern.rfind(os.sep, 0, sign.start()) + 1]


def _matched(pattern: str) -> list[str]:
    """List the data files that a local pattern matches; directories of other systems are
    refused.
    """
    files = []
    for match in glob.glob(pattern, recursive=True):
        if os.path.isfile(match):
            files.append(match)
    for directory in sorted({os.path.dirname(file) for file in files}):
        here = Path(directory or ".")
        names = os.listdir(directory or ".")
        layout = layout_of(here, names)
        if layout is None or layout.files != "plain":  # a pattern may choose among plain files
            refuse_foreign(here, names)
    refuse_unfinished(files)
    data = []
    for match in files:
        if is_data_name(os.path.basename(match)):
            data.append(match)
    if not data:
        also = ""
        if files:
            also = f"; it matches {min(files)}, whose name is not that of a data file"
        raise NoMatch(f"{pattern}: no such file, directory or match{also}; check the path")
    return data


def _directory_files(path: str) -> tuple[list[_File], list[str] | None]:
    """List a directory's data files, or those of subdirectories named after splits.

    Raises `InputError`.

    The last value is the split of each file, if the directory itself defines them.
    """
    files, others = _data_files(path)
    top = _entries(files, others)
    saved = saved_files(Path(path), top)
    if saved is not None:
        names = [name for files_of_split in saved.values() for name in files_of_split]
        stats = zip(names, _looked_at(os.path.join(path, name) for name in names), strict=True)
        # the hub's cache stores equal files once: both are data
        root = os.path.realpath(path)
        is_view = VIEW in top
        files = [
            (name, stat, not is_view and real != os.path.join(root, name))
            for name, (_, real, stat) in stats
        ]
        return files, _told(saved)
    refuse_foreign(Path(path), top)
    files += _in_partitions(path, others)
    files_of: dict[str, list[_File]] = {}
    for split in sorted(filter(is_split_name, others)):
        below = os.path.join(path, split)
        if os.path.isdir(below):
            split_files, own_others = _data_files(below)
            split_files += _in_partitions(below, own_others)
            if split_files:
                refuse_foreign(Path(below), _entries(split_files, own_others))
                refuse_unfinished(os.path.join(below, other) for other in own_others)
                files_of[split] = _moved(split_files, below)
    if not files_of and not files:
        raise NoMatch(f"{path}: {no_data(path)}")
    refuse_unfinished(os.path.join(path, other) for other in others)
    if not files_of:
        return files, None
    beside = min((name for name, _, _ in files), default=None)
    for name in sorted(others):
        below = os.path.join(path, name)
        if beside is None and name[0] not in "._" and name not in files_of and os.path.isdir(below):
            beside = next(
                (f"{name}/{entry}" for entry in sorted(os.listdir(below)) if is_data_name(entry)),
                None,
            )
    if beside is not None:
        raise InputError(
            f"{', '.join(files_of)} are splits by their names, and {beside} belongs to none"
            " of them",
            path=path,
            remedy=(
                f"give one directory, e.g. {os.path.join(path, next(iter(files_of)))}, or move"
                " the other data away"
            ),
        )
    return [file for split_files in files_of.values() for file in split_files], None


def _in_partitions(path: str, others: Iterable[str]) -> list[_File]:
    """List data files of subdirectories named after values of columns, at any depth.

    others: entries of `path`.
    """
    partition_files: list[_File] = []
    for part in sorted(filter(is_partition, others)):
        below = os.path.join(path, part)
        if os.path.isdir(below):
            data_files, own_others = _data_files(below)
            refuse_foreign(Path(below), _entries(data_files, own_others))
            refuse_unfinished(os.path.join(below, other) for other in own_others)
            partition_of(f"{below}/")  # a link to a parent directory would be followed forever
            partition_files += _moved([*data_files, *_in_partitions(below, own_others)], below)
    return partition_files


def _entries(files: Iterable[_File], others: Iterable[str]) -> set[str]:
    return {*others, *(name for name, _, _ in files)}


def _moved(files: Iterable[_File], directory: str) -> list[_File]:
    """Name the files of a directory as its parent does."""
    last = os.path.basename(directory)
    is_link = os.path.islink(directory)
    return [(f"{last}/{name}", stat, linked or is_link) for name, stat, linked in files]


def _told(saved: Mapping[str, Sequence[str]]) -> list[str]:
    return [split for split, split_files in saved.items() for _ in split_files if split]


def _remote_listing(entries: Sequence[Path], splits: Literal["refuse", "keep"]) -> Listing:
    """List objects; each entry is an object, a prefix, or a pattern after the bucket's name."""
    stat_of: dict[Path, _Stat] = {}
    words: dict[Path, str] = {}
    bases: list[Path] = []
    for entry in entries:
        files, fixed, declared = _objects(entry)
        if entry not in files:
            bases.append(fixed)
        if not files:
            raise NoMatch(
                f"{entry}: no object of that name, or none with data below it; check the address"
                " and the bucket"
            )
        stat_of |= files
        if entry not in files:
            file_splits = _splits(
                entry, [path.relative_to(fixed).as_posix() for path in files], splits, declared
            )
            words |= dict(zip(files, file_splits, strict=False))
    parts = [path.parent.parts for path in stat_of]
    depth = next(
        (
            at
            for at, parts_at_depth in enumerate(zip(*parts, strict=False))
            if len(set(parts_at_depth)) > 1
        ),
        min(map(len, parts)),
    )
    if depth < 2:
        raise InputError(
            f"{entries[0]}: the files lie in several buckets", remedy="give those of one"
        )
    for fixed in bases:
        opened: tuple[str, ...] = ()
        if parts[0][: len(fixed.parts)] == fixed.parts:
            opened = parts[0][len(fixed.parts) : depth]
        depth = next(
            (len(fixed.parts) + at for at, part in enumerate(opened) if is_partition(part)), depth
        )
    root = type(entries[0])(*parts[0][:depth])
    file_splits = []
    if len(entries) == 1 and words:
        file_splits = [words[path] for path in stat_of]
    return _listing(
        root,
        [(path.relative_to(root).as_posix(), stat) for path, stat in stat_of.items()],
        file_splits,
    )


def _objects(entry: Path) -> tuple[dict[Path, _Stat], Path, list[str] | None]:
    """List the data files of an entry; also return the prefix that names are relative to, and the
    splits it defines.
    """
    location = place_of(entry)
    if any(sign in str(entry) for sign in "*?["):
        parts = entry.parts
        depth = next(
            depth for depth, part in enumerate(parts) if any(sign in part for sign in "*?[")
        )
        prefix = type(entry)(*parts[:depth])
        pattern = parts[depth:]
        every = [(prefix / fact.name, fact) for fact in place_of(prefix).files_below()]
        below = []
        for pair in every:
            if matches(pair[1].name.split("/"), pattern):
                below.append(pair)
        _refuse_foreign_prefixes(
            prefix, [fact.name for _, fact in every], {path.parent for path, _ in below}
        )
        refuse_unfinished(str(path) for path, _ in below)
        return (
            {path: _object_stat(location, fact) for path, fact in below if is_data_name(path.name)},
            prefix,
            None,
        )
    if entry.is_file():
        return {entry: _object_stat(location, location.stat())}, entry.parent, None
    prefixes, objects = location.children()
    saved = saved_files(entry, {*prefixes, *(fact.name for fact in objects)})
    if saved is not None:
        listed = [entry / name for split_files in saved.values() for name in split_files]
        there = {
            directory / fact.name: fact
            for directory in {path.parent for path in listed}
            for fact in place_of(directory).children()[1]
        }
        for path in listed:
            if path not in there:
                raise InputError(
                    "is missing, so the dataset is not whole", path=path, remedy="upload it again"
                )
        return {path: _object_stat(location, there[path]) for path in listed}, entry, _told(saved)
    refuse_foreign(entry, {*prefixes, *(fact.name for fact in objects)})
    refuse_unfinished(str(entry / fact.name) for fact in objects)
    files = {}
    for fact in objects:
        if is_data_name(fact.name):
            files[entry / fact.name] = _object_stat(location, fact)
    if any(map(is_partition, prefixes)):
        inside = [(fact, fact.name.split("/")) for fact in location.files_below()]
        inside = [
            (fact, parts)
            for fact, parts in inside
            if all(map(is_partition, parts[:-1])) and len(parts) > 1
        ]
        refuse_unfinished(str(entry / fact.name) for fact, _ in inside)
        files |= {
            entry / fact.name: _object_stat(location, fact)
            for fact, parts in inside
            if is_data_name(parts[-1])
        }
    split_objects = [(name, _objects(entry / name)[0]) for name in prefixes if is_split_name(name)]
    split_objects = [pair for pair in split_objects if pair[1]]
    if split_objects and files:
        raise InputError(
            f"{entry}: {', '.join((name for name, _ in split_objects))} are splits by their"
            f" names, and {min(files).name} belongs to none of them",
            remedy="give one prefix, or move the other data away",
        )
    for _, objects_of_split in split_objects:
        files |= objects_of_split
    return files, entry, None


def _refuse_foreign_prefixes(prefix: Path, names: Sequence[str], matched: Collection[Path]) -> None:
    """Refuse matches inside directories of other systems, judging by the names below a prefix to
    save requests.
    """
    entries: dict[Path, set[str]] = {}
    for name in names:
        parts = name.split("/")
        for depth, part in enumerate(parts):
            entries.setdefault(prefix.joinpath(*parts[:depth]), set()).add(part)
    for directory, names_in in sorted(entries.items()):
        layout = layout_of(directory, names_in)
        if layout is None or layout.files == "plain":
            continue
        if directory in matched or any(directory in match.parents for match in matched):
            raise InputError(f"{layout.refusal(directory)}", path=directory)
    if matched:
        refuse_foreign(prefix, ())


def _object_stat(location: Place, fact: Fact) -> _Stat:
    return fact.size, location.changed_ns(fact), 0


def _listing(
    root: str | Path, files: Sequence[tuple[str, _Stat]], splits: Sequence[str]
) -> Listing:
    try:
        "".join([str(root), *(name for name, _ in files)]).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 40) : error.start + 40]
        raise InputError(
            f"{str(root)!a}: a name is not UTF-8, near {near!a}",
            remedy="rename the file or directory",
        ) from None
    order = sorted(range(len(files)), key=lambda index: files[index][0])
    sorted_splits = []
    if splits:
        sorted_splits = [splits[index] for index in order]
    return Listing(
        path_of(root),
        [files[index][0] for index in order],
        [files[index][1] for index in order],
        sorted_splits,
    )


def _data_files(directory: str) -> tuple[list[_File], list[str]]:
    """List a directory's data files, and the names of other entries."""
    files: list[_File] = []
    others: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                if not is_data_name(entry.name) or not entry.is_file():
                    others.append(entry.name)
                    continue
                stat = entry.stat()
            except OSError as error:
                raise _unreadable(entry.path, error) from error
            files.append(
                (entry.name, (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns), entry.is_symlink())
            )
    return files, others


def holds_data(directory: str) -> bool:
    """Check whether a local directory has data files, itself or in subdirectories named after
    splits.
    """
    with os.scandir(directory) as entries:
        children = list(entries)
    if is_saved(Path(directory), {child.name for child in children}):
        return True
    if any(is_data_name(child.name) and child.is_file() for child in children):
        return True
    inside = []
    for child in children:
        if child.is_dir() and (is_split_name(child.name) or is_partition(child.name)):
            inside.append(child.path)
    return any(
        is_data_name(name) or (is_partition(name) and holds_data(os.path.join(path, name)))
        for path in inside
        for name in os.listdir(path)
    )


def no_data(directory: str) -> str:
    """Explain that a directory has no data files, and what to give instead, after a look at what it
    holds.
    """
    problem = f"holds no {FORMATS.listed()} file"
    with os.scandir(directory) as entries:
        others = sorted(
            child.name for child in entries if child.name[0] not in "._" and child.is_file()
        )
    for at, (below, directories, files) in enumerate(os.walk(directory)):
        layout = layout_of(Path(below), {*directories, *files})
        if layout is not None and at == 0:
            return layout.refusal(directory)
        if layout is not None:
            return f"{problem} itself; its subdirectory {below} {layout.refusal(below)}"
        directories[:] = sorted(name for name in directories if name[0] not in "._")
        data = sorted(filter(is_data_name, files))
        if data:
            steps = os.path.relpath(below, directory).split(os.sep)
            longest_first = sorted(FORMATS.endings, key=len, reverse=True)
            ending = next(word for word in longest_first if data[0].lower().endswith(word))
            pattern = os.path.join(directory, *"*" * len(steps), f"*{data[0][-len(ending) :]}")
            return f"{problem} itself, its subdirectories do; give {pattern!r}"
        if at == _FEW_DIRECTORIES:
            break
    if others:
        others.sort(key=lambda name: name.upper().startswith(("README", "LICENSE")))
        return (
            f"{problem}; it has {others[0]}: convert or unpack such files, or rename them to what"
            " they are"
        )
    return f"{problem}; give the directory of the shards"


def _looked_at(paths: Iterable[str]) -> list[_Found]:
    files = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        stats = stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
        files.append((os.path.abspath(path), os.path.realpath(path), stats))
    return files


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(
        f"cannot be read ({error.strerror})", path=path, remedy="check the file and its permissions"
    )
