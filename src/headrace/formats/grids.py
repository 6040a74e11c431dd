"""Read NetCDF files and Zarr stores through xarray (extra `xarray`) as tables.

A dataset becomes the rows of `xarray.Dataset.to_dataframe`: a row for each point in the product of
its dimensions, and a column for each dimension and variable, even if a variable lacks some
dimensions. It is read in slices of its first dimension, so memory is O(slice). Fill values become
null, and times are decoded by the CF conventions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import InputError, MissingExtra, first_line

# The calendars of the CF conventions that lack days, or have days that never were.
_OTHER_CALENDARS = {
    "noleap": "whose years have no 29 February",
    "365_day": "whose years have no 29 February",
    "all_leap": "whose years all have a 29 February",
    "366_day": "whose years all have a 29 February",
    "360_day": "whose months all have 30 days",
    "julian": "whose leap years are not those of today",
}
_USUAL_CONVERSION = "'standard', use_cftime=False"
_CONVERSIONS = {"360_day": f"{_USUAL_CONVERSION}, align_on='year'"}
NETCDF_NAMES = (".nc", ".nc4", ".cdf", ".h5netcdf")
_SLICE_ROWS = 1 << 18


def is_grid(path: Path) -> bool:
    """Return whether a name is that of a NetCDF file or a Zarr store."""
    return path.name.lower().endswith((*NETCDF_NAMES, ".zarr"))


def grid_tables(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """Read variables and dimensions of a file or store as columns, in slices.

    optional: columns that are left out if they do not exist. Raises `InputError` and
    `MissingExtra`.
    """
    with closing(_open(path)) as opened:
        for column in columns:
            if (
                column not in opened.variables
                and column not in opened.dims
                and column not in optional
            ):
                raise InputError(
                    f"no such variable; there are {', '.join(map(str, opened.variables))}",
                    path=path,
                    column=column,
                )
        own_columns = [name for name in columns if name in opened.variables or name in opened.dims]
        # a dimension without values becomes its indices
        named = {name: opened[name] for name in own_columns}
        chosen = opened.drop_vars(list(opened.variables)).assign(named)
        alone = [
            name for name, size in chosen.sizes.items() if size == 1 and name not in own_columns
        ]
        chosen = chosen.squeeze(alone, drop=True)
        labelled = {
            dim for variable in named.values() if len(variable.dims) == 1 for dim in variable.dims
        }
        strange = [str(dimension) for dimension in chosen.dims if dimension not in labelled]
        if strange:
            raise InputError(
                f"{', '.join(own_columns)} have the dimensions {', '.join(map(str, chosen.dims))},"
                f" and no column tells {strange[0]!r}",
                path=path,
                remedy="name one as entity, or select a place of it",
            )
        for table in tables_of_grid(chosen):
            yield table.select(own_columns)


def first_rows(path: Path, rows: int) -> pa.Table:
    """Read the first rows of a file or store, with all dimensions and variables.

    Raises as `grid_tables`.
    """
    with closing(_open(path)) as opened:
        return next(tables_of_grid(opened)).slice(0, rows)


def _open(path: Path) -> Any:
    try:
        import xarray
    except ImportError as error:
        raise MissingExtra("xarray", "xarray") from error
    is_store = path.name.lower().endswith(".zarr")
    open_grid = xarray.open_zarr if is_store else xarray.open_dataset
    try:
        grid = open_grid(path)
        _refuse_calendars(grid, path)
    except InputError:
        raise
    except Exception as error:  # each engine has its own errors
        # The calendar may be why, if the library that decodes it is absent.
        undecoded = None
        with suppress(Exception):
            undecoded = open_grid(path, decode_times=False)
        if undecoded is not None:
            _refuse_calendars(undecoded, path)
        raise InputError(
            f"xarray cannot open it ({first_line(error)[:300]})",
            path=path,
            remedy="check the file, and that netCDF4 or zarr is installed",
        ) from error
    return grid


def _refuse_calendars(grid: Any, path: Path | None = None) -> None:
    """Raise `InputError` if a variable counts the days of a calendar that no clock has."""
    for name, variable in grid.variables.items():
        calendar = variable.encoding.get("calendar") or variable.attrs.get("calendar")
        if calendar is None and variable.dtype == object and variable.size:
            calendar = getattr(variable.values.flat[0], "calendar", None)
        if calendar in _OTHER_CALENDARS:
            conversion = _CONVERSIONS.get(calendar, _USUAL_CONVERSION)
            raise InputError(
                f"its times are of the calendar {calendar}, {_OTHER_CALENDARS[calendar]}",
                path=path,
                column=str(name),
                remedy=f"convert it by dataset.convert_calendar({conversion}) of xarray",
            )


def tables_of_grid(grid: Any) -> Iterator[pa.Table]:
    """Iterate over the rows of an `xarray.Dataset` or `DataArray`.

    Raises `InputError` for values that Arrow lacks.
    """
    if hasattr(grid, "data_vars"):
        data = grid
    else:
        data = grid.to_dataset(name=grid.name or "value")
    _refuse_calendars(data)
    dims = list(data.sizes)
    if not dims:
        raise InputError(
            "an xarray Dataset without dimensions has no rows", remedy="give one with a time"
        )
    lengths = [data.sizes[dimension] for dimension in dims]
    size = max(1, _SLICE_ROWS // max(1, math.prod(lengths[1:])))
    for begin in range(0, max(1, lengths[0]), size):
        frame = (
            data.isel({dims[0]: slice(begin, begin + size)})
            .to_dataframe(dim_order=dims)
            .reset_index()
        )
        for name in frame.columns:
            if (
                frame[name].dtype == object
                and len(frame)
                and isinstance(frame[name].iloc[0], bytes)
            ):
                frame[name] = frame[name].str.decode("utf-8")
        try:
            yield pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(
                f"a data set of xarray does not go into Arrow: {error}",
                remedy="convert its variables to numbers, texts or times",
            ) from error
