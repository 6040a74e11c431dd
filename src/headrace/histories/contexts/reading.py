"""Read the big rows of a finished run by number, from ArrayRecord shards or memory-mapped Arrow
files.

Planning needs only `rows.parquet`. A shard is opened, and compared with its checksum, when one of
its rows is first read. Rows stay open in a least-recently-used cache. For an ArrayRecord row the
cache holds its bytes, for a mapped row views, so a context from a mapped row of 8 MB reads only the
pages that hold its measurements. Thread-safe; pickling to a worker leaves open files and rows
behind.
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

from headrace.arrays import I64, offsets_from_lengths
from headrace.dataset.local_shards import LocalFiles, LocalShards
from headrace.dataset.manifest import read_config
from headrace.dataset.open import FinishedRun, find_run
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import CorruptShard, InputError, setting_name
from headrace.gate import RESTORE
from headrace.gate.arrow import mapped_file
from headrace.gate.mapped import Mapped
from headrace.gate.parquet import read_run_table
from headrace.histories.codec.rows import RowColumns, damaged, decode_blobs, decode_rows
from headrace.histories.contexts.tokeniser import PLAIN, Layout, TokenColumns
from headrace.histories.contexts.vocabulary import result_sizes
from headrace.histories.shard_file import mapped_blobs, open_array_record, unreadable

ROWS = "rows.parquet"
_COLUMNS = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("n_measurements", pa.int64(), nullable=False),
    ]
)
_VIEW_BYTES = 2048  # approximate memory of an open mapped row without its peers


RowBytes = Sequence[bytes | memoryview]
_ReadRows = Callable[[list[int]], RowBytes]


class HistoryRows:
    """The rows of one split, in the order of `rows.parquet`.

    n: int64 [R], measurements of each row.
    values: names of the value columns, and their types in tokens. columns: of a measurement.
    cache_bytes: limit on the rows that stay open, per process.
    files: how shards become local files.
    """

    def __init__(
        self, run: FinishedRun, split: str, *, cache_bytes: int, files: LocalFiles
    ) -> None:
        metadata = run.manifest.metadata
        self.root = run.root
        self.split = split
        self.cache_bytes = cache_bytes
        self.columns = _columns_of(run)
        self.values = dict(self.columns.values)
        identity = [run.manifest.run_id, split, metadata["rows_digest"]]
        self.identity = sha256_hex(canonical_json(identity))
        table = read_run_table(run.root / ROWS, _COLUMNS, sha256=metadata["rows_digest"])
        table = table.filter(pc.equal(table["split"], split))
        self.n: I64 = table["n_measurements"].to_numpy()
        self._position: I64 = table["position"].to_numpy()
        encoded = pc.dictionary_encode(table["shard"].combine_chunks())
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        self._shards: list[str] = encoded.dictionary.to_pylist()
        self._shard_of_row: I64 = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        checksums = dict.fromkeys(self._shards, "")
        if self._shards:
            index = run.index.split(split)
            if index is not None:
                known = dict(zip(index.shards, index.checksums, strict=True))
                checksums |= {shard: known.get(shard, "") for shard in self._shards}
        self._local = LocalShards(run.root, checksums, files)
        self._close()

    def __len__(self) -> int:
        """Return R, the number of rows of the split."""
        return len(self.n)

    def __getstate__(self) -> dict[str, Any]:
        process_only = ("_lock", "_open", "_open_bytes", "_readers", "_mapped")
        return {name: value for name, value in self.__dict__.items() if name not in process_only}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._close()

    def open(self, numbers: Sequence[int]) -> Mapping[int, RowColumns]:
        """Open these rows, each read once.

        Raises `CorruptShard` for bytes that differ from what was published.
        """
        self._check_files(numbers)
        opened: dict[int, RowColumns] = {}
        missing: list[int] = []
        with self._lock:
            for number in numbers:
                cached = self._open.get(number)
                if cached is None:
                    missing.append(number)
                else:
                    self._open.move_to_end(number)
                    opened[number] = cached[0]
        for shard_rows, blobs in self._read(missing):
            rows = decode_rows(blobs, [self._name(number) for number in shard_rows])
            for number, blob, row in zip(shard_rows, blobs, rows, strict=True):
                self._check(number, row.n)
                opened[number] = row
                size = _VIEW_BYTES + row.peer_bytes.nbytes
                if not isinstance(blob, memoryview):
                    size += len(blob)
                self._cache(number, row, size)
        return opened

    def _cache(self, number: int, row: RowColumns, size: int) -> None:
        """Keep a row open, instead of those that were not used for the longest time."""
        if size > self.cache_bytes:
            return
        with self._lock:
            if number not in self._open:
                self._open[number] = (row, size)
                self._open_bytes += size
            while self._open_bytes > self.cache_bytes:
                _, (_, closed) = self._open.popitem(last=False)
                self._open_bytes -= closed

    def row_sizes(self, numbers: Sequence[int], layout: Layout = PLAIN) -> I64:
        """Read the facts of these rows, see `sizes_of_blobs`; int64 [len(numbers), 5].

        Leaves nothing open.
        """
        self._check_files(numbers)
        blob_of: dict[int, bytes | memoryview] = {}
        for shard_rows, blobs in self._read(numbers):
            blob_of.update(zip(shard_rows, blobs, strict=True))
        names = [self._name(number) for number in numbers]
        sizes = sizes_of_blobs([blob_of[number] for number in numbers], names, layout)
        for number, n in zip(numbers, sizes[:, 0].tolist(), strict=True):
            self._check(number, n)
        return sizes

    def _read(self, numbers: Sequence[int]) -> Iterator[tuple[list[int], RowBytes]]:
        """Yield rows in the order of the shards, as (some of the requested rows, their blobs),
        views if mapped.
        """
        by_shard: dict[int, list[int]] = {}
        for number in numbers:
            by_shard.setdefault(int(self._shard_of_row[number]), []).append(number)
        for shard, rows in by_shard.items():
            with self._lock:
                if shard not in self._readers:
                    name = self._shards[shard]  # a cached copy of an object has another name
                    path = self._local.local_path(name)
                    if name.endswith(".arrow"):
                        self._mapped[shard] = mapped_file(path)
                        self._readers[shard] = _open_mapped(path, self._mapped[shard])
                    else:
                        self._readers[shard] = _open_records(path)
                read = self._readers[shard]
            yield rows, read(self._position[rows].tolist())

    def _check_files(self, numbers: Sequence[int]) -> None:
        """Check that the mapped files that hold these rows were not cut. Raises `CorruptShard`."""
        if self._mapped:
            for shard in np.unique(self._shard_of_row[list(numbers)]).tolist():
                if shard in self._mapped:
                    self._mapped[shard].check()

    def _name(self, number: int) -> str:
        return f"{self._shards[self._shard_of_row[number]]}: row {int(self._position[number]) + 1}"

    def _check(self, number: int, n: int) -> None:
        if n != self.n[number]:
            raise CorruptShard(
                f"has {n} measurements, {ROWS} says {self.n[number]}",
                path=self._shards[self._shard_of_row[number]],
                row=int(self._position[number]) + 1,
                remedy=RESTORE,
            )

    def _close(self) -> None:
        self._lock = threading.RLock()
        self._open: OrderedDict[int, tuple[RowColumns, int]] = OrderedDict()
        self._open_bytes = 0
        self._readers: dict[int, _ReadRows] = {}
        self._mapped: dict[int, Mapped] = {}


def find_histories(path: str | Path, split: str, run: str | None) -> tuple[FinishedRun, str]:
    """Find a run of histories, and the name of its split.

    Raises `InputError` if `path` has none.
    """
    root, manifest = find_run(path, run)
    if not (root / ROWS).is_file() or "rows_digest" not in manifest.metadata:
        raise InputError(
            f"was made by {manifest.recipe!r} and holds no histories",
            path=root,
            remedy="prepare some with `headrace histories`",
        )
    finished = FinishedRun(root, manifest)
    name = finished.split_named(split)
    if name is None:
        raise InputError(
            f"has no {setting_name('split')} {split!r}; it has {', '.join(manifest.splits)}",
            path=root,
            value=split,
        )
    return finished, name


def _columns_of(run: FinishedRun) -> TokenColumns:
    """Return the columns of the measurements of a run.

    The types of categories are those of the first run whose codes are kept.
    """
    config = read_config(run.root, run.manifest)
    metadata = run.manifest.metadata
    entries = metadata.get("dictionaries", {})
    values = dict(metadata.get("values", {}))
    roles = {}
    known = {}
    for role, entry in entries.items():
        if "earlier" in entry:
            known[role] = entry["earlier"]
        if role not in ("entity", "peer"):
            roles[entry["column"]] = role
            values[entry["column"]] = entry.get("token_type", values[entry["column"]])
    return TokenColumns(
        config["entity_kind"],
        config["peer_kind"],
        config["value"] is not None,
        values,
        roles,
        known,
    )


def sizes_of_blobs(blobs: RowBytes, names: Sequence[str], layout: Layout = PLAIN) -> I64:
    """Compute the columns of `SmallRowSizes` for each row: int64 [R, 5].

    names: file and row, for errors. Raises `CorruptShard` for blobs that are not rows.
    """
    if not blobs:
        return np.zeros((0, 5), np.int64)
    decoded = decode_blobs(blobs)
    if decoded.damage:
        raise damaged(names[len(decoded.n)], decoded.damage)
    n = decoded.n
    starts = decoded.starts
    index = decoded.index
    has_latency = np.repeat(decoded.has_latency, n)
    lengths = 1 + result_sizes(decoded.codes, decoded.values, layout, has_latency)
    lengths += np.repeat(layout.entity_sizes[decoded.headers["entity_family"]], n)
    if index is not None:
        has_peers = np.repeat(decoded.peers4 + decoded.peers6 > 0, n)
        lengths += np.where(index < np.repeat(decoded.peers4, n), *layout.peer) * has_peers
    long_gaps = np.diff(decoded.offsets.astype(np.int64)) >= 256
    long_gaps[starts[1:] - 1] = False
    # over the measurements of all rows
    gaps_before = offsets_from_lengths(long_gaps.astype(np.int64))
    columns = [
        n,
        np.add.reduceat(lengths, starts),
        np.maximum.reduceat(lengths, starts),
        gaps_before[starts + n - 1] - gaps_before[starts],
        decoded.offsets[starts + n - 1],
    ]
    return np.column_stack(columns)


def _open_records(path: Path) -> _ReadRows:
    reader = open_array_record(path, max_parallelism=0)
    lock = threading.Lock()

    def read(positions: list[int]) -> RowBytes:
        try:
            with lock:
                blobs: list[bytes] = reader.read(positions)
        except (ValueError, RuntimeError, OSError, IndexError) as error:
            raise unreadable(path, error) from error
        return blobs

    return read


def _open_mapped(path: Path, mapped: Mapped) -> _ReadRows:
    columns = list(mapped_blobs(path, mapped))
    offsets = offsets_from_lengths([len(column) for column in columns])

    def read(positions: list[int]) -> RowBytes:
        outside = [position for position in positions if not 0 <= position < offsets[-1]]
        if outside:
            raise unreadable(path, IndexError(f"it has no row {outside[0] + 1}"))
        batches = np.searchsorted(offsets, positions, side="right") - 1
        blobs = []
        for position, batch in zip(positions, batches.tolist(), strict=True):
            blob = columns[batch][position - int(offsets[batch])]
            blobs.append(memoryview(blob.as_buffer()))
        return blobs

    return read
