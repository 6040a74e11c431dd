"""Shards that nobody prepared: files of Parquet, CSV, TSV or JSON lines, indexed when opened.

One split, called "all", or the splits that names of directories and files tell (train, val, test …). The index is built
in parallel – footers for Parquet, one scan for text – by one process of a machine, while others that open the same
files wait. It is kept in a cache directory under a name made of the files' names, sizes and times, so a changed file
gives a new index, and every process maps it there.

`publish_index` puts the same file beside the shards. Whoever opens them then copies it into the cache instead of
reading the shards, provided that it was made of the files as they are. Nobody maps the published file, because others
may replace it. The cache only saves time: where it cannot be written or read, each process has an index of its own.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

import numpy as np

from headrace.dataset.index import Index
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.plain_index import OnProgress, build, files_of_splits
from headrace.dataset.stored_index import VERSION, StoredIndex, map_index, parse_stored, problem_beside
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import default_workers
from headrace.errors import CorruptShard, InputError, SettingsError, StoreError
from headrace.formats.detect import kind_of_name
from headrace.formats.listing import Listing, home_of, list_files
from headrace.formats.named_splits import partition_columns
from headrace.formats.schema import REMEDY, few, is_headless, type_named
from headrace.formats.source import told_empty
from headrace.printable import printable
from headrace.storage.local import alone, make_directory, write_new
from headrace.storage.places import local_path_of, place_of

Place = Literal["beside", "cache"]
_Tone = Literal["loud", "silent"]
BESIDE = ".headrace"  # the directory of a published index, in that of the shards
_PATIENCE_S = 5.0  # a process that waits longer than this for another one's index says so, once
_REPORT_S = 10.0  # between two lines of the log about an index that is being made
_MANY_FILES = 1000  # to index fewer takes no time worth a warning
log = logging.getLogger("headrace")


class PlainDataset(IndexedDataset):
    """Plain shards, read-only; made by `open_plain`."""

    def __init__(self, root: Path, index: StoredIndex, contents: str, empty_shards: Sequence[str] = ()) -> None:
        super().__init__(root)
        self._index = index
        self._contents = contents
        self._empty_shards = tuple(empty_shards)

    @property
    def index(self) -> Index:
        """All blocks."""
        return self._index

    @property
    def contents(self) -> str:
        """A digest of the files' names, sizes and times, and of what their columns were said to be."""
        return self._contents

    @property
    def empty_shards(self) -> tuple[str, ...]:
        """Names of the files that have no rows, sorted."""
        return self._empty_shards

    @property
    def split_rows(self) -> Mapping[str, int]:
        """Rows of each split: of every row, where names tell no splits."""
        return {split: each.total_rows for split, each in self._index.splits.items()}


def default_cache() -> Path:
    """Where indexes are kept unless the caller says otherwise."""
    try:
        return Path.home() / ".cache" / "headrace"
    except RuntimeError:
        raise SettingsError(
            "the cache of indexes has no place: this user has no home directory; set HOME, or give cache_dir"
            " (--cache-dir)"
        ) from None


def cache_directory(asked: str | Path | None, setting: str = "cache_dir") -> Path:
    """The directory that the caller named, or the default one. Raises `SettingsError` for one that is not local."""
    return default_cache() if asked is None else local_path_of(asked, setting)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The files that are asked about, and how their columns are to be read.

    files: a digest of the files, the same wherever their directory lies; contents: of the files where they lie, and of
    how they are read; published: where their index is published, which several entries have no place for.
    """

    listing: Listing
    types: Mapping[str, str]
    null_values: Sequence[str]
    files: str
    contents: str
    published: Path | None

    def problem(self, index: StoredIndex) -> str | None:
        """Why an index is not that of the files as they are now, or None."""
        if index.files != self.files:
            return "files came, went or changed after it was made"
        declared = {name: type_named(word) for name, word in self.types.items()}
        told = {name: index.schema.field(name).type for name in declared if name in index.schema.names}
        if told != declared or index.null_values != tuple(self.null_values):
            return "it was made with other types or null values"
        stamps = np.stack([self.listing.sizes, self.listing.mtimes_ns], axis=1)
        places = files_of_splits(self.listing)
        whole = len(places) == 1
        return problem_beside(
            index,
            {
                split: (self.listing.names if whole else [self.listing.names[each] for each in of.tolist()], stamps[of])
                for split, of in places.items()
            },
        )


def _ask(entries: Sequence[str | Path], types: Mapping[str, str], null_values: Sequence[str]) -> _Asked:
    if not entries:
        raise InputError("open: the list of files is empty; give at least one file, directory or pattern")
    for word in types.values():
        type_named(word)  # raises for a word that is none, before anything is looked at
    listing = list_files(entries, splits="keep")
    home, rest = home_of(entries[0]) if len(entries) == 1 else (None, "")
    reading = [dict(sorted(types.items())), list(null_values)]
    key = sha256_hex(canonical_json([rest, *reading]))
    return _Asked(
        listing=listing,
        types=types,
        null_values=null_values,
        files=listing.digest(home),
        contents=sha256_hex(canonical_json([VERSION, listing.digest(), listing.splits, *reading])),
        published=None if home is None else home / BESIDE / f"index-{key[:16]}.arrows",
    )


def open_plain(
    source: str | Path | Sequence[str | Path],
    *,
    types: Mapping[str, str] | None = None,
    null_values: Sequence[str] = (),
    cache_dir: str | Path | None = None,
    workers: int | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> PlainDataset:
    """Open a directory, a file, a glob, or a list of them.

    Of one directory or glob, the splits are those that names tell (see `formats.named_splits`), where they do.
    types: of columns of CSV and TSV files, which are text otherwise; null_values: texts that mean null in those.
    on_progress: hears (files looked at, files) while an index is built.
    Files without rows are skipped, and the log names them. Raises `InputError` if a file cannot be read,
    the files differ in their columns, or none holds anything; `SettingsError` on unknown types.
    """
    entries = [source] if isinstance(source, str | PurePath) else list(source)
    asked = _ask(entries, types or {}, null_values)
    index = _index_of(asked, _cached(asked, cache_dir), workers, on_progress, "loud")
    return _opened(asked, index)


@dataclass(frozen=True, kw_only=True)
class PublishedIndex:
    """An index that was published. how: "kept" if it was there already, and nothing was written."""

    path: Path
    place: Place
    how: Literal["written", "kept"]
    dataset: PlainDataset


def publish_index(
    source: str | Path,
    *,
    place: Place | None = None,
    types: Mapping[str, str] | None = None,
    null_values: Sequence[str] = (),
    cache_dir: str | Path | None = None,
    workers: int | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> PublishedIndex:
    """Publish the index of a directory, a file or a glob, for whoever opens the same with the same types and nulls.

    place: "beside" the shards, in a directory called .headrace; or in the "cache" alone; None: beside them, or in the
    cache where that directory cannot be written. An index that fits the files is left as it is. Raises as `open_plain`,
    and `StoreError` if the index cannot be written.
    """
    asked = _ask([source], types or {}, null_values)
    cached, was_cached = _cached(asked, cache_dir), False
    with suppress(CorruptShard):
        _fitting(asked, cached)
        was_cached = True
    index = _index_of(asked, cached, workers, on_progress, "silent")
    dataset = _opened(asked, index)
    target = asked.published
    if place != "cache" and target is not None:
        if _published(asked, "silent") is not None:
            return PublishedIndex(path=target, place="beside", how="kept", dataset=dataset)
        try:
            place_of(target).replace(index.data.to_pybytes())
        except StoreError:
            if place == "beside":
                raise
        else:
            place_of(target).sweep(older_than_s=3600.0)  # another machine may be publishing at this moment
            return PublishedIndex(path=target, place="beside", how="written", dataset=dataset)
    if any(each.mapped is None for each in index.splits.values()):  # the cache did not take it: say why
        place_of(cached).replace(index.data.to_pybytes())
    return PublishedIndex(path=cached, place="cache", how="kept" if was_cached else "written", dataset=dataset)


def _cached(asked: _Asked, cache_dir: str | Path | None) -> Path:
    return cache_directory(cache_dir) / f"index-{asked.contents}.arrows"


def _index_of(asked: _Asked, cached: Path, workers: int | None, on_progress: OnProgress, tone: _Tone) -> StoredIndex:
    """The index in the cache, which one process of this machine puts there while the others wait for it."""
    with suppress(CorruptShard):  # a file that is missing or damaged is made again
        return _fitting(asked, cached)
    lock = cached.with_suffix(".lock")
    with ExitStack() as stack:
        with suppress(StoreError):  # a cache that cannot be written: each process makes its own
            make_directory(cached.parent)
            stack.enter_context(alone(lock, waiting=lambda: _say_waiting(asked), patience_s=_PATIENCE_S))
        with suppress(CorruptShard):
            index = _fitting(asked, cached)
            _drop(lock)
            return index
        data = _published(asked, tone) or _built(asked, workers, on_progress)
        try:
            place_of(
                cached
            ).sweep()  # what a builder left that was killed: while this process has the lock, nobody writes it
            cached.unlink(missing_ok=True)
            write_new(cached, data, sync="none")
            index = _fitting(asked, cached)
        except (StoreError, CorruptShard, OSError) as error:
            if len(asked.listing.names) >= _MANY_FILES:
                text = (
                    f"{asked.listing.root}: its index cannot be kept ({error}); every process reads"
                    f" {len(asked.listing.names):,} files: give a cache_dir that can be written"
                )
                log.warning("%s", printable(text))
            return parse_stored(memoryview(data), cached)
        _drop(lock)
        return index


def _fitting(asked: _Asked, path: Path) -> StoredIndex:
    """The index in a file, mapped. Raises `CorruptShard` unless it is that of the files as they are now."""
    index = map_index(path)
    problem = asked.problem(index)
    if problem is not None:
        raise CorruptShard(f"{path}: {problem}; delete it")
    return index


def _published(asked: _Asked, tone: _Tone) -> bytes | None:
    """The published index, if it is that of the files as they are now. tone: whether the log says why it is not."""
    path = asked.published
    if path is None:
        return None
    try:
        data = place_of(path).read()
        index = parse_stored(memoryview(data), path)
        problem = asked.problem(index)
        if problem is None:
            # Only a foreign file is asked for this: it takes a second for a million blocks.
            if any(dataclasses.replace(each).identity != each.identity for each in index.splits.values()):
                raise CorruptShard(f"{path}: names its splits by other digests than theirs; delete it")
            return data
        why = f"{path}: is out of date: {problem}"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (CorruptShard, StoreError, OSError) as error:
        why = str(error) if not isinstance(error, OSError) else f"{path}: cannot be read ({error.strerror})"
    if tone == "loud":
        log.warning("%s", printable(f"{why}; the shards are indexed anew: `headrace index` publishes the index again"))
    return None


def _built(asked: _Asked, workers: int | None, on_progress: OnProgress) -> bytes:
    kinds = {name: type_named(word) for name, word in asked.types.items()}
    listing = asked.listing
    log.info("%s", printable(f"{listing.root}: making the index of {len(listing.names):,} files"))
    last = [time.monotonic()]

    def hear(done: int, total: int) -> None:
        if time.monotonic() - last[0] >= _REPORT_S:
            last[0] = time.monotonic()
            log.info("%s", printable(f"{listing.root}: {done:,} of {total:,} files are indexed"))
        on_progress(done, total)

    return build(listing, kinds, asked.null_values, workers or default_workers(), asked.files, hear)


def _say_waiting(asked: _Asked) -> None:
    text = f"{asked.listing.root}: waiting for another process of this machine, which is making the index"
    log.warning("%s", printable(text))


def _drop(lock: Path) -> None:
    """Remove a lock file whose purpose is served: whoever waits for it finds the index, and nobody else will wait."""
    with suppress(OSError):
        lock.unlink()


def _opened(asked: _Asked, index: StoredIndex) -> PlainDataset:
    names, listing = index.schema.names, asked.listing
    kind = kind_of_name(listing.names[0])
    if kind is not None and kind.format in ("csv", "tsv") and is_headless(names):
        file = listing.path(0)
        text = f"{file}: its first line, {few(names)}, was taken for names of columns and looks like data; {REMEDY}"
        warnings.warn(printable(text), UserWarning, stacklevel=3)
    lost = [name for name in partition_columns(listing.names) if name not in names]
    if lost:
        text = (
            f"{listing.root}: names of directories say {few(lost)}, and the files do not; it is not read: write it into"
            " the files if it is needed"
        )
        warnings.warn(printable(text), UserWarning, stacklevel=3)
    empty: list[str] = []
    if sum(len(each.shards) for each in index.splits.values()) < len(listing.names):
        holding = {name for each in index.splits.values() for name in each.shards}
        empty = [name for name in listing.names if name not in holding]
    if empty:
        log.warning("%s", printable(told_empty(empty, len(listing.names), "files")))
    return PlainDataset(listing.root, index, asked.contents, empty)
