"""Static attributes: tables joined on the entity, and what to do where one is missing. O(entities) of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64
from headrace.errors import InputError
from headrace.formats import delimited
from headrace.formats.detect import Compression, Kind
from headrace.formats.schema import is_text
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import as_text, numbers
from headrace.series.config import Series


@dataclass(frozen=True)
class Statics:
    """Attributes of entities, sorted by name: float64 [E, S], NaN where missing. strangers: in no series.

    words: of each attribute that is a text, the texts that its values number.
    """

    names: tuple[str, ...]
    entities: list[str]
    values: F64
    strangers: int
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def lacking(self) -> dict[str, str]:
        """Entities that lack some → which."""
        missing = np.isnan(self.values)
        found = {}
        for place in np.flatnonzero(missing.any(axis=1)).tolist():
            absent = [name for name, gone in zip(self.names, missing[place].tolist(), strict=True) if gone]
            found[self.entities[place]] = f"has no static {', '.join(absent[:5])}" + (", …" if len(absent) > 5 else "")
        return found

    def of(self, entities: Sequence[str], names: Sequence[str]) -> F64:
        """Some attributes of some entities, [len(entities), len(names)]."""
        place = {name: row for row, name in enumerate(self.entities)}
        columns = [self.names.index(name) for name in names]
        return self.values[[place[each] for each in entities]][:, columns]

    def texts(self, entities: Sequence[str], name: str) -> list[str | None]:
        """An attribute that is a text, of some entities; None where missing."""
        numbers_ = self.of(entities, [name])[:, 0].tolist()
        return [None if each != each else self.words[name][int(each)] for each in numbers_]


def read_statics(settings: Series, files: Sequence[tuple[Path, str]], entities: Sequence[str]) -> Statics:
    """The static features of these entities, from all files. An entity that no file has lacks all of them.

    Raises `InputError` if a feature is in no file, is no number and has no encoder, or two files say different things
    of one entity.
    """
    wanted = sorted(settings.static_features)
    words: dict[str, dict[str, int]] = {name: {} for name in sorted(settings.resolved().encoded)}
    places = sorted(entities)
    place = {name: row for row, name in enumerate(places)}
    values = np.full((len(place), len(wanted)), np.nan)
    said_in = np.zeros(values.shape, np.int32)  # the file that a value is from
    found: set[str] = set()
    strangers: set[str] = set()
    for number, (path, name) in enumerate(files):
        if is_empty(path):
            continue
        table, key = _read(settings, path, name)
        here = [each for each in wanted if each in table.column_names]
        found |= set(here)
        # a key may be called NA: null_values are of values
        keys = as_text(table[key], ("",), f"{path}: column {key!r}").to_pylist()
        rows = np.array([place.get(each, -1) if each is not None else -1 for each in keys], np.int64)
        strangers |= {each for each in keys if each is not None and each not in place}
        known = np.flatnonzero(rows >= 0)
        for each in here:
            if each in words:
                read = _numbered(settings, path, each, table[each], words[each])
            else:
                read = _numbers(settings, path, each, table[each])
            column_at = wanted.index(each)
            clash = _enter(values[:, column_at], said_in[:, column_at], rows[known], read[known], number)
            if clash is not None:
                row, value = clash
                other, before = files[int(said_in[row, column_at])][0], float(values[row, column_at])
                said: list[object] = [value, before]
                if each in words:
                    said = [list(words[each])[int(number)] for number in (value, before)]
                raise InputError(
                    f"{path}: {each} of {places[row]} is {said[0]!r}, {other} has {said[1]!r} for it; correct one of "
                    f"them"
                )
    absent = [each for each in wanted if each not in found]
    if absent:
        raise InputError(
            f"{', '.join(str(path) for path, _ in files[:3])}{', …' if len(files) > 3 else ''}: no file has the static "
            f"feature {absent[0]!r}; correct static_features"
        )
    return Statics(tuple(wanted), places, values, len(strangers), {name: list(own) for name, own in words.items()})


def is_empty(path: Path) -> bool:
    """Whether a static file holds nothing."""
    return path.stat().st_size == 0


def _numbers(settings: Series, path: Path, name: str, column: pa.ChunkedArray) -> F64:
    try:
        read = np.asarray(numbers(column, settings.null_values, name).to_numpy(), np.float64)
    except (InputError, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"{path}: {error}; static features are numbers, or texts with an encoder: leave {name!r} out, or encode it "
            f"by a pipeline of its own in preprocessing_configs.static_features, {{strategy: unified, columns: "
            f"[{name}], pipeline: [OneHotEncoder]}} or [OrdinalEncoder], and name the columns of the others"
        ) from None
    if np.isinf(read).any():
        raise InputError(f"{path}: row {int(np.argmax(np.isinf(read))) + 1}: {name} is infinite; correct it")
    for mark in settings.missing_numbers:
        read = np.where(read == mark, np.nan, read)
    return read


def _numbered(settings: Series, path: Path, name: str, column: pa.ChunkedArray, words: dict[str, int]) -> F64:
    """Texts as their places in `words`, which new ones are added to; numbers are texts as well."""
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
    texts = as_text(column, settings.null_values, f"{path}: column {name!r}").to_pylist()
    read = np.array([np.nan if each is None else words.setdefault(each, len(words)) for each in texts], np.float64)
    if settings.missing_numbers and not is_text(column.type):
        marked = np.isin(np.asarray(column.cast(pa.float64(), safe=False).to_numpy()), settings.missing_numbers)
        read = np.where(marked, np.nan, read)
    return read


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
    """A delimited text of any name, its separator found as in CSV files. All columns are text, padding removed.

    Raises `InputError`.
    """
    compression: Compression = "gz" if path.suffix == ".gz" else "zst" if path.suffix == ".zst" else "none"
    shard = delimited.survey(path, path.name, Kind("csv", compression), None)
    table = pa.concat_tables(
        [shard.schema.empty_table(), *(chunk.table() for chunk in delimited.chunks(shard))],
        promote_options="permissive",
    )
    return pa.table(
        {name: pc.utf8_trim_whitespace(column) for name, column in zip(table.column_names, table.columns, strict=True)}
    )


def complete(settings: Series, names: Sequence[str], values: F64) -> F64:
    """Missing attributes replaced by the mean or the median of the entities that have them, if that was asked for.

    values: of the retained entities, the columns `names`. Raises `InputError` where none has one.
    """
    if settings.missing_static not in ("mean", "median") or not np.isnan(values).any():
        return values
    nowhere = np.isnan(values).all(axis=0)
    if nowhere.any():
        name = names[int(np.argmax(nowhere))]
        raise InputError(f"static feature {name!r} is missing for every entity; take it out of static_features")
    middle = np.nanmean(values, axis=0) if settings.missing_static == "mean" else np.nanmedian(values, axis=0)
    return np.where(np.isnan(values), middle, values)
