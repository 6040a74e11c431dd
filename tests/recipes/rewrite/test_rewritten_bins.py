"""Packed bins stay packed over a rewrite: their files go on saying where the masks stand."""

import json

import numpy as np
import pytest

import headrace
from raised import raised

IDS, MASK, STARTS = np.arange(5, 11), np.array([1, 1, 0, 1, 0, 0]), np.array([0, 3])


def batches_of(path, cache):
    stream = headrace.open(path, cache_dir=cache).stream(
        "train", batch_size=3, batch_format="numpy"
    )
    return [{name: np.asarray(array).tolist() for name, array in batch.items()} for batch in stream]


def write_bins(path, alignment):
    metadata = {} if alignment is None else {"headrace.loss_mask_alignment": alignment}
    with headrace.ParquetShardWriter(path, metadata=metadata) as writer:
        writer.write_bin(0, IDS, MASK, STARTS)


@pytest.mark.parametrize("shard_bytes", [None, 1 << 20])
def test_a_rewritten_run_of_bins_streams_the_same_batches(tmp_path, shard_bytes):
    rows = [
        {"input_ids": list(range(n, n + 4 + n % 9)), "loss_mask": [0, 0] + [1] * (2 + n % 9)}
        for n in range(1, 90)
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = headrace.PackedSequences(
        blend=tmp_path / "chats.jsonl", pack_size=32, num_shards=2, reader="headrace"
    )
    headrace.prepare(recipe, tmp_path / "packed")
    headrace.rewrite(
        tmp_path / "packed",
        tmp_path / "fast",
        shard_bytes=shard_bytes,
        cache_dir=tmp_path / "cache",
    )
    packed = batches_of(tmp_path / "packed", tmp_path / "cache")

    assert "labels" in packed[0]
    assert packed == batches_of(tmp_path / "fast", tmp_path / "cache")


def test_each_plain_shard_of_bins_keeps_its_own_word(tmp_path):
    (tmp_path / "raw").mkdir()
    for name, alignment in (("a", "shift_left"), ("b", "legacy_roll_right")):
        write_bins(tmp_path / "raw" / f"{name}.parquet", alignment)
    headrace.rewrite(tmp_path / "raw", tmp_path / "out", cache_dir=tmp_path / "cache")
    labels = [
        next(iter(headrace.open(path, cache_dir=tmp_path / "cache").stream(batch_size=2)))[
            "labels"
        ].tolist()
        for path in (tmp_path / "raw", tmp_path / "out")
    ]

    assert labels[0] == labels[1]


@pytest.mark.parametrize("other", ["legacy_roll_right", None])
def test_shards_of_unlike_masks_are_not_put_together(tmp_path, other):
    (tmp_path / "raw").mkdir()
    for name, alignment in (("a", "shift_left"), ("b", other)):
        write_bins(tmp_path / "raw" / f"{name}.parquet", alignment)
    with raised(
        headrace.InputError, path=tmp_path / "raw" / "b.parquet", remedy="leave shard_bytes out"
    ):
        headrace.rewrite(
            tmp_path / "raw", tmp_path / "out", shard_bytes=1 << 20, cache_dir=tmp_path / "cache"
        )


def test_only_rewrites_of_bins_have_the_version_of_their_layout_in_their_identity(tmp_path):
    (tmp_path / "raw").mkdir()
    write_bins(tmp_path / "raw" / "a.parquet", "shift_left")
    bins = headrace.Rewrite(source=[tmp_path / "raw"])
    part = headrace.Rewrite(source=[tmp_path / "raw"], columns=["input_ids"])
    others = {"source", "cache_dir", "shuffle_seed", "drop_columns"}
    settings = part.model_dump(mode="json", exclude=others)

    assert {**settings, "columns": None, "source_run": None, "bins": 1} == bins.identity_settings()
    assert {**settings, "source_run": None} == part.identity_settings()
