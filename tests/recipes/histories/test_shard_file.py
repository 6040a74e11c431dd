"""Shards of rows: the bytes of ArrayRecord files stay what they are, and the rows in them come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pings import blobs_of

from headrace.digest import sha256_file
from headrace.histories.codec.rows import Encoded
from headrace.histories.shard_file import FACTS_SCHEMA, open_shard

pytest.importorskip(
    "array_record", reason="needs array-record, which comes with the extra histories"
)

# Blobs of every length up to 300, and two that go on across the blocks of 64 KiB that the file consists of.
BLOBS = [
    bytes((7 * place + size) % 256 for place in range(size))
    for size in (*range(300), 70_000, 200_000)
]
ARRAY_RECORD = "d7f774821cb2185d29b83c9c9cc5a1bcd6ce83567302683757566b0eb73b5206"


def written(path: Path, blobs: list[bytes]) -> str:
    """Write the blobs in two parts, as a partition of two slabs; the digest that the run would keep."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in blobs])])
    rows = Encoded(np.frombuffer(b"".join(blobs), np.uint8), offsets)
    metadata = pa.RecordBatch.from_pylist(
        [], schema=FACTS_SCHEMA
    )  # ArrayRecord has no place for them
    shard = open_shard(path, "array_record")
    for places in np.array_split(np.arange(len(blobs)), 2):
        shard.write(metadata, rows, places)
    return shard.finish(len(blobs)).digest


def test_array_record_shards_keep_their_bytes(tmp_path: Path) -> None:
    digest = written(tmp_path / "rows.array_record", BLOBS)

    assert ARRAY_RECORD == digest == sha256_file(tmp_path / "rows.array_record")


def test_array_record_shards_give_their_rows_back(tmp_path: Path) -> None:
    written(tmp_path / "rows.array_record", BLOBS)

    assert BLOBS == blobs_of(tmp_path / "rows.array_record")
