"""One dataset from end to end in every kind of store: prepared there, opened, streamed, verified, resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_cases import rows_of, split_of, tree, upload, write_raw

import headrace


@pytest.mark.smoke("s3", "az")
@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_a_dataset_is_made_and_read(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bucket = request.getfixturevalue(kind)
    raw = write_raw(tmp_path / "raw", shards=3)
    upload(raw, f"{bucket}/raw")
    settings = {"format": "parquet", "types": {"row": "int64"}}
    local = headrace.prepare(split_of(str(raw), **settings), tmp_path / "out", workers=1)

    made = headrace.prepare(
        split_of(f"{bucket}/raw", **settings), f"{bucket}/out", work_dir=tmp_path / "work"
    )
    again = headrace.prepare(
        split_of(f"{bucket}/raw", **settings), f"{bucket}/out", work_dir=tmp_path / "work"
    )

    assert again.how == "reused"
    assert headrace.verify(f"{bucket}/out").problems == []
    for split in ("train", "val", "test"):
        here = rows_of(headrace.open(local.run), split, shuffle=True)
        assert rows_of(headrace.open(f"{bucket}/out"), split, shuffle=True) == here
    assert {name for name in tree(made.run) if name.endswith(".parquet")} == {
        name for name in tree(local.run) if name.endswith(".parquet")
    }
