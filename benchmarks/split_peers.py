"""What `split.py` compares headrace with. Run alone, one contestant is a whole process:

    python benchmarks/split_peers.py polars|pandas|rewrite SOURCE OUT WORKERS csv|parquet

It imports nothing that the contestant does not need.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SPLIT_DATE = "2025-01-01"


def run_polars(source: Path, out: Path, workers: int, format_: str) -> dict[str, object]:
    """Twenty lines over Polars: entities before the cutoff, a hash, a join, three filters, three files a shard.

    No digest, index or report, and nothing that says which rows went where.
    """
    import polars as pl

    started = time.perf_counter()
    shards = sorted(source.iterdir())
    cutoff = pl.lit(SPLIT_DATE).str.to_datetime("%Y-%m-%d")
    when = pl.col("transaction_date")
    scan = pl.scan_parquet
    if format_ == "csv":
        when = when.str.to_datetime()

        def scan(paths: list[Path] | Path) -> pl.LazyFrame:
            return pl.scan_csv(paths, infer_schema=False)

    before = scan(shards).filter(when < cutoff)
    customers = before.select("customer_id").unique().collect(engine="streaming")
    hashed = customers.with_columns(h=pl.col("customer_id").hash(42)).sort("h", "customer_id")
    train = hashed.head(int(len(hashed) * 0.9)).select("customer_id", t=pl.lit(True))
    for split in ("train", "val", "oot"):
        (out / split).mkdir(parents=True, exist_ok=True)

    def work(shard: Path) -> list[int]:
        frame = scan(shard).collect()
        early = frame.select((when < cutoff).alias("early"))["early"]
        joined = frame.select("customer_id").join(
            train, on="customer_id", how="left", maintain_order="left"
        )
        trains = joined["t"].fill_null(False)
        parts = {"train": early & trains, "val": early & ~trains, "oot": ~early & ~trains}
        counts = []
        for split, mask in parts.items():
            part = frame.filter(mask)
            if format_ == "csv":
                part.write_csv(out / split / shard.name)
            else:
                part.write_parquet(out / split / shard.name)
            counts.append(len(part))
        return counts

    with ThreadPoolExecutor(workers) as pool:
        counts = list(pool.map(work, shards))
    return {
        "seconds": time.perf_counter() - started,
        "rows": [sum(column) for column in zip(*counts, strict=True)],
    }


def run_rewrite(source: Path, out: Path, workers: int, format_: str) -> dict[str, object]:
    """Read every shard and write it again."""
    import polars as pl
    import pyarrow.parquet as pq

    out.mkdir(parents=True)

    def rewrite(path: Path) -> int:
        if format_ == "csv":
            frame = pl.read_csv(path, infer_schema=False)
            frame.write_csv(out / path.name)
            return frame.height
        table = pq.read_table(path, use_threads=False)
        pq.write_table(
            table,
            out / path.name,
            compression="lz4",
            write_page_checksum=True,
            row_group_size=65_536,
        )
        return int(table.num_rows)

    started = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        rows = sum(pool.map(rewrite, sorted(source.iterdir())))
    return {"seconds": time.perf_counter() - started, "rows": [rows]}


def pandas_shard(task: tuple[Path, Path, str, dict[str, str]]) -> list[int]:
    """One shard of the pandas design: read, map customers, three masks, three files."""
    import pandas as pd

    path, out, format_, split_of = task
    frame = pd.read_csv(path) if format_ == "csv" else pd.read_parquet(path)
    frame["transaction_date"] = pd.to_datetime(frame["transaction_date"])
    before = frame["transaction_date"] < pd.to_datetime(SPLIT_DATE)
    customers = frame["customer_id"].map(split_of)
    frame["_split"] = None
    frame.loc[before, "_split"] = customers[before]
    frame.loc[~before & (customers != "train"), "_split"] = "oot"
    frame = frame[frame["_split"].notna()]
    counts = []
    for split in ("train", "val", "oot"):
        part = frame[frame["_split"] == split].drop("_split", axis=1)
        (out / split).mkdir(parents=True, exist_ok=True)
        if format_ == "csv":
            part.to_csv(out / split / path.name, index=False)
        else:
            part.to_parquet(out / split / path.name, index=False)
        counts.append(len(part))
    return counts


def run_pandas(source: Path, out: Path, workers: int, format_: str) -> dict[str, object]:
    """The two-pass design: customers collected shard by shard, their map pickled to every task of a process pool."""
    import random
    from multiprocessing import Pool

    import pandas as pd

    shards = sorted(source.iterdir())
    started = time.perf_counter()
    seen: set[str] = set()
    for path in shards:
        columns = ["transaction_date", "customer_id"]
        frame = (
            pd.read_csv(path)[columns]
            if format_ == "csv"
            else pd.read_parquet(path, columns=columns)
        )
        frame["transaction_date"] = pd.to_datetime(frame["transaction_date"])
        seen.update(frame[frame["transaction_date"] < SPLIT_DATE]["customer_id"].unique())
    customers = sorted(seen)
    random.Random(42).shuffle(customers)
    trains = int(len(customers) * 0.9)
    split_of = {
        customer: ("train" if place < trains else "val") for place, customer in enumerate(customers)
    }
    with Pool(workers) as pool:
        counts = pool.map(pandas_shard, [(path, out, format_, split_of) for path in shards])
    return {
        "seconds": time.perf_counter() - started,
        "rows": [sum(column) for column in zip(*counts, strict=True)],
    }


if __name__ == "__main__":
    name, source, out, workers, format_ = sys.argv[1:]
    run = {"polars": run_polars, "pandas": run_pandas, "rewrite": run_rewrite}[name]
    run(Path(source), Path(out), int(workers), format_)
