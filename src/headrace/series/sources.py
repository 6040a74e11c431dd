"""Find the files that a run of series reads, and read the raw rows of one entity, before any
cleaning.

O(files) of memory to find them, O(an entity) to read one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64
from headrace.errors import InputError, setting, setting_name
from headrace.formats import grids, parquet
from headrace.formats.column_paths import columns_of_paths, known_columns, select_paths
from headrace.formats.dates import (
    MISSING,
    advice,
    parse_dates,
    parse_in_turn,
    time_setting,
)
from headrace.formats.dialect import null_setting
from headrace.formats.header import hint
from headrace.formats.listing import list_files, refuse_foreign
from headrace.formats.parquet import open_file
from headrace.formats.partitions import partition_types
from headrace.formats.registry import (
    FORMATS,
    FileType,
    detect,
    file_type_of_name,
    holds_nothing,
    is_data_name,
    stem_of_name,
)
from headrace.formats.saved import saved_files
from headrace.formats.shard import column_name, refuse_repeated_names
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import (
    as_text,
    nulled,
    number_remedy,
    plain_numerals,
    with_one_time,
)
from headrace.formats.type_words import PERIOD
from headrace.formats.types import is_text, to_python
from headrace.formats.zones import utc_to_wall
from headrace.series.times import Observed, put_on_clock
from headrace.storage.places import path_of, place_of

if TYPE_CHECKING:
    from headrace.series.settings import Series

SERIES = "series"
STATIC = "static"
UNKNOWN = 0.0  # the position of a text that is none of the listed categories

NamedFiles = list[tuple[Path, str]]

# These errors stop the run, which can resume.
_MACHINE_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE)
_TEXT_NAMES = (".txt", ".txt.gz", ".txt.zst")


@dataclass(frozen=True)
class EntitySource:
    """Entities in name order, and how to read their rows.

    rows: function from the number of an entity and value columns, in the order of `Series.columns`,
    to its rows.
    files: paths and names of each entity that has files of its own; long tables were spread before.
    """

    names: Sequence[str]
    rows: Callable[[int, Sequence[str]], Observed]
    files: Mapping[str, Sequence[tuple[Path, str]]] = field(default_factory=dict)

    def batch(self, number: int, size: int) -> range:
        """Return the numbers of the entities of a batch."""
        return range(number * size, min((number + 1) * size, len(self.names)))

    def file_name(self, number: int) -> str:
        """Return the name of an entity's first file; "" for long tables and an entity without a
        file.
        """
        for _, name in self.files.get(self.names[number], ()):
            return name
        return ""

    def paths(self, numbers: range) -> list[Path]:
        """List the files of these entities."""
        paths = []
        for number in numbers:
            paths += [path for path, _ in self.files.get(self.names[number], ())]
        return paths

    def read_on_clock(self, number: int, settings: Series) -> Observed:
        """Read the rows of an entity on the clock of its steps, resampled as the settings
        say.

        Raises as `read`.
        """
        return put_on_clock(settings, self.read(number, settings.columns))

    def read(self, number: int, columns: Sequence[str]) -> Observed:
        """Read the rows of an entity.

        Raises `InputError` for bad content, `OSError` for trouble of the machine.
        """
        try:
            return self.rows(number, columns)
        except OSError as error:
            if error.errno in _MACHINE_ERRORS:
                raise
            raise InputError(
                f"cannot be read ({error})",
                path=self.file_name(number) or None,
                remedy="check the file",
            ) from error
        except (pa.ArrowException, pl.exceptions.PolarsError, UnicodeError) as error:
            raise InputError(
                f"cannot be read ({error})",
                path=self.file_name(number) or None,
                remedy="check the file",
            ) from error


def source_files(settings: Series) -> NamedFiles:
    """Find the files of series and static attributes, with names below `series/` and `static/`,
    sorted by name.

    With `entities`, only their files. Raises `InputError` if nothing is found.
    """
    series = _series_files(settings.source)
    requested = settings.requested_entities
    if requested is not None and settings.entity_is_file:
        names = set(requested)
        series = [(path, name) for path, name in series if entity_of(name) in names]
    files = [(path, f"{SERIES}/{name}") for path, name in series]
    return sorted([*files, *static_files(settings)], key=lambda file: file[1])


def static_files(settings: Series) -> NamedFiles:
    """Find the files of static attributes, with names below `static/`."""
    files: NamedFiles = []
    tables = _tables(settings.static)
    root = Path(os.path.commonpath([path.parent for path in tables] or [Path()]))
    for path in tables:
        files.append((path, f"{STATIC}/{path.relative_to(root).as_posix()}"))
    return files


def _series_files(source: Sequence[Path]) -> NamedFiles:
    """List the files of tables; or, if the source names NetCDF files or Zarr stores or holds no
    table, those.

    Raises `InputError` if there are neither.
    """
    if any(map(grids.is_grid, source)):
        return _grid_files(source)
    inside: list[Path] = []
    for path in source:
        if path.is_dir() and not grids.is_grid(path):
            inside += path.iterdir()
    try:
        listing = list_files(source)
    except InputError:
        if not any(map(grids.is_grid, inside)):
            raise
        return _grid_files(source)
    return [(listing.path(number), name) for number, name in enumerate(listing.names)]


def _tables(source: Iterable[Path]) -> list[Path]:
    """Return files, data files of directories and matches of patterns, distinct and sorted;
    including text tables.
    """
    tables: set[Path] = set()
    for entry in source:
        path = _absolute(entry)
        if path.is_dir():
            matches = _tables_in(path)
        elif path.is_file():
            matches = [path]
        else:
            matches = place_of(path).matches()
        if not matches:
            raise InputError(
                "no such file, directory or match with tables",
                path=entry,
                remedy="check the path",
            )
        tables.update(matches)
    return sorted(tables)


def _tables_in(directory: Path) -> list[Path]:
    paths = list(directory.iterdir())
    names = {path.name for path in paths}
    saved = saved_files(directory, names)
    if saved is None:
        refuse_foreign(directory, names)
    else:
        paths = [directory / name for files in saved.values() for name in files]
    tables = []
    for path in paths:
        lower = path.name.lower()
        is_table = lower.endswith((*FORMATS.endings, *_TEXT_NAMES))
        if is_table and lower[0] not in "._" and "readme" not in lower:
            tables.append(path)
    return tables


def _grid_files(source: Iterable[Path]) -> NamedFiles:
    """Return NetCDF files and all files in Zarr stores, distinct, named relative to the file's or
    store's folder.
    """
    files: dict[Path, str] = {}
    for path in map(_absolute, source):
        if place_of(path).reads == "requests":
            raise InputError(
                "NetCDF files and Zarr stores are read from local disks",
                path=path,
                remedy="copy it to a disk",
            )
        if grids.is_grid(path) and path.exists():
            candidates = [path]
        elif path.is_dir():
            candidates = list(path.iterdir())
        else:
            candidates = place_of(path).matches()
        matches = sorted(filter(grids.is_grid, candidates))
        if not matches:
            raise InputError(
                f"no NetCDF file ({', '.join(grids.NETCDF_NAMES)}) or .zarr store",
                path=path,
                remedy="check the path",
            )
        for grid in matches:
            inner = [grid]
            if grid.is_dir():
                inner = sorted(file for file in grid.rglob("*") if file.is_file())
            for file in inner:
                files[file] = file.relative_to(grid.parent).as_posix()
    return list(files.items())


def unread_entries(settings: Series) -> list[str]:
    """List the entries of source directories that are not read, sorted; empty if listing them costs
    requests.
    """
    unread: list[str] = []
    for path in settings.source:
        directory = _absolute(path)
        is_cheap = place_of(directory).reads == "calls" and directory.is_dir()
        if not is_cheap:
            continue
        with os.scandir(directory) as listing:
            entries = list(listing)
        has_tables = any(is_data_name(entry.name) for entry in entries)
        for entry in entries:
            hidden = entry.name[0] in "._" or "readme" in entry.name.lower()
            is_read = is_data_name(entry.name) and not entry.is_dir()
            if grids.is_grid(Path(entry.name)):
                is_read = not has_tables
            if not (hidden or is_read):
                unread.append(str(directory / entry.name))
    return sorted(unread)


def _absolute(path: Path) -> Path:
    return place_of(path_of(path)).absolute()


def entity_of(name: str) -> str:
    """Return the entity of a file, or of the store that contains it."""
    grid = PurePosixPath(_grid_name(name))
    if grids.is_grid(Path(grid)):
        return grid.stem
    return stem_of_name(grid.name)


def _grid_name(name: str) -> str:
    """Return the name of a NetCDF file, or of the Zarr store that a file is in."""
    parts = name.split("/")
    for depth, part in enumerate(parts):
        if part.endswith(".zarr"):
            return "/".join(parts[: depth + 1])
    return name


def shards_of(files: Sequence[tuple[Path, str]]) -> NamedFiles:
    """Select the files of series, with their names; a Zarr store appears once, as its directory."""
    shards: dict[Path, str] = {}
    for path, name in files_of(SERIES, files):
        grid = _grid_name(name)
        if grid != name:
            path = path.parents[name.count("/") - grid.count("/") - 1]
        shards[path] = grid
    return list(shards.items())


def files_of(role: str, files: Sequence[tuple[Path, str]]) -> NamedFiles:
    """Select the files of role `SERIES` or `STATIC`, and remove this prefix from their names."""
    prefix = f"{role}/"
    result = []
    for path, name in files:
        if name.startswith(prefix):
            result.append((path, name.removeprefix(prefix)))
    return result


def entity_source(settings: Series, files: Sequence[tuple[Path, str]]) -> EntitySource:
    """Open a source with files per entity; it includes requested entities that have no file.

    Raises `InputError` if two files are one entity.
    """
    by_entity: dict[str, NamedFiles] = {}
    for path, name in shards_of(files):
        by_entity.setdefault(entity_of(name), []).append((path, name))
    problems: dict[str, InputError] = {}
    for entity in settings.requested_entities or ():
        if entity not in by_entity:
            problems[entity] = InputError(
                "no file has its name", remedy=f"correct {setting_name('entities')}"
            )
    for entity, ((path, _), *others) in by_entity.items():
        if others:
            raise InputError(
                f"entity {entity!r} is also that of {others[0][0]}",
                path=path,
                remedy="rename one, or give one of them",
            )
    names = sorted({*by_entity, *problems})
    types = partition_types(name for _, name in files_of(SERIES, files))

    def rows(number: int, columns: Sequence[str]) -> Observed:
        entity = names[number]
        if entity in problems:
            raise problems[entity]
        path, name = by_entity[entity][0]
        return _rows_of_file(settings, path, name, columns, types)

    return EntitySource(names, rows, by_entity)


def _rows_of_file(
    settings: Series,
    path: Path,
    name: str,
    columns: Sequence[str],
    types: Mapping[str, pa.DataType],
) -> Observed:
    """Read the rows of an entity from its file."""
    times: list[I64] = []
    values: list[F64] = []
    bad_time = None
    first_row = 0
    for table in tables(settings, path, name, [settings.time_column, *columns], types):
        parsed = parse(settings, columns, table, first_row, str(path))
        if parsed.unread:
            raise unread_value(settings, table, parsed.unread, first_row).at(path=path)
        if bad_time is None:
            bad_time = first_unread(settings, path, table, parsed.times, first_row)
        times.append(parsed.times)
        values.append(parsed.values)
        first_row += len(parsed.times)
    if len(times) == 1:  # a single table needs no copy
        return Observed(times[0], values[0], bad_time)
    no_times = np.empty(0, np.int64)
    no_values = np.empty((0, len(columns)))
    return Observed(
        np.concatenate([no_times, *times]), np.concatenate([no_values, *values]), bad_time
    )


def tables(
    settings: Series,
    path: Path,
    name: str,
    columns: Sequence[str],
    partitions: Mapping[str, pa.DataType],
) -> Iterator[pa.Table]:
    """Yield some columns of a data file, in chunks; nothing for an empty file.

    Optional columns of `Series` are all null if the file lacks them.
    partitions: types of columns in file names.
    Raises `InputError` if a column is absent.
    """
    parts = settings.time_columns
    if len(parts) == 1 or parts[0] not in columns:
        yield from _raw_tables(settings, path, name, columns, partitions)
        return
    needed = list(dict.fromkeys([*columns, *parts]))
    for table in _raw_tables(settings, path, name, needed, partitions):
        _existing_columns(settings, path, list(parts), table.schema)
        yield with_one_time(table, parts).select(list(columns))


def _raw_tables(
    settings: Series,
    path: Path,
    name: str,
    columns: Sequence[str],
    partitions: Mapping[str, pa.DataType],
) -> Iterator[pa.Table]:
    """Yield columns as they are in the file; otherwise as `tables`."""
    if grids.is_grid(path):
        for table in grids.grid_tables(path, columns, settings.optional_columns):
            yield _select(settings, path, table, columns)
    else:
        yield from _file_tables(settings, path, name, columns, partitions)


def _file_tables(
    settings: Series,
    path: Path,
    name: str,
    columns: Sequence[str],
    partitions: Mapping[str, pa.DataType],
) -> Iterator[pa.Table]:
    """Yield some columns of a text or Parquet file, as `tables` does."""
    file_type = file_type_of_name(path.name)
    if file_type != FileType.named("parquet"):
        file_type = detect(path)
    assert file_type is not None
    if holds_nothing(path, file_type, settings.dialect):
        return
    if file_type.format.name == "parquet" and not partitions:
        # Opened once: for small files, opening is most of the work.
        with open_file(path, file_type) as file:
            raw_schema = file.schema_arrow
            names = [column_name(raw_name) for raw_name in raw_schema.names]
            refuse_repeated_names(path, names)
            raw = dict(zip(names, raw_schema.names, strict=True))
            schema = pa.schema(zip(names, raw_schema.types, strict=True))
            stored = columns_of_paths(schema, _existing_columns(settings, path, columns, schema))
            if file.metadata.num_rows <= parquet.CHUNK_ROWS:
                table = file.read([raw[column] for column in stored], use_threads=False)
                yield _select(settings, path, table.rename_columns(stored), columns)
                return
    shard = survey(path, name, partitions=partitions, dialect=settings.dialect)
    if shard.content == "nothing":
        return
    columns_in_file = _existing_columns(settings, path, columns, shard.schema)
    for chunk in read_chunks(shard, columns_in_file):
        yield _select(settings, path, chunk.table(columns_in_file), columns)


def _select(settings: Series, path: Path, table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return columns of a table, null for optional ones that it lacks."""
    table = select_paths(table, _existing_columns(settings, path, columns, table.schema))
    for column in columns:
        if column not in table.column_names:
            table = table.append_column(column, pa.nulls(table.num_rows, pa.float64()))
    return table


def _existing_columns(
    settings: Series, path: Path, columns: Sequence[str], schema: pa.Schema
) -> list[str]:
    """Return the columns that a schema has.

    Raises `InputError` if one is absent that is not optional.
    """
    known = set(known_columns(schema, columns))
    names = schema.names
    for column in columns:
        if column not in known and column not in settings.optional_columns:
            words = ", ".join(names[:12])
            if len(names) > 12:
                words += f", … ({len(names)} columns)"
            note = hint(list(names))
            if names and names[0].startswith("#"):
                lines = setting("dialect", {"skip_rows": 1})
                note = f"; if that is a comment, give the number of such lines, such as {lines}"
            if not settings.entity_is_file and column in settings.columns:
                widen = setting("schema_drift", "widen")
                note += f"; if other files have it, {widen} takes it as null here"
            raise InputError(
                "not in the file",
                path=path,
                column=column,
                remedy=f"choose one of {words}{note}",
            )
    return [column for column in columns if column in known]


@dataclass(frozen=True)
class ParsedRows:
    """Times and values of some rows, as in `Observed`.

    unread: the first column of each row, counted from 0, whose value is not a number.
    """

    times: I64
    values: F64
    unread: dict[int, str]


def parse(
    settings: Series, columns: Sequence[str], table: pa.Table, first_row: int, where: str
) -> ParsedRows:
    """Parse the times and values of some rows. where: names the file in errors."""
    try:
        values, unread = parse_values(settings, columns, table)
        return ParsedRows(times_of(settings, table, first_row), values, unread)
    except InputError as error:
        raise error.at(path=where) from None


def parse_values(
    settings: Series, columns: Sequence[str], table: pa.Table
) -> tuple[F64, dict[int, str]]:
    """Parse the values of some rows as in `Observed`; also return `ParsedRows.unread`."""
    values = np.empty((table.num_rows, len(columns)))
    unread: dict[int, str] = {}
    for number, name in enumerate(columns):
        column = values[:, number]
        categories = settings.categories.get(name)
        try:
            if categories is None:
                rows = _read_numbers(table[name], settings, column)
            else:
                rows = _read_categories(table[name], settings, column, categories)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, TypeError):
            raise InputError(
                f"{table[name].type} is not a number",
                column=name,
                remedy="name a column of numbers",
            ) from None
        unread = dict.fromkeys(rows, name) | unread
        if categories is None:
            column[np.isin(column, settings.missing_numbers)] = np.nan
    for row, number in np.argwhere(np.isinf(values)).tolist():
        unread.setdefault(row, columns[number])
    return values, unread


def _read_categories(
    column: pa.ChunkedArray, settings: Series, out: F64, categories: Sequence[str]
) -> list[int]:
    """Write the position of each text, counted from 1, NaN for missing; return the rows of unknown
    texts that are errors.

    Position 0 is that of unknown texts. A run that fits takes them for mistakes; for one that
    reuses pipelines the list was made before its rows.
    """
    texts = as_text(column, settings.dialect.null_values, "a column of categories")
    known = pc.index_in(texts, value_set=pa.array(categories, texts.type)).to_numpy()
    unknown = np.isnan(known) & np.asarray(texts.is_valid())
    out[:] = np.where(unknown, UNKNOWN, known + 1)
    if not settings.fits:
        return []
    rows: list[int] = np.flatnonzero(unknown).tolist()
    return rows


def _read_numbers(column: pa.ChunkedArray, settings: Series, out: F64) -> list[int]:
    """Write a column as float64 with NaN for missing; return the rows whose text is not a
    number.
    """
    if not is_text(column.type):
        if pa.types.is_temporal(column.type):
            raise TypeError(f"{column.type} is not a number")
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if not pa.types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
        out[:] = column.to_numpy()  # null becomes NaN
        return []
    column = nulled(column, ("", *settings.dialect.null_values))
    words = pl.Series("value", plain_numerals(column, settings.dialect), dtype=pl.String)
    numbers = words.str.strip_chars().cast(pl.Float64, strict=False)
    out[:] = numbers.fill_null(np.nan).to_numpy()
    if numbers.null_count() == column.null_count:
        return []
    unread = np.asarray(pc.is_valid(column)) & numbers.is_null().to_numpy()
    rows: list[int] = np.flatnonzero(unread).tolist()
    return rows


def unread_value(
    settings: Series,
    table: pa.Table,
    unread: Mapping[int, str],
    first_row: int,
    row: int | None = None,
) -> InputError:
    """Return the error of a row whose value is not a number; by default, of the first one.

    unread: as in `ParsedRows`.
    """
    if row is None:
        row = min(unread)
    column = unread[row]
    value = to_python(table[column][row])
    why = "not a finite number"
    remedy = f"correct it, or name it in {setting_name('null_values')} of {setting_name('dialect')}"
    if column in settings.categories:
        why = "none of its categories"
        remedy = f"name it in {setting_name('categories')}, or give {null_setting(value)}"
    elif isinstance(value, str):
        remedy = number_remedy(value, settings.dialect)
    return InputError(
        why,
        row=first_row + row + 1,
        column=column,
        value=value,
        remedy=remedy,
    )


def times_of(settings: Series, table: pa.Table, first_row: int) -> I64:
    """Parse the times of some rows as in `Observed`; with `time_zone` as its clocks show them.

    Raises `InputError` for instants if local times are expected.
    """
    column = nulled(table[settings.time_column], ("",))
    formats: Sequence[str] = settings.time_forms
    if pa.types.is_timestamp(column.type):  # its type defines the unit
        formats = ["auto"]
    dates = parse_in_turn(column, formats)
    if not settings.dialect.time_format and not dates.forms:
        # Periods are read only where every value is one: among days, 2019-01 is a truncated day.
        periods = parse_dates(column, PERIOD)
        if not periods.unreadable.any():
            dates = periods
    instants = dates.instant & (dates.micros != MISSING)
    if settings.time_zone is None or not instants.any():
        return dates.micros
    if settings.step_zone is None:
        row = int(np.argmax(instants))
        raise InputError(
            "it has a zone of its own",
            row=first_row + row + 1,
            column=settings.time_column,
            value=str(column[row]),
            remedy=(
                f"leave {setting_name('time_zone')} out, which is for times without one, or give a"
                f" {setting_name('frequency')} of days or longer, e.g. 1d, for steps in it"
            ),
        )
    return np.where(instants, utc_to_wall(dates.micros, settings.time_zone), dates.micros)


def misread_period(settings: Series, table: pa.Table, unread: I64) -> int | None:
    """Return the first row that keeps the others from being read as years, quarters, months or
    weeks, as all of a table are or none; None if that is not why times are unread.
    """
    if len(unread) < len(table):
        return None
    periods = parse_dates(table[settings.time_column], PERIOD)
    if not periods.forms or not periods.unreadable.any():
        return None
    return int(np.argmax(periods.unreadable))


def unread_time(settings: Series, table: pa.Table, row: int, first_row: int) -> InputError:
    """Return the error of a row that has no time."""
    value = to_python(table[settings.time_column][row])
    if value is None or value == "":
        value = None
        why = "missing"
        remedy = "correct it"
    elif isinstance(value, int):
        why = "a number"
        remedy = f"for seconds or steps that are counted give {time_setting('epoch_s')}"
    else:
        words = " or ".join(settings.time_forms)
        why = "not a time of the given format"
        remedy = advice(value, words)
    if settings.bad_rows == "error":
        remedy = f"{remedy}, or give {setting('bad_rows', 'drop')}"
    return InputError(
        why,
        row=first_row + row + 1,
        column=settings.time_column,
        value=value,
        remedy=remedy,
    )


def first_unread(
    settings: Series, path: Path, table: pa.Table, times: I64, first_row: int
) -> InputError | None:
    """Return the error of the first row without a time; None if all have one."""
    unread = np.flatnonzero(times == MISSING)
    if not len(unread):
        return None
    row = misread_period(settings, table, unread)
    if row is None:
        row = int(unread[0])
    return unread_time(settings, table, row, first_row).at(path=path)
