"""Sources whose rows behind a cut are other ones, and every byte that a run has before the cut."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from series_sources import series

from headrace.run.prepare import Prepared, prepare

DAYS = 100  # of every entity; all columns are observed on the first and the last
CUT, TEST_CUT = 60, 80  # where val and test begin while every target is observed
NAMES = ("q", "rain", "warm")
LOGGED = {"features": {"strategy": "per_group", "pipeline": [{"step": "FunctionTransformer", "func": "log1p"}, "StandardScaler"]}}  # fmt: skip
UNIFIED = {
    "features": {"strategy": "unified", "fit_on_n_entities": 2, "pipeline": ["RobustScaler"]}
}
IMPUTED = {"features": {"strategy": "per_group", "pipeline": [{"step": "KNNImputer"}, {"step": "QuantileTransformer", "n_quantiles": 20}]}}  # fmt: skip
CONFIGS = {"usual": {}, "logged": LOGGED, "unified": UNIFIED, "imputed": IMPUTED}


def table(seed: int = 0) -> np.ndarray:
    """Values [DAYS, 3], columns as NAMES; the target has no gap."""
    rng = np.random.default_rng(seed)
    values = rng.gamma(2.0, 3.0, (DAYS, 3))
    for column in (1, 2):
        values[rng.choice(np.arange(1, DAYS - 1), 12, replace=False), column] = np.nan
    return values


def write(
    directory: Path,
    entities: dict[str, np.ndarray],
    *,
    without_rows: dict[str, set[int]] | None = None,
) -> Path:
    directory.mkdir(parents=True)
    for name, values in entities.items():
        gone = (without_rows or {}).get(name, set())
        days = [day for day in range(len(values)) if day not in gone]
        frame = pl.DataFrame({"date": [str(date(2001, 1, 1) + timedelta(day)) for day in days]})
        frame = frame.with_columns(
            pl.Series(column, values[days, at]).fill_nan(None) for at, column in enumerate(NAMES)
        )
        frame.write_csv(directory / f"{name}.csv")
    areas = [f"{name},{place + 1}\n" for place, name in enumerate(sorted(entities))]
    (directory.parent / "areas.csv").write_text("id,area\n" + "".join(areas))
    return directory


def run(directory: Path, entities: dict[str, np.ndarray], *, without_rows=None, **more) -> Prepared:
    source = write(directory / "raw", entities, without_rows=without_rows)
    static = {"static": directory / "areas.csv", "static_entity": "id", "static_features": "area"}
    asked = {"frequency": "1d", "min_train_years": 0.1, **static, **more}
    return prepare(series(source, **asked), directory / "out", workers=1)


def before(prepared: Prepared, *splits: str) -> dict[str, bytes]:
    """Every byte that a run has before a cut: rows of these splits, scalers, static features, and the cut."""
    found = {}
    for split in splits:
        for path in sorted((prepared.run / "processed_time_series" / split).iterdir()):
            found[f"{split}/{path.name}"] = path.read_bytes()
    for name in ("fitted_pipelines.json", "processed_static_features.parquet"):
        found[name] = (prepared.run / name).read_bytes()
    places = ["val_row", "test_row"][: len(splits)]
    found["cuts"] = repr(pq.read_table(prepared.run / "entities.parquet", columns=["entity", *places]).to_pylist()).encode()  # fmt: skip
    return found


def changed(values: np.ndarray, cut: int, how: dict) -> np.ndarray:
    rng = np.random.default_rng(how["seed"])
    made = values.copy()
    behind = made[cut:-1]
    if how["values"]:
        behind[:] = np.where(np.isnan(behind), np.nan, rng.normal(0, 1e4, behind.shape))
        made[-1] = rng.normal(0, 1e4, 3)
    if how["missing"] is not None:
        fresh = rng.normal(5, 2, behind[:, 1:].shape)
        gone = rng.random(fresh.shape) < how["missing"]
        behind[:, 1:] = np.where(
            gone, np.nan, np.where(np.isnan(behind[:, 1:]), fresh, behind[:, 1:])
        )
    for begin, length in how["lengths"]:
        behind[begin : begin + length, 1] = np.nan
    behind[: how["beginning"], 2] = np.nan
    return made


def differences(
    directory: Path,
    configs: Mapping[str, Any],
    seed: int,
    cut_of: str,
    open_gap: int,
    how: Mapping[str, Any],
) -> list[str]:
    """What differs before a cut between a source and the same with other rows behind it; open_gap: steps before it."""
    cut, splits = (CUT, ("train",)) if cut_of == "val" else (TEST_CUT, ("train", "val"))
    entities = {"a": table(seed), "b": table(seed + 1), "c": table(seed + 2)}
    for values in entities.values():
        values[cut - open_gap : cut, 1] = np.nan
    others = {name: changed(values, cut, how) for name, values in entities.items()}
    # a row that misses every value may stand in the file or not
    gone = {
        name: {day for day in range(cut, DAYS - 1) if how["rows"] and np.isnan(values[day]).all()}
        for name, values in others.items()
    }
    asked = {"preprocessing_configs": configs, "max_imputation_gap_size": 3}
    one = before(run(directory / "one", entities, **asked), *splits)
    two = before(run(directory / "two", others, **asked, without_rows=gone), *splits)
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
