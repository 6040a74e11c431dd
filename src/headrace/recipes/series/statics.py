"""Static attributes: tables joined on the entity, and what to do where one is missing. O(entities) of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.arrays import F64
from headrace.errors import InputError
from headrace.formats.detect import open_bytes
from headrace.formats.source import read_chunks, survey
from headrace.recipes.series.config import Series
from headrace.recipes.temporal_split.columns import as_text, numbers

_SEPARATORS = ";\t,|"


@dataclass(frozen=True)
class Statics:
    """Attributes of entities, sorted by name: float64 [E, S], NaN where missing. strangers: in no series."""

    names: tuple[str, ...]
    entities: list[str]
    values: F64
    strangers: int

    def lacking(self) -> dict[str, str]:
        """Entities that lack some → which."""
        missing = np.isnan(self.values)
        found = {}
        for place in np.flatnonzero(missing.any(axis=1)).tolist():
            absent = [name for name, gone in zip(self.names, missing[place].tolist(), strict=True) if gone]
            found[self.entities[place]] = f"has no static {', '.join(absent[:5])}" + (", …" if len(absent) > 5 else "")
        return found

    def of(self, entities: Sequence[str]) -> F64:
        """The rows of some entities, [len(entities), S]."""
        place = {name: row for row, name in enumerate(self.entities)}
        return self.values[[place[each] for each in entities]]


def read_statics(settings: Series, files: Sequence[tuple[Path, str]], entities: Sequence[str]) -> Statics:
    """The static features of these entities, from all files. An entity that no file has lacks all of them.

    Raises `InputError` if a feature is in no file, is no number, or two files say different things of one entity.
    """
    wanted = sorted(settings.static_features)
    places = sorted(entities)
    place = {name: row for row, name in enumerate(places)}
    values = np.full((len(place), len(wanted)), np.nan)
    said_in = np.zeros(values.shape, np.int32)  # the file that a value is from
    found: set[str] = set()
    strangers: set[str] = set()
    for number, (path, name) in enumerate(files):
        table, key = _read(settings, path, name)
        here = [each for each in wanted if each in table.column_names]
        found |= set(here)
        keys = as_text(table[key], settings.null_values, f"{path}: column {key!r}").to_pylist()
        rows = np.array([place.get(each, -1) if each is not None else -1 for each in keys], np.int64)
        strangers |= {each for each in keys if each is not None and each not in place}
        known = np.flatnonzero(rows >= 0)
        for each in here:
            try:
                column = numbers(table[each], settings.null_values, each)
            except (InputError, pa.ArrowNotImplementedError) as error:
                raise InputError(
                    f"{path}: {error}; static features are numbers, leave {each!r} out or encode it first"
                ) from None
            read = np.asarray(column.to_numpy(), np.float64)
            if np.isinf(read).any():
                raise InputError(f"{path}: row {int(np.argmax(np.isinf(read))) + 1}: {each} is infinite; correct it")
            for mark in settings.missing_numbers:
                read = np.where(read == mark, np.nan, read)
            column_at = wanted.index(each)
            clash = _enter(values[:, column_at], said_in[:, column_at], rows[known], read[known], number)
            if clash is not None:
                row, value = clash
                other, before = files[int(said_in[row, column_at])][0], float(values[row, column_at])
                raise InputError(
                    f"{path}: {each} of {places[row]} is {value!r}, {other} has {before!r} for it; correct one of them"
                )
    absent = [each for each in wanted if each not in found]
    if absent:
        raise InputError(
            f"{', '.join(str(path) for path, _ in files[:3])}{', …' if len(files) > 3 else ''}: no file has the static "
            f"feature {absent[0]!r}; correct static_features"
        )
    return Statics(tuple(wanted), places, values, len(strangers))


def _enter(
    values: F64, said_in: npt.NDArray[np.int32], rows: npt.NDArray[np.int64], read: F64, number: int
) -> tuple[int, float] | None:
    """Put what a file says of a column in its rows; (row, value) where another value is there already."""
    there = ~np.isnan(read)
    rows, read = rows[there], read[there]
    for _ in range(2):  # the second time rows that the file itself has twice meet what they said before
        before = values[rows]
        clashes = np.flatnonzero(~np.isnan(before) & (before != read))
        if len(clashes):
            return int(rows[clashes[0]]), float(read[clashes[0]])
        new = np.isnan(before)
        values[rows[new]] = read[new]
        said_in[rows[new]] = number
    return None


def _read(settings: Series, path: Path, name: str) -> tuple[pa.Table, str]:
    key = settings.static_entity or settings.entity
    if ".txt" in path.name.lower():
        table = text_table(path)
    else:
        shard = survey(path, name)
        if key not in shard.schema.names:
            raise _no_key(path, key, shard.schema.names)
        columns = [each for each in shard.schema.names if each == key or each in settings.static_features]
        pieces = [chunk.table(columns) for chunk in read_chunks(shard, columns)]
        table = pa.concat_tables(pieces or [shard.schema.empty_table().select(columns)])
    if key not in table.column_names:
        raise _no_key(path, key, table.column_names)
    return table, key


def _no_key(path: Path, key: str, names: Sequence[str]) -> InputError:
    return InputError(
        f"{path}: has no column {key!r} to join on; it has {', '.join(names[:12])}; correct static_entity"
    )


def text_table(path: Path) -> pa.Table:
    """A text table whose separator its first line shows: one of semicolon, tab, comma, bar. All columns are text."""
    kind: Literal["gz", "zst", "none"] = "none"
    if path.suffix in (".gz", ".zst"):
        kind = "gz" if path.suffix == ".gz" else "zst"
    try:
        with open_bytes(path, kind) as stream:
            data = stream.read()
        header = data.partition(b"\n")[0].decode("utf-8-sig")
        separator = max(_SEPARATORS, key=header.count)
        table = pl.read_csv(data, separator=separator, infer_schema=False)
        return table.with_columns(pl.all().str.strip_chars()).to_arrow()  # fields are often padded
    except (OSError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot be read as a table ({error}); correct or convert it") from error


def complete(settings: Series, values: F64) -> F64:
    """Missing attributes replaced by the mean or the median of the entities that have them, if that was asked for.

    values: of the retained entities. Raises `InputError` where none has one.
    """
    if settings.missing_static not in ("mean", "median") or not np.isnan(values).any():
        return values
    nowhere = np.isnan(values).all(axis=0)
    if nowhere.any():
        name = sorted(settings.static_features)[int(np.argmax(nowhere))]
        raise InputError(f"static feature {name!r} is missing for every entity; take it out of static_features")
    middle = np.nanmean(values, axis=0) if settings.missing_static == "mean" else np.nanmedian(values, axis=0)
    return np.where(np.isnan(values), middle, values)
