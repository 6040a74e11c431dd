"""Index the rows of each entity: one pass over one column makes a file that processes map.

    split       one row of the file for each part of a split: entities are dealt to parts by the
                first bits of their hash
    high, low   the 128-bit keyed hashes of the part's entities, ascending by the first half
    ends        where the rows of each entity end
    rows        row numbers in the split, entity by entity, ascending

Each row of bins that record the source and row of each sequence belongs to several entities, each
named SOURCE:ROW.

The file takes 4 bytes a row (8 in a split of 2^32 rows) and 24 an entity. An entity is identified
by all 128 bits of its hash, so lookups never read the shards, and the file holds no text of an
entity. A lookup costs a binary search per entity. Building the index reads only that column, in
threads. Parts wait on disk, so memory is a few blocks and one part. The file is a sealed stream
like that of plain shards (see `stored_index`). It is in the cache directory under a name derived
from the contents and the column.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U64
from headrace.bins.rows import TRACES
from headrace.dataset.index import text_array
from headrace.dataset.indexed import IndexedDataset, check_rows
from headrace.dataset.stored_index import list_values, sealed
from headrace.digest import derive_key
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, InputError, SettingsError, setting_name
from headrace.formats.column_paths import has_column
from headrace.formats.text_columns import as_text
from headrace.gate.arrow import ArrowFile
from headrace.gate.cache_entry import content_bytes, identity_of
from headrace.gate.json import interpreting, read_object
from headrace.gate.mapped import map_bytes
from headrace.keyed_hash import hash_texts
from headrace.recipe import recipe_of_run
from headrace.storage.local import alone, beside, created, make_directory, replace

_VERSION = 2
_VERSION_KEY = b"headrace.entities_version"
_KEY = derive_key(0, "entity index")
_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u8")])
PART_ROWS = 1 << 22
_BLOCKS_A_WORKER = 4  # their records wait in memory, to be written in the split's order
_IN_MEMORY = 1 << 22  # bytes of a part before they go to the disk
_COLUMNS = {"high": pa.uint64(), "low": pa.uint64(), "ends": pa.int64()}

Records: TypeAlias = npt.NDArray[np.void]  # dtype `_RECORD`
OnProgress = Callable[[int, int], None]
TextsOf: TypeAlias = Callable[[int], tuple[pa.ChunkedArray, I64]]


def entity_column(dataset: IndexedDataset, column: str | None = None) -> str:
    """Return the column that names the entity of a row: the one given, or that of the run's own
    settings.

    Raises `SettingsError` with a remedy if neither names one, or the rows have no such column.
    """
    names = dataset.schema.names
    manifest = getattr(dataset, "manifest", None)
    recipe = ""
    name = column
    if manifest is not None and column is None:
        recipe = f"a run of {manifest.recipe!r}"
        path = dataset.root / "config.json"
        config = read_object(path)
        with interpreting(path):
            name = recipe_of_run(manifest.recipe).roles(config).get("entity")
        source = manifest.metadata.get("source_facts")
        name = (
            name
            or manifest.metadata.get("entity")
            or (source.get("entity") if isinstance(source, dict) else None)
        )
    if name is None and recipe:
        raise SettingsError(
            f"{recipe} does not record the entity of its rows, and {setting_name('entity_column')}"
            " does not name it",
            path=dataset.root,
            remedy=(
                "ask the data that it was made of, or name one of its columns if it says it:"
                f" {', '.join(names)}"
            ),
        )
    if name is None:
        raise SettingsError(
            "plain shards do not say which column names the entity of a row, and"
            f" {setting_name('entity_column')} is not given",
            path=dataset.root,
            remedy=f"give one of {', '.join(names)}",
        )
    if not has_column(dataset.schema, name):
        raise SettingsError(
            "it cannot name entities, as the dataset does not have it",
            path=dataset.root,
            column=name,
            remedy=f"use one of {', '.join(names)}",
        )
    return name


def indexed_column(dataset: IndexedDataset, column: str | None = None) -> str:
    """Return the column to index: for bins that record source rows their source column, else
    `entity_column`.
    """
    if column is None and _are_traced(dataset):
        return TRACES[0]
    return entity_column(dataset, column)


def _are_traced(dataset: IndexedDataset) -> bool:
    kinds = {field.name: field.type for field in dataset.schema}
    return all(pa.types.is_list(kinds.get(name, pa.null())) for name in TRACES)


@dataclass(frozen=True, eq=False)
class _Part:
    """The entities of a split whose hashes begin with the same bits; arrays as in the file."""

    high: U64
    low: U64
    ends: I64
    rows: npt.NDArray[np.unsignedinteger[Any]]

    def find(self, high: U64, low: U64) -> I64:
        """Return the index of each entity in the part, -1 for absent ones."""
        at = np.searchsorted(self.high, high)
        positions = np.full(len(high), -1, np.int64)
        left = np.flatnonzero(at < len(self.high))
        while len(left):  # repeats only if entities share their first 64 bits
            same = self.high[at[left]] == high[left]
            hit = same & (self.low[at[left]] == low[left])
            positions[left[hit]] = at[left[hit]]
            left = left[same & ~hit]
            at[left] += 1
            left = left[at[left] < len(self.high)]
        return positions


class EntityIndex:
    """The rows of each entity of a dataset.

    column: names the entities; path, bytes: of the file.
    """

    def __init__(
        self, column: str, splits: dict[str, list[_Part]], *, path: Path, size: int
    ) -> None:
        self.column = column
        self.path = path
        self.bytes = size
        self._splits = splits

    def rows_of(self, split: str, entities: Sequence[str]) -> tuple[I64, I64]:
        """Return (index of the entity in `entities`, row of the split) of all their rows; int64,
        parallel, sorted.

        entities: as text; give numbers and dates as headrace writes them, e.g. "17".
        """
        high, low = hash_texts(_KEY, text_array(entities))
        parts = self._splits[split]
        part_of = _parts_of(high, len(parts))
        which: list[I64] = [np.empty(0, np.int64)]
        rows: list[I64] = [np.empty(0, np.int64)]
        for number in np.unique(part_of).tolist():
            part = parts[number]
            in_part = np.flatnonzero(part_of == number)
            positions = part.find(high[in_part], low[in_part])
            for entity, position in zip(
                in_part[positions >= 0].tolist(), positions[positions >= 0].tolist(), strict=True
            ):
                entity_rows = part.rows[
                    int(part.ends[position - 1]) if position else 0 : int(part.ends[position])
                ].astype(np.int64)
                which.append(np.full(len(entity_rows), entity, np.int64))
                rows.append(entity_rows)
        entity = np.concatenate(which)
        row = np.concatenate(rows)
        order = np.lexsort((row, entity))
        return entity[order], row[order]

    def count(self, split: str) -> tuple[int, int]:
        """Return (entities, rows that have one) of a split."""
        parts = self._splits[split]
        return sum(len(part.high) for part in parts), sum(len(part.rows) for part in parts)


def entity_index(
    dataset: IndexedDataset,
    column: str,
    *,
    cache_dir: Path,
    part_rows: int = PART_ROWS,
    on_progress: OnProgress = lambda done, total: None,
) -> EntityIndex:
    """Return the index of a column from the cache, where one process of a machine builds it if it
    is missing.

    part_rows: approximate maximum of rows that are sorted together. on_progress: called with
    (blocks read, blocks). Raises what reading raises, `InputError` for a column that cannot be a
    key, and `StoreError` if the cache cannot be written.
    """
    identity = _identity(dataset, column)
    path = _path(cache_dir, identity)
    with suppress(CorruptShard):
        return map_entities(path, column, identity)
    make_directory(cache_dir)
    lock = path.with_suffix(".lock")
    with alone(lock):
        with suppress(CorruptShard):
            return map_entities(path, column, identity)
        _build(dataset, column, path, part_rows, on_progress)
        with suppress(OSError):
            lock.unlink()
    return map_entities(path, column, identity)


def find_entities(
    dataset: IndexedDataset,
    column: str,
    entities: Sequence[str],
    *,
    cache_dir: Path,
    workers: int | None = None,
) -> dict[str, tuple[I64, I64]]:
    """Find the rows of entities in each split, as `EntityIndex.rows_of` does; without an index,
    read the column.

    Reading the column costs a fraction of building its index. Raises as `entity_index`.
    """
    with suppress(CorruptShard):
        identity = _identity(dataset, column)
        index = map_entities(_path(cache_dir, identity), column, identity)
        return {split: index.rows_of(split, entities) for split in dataset.splits}
    names = pa.array(entities, pa.large_string())

    def look(split: str, texts_of: TextsOf, number: int) -> tuple[I64, I64]:
        texts, rows = texts_of(number)
        which = pc.index_in(texts, value_set=names)
        entities = np.asarray(which.drop_null().combine_chunks(), np.int64)
        return (
            entities,
            rows[np.asarray(which.is_valid())] + dataset.split_index(split).first_row[number],
        )

    rows_of = {}
    for split in dataset.splits:
        numbers = range(len(dataset.split_index(split).rows))
        texts_of = _texts_of(dataset, split, column)
        block_rows = run_tasks(
            [partial(look, split, texts_of, number) for number in numbers],
            workers or default_workers(),
        )
        which, rows = np.concatenate(
            [np.empty((2, 0), np.int64), *map(np.stack, block_rows)], axis=1
        )
        order = np.lexsort((rows, which))
        rows_of[split] = which[order], rows[order]
    return rows_of


def _identity(dataset: IndexedDataset, column: str) -> bytes:
    return identity_of("entities", _VERSION, dataset.contents, list(dataset.splits), column)


def _path(cache_dir: Path, identity: bytes) -> Path:
    return cache_dir / f"entities-{identity.hex()}.arrows"


def map_entities(path: Path, column: str, identity: bytes) -> EntityIndex:
    """Map the index in a file.

    Raises `CorruptShard` if it is missing, not as it was written, or another one.
    """
    splits: dict[str, list[_Part]] = {}
    try:
        mapped = map_bytes(path)
        size = content_bytes(mapped.data, identity)
        file = ArrowFile(mapped.buffer[:size], path, mapped.identity, "delete it")
        if (file.schema.metadata or {}).get(_VERSION_KEY) != b"%d" % _VERSION:
            raise ValueError("another version of headrace made it")
        for batch in file.batches():
            fields = {name: list_values(batch[name], 0) for name in (*_COLUMNS, "rows")}
            splits.setdefault(batch["split"][0].as_py(), []).append(_Part(**fields))
    except (OSError, LookupError, AttributeError, TypeError, ValueError) as error:
        raise CorruptShard(
            f"cannot be read as an index of entities ({error})", path=path, remedy="delete it"
        ) from error
    return EntityIndex(column, splits, path=path, size=len(mapped.data))


def _parts_of(high: U64, parts: int) -> I64:
    """Return the part of each hash, which is its first bits. parts: a power of two."""
    bits = parts.bit_length() - 1
    if bits:
        return (high >> np.uint64(64 - bits)).astype(np.int64)
    return np.zeros(len(high), np.int64)


def _build(
    dataset: IndexedDataset, column: str, path: Path, part_rows: int, on_progress: OnProgress
) -> None:
    most = max((dataset.split_index(split).total_rows for split in dataset.splits), default=0)
    if most < 1 << 32:
        row_type = pa.uint32()
    else:
        row_type = pa.uint64()
    lists = []
    for name, type_ in {**_COLUMNS, "rows": row_type}.items():
        lists.append(pa.field(name, pa.large_list(type_)))
    schema = pa.schema([pa.field("split", pa.string()), *lists]).with_metadata(
        {_VERSION_KEY: b"%d" % _VERSION}
    )
    total = sum(len(dataset.split_index(split).rows) for split in dataset.splits)
    done = 0
    with beside(path) as temporary:
        with (
            created(temporary) as sink,
            sealed(sink, schema, _identity(dataset, column)) as write,
            ExitStack() as stack,
        ):
            for split in dataset.splits:
                rows = dataset.split_index(split).total_rows
                parts = 1 << max(0, (rows - 1) // part_rows).bit_length()
                files = []
                for _ in range(parts):
                    files.append(
                        stack.enter_context(
                            tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(path.parent))
                        )
                    )
                for records in _records(dataset, split, column, parts):
                    done += 1
                    on_progress(done, total)
                    for file, part in zip(files, records, strict=True):
                        file.write(part.tobytes())
                for file in files:
                    file.seek(0)
                    values = _grouped(np.frombuffer(file.read(), _RECORD))
                    file.close()
                    arrays = [pa.array([split])]
                    for entries, field in zip(values, lists, strict=True):
                        items = pa.array(entries).cast(field.type.value_type)
                        arrays.append(
                            pa.LargeListArray.from_arrays(
                                pa.array([0, len(entries)], pa.int64()), items
                            )
                        )
                    write(pa.RecordBatch.from_arrays(arrays, schema=schema))
        replace(temporary, path)


def _texts_of(dataset: IndexedDataset, split: str, column: str) -> TextsOf:
    """Return a function from a block number to the entities in it, as text, and the row in the
    block of each.
    """
    index, read, nulls = (
        dataset.split_index(split),
        dataset.block_reader(split),
        dataset.dialect,
    )
    traced = column == TRACES[0] and _are_traced(dataset)

    def texts_of(number: int) -> tuple[pa.ChunkedArray, I64]:
        table = read(number, list(TRACES) if traced else [column])
        check_rows(table, index, number, dataset.root)
        if traced:
            sources, rows = (table[name].combine_chunks() for name in TRACES)
            sizes = np.asarray(sources.value_lengths().fill_null(0))
            texts = (list_.flatten().cast(pa.large_string()) for list_ in (sources, rows))
            joined = pc.binary_join_element_wise(*texts, pa.scalar(":", pa.large_string()))
            return pa.chunked_array([joined]), np.repeat(np.arange(len(sizes)), sizes)
        try:
            return as_text(table[column], nulls.null_values, column), np.arange(table.num_rows)
        except InputError as error:
            raise error.at(path=dataset.root) from error.__cause__

    return texts_of


def _records(
    dataset: IndexedDataset, split: str, column: str, parts: int
) -> Iterator[list[Records]]:
    """Yield the records of each block of a split, in order, dealt to parts."""
    index = dataset.split_index(split)
    texts_of = _texts_of(dataset, split, column)

    def look(number: int) -> list[Records]:
        texts, rows = texts_of(number)
        encoded = texts.combine_chunks().dictionary_encode()
        rows = rows[np.asarray(encoded.is_valid())]
        codes = np.asarray(encoded.indices.drop_null())
        if (np.diff(rows) == 0).any():  # a bin may hold several pieces of a chat
            rows, codes = np.unique(np.stack([rows, codes]), axis=1)
        high, low = hash_texts(_KEY, encoded.dictionary)
        records = np.empty(len(rows), _RECORD)
        records["high"], records["low"] = high[codes], low[codes]
        records["row"] = rows + index.first_row[number]
        if parts == 1:
            return [records]
        part_of = _parts_of(records["high"], parts).astype(np.uint16)
        records = records[np.argsort(part_of, kind="stable")]
        return np.split(records, np.cumsum(np.bincount(part_of, minlength=parts))[:-1])

    workers = default_workers()
    at_once = _BLOCKS_A_WORKER * workers
    for start in range(0, len(index.rows), at_once):
        numbers = range(start, min(start + at_once, len(index.rows)))
        yield from run_tasks([partial(look, number) for number in numbers], workers)


def _grouped(records: Records) -> tuple[U64, U64, I64, I64]:
    """Return (high, low, ends, rows) of a part's records, which are ordered by row."""
    order = np.argsort(records["high"], kind="stable")
    high = records["high"][order]
    low = records["low"][order]
    same = high[1:] == high[:-1]
    if (same & (low[1:] != low[:-1])).any():  # two entities share 64 bits: order by all 128
        order = np.lexsort((records["low"], records["high"]))
        high = records["high"][order]
        low = records["low"][order]
        same = high[1:] == high[:-1]
    last = np.append(~same | (low[1:] != low[:-1]), True)[: len(high)]
    return high[last], low[last], np.flatnonzero(last) + 1, records["row"][order]
