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
    def facts(self) -> I64:
        """Size, modification time and time of change of each file, int64 [files, 3].

        Users cannot set back the time of change; it is 0 for objects.
        """
        import numpy as np  # which settings that only name their files do not wait for

        return np.array(self.stats, np.int64).reshape(-1, 3)

    @property
    def sizes(self) -> I64:
        """Bytes of each file."""
        return self.facts[:, 0]

    def path(self, place: int) -> Path:
        """Return the path of a file."""
        return self.root / self.names[place]

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
        return sha256_hex(b"%d\0%s%s" % (len(text), text, self.facts.T.tobytes()))


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
    places = [path_of(entry) for entry in source]
    remote = [place for place in places if place_of(place).reads == "requests"]
    if remote:
        if len(remote) < len(source):
            raise InputError(f"{remote[0]}: is mixed with local files; give places of one kind")
        return _remote_listing(remote, splits)
    found: dict[str, _Found] = {}
    words: dict[str, str] = {}
    tables: set[str] = set()  # directories that were checked for being those of a table
    for place in places:
        path = str(place)
        files: list[_Found] = []
        if os.path.isdir(path):
            own, told = _directory_files(path)
            told = _splits(address_of(path) or path, [name for name, _, _ in own], splits, told)
            absolute = os.path.abspath(path)
            real = os.path.realpath(path)
            # so no duplicates to look for
            if len(source) == 1 and not any(is_link for _, _, is_link in own):
                return _listing(absolute, [(name, stat) for name, stat, _ in own], told)
            for name, stat, is_link in own:
                each = os.path.join(absolute, name)
                files.append(
                    (each, os.path.realpath(each) if is_link else os.path.join(real, name), stat)
                )
        elif os.path.isfile(path):
            directory = os.path.dirname(os.path.abspath(path))
            if directory not in tables:
                tables.add(directory)
                if (warning := table_of_file(place)) is not None:
                    warnings.warn(printable(warning), UserWarning, stacklevel=2)
            files = _looked_at([path])
            told = []
        else:
            matched = _matched(path)
            told = _splits(
                path, [each[len(_fixed(path)) :].replace(os.sep, "/") for each in matched], splits
            )
            files = _looked_at(matched)
        found.update((each[0], each) for each in files)
        words.update((each[0], word) for each, word in zip(files, told, strict=False))
    root = os.path.commonpath({os.path.dirname(path) for path in found})
    # move the root above the directories of columns below an entry, so that names include them
    for place in places:
        entry = os.path.abspath(str(place) if os.path.isdir(place) else _fixed(str(place)))
        below = os.path.relpath(root, entry).split(os.sep)
        kept_parts = next((at for at, part in enumerate(below) if is_partition(part)), None)
        if kept_parts is not None and below[0] != os.pardir:
            root = os.path.join(entry, *below[:kept_parts])
    start = len(root.rstrip(os.sep)) + 1
    named = sorted((path[start:].replace(os.sep, "/"), path) for path in found)
    once: dict[str, tuple[str, _Stat, str]] = {}
    for name, path in named:
        _, real, stat = found[path]
        kept = once.setdefault(real, (name, stat, words.get(path, "")))
        if kept[2] != words.get(path, ""):
            raise InputError(
                f"{path}: is the same file as {kept[0]} of another split; remove one of the links"
            )
    told = []
    if len(source) == 1 and words:
        told = [word for _, _, word in once.values()]
    return _listing(root, [(name, stat) for name, stat, _ in once.values()], told)


def _splits(
    entry: str | Path,
    names: Sequence[str],
    splits: Literal["refuse", "keep"],
    told: list[str] | None = None,
) -> list[str]:
    """Return the split of each file below an entry, if names tell it.

    Raises `InputError` as in `list_files`.

    told: the splits that the directory itself defines; None if only names can tell.
    """
    try:
        if told is None:
            told = splits_of(names)
    except Mixed as mixed:
        raise InputError(
            f"{entry}: {mixed.belongs} belongs to a split by its name, and {mixed.without} to none;"
            " give the files of one split at a time, by directory or pattern"
        ) from None
    if splits == "refuse" and len(set(told)) > 1:
        several = in_order(told)
        first = [names[told.index(word)] for word in several]
        raise InputError(
            f"{entry}: holds several splits, {', '.join(several)} (such as"
            f" {' and '.join(first[:2])}), which are not merged; give the files of one split, or"
            " each split as an entry of its own to use them together"
        )
    return told


def home_of(entry: str | Path) -> tuple[Path, str]:
    """Split an entry into its directory and the rest: a pattern, a file name, or nothing."""
    path = path_of(entry)
    if place_of(path).reads == "requests":  # judged by name, without a request
        place = next(
            (at for at, part in enumerate(path.parts) if any(sign in part for sign in "*?[")), None
        )
        if place is not None:
            return type(path)(*path.parts[:place]), "/".join(path.parts[place:])
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
    """List the data files that a local pattern matches; directories of other systems are refused."""
    files = []
    for each in glob.glob(pattern, recursive=True):
        if os.path.isfile(each):
            files.append(each)
    for directory in sorted({os.path.dirname(each) for each in files}):
        here = Path(directory or ".")
        names = os.listdir(directory or ".")
        layout = layout_of(here, names)
        if layout is None or layout.files != "plain":  # a pattern may choose among plain files
            refuse_foreign(here, names)
    refuse_unfinished(files)
    data = []
    for each in files:
        if is_data_name(os.path.basename(each)):
            data.append(each)
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
        names = [name for own in saved.values() for name in own]
        found = zip(names, _looked_at(os.path.join(path, name) for name in names), strict=True)
        # the hub's cache stores equal files once: both are data
        root = os.path.realpath(path)
        is_view = VIEW in top
        files = [
            (name, stat, not is_view and real != os.path.join(root, name))
            for name, (_, real, stat) in found
        ]
        return files, _told(saved)
    refuse_foreign(Path(path), top)
    files += _in_partitions(path, others)
    held: dict[str, list[_File]] = {}
    for split in sorted(filter(is_split_name, others)):
        below = os.path.join(path, split)
        if os.path.isdir(below):
            own, own_others = _data_files(below)
            own += _in_partitions(below, own_others)
            if own:
                refuse_foreign(Path(below), _entries(own, own_others))
                refuse_unfinished(os.path.join(below, other) for other in own_others)
                held[split] = _moved(own, below)
    if not held and not files:
        raise NoMatch(f"{path}: {no_data(path)}")
    refuse_unfinished(os.path.join(path, other) for other in others)
    if not held:
        return files, None
    beside = min((name for name, _, _ in files), default=None)
    for name in sorted(others):
        below = os.path.join(path, name)
        if beside is None and name[0] not in "._" and name not in held and os.path.isdir(below):
            beside = next(
                (f"{name}/{each}" for each in sorted(os.listdir(below)) if is_data_name(each)), None
            )
    if beside is not None:
        raise InputError(
            f"{path}: {', '.join(held)} are splits by their names, and {beside} belongs to none of"
            f" them; give one directory, e.g. {os.path.join(path, next(iter(held)))}, or move the"
            " other data away"
        )
    return [file for own in held.values() for file in own], None


def _in_partitions(path: str, others: Iterable[str]) -> list[_File]:
    """List data files of subdirectories named after values of columns, at any depth.

    others: entries of `path`.
    """
    found: list[_File] = []
    for part in sorted(filter(is_partition, others)):
        below = os.path.join(path, part)
        if os.path.isdir(below):
            own, own_others = _data_files(below)
            refuse_foreign(Path(below), _entries(own, own_others))
            refuse_unfinished(os.path.join(below, other) for other in own_others)
            partition_of(f"{below}/")  # a link to a parent directory would be followed forever
            found += _moved([*own, *_in_partitions(below, own_others)], below)
    return found


def _entries(files: Iterable[_File], others: Iterable[str]) -> set[str]:
    return {*others, *(name for name, _, _ in files)}


def _moved(files: Iterable[_File], directory: str) -> list[_File]:
    """Name the files of a directory as its parent does."""
    last = os.path.basename(directory)
    is_link = os.path.islink(directory)
    return [(f"{last}/{name}", stat, linked or is_link) for name, stat, linked in files]


def _told(saved: Mapping[str, Sequence[str]]) -> list[str]:
    return [split for split, own in saved.items() for _ in own if split]


def _remote_listing(entries: Sequence[Path], splits: Literal["refuse", "keep"]) -> Listing:
    """List objects; each entry is an object, a prefix, or a pattern after the bucket's name."""
    found: dict[Path, _Stat] = {}
    words: dict[Path, str] = {}
    bases: list[Path] = []
    for entry in entries:
        files, fixed, own = _objects(entry)
        if entry not in files:
            bases.append(fixed)
        if not files:
            raise NoMatch(
                f"{entry}: no object of that name, or none with data below it; check the address"
                " and the bucket"
            )
        found |= files
        if entry not in files:
            told = _splits(
                entry, [path.relative_to(fixed).as_posix() for path in files], splits, own
            )
            words |= dict(zip(files, told, strict=False))
    parts = [path.parent.parts for path in found]
    depth = next(
        (at for at, each in enumerate(zip(*parts, strict=False)) if len(set(each)) > 1),
        min(map(len, parts)),
    )
    if depth < 2:
        raise InputError(f"{entries[0]}: the files lie in several buckets; give those of one")
    for fixed in bases:
        opened: tuple[str, ...] = ()
        if parts[0][: len(fixed.parts)] == fixed.parts:
            opened = parts[0][len(fixed.parts) : depth]
        depth = next(
            (len(fixed.parts) + at for at, part in enumerate(opened) if is_partition(part)), depth
        )
    root = type(entries[0])(*parts[0][:depth])
    told = []
    if len(entries) == 1 and words:
        told = [words[path] for path in found]
    return _listing(
        root, [(path.relative_to(root).as_posix(), stat) for path, stat in found.items()], told
    )


def _objects(entry: Path) -> tuple[dict[Path, _Stat], Path, list[str] | None]:
    """List the data files of an entry; also return the prefix that names are relative to, and the
    splits it defines.
    """
    place = place_of(entry)
    if any(sign in str(entry) for sign in "*?["):
        parts = entry.parts
        depth = next(
            depth for depth, part in enumerate(parts) if any(sign in part for sign in "*?[")
        )
        prefix = type(entry)(*parts[:depth])
        pattern = parts[depth:]
        every = [(prefix / fact.name, fact) for fact in place_of(prefix).files_below()]
        below = []
        for each in every:
            if matches(each[1].name.split("/"), pattern):
                below.append(each)
        _refuse_foreign_prefixes(
            prefix, [fact.name for _, fact in every], {path.parent for path, _ in below}
        )
        refuse_unfinished(str(path) for path, _ in below)
        return (
            {path: _object_stat(place, fact) for path, fact in below if is_data_name(path.name)},
            prefix,
            None,
        )
    if entry.is_file():
        return {entry: _object_stat(place, place.stat())}, entry.parent, None
    prefixes, facts = place.children()
    saved = saved_files(entry, {*prefixes, *(fact.name for fact in facts)})
    if saved is not None:
        listed = [entry / name for own in saved.values() for name in own]
        there = {
            each / fact.name: fact
            for each in {path.parent for path in listed}
            for fact in place_of(each).children()[1]
        }
        for path in listed:
            if path not in there:
                raise InputError(
                    f"{path}: is missing, so the dataset is not whole; upload it again"
                )
        return {path: _object_stat(place, there[path]) for path in listed}, entry, _told(saved)
    refuse_foreign(entry, {*prefixes, *(fact.name for fact in facts)})
    refuse_unfinished(str(entry / fact.name) for fact in facts)
    files = {}
    for fact in facts:
        if is_data_name(fact.name):
            files[entry / fact.name] = _object_stat(place, fact)
    if any(map(is_partition, prefixes)):
        inside = [(fact, fact.name.split("/")) for fact in place.files_below()]
        inside = [
            (fact, parts)
            for fact, parts in inside
            if all(map(is_partition, parts[:-1])) and len(parts) > 1
        ]
        refuse_unfinished(str(entry / fact.name) for fact, _ in inside)
        files |= {
            entry / fact.name: _object_stat(place, fact)
            for fact, parts in inside
            if is_data_name(parts[-1])
        }
    held = [(name, _objects(entry / name)[0]) for name in prefixes if is_split_name(name)]
    held = [each for each in held if each[1]]
    if held and files:
        raise InputError(
            f"{entry}: {', '.join(name for name, _ in held)} are splits by their names, and"
            f" {min(files).name} belongs to none of them; give one prefix, or move the other data"
            " away"
        )
    for _, own in held:
        files |= own
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
    for directory, own in sorted(entries.items()):
        layout = layout_of(directory, own)
        if layout is None or layout.files == "plain":
            continue
        if directory in matched or any(directory in each.parents for each in matched):
            raise InputError(f"{directory}: {layout.refusal(directory)}")
    if matched:
        refuse_foreign(prefix, ())


def _object_stat(place: Place, fact: Fact) -> _Stat:
    return fact.size, place.changed_ns(fact), 0


def _listing(
    root: str | Path, files: Sequence[tuple[str, _Stat]], splits: Sequence[str]
) -> Listing:
    try:
        "".join([str(root), *(name for name, _ in files)]).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 40) : error.start + 40]
        raise InputError(
            f"{str(root)!a}: a name is not UTF-8, near {near!a}; rename the file or directory"
        ) from None
    order = sorted(range(len(files)), key=lambda place: files[place][0])
    told = []
    if splits:
        told = [splits[place] for place in order]
    return Listing(
        path_of(root),
        [files[place][0] for place in order],
        [files[place][1] for place in order],
        told,
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
        found = list(entries)
    if is_saved(Path(directory), {each.name for each in found}):
        return True
    if any(is_data_name(each.name) and each.is_file() for each in found):
        return True
    inside = []
    for each in found:
        if each.is_dir() and (is_split_name(each.name) or is_partition(each.name)):
            inside.append(each.path)
    return any(
        is_data_name(name) or (is_partition(name) and holds_data(os.path.join(path, name)))
        for path in inside
        for name in os.listdir(path)
    )


def no_data(directory: str) -> str:
    """Explain that a directory has no data files, and what to give instead, after a look at what it
    holds.
    """
    said = f"holds no {FORMATS.listed()} file"
    with os.scandir(directory) as entries:
        others = sorted(
            each.name for each in entries if each.name[0] not in "._" and each.is_file()
        )
    for at, (below, directories, files) in enumerate(os.walk(directory)):
        layout = layout_of(Path(below), {*directories, *files})
        if layout is not None and at == 0:
            return layout.refusal(directory)
        if layout is not None:
            return f"{said} itself; its subdirectory {below} {layout.refusal(below)}"
        directories[:] = sorted(each for each in directories if each[0] not in "._")
        data = sorted(filter(is_data_name, files))
        if data:
            steps = os.path.relpath(below, directory).split(os.sep)
            longest_first = sorted(FORMATS.endings, key=len, reverse=True)
            ending = next(word for word in longest_first if data[0].lower().endswith(word))
            pattern = os.path.join(directory, *"*" * len(steps), f"*{data[0][-len(ending) :]}")
            return f"{said} itself, its subdirectories do; give {pattern!r}"
        if at == _FEW_DIRECTORIES:
            break
    if others:
        others.sort(key=lambda name: name.upper().startswith(("README", "LICENSE")))
        return (
            f"{said}; it has {others[0]}: convert or unpack such files, or rename them to what"
            " they are"
        )
    return f"{said}; give the directory of the shards"


def _looked_at(paths: Iterable[str]) -> list[_Found]:
    found = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        facts = stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
        found.append((os.path.abspath(path), os.path.realpath(path), facts))
    return found


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(
        f"{path}: cannot be read ({error.strerror}); check the file and its permissions"
    )
