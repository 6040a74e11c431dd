"""A small prepared dataset directory for the adapters' tests: seven uneven shards, every train row known by its id."""

from __future__ import annotations

from pathlib import Path

import headrace

SHARDS = (90, 3, 41, 1, 128, 17, 60)


def prepare_dataset(root: Path) -> Path:
    """Columns row, entity, time, x, y; entities are single rows, so about a tenth of them validates."""
    raw = root / "raw"
    raw.mkdir()
    row = 0
    for shard, rows in enumerate(SHARDS):
        lines = ["row,entity,time,x,y"]
        for _ in range(rows):
            lines.append(
                f"{row},e{row},20{20 + row % 6:02d}-03-01T00:00:00,{row % 13 / 13:.4f},{row % 2}"
            )
            row += 1
        (raw / f"part-{shard:05d}.csv").write_text("\n".join(lines) + "\n")
    split = headrace.TemporalSplit(
        source=str(raw),
        time="time",
        entity="entity",
        split_date="2025-01-01",
        types={"row": "int64", "x": "float32", "y": "float32"},
    )
    headrace.prepare(split, root / "out")
    return root / "out"


def rows_of(path: Path, split: str) -> list[int]:
    """The ids of a split, sorted."""
    return sorted(
        row
        for batch in headrace.open(path).stream(split, batch_size=64)
        for row in batch["row"].tolist()
    )
