"""Open plain shards: files of Parquet, CSV, TSV or JSON lines, indexed when opened.

There is one split, called "all", or the splits in the names of directories and files (train, val,
test …). The index is built in threads – from footers for Parquet, in one scan for text – by one
process of a machine, while others that open the same files wait. It takes O(blocks) memory for
numbers and names; equal schemas are stored once. It is kept in a cache directory under a name
derived from the files' names, sizes and times, so a changed file gives a new index, and every
process maps it there.

`publish_index` puts the same file beside the shards. Later processes then copy it into the cache
instead of reading the shards, if it matches the current files. The published file itself is never
mapped, because others may replace it. The cache only saves time: if it cannot be written or read,
each process builds an index of its own.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Literal, NamedTuple, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.dataset.index import Index, SplitIndex, int64_array, text_array
from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.sound import is_valid_name
from headrace.dataset.stored_index import (
    VERSION,
    StoredIndex,
    map_index,
    parse_stored,
    stored_bytes,
)
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, InputError, SettingsError, StoreError, setting, spell
from headrace.formats.common_schema import (
    DistinctShards,
    Drift,
    columns_with_gaps,
    common_schema,
    with_content,
)
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.evidence import Evidence
from headrace.formats.header import row_for_names
from headrace.formats.listing import Listing, home_of, list_files
from headrace.formats.names import in_order
from headrace.formats.partitions import ignored_names, partition_types, stored
from headrace.formats.registry import file_type_of_name
from headrace.formats.shard import Shard
from headrace.formats.source import describe_empty, look_at_all
from headrace.formats.type_words import by_column, keeps_text
from headrace.formats.types import column_types, is_text, shorten_list
from headrace.formats.widen import Layouts, list_changes, same_columns, schema_as_read
from headrace.printable import printable
from headrace.storage.cache_room import cache_directory as cache_directory
from headrace.storage.local import alone, make_directory, write_new
from headrace.storage.places import place_of

ALL = "all"
OnProgress = Callable[[int, int], None]
# of columns of text files, or "text" for all of them
DeclaredTypes = Mapping[str, str] | Literal["text"] | None
_FILES_A_TASK = 64  # enough that a task's overhead is small against reading footers

Place = Literal["beside", "cache"]
_Tone = Literal["loud", "silent"]
BESIDE = ".headrace"  # the directory of a published index, in that of the shards
_PATIENCE_S = 5.0  # a process that waits longer for another one's index logs this, once
_REPORT_S = 10.0  # between two log lines about an index being built
_MANY_FILES = 1000  # indexing fewer is too fast for a warning
log = logging.getLogger("headrace")


class PlainDataset(IndexedDataset):
    """Plain shards, read-only; made by `open_plain`.

    empty_shards: names of the files that have no rows, sorted.
    """

    def __init__(
        self, root: Path, index: StoredIndex, contents: str, empty_shards: Sequence[str] = ()
    ) -> None:
        super().__init__(root)
        self._index, self._contents, self.empty_shards = index, contents, tuple(empty_shards)

    @property
    def index(self) -> Index:
        """All blocks."""
        return self._index

    @property
    def contents(self) -> str:
        """A digest of the files' names, sizes and times, and of how their columns were declared."""
        return self._contents

    @property
    def split_rows(self) -> Mapping[str, int]:
        """The number of rows of each split; without splits in names, of the split "all"."""
        return {split: index.total_rows for split, index in self._index.splits.items()}


class PlainDeclared(TypedDict, total=False):
    """How the columns of plain shards are declared; see `open_plain`."""

    types: DeclaredTypes
    dialect: TextDialect
    schema_drift: Drift


class PlainSettings(PlainDeclared, total=False):
    """How plain shards are read and indexed; see `open_plain`."""

    cache_dir: str | Path | None
    workers: int | None
    on_progress: OnProgress


class _IndexRequest:
    """The requested files, how their columns are to be read, and where their index is kept.

    files: a digest of the files, independent of the location of their directory. contents: a digest
    of the files at their location, and of how they are read. published: where their index is
    published; None for several entries.
    """

    def __init__(  # noqa: PLR0913 - all are settings
        self,
        entries: Sequence[str | Path],
        *,
        types: DeclaredTypes = None,
        dialect: TextDialect = PLAIN,
        schema_drift: Drift = "error",
        cache_dir: str | Path | None = None,
        workers: int | None = None,
        on_progress: OnProgress = lambda done, total: None,
    ) -> None:
        if not entries:
            raise InputError(
                "the list of files is empty", remedy="give at least one file, directory or pattern"
            )
        words = by_column(types)
        self.keeps_text = keeps_text(words)
        self.types = column_types(words)
        self.dialect = dialect
        self.schema_drift = schema_drift
        self.workers = workers
        self.on_progress = on_progress
        self.listing = listing = list_files(entries, splits="keep")
        if len(entries) == 1:
            home, pattern = home_of(entries[0])
        else:
            home, pattern = (None, "")
        self.partitions = partition_types(listing.names, self.types)
        reading: list[object] = [dict(sorted(words.items())), dialect.stored()]
        if self.partitions:  # keeps the keys of other sources unchanged
            reading.append([[name, str(type_)] for name, type_ in self.partitions.items()])
        if schema_drift != "error":
            reading.append({"schema_drift": schema_drift})
        self.files = sha256_hex(canonical_json([listing.digest(home), *reading]))
        self.contents = sha256_hex(
            canonical_json([VERSION, listing.digest(), listing.splits, *reading])
        )
        self.cached = cache_directory(cache_dir) / f"index-{self.contents}.arrows"
        key = sha256_hex(canonical_json([pattern, *reading]))[:16]
        if home is None:
            self.published = None
        else:
            self.published = home / BESIDE / f"index-{key}.arrows"

    def problem(self, index: StoredIndex) -> str | None:
        """Return why an index does not match the current files, or None."""
        types = {}
        for name in self.types:
            if name in index.schema.names:
                types[name] = index.schema.field(name).type
        widened = self.schema_drift == "widen"
        if (types != self.types and not widened) or index.dialect != self.dialect.stored():
            return "it was made with other types or another dialect"
        if index.files != self.files:
            return "files came, went or changed after it was made"
        files_of = files_of_splits(self.listing)
        if list(index.splits) != list(files_of):
            return f"its splits are not {', '.join(files_of)}"
        for split, files in files_of.items():
            problem = self._split_problem(index.splits[split], files)
            if problem is not None:
                return problem
        return None

    def _split_problem(self, split: SplitIndex, files: I64) -> str | None:
        """Return why the index of a split does not match the listed files with these numbers."""
        names = self.listing.names
        if len(files) < len(names):
            names = [names[number] for number in files.tolist()]
        shards = text_array(split.shards)
        listed = text_array(names)
        if not shards.equals(listed):
            # Files without rows are not in an index. This detects names that are only in the index.
            positions = pc.index_in(shards, listed)
            if positions.null_count:
                missing = shards.filter(pc.is_null(positions))[0].as_py()
                return (
                    f"it has {missing[:80]!r}" if is_valid_name(missing) else "it has files outside"
                )
            files = files[positions.to_numpy()]
        stamps = self.listing.stat_array[files, :2]
        if split.stamps is None or not np.array_equal(split.stamps, stamps):
            return "files have other sizes or times"
        return None

    def index(self, tone: _Tone) -> StoredIndex:
        """Return the index in the cache, which one process of this machine builds while the others
        wait for it.

        tone: whether the log says why a published index is not used.
        """
        cached = self.cached
        root = self.listing.root
        with suppress(CorruptShard):  # a missing or damaged file is built again
            return self.mapped()

        def say_waiting() -> None:
            _warn(f"{root}: waiting for another process of this machine, which is making the index")

        lock = cached.with_suffix(".lock")
        with ExitStack() as stack:
            with suppress(StoreError):  # without a writable cache each process builds its own
                make_directory(cached.parent)
                stack.enter_context(alone(lock, waiting=say_waiting, patience_s=_PATIENCE_S))
            try:
                index = self.mapped()
            except CorruptShard:
                data = self.published_bytes(tone) or self._built()
                try:
                    # Leftovers of a killed builder: while this process has the lock, no other one
                    # writes.
                    place_of(cached).sweep()
                    cached.unlink(missing_ok=True)
                    write_new(cached, data, sync="none")
                    index = self.mapped()
                except (StoreError, CorruptShard, OSError) as error:
                    if len(self.listing.names) >= _MANY_FILES:
                        _warn(
                            f"{root}: its index cannot be kept ({error}); every process reads"
                            f" {len(self.listing.names):,} files: give a cache_dir that can be"
                            " written"
                        )
                    return parse_stored(memoryview(data), cached)
            with suppress(OSError):  # no longer needed: waiting processes find the index
                lock.unlink()
            return index

    def mapped(self) -> StoredIndex:
        """Map the index in the cache. Raises `CorruptShard` unless it matches the current files."""
        index = map_index(self.cached)
        problem = self.problem(index)
        if problem is not None:
            raise CorruptShard(problem, path=self.cached, remedy="delete it")
        return index

    def published_bytes(self, tone: _Tone) -> bytes | None:
        """Read the published index; None unless it matches the current files."""
        path = self.published
        if path is None:
            return None
        try:
            data = place_of(path).read()
            index = parse_stored(memoryview(data), path)
            problem = self.problem(index)
            if problem is None:
                # Checked for published files only: it takes a second for a million blocks.
                if any(
                    replace(split_index).identity != split_index.identity
                    for split_index in index.splits.values()
                ):
                    raise CorruptShard(
                        "names its splits by other digests than theirs",
                        path=path,
                        remedy="delete it",
                    )
                return data
            why = f"{path}: is out of date: {problem}"
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (CorruptShard, StoreError, OSError) as error:
            if not isinstance(error, OSError):
                why = str(error)
            else:
                why = f"{path}: cannot be read ({error.strerror})"
        if tone == "loud":
            _warn(f"{why}; the shards are indexed again: `headrace index` publishes the new index")
        return None

    def _built(self) -> bytes:
        listing = self.listing
        last = time.monotonic()
        log.info(
            "%s", printable(f"{listing.root}: making the index of {len(listing.names):,} files")
        )

        def report(done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _REPORT_S:
                last = time.monotonic()
                log.info(
                    "%s", printable(f"{listing.root}: {done:,} of {total:,} files are indexed")
                )
            self.on_progress(done, total)

        workers = self.workers or default_workers()
        data = build(self, workers=workers, on_progress=report)
        if not self.keeps_text:
            self._log_types(parse_stored(memoryview(data), self.cached).schema)
        return data

    def _log_types(self, schema: pa.Schema) -> None:
        """Say which types columns of text files have by the evidence of their values."""
        first = file_type_of_name(self.listing.names[0])
        if first is None or first.format.separator is None:
            return
        words = []
        for field in schema:
            if field.name not in self.types and not is_text(field.type):
                words.append(f"{field.name} {field.type}")
        if words:
            log.info(
                "%s",
                printable(
                    f"{self.listing.root}: types that every value fits: {shorten_list(words)};"
                    f" {spell(setting('types', 'text'))} keeps text"
                ),
            )


def open_plain(
    source: str | Path | Sequence[str | Path], **settings: Unpack[PlainSettings]
) -> PlainDataset:
    """Open a directory, a file, a glob, or a list of them.

    For one directory or glob, the splits are those in the names of files, if any (see
    `formats.names`). types: of columns of CSV and TSV files, or "text" for all of them; the others
    have the types that all of their values fit (see `formats.evidence`). dialect: how those files
    are written. schema_drift: "widen" reads shards that differ as `common_schema` says, and the log
    lists how they differ. on_progress: called with (files read, files) while an index is built.
    Files without rows are skipped, and the log names them. Raises `InputError` if a file cannot be
    read, the files differ in their columns, or none has any content; `SettingsError` on unknown
    types.
    """
    if isinstance(source, str | PurePath):
        entries = [source]
    else:
        entries = list(source)
    for entry in entries:
        if not isinstance(entry, str | PurePath):
            raise SettingsError(
                f"{type(source).__name__} of {type(entry).__name__} is neither paths nor a table",
                remedy="give paths, or make a table of the rows, such as with polars.DataFrame(…)",
            )
    request = _IndexRequest(entries, **settings)
    return _opened(request, request.index("loud"))


def refuse_plain_settings(
    path: Path,
    *,
    types: DeclaredTypes = None,
    dialect: TextDialect = PLAIN,
    schema_drift: Drift = "error",
) -> None:
    """Raise `SettingsError` for settings of plain shards, if given for a prepared dataset."""
    if types or dialect != PLAIN:
        raise SettingsError(
            f"{setting('types')} and {setting('dialect')} are for plain text shards, and this is a"
            " prepared dataset",
            path=path,
            remedy="leave them out, or declare them when preparing",
        )
    if schema_drift != "error":
        raise SettingsError(
            "this is for plain shards, and those of a prepared dataset have one schema",
            path=path,
            setting="schema_drift",
            value=schema_drift,
            remedy="leave it out",
        )


@dataclass(frozen=True, kw_only=True)
class PublishedIndex:
    """A published index. how: "kept" if it was there already, and nothing was written."""

    path: Path
    location: Place
    how: Literal["written", "kept"]
    dataset: PlainDataset


def publish_index(
    source: str | Path, *, location: Place | None = None, **settings: Unpack[PlainSettings]
) -> PublishedIndex:
    """Publish the index of a directory, a file or a glob, for all later opens with the same types
    and dialect.

    location: "beside" the shards, in a directory called .headrace; or in the "cache" alone; None:
    beside them, or in the cache if that directory cannot be written. An index that matches the
    files is left as it is. Raises as `open_plain`, and `StoreError` if the index cannot be written.
    """
    request = _IndexRequest([source], **settings)
    was_cached = False
    with suppress(CorruptShard):
        request.mapped()
        was_cached = True
    index = request.index("silent")
    dataset = _opened(request, index)
    target = request.published
    cached = request.cached
    if location != "cache" and target is not None:
        if request.published_bytes("silent") is not None:
            return PublishedIndex(path=target, location="beside", how="kept", dataset=dataset)
        try:
            place_of(target).replace(index.data.to_pybytes())
        except StoreError:
            if location == "beside":
                raise
        else:
            place_of(target).sweep(older_than_s=3600.0)  # another machine may be publishing now
            return PublishedIndex(path=target, location="beside", how="written", dataset=dataset)
    # the cache failed; this raises the reason
    if any(split_index.mapped is None for split_index in index.splits.values()):
        place_of(cached).replace(index.data.to_pybytes())
    return PublishedIndex(
        path=cached, location="cache", how="kept" if was_cached else "written", dataset=dataset
    )


def _opened(request: _IndexRequest, index: StoredIndex) -> PlainDataset:
    listing = request.listing
    file_type = file_type_of_name(listing.names[0])
    if file_type is not None and file_type.format.separator is not None:
        text = row_for_names(listing.path(0), index.schema)
        if text is not None:
            warnings.warn(printable(text), UserWarning, stacklevel=4)
    empty: list[str] = []
    if sum(len(split_index.shards) for split_index in index.splits.values()) < len(listing.names):
        holding: set[str] = set()
        for split_index in index.splits.values():
            holding.update(split_index.shards)
        empty = [name for name in listing.names if name not in holding]
        _warn(describe_empty(empty, len(listing.names), "files"))
    read = {name for split_index in index.splits.values() for name in split_index.partitioned}
    for line in ignored_names(request.partitions, read):
        _warn(f"{listing.root}: {line}")
    for change in changes_of(index):
        log.info("%s", printable(f"{listing.root}: {change}"))
    return PlainDataset(listing.root, index, request.contents, empty)


def changes_of(index: Index) -> list[str]:
    """List in words how the shards of plain datasets differ from the schema; see `list_changes`."""
    splits = list(index.splits.values()) if isinstance(index, StoredIndex) else []
    layouts = splits[0].layouts if splits else ()
    if not layouts:
        return []
    counts = np.zeros(len(layouts), np.int64)
    for split in splits:
        assert split.layout_of_shard is not None
        counts += np.bincount(split.layout_of_shard, minlength=len(layouts))
    return list_changes(layouts, index.schema, counts.tolist())


def _warn(text: str) -> None:
    log.warning("%s", printable(text))


def _with_types(shard: Shard, types: Mapping[str, pa.DataType]) -> Shard:
    """Return a shard of text with the types of its columns, and others as they are."""
    if shard.dialect is None or not types:
        return shard
    fields = []
    for field in shard.schema:
        if field.name in types and field.name not in shard.partition:
            field = field.with_type(types[field.name])
        fields.append(field)
    return replace(shard, schema=pa.schema(fields))


def build(
    request: _IndexRequest, *, workers: int, on_progress: OnProgress = lambda done, total: None
) -> bytes:
    """Build the index of the listed files as the bytes of a file; see `stored_index`.

    on_progress: called with (files done, files) from any thread.
    Raises `InputError` if a file cannot be read or files differ in their columns, `SettingsError`
    on types of columns that no text file has.
    """
    listing = request.listing
    done = 0

    def look(start: int) -> _Looked:
        nonlocal done
        numbers = range(start, min(start + _FILES_A_TASK, len(listing.names)))
        looked = _look_at_files(request, numbers)
        done += len(numbers)
        on_progress(done, len(listing.names))
        return looked

    tasks = [partial(look, start) for start in range(0, len(listing.names), _FILES_A_TASK)]
    looked = _joined(run_tasks(tasks, workers), request.dialect)
    _refuse_unknown_types(request, looked.shards)
    types = {**looked.evidence.types(), **request.types}
    shards = [_with_types(shard, types) for shard in looked.shards]
    schema = common_schema(shards, request.schema_drift)
    layouts = _layouts_of(shards, schema)
    counts = np.array(looked.counts, np.int64)
    number, rows, offset, length = looked.blocks.T
    like = SplitIndex(
        split=ALL,
        schema=schema,
        shards=listing.names,
        formats=looked.words,
        shard_of_block=np.repeat(np.arange(len(counts)), counts),
        block=number,
        rows=rows,
        offset=offset,
        length=length,
        partitioned=tuple(with_content(shards)[0].partition),
        layouts=layouts.schemas,
        layout_of_shard=layouts.of_shards[looked.kinds],
        gaps=tuple(sorted(looked.evidence.gaps() | columns_with_gaps(shards, schema))),
    )
    return stored_bytes(
        _splits(listing, like, counts), schema, request.dialect.stored(), request.files
    )


def _joined(results: Sequence[_Looked], dialect: TextDialect) -> _Looked:
    """Join what tasks found, in the order of the files."""
    distinct = DistinctShards()
    kinds: list[int] = []
    words: list[str] = []
    counts: list[int] = []
    evidence = Evidence(dialect)
    for looked in results:
        numbers = [distinct.add(shard) for shard in looked.shards]
        kinds += [numbers[number] for number in looked.kinds]
        words += looked.words
        counts += looked.counts
        evidence.join(looked.evidence.words)
    blocks = np.concatenate([looked.blocks for looked in results])
    return _Looked(distinct.shards, kinds, words, counts, blocks, evidence)


def _look_at_files(request: _IndexRequest, numbers: range) -> _Looked:
    """Survey the listed files with these numbers, and find their blocks."""
    listing = request.listing
    evidence = Evidence(request.dialect)
    evidence.leave_out(request.types)
    distinct = DistinctShards()
    words: list[str] = []
    kinds: list[int] = []
    counts: list[int] = []
    blocks: list[tuple[int, int, int, int]] = []
    looked = look_at_all(
        [(listing.path(number), listing.names[number]) for number in numbers],
        [listing.stats[number][0] for number in numbers],
        request.partitions,
        dialect=request.dialect,
        evidence=None if request.keeps_text else evidence,
    )
    for number, (shard, spans) in zip(numbers, looked, strict=True):
        stat = listing.stats[number]
        if (shard.size, shard.mtime_ns) != stat[:2]:
            shard = replace(shard, size=stat[0], mtime_ns=stat[1])
        words.append(shard.word)
        counts.append(len(spans))
        blocks += [(span.block, span.rows, span.offset, span.length) for span in spans]
        kinds.append(distinct.add(shard))
    spans_array = np.array(blocks, np.int64).reshape(-1, 4)
    return _Looked(distinct.shards, kinds, words, counts, spans_array, evidence)


def _refuse_unknown_types(request: _IndexRequest, shards: Sequence[Shard]) -> None:
    """Raise `SettingsError` for types of columns that neither text files nor names have."""
    text = set(request.partitions)
    for shard in shards:
        if shard.dialect is not None:
            text.update(stored(shard).schema.names)
    unknown = sorted(set(request.types) - text)
    if unknown:
        raise SettingsError(
            "no CSV or TSV file or name of a directory has this column",
            setting="types",
            column=unknown[0],
            remedy=f"choose one of {', '.join(sorted(text)) or 'none, as all columns have types'}",
        )


class _Looked(NamedTuple):
    """What a task finds in files: a shard for each distinct declaration of columns, and of each
    file its index in them, its format and the number of its blocks.

    blocks: of each, number, rows, offset and length, int64 [blocks, 4]. evidence: of the types of
    columns of text.
    """

    shards: Sequence[Shard]
    kinds: list[int]
    words: list[str]
    counts: list[int]
    blocks: I64
    evidence: Evidence


class _LayoutsOf(NamedTuple):
    """The distinct columns of shards, with those of the index first, and the index in them of each
    shard; no schemas if all shards have those of the index.
    """

    schemas: tuple[pa.Schema, ...]
    of_shards: I64


def _layouts_of(shards: Sequence[Shard], schema: pa.Schema) -> _LayoutsOf:
    layouts = Layouts()
    layouts.number(schema)
    numbers = []
    for shard in shards:
        file_schema = schema
        if shard.content != "nothing":
            file_schema = schema_as_read(shard.schema, schema)
        numbers.append(0 if same_columns(file_schema, schema) else layouts.number(file_schema))
    schemas = tuple(layouts.schemas) if any(numbers) else ()
    return _LayoutsOf(schemas, np.array(numbers, np.int64))


def _splits(listing: Listing, like: SplitIndex, counts: I64) -> list[SplitIndex]:
    """Return the blocks of each split in names, or of all files; a split of files without rows has
    no blocks.

    like: of all files and their blocks; counts: of each file's blocks.
    """
    words = text_array(like.formats)
    firsts = np.cumsum(counts) - counts
    indexes = []
    for split, files in files_of_splits(listing).items():
        holding = files[counts[files] > 0]
        block_counts = counts[holding]
        shard_of_block = np.repeat(np.arange(len(holding)), block_counts)
        inside = np.arange(len(shard_of_block)) - np.repeat(
            np.cumsum(block_counts) - block_counts, block_counts
        )
        blocks = firsts[holding][shard_of_block] + inside
        layout_of_shard = np.empty(0, np.int64)
        if like.layouts:
            assert like.layout_of_shard is not None
            layout_of_shard = like.layout_of_shard[holding]
        indexes.append(
            replace(
                like,
                split=split,
                shards=[listing.names[number] for number in holding.tolist()],
                formats=words.take(int64_array(holding)).to_pylist(),
                shard_of_block=shard_of_block,
                block=like.block[blocks],
                rows=like.rows[blocks],
                offset=like.offset[blocks],
                length=like.length[blocks],
                checksums=[""] * len(holding),
                stamps=listing.stat_array[holding, :2],
                layout_of_shard=layout_of_shard,
            )
        )
    return indexes


def files_of_splits(listing: Listing) -> dict[str, I64]:
    """Return the listing indices of each split's files, sorted; of one split, "all", if names tell
    none.
    """
    if not listing.splits:
        return {ALL: np.arange(len(listing.names))}
    words = np.array(listing.splits)
    return {split: np.flatnonzero(words == split) for split in in_order(listing.splits)}
