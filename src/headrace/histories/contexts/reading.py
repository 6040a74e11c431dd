"""Read the big rows of a finished run by number, from ArrayRecord shards or memory-mapped Arrow files.

Planning needs only `rows.parquet`. A shard is opened, and compared with its checksum, when one of its rows is first
read. Rows stay open in a least-recently-used cache. For an ArrayRecord row the cache holds its bytes, for a mapped row
views, so a context from a mapped row of 8 MB reads only the pages that hold its measurements. Thread-safe; pickling to
a worker leaves open files and rows behind.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, borders_of
from headrace.dataset.local_shards import LocalFiles, LocalShards, checked_table
from headrace.dataset.open import FinishedRun, find_run
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import CorruptShard, InputError
from headrace.histories.codec.laws import damaged
from headrace.histories.codec.rows import RowColumns, decode_blobs, decode_rows
from headrace.histories.contexts.results import result_sizes
from headrace.histories.shard_file import open_array_record, unreadable

ROWS = "rows.parquet"
_COLUMNS = ["split", "shard", "position", "n_measurements"]
_VIEW_BYTES = 2048  # approximate memory of an open mapped row without its peers


RowBytes = Sequence[bytes | memoryview]
_ReadRows = Callable[[list[int]], RowBytes]


class HistoryRows:
    """The rows of one split, in the order of `rows.parquet`.

    n: int64 [R], measurements of each row.
    values: names of the value columns, and their types in rows.
    cache_bytes: limit on the rows kept open, per process.
    files: how shards become local files.
    """

    def __init__(self, run: FinishedRun, split: str, *, cache_bytes: int, files: LocalFiles) -> None:
        root, manifest = run.root, run.manifest
        self.root, self.split, self.cache_bytes = root, split, cache_bytes
        self.values: dict[str, str] = dict(manifest.facts.get("values", {}))
        self.identity = sha256_hex(canonical_json([manifest.run_id, split, manifest.facts["rows_digest"]]))
        table = checked_table(root / ROWS, manifest.facts["rows_digest"], _COLUMNS)
        table = table.filter(pc.equal(table["split"], split))
        self.n: I64 = table["n_measurements"].to_numpy()
        self._position: I64 = table["position"].to_numpy()
        encoded = pc.dictionary_encode(table["shard"].combine_chunks())
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        self._shards: list[str] = encoded.dictionary.to_pylist()
        self._shard_of_row: I64 = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        index = run.index.split(split) if self._shards else None
        known = dict(zip(index.shards, index.checksums, strict=True)) if index else {}
        self._local = LocalShards(root, {shard: known.get(shard, "") for shard in self._shards}, files)
        self._forget()

    def __len__(self) -> int:
        """Return R, the number of rows of the split."""
        return len(self.n)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_open", "_readers")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._forget()

    def open(self, numbers: Sequence[int]) -> Mapping[int, RowColumns]:
        """Open these rows, each read once. Raises `CorruptShard` for bytes that differ from what was published."""
        found: dict[int, RowColumns] = {}
        missing: list[int] = []
        with self._lock:
            for number in numbers:
                kept = self._open.get(number)
                if kept is None:
                    missing.append(number)
                else:
                    self._open.move_to_end(number)
                    found[number] = kept[0]
        for wanted, blobs in self._read(missing):
            rows = decode_rows(blobs, [self._name(number) for number in wanted])
            for number, blob, row in zip(wanted, blobs, rows, strict=True):
                self._check(number, row.n)
                found[number] = row
                size = _VIEW_BYTES + row.peer_bytes.nbytes + (0 if isinstance(blob, memoryview) else len(blob))
                if size > self.cache_bytes:
                    continue
                with self._lock:
                    if number not in self._open:
                        self._open[number] = (row, size)
                        self._held += size
                    while self._held > self.cache_bytes:
                        self._held -= self._open.popitem(last=False)[1][1]
        return found

    def facts(self, numbers: Sequence[int]) -> I64:
        """Read the facts of these rows, see `facts_of_blobs`; int64 [len(numbers), 5]. Keeps nothing open."""
        blob_of: dict[int, bytes | memoryview] = {}
        for wanted, blobs in self._read(numbers):
            blob_of.update(zip(wanted, blobs, strict=True))
        facts = facts_of_blobs([blob_of[number] for number in numbers], [self._name(number) for number in numbers])
        for place in np.flatnonzero(facts[:, 0] != self.n[list(numbers)]).tolist():
            self._check(numbers[place], int(facts[place, 0]))
        return facts

    def _read(self, numbers: Sequence[int]) -> Iterator[tuple[list[int], RowBytes]]:
        """Yield rows in the order of the shards, as (some of the requested rows, their blobs), views if mapped."""
        by_shard: dict[int, list[int]] = {}
        for number in numbers:
            by_shard.setdefault(int(self._shard_of_row[number]), []).append(number)
        for shard, wanted in by_shard.items():
            with self._lock:
                if shard not in self._readers:
                    name = self._shards[shard]  # a cached copy of an object has another name
                    self._readers[shard] = (_read_mapped if name.endswith(".arrow") else _read_records)(
                        self._local.place(name)
                    )
                read = self._readers[shard]
            yield wanted, read(self._position[wanted].tolist())

    def _name(self, number: int) -> str:
        return f"{self._shards[self._shard_of_row[number]]}: row {int(self._position[number]) + 1}"

    def _check(self, number: int, n: int) -> None:
        if n != self.n[number]:
            raise CorruptShard(
                f"{self._name(number)} has {n} measurements, {ROWS} says {self.n[number]}; "
                "restore the file or prepare the run again"
            )

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._open: OrderedDict[int, tuple[RowColumns, int]] = OrderedDict()
        self._held = 0
        self._readers: dict[int, _ReadRows] = {}


def find_histories(path: str | Path, split: str, run: str | None) -> tuple[FinishedRun, str]:
    """Find a run of histories, and the name of its split. Raises `InputError` if `path` has none."""
    root, manifest = find_run(path, run)
    if not (root / ROWS).is_file() or "rows_digest" not in manifest.facts:
        raise InputError(
            f"{root}: was made by {manifest.recipe!r} and holds no histories; prepare some with `headrace histories`"
        )
    found = FinishedRun(root, manifest)
    name = found.split_named(split)
    if name is None:
        raise InputError(f"{root}: has no split {split!r}; it has {', '.join(manifest.splits)}")
    return found, name


def open_rows(path: str | Path, split: str, *, run: str | None, cache_bytes: int, files: LocalFiles) -> HistoryRows:
    """Open the rows of a split of prepared histories. Raises `InputError` if `path` has none."""
    return HistoryRows(*find_histories(path, split, run), cache_bytes=cache_bytes, files=files)


def facts_of_blobs(blobs: RowBytes, names: Sequence[str]) -> I64:
    """Compute the columns of `SmallFacts` for each row: int64 [R, 5].

    names: file and row, for errors. Raises `CorruptShard` for blobs that are not rows.
    """
    if not blobs:
        return np.zeros((0, 5), np.int64)
    found = decode_blobs(blobs)
    if found.damage:
        raise CorruptShard(damaged(names[len(found.n)], found.damage))
    n, starts, index = found.n, found.starts, found.index
    has_latency = np.repeat(found.head["no_latency"] == 0, n)
    lengths = 2 + result_sizes(found.codes, found.values, has_latency)
    lengths += np.repeat(np.where(found.head["entity_family"] == 6, 16, 4), n)
    if index is not None:
        lengths += np.where(index < np.repeat(found.peers4, n), 5, 17) * np.repeat(found.peers4 + found.peers6 > 0, n)
    long_gaps = np.diff(found.seconds.astype(np.int64)) >= 256
    long_gaps[starts[1:] - 1] = False
    before = borders_of(long_gaps.astype(np.int64))  # over the measurements of all rows
    return np.column_stack(
        [
            n,
            np.add.reduceat(lengths, starts),
            np.maximum.reduceat(lengths, starts),
            before[starts + n - 1] - before[starts],
            found.seconds[starts + n - 1],
        ]
    )


def _read_records(path: Path) -> _ReadRows:
    reader, lock = open_array_record(path, max_parallelism=0), threading.Lock()

    def read(places: list[int]) -> RowBytes:
        try:
            with lock:
                blobs: list[bytes] = reader.read(places)
        except (ValueError, RuntimeError, OSError, IndexError) as error:
            raise unreadable(path, error) from error
        return blobs

    return read


def _read_mapped(path: Path) -> _ReadRows:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        columns = [batch.column("measurements") for batch in batches]
    except (OSError, pa.ArrowException, KeyError) as error:
        raise unreadable(path, error) from error
    ends = np.cumsum([len(each) for each in columns])

    def read(places: list[int]) -> RowBytes:
        if places and max(places) >= (ends[-1] if len(ends) else 0):
            raise unreadable(path, IndexError(f"it has no row {max(places) + 1}"))
        blobs = []
        for place, batch in zip(places, np.searchsorted(ends, places, side="right").tolist(), strict=True):
            column = columns[batch]
            blobs.append(memoryview(column[place - int(ends[batch]) + len(column)].as_buffer()))
        return blobs

    return read
