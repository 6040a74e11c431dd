"""List the data files of a source with names, sizes and times; fast for a hundred thousand files.

A directory is read once (`scandir`). Each name costs one `stat`, and no object per file except its
name.
"""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.digest import sha256_hex
from headrace.errors import InputError
from headrace.formats.foreign import refusal, table_above, workbook
from headrace.formats.names import (
    Mixed,
    in_order,
    is_partition,
    is_split_name,
    partition_of,
    refuse_unfinished,
    splits_of,
)
from headrace.formats.registry import FORMATS, is_data_name
from headrace.formats.saved import is_saved, saved_files
from headrace.printable import printable
from headrace.storage.object_store import matches
from headrace.storage.place import Fact, Place
from headrace.storage.places import path_of, place_of

if TYPE_CHECKING:
    from headrace.arrays import I64

log = logging.getLogger("headrace")

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
    entries = [path_of(entry) for entry in source]
    remote = [path for path in entries if place_of(path).reads == "requests"]
    if not remote:
        listing = _local_listing(entries, splits)
        _say_left_out(entries, listing)
        return listing
    if len(remote) < len(source):
        raise InputError(
            "is mixed with local files", path=remote[0], remedy="give places of one kind"
        )
    return _remote_listing(remote, splits)


def _local_listing(entries: Sequence[Path], splits: Literal["refuse", "keep"]) -> Listing:
    file_of_path: dict[str, _Found] = {}
    split_of_path: dict[str, str] = {}
    tables: set[str] = set()  # directories that were checked for being those of a table
    for entry in entries:
        path = str(entry)
        file_splits: list[str] = []
        if os.path.isdir(path):
            listed, declared = _directory_files(path)
            names = [name for name, _, _ in listed]
            file_splits = _splits(path, names, splits, declared)
            # so no duplicates to look for
            if len(entries) == 1 and not any(is_link for _, _, is_link in listed):
                stats = [(name, stat) for name, stat, _ in listed]
                return _listing(os.path.abspath(path), stats, file_splits)
            files = _resolved(path, listed)
        elif os.path.isfile(path):
            _warn_of_table(os.path.dirname(os.path.abspath(path)), path, tables)
            files = _looked_at([path])
        else:
            matched = _matched(path)
            start = len(_fixed(path))
            names = [match[start:].replace(os.sep, "/") for match in matched]
            file_splits = _splits(path, names, splits)
            files = _looked_at(matched)
        file_of_path.update((file[0], file) for file in files)
        split_of_path.update(
            (file[0], word) for file, word in zip(files, file_splits, strict=False)
        )
    root = _root(entries, file_of_path)
    once = _without_links(root, file_of_path, split_of_path)
    file_splits = []
    if len(entries) == 1 and split_of_path:
        file_splits = [split for _, _, split in once]
    return _listing(root, [(name, stat) for name, stat, _ in once], file_splits)


def _say_left_out(entries: Sequence[Path], listing: Listing) -> None:
    """Warn of files beside the listed ones whose names are those of data but for a leading "." or
    "_".
    """
    patterns = []
    for entry in map(str, entries):
        if os.path.isdir(entry):
            patterns.append("*")
        elif not os.path.isfile(entry):
            patterns.append(os.path.basename(entry))
    left_out = []
    for directory in sorted({name.rpartition("/")[0] for name in listing.names}):
        path = os.path.join(listing.root, directory)
        for name in os.listdir(path) if patterns else ():
            if _is_left_out(name) and any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                left_out.append(os.path.join(path, name))
    left_out = [path for path in left_out if os.path.isfile(path)]
    if left_out:
        _warn_left_out(len(left_out), min(left_out))


def _is_left_out(name: str) -> bool:
    return name[0] in "._" and name.lower().endswith(FORMATS.endings)


@cache  # a run lists its source several times
def _warn_left_out(count: int, example: str) -> None:
    log.warning(
        "%s",
        printable(
            f"{example}: is left out, because its name begins with a dot or an underscore;"
            f" {count:,} data files of the source are so named: rename them to read them"
        ),
    )


def _resolved(directory: str, listed: Iterable[_File]) -> list[_Found]:
    """Find absolute and real paths of the files listed below a directory."""
    absolute = os.path.abspath(directory)
    real = os.path.realpath(directory)
    files = []
    for name, stat, is_link in listed:
        path = os.path.join(absolute, name)
        target = os.path.realpath(path) if is_link else os.path.join(real, name)
        files.append((path, target, stat))
    return files


def _warn_of_table(directory: str, path: str, checked: set[str]) -> None:
    """Warn of a single file of a table, whose rows may have been deleted or replaced."""
    if directory in checked:
        return
    checked.add(directory)
    error = table_above(Path(directory, "data"))
    if error is not None:
        warnings.warn(
            f"{path}: {error.args[0]}: rows that were deleted or replaced are read too",
            UserWarning,
            stacklevel=4,
        )


def _root(entries: Iterable[Path], paths: Iterable[str]) -> str:
    """Find the directory that names are relative to, above the directories of columns."""
    root = os.path.commonpath({os.path.dirname(path) for path in paths})
    for entry in map(str, entries):
        top = os.path.abspath(entry if os.path.isdir(entry) else _fixed(entry))
        below = os.path.relpath(root, top).split(os.sep)
        if below[0] == os.pardir:
            continue
        for depth, part in enumerate(below):
            if is_partition(part):
                root = os.path.join(top, *below[:depth])
                break
    return root


def _without_links(
    root: str, files: Mapping[str, _Found], split_of_path: Mapping[str, str]
) -> Collection[tuple[str, _Stat, str]]:
    """Keep the first name, the stat and the split of each file, however many links it has."""
    start = len(root.rstrip(os.sep)) + 1
    once: dict[str, tuple[str, _Stat, str]] = {}
    for name, path in sorted((path[start:].replace(os.sep, "/"), path) for path in files):
        _, real, stat = files[path]
        split = split_of_path.get(path, "")
        first = once.setdefault(real, (name, stat, split))
        if first[2] != split:
            raise InputError(
                f"is the same file as {first[0]} of another split",
                path=path,
                remedy="remove one of the links",
            )
    return once.values()


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
            f"{mixed.belongs} belongs to a split by its name, and {mixed.without} to none",
            path=entry,
            remedy="give the files of one split at a time, by directory or pattern",
        ) from None
    if splits == "refuse" and len(set(declared)) > 1:
        several = in_order(declared)
        first = [names[declared.index(word)] for word in several]
        raise InputError(
            f"holds several splits, {', '.join(several)} (such as {' and '.join(first[:2])}), which"
            " are not merged",
            path=entry,
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
        for at, part in enumerate(path.parts):
            if _has_wildcard(part):
                return type(path)(*path.parts[:at]), "/".join(path.parts[at:])
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


def _has_wildcard(text: str) -> bool:
    return any(sign in text for sign in "*?[")


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
    files = [match for match in glob.glob(pattern, recursive=True) if os.path.isfile(match)]
    for directory in sorted({os.path.dirname(file) or "." for file in files}):
        refuse_foreign(Path(directory), os.listdir(directory))
    refuse_unfinished(files)
    data = [match for match in files if is_data_name(os.path.basename(match))]
    if data:
        return data
    if files:
        sheets = workbook(min(files))
        if sheets is not None:
            raise sheets
        raise NoMatch(
            f"no data file matches; {min(files)} matches, and its name is not that of a data file",
            path=pattern,
            remedy=f"give {FORMATS.listed()} files",
        )
    raise NoMatch("no such file, directory or match", path=pattern, remedy="check the path")


def refuse_foreign(directory: Path, names: Collection[str]) -> None:
    """Raise `InputError` for a directory of another system with these entries, or in a table."""
    error = refusal(directory, names) or table_above(directory)
    if error is not None:
        raise error


def _directory_files(path: str) -> tuple[list[_File], list[str] | None]:
    """List a directory's data files, or those of subdirectories named after splits.

    The second value is the split of each file, if the directory itself defines them.

    Raises `InputError`.
    """
    files, others = _data_files(path)
    top = _entries(files, others)
    saved = saved_files(Path(path), top)
    if saved is not None:
        return _saved_as_listed(path, saved), _declared_splits(saved)
    refuse_foreign(Path(path), top)
    files += _in_partitions(path, others)
    files_of: dict[str, list[_File]] = {}
    for split in filter(is_split_name, sorted(others)):
        split_files = _with_partitions(os.path.join(path, split))
        if split_files:
            files_of[split] = split_files
    if not files_of and not files:
        raise no_data(path)
    refuse_unfinished(os.path.join(path, other) for other in others)
    if not files_of:
        return files, None
    beside = min((name for name, _, _ in files), default=None) or _data_beside(
        path, sorted(set(others) - set(files_of))
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
    return list(chain.from_iterable(files_of.values())), None


def _saved_as_listed(path: str, saved: Mapping[str, Sequence[str]]) -> list[_File]:
    """Look at the files that a saved dataset lists."""
    root = os.path.realpath(path)
    names = list(chain.from_iterable(saved.values()))
    stats = _looked_at(os.path.join(path, name) for name in names)
    files = []
    for name, (_, real, stat) in zip(names, stats, strict=True):
        files.append((name, stat, real != os.path.join(root, name)))
    return files


def _data_beside(path: str, others: Iterable[str]) -> str | None:
    """Find a data file in one of these subdirectories."""
    for name in others:
        below = os.path.join(path, name)
        if name[0] not in "._" and os.path.isdir(below):
            data = sorted(filter(is_data_name, os.listdir(below)))
            if data:
                return f"{name}/{data[0]}"
    return None


def _in_partitions(path: str, others: Iterable[str]) -> list[_File]:
    """List data files of subdirectories named after values of columns, at any depth.

    others: entries of `path`.
    """
    files: list[_File] = []
    for part in filter(is_partition, sorted(others)):
        partition_of(f"{path}/{part}/")  # a link to a parent directory would be followed forever
        files += _with_partitions(os.path.join(path, part))
    return files


def _with_partitions(path: str) -> list[_File]:
    """List the data files of a directory and of its partitions, named as its parent does; none if
    it is not a directory.
    """
    if not os.path.isdir(path):
        return []
    files, others = _data_files(path)
    partition_files = _in_partitions(path, others)
    if files or partition_files or is_partition(os.path.basename(path)):
        refuse_foreign(Path(path), _entries(files, others))
        refuse_unfinished(os.path.join(path, other) for other in others)
    last = os.path.basename(path)
    is_link = os.path.islink(path)
    return [
        (f"{last}/{name}", stat, linked or is_link)
        for name, stat, linked in [*files, *partition_files]
    ]


def _entries(files: Iterable[_File], others: Iterable[str]) -> set[str]:
    return {*others, *(name for name, _, _ in files)}


def _declared_splits(saved: Mapping[str, Sequence[str]]) -> list[str]:
    return [split for split, split_files in saved.items() for _ in split_files if split]


@dataclass(frozen=True, slots=True)
class _Objects:
    """Data files in a store.

    prefix: names are relative to it. splits: of each file, if the prefix itself defines them.
    """

    files: dict[Path, _Stat]
    prefix: Path
    splits: list[str] | None = None


def _remote_listing(entries: Sequence[Path], splits: Literal["refuse", "keep"]) -> Listing:
    """List objects; each entry is an object, a prefix, or a pattern after the bucket's name."""
    stat_of: dict[Path, _Stat] = {}
    split_of: dict[Path, str] = {}
    prefixes: list[Path] = []
    for entry in entries:
        objects = _objects(entry)
        files = objects.files
        if not files:
            raise NoMatch(
                "no object of that name, or none with data below it",
                path=entry,
                remedy="check the address and the bucket",
            )
        stat_of |= files
        if entry not in files:
            prefixes.append(objects.prefix)
            names = [path.relative_to(objects.prefix).as_posix() for path in files]
            file_splits = _splits(entry, names, splits, objects.splits)
            split_of |= dict(zip(files, file_splits, strict=False))
    parts = [path.parent.parts for path in stat_of]
    depth = 0
    for parts_at_depth in zip(*parts, strict=False):
        if len(set(parts_at_depth)) > 1:
            break
        depth += 1
    if depth < 2:
        raise InputError(
            "the files lie in several buckets", path=entries[0], remedy="give those of one"
        )
    for prefix in prefixes:  # the root is above the directories of columns
        if parts[0][: len(prefix.parts)] == prefix.parts:
            opened = enumerate(parts[0][:depth])
            below = (at for at, part in opened if at >= len(prefix.parts) and is_partition(part))
            depth = next(below, depth)
    root = type(entries[0])(*parts[0][:depth])
    file_splits = []
    if len(entries) == 1 and split_of:
        file_splits = [split_of[path] for path in stat_of]
    stats = [(path.relative_to(root).as_posix(), stat) for path, stat in stat_of.items()]
    return _listing(root, stats, file_splits)


def _objects(entry: Path) -> _Objects:
    """List the data files of an entry."""
    location = place_of(entry)
    if _has_wildcard(str(entry)):
        return _matching_objects(entry)
    if entry.is_file():
        return _Objects({entry: _object_stat(location, location.stat())}, entry.parent)
    prefixes, objects = location.children()
    names = {*prefixes, *(fact.name for fact in objects)}
    saved = saved_files(entry, names)
    if saved is not None:
        return _Objects(_saved_objects(entry, saved), entry, _declared_splits(saved))
    refuse_foreign(entry, names)
    files = _data_objects(entry, objects)
    if any(map(is_partition, prefixes)):
        inside = []
        for fact in location.files_below():
            directories = fact.name.split("/")[:-1]
            if directories and all(map(is_partition, directories)):
                inside.append(fact)
        files |= _data_objects(entry, inside)
    in_splits = _split_objects(entry, prefixes)
    if in_splits and files:
        names_of_splits = sorted({path.relative_to(entry).parts[0] for path in in_splits})
        raise InputError(
            f"{', '.join(names_of_splits)} are splits by their names, and {min(files).name} belongs"
            " to none of them",
            path=entry,
            remedy="give one prefix, or move the other data away",
        )
    return _Objects(files | in_splits, entry)


def _split_objects(entry: Path, prefixes: Iterable[str]) -> dict[Path, _Stat]:
    """List the data files of the prefixes that are named as splits."""
    files: dict[Path, _Stat] = {}
    for name in filter(is_split_name, prefixes):
        files |= _objects(entry / name).files
    return files


def _data_objects(prefix: Path, objects: Iterable[Fact]) -> dict[Path, _Stat]:
    """Select the data files below a prefix. Raises `InputError` for an unfinished one."""
    files = {}
    left_out: list[str] = []
    location = place_of(prefix)
    for fact in objects:
        path = prefix / fact.name
        refuse_unfinished([str(path)])
        if is_data_name(path.name):
            files[path] = _object_stat(location, fact)
        elif _is_left_out(path.name):
            left_out.append(str(path))
    if files and left_out:
        _warn_left_out(len(left_out), min(left_out))
    return files


def _matching_objects(pattern: Path) -> _Objects:
    """List the data files that a pattern matches."""
    depth = next(at for at, part in enumerate(pattern.parts) if _has_wildcard(part))
    prefix = type(pattern)(*pattern.parts[:depth])
    every = place_of(prefix).files_below()
    below = [fact for fact in every if matches(fact.name.split("/"), pattern.parts[depth:])]
    directories = {(prefix / fact.name).parent for fact in below}
    _refuse_foreign_prefixes(prefix, [fact.name for fact in every], directories)
    return _Objects(_data_objects(prefix, below), prefix)


def _saved_objects(entry: Path, saved: Mapping[str, Sequence[str]]) -> dict[Path, _Stat]:
    """Look up the files that a saved dataset lists."""
    listed = [entry / name for name in chain.from_iterable(saved.values())]
    objects_by_path: dict[Path, Fact] = {}
    for directory in {path.parent for path in listed}:
        _, objects = place_of(directory).children()
        objects_by_path.update((directory / fact.name, fact) for fact in objects)
    for path in listed:
        if path not in objects_by_path:
            raise InputError(
                "is missing, so the dataset is not whole", path=path, remedy="upload it again"
            )
    return {path: _object_stat(place_of(entry), objects_by_path[path]) for path in listed}


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
        error = refusal(directory, names_in)
        if error is None:
            continue
        if directory in matched or any(directory in match.parents for match in matched):
            raise error
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
            f"a name is not UTF-8, near {near!a}",
            path=root,
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
    if is_saved({child.name for child in children}):
        return True
    if any(is_data_name(child.name) and child.is_file() for child in children):
        return True
    inside = []
    for child in children:
        if child.is_dir() and (is_split_name(child.name) or is_partition(child.name)):
            inside.append(child.path)
    for path in inside:
        for name in os.listdir(path):
            if is_data_name(name):
                return True
            if is_partition(name) and holds_data(os.path.join(path, name)):
                return True
    return False


def _pattern_of(directory: str, below: str, name: str) -> str:
    """Return the glob pattern below a directory that matches a data file and those beside it."""
    steps = os.path.relpath(below, directory).split(os.sep)
    longest_first = sorted(FORMATS.endings, key=len, reverse=True)
    ending = next(word for word in longest_first if name.lower().endswith(word))
    return os.path.join(directory, *"*" * len(steps), f"*{name[-len(ending) :]}")


def nested_pattern(directory: str) -> str | None:
    """Return the pattern of the data files in subdirectories, if the directory itself holds none
    and all data files below it match; else None.
    """
    names = []
    for below, directories, files in os.walk(directory):
        directories[:] = sorted(name for name in directories if name[0] not in "._")
        names += [os.path.join(below, name) for name in sorted(filter(is_data_name, files))]
    if not names:
        return None
    below, name = os.path.split(names[0])
    pattern = _pattern_of(directory, below, name)
    return pattern if set(glob.glob(pattern)) == set(names) else None


def no_data(directory: str) -> InputError:
    """Build the error for a directory without data files, after a look at what it holds."""
    problem = f"holds no {FORMATS.listed()} file"
    for at, (below, directories, files) in enumerate(os.walk(directory)):
        error = refusal(Path(below), {*directories, *files})
        if error is not None:
            where = f"itself; its subdirectory {below} " if at else "that is its rows; it "
            return NoMatch(
                f"{problem} {where}{error.args[0]}", path=directory, remedy=error.marked_remedy
            )
        directories[:] = sorted(name for name in directories if name[0] not in "._")
        data = sorted(filter(is_data_name, files))
        if data:
            pattern = _pattern_of(directory, below, data[0])
            return NoMatch(
                f"{problem} itself, its subdirectories do",
                path=directory,
                remedy=f"give {pattern!r}",
            )
        if at == _FEW_DIRECTORIES:
            break
    others = []
    for name in os.listdir(directory):
        if name[0] not in "._" and os.path.isfile(os.path.join(directory, name)):
            others.append(name)
    if not others:
        return NoMatch(problem, path=directory, remedy="give the directory of the shards")
    others.sort(key=lambda name: (name.upper().startswith(("README", "LICENSE")), name))
    sheets = workbook(os.path.join(directory, others[0]))
    if sheets is not None:
        return sheets
    return NoMatch(
        f"{problem}; it has {others[0]}",
        path=directory,
        remedy="convert or unpack such files, or rename them to what they are",
    )


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
