"""Open the store of a finished run of series: all rows, as one mapped row-major float32 matrix per
shard.

Rows are numbered across all shards. An entity has consecutive rows, one per step of its time axis,
so a window is a run of rows. Columns: the targets, then the forcing. No values are read
before they are requested. Shards are checked against their checksums when they are first touched.
Thread-safe. Pickling leaves out open resources.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.arrays import F32, I64
from headrace.dataset.local_shards import LocalFiles, LocalShards
from headrace.dataset.manifest import Manifest
from headrace.dataset.open import find_run
from headrace.dataset.sound import damaged
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.gate.arrow import ArrowFile, mapped_file
from headrace.gate.json import interpreting, parse_object
from headrace.gate.mapped import Mapped
from headrace.gate.parquet import read_run_table
from headrace.series.arrays.axis import Frequency, anchor_codes, times_at

ENTITIES = "entities.parquet"
STATICS = "processed_static_features.parquet"
# One row per retained entity; see `headrace.series.store.Entity`.
ENTITIES_SCHEMA = pa.schema(
    [
        pa.field("entity", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("first_time", pa.timestamp("us"), nullable=False),
        pa.field("anchor", pa.string(), nullable=False),
        pa.field("val_row", pa.int64(), nullable=False),
        pa.field("test_row", pa.int64(), nullable=False),
        pa.field("train_targets", pa.int64(), nullable=False),
        pa.field("val_targets", pa.int64(), nullable=False),
        pa.field("test_targets", pa.int64(), nullable=False),
        pa.field("edges", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
        pa.field("train_row", pa.int64(), nullable=False),
        pa.field("train_stop", pa.int64(), nullable=False),
        pa.field("static_row", pa.int32(), nullable=False),
    ]
)
METADATA = b"headrace.series"


@dataclass(frozen=True)
class Columns:
    """The columns of the matrices: targets, then forcing.

    future: forcing that is known ahead. categories: forcing of positions in a list of texts.
    """

    targets: tuple[str, ...]
    features: tuple[str, ...]
    frequency: Frequency
    future: tuple[str, ...]
    categories: tuple[str, ...] = ()

    @property
    def value_count(self) -> int:
        """Number of targets and forcing columns."""
        return len(self.targets) + len(self.features)

    @property
    def future_columns(self) -> slice | list[int]:
        """Positions of the columns that are known ahead."""
        if self.future == self.features:
            return slice(len(self.targets), self.value_count)
        return [self.names.index(name) for name in self.future]

    @property
    def names(self) -> tuple[str, ...]:
        """All column names, in order."""
        return (*self.targets, *self.features)


@dataclass(frozen=True, eq=False)
class EntityTable:
    """The entities of a run, one entry each, in the order of their rows; int64 [E] except names.

    names: text [E].
    first_row, rows: the range of its rows.
    first_time: microseconds since 1970.
    anchor: where in their month its times of months are, by position in `ANCHORS`.
    static_row: its row of the static features, -1 for none.
    boundaries: where its segments of rows begin and the last one ends, [E, S + 1].
    ranges: for each fold, or for the single split, the segments [first, last + 1) of each split.
    """

    names: pa.Array
    first_row: I64
    rows: I64
    first_time: I64
    anchor: I64
    static_row: I64
    boundaries: I64
    ranges: Sequence[Mapping[str, Sequence[int]]]

    def __len__(self) -> int:
        return len(self.names)

    def bounds(self, split: str, fold: int | None = None) -> tuple[I64, I64]:
        """Return the range [start, stop) of a split within each entity's rows, int64 [E]; "all"
        covers all rows.
        """
        if split == "all":
            first, last = (0, -1)
        else:
            first, last = self.ranges[fold or 0][split]
        return self.boundaries[:, first], self.boundaries[:, last]


class Matrices:
    """Row-major matrices [rows, C] float32 end to end, with rows numbered across them.

    A window of W rows is one contiguous range of memory. So one strided view, whose element i is
    the range that starts at value i, has all windows among its rows. A batch of windows is then one
    index into this view, whatever the number of matrices. It costs about a memory copy, and numpy's
    index is as fast as torch's `index_select`. The view begins at the matrix with the lowest
    address and spans all of them and any memory between them, but only rows of matrices are ever
    indexed.

    mapped: the files that the matrices are views of, in their order; none for copies.
    """

    def __init__(self, matrices: Sequence[F32], mapped: Sequence[Mapped] = ()) -> None:
        assert all(matrix.flags.c_contiguous and matrix.dtype == np.float32 for matrix in matrices)
        if len(matrices):
            self.columns = matrices[0].shape[1]
        else:
            self.columns = 0
        self.matrices = [matrix for matrix in matrices if matrix.size]
        # the files of mapped matrices
        self._mapped = [file for matrix, file in zip(matrices, mapped, strict=False) if matrix.size]
        # the first row of each, and the end
        self.bases = np.cumsum([0, *map(len, self.matrices)], dtype=np.int64)
        addresses = np.array([matrix.ctypes.data for matrix in self.matrices], np.int64)
        if len(addresses):
            self._lowest = int(np.argmin(addresses))
        else:
            self._lowest = 0
        self._offset = (
            addresses - addresses.min(initial=np.iinfo(np.int64).max)
        ) // 4 - self.bases[:-1] * self.columns
        self._views: dict[tuple[int, int], Any] = {}
        self._extent = int((self._offset + self.bases[1:] * self.columns).max(initial=0))
        starts = self._offset + self.bases[:-1] * self.columns
        self._by_address = np.argsort(starts)
        self._starts = starts[self._by_address]

    def __reduce__(self) -> Any:
        return (Matrices, (self.matrices,))  # leave out the views, which would be pickled as copies

    @property
    def rows(self) -> int:
        """Number of all rows."""
        return int(self.bases[-1])

    def offsets(self, starts: I64) -> I64:
        """Return the offsets of these rows in memory, in values from the start of the view; int64,
        same length.
        """
        offsets: I64 = starts * self.columns
        if len(self.matrices) > 1:
            offsets += self._offset[np.searchsorted(self.bases, starts, side="right") - 1]
        return offsets

    def check(self, offsets: I64) -> None:
        """Check that no file that holds rows at these offsets was cut. Raises `CorruptShard`."""
        if len(self._mapped) < 2:
            touched = range(len(self._mapped))
        else:
            at = np.searchsorted(self._starts, offsets, side="right") - 1
            touched = np.unique(self._by_address[at]).tolist()
        for number in touched:
            self._mapped[number].check()

    def windows(self, offsets: I64, first: int, end: int, columns: slice | list[int]) -> F32:
        """Copy rows first..end-1 of the windows that begin at each offset: [B, rows, columns].

        No window crosses two matrices.
        """
        if isinstance(columns, list):
            return self.windows(offsets, first, end, slice(None))[:, :, columns]
        low, high, _ = columns.indices(self.columns)
        rows = end - first
        width = high - low
        if not len(offsets) or not width:
            return np.empty((len(offsets), rows, width), np.float32)
        # A row of the part is one item, as numpy copies an item twice as fast as its values.
        all_columns = width == self.columns
        if (rows, width) not in self._views:
            flat = self.matrices[self._lowest].reshape(-1)
            self._views[rows, width] = np.lib.stride_tricks.as_strided(
                flat if all_columns else flat[:width].view(f"V{4 * width}"),
                (
                    self._extent - (rows - 1) * self.columns - width + 1,
                    rows * width if all_columns else rows,
                ),
                (4, 4 if all_columns else 4 * self.columns),
                writeable=False,
            )
        items = self._views[rows, width][offsets + (first * self.columns + low)]
        part: F32 = items.view(np.float32).reshape(-1, rows, width)
        return part

    def copy_rows(self, starts: I64, ends: I64) -> F32:
        """Copy the rows of these ranges end to end: [sum, C]. Each range is within one matrix."""
        out = np.empty((int((ends - starts).sum()), self.columns), np.float32)
        self.check(self.offsets(starts[starts < ends]))
        at = 0
        numbers = np.searchsorted(self.bases, starts, side="right") - 1
        for begin, end, number in zip(
            starts.tolist(), ends.tolist(), numbers.tolist(), strict=True
        ):
            if begin < end:
                base = int(self.bases[number])
                out[at : at + end - begin] = self.matrices[number][begin - base : end - base]
                at += end - begin
        return out


class SeriesStore:
    """The columns, entities, static features and mapped matrices of a run.

    static: float32 [N, S].
    static_of_entity: static features of each entity, NaN if it has none, [E, S].
    pipeline_digests: file of the fitted pipelines → SHA-256.
    """

    def __init__(self, root: Path, manifest: Manifest, files: LocalFiles) -> None:
        self.root = root
        self.manifest = manifest
        self.run_id = manifest.run_id
        digests: dict[str, str] = manifest.metadata["series_files"]
        self.pipeline_digests: dict[str, str] = manifest.metadata["pipelines"]
        table = read_run_table(root / ENTITIES, ENTITIES_SCHEMA, sha256=digests.get(ENTITIES, ""))
        self.columns = _columns_of(table.schema, root / ENTITIES)
        self.folds = len(manifest.metadata.get("folds", ()))
        ranges = manifest.metadata["parts"]["ranges"]
        with interpreting(root / ENTITIES):
            self.shards, self.bases, self.entities = _entities_of(table, root / ENTITIES, ranges)
        self.static_names: tuple[str, ...] = ()
        self.static: F32 = np.empty((0, 0), np.float32)
        if (root / STATICS).exists():
            statics = read_statics(root, digests.get(STATICS, ""))
            self.static_names = tuple(statics.column_names[1:])
            self.static = np.empty((statics.num_rows, len(self.static_names)), np.float32)
            for number, name in enumerate(self.static_names):
                self.static[:, number] = statics[name].to_numpy()
        self._local = LocalShards(
            root, {shard: digests.get(shard, "") for shard in self.shards}, files
        )
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_lock", "_matrices", "static_of_entity")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        rows = self.entities.static_row
        if rows.max(initial=-1) >= len(self.static):
            problem = f"names row {rows.max()} of {len(self.static)} static features"
            raise damaged(self.root / ENTITIES, problem)
        self.static_of_entity = np.full((len(rows), len(self.static_names)), np.nan, np.float32)
        self.static_of_entity[rows >= 0] = self.static[rows[rows >= 0]]
        self._lock = threading.Lock()
        self._matrices: Matrices | None = None

    @property
    def matrices(self) -> Matrices:
        """The rows of all shards, read-only, mapped and checked on first use."""
        with self._lock:
            if self._matrices is None:
                matrices = []
                mapped = []
                names = self.columns.names
                for shard, rows in zip(self.shards, np.diff(self.bases).tolist(), strict=True):
                    path = self._local.local_path(shard)
                    matrix, _, file = map_store(path)
                    mapped.append(file)
                    width = matrix.shape[1]
                    dtype = matrix.dtype
                    if dtype != np.float32 or width != len(names):
                        raise damaged(
                            path, f"has {width} columns of {dtype}, not {len(names)} of float32"
                        )
                    if len(matrix) != rows:
                        raise damaged(path, f"has {len(matrix)} rows, {ENTITIES} says {rows}")
                    matrices.append(matrix)
                self._matrices = Matrices(matrices, mapped)
            return self._matrices

    def times(self, entity: I64, position: I64) -> I64:
        """Return the times, in microseconds since 1970, of rows given by their position in the
        entity; int64.
        """
        entities = self.entities
        return times_at(
            self.columns.frequency, entities.first_time[entity], entities.anchor[entity], position
        )

    def check_fold(self, split: str, fold: int | None) -> None:
        """Raise `SettingsError` if the fold does not exist or was not chosen, `InputError` if folds
        lack the split.
        """
        if self.folds and fold is None and split != "all":
            raise SettingsError(
                f"the run is prepared in {self.folds} folds",
                setting="fold",
                path=self.root,
                remedy=f"choose one, such as {setting('fold', 0)}",
            )
        if fold is not None and fold >= self.folds:
            remedy = "leave it out of a run without folds"
            if self.folds:
                remedy = f"choose one of 0 to {self.folds - 1}"
            raise SettingsError(setting="fold", path=self.root, value=fold, remedy=remedy)
        if split != "all" and split not in self.entities.ranges[fold or 0]:
            known = ", ".join(self.entities.ranges[0])
            raise InputError(
                f"the folds have only {known}",
                setting="split",
                path=self.root,
                value=split,
                remedy=f"prepare with {setting_name('val_end')} to have val",
            )


def open_store(path: str | Path, *, run: str | None, files: LocalFiles) -> SeriesStore:
    """Open the store behind a path, found as `headrace.open` finds runs.

    Raises `InputError` if there are no series.

    files: how its shards become local files.
    """
    root, manifest = find_run(path, run)
    if not (root / ENTITIES).is_file():
        raise InputError(
            f"was made by {manifest.recipe!r} and holds no series",
            path=root,
            remedy="prepare some with `headrace series CONFIG`",
        )
    return SeriesStore(root, manifest, files)


class MappedStore(NamedTuple):
    """rows: of a store shard, float32 [rows, C]. metadata: about its columns. file: as mapped."""

    rows: F32
    metadata: Mapping[str, Any]
    file: Mapped


def map_store(path: Path) -> MappedStore:
    """Map a store shard. Raises `CorruptShard`."""
    mapped = mapped_file(path)
    file = ArrowFile(mapped.buffer, path, mapped.identity)
    batches = list(file.messages())
    if not file.is_file or len(batches) != 1:
        raise damaged(path, f"has {len(batches)} record batches, not one")
    batch = file.batch(0)
    try:
        values = batch.column("values")
        metadata = parse_object((batch.schema.metadata or {}).get(METADATA, b"{}"))
        matrix: F32 = (
            values.flatten().to_numpy(zero_copy_only=True).reshape(-1, values.type.list_size)
        )
    except (OSError, pa.ArrowException, KeyError, AttributeError, ValueError) as error:
        raise damaged(path, f"cannot be read ({error})") from error
    return MappedStore(matrix, metadata, mapped)


def read_statics(root: Path, sha256: str = "") -> pa.Table:
    """Read the static features of a run: the entity, and numbers.

    sha256: of the file, "" if it is not to be checked. Raises `CorruptShard`.
    """
    table = read_run_table(root / STATICS, sha256=sha256)
    types = table.schema.types
    numbers = all(pa.types.is_floating(dtype) for dtype in types[1:])
    if types[:1] != [pa.string()] or not numbers or any(column.null_count for column in table):
        raise damaged(root / STATICS, "has other columns than an entity and numbers")
    return table


def _columns_of(schema: pa.Schema, path: Path) -> Columns:
    try:
        record = parse_object((schema.metadata or {})[METADATA])
        names = record["columns"]
        targets = tuple(record["targets"])
        features = tuple(names[len(targets) :])
        future = tuple(record["future"])
        frequency = Frequency.parse(record["frequency"]).in_zone(record.get("zone"))
        categories = tuple(record.get("categories", ()))
        columns = Columns(targets, features, frequency, future, categories)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise damaged(
            path, f"its metadata does not say which columns there are ({error!r})"
        ) from None
    if list(columns.names) != list(names) or not set(columns.future) <= set(features):
        raise damaged(path, f"has the columns {names}, expected the target {targets[0]!r} first")
    return columns


def _entities_of(
    table: pa.Table, path: Path, ranges: Sequence[Mapping[str, Sequence[int]]]
) -> tuple[list[str], I64, EntityTable]:
    """Return shard names, the first row of each and the end, and the entities with rows numbered
    across all shards.
    """
    encoded = table["shard"].combine_chunks().cast(pa.string()).dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    shard = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = _int64(table, "rows")
    bases = np.concatenate(
        [[0], np.cumsum(np.bincount(shard, rows, len(encoded.dictionary)))]
    ).astype(np.int64)
    first_row = _int64(table, "first_row") + bases[shard]
    edges = table["edges"].combine_chunks().flatten().to_numpy().reshape(len(rows), -1)
    boundaries = np.column_stack([np.zeros(len(rows), np.int64), edges, rows]).astype(np.int64)
    bad = (
        (first_row != np.cumsum(rows) - rows)
        | (np.diff(boundaries) < 0).any(axis=1)
        | (np.diff(shard, prepend=0) < 0)
    )
    if bad.any():
        which = int(np.flatnonzero(bad)[0])
        name = table["entity"][which].as_py()
        raise damaged(
            path,
            f"row {which + 1}, entity {name!r}, does not follow the one before it or is cut outside"
            " its rows",
        )
    names = table["entity"].combine_chunks().cast(pa.large_string())
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    entities = EntityTable(
        names,
        first_row,
        rows,
        first_time=table["first_time"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(),
        anchor=_anchors_of(table, path),
        static_row=_int64(table, "static_row"),
        boundaries=boundaries,
        ranges=ranges,
    )
    return encoded.dictionary.to_pylist(), bases, entities


def _anchors_of(table: pa.Table, path: Path) -> I64:
    try:
        return anchor_codes(table["anchor"].to_pylist())
    except ValueError as error:
        raise damaged(path, f"has an anchor of months that is not known ({error})") from None


def _int64(table: pa.Table, name: str) -> I64:
    return np.asarray(table[name].cast(pa.int64()).to_numpy(), np.int64)
