"""Pass 1, a task per source shard: its measurements, grouped by partition in a piece file. O(batch) of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import InputError
from headrace.formats.detect import stem_of_name
from headrace.formats.schema import few, hint
from headrace.formats.shard import Shard
from headrace.formats.source import read_chunks
from headrace.formats.write import Written
from headrace.histories.config import Histories
from headrace.histories.keyed import order_hashes, sampled
from headrace.histories.parse import Dropped, Known, Parsed, Place, parse_chunk
from headrace.histories.piece import PieceWriter
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.storage.local import created, storing

_BATCH_ROWS = 1 << 17  # a usual row group: its dictionaries need not be joined with others


def piece_file(number: int) -> str:
    """Path of a source shard's piece, relative to the run."""
    return f"{STAGE_DIRECTORY}/piece-{number:05d}.bin"


def check_columns(settings: Histories, shard: Shard) -> None:
    """Raise `InputError` if the shard lacks a column that is asked for."""
    for name in settings.columns():
        if name not in shard.schema.names:
            raise InputError(
                f"{shard.path}: has no column {name!r}, it has {few(shard.schema.names)}; name its columns with "
                f"entity=, time=, peer= and value={hint(shard.schema.names)}"
            )


def gather_shard(
    files: TaskFiles, settings: Histories, shard: Shard, number: int, partitions: int, known: Known
) -> dict[str, Any]:
    """Write the piece of one source shard. Raises `InputError` for rows that are an error."""
    place = Place(str(shard.path), shard.name, stem_of_name(shard.path.name))
    counts = _Counts()
    temporary = files.temporary(piece_file(number))
    with created(temporary) as file:
        writer = PieceWriter(file, partitions)
        for first_row, table in _batches(shard, settings):
            counts.rows_read += table.num_rows
            rows = np.arange(first_row, first_row + table.num_rows)
            if settings.sample_rate < 1:
                mine = sampled(shard.name, first_row, len(rows), settings.sample_rate, settings.seed)
                counts.not_sampled += int(len(rows) - mine.sum())
                rows, table = rows[mine], table.filter(pa.array(mine))
            if not len(rows):
                continue
            try:
                parsed = parse_chunk(table, rows, place, settings, counts.dropped, known)
            except InputError as error:
                if str(error).startswith(place.path):
                    raise
                raise InputError(f"{place.path}: {error}") from error
            orders = order_hashes(parsed.entities, settings.entity_kind, settings.seed, compiled=known.compiled)
            with storing(temporary):  # the writes alone: what reading raises is about the source
                total = writer.append(parsed, orders, compiled=known.compiled)
            counts.take(parsed, total)
        with storing(temporary):
            checksum = writer.finish()
            file.flush()
    size = temporary.stat().st_size
    files.finished(temporary, piece_file(number), Written(counts.measurements, size, "", (), checksum))
    return counts.as_json()


def _batches(shard: Shard, settings: Histories) -> Iterator[tuple[int, pa.Table]]:
    """The columns in pieces of about 131,072 rows or one row group, with the number of their first row."""
    columns = settings.columns()
    addresses = {settings.peer, settings.entity if settings.entity_from == "column" else None}
    held: list[pa.Table] = []
    first_row = rows = 0
    for chunk in read_chunks(shard, columns, coded=[name for name in columns if name in addresses]):
        table = chunk.table(columns)
        held.append(table)
        rows += table.num_rows
        if rows >= _BATCH_ROWS:
            yield first_row, pa.concat_tables(held)
            first_row, rows, held = first_row + rows, 0, []
    if rows:
        yield first_row, pa.concat_tables(held)


@dataclass
class _Counts:
    """What was found in a source shard."""

    rows_read: int = 0
    not_sampled: int = 0
    measurements: int = 0
    failed: int = 0
    clamped: int = 0
    backwards: int = 0
    sum: int = 0
    dropped: Dropped = field(default_factory=Dropped)
    _last: int | None = None

    def take(self, parsed: Parsed, total: int) -> None:
        """Count a batch. total: its `multiset_sum`."""
        micros = parsed.micros
        if not len(micros):
            return
        self.measurements += len(micros)
        self.failed += int(np.count_nonzero(parsed.codes == 0))
        self.clamped += parsed.clamped
        self.backwards += int(np.count_nonzero(micros[1:] < micros[:-1]))
        self.backwards += self._last is not None and int(micros[0]) < self._last
        self._last = int(micros[-1])
        self.sum = (self.sum + total) % (1 << 64)

    def as_json(self) -> dict[str, Any]:
        """For the receipt."""
        rows = {word: count for word, count in self.dropped.rows.items() if count}
        if self.not_sampled:
            rows["not_sampled"] = self.not_sampled
        return {
            "rows_read": self.rows_read,
            "measurements": self.measurements,
            "failed": self.failed,
            "clamped": self.clamped,
            "backwards": self.backwards,
            "sum": self.sum,
            "dropped": rows,
            "first_dropped": self.dropped.first,
        }
