"""A kept index is used exactly while it is that of the files as they are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

import headrace
from headrace.dataset import plain
from headrace.dataset.stored_index import map_index, parse_stored, stored_bytes
from headrace.errors import CorruptShard
from raised import raised


def shards(directory: Path, sizes: list[list[int]] | None = None) -> Path:
    """A Parquet file for each list, a row group for each size; rows count on through all files."""
    directory.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, groups in enumerate([[3, 2], [4], [1]] if sizes is None else sizes):
        with pq.ParquetWriter(
            directory / f"part-{number:04d}.parquet", pa.schema([("n", pa.int64())])
        ) as writer:
            for rows in groups:
                writer.write_table(pa.table({"n": np.arange(first, first + rows)}))
                first += rows
    return directory


def rows_of(dataset, **options) -> list[int]:
    loader = dataset.stream(batch_size=4, batch_format="arrow", remainder="exact", **options)
    return [value for batch in loader for value in batch["n"].to_pylist()]


def index_of(raw: Path, cache: Path) -> Path:
    headrace.open(raw, cache_dir=cache)
    (path,) = cache.glob("index-*.arrows")
    return path


def test_the_identity_that_is_kept_is_that_of_the_blocks(tmp_path: Path) -> None:
    index = headrace.open(shards(tmp_path / "raw"), cache_dir=tmp_path / "cache").split_index()

    assert replace(index).identity == index.identity
    assert (
        replace(index, shards=tuple(index.shards), checksums=tuple(index.checksums)).identity
        == index.identity
    )


def _with_own_digest(data: bytes) -> bytes:
    return data[:-16] + xxhash.xxh3_128_digest(data[:-16])


def test_a_damaged_index_is_never_used(tmp_path: Path) -> None:
    raw = shards(tmp_path / "raw")
    path = index_of(raw, tmp_path / "one")
    whole = path.read_bytes()
    flips = [(at, bit) for at in range(0, len(whole), 13) for bit in (0, 7)]
    damaged = [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at, bit in flips]
    cut = [whole[:at] for at in range(0, len(whole), 29)]

    for data in (*damaged, *cut, b"", b"ARROW1", whole + b"\0"):
        with raised(CorruptShard, path=path, remedy="delete it"):
            parse_stored(data, path)
    path.unlink()  # it is mapped
    path.write_bytes(cut[-1])
    assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "one"))


@pytest.mark.slow
def test_an_index_that_was_made_to_harm_ends_in_an_error_or_is_an_index(tmp_path: Path) -> None:
    path = index_of(shards(tmp_path / "raw"), tmp_path / "one")
    whole, refused, taken = path.read_bytes(), 0, 0
    for at in range(len(whole) - 16):
        data = _with_own_digest(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            index = parse_stored(data, path)
        except CorruptShard:
            refused += 1
            continue
        taken += 1
        for each in index.splits.values():
            assert each.total_rows < 1 << 48
            assert all(
                isinstance(name, str) for name in (*each.shards, *each.formats, *each.checksums)
            )
            assert (each.rows > 0).all()

    assert refused > taken > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"shards": ("../a.parquet", "/etc/passwd", "part-0002.parquet")},
            "it has files outside|not in their order",
        ),
        ({"shards": ("/etc/a", "/etc/b", "/etc/passwd")}, "it has files outside"),
        (
            {"shards": ("part-0000.parquet", "part-0001.parquet", "part-0007.parquet")},
            "it has 'part-0007.parquet'",
        ),
        (
            {"shards": ("part-0001.parquet", "part-0000.parquet", "part-0002.parquet")},
            "not in their order",
        ),
        ({"rows": np.array([3, 2, 1 << 50, 1])}, "rows holds what is not a place or a count"),
        ({"rows": np.array([3, 2, 0, 1])}, "rows holds what is not a place or a count"),
        ({"offset": np.array([0, 0, -8, 0])}, "offset holds what is not a place or a count"),
        ({"shard_of_block": np.array([0, 0, 1, 3])}, "its blocks are not those of its shards"),
        ({"shard_of_block": np.array([0, 0, 1, 1])}, "its blocks are not those of its shards"),
        ({"shard_of_block": np.array([0, 1, 0, 2])}, "its blocks are not those of its shards"),
        ({"block": np.array([1, 1, 0, 0])}, "the blocks of a shard are not in their order"),
        ({"length": np.array([1, 1, 1])}, "blocks and what is said of them differ in number"),
        ({"formats": ("parquet",) * 4}, "shards and what is said of them differ in number"),
        ({"stamps": np.zeros((3, 2), np.int64)}, "files have other sizes or times"),
        ({"split": "train"}, "its splits are not all"),
    ],
    ids=str,
)
def test_an_index_of_other_blocks_is_not_used(change: dict, reason: str, tmp_path: Path) -> None:
    raw = shards(tmp_path / "raw")
    path = index_of(raw, tmp_path / "one")
    index = map_index(path)
    altered = replace(index.split("all"), **change)
    path.unlink()  # it is mapped
    path.write_bytes(stored_bytes([altered], index.schema, index.dialect, index.files))

    with pytest.raises(CorruptShard, match=reason):
        plain._IndexRequest([raw], cache_dir=tmp_path / "one").mapped()
    assert list(range(10)) == rows_of(headrace.open(raw, cache_dir=tmp_path / "one"))
    assert map_index(path).split("all").identity == index.split("all").identity
