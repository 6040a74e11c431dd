"""Long tables, whose rows belong to many entities: spread once, so that any batch of entities can be read by itself.

Rows of a source file are gathered into pieces of up to `_PIECE_ROWS`, sorted by entity, and written end to end:
`stage/spread/part-N.times` int64 and `part-N.values` float64 [rows, C]; `part-N.parquet` lists the runs: entity, first
row, rows. An entity's rows in source order are its runs by file and place. Memory is O(piece) and O(runs).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.arrays import F64, I64
from headrace.digest import canonical_json
from headrace.errors import InputError
from headrace.formats.dates import MISSING
from headrace.formats.text_columns import as_text
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.series.config import Series
from headrace.series.sources import EntitySource, Observed, parse, tables, tell_time
from headrace.series.store import publishing

_PIECE_ROWS = 1 << 19
_RUNS = pa.schema([("entity", pa.string()), ("first_row", pa.int64()), ("rows", pa.int64())])


def _name(number: int, what: str) -> str:
    return f"{STAGE_DIRECTORY}/spread/part-{number:05d}.{what}"


def spread(settings: Series, path: Path, name: str, number: int, files: TaskFiles) -> dict[str, Any]:
    """Spread one source file. Rows whose time or values cannot be read blame their entity, not the file.

    Raises `InputError` if the file cannot be read as a whole, or a row has no entity and that is an error.
    """
    listed = settings.listed()
    wanted = None if listed is None else pa.array(listed, pa.large_string())
    dropped: Counter[str] = Counter()
    bad: dict[str, dict[str, str]] = {"values": {}, "time": {}}
    runs = [_RUNS.empty_table()]
    piece: list[tuple[pa.Array, I64, F64]] = []
    held = written = read = 0
    with (
        publishing(files, _name(number, "times")) as times_file,
        publishing(files, _name(number, "values")) as values_file,
    ):

        def flush() -> None:
            """Write the rows of a piece sorted by entity, rows of one in source order."""
            nonlocal held, written
            entities, times, values = zip(*piece, strict=True)
            encoded = pa.concat_arrays(entities).dictionary_encode()
            codes = encoded.indices.to_numpy()
            order = np.argsort(codes, kind="stable")
            times_file.write(np.concatenate(times)[order].data)
            values_file.write(np.concatenate(values)[order].data)
            counts = np.bincount(codes, minlength=len(encoded.dictionary))
            columns = [encoded.dictionary.cast(pa.string()), np.cumsum(counts) - counts + written, counts]
            runs.append(pa.table(columns, schema=_RUNS))
            piece.clear()
            held, written = 0, written + held

        for table in tables(path, name, [settings.entity, settings.time, *settings.columns()]):
            entities = as_text(table[settings.entity], settings.null_values, f"{path}: column {settings.entity!r}")
            entities = entities.combine_chunks() if isinstance(entities, pa.ChunkedArray) else entities
            keep = np.asarray(entities.is_valid())
            if settings.null_entity == "error" and not keep.all():
                row = int(np.argmin(keep))
                value = table[settings.entity][row].as_py()
                why = (
                    f"is {value!r}, which null_values names: leave it out there" if value else "is missing: correct it"
                )
                raise InputError(f"{path}: row {read + row + 1}: {settings.entity} {why}, or give null_entity='drop'")
            dropped["null_entity"] += int((~keep).sum())
            if wanted is not None:
                known = np.asarray(pc.is_in(entities, value_set=wanted))
                dropped["not_listed"] += int((keep & ~known).sum())
                keep = keep & known
            times, values, unread = parse(settings, settings.columns(), table, read)
            for row in sorted(unread):
                if keep[row]:
                    bad["values"].setdefault(entities[row].as_py(), f"{path}: {unread[row]}")
            for row in np.flatnonzero(keep & (times == MISSING)).tolist():
                if entities[row].as_py() not in bad["time"]:
                    bad["time"][entities[row].as_py()] = f"{path}: {tell_time(settings, table, row, read)}"
            whole = keep.all()  # then nothing is copied
            piece.append(
                (entities, times, values) if whole else (entities.filter(pa.array(keep)), times[keep], values[keep])
            )
            read += len(keep)
            held += int(keep.sum())
            if held >= _PIECE_ROWS:
                flush()
        if held:
            flush()
    with publishing(files, _name(number, "parquet")) as file:
        pq.write_table(pa.concat_tables(runs), file, compression="zstd")
    files.write(_name(number, "json"), canonical_json(bad))
    return {"rows_read": read, "dropped": dict(sorted(dropped.items()))}


def spread_source(settings: Series, run: Path, parts: int) -> EntitySource:
    """Open `parts` spread files; entities that were asked for and have no row are in it too."""
    files = (run / _name(number, "parquet") for number in range(parts))
    runs = pl.concat([pl.read_parquet(path).with_columns(part=pl.lit(number)) for number, path in enumerate(files)])
    runs = runs.sort("entity", maintain_order=True)  # runs of an entity stay in source order
    names = sorted({*runs["entity"].unique(), *(settings.listed() or ())})
    begins, ends = (
        runs["entity"].search_sorted(pl.Series(names, dtype=pl.String), side).to_numpy() for side in ("left", "right")
    )
    bad: dict[str, dict[str, str]] = {"values": {}, "time": {}}
    for number in range(parts):
        for what, told in json.loads((run / _name(number, "json")).read_bytes()).items():
            bad[what] = told | bad[what]  # the first file's word counts
    width = len(settings.columns())

    def rows(number: int, columns: Sequence[str]) -> Observed:
        name = names[number]
        if name in bad["values"]:
            raise InputError(bad["values"][name])
        times, values = [np.empty(0, np.int64)], [np.empty((0, width))]
        for _, first, count, part in runs[int(begins[number]) : int(ends[number])].iter_rows():
            times.append(np.fromfile(run / _name(part, "times"), np.int64, count, offset=first * 8))
            flat = np.fromfile(run / _name(part, "values"), np.float64, count * width, offset=first * width * 8)
            values.append(flat.reshape(count, width))
        return Observed(np.concatenate(times), np.concatenate(values)[:, : len(columns)], bad["time"].get(name))

    return EntitySource(names, rows)
