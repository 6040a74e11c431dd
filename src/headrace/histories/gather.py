"""Gather the measurements of a source shard, grouped by partition, in a piece file: pass 1. O(batch) of memory."""

from __future__ import annotations

from collections.abc import Iterator
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
from headrace.histories.keyed import hash_entities, sampled
from headrace.histories.parse import Dropped, Place, parse_chunk
from headrace.histories.piece import PieceWriter
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.storage.local import created, storing

_BATCH_ROWS = 1 << 17  # a usual row group: its dictionaries need not be joined with others


def piece_file(number: int) -> str:
    """Give the path of a source shard's piece, relative to the run."""
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
    files: TaskFiles, settings: Histories, shard: Shard, number: int, partitions: int, *, compiled: bool = False
) -> dict[str, Any]:
    """Write the piece of one source shard. Raises `InputError` for rows that are an error."""
    place = Place(str(shard.path), shard.name, stem_of_name(shard.path.name))
    names = ("rows_read", "not_sampled", "measurements", "failed", "clamped", "backwards", "sum")
    counts, dropped = dict.fromkeys(names, 0), Dropped()
    latest: int | None = None
    temporary = files.temporary(piece_file(number))
    with created(temporary) as file:
        writer = PieceWriter(file, partitions)
        for first_row, table in _batches(shard, settings):
            counts["rows_read"] += table.num_rows
            rows = np.arange(first_row, first_row + table.num_rows)
            if settings.sample_rate < 1:
                mine = sampled(shard.name, first_row, len(rows), settings.sample_rate, settings.seed)
                counts["not_sampled"] += int(len(rows) - mine.sum())
                rows, table = rows[mine], table.filter(pa.array(mine))
            if not len(rows):
                continue
            try:
                parsed = parse_chunk(table, rows, place, settings, dropped, compiled=compiled)
            except InputError as error:
                if str(error).startswith(place.path):
                    raise
                raise InputError(f"{place.path}: {error}") from error
            if not len(parsed.micros):
                continue
            hashes = hash_entities(parsed.entities, settings.entity_kind, settings.seed, compiled=compiled, half="high")
            with storing(temporary):  # the writes alone: what reading raises is about the source
                total = writer.append(parsed, hashes.order, compiled=compiled)
            micros = parsed.micros
            counts["measurements"] += len(micros)
            counts["failed"] += int(np.count_nonzero(parsed.codes == 0))
            counts["clamped"] += parsed.clamped
            counts["backwards"] += int(np.count_nonzero(micros[1:] < micros[:-1]))
            counts["backwards"] += latest is not None and int(micros[0]) < latest
            counts["sum"] = (counts["sum"] + total) % (1 << 64)
            latest = int(micros[-1])
        with storing(temporary):
            checksum = writer.finish()
            file.flush()
    size = temporary.stat().st_size
    files.finished(temporary, piece_file(number), Written(counts["measurements"], size, "", (), checksum))
    not_sampled = counts.pop("not_sampled")
    return {
        **counts,
        "dropped": dropped.rows | ({"not_sampled": not_sampled} if not_sampled else {}),
        "first_dropped": dropped.first,
    }


def _batches(shard: Shard, settings: Histories) -> Iterator[tuple[int, pa.Table]]:
    """Yield the columns in pieces of about 131,072 rows or one row group, with the number of their first row."""
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
