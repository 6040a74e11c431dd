"""Pages are trusted only of a shard whose digest this process found right, and only while the file stays that file."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace


def rewritten(tmp_path: Path) -> tuple[Path, headrace.Dataset]:
    pq.write_table(pa.table({"n": np.arange(5000)}), tmp_path / "a.parquet")
    run = headrace.rewrite(
        tmp_path / "a.parquet", tmp_path / "out", cache_dir=tmp_path / "cache"
    ).run
    return run / "data" / "a.parquet", headrace.open(tmp_path / "out")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.find((500).to_bytes(8, "little") + (501).to_bytes(8, "little"))
    assert at > 0
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["written over", "replaced"])
def test_damage_between_two_epochs_of_one_stream_is_not_delivered(how: str, tmp_path: Path) -> None:
    shard, dataset = rewritten(tmp_path)
    loader = dataset.stream(
        batch_size=1000, batch_format="numpy", shuffle=True, shuffle_rows=2000
    )  # from disk
    assert list(range(5000)) == sorted(int(n) for batch in loader for n in batch["n"])
    before = shard.stat()
    if how == "replaced":
        copy = tmp_path / "copy.parquet"
        copy.write_bytes(shard.read_bytes())
        flip(copy)
        os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(copy, shard)
    else:
        flip(shard)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns + 1))

    with pytest.raises(
        headrace.errors.CorruptShard,
        match=r"a\.parquet: its bytes are not those that were published",
    ):
        list(loader)


def test_pages_of_plain_shards_are_checked_on_every_read(tmp_path: Path) -> None:
    shard, _ = rewritten(tmp_path)
    plain = headrace.open(shard, cache_dir=tmp_path / "cache").block_reader()
    plain(0, None)
    before = shard.stat()
    flip(shard)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(headrace.errors.InputError, match=r"a\.parquet: row group 0.*CRC"):
        plain(0, None)
