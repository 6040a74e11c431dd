"""A small run of every recipe, over one source for all engines: its files' times are part of a run's identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from pings import dealt, random_pings, write_pings
from recipe_cases import sources as token_sources

import headrace
from tables import small_source

RECIPES = ("temporal_split", "rewrite", "packed_sequences", "histories", "series")
MIDDLE = {  # a stage of which some tasks are done when a machine dies
    "temporal_split": "split",
    "rewrite": "rewrite",
    "packed_sequences": "tokenise",
    "histories": "gather",
    "series": "clean",
}


def series_source(directory: Path, *, entities: int, days: int) -> Path:
    """A CSV file per entity, a row a day, with holes."""
    random = np.random.default_rng(0)
    directory.mkdir(parents=True)
    dates = pa.array(np.datetime64("2000-01-01") + np.arange(days).astype("timedelta64[D]"))
    for number in range(entities):
        holes = random.random(days) < 0.02
        columns = {
            name: pa.array(random.gamma(2, 3, days), mask=holes) for name in ("flow", "warmth")
        }
        pa.csv.write_csv(
            pa.table({"date": dates, **columns}), directory / f"basin_{number:03d}.csv"
        )
    return directory


def recipes_over(
    directory: Path, *, rows: int = 1500, shards: int = 6
) -> Mapping[str, Callable[[], Any]]:
    """Recipes by name, each with `shards` tasks or more in a stage. The source is made once."""
    table = small_source(directory / "table", count=shards, rows=rows, entities=300)
    tokens = token_sources(directory / "tokens", files=3, rows=max(30, rows // 30))
    pings = write_pings(directory / "pings", dealt(random_pings(3, rows * shards), shards))
    days = series_source(directory / "series", entities=2 * shards, days=max(300, rows // 4))
    return {
        "temporal_split": lambda: headrace.TemporalSplit(
            source=table, time="date", entity="id", split_date="2025-01-01", train_ratio=0.5
        ),
        "rewrite": lambda: headrace.Rewrite(source=[table], cache_dir=directory / "cache"),
        "packed_sequences": lambda: headrace.PackedSequences(
            blend=[str(path) for path in tokens],
            pack_size=512,
            num_shards=shards,
            near=0.8,
            train_ratio=0.8,
            val_ratio=0.1,
            test_ratio=0.1,
        ),
        "series": lambda: headrace.Series(
            source=days,
            target="flow",
            future_features=["warmth"],
            min_train_years=0.2,
            batch_size=2,
        ),
        "histories": lambda: headrace.Histories(
            source=pings, peer="dst_addr", partitions=4, max_row_bytes=3000, train_ratio=0.6
        ),
    }
