"""verify= of a stream: a shard's digest at first touch, or only what its blocks can show; and what quarantine then costs."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import headrace


def prepared(root: Path, kind: str) -> list[Path]:
    """Two train shards of about 180 rows each."""
    (root / "raw").mkdir()
    for shard in range(2):
        rows = [f"e{n},2024-05-06,{n}" for n in range(shard * 200, shard * 200 + 200)]
        (root / "raw" / f"part-{shard}.csv").write_text("id,date,x\n" + "\n".join(rows) + "\n")
    recipe = headrace.TemporalSplit(
        source=str(root / "raw"),
        time="date",
        entity="id",
        split_date="2025-01-01",
        format=kind,
        types={"x": "int64"},
    )
    return sorted(
        (headrace.prepare(recipe, root / "out").run / "training_data" / "train").iterdir()
    )


def rows_of(root: Path, **options) -> list[int]:
    batches = headrace.open(root / "out").stream(
        "train", batch_size=64, batch_format="numpy", **options
    )
    return sorted(
        row
        for batch in batches
        for row in batch["x"][batch.get("valid", np.ones(len(batch["x"]), bool))]
    )


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_first_touch_is_the_default_and_never_leaves_it_to_the_pages(tmp_path):
    shard, _ = prepared(tmp_path, "parquet")
    place = pq.ParquetFile(shard).metadata.row_group(0).column(2)
    flip(shard, place.data_page_offset + place.total_compressed_size - 4)

    with pytest.raises(
        headrace.errors.CorruptShard, match="its bytes are not those that were published"
    ):
        rows_of(tmp_path)
    with pytest.raises(
        headrace.errors.CorruptShard, match=rf"{shard.name} block 0: .*row group 0: .*checksum"
    ):
        rows_of(tmp_path, verify="never")


def test_never_delivers_what_text_cannot_show(tmp_path):
    shard, _ = prepared(tmp_path, "csv")
    expected = rows_of(tmp_path)
    last = len(shard.read_bytes().rstrip()) - 1
    row = int(shard.read_text().rstrip().rpartition(",")[2])
    flip(shard, last)  # the last digit of a number, which becomes its neighbour

    digit = int(chr(shard.read_bytes()[last]))
    changed = row // 10 * 10 + digit

    assert changed != row
    assert rows_of(tmp_path, verify="never") == sorted(
        [*(each for each in expected if each != row), changed]
    )
    with pytest.raises(headrace.errors.CorruptShard, match=shard.name):
        rows_of(tmp_path)


def test_quarantine_costs_the_shard_whose_digest_is_wrong(tmp_path):
    shard, _ = prepared(tmp_path, "csv")
    everything = rows_of(tmp_path)
    kept = [row for row in everything if row >= 200]
    flip(shard, 300)

    assert rows_of(tmp_path, on_bad_block="quarantine", quarantine_limit=0.6) == kept
    assert 0 < len(kept) < len(everything)


def test_another_word_is_refused(tmp_path):
    prepared(tmp_path, "csv")

    with pytest.raises(
        headrace.SettingsError, match="verify is 'sometimes'; expected one of first_touch, never"
    ):
        rows_of(tmp_path, verify="sometimes")
