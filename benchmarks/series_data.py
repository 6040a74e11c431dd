"""Synthetic basins for `series.py`: 30 years of days, six forcing columns and streamflow, 20 attributes; fixed seed.

About 2 % of every column is missing: a twentieth of that as gaps of 1 to 5 days, the rest as outages of 120 days on
average, as scattered holes would leave no window of a year.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FEATURES = ("pet", "precip", "srad", "tmax", "tmin", "vp")
ATTRIBUTES = tuple(f"attribute_{each:02d}" for each in range(20))
DAYS = 10_957


def write_basins(folder: Path, basins: int) -> None:
    """`raw/<basin>.parquet` and `attributes.parquet`."""
    (folder / "raw").mkdir(parents=True)
    random = np.random.default_rng(20240229)
    dates = np.datetime64("1985-01-01") + np.arange(DAYS).astype("timedelta64[D]")
    season = np.cos(np.arange(DAYS) / 365.25 * 2 * np.pi)
    for basin in range(basins):
        wet = random.gamma(2, 2)
        precip = np.where(random.random(DAYS) < 0.35, random.gamma(0.7, 3 * wet, DAYS), 0)
        warm = 12 - 10 * season + random.normal(0, 3, DAYS)
        pet = np.clip(0.2 * warm, 0.1, None)
        recession = np.exp(-np.arange(60) * random.uniform(0.02, 0.4))
        flow = np.convolve(np.clip(precip - 0.4 * pet, 0, None), recession)[:DAYS] + random.gamma(
            1, 0.02, DAYS
        )
        columns = dict(
            zip(
                ("streamflow", *FEATURES),
                (
                    flow,
                    pet,
                    precip,
                    200 - 100 * season + random.normal(0, 30, DAYS),
                    warm + 5,
                    warm - 5,
                    800 + 40 * warm,
                ),
                strict=True,
            )
        )
        for name, values in columns.items():
            columns[name] = _punched(values.astype(np.float32), random)
        pq.write_table(
            pa.table(
                {
                    "date": dates,
                    **{name: pa.array(each, from_pandas=True) for name, each in columns.items()},
                }
            ),
            folder / "raw" / f"basin_{basin:05d}.parquet",
        )
    attributes = random.normal(size=(basins, len(ATTRIBUTES)))
    names = [f"basin_{basin:05d}" for basin in range(basins)]
    pq.write_table(
        pa.table({"gauge": names, **dict(zip(ATTRIBUTES, attributes.T, strict=True))}),
        folder / "attributes.parquet",
    )


def _punched(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    for begin in np.flatnonzero(random.random(DAYS) < 0.001 / 3):
        values[begin : begin + random.integers(1, 6)] = np.nan
    for begin in np.flatnonzero(random.random(DAYS) < 0.019 / 120):
        values[begin : begin + random.geometric(1 / 120)] = np.nan
    return values
