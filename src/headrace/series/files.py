"""Find the files that a run of series reads, and the entity of each. O(files) of memory."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import polars as pl
import pyarrow as pa

from headrace.errors import InputError
from headrace.formats.detect import DATA_NAMES, stem_of_name
from headrace.formats.foreign import refuse_foreign
from headrace.formats.listing import is_data_name, list_files
from headrace.series.config import FILE_NAME, Series
from headrace.series.observed import Observed, read_file
from headrace.storage.places import path_of, place_of

SERIES, STATIC = "series", "static"
_MACHINE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE)  # the run stops and can go on
_TEXT = (".txt", ".txt.gz", ".txt.zst")
_CAMELS_FORCING = re.compile(r"(\d+)_lump_\w+_forcing_leap\.txt(\.gz)?")
_CAMELS_FLOW = re.compile(r"(\d+)_streamflow_qc\.txt(\.gz)?")


@dataclass(frozen=True)
class EntityFiles:
    """One entity and the files it is in. problem: why it cannot be read at all."""

    entity: str
    paths: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class EntitySource:
    """Entities in the order of their names, and how their rows are read.

    rows: function from the number of an entity and columns of values, in the order of `Series.columns()`, to its rows.
    files: of each entity; none of long tables, which were spread before.
    """

    names: Sequence[str]
    rows: Callable[[int, Sequence[str]], Observed]
    files: Sequence[EntityFiles] = ()

    def batch(self, number: int, size: int) -> range:
        """Number the entities of a batch."""
        return range(number * size, min((number + 1) * size, len(self.names)))

    def name(self, number: int) -> str:
        """Name an entity's first file; "" for long tables and an entity without a file."""
        return next(iter(self.files[number].names), "") if self.files else ""

    def paths(self, numbers: range) -> list[Path]:
        """List the files of some entities."""
        return [path for each in self.files[numbers.start : numbers.stop] for path in each.paths]

    def read(self, number: int, columns: Sequence[str]) -> Observed:
        """Read the rows of an entity. Raises `InputError` for what is in them, `OSError` for trouble of the machine."""
        try:
            return self.rows(number, columns)
        except OSError as error:
            if error.errno in _MACHINE:
                raise
            raise InputError(f"{self.name(number)}: cannot be read ({error}); check the file") from error
        except (pa.ArrowException, pl.exceptions.PolarsError, UnicodeError) as error:
            raise InputError(str(error)) from error


def source_files(settings: Series) -> list[tuple[Path, str]]:
    """Find the files of series and of static attributes, with names below `series/` and `static/`, sorted by name.

    With `entities`, only their files. Raises `InputError` where nothing is found.
    """
    if settings.reader == "camels_us":
        found = _camels_files(settings.source[0], settings.forcing)
    elif settings.region_time_series_base_dirs:
        found = [
            (path, f"{region}/{name}")
            for region, directory in sorted(settings.region_time_series_base_dirs.items())
            for path, name in _listed([directory])
        ]
    else:
        found = _listed(settings.source)
    files = [(path, f"{SERIES}/{name}") for path, name in found]
    listed = settings.listed()
    if listed is not None and settings.entity == FILE_NAME:
        wanted = set(listed)
        files = [each for each in files if entity_of(settings, each[1]) in wanted]
    return sorted([*files, *_static_files(settings)], key=lambda each: each[1])


def _listed(source: Sequence[Path]) -> list[tuple[Path, str]]:
    listing = list_files(source)
    return [(listing.path(place), name) for place, name in enumerate(listing.names)]


def _static_files(settings: Series) -> list[tuple[Path, str]]:
    if settings.region_static_attributes_base_dirs:
        return [
            (path, f"{STATIC}/{region}/{path.name}")
            for region, directory in sorted(settings.region_static_attributes_base_dirs.items())
            for path in _tables([directory])
        ]
    paths = _tables(settings.static)
    if not paths:
        return []
    root = os.path.commonpath({str(path.parent) for path in paths})
    return [(path, f"{STATIC}/{path.relative_to(root).as_posix()}") for path in paths]


def _tables(source: Iterable[Path]) -> list[Path]:
    """Files, directories' data files and matches of patterns, each once, sorted; text tables too."""
    found: set[Path] = set()
    for entry in source:
        path = _absolute(entry)
        if path.is_dir():
            every = list(path.iterdir())
            refuse_foreign(path, {each.name for each in every})
            own = [each for each in every if each.name[0] not in "._" and is_table(each.name)]
        else:
            own = [path] if path.is_file() else place_of(path).matches()
        if not own:
            raise InputError(f"{entry}: no such file, directory or match with tables; check the path of static")
        found.update(own)
    return sorted(found)


def passed_over(settings: Series) -> list[str]:
    """List what is not read in source directories, sorted; nothing where looking costs requests."""
    found: list[str] = []
    if settings.reader != "table":
        return found
    for each in (*settings.source, *settings.region_time_series_base_dirs.values()):
        directory = _absolute(each)
        if place_of(directory).reads == "calls" and directory.is_dir():
            with os.scandir(directory) as entries:
                found += [
                    str(directory / entry.name)
                    for entry in entries
                    if entry.name[0] not in "._" and (entry.is_dir() or not is_data_name(entry.name))
                ]
    return sorted(each for each in found if "readme" not in each.rpartition(os.sep)[2].lower())


def _absolute(path: Path) -> Path:
    return place_of(path_of(path)).absolute()


def is_table(name: str) -> bool:
    """Tell whether a static file of this name can be read."""
    return name.lower().endswith((*DATA_NAMES, *_TEXT)) and "readme" not in name.lower()


def _camels_files(root: Path, forcing: str) -> list[tuple[Path, str]]:
    root = _absolute(root)
    found = []
    for directory, pattern in ((f"basin_mean_forcing/{forcing}", _CAMELS_FORCING), ("usgs_streamflow", _CAMELS_FLOW)):
        files = [each for each in (root / directory).rglob("*.txt*") if pattern.fullmatch(each.name)]
        if not files:
            raise InputError(f"{root / directory}: holds no files of CAMELS-US; give the data set's root as source")
        found += [(each, each.relative_to(root).as_posix()) for each in files]
    return found


def entity_of(settings: Series, name: str) -> str:
    """Name the entity of a file."""
    own = PurePosixPath(name).name
    if settings.reader == "camels_us":
        match = _CAMELS_FORCING.fullmatch(own) or _CAMELS_FLOW.fullmatch(own)
        return match[1] if match else own
    return stem_of_name(own)


def series_files(files: Sequence[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Select the files of series, with names without `series/`."""
    return [(path, name.partition("/")[2]) for path, name in files if name.startswith(f"{SERIES}/")]


def static_files(files: Sequence[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Select the files of static attributes, with names without `static/`."""
    return [(path, name.partition("/")[2]) for path, name in files if name.startswith(f"{STATIC}/")]


def entity_source(settings: Series, files: Sequence[tuple[Path, str]]) -> EntitySource:
    """Open a source with files per entity; entities that were asked for and have no file are in it too.

    Raises `InputError` where two files are one entity.
    """
    own: dict[str, list[tuple[Path, str]]] = {}
    for path, name in series_files(files):
        own.setdefault(entity_of(settings, name), []).append((path, name))
    found = []
    for entity, places in own.items():
        if settings.reader == "table" and len(places) > 1:
            raise InputError(
                f"{places[0][0]} and {places[1][0]} are both entity {entity!r}; rename one, or give one of them"
            )
        paths, names = zip(*places, strict=True)
        found.append(EntityFiles(entity, paths, names, _problem(settings, entity, paths, names)))
    for entity in set(settings.listed() or ()) - own.keys():
        found.append(EntityFiles(entity, problem="no file has its name; correct the list of entities"))
    found.sort(key=lambda each: each.entity)

    def rows(number: int, columns: Sequence[str]) -> Observed:
        each = found[number]
        if each.problem is not None:
            raise InputError(each.problem)
        if settings.reader == "camels_us":
            from headrace.series.camels_us import read_basin

            return read_basin(settings, each.paths, columns)
        return read_file(settings, each.paths[0], each.names[0], columns)

    return EntitySource([each.entity for each in found], rows, found)


def _problem(settings: Series, entity: str, paths: Sequence[Path], names: Sequence[str]) -> str | None:
    if settings.reader == "camels_us" and len(paths) != 2:
        return f"{paths[0]}: is its only file; CAMELS-US has a forcing and a streamflow file for each basin"
    if settings.region_time_series_base_dirs:
        region = names[0].partition("/")[0]
        if entity.partition("_")[0] != region:
            return f"{paths[0]}: is of region {entity.partition('_')[0]!r} by its name, and lies in that of {region!r}"
    return None
