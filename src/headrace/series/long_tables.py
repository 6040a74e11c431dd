"""Long tables, whose rows belong to many entities: spread once, so that any batch of entities can be read by itself.

Rows of a source file are gathered into pieces of up to `_PIECE_ROWS`, sorted by entity, and written end to end:
`stage/spread/part-N.times` int64 and `part-N.values` float64 [rows, C]; `part-N.parquet` lists the runs: entity, first
row, rows. An entity's rows in source order are its runs by file and place. Memory is O(piece) and O(runs).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.arrays import F64, I64, Bools
from headrace.digest import canonical_json
from headrace.errors import InputError
from headrace.formats.dates import MISSING
from headrace.formats.text_columns import as_text
from headrace.formats.write import HashingFile
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.series.batches import Loaded
from headrace.series.config import Series
from headrace.series.observed import Observed, parse, tables, tell_time

_PIECE_ROWS = 1 << 19
_RUNS = pa.schema([("entity", pa.string()), ("first_row", pa.int64()), ("rows", pa.int64())])
_WHATS = ("times", "values", "parquet")  # and "json", which is written whole


def _name(number: int, what: str) -> str:
    return f"{STAGE_DIRECTORY}/spread/part-{number:05d}.{what}"


@dataclass
class _Piece:
    """Rows that wait to be written."""

    entities: list[pa.Array]
    times: list[I64]
    values: list[F64]
    rows: int = 0

    def add(self, entities: pa.Array, times: I64, values: F64, places: I64) -> None:
        """Take the rows at these places."""
        if len(places) == len(entities):
            self.entities.append(entities)
            self.times.append(times)
            self.values.append(values)
        elif len(places):
            self.entities.append(entities.take(pa.array(places)))
            self.times.append(times[places])
            self.values.append(values[places])
        self.rows += len(places)


def spread(files: TaskFiles, settings: Series, path: Path, name: str, number: int) -> dict[str, Any]:
    """Spread one source file. Rows whose time or values cannot be read blame their entity, not the file.

    Raises `InputError` if the file cannot be read as a whole, or a row has no entity and that is an error.
    """
    listed = settings.listed()
    wanted = None if listed is None else pa.array(listed, pa.large_string())
    dropped: Counter[str] = Counter()
    bad: dict[str, str] = {}
    bad_time: dict[str, str] = {}
    paths = {what: files.temporary(_name(number, what)) for what in _WHATS}
    runs: list[pa.Table] = []
    piece = _Piece([], [], [])
    written_rows = read = 0
    with HashingFile(paths["times"]) as times_file, HashingFile(paths["values"]) as values_file:
        for table in tables(path, name, [settings.entity, settings.time, *settings.columns()]):
            entities = as_text(table[settings.entity], settings.null_values, f"{path}: column {settings.entity!r}")
            entities = entities.combine_chunks() if isinstance(entities, pa.ChunkedArray) else entities
            keep = _kept(settings, path, table, entities, wanted, dropped, read)
            parsed = parse(settings, settings.columns(), table, read)
            for row, told in sorted(parsed.bad.items()):
                if keep[row]:
                    bad.setdefault(entities[row].as_py(), f"{path}: {told}")
            for row in np.flatnonzero(keep & (parsed.times == MISSING)).tolist():
                if entities[row].as_py() not in bad_time:
                    bad_time[entities[row].as_py()] = f"{path}: {tell_time(settings, table, row, read)}"
            piece.add(entities, parsed.times, parsed.values, np.flatnonzero(keep))
            read += len(keep)
            if piece.rows >= _PIECE_ROWS:
                runs.append(_flush(piece, written_rows, times_file, values_file))
                written_rows += piece.rows
                piece = _Piece([], [], [])
        if piece.rows:
            runs.append(_flush(piece, written_rows, times_file, values_file))
            written_rows += piece.rows
        for what, file in (("times", times_file), ("values", values_file)):
            file.close()
            files.finished(paths[what], _name(number, what), file.holding(written_rows))
    with HashingFile(paths["parquet"]) as file:
        pq.write_table(pa.concat_tables([_RUNS.empty_table(), *runs]), file, compression="zstd")
        file.close()
        files.finished(paths["parquet"], _name(number, "parquet"), file.holding(written_rows))
    files.write(_name(number, "json"), canonical_json({"bad": bad, "bad_time": bad_time}))
    return {"rows_read": read, "dropped": dict(sorted(dropped.items()))}


def _kept(
    settings: Series,
    path: Path,
    table: pa.Table,
    entities: pa.Array,
    wanted: pa.Array | None,
    dropped: Counter[str],
    first_row: int,
) -> Bools:
    """Which rows belong to an entity that is wanted; the others are counted. Raises `InputError` as `spread`."""
    absent = np.asarray(pc.is_null(entities).to_numpy(zero_copy_only=False), np.bool_)
    if absent.any() and settings.null_entity == "error":
        row = int(np.argmax(absent))
        value = table[settings.entity][row].as_py()
        why = f"is {value!r}, which null_values names: leave it out there" if value else "is missing: correct it"
        raise InputError(f"{path}: row {first_row + row + 1}: {settings.entity} {why}, or give null_entity='drop'")
    keep = ~absent
    dropped["null_entity"] += int(absent.sum())
    if wanted is not None:
        known = np.asarray(pc.is_in(entities, value_set=wanted).to_numpy(zero_copy_only=False), np.bool_)
        dropped["not_listed"] += int((keep & ~known).sum())
        keep &= known
    return keep


def _flush(piece: _Piece, before: int, times_file: HashingFile, values_file: HashingFile) -> pa.Table:
    """Write the rows of a piece sorted by entity, rows of one in source order; the runs."""
    encoded = pa.chunked_array(piece.entities).combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    times_file.write(np.concatenate(piece.times)[order].data)
    values_file.write(np.concatenate(piece.values)[order].data)
    counts = np.bincount(codes, minlength=len(encoded.dictionary))
    starts = np.cumsum(counts) - counts + before
    return pa.table([encoded.dictionary.cast(pa.string()), pa.array(starts), pa.array(counts)], schema=_RUNS)


@dataclass(frozen=True)
class LongSource:
    """The entities of spread tables, by name.

    names [E]; runs of entity e are [first_run[e], first_run[e + 1]) of the parallel arrays part, first_row, rows.
    """

    run: Path
    columns: int
    names: list[str]
    first_run: I64
    part: I64
    first_row: I64
    rows: I64
    bad: dict[str, str]
    bad_time: dict[str, str]

    @classmethod
    def of(cls, settings: Series, run: Path, parts: int) -> LongSource:
        """What `parts` spread files hold; entities that were asked for and have no row as well."""
        tables_ = [pq.read_table(run / _name(number, "parquet")) for number in range(parts)]
        part = np.repeat(np.arange(parts), [table.num_rows for table in tables_])
        whole = pa.concat_tables(tables_)
        encoded = whole["entity"].combine_chunks().dictionary_encode()
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        present = encoded.dictionary.to_pylist()
        names = sorted({*present, *(settings.listed() or ())})
        number = {name: place for place, name in enumerate(names)}
        numbers = np.array([number[name] for name in present], np.int64)
        of_entity = numbers[encoded.indices.to_numpy().astype(np.int64)]
        order = np.argsort(of_entity, kind="stable")  # runs of an entity stay in source order
        counts = np.bincount(of_entity, minlength=len(names))
        bad: dict[str, str] = {}
        bad_time: dict[str, str] = {}
        for place in range(parts):
            record = json.loads((run / _name(place, "json")).read_bytes())
            bad = {**record["bad"], **bad}
            bad_time = {**record["bad_time"], **bad_time}
        return cls(
            run,
            len(settings.columns()),
            names,
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            part[order],
            whole["first_row"].to_numpy()[order],
            whole["rows"].to_numpy()[order],
            bad,
            bad_time,
        )

    @property
    def count(self) -> int:
        """How many entities there are."""
        return len(self.names)

    def batch(self, start: int, stop: int) -> Iterator[Loaded]:
        """Some of them."""
        for place in range(start, stop):
            yield Loaded(self.names[place], "", partial(self._load, place))

    def paths(self, start: int, stop: int) -> list[Path]:
        """None: their rows were read before."""
        del start, stop
        return []

    def bytes(self, start: int, stop: int) -> int:
        """0: their rows were read before."""
        del start, stop
        return 0

    def _load(self, place: int, columns: Sequence[str]) -> Observed:
        name = self.names[place]
        if name in self.bad:
            raise InputError(self.bad[name])
        times, values = [np.empty(0, np.int64)], [np.empty((0, self.columns))]
        for run in range(int(self.first_run[place]), int(self.first_run[place + 1])):
            first, count, part = int(self.first_row[run]), int(self.rows[run]), int(self.part[run])
            times.append(np.fromfile(self.run / _name(part, "times"), np.int64, count, offset=first * 8))
            width = self.columns * 8
            flat = np.fromfile(self.run / _name(part, "values"), np.float64, count * self.columns, offset=first * width)
            values.append(flat.reshape(count, self.columns))
        return Observed(np.concatenate(times), np.concatenate(values)[:, : len(columns)], self.bad_time.get(name))
