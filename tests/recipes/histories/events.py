"""Small sources of events with texts and value columns, and what their histories must hold."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from headrace.contexts import read_measurements
from headrace.histories.config import Histories
from headrace.run.prepare import Prepared, prepare

VALUES = {
    "amount": "float32",
    "count": "int32",
    "kind": "category",
    "ticket": "int64",
    "score": "float64",
}
COLUMNS = ("user", "page", "when", *sorted(VALUES))


def random_events(
    seed: int, count: int, *, users: int = 20, span_s: int = 500
) -> list[dict[str, Any]]:
    """In no order, with ties in time, doubles, missing values, and ids of 64 bits as numbers."""
    rng = random.Random(seed)
    events = [
        {
            "user": f"user {min(int(rng.expovariate(0.3)), users - 1)}",
            "page": rng.choice(["/", "/Ω", "/a", "/a/b", "9" * 30]),
            "when": 1_700_000_000_000_000
            + rng.randrange(span_s) * 1_000_000
            + rng.choice([0, 0, 5]),
            "amount": rng.choice([None, float("nan"), -0.0, 1.5, rng.uniform(-9, 9)]),
            "count": rng.choice([None, 0, -3, 2**31 - 1]),
            "kind": rng.choice([None, "", "view", "buy", "cart"]),
            "ticket": rng.choice([None, rng.randrange(-(2**62), 2**62)]),
            "score": rng.choice([None, rng.random()]),
        }
        for _ in range(count)
    ]
    events += rng.choices(events, k=count // 20)
    rng.shuffle(events)
    return events


def write_events(directory: Path, events: Sequence[dict[str, Any]], shards: int) -> Path:
    """Write a Parquet file per shard."""
    directory.mkdir(parents=True)
    schema = {
        "user": pl.String,
        "page": pl.String,
        "when": pl.Int64,
        "amount": pl.Float64,
        "count": pl.Int64,
    }
    schema |= {"kind": pl.String, "ticket": pl.Int64, "score": pl.Float64}
    for number in range(shards):
        frame = pl.DataFrame(events[number::shards], schema=schema)
        frame.with_columns(pl.col("when").cast(pl.Datetime("us"))).write_parquet(
            directory / f"part-{number}.parquet", row_group_size=300
        )
    return directory


def event_histories(source: Path, out: Path, *, workers: int = 1, **settings: Any) -> Prepared:
    """Prepare the events: texts as entity and peer, and all value columns."""
    asked = {
        "entity": "user",
        "entity_kind": "text",
        "peer": "page",
        "peer_kind": "text",
        "time": "when",
    }
    asked |= {"values": VALUES, "partitions": 3, "train_ratio": 0.6, "format": "arrow"}
    return prepare(Histories(source=source, **{**asked, **settings}), out, workers=workers)


def read_back(prepared: Prepared) -> pl.DataFrame:
    """Read the measurements of both splits, in their order."""
    batches = [
        batch for split in ("train", "test") for batch in read_measurements(prepared.out, split)
    ]
    frame = pl.concat([pl.DataFrame(batch) for batch in batches], how="vertical_relaxed")
    return frame.with_columns(
        pl.col("user", "page", "kind").cast(pl.String), pl.col("when").dt.epoch("s")
    )


def expected_events(events: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Compute what a history keeps of each event, one at a time, sorted; minus zero is zero."""
    kept = []
    for event in events:
        row = dict(event, when=event["when"] // 1_000_000, kind=event["kind"] or None)
        for name, round_ in (
            ("amount", lambda x: pl.Series([x + 0.0], dtype=pl.Float32).item()),
            ("score", float),
        ):
            row[name] = None if row[name] is None or row[name] != row[name] else round_(row[name])
        kept.append(tuple(row[name] for name in COLUMNS))
    return sorted(kept, key=str)


def rows_of(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Give the rows of what was read back, sorted."""
    return sorted((tuple(row) for row in frame.select(COLUMNS).iter_rows()), key=str)
