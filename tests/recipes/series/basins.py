"""Small sources of series, and what must come of them, computed one value at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.run.prepare import Prepared, prepare
from headrace.series.settings import Series

FEATURES = ("rain", "cold")
COLUMNS = ("flow", "rain", "cold")  # as they are stored: the target, then the features as given
_DRAWN = ("flow", "cold", "rain")
SPLITS = ("train", "val", "test")
START = datetime(2001, 1, 1)
DAY = timedelta(days=1)
MISSING = (None, math.nan)


@dataclass(frozen=True)
class Row:
    """A row of a source; None and NaN are missing."""

    date: datetime
    flow: float | None
    rain: float | None
    cold: float | None


def a_basin(
    seed: int, days: int = 90, *, holes: float = 0.03, outages: int = 2, lost_days: float = 0.03
) -> list[Row]:
    """A series with single holes, outages, days that have no row, and missing values at both ends."""
    rng = random.Random(seed)
    columns = {
        name: [round(rng.gauss(10 * place, 3), 3) for _ in range(days)]
        for place, name in enumerate(_DRAWN)
    }
    gone: dict[str, set[int]] = {name: set() for name in _DRAWN}
    for name in _DRAWN:
        gone[name] |= {day for day in range(days) if rng.random() < holes}
        for _ in range(outages):
            first = rng.randrange(days)
            gone[name] |= set(range(first, min(days, first + rng.randint(1, 12))))
        gone[name] |= set(range(rng.randrange(4))) | set(range(days - rng.randrange(4), days))
    rows = [
        Row(
            START + day * DAY,
            *(
                rng.choice(MISSING) if day in gone[name] else columns[name][day]
                for name in ("flow", "rain", "cold")
            ),
        )
        for day in range(days)
        if rng.random() >= lost_days
    ]
    rng.shuffle(rows)
    return rows


def parquet(path: Path, rows: Sequence[Row], entity: Sequence[str] | None = None) -> Path:
    """Rows as a Parquet file, with an entity column if given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {} if entity is None else {"gauge": pa.array(entity, pa.string())}
    columns["date"] = pa.array([row.date for row in rows], pa.timestamp("ms"))
    for name in ("rain", "flow", "cold"):
        columns[name] = pa.array([getattr(row, name) for row in rows], pa.float64())
    pq.write_table(pa.table(columns), path)
    return path


def text(path: Path, rows: Sequence[Row]) -> Path:
    """The same as CSV: null is an empty field, NaN its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["date,rain,flow,cold"]
    for row in rows:
        cells = ["" if value is None else repr(value) for value in (row.rain, row.flow, row.cold)]
        lines.append(",".join([row.date.strftime("%Y-%m-%d"), *cells]))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_basins(directory: Path, basins: Mapping[str, Sequence[Row]]) -> Path:
    """A Parquet file per basin."""
    for name, rows in basins.items():
        parquet(directory / f"{name}.parquet", rows)
    return directory


def settings(source: Path, **more: Any) -> Series:
    """Settings that small basins pass."""
    asked = {
        "target": "flow",
        "future_features": FEATURES,
        "frequency": "1d",
        "min_train_years": 0.02,
        "batch_size": 3,
    }
    return Series(**{"source": source, **asked, **more})


def series(source: Path, out: Path, *, workers: int = 1, **more: Any) -> Prepared:
    """The run of these settings."""
    return prepare(settings(source, **more), out, workers=workers)


def files_of(prepared: Prepared) -> dict[str, bytes]:
    """Every file that a run keeps, but its manifest's and receipts' times."""
    kept = [path for path in sorted(prepared.run.rglob("*")) if path.is_file()]
    names = {path.relative_to(prepared.run).as_posix(): path for path in kept}
    return {
        name: path.read_bytes()
        for name, path in names.items()
        if ".tmp-" not in name
        and not name.startswith(("receipts/", ".lock", "config.json", "manifest.json"))
    }


@dataclass(frozen=True)
class Stored:
    """What a run holds of an entity: times and values of each split; NaN is None."""

    times: list[datetime]
    values: list[list[float | None]]


def stored(prepared: Prepared) -> dict[str, dict[str, Stored]]:
    """Split → entity → what is in the store, by entities.parquet."""
    found: dict[str, dict[str, Stored]] = {split: {} for split in SPLITS}
    readable = readable_rows(prepared)
    for entity in pq.read_table(prepared.run / "entities.parquet").to_pylist():
        with pa.memory_map(str(prepared.run / entity["shard"])) as source:
            values = pa.ipc.open_file(source).get_batch(0).column("values")
            matrix = values.flatten().to_numpy().reshape(-1, values.type.list_size)
            rows = matrix[entity["first_row"] : entity["first_row"] + entity["rows"]].copy()
        edges = [0, entity["val_row"], entity["test_row"], entity["rows"]]
        for split, start, stop in zip(SPLITS, edges, edges[1:], strict=False):
            if start == stop:
                continue
            values_ = [
                [None if math.isnan(cell) else cell for cell in row]
                for row in rows[start:stop].tolist()
            ]
            times = readable[split][entity["entity"]].times
            found[split][entity["entity"]] = Stored(times, values_)
    return found


def readable_rows(prepared: Prepared) -> dict[str, dict[str, Stored]]:
    """Split → entity → what is in the Parquet files."""
    found: dict[str, dict[str, Stored]] = {}
    for split in SPLITS:
        own: dict[str, Stored] = {}
        for path in sorted((prepared.run / "processed_time_series" / split).glob("*.parquet")):
            table = pq.read_table(path)
            names = table.column_names
            for row in table.to_pylist():
                each = own.setdefault(row[names[0]], Stored([], []))
                each.times.append(row[names[1]])
                each.values.append(
                    [None if math.isnan(row[name]) else row[name] for name in names[2:]]
                )
        found[split] = own
    return found


@dataclass(frozen=True)
class Expected:
    """One entity by hand. values: of each split, before scaling; None missing. filled: how many, per column."""

    times: dict[str, list[datetime]]
    values: dict[str, list[list[float | None]]]
    filled: list[int]
    targets: dict[str, int]


def expected(
    rows: Sequence[Row], *, limit: int = 5, train: float = 0.6, val: float = 0.2
) -> Expected | None:
    """Cleaned and split by the words of the specification, step by step; None if nothing is left to train on."""
    by_day = {(row.date - START).days: row for row in rows}
    first, last = min(by_day), max(by_day)
    series_: list[list[float | None]] = [
        [_known(getattr(by_day[day], name)) if day in by_day else None for name in COLUMNS]
        for day in range(first, last + 1)
    ]
    days = list(range(first, last + 1))
    for column in range(3):
        if all(row[column] is None for row in series_):
            return None
    begun = max(next(n for n, row in enumerate(series_) if row[c] is not None) for c in range(3))
    ended = min(max(n for n, row in enumerate(series_) if row[c] is not None) for c in range(3))
    if begun > ended:
        return None
    kept = list(range(begun, ended + 1))
    observed = [n for n in kept if series_[n][0] is not None]
    n_train, n_val = int(len(observed) * train + 1e-9), int(len(observed) * val + 1e-9)
    if not n_train:
        return None
    val_from = observed[n_train - 1] + 1
    test_from = observed[n_train + n_val - 1] + 1
    filled_cells: set[tuple[int, int]] = set()
    for column in (1, 2):
        values = [row[column] for row in series_]
        for n in range(1, len(values)):
            if values[n] is not None or values[n - 1] is None:
                continue
            end = n
            while end < len(values) and values[end] is None:
                end += 1
            through_a_cut = any(n < row <= end for row in (val_from, test_from))
            if end < len(values) and end - n <= limit and not through_a_cut:
                for step in range(n, end):
                    series_[step][column] = values[n - 1]
                    filled_cells.add((step, column))
    parts = {
        "train": [n for n in kept if n < val_from],
        "val": [n for n in kept if val_from <= n < test_from],
        "test": [n for n in kept if n >= test_from],
    }
    return Expected(
        {split: [START + days[n] * DAY for n in part] for split, part in parts.items()},
        {split: [series_[n] for n in part] for split, part in parts.items()},
        [
            sum(1 for step, c in filled_cells if c == column and begun <= step <= ended)
            for column in range(3)
        ],
        {split: sum(series_[n][0] is not None for n in part) for split, part in parts.items()},
    )


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def scaled(found: Expected) -> dict[str, list[list[float | None]]]:
    """Every column less the mean of what trains, over its standard deviation; float32 as it is stored."""
    means, widths = [], []
    for column in range(3):
        train = np.array([row[column] for row in found.values["train"] if row[column] is not None])
        means.append(train.mean())
        widths.append(train.std() or 1.0)
    return {
        split: [
            [
                None if cell is None else float(np.float32((cell - means[c]) / widths[c]))
                for c, cell in enumerate(row)
            ]
            for row in rows
        ]
        for split, rows in found.values.items()
    }


def close(left: list[list[float | None]], right: list[list[float | None]]) -> bool:
    """The same missing cells, and numbers that are alike to float32."""
    a = np.array([[math.nan if cell is None else cell for cell in row] for row in left], np.float64)
    b = np.array(
        [[math.nan if cell is None else cell for cell in row] for row in right], np.float64
    )
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=2e-6, atol=2e-6, equal_nan=True))
