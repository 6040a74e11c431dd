"""Read NetCDF files and Zarr stores through xarray (extra `xarray`) as tables.

A dataset becomes the rows of `xarray.Dataset.to_dataframe`: a row for each point in the product of
its dimensions, and a column for each dimension and variable, even if a variable lacks some
dimensions. It is read in slices of its first dimension, so memory is O(slice). Fill values become
null, and times are decoded by the CF conventions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import InputError, MissingExtra, first_line

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
    try:
        if path.name.lower().endswith(".zarr"):
            return xarray.open_zarr(path)
        return xarray.open_dataset(path)
    except Exception as error:  # each engine has its own errors
        raise InputError(
            f"xarray cannot open it ({first_line(error)[:300]})",
            path=path,
            remedy="check the file, and that netCDF4 or zarr is installed",
        ) from error


def tables_of_grid(grid: Any) -> Iterator[pa.Table]:
    """Iterate over the rows of an `xarray.Dataset` or `DataArray`.

    Raises `InputError` for values that Arrow lacks.
    """
    if hasattr(grid, "data_vars"):
        data = grid
    else:
        data = grid.to_dataset(name=grid.name or "value")
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
                remedy=(
                    "convert times of unusual calendars, such as with"
                    " Dataset.convert_calendar('standard')"
                ),
            ) from error
