"""A small finished run of each recipe, and odd ones."""

import datetime
import json
import random
from pathlib import Path

from pings import dealt, histories, random_pings, write_pings

import headrace


def split_run(root: Path, *, nasty: str = "customer", **settings) -> Path:
    """Six shards of 90 rows over two years; shard 2 has no rows before the cutoff, shard 4 none behind, shard 5 none."""
    raw = root / "raw"
    raw.mkdir(parents=True)
    rng = random.Random(1)
    for shard in range(6):
        lines = [f"{nasty},time,x"]
        for row in range(90 if shard < 5 else 0):
            year = 2025 if shard == 2 else 2024 if shard == 4 else 2024 + row % 2
            entity = min(int(rng.expovariate(0.1)), 29) + (30 if year == 2025 and row % 3 else 0)
            lines.append(
                f"c{entity:03d},{year}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 28):02d} 10:00:00,{row}"
            )
        (raw / f"part-{shard:05d}.csv").write_text("\n".join(lines) + "\n")
    recipe = headrace.TemporalSplit(
        source=raw,
        time="time",
        entity=nasty,
        split_date="2025-01-01",
        **{"train_ratio": 0.7, **settings},
    )
    headrace.prepare(recipe, root / "out")
    return root / "out"


def packed_run(root: Path, **settings) -> Path:
    """Two datasets of token rows, some longer than a bin."""
    root.mkdir(parents=True)
    rng = random.Random(2)
    for name, rows in (("a", 120), ("b", 40)):
        with (root / f"{name}.jsonl").open("w") as file:
            for _ in range(rows):
                ids = [
                    rng.randrange(1, 99) for _ in range(min(300, 2 + int(rng.expovariate(0.03))))
                ]
                file.write(
                    json.dumps(
                        {"input_ids": ids, "loss_mask": [rng.randrange(2) for _ in ids[1:]] + [1]}
                    )
                    + "\n"
                )
    blend = [{"name": name, "path": str(root / f"{name}.jsonl")} for name in ("a", "b")]
    recipe = headrace.PackedSequences(
        blend=blend, pack_size=128, **{"too_long": "truncate", "pad_id": 0, "train_ratio": 0.8, "val_ratio": 0.1, "test_ratio": 0.1, **settings}
    )  # fmt: skip
    headrace.prepare(recipe, root / "out")
    return root / "out"


def histories_run(root: Path, **settings) -> Path:
    """Pings of 30 entities of very different sizes."""
    write_pings(root / "pings", dealt(random_pings(3, 4000, entities=30, span_s=500_000), 3))
    histories(root / "pings", root / "out", **{"max_row_bytes": "16KiB", **settings})
    return root / "out"


def rewrite_run(root: Path) -> Path:
    """The shards of a temporal split, rewritten."""
    headrace.prepare(headrace.Rewrite(source=split_run(root / "split")), root / "out")
    return root / "out"


def series_run(root: Path, *, entities: int = 6, **settings) -> Path:
    """Entities of daily values with gaps, that begin at different times; the last one is too short to pass."""
    raw = root / "raw"
    raw.mkdir(parents=True)
    rng = random.Random(4)
    for entity in range(entities):
        begin = datetime.date(2001, 1, 1) + datetime.timedelta(days=37 * entity)
        lines = ["date,rain,warmth,flow"]
        for day in range(20 if entity == entities - 1 else 300):
            gap = rng.random() < 0.05 * (1 + entity % 3)
            cells = [
                "" if gap else f"{rng.random():.3f}",
                f"{rng.random():.3f}",
                "" if rng.random() < 0.1 else f"{rng.random():.3f}",
            ]
            lines.append(f"{begin + datetime.timedelta(days=day)},{','.join(cells)}")
        (raw / f"probe_{entity:03d}.csv").write_text("\n".join(lines) + "\n")
    recipe = headrace.Series(
        source=raw,
        target="flow",
        future_features=("rain", "warmth"),
        min_train_years=0.3,
        **{"max_imputation_gap_size": 1, **settings},
    )
    headrace.prepare(recipe, root / "out")
    return root / "out"


RUNS = {
    "temporal_split": split_run,
    "packed_sequences": packed_run,
    "histories": histories_run,
    "rewrite": rewrite_run,
    "series": series_run,
}
