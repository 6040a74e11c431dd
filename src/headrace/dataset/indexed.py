"""Define datasets that can be streamed: splits of blocks under one root, from a finished run or
plain shards.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, Bools
from headrace.dataset.index import Index, SplitIndex
from headrace.dataset.local_shards import FileCache
from headrace.dataset.local_shards import Verify as Verify
from headrace.dataset.manifest import in_usual_order
from headrace.dataset.small_shards import SmallShards
from headrace.dataset.sound import damaged
from headrace.digest import checksum_bytes
from headrace.errors import CorruptShard, InputError, SettingsError, setting, setting_name
from headrace.formats.column_paths import columns_of_paths, select_paths
from headrace.formats.decoders import Decoder, decoder_of_split, faster
from headrace.formats.dialect import TextDialect, dialect_of
from headrace.formats.joined import joins
from headrace.formats.names import partition_of
from headrace.formats.parquet import Stamp, fact_of, stamp_of
from headrace.formats.partitions import with_partition
from headrace.formats.plain_types import check_read
from headrace.formats.source import file_type_of_word, read_block
from headrace.formats.text_columns import typed
from headrace.formats.types import Target, in_schema
from headrace.formats.widen import RowsOf, fit
from headrace.storage.places import place_of

ReadBlock = Callable[[int, Sequence[str] | None], pa.Table]

_SECOND = 1_000_000_000  # nanoseconds
# bytes of a shard that are kept after its check, for a byte of the block to be read
_CONTENT_PER_BLOCK = 2
_MOST_CONTENT = 64 << 20  # bytes of a shard that are kept at most; one read takes less than 2 GiB
_CHECKING = tuple(Lock() for _ in range(64))


def _check_anew() -> None:
    """Drop the parent's check in a forked child: its thread was not copied, and its lock would stay
    locked.
    """
    global _CHECKING
    _CHECKING = tuple(Lock() for _ in _CHECKING)


os.register_at_fork(after_in_child=_check_anew)

ALIASES = {"oot": "test", "valid": "val", "val": "valid"}
_SYNONYMS = (
    ("train", "training"),
    ("val", "valid", "validation", "dev"),
    ("test", "testing", "oot"),
)


class IndexedDataset(ABC):
    """Splits of blocks, read-only.

    root: the directory that every path in the index is relative to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._split_indexes: dict[str, SplitIndex] = {}
        self._readers: dict[tuple[str, Verify, Decoder], ReadBlock] = {}

    @property
    @abstractmethod
    def index(self) -> Index:
        """All blocks."""

    @property
    @abstractmethod
    def split_rows(self) -> Mapping[str, int]:
        """The number of rows of each split."""

    @property
    def contents(self) -> str:
        """A digest that changes whenever the rows may.

        Raises `SettingsError` for a dataset that has none.
        """
        raise SettingsError(
            "has no digest of its contents to keep blocks under",
            path=self.root,
            remedy=f"leave {setting('cache', 'none')}",
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns that readers deliver."""
        return self.index.schema

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.split_rows)

    def split_named(self, requested: str) -> str | None:
        """Return the split's own name for it or an alias; None if there is no such split."""
        also = next((names for names in _SYNONYMS if requested in names), ())
        return next((name for name in (requested, *also) if name in self.splits), None)

    def split_index(self, split: str | None = None) -> SplitIndex:
        """Return the blocks of a split; None selects the only split.

        "oot" and "test" are one name, and so are "val", "valid" and "validation".

        Raises `InputError` on other names, and on None if there are several splits.
        """
        if split is None and len(self.splits) != 1:
            names = in_usual_order(self.splits)
            raise InputError(
                f"has {len(names)} splits, {', '.join(names)}, and {setting_name('split')} names"
                " none",
                path=self.root,
                remedy=f"name one of them, such as with {setting('split', names[0])}",
            )
        if split is None:
            only_split = self.splits[0]
        else:
            only_split = split
        name = self.split_named(only_split)
        if name is None:
            raise InputError(
                "there is no such split",
                path=self.root,
                setting="split",
                value=split,
                remedy=f"choose one of {', '.join(self.splits)}",
            )
        if name not in self._split_indexes:
            self._split_indexes[name] = self.index.split(name)
        return self._split_indexes[name]

    @cached_property
    def dialect(self) -> TextDialect:
        """How its text files are written. Raises `CorruptShard` if the index does not say so."""
        try:
            return dialect_of(self.index.dialect)
        except SettingsError as error:
            raise CorruptShard(
                f"its index has no dialect of text ({error})",
                path=self.root,
                remedy="prepare it again, or delete the index",
            ) from None

    def block_reader(
        self,
        split: str | None = None,
        *,
        verify: Verify = "first_touch",
        files: FileCache | None = None,
        decoder: Decoder = "auto",
    ) -> ReadBlock:
        """Return a function (block number in `split_index`, columns or None) → the rows of that
        block.

        verify: "first_touch" checks each shard against its checksum when this process first reads
        it; "never" does not. For Parquet in an object store the pages are checked instead, in
        either case: see the guide to object stores. files: keeps local copies of whole shards of an
        object store, which are checked against their checksum. decoder: of columns of Parquet,
        see `formats.decoders`. The rows are the same.
        """
        index = self.split_index(split)
        if files is not None:
            return BlockReader(self.root, index, self.dialect, files, decoder)
        key = index.split, verify, decoder
        if key not in self._readers:
            if verify == "first_touch":
                checked = index
            else:
                checked = replace(index, checksums=())
            self._readers[key] = BlockReader(self.root, checked, self.dialect, decoder=decoder)
        return self._readers[key]


def polars_columns(index: SplitIndex) -> int:
    """Return how many columns of a split are decoded by Polars where `decoder` is "auto"."""
    of_run = "parquet" in index.formats and bool(index.checksums)
    if not of_run or decoder_of_split("auto", index.schema, index.rows) == "pyarrow":
        return 0
    return len(faster(index.schema))


def check_rows(table: pa.Table, index: SplitIndex, number: int, root: Path = Path()) -> None:
    """Raise `CorruptShard` unless a block has the rows that the index says. root: of its shards."""
    if table.num_rows != index.rows[number]:
        raise CorruptShard(
            f"it has {table.num_rows} rows, the index says {index.rows[number]}; the shard changed"
            " after it was indexed",
            path=root / index.shards[index.shard_of_block[number]],
            row=f"block {index.block[number]}",
            remedy="restore it or index the dataset again",
        )


class _InFile(NamedTuple):
    """The columns of a file: the names of all, and those that are read."""

    names: Sequence[str]
    target: Target


class BlockReader:
    """Reads blocks of a split below a root directory, or from the copies of whole shards that
    `files` keeps.

    Picklable and thread-safe. A shard with a known checksum is checked against it when it is first
    read, so that no corrupt byte is delivered: `CorruptShard` names it. A plain shard whose size or
    time (for an object, tag) differs from the index is refused, because its blocks have moved.
    """

    def __init__(
        self,
        root: Path,
        index: SplitIndex,
        dialect: TextDialect,
        files: FileCache | None = None,
        decoder: Decoder = "auto",
    ) -> None:
        self._root, self._index, self._dialect = root, index, dialect
        self._decoder = decoder
        self._decoders: dict[tuple[str, ...] | None, Decoder] = {}
        self._known = frozenset(index.schema.names)
        self._remote = place_of(root).reads == "requests"
        if self._remote:
            self._files = files
        else:
            self._files = None
        self._targets: dict[tuple[tuple[str, ...] | None, int], Target] = {}
        self._verified: dict[int, Stamp] = {}  # verified shards, with their stamps
        self._small: SmallShards | None = None
        if index.stamps is not None and not self._remote and joins(dialect):
            self._small = SmallShards(index)
        self._stored: BlockReader | None = None
        if index.stored_as_text:
            schema = index.schema
            for position, column in enumerate(schema):
                if column.name in index.stored_as_text:
                    schema = schema.set(position, column.with_type(pa.string()))
            stored = replace(index, schema=schema, stored_as_text=())
            self._stored = BlockReader(root, stored, dialect, files, decoder)

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        """Read the named columns of a block; a name may be a path to a field of a struct."""
        if columns is None or self._known.issuperset(columns):
            return self._read_typed(number, columns)
        stored = columns_of_paths(self._index.schema, columns)
        return select_paths(self._read_typed(number, stored), columns)

    def continues(self) -> Bools:
        """Return which blocks may be read together with the one before them: bool [B].

        These are row groups of one local Parquet file that follow one another.
        """
        index = self._index
        blocks = len(index.rows)
        if self._remote or self._stored is not None or "parquet" not in index.formats:
            return np.zeros(blocks, bool)
        is_parquet = np.array([word == "parquet" for word in index.formats], bool)
        follows: Bools = np.diff(index.shard_of_block, prepend=-1) == 0
        follows &= np.diff(index.block, prepend=-1) == 1
        follows &= is_parquet[index.shard_of_block]
        return follows

    def read_run(self, numbers: range, columns: Sequence[str]) -> pa.Table:
        """Read the named columns of blocks each of which `continues` the one before it.

        Raises what reading one of them alone raises, or another error: it may not name the block.
        """
        if self._known.issuperset(columns):
            return self._read(numbers, columns)
        stored = columns_of_paths(self._index.schema, columns)
        return select_paths(self._read(numbers, stored), columns)

    def _read_typed(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        shard = int(self._index.shard_of_block[number])
        word = self._index.formats[shard]
        table = self._read_small(number, columns)
        if table is not None:
            return table
        # delimited text is parsed as numbers, and other formats are read as they hold it
        if self._stored is None or file_type_of_word(word).format.separator is not None:
            return self._read(range(number, number + 1), columns)
        target = self._target(columns)
        types = dict(zip(target.schema.names, target.schema.types, strict=True))
        path = self._root / self._index.shards[shard]
        table = self._stored(number, columns)
        return in_schema(typed(table, types, self._dialect, path, 0), target)

    def _read(self, numbers: range, columns: Sequence[str] | None) -> pa.Table:
        number = numbers.start
        index = self._index
        rows = int(index.rows[numbers.start : numbers.stop].sum())
        shard = int(index.shard_of_block[number])
        path = self._root / index.shards[shard]
        word = index.formats[shard]
        checksum = index.checksums[shard] if index.checksums else ""
        copy = None if self._files is None else self._files.local_path(path, checksum)
        if copy is None and self._remote and word == "parquet":
            # pages have their own checksums, and the rest of the object is not fetched
            checksum = ""
        content = None
        if copy is None and checksum:
            content = self._check(
                shard, path, checksum, int(index.length[number]) if word == "parquet" else 0
            )
        if index.stamps is not None and not self._remote:
            _refuse_changed(path, index.stamps[shard])
        try:
            block_target = self._target(columns)
        except InputError as error:  # a column of a type that is not read
            raise error.at(path=path) from None
        in_file = self._in_file(shard, block_target)
        if not in_file.target.schema.names and block_target.schema.names:
            return self._fitted(pa.table({}), rows, number, block_target.schema)
        try:
            table = read_block(
                copy or path,
                word,
                block=int(index.block[number]),
                offset=int(index.offset[number]),
                length=int(index.length[number]),
                target=in_file.target,
                names=in_file.names,
                dialect=self._dialect,
                pages="trust" if checksum else "check",
                content=content,
                # of a plain shard that was changed, more is known after it was read
                rows=rows if index.stamps is None else None,
                count=len(numbers),
                of_run=index.stamps is None,
                decoder=self._decoder_of(columns, block_target),
            )
        except CorruptShard:
            if copy is None or copy.exists():
                raise
            # Another process has just deleted the copy to make room.
            again = BlockReader(self._root, index, self._dialect, decoder=self._decoder)
            return again(number, columns)
        if index.stamps is not None:
            self._check_unchanged(shard, path, word, index.stamps[shard], copy)
        if in_file.target is block_target:
            return table
        return self._fitted(table, table.num_rows, number, block_target.schema)

    def _decoder_of(self, columns: Sequence[str] | None, target: Target) -> Decoder:
        key = None if columns is None else tuple(columns)
        if key not in self._decoders:
            self._decoders[key] = decoder_of_split(self._decoder, target.schema, self._index.rows)
        return self._decoders[key]

    def _read_small(self, number: int, columns: Sequence[str] | None) -> pa.Table | None:
        """Read a block with its neighbours; None if it must be read alone."""
        if self._small is None or not self._small.holds(number):
            return None
        table = self._small.read(number, columns, self._content, partial(self._parse, columns))
        if table is not None:
            shard = int(self._index.shard_of_block[number])
            assert self._index.stamps is not None
            _refuse_changed(self._root / self._index.shards[shard], self._index.stamps[shard])
        return table

    def _content(self, number: int) -> bytes:
        """Read the bytes of a block of a local plain shard."""
        index = self._index
        shard = int(index.shard_of_block[number])
        path = self._root / index.shards[shard]
        assert index.stamps is not None
        _refuse_changed(path, index.stamps[shard])
        offset, length = int(index.offset[number]), int(index.length[number])
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            content = file.read(length)
        if len(content) < length:
            raise _changed(path)
        return content

    def _parse(self, columns: Sequence[str] | None, number: int, content: bytes) -> pa.Table:
        """Parse the bytes of several blocks like that of the first of them."""
        index = self._index
        shard = int(index.shard_of_block[number])
        target = self._target(columns)
        in_file = self._in_file(shard, target)
        table = read_block(
            self._root / index.shards[shard],
            index.formats[shard],
            block=int(index.block[number]),
            offset=int(index.offset[number]),
            length=len(content),
            target=in_file.target,
            names=in_file.names,
            dialect=self._dialect,
            content=pa.py_buffer(content),
            of_run=False,
        )
        if in_file.target is target:
            return table
        return self._fitted(table, table.num_rows, number, target.schema)

    def _in_file(self, shard: int, target: Target) -> _InFile:
        """Return which columns of the target are read from a file, as what, and all that it has."""
        index = self._index
        layout_number = index.layout_number(shard)
        layout = index.fitted[layout_number]
        if layout is None and not index.partitioned:
            return _InFile(index.schema.names, target)
        partition = set(index.partitioned)
        names = [name for name in (layout or index.schema).names if name not in partition]
        known = set(names)
        required = [name for name in target.schema.names if name in known]
        return _InFile(names, self._target(required, layout_number))

    def _fitted(self, table: pa.Table, rows: int, number: int, schema: pa.Schema) -> pa.Table:
        """Convert the columns that a file has to a schema, which has those of its name too.

        rows: of the block, whose number is `number`.
        """
        index = self._index
        shard = int(index.shard_of_block[number])
        partition = self._partition(shard)
        if index.fitted[index.layout_number(shard)] is not None:
            in_file = pa.schema([field for field in schema if field.name not in partition])
            try:
                table = fit(table, in_file, rows, RowsOf(self._root / index.shards[shard], 0))
            except InputError as error:
                if isinstance(error.row, int):  # of the block
                    earlier = index.shard_of_block[:number] == shard
                    error.row += int(index.rows[:number][earlier].sum())
                raise
        if partition:
            table = with_partition(table, rows, schema, partition)
        return table

    def _partition(self, shard: int) -> dict[str, str | None]:
        if not self._index.partitioned:
            return {}
        texts = partition_of(self._index.shards[shard])
        return {name: texts[name] for name in self._index.partitioned}

    def _check_unchanged(
        self, shard: int, path: Path, word: str, stamp: I64, copy: Path | None
    ) -> None:
        """Refuse a block whose object no longer matches the index.

        An object that still does also did when it was read. The name of a copy holds its digest.
        """
        if copy is None or self._files is None:
            if self._remote:
                _refuse_replaced(path, word, stamp)
            return
        # one request for all threads that start on this shard
        with _CHECKING[shard % len(_CHECKING)]:
            if self._files.indexed.get(path) != copy:
                _refuse_replaced(path, "", stamp)
                self._files.indexed[path] = copy

    def _target(self, columns: Sequence[str] | None, layout_number: int = 0) -> Target:
        """Return the columns as they are delivered, or as they are in shards of another layout."""
        key = (None if columns is None else tuple(columns), layout_number)
        if key not in self._targets:
            schema = self._index.schema
            layout = self._index.fitted[layout_number]
            fields = []
            for name in schema.names if columns is None else columns:
                field = schema.field(name)
                fields.append(field if layout is None else field.with_type(layout.field(name).type))
            delivered = pa.schema(fields)
            check_read(delivered)
            self._targets[key] = Target.of(delivered)
        return self._targets[key]

    def _check(self, shard: int, path: Path, checksum: str, block_bytes: int) -> pa.Buffer | None:
        """Check a shard once; returns its content if it was read for that and is little more than
        the block.

        block_bytes: of the block that is read next, if that can be read from the content; 0: it
        cannot.
        """
        content = None
        try:
            if self._remote and shard in self._verified:
                return None  # saves a request per block
            stamp = stamp_of(path)
            if self._verified.get(shard) == stamp:
                return None
            # one read for all threads that start on this shard
            with _CHECKING[shard % len(_CHECKING)]:
                if self._verified.get(shard) != stamp:
                    if not self._remote and stamp[2] <= min(
                        _MOST_CONTENT, _CONTENT_PER_BLOCK * block_bytes
                    ):
                        # memory that Arrow reuses once nothing refers to it
                        content = pa.allocate_buffer(stamp[2])
                        with path.open("rb", buffering=0) as file:
                            content = content.slice(0, file.readinto(memoryview(content)))
                        actual = checksum_bytes(memoryview(content))
                    else:
                        actual = place_of(path).checksum()
                    if actual != checksum:
                        raise damaged(path)
                self._verified[shard] = stamp
        except OSError as error:
            raise damaged(path, f"is missing ({error.strerror})") from error
        return content


def _refuse_changed(path: Path, indexed_as: I64) -> None:
    try:
        stat = path.stat()
    except OSError as error:
        raise CorruptShard(
            f"cannot be read ({error.strerror})",
            path=path,
            remedy="restore it or open the dataset again",
        ) from error
    if (stat.st_size, stat.st_mtime_ns) != tuple(indexed_as.tolist()):
        raise _changed(path)


def _refuse_replaced(path: Path, word: str, indexed_as: I64) -> None:
    """Compare size and tag with the index.

    A Parquet object needs no request, because everything read from it carries the tag of its
    footer.
    """
    try:
        if word == "parquet":
            fact = fact_of(path)
        else:
            fact = place_of(path).stat()
    except FileNotFoundError as error:
        raise CorruptShard(
            "is missing", path=path, remedy="restore it or open the dataset again"
        ) from error
    size, changed_ns = indexed_as.tolist()
    # a listing may give a finer time than a request for one object
    now_ns = place_of(path).changed_ns(fact)
    if (fact.size, now_ns % _SECOND) != (size, changed_ns % _SECOND):
        raise _changed(path)


def _changed(path: Path) -> CorruptShard:
    return CorruptShard(
        "changed after it was indexed",
        path=path,
        remedy="open the dataset again once it is complete",
    )
