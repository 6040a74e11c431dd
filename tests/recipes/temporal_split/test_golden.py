"""The bytes of a split and the identity of a run are pinned: they may change only with the format version."""

import os
from pathlib import Path

import headrace
from headrace.digest import sha256_file

ROWS = "\r\n".join(
    [
        "id,when,note",
        *(f'{n * 7919 % 23:03d},{2024 + n % 2}-0{n % 9 + 1}-11,"n {n}, ""q"""' for n in range(120)),
        "",
    ]
)
SHARDS = {
    "train": "e92e6d2a9c8e2f98",
    "val": "2177fb83b77285ff",
    "test": "e2de5b1a1c8c0937",
}
RUN_ID = "c64a7d71-cfbe-5514-ba60-4b79afc37da6"


def split(tmp_path: Path) -> headrace.types.Prepared:
    source = tmp_path / "part-00007.csv"
    source.write_bytes(ROWS.encode())
    os.utime(source, ns=(0, 0))
    recipe = headrace.TemporalSplit(
        source=source, time="when", entity="id", split_date="2025-01-01", train_ratio=0.6
    )
    return headrace.prepare(recipe, tmp_path / "out")


def test_the_bytes_of_a_split_are_pinned(tmp_path: Path) -> None:
    run = split(tmp_path).run
    found = {
        name: sha256_file(run / "training_data" / name / "part-00007.csv")[:16] for name in SHARDS
    }

    assert SHARDS == found


def test_the_identity_of_a_run_is_pinned(tmp_path: Path) -> None:
    assert RUN_ID == split(tmp_path).manifest.run_id
