"""A corrupt byte is never delivered: a stream checks each shard of a run against its digest before it reads it."""

from pathlib import Path

import numpy as np
import pytest

import headrace

KINDS = [
    ("csv", "none"),
    ("csv", "zst"),
    ("jsonl", "none"),
    ("parquet", "lz4"),
    ("parquet", "none"),
]


def prepared(tmp_path: Path, kind: str, compression: str) -> Path:
    """One shard of 300 rows."""
    source = tmp_path / "raw.csv"
    rows = [f"e{n % 30:02d},{2024 + (n % 30 > 20)}-05-06,{n}" for n in range(300)]
    source.write_text("id,date,x\n" + "\n".join(rows) + "\n")
    recipe = headrace.TemporalSplit(
        source=source,
        time="date",
        entity="id",
        split_date="2025-01-01",
        format=kind,
        compression=compression,
        types={"x": "int64"},
    )
    run = headrace.prepare(recipe, tmp_path / "out").run
    return next((run / "training_data" / "train").iterdir())


def delivered(tmp_path: Path) -> list[str]:
    loader = headrace.open(tmp_path / "out").stream(
        "train", batch_size=64, shuffle=True, batch_format="numpy"
    )
    return sorted(str(x) for batch in loader for x in batch["id"])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "compression"), KINDS)
def test_no_flipped_byte_is_delivered(tmp_path: Path, kind: str, compression: str) -> None:
    shard = prepared(tmp_path, kind, compression)
    expected, whole = delivered(tmp_path), shard.read_bytes()
    assert expected

    for at in np.linspace(0, len(whole) - 1, 40).astype(int).tolist():
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        shard.write_bytes(damaged)
        with pytest.raises(headrace.errors.CorruptShard, match=shard.name):
            delivered(tmp_path)

    shard.write_bytes(whole)
    assert expected == delivered(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shard = prepared(tmp_path, "csv", "none")
    shard.unlink()

    with pytest.raises(headrace.errors.CorruptShard, match=f"{shard.name}: is missing"):
        delivered(tmp_path)


def test_a_shard_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    shard = prepared(tmp_path, "parquet", "none")
    shard.write_bytes(shard.read_bytes()[:-1])

    with pytest.raises(headrace.errors.CorruptShard, match=shard.name):
        delivered(tmp_path)
