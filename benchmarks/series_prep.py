"""Preparation of daily basins, beside one in the shape that such pipelines usually have.

    python benchmarks/series_prep.py [--basins 50 500] [--years 30] [--data DIR] [--rounds 3] [--engines headrace usual]

The data is made once: six forcings and streamflow a day as float32 Parquet, a file per basin, about 2 % of each column
missing: short gaps, and outages of 120 days on average. `usual` is a preparation as it is often written: polars frames
of 50 basins, read and cleaned twice (once for the quality check), handed over to pandas, a scikit-learn pipeline per
basin and column group, three Parquet files per basin. headrace does the same work and more: it restores the time axis,
writes quality reports, digests and receipts, and the mapped store beside the readable files.

Every run is a process of its own, in alternating rounds. `cpu` is its user and system time less that of its imports,
`ms a basin` the cpu time over the basins, `peak` the largest resident memory less what was there before the work began.
The ratio is that of the two engines' cpu times in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from figures import Table, figure, ratio
from reporting import parser, publish

FEATURES = ("pet", "precip", "srad", "tmax", "tmin", "vp")
COLUMNS = ("streamflow", *FEATURES)
GAP, BATCH = 5, 50


def make_data(directory: Path, basins: int, years: int) -> None:
    """A Parquet file per basin; those that are there are kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir(parents=True, exist_ok=True)
    days = round(years * 365.25)
    dates = pa.array(np.datetime64("1985-01-01") + np.arange(days).astype("timedelta64[D]")).cast(
        pa.timestamp("ms")
    )
    for basin in range(basins):
        path = directory / f"basin_{basin:05d}.parquet"
        if path.exists():
            continue
        rng = np.random.default_rng([7, basin])
        values = rng.gamma(2.0, 2.0, (len(COLUMNS), days)).astype(np.float32)
        for column in values:
            for first in np.flatnonzero(rng.random(days) < 0.001 / 3):
                column[first : first + rng.integers(1, GAP + 1)] = np.nan
            for first in np.flatnonzero(rng.random(days) < 0.019 / 120):
                column[first : first + rng.geometric(1 / 120)] = np.nan
        columns = dict(zip(COLUMNS, values, strict=True))
        pq.write_table(pa.table({"date": dates, **columns}), path)


def run_headrace(data: Path, out: Path) -> None:
    """The recipe, with a scaler for each basin."""
    from headrace.run.prepare import prepare
    from headrace.series.settings import Series

    series = Series(
        source=data,
        target="streamflow",
        future_features=FEATURES,
        max_imputation_gap_size=GAP,
        batch_size=BATCH,
    )
    prepare(series, out, workers=1)


def run_usual(data: Path, out: Path) -> None:
    """Frames of 50 basins, twice; pandas; scikit-learn objects by basin; three files by basin."""
    import joblib
    import pandas as pd
    import polars as pl
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    splits = ("train", "val", "test")
    for name in (*splits, "quality"):
        (out / name).mkdir(parents=True)

    def cleaned(paths: list[Path]) -> pl.DataFrame:
        frames = [
            pl.scan_parquet(path).with_columns(pl.lit(path.stem).alias("basin")) for path in paths
        ]
        values = (
            pl.concat(frames).with_columns(pl.col(COLUMNS).fill_nan(None)).sort("basin", "date")
        )
        begun = [pl.col(name).is_not_null().cum_sum().over("basin") > 0 for name in COLUMNS]
        going = [
            pl.col(name).is_not_null().cum_sum(reverse=True).over("basin") > 0 for name in COLUMNS
        ]
        kept = values.filter(pl.all_horizontal(begun + going))
        return kept.with_columns(pl.col(COLUMNS).forward_fill(limit=GAP).over("basin")).collect()

    paths = sorted(data.glob("*.parquet"))
    passed = []
    for first in range(0, len(paths), 2 * BATCH):
        for (name,), frame in cleaned(paths[first : first + 2 * BATCH]).group_by("basin"):
            missing = {column: int(frame[column].null_count()) for column in COLUMNS}
            (out / "quality" / f"{name}.json").write_text(
                json.dumps({"rows": frame.height, "missing": missing})
            )
            if 0.6 * frame["streamflow"].count() >= 5 * 365.25:
                passed.append(data / f"{name}.parquet")
    scalers = {}
    for first in range(0, len(passed), BATCH):
        parts: dict[str, list[pl.DataFrame]] = {split: [] for split in splits}
        for (_,), frame in cleaned(sorted(passed)[first : first + BATCH]).group_by(
            "basin", maintain_order=True
        ):
            seen = frame["streamflow"].is_not_null().cum_sum()
            val, test = int((seen <= 0.6 * seen[-1]).sum()), int((seen <= 0.8 * seen[-1]).sum())
            for split, part in zip(
                splits, (frame[:val], frame[val:test], frame[test:]), strict=True
            ):
                parts[split].append(part)
        frames = {split: pl.concat(each).to_pandas() for split, each in parts.items()}
        for name, frame in frames["train"].groupby("basin"):
            scalers[name] = (
                make_pipeline(StandardScaler()).fit(frame[list(FEATURES)]),
                make_pipeline(StandardScaler()).fit(frame[["streamflow"]]),
            )
        for split, frame in frames.items():
            done = []
            for name, part in frame.groupby("basin"):
                scaled = part.copy()
                scaled[list(FEATURES)] = scalers[name][0].transform(part[list(FEATURES)])
                scaled[["streamflow"]] = scalers[name][1].transform(part[["streamflow"]])
                done.append(scaled)
            whole = pl.from_pandas(pd.concat(done))
            for name, part in whole.group_by("basin"):
                part.write_parquet(out / split / f"{name[0]}.parquet", compression="zstd")
    joblib.dump(scalers, out / "scalers.joblib")


ENGINES = {"headrace": run_headrace, "usual": run_usual}


def child(engine: str, data: str, out: str, small: str) -> None:
    """Warm up on two basins, so that imports are no part of the measurement, then measure."""
    ENGINES[engine](Path(small), Path(out) / "warm")
    peak_before = _resident_mib()
    cpu, wall = time.process_time(), time.perf_counter()
    ENGINES[engine](Path(data), Path(out) / "whole")
    record = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - peak_before,
        "store_mib": sum(path.stat().st_size for path in Path(out).glob("whole/runs/*/store/*"))
        / 2**20,
    }
    print(json.dumps(record))


def _resident_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(engine: str, data: Path, small: Path) -> dict[str, float]:
    """One run in a process of its own."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, __file__, "--child", engine, str(data), out, str(small)]
        environment = os.environ | {
            "POLARS_MAX_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "ARROW_NUM_THREADS": "1",
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return dict(json.loads(done.stdout))


def tables(asked: argparse.Namespace) -> Iterator[Table]:
    """Make the data, measure in turns."""
    root = asked.data or Path(tempfile.mkdtemp(prefix="headrace-basins-"))
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    try:
        for basins in {2, *asked.basins}:
            make_data(root / str(basins), basins, asked.years)
        for _ in range(asked.rounds):
            for basins in asked.basins:
                for engine in asked.engines:
                    found.setdefault((engine, basins), []).append(
                        measure(engine, root / str(basins), root / "2")
                    )
    finally:
        if asked.data is None:
            shutil.rmtree(root)
    cpu = {key: [each["cpu"] for each in runs] for key, runs in found.items()}
    rows = [
        (
            engine,
            f"{basins:,}",
            figure([1e3 * each / basins for each in cpu[engine, basins]], 1),
            ratio(cpu[engine, basins], cpu[asked.engines[0], basins]),
            figure([each["peak_mib"] for each in found[engine, basins]], 0),
            figure([each["store_mib"] for each in found[engine, basins]], 1)
            if engine == "headrace"
            else "–",
        )
        for basins in asked.basins
        for engine in asked.engines
    ]
    heads = (
        "design",
        "basins",
        "CPU ms a basin",
        f"times {asked.engines[0]}",
        "MiB over the start",
        "MiB of the store",
    )
    yield Table("basins", f"Preparing basins of {asked.years} years of days", heads, rows)


def main() -> None:
    """Parse, measure, print."""
    made = parser(__doc__)
    made.add_argument("--basins", type=int, nargs="+", default=[50, 500])
    made.add_argument("--years", type=int, default=30)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--data", type=Path)
    made.add_argument("--engines", nargs="+", choices=sorted(ENGINES), default=sorted(ENGINES))
    made.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    asked = made.parse_args()
    if asked.child:
        child(*asked.child)
        return
    publish(tables(asked), asked.json, ["polars", "pandas", "scikit-learn"])


if __name__ == "__main__":
    main()
