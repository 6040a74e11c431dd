"""Find the files that a run of series reads, and read the raw rows of one entity, before any cleaning.

O(files) of memory to find them, O(an entity) to read one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64
from headrace.errors import InputError
from headrace.formats import grids, parquet
from headrace.formats.date_words import advice
from headrace.formats.dates import MISSING, parse_dates, parse_in_turn
from headrace.formats.detect import detect, holds_nothing
from headrace.formats.foreign import refuse_foreign
from headrace.formats.listing import list_files
from headrace.formats.open_parquet import open_file
from headrace.formats.partitions import partition_types
from headrace.formats.registry import FORMATS, FileType, file_type_of_name, is_data_name, stem_of_name
from headrace.formats.saved import saved_files, view_of
from headrace.formats.shard import column_name
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import as_text, nulled, with_points
from headrace.formats.types import hint, is_text
from headrace.series.config import Series
from headrace.series.readers import camels, text
from headrace.series.source_settings import FILE_NAME
from headrace.series.times import Observed, timed
from headrace.storage.places import path_of, place_of

SERIES, STATIC = "series", "static"
_MACHINE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE)  # these stop the run, which can resume
_TEXT = (".txt", ".txt.gz", ".txt.zst")


@dataclass(frozen=True)
class EntitySource:
    """Entities in name order, and how to read their rows.

    rows: function from the number of an entity and value columns, in the order of `Series.columns()`, to its rows.
    files: paths and names of each entity that has files of its own; long tables were spread before.
    """

    names: Sequence[str]
    rows: Callable[[int, Sequence[str]], Observed]
    files: Mapping[str, Sequence[tuple[Path, str]]] = field(default_factory=dict)

    def batch(self, number: int, size: int) -> range:
        """Return the numbers of the entities of a batch."""
        return range(number * size, min((number + 1) * size, len(self.names)))

    def name(self, number: int) -> str:
        """Return the name of an entity's first file; "" for long tables and an entity without a file."""
        return next((name for _, name in self.files.get(self.names[number], ())), "")

    def paths(self, numbers: range) -> list[Path]:
        """List the files of these entities."""
        return [path for number in numbers for path, _ in self.files.get(self.names[number], ())]

    def read_timed(self, number: int, settings: Series) -> Observed:
        """Read the rows of an entity at UTC instants, snapped or resampled as the settings say. Raises as `read`."""
        return timed(settings, self.read(number, settings.columns()))

    def read(self, number: int, columns: Sequence[str]) -> Observed:
        """Read the rows of an entity. Raises `InputError` for bad content, `OSError` for trouble of the machine."""
        try:
            return self.rows(number, columns)
        except OSError as error:
            if error.errno in _MACHINE:
                raise
            raise InputError(f"{self.name(number)}: cannot be read ({error}); check the file") from error
        except (pa.ArrowException, pl.exceptions.PolarsError, UnicodeError) as error:
            raise InputError(str(error)) from error


def source_files(settings: Series) -> list[tuple[Path, str]]:
    """Find the files of series and static attributes, with names below `series/` and `static/`, sorted by name.

    With `entities`, only their files. Raises `InputError` if nothing is found.
    """
    found: list[tuple[Path, str]] = []
    if settings.reader == "camels_us":
        place = _absolute(settings.source[0])
        found = camels.basin_files(place, settings.forcing, may_lack_flow=bool(settings.may_lack))
    elif settings.reader == "grdc":
        found = [(path, path.name) for path in _tables(settings.source)]
    else:
        files_in = _grid_files if settings.reader == "xarray" else _listed
        for prefix, source in _regions(settings.region_time_series_base_dirs, settings.source):
            found += [(path, f"{prefix}{name}") for path, name in files_in(source)]
    listed = settings.listed()
    if listed is not None and settings.entity == FILE_NAME and settings.reader != "wide":
        wanted = set(listed)
        found = [each for each in found if entity_of(settings, each[1]) in wanted]
    files = [(path, f"{SERIES}/{name}") for path, name in found]
    for prefix, source in _regions(settings.region_static_attributes_base_dirs, settings.static):
        paths = _tables(source)
        root = os.path.commonpath([path.parent for path in paths]) if paths else ""
        files += [(path, f"{STATIC}/{prefix}{path.relative_to(root).as_posix()}") for path in paths]
    return sorted(files, key=lambda each: each[1])


def _listed(source: Sequence[Path]) -> list[tuple[Path, str]]:
    """List the files of tables. Raises `InputError`, which names the reader if files are of another kind."""
    inside = [each for entry in source if entry.is_dir() and not grids.is_grid(entry) for each in entry.iterdir()]
    try:
        if any(map(grids.is_grid, source)):
            raise InputError("no tables")
        listing = list_files(source)
    except InputError as error:
        if any(map(grids.is_grid, [*source, *inside])):
            raise InputError(f"{source[0]}: is NetCDF or Zarr; give reader 'xarray'") from error
        if any(text.GRDC_NAME.fullmatch(each.name) for each in inside):
            raise InputError(f"{source[0]}: has files of the GRDC; give reader 'grdc'") from error
        raise
    return [(listing.path(at), name) for at, name in enumerate(listing.names)]


def _regions(directories: Mapping[str, Path], otherwise: Sequence[Path]) -> list[tuple[str, Sequence[Path]]]:
    """Return each region's name prefix and its places; without regions, the places given as `otherwise`."""
    return [(f"{region}/", [directory]) for region, directory in sorted(directories.items())] or [("", otherwise)]


def _tables(source: Iterable[Path]) -> list[Path]:
    """Return files, data files of directories and matches of patterns, distinct and sorted; including text tables."""
    found: set[Path] = set()
    for entry in source:
        path = _absolute(entry)
        if path.is_dir():
            every = list(path.iterdir())
            saved = saved_files(path, {each.name for each in every})
            if saved is None:
                refuse_foreign(path, {each.name for each in every})
            else:
                every = [path / name for own in saved.values() for name in own]
            own = [
                each
                for each in every
                if each.name.lower().endswith((*FORMATS.endings, *_TEXT))
                and each.name[0] not in "._"
                and "readme" not in each.name.lower()
            ]
        else:
            own = [path] if path.is_file() else place_of(path).matches()
        if not own:
            raise InputError(f"{entry}: no such file, directory or match with tables; check the path of static")
        found.update(own)
    return sorted(found)


def _grid_files(source: Iterable[Path]) -> list[tuple[Path, str]]:
    """Return NetCDF files and all files in Zarr stores, distinct, named relative to the file's or store's folder."""
    found: dict[Path, str] = {}
    for entry in map(_absolute, source):
        if place_of(entry).reads == "requests":
            raise InputError(f"{entry}: reader 'xarray' reads local files; copy it to a disk")
        if grids.is_grid(entry) and entry.exists():
            given = [entry]
        else:
            given = list(entry.iterdir()) if entry.is_dir() else place_of(entry).matches()
        own = [each for each in given if grids.is_grid(each)]
        if not own:
            raise InputError(
                f"{entry}: no NetCDF file ({', '.join(grids.NETCDF_NAMES)}) or .zarr store; check the path"
            )
        for grid in sorted(own):
            inner = sorted(each for each in grid.rglob("*") if each.is_file()) if grid.is_dir() else [grid]
            found |= {each: each.relative_to(grid.parent).as_posix() for each in inner}
    return list(found.items())


def passed_over(settings: Series) -> list[str]:
    """List the entries of source directories that are not read, sorted; empty if listing them costs requests."""
    found: list[str] = []
    if settings.reader != "table":
        return found
    for each in (*settings.source, *settings.region_time_series_base_dirs.values()):
        directory = _absolute(each)
        if place_of(directory).reads == "calls" and directory.is_dir() and view_of(directory) is None:
            with os.scandir(directory) as entries:
                found += [
                    str(directory / entry.name)
                    for entry in entries
                    if entry.name[0] not in "._" and (entry.is_dir() or not is_data_name(entry.name))
                ]
    return sorted(each for each in found if "readme" not in each.rpartition(os.sep)[2].lower())


def _absolute(path: Path) -> Path:
    return place_of(path_of(path)).absolute()


def entity_of(settings: Series, name: str) -> str:
    """Return the entity of a file, or of the store that contains it."""
    own = PurePosixPath(name).name
    if settings.reader == "xarray":
        return PurePosixPath(_grid_name(name)).stem
    if settings.reader == "grdc":
        match = text.GRDC_NAME.fullmatch(own)
        return match[1] if match else own.removesuffix(".gz").removesuffix(".txt")
    if settings.reader == "camels_us":
        match = camels.FORCING_NAME.fullmatch(own) or camels.FLOW_NAME.fullmatch(own)
        return match[1] if match else own
    return stem_of_name(own)


def _grid_name(name: str) -> str:
    """Return the name of a NetCDF file, or of the Zarr store that a file is in."""
    parts = name.split("/")
    depth = next((at for at, part in enumerate(parts) if part.endswith(".zarr")), len(parts) - 1)
    return "/".join(parts[: depth + 1])


def shards_of(settings: Series, files: Sequence[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Select the files of series, with their names; a Zarr store appears once, as its directory."""
    own = files_of(SERIES, files)
    if settings.reader != "xarray":
        return own
    found: dict[Path, str] = {}
    for path, name in own:
        whole = _grid_name(name)
        found[path.parents[name.count("/") - whole.count("/") - 1] if whole != name else path] = whole
    return list(found.items())


def files_of(kind: str, files: Sequence[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Select the files of kind `SERIES` or `STATIC`, and remove this prefix from their names."""
    return [(path, name.removeprefix(f"{kind}/")) for path, name in files if name.startswith(f"{kind}/")]


def entity_source(settings: Series, files: Sequence[tuple[Path, str]]) -> EntitySource:
    """Open a source with files per entity; it includes requested entities that have no file.

    Raises `InputError` if two files are one entity.
    """
    own: dict[str, list[tuple[Path, str]]] = {}
    for path, name in shards_of(settings, files):
        own.setdefault(entity_of(settings, name), []).append((path, name))
    problems = dict.fromkeys(settings.listed() or (), "no file has its name; correct the list of entities")
    for entity, places in own.items():
        (path, name), *others = places
        problems.pop(entity, None)
        if settings.reader != "camels_us" and others:
            raise InputError(f"{path} and {others[0][0]} are both entity {entity!r}; rename one, or give one of them")
        ungauged = not others and settings.may_lack and camels.FORCING_NAME.fullmatch(path.name)
        if settings.reader == "camels_us" and len(others) != 1 and not ungauged:
            problems[entity] = f"{path}: is its only file; CAMELS-US has a forcing and a streamflow file for each basin"
        region, called = name.partition("/")[0], entity.partition("_")[0]
        if settings.region_time_series_base_dirs and called != region:
            problems[entity] = f"{path}: is of region {called!r} by its name, but in the directory of {region!r}"
    names = sorted({*own, *problems})
    types = partition_types(name for _, name in files_of(SERIES, files))

    def rows(number: int, columns: Sequence[str]) -> Observed:
        entity = names[number]
        if entity in problems:
            raise InputError(problems[entity])
        if settings.reader == "camels_us":
            return Observed(*camels.read_basin(settings, [path for path, _ in own[entity]], columns))
        path, name = own[entity][0]
        times, values, bad_time, first_row = [np.empty(0, np.int64)], [np.empty((0, len(columns)))], None, 0
        for table in tables(settings, path, name, [settings.time, *columns], types):
            own_times, own_values, bad = parse(settings, columns, table, first_row, str(path))
            if bad:
                raise InputError(f"{path}: {bad[min(bad)]}")
            bad_time = bad_time or first_unread(settings, path, table, own_times, first_row)
            times.append(own_times)
            values.append(own_values)
            first_row += len(own_times)
        if len(times) == 2:  # a single table needs no copy
            return Observed(times[1], values[1], bad_time)
        return Observed(np.concatenate(times), np.concatenate(values), bad_time)

    return EntitySource(names, rows, own)


def tables(
    settings: Series, path: Path, name: str, columns: Sequence[str] | None, partitions: Mapping[str, pa.DataType]
) -> Iterator[pa.Table]:
    """Yield some columns of a data file, in pieces; nothing for an empty file.

    columns: None for all columns of the file itself. Columns in `Series.may_lack` are all null if the file lacks them.
    partitions: types of columns in file names.
    Raises `InputError` if a column is absent.
    """
    if settings.reader == "xarray" and columns is not None:
        for table in grids.grid_tables(path, columns, settings.may_lack):
            yield _selected(settings, path, table, columns)
        return
    if settings.reader == "grdc":
        yield _selected(settings, path, text.grdc_table(path, settings.time), columns)
        return
    kind = file_type_of_name(path.name)
    if kind is None or kind != FileType.named("parquet"):
        kind = detect(path)
    if holds_nothing(path, kind):
        return
    if kind.format.separator is not None and settings.rewritten_text:
        table = text.text_table(path, name, kind, comment=settings.comment, encoding=settings.encoding)
        if table.num_columns:
            yield _selected(settings, path, table, columns)
        return
    if kind.format.name == "parquet" and not partitions and columns is not None:
        # Opened once: for small files, opening is most of the work.
        with open_file(path, kind) as file:
            raw = {column_name(each): each for each in file.schema_arrow.names}
            _check_columns(settings, path, columns, raw)
            if file.metadata.num_rows <= parquet.CHUNK_ROWS:
                own = [each for each in columns if each in raw]
                table = file.read([raw[each] for each in own], use_threads=False).rename_columns(own)
                yield _selected(settings, path, table, columns)
                return
    shard = survey(path, name, partitions=partitions)
    if shard.content == "nothing":
        return
    columns = [each for each in shard.schema.names if each not in shard.partition] if columns is None else columns
    names = dict.fromkeys(shard.schema.names)
    _check_columns(settings, path, columns, names)
    own = [each for each in columns if each in names]
    for chunk in read_chunks(shard, own):
        yield _selected(settings, path, chunk.table(own), columns)


def _selected(settings: Series, path: Path, table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    """Return columns of a table, null for one that it may lack; None for all columns."""
    if columns is None:
        return table
    names = dict.fromkeys(table.column_names)
    _check_columns(settings, path, columns, names)
    table = table.select([each for each in columns if each in names])
    for each in columns:
        if each not in names:
            table = table.append_column(each, pa.nulls(table.num_rows, pa.float64()))
    return table


def _check_columns(settings: Series, path: Path, columns: Sequence[str], present: Mapping[str, Any]) -> None:
    """Raise `InputError` if one of the columns is absent and may not be."""
    for each in columns:
        if each not in present and each not in settings.may_lack:
            known = list(present)
            shown = ", ".join(known[:12]) + (f", … ({len(known)} columns)" if len(known) > 12 else "")
            note = "; if that is a comment, give comment='#'" if known and known[0].startswith("#") else hint(known)
            raise InputError(f"{path}: has no column {each!r}; it has {shown}{note}")


def parse(
    settings: Series, columns: Sequence[str], table: pa.Table, first_row: int, where: str
) -> tuple[I64, F64, dict[int, str]]:
    """Parse the times and values of some rows, as in `Observed`; also return messages for values that are not numbers.

    where: names the file in errors.
    """
    try:
        values, bad = parse_values(settings, columns, table, first_row)
        return times_of(settings, table, first_row), values, bad
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def parse_values(
    settings: Series, columns: Sequence[str], table: pa.Table, first_row: int
) -> tuple[F64, dict[int, str]]:
    """Parse the values of some rows as in `Observed`; also return, by row, messages for values that are not numbers.

    Messages number the rows from `first_row` + 1.
    """
    values = np.empty((table.num_rows, len(columns)))
    unread: list[tuple[int, str]] = []
    for place, name in enumerate(columns):
        try:
            known = settings.categories.get(name)
            read = _values if known is None else partial(_categories, known)
            unread += [(row, name) for row in read(table[name], settings, values[:, place])]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, TypeError):
            kind = table[name].type
            raise InputError(f"column {name!r} is {kind}, which is not a number; name a column of numbers") from None
        for number in settings.missing_numbers if known is None else ():
            values[values[:, place] == number, place] = np.nan
    infinite = np.isinf(values)
    if infinite.any():
        unread += [(int(row), columns[place]) for row, place in np.argwhere(infinite)]
    bad: dict[int, str] = {}
    for row, name in unread:
        value, why, where = table[name][row].as_py(), "not a finite number", "null_values or missing_numbers"
        if name in settings.categories:
            why, where = "none of its categories", "categories or null_values"
        if settings.decimal == "." and isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+,\d+\s*", value):
            where += ", or give decimal=','"
        bad.setdefault(
            row, f"row {first_row + row + 1}: {name} is {value!r}, which is {why}; correct it, or name it in {where}"
        )
    return values, bad


def tell_time(settings: Series, table: pa.Table, row: int, first_row: int) -> str:
    """Return a message about the time of a row that has none."""
    value = table[settings.time][row].as_py()
    why = "which is missing; correct it"
    if value is not None and value != "":
        form = " or ".join(settings.time_format)
        why = f"which is not a time of time_format: {advice(value, form, 'time_format')}"
        if isinstance(value, int):
            why = "which is a number; for seconds or steps that are counted give time_format='epoch_s'"
    return f"row {first_row + row + 1}: {settings.time} is {value!r}, {why}, or give bad_rows='drop'"


def first_unread(settings: Series, path: Path, table: pa.Table, times: I64, first_row: int) -> str | None:
    """Return a message about the first row without a time; None if all have one."""
    unread = np.flatnonzero(times == MISSING)
    return f"{path}: {tell_time(settings, table, int(unread[0]), first_row)}" if len(unread) else None


def times_of(settings: Series, table: pa.Table, first_row: int) -> I64:
    """Parse the times of some rows as in `Observed`. Raises `InputError` for instants if local times are expected."""
    column = nulled(table[settings.time], ("",))
    forms = ["auto"] if pa.types.is_timestamp(column.type) else settings.time_format  # its type defines the unit
    if settings.time_zone is not None:
        for form in forms:
            found = parse_dates(column, form)
            instants = np.flatnonzero(found.instant & (found.micros != MISSING))
            if len(instants):
                row = int(instants[0])
                raise InputError(
                    f"row {first_row + row + 1}: {settings.time} is {str(column[row])!r}, which has a zone of its "
                    f"own; leave time_zone out, which is for times without one"
                )
    return parse_in_turn(column, forms)


def _categories(known: Sequence[str], column: pa.ChunkedArray, settings: Series, into: F64) -> list[int]:
    """Write the index of each text among the known ones, NaN for missing; return the rows of unknown texts."""
    texts = as_text(column, settings.null_values, "a column of categories")
    into[:] = pc.index_in(texts, value_set=pa.array(known, texts.type)).to_numpy()
    return list(np.flatnonzero(np.isnan(into) & np.asarray(texts.is_valid())).tolist())


def _values(column: pa.ChunkedArray, settings: Series, into: F64) -> list[int]:
    """Write a column as float64 with NaN for missing; return the rows whose text is not a number."""
    if not is_text(column.type):
        if pa.types.is_temporal(column.type):
            raise TypeError(f"{column.type} is not a number")
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if not pa.types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
        into[:] = column.to_numpy()  # null becomes NaN
        return []
    column = nulled(column, ("", *settings.null_values))
    words = pl.Series("value", with_points(column, settings.decimal), dtype=pl.String)
    read = words.str.strip_chars().cast(pl.Float64, strict=False)
    into[:] = read.fill_null(np.nan).to_numpy()
    if read.null_count() == column.null_count:
        return []
    return list(np.flatnonzero(np.asarray(pc.is_valid(column)) & read.is_null().to_numpy()).tolist())
