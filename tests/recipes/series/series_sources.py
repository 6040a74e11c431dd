"""Small sources of series with known numbers, and runs over them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from headrace.run.prepare import Prepared, prepare
from headrace.series.settings import Series


def frame_of(
    entity: str, days: int = 900, seed: int = 0, first: str = "2001-01-01"
) -> pl.DataFrame:
    """A year-round signal with noise, other in every entity; q is missing at times, at both ends too."""
    rng = np.random.default_rng([seed, *entity.encode()])
    day = np.arange(days)
    rain = rng.gamma(0.5, 4.0, days)
    warm = 10 + 8 * np.sin(2 * np.pi * day / 365.25) + rng.normal(0, 1, days)
    q = 1 + 0.3 * rain + 0.05 * warm**2 + rng.gamma(1.0, 1.0, days) + day / days * 5
    q[rng.random(days) < 0.03] = np.nan
    q[:7], q[-5:] = np.nan, np.nan
    warm[rng.random(days) < 0.01] = np.nan
    times = np.datetime64(first) + day.astype("timedelta64[D]")
    table = pl.DataFrame({"date": times, "rain": rain, "warm": warm, "q": q})
    return table.with_columns(pl.col("date").cast(pl.String), pl.col("warm", "q").fill_nan(None))


def write_source(directory: Path, entities: list[str], **metadata: Any) -> Path:
    """A CSV for each entity."""
    directory.mkdir(parents=True)
    for entity in entities:
        frame_of(entity, **metadata).write_csv(directory / f"{entity}.csv")
    return directory


def series(source: Path, **settings: Any) -> Series:
    """Settings for such a source."""
    return Series(
        **{
            "source": source,
            "target": "q",
            "future_features": ["rain", "warm"],
            "min_train_years": 0.5,
            "batch_size": 2,
        }
        | settings
    )


def run_of(source: Path, out: Path, workers: int = 1, **settings: Any) -> Prepared:
    """A finished run."""
    return prepare(series(source, **settings), out, workers=workers)
