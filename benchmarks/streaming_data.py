"""The data of `streaming.py`: 28 numeric columns, the same with a text, sequences of tokens of uneven length, and CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

FLOATS, CATEGORIES = 20, 5
NUMBERS = [
    "id",
    "ts",
    *(f"f{i:02d}" for i in range(FLOATS)),
    *(f"c{i}" for i in range(CATEGORIES)),
    "label",
]
TOKENS = ["id", "input_ids", "loss_mask"]
CSV = ["id", "ts", *(f"f{i:02d}" for i in range(4)), "c0", "c1", "label"]
CSV_FILE = [*CSV, "c2", "name"]  # of which `CSV` is read
SHARDS, SHARD_ROWS = 64, 60_000
TEXT_SHARDS = 16
TOKEN_SHARDS, TOKEN_ROWS = 16, 8_500
CSV_SHARDS, CSV_ROWS = 8, 150_000


def make_data(root: Path) -> None:
    """Write what is missing; the same values each time."""
    folders: list[tuple[str, int, Callable[[int], pa.Table], int]] = [
        ("numbers", SHARDS, lambda shard: numbers(shard, SHARD_ROWS).select(NUMBERS), 10_000),
        ("texts", TEXT_SHARDS, lambda shard: numbers(shard, SHARD_ROWS), 10_000),
        ("tokens", TOKEN_SHARDS, tokens, 1_000),
        ("csv", CSV_SHARDS, lambda shard: numbers(shard, CSV_ROWS).select(CSV_FILE), 0),
    ]
    for folder, count, make, group in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for shard in range(count):
            path = root / folder / f"part-{shard:05d}.{'parquet' if group else 'csv'}"
            if path.exists():
                continue
            temporary = path.with_suffix(".making")
            if group:
                pq.write_table(make(shard), temporary, row_group_size=group, compression="snappy")
            else:
                pyarrow.csv.write_csv(make(shard), temporary)
            temporary.rename(path)


def numbers(shard: int, rows: int) -> pa.Table:
    """28 numeric columns and a text of about 20 characters."""
    random = np.random.default_rng([1, shard])
    ids = np.arange(shard * rows, (shard + 1) * rows)
    columns: dict[str, object] = {
        "id": ids,
        "ts": 1_700_000_000_000 + ids * 40 + random.integers(0, 40, rows),
    }
    for name in NUMBERS[2 : 2 + FLOATS]:
        columns[name] = random.standard_normal(rows, dtype=np.float32)
    for power in range(CATEGORIES):
        columns[f"c{power}"] = (random.random(rows) ** 3 * 10 ** (power + 1)).astype(np.int32)
    columns["label"] = (random.random(rows) < 0.1).astype(np.int8)
    towns = np.array(["Ghent", "Lyon", "Porto", "Turin", "Basel", "Graz", "Brno", "Cork"])
    streets = np.array(["mill", "weir", "sluice", "race"])
    kinds = zip(
        towns[random.integers(0, 8, rows)], streets[random.integers(0, 4, rows)], ids, strict=True
    )
    columns["name"] = [f"{town} {street} {number:08d}" for town, street, number in kinds]
    return pa.table(columns)


def tokens(shard: int) -> pa.Table:
    """Sequences of 8 to 4,096 tokens, log-normal lengths of about 620 on average, and which of them are trained on."""
    random = np.random.default_rng([2, shard])
    lengths = np.clip(
        random.lognormal(np.log(620) - 0.245, 0.7, TOKEN_ROWS).astype(np.int64), 8, 4096
    )
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = (random.random(offsets[-1]) ** 4 * 50_000).astype(np.int32)
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    trained = (inside >= np.repeat(lengths // 3, lengths)).astype(np.uint8)
    return pa.table(
        {
            "id": np.arange(shard * TOKEN_ROWS, (shard + 1) * TOKEN_ROWS),
            "input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values)),
            "loss_mask": pa.ListArray.from_arrays(pa.array(offsets), pa.array(trained)),
        }
    )
