"""The index of many files says of each what the file says itself, in every order of threads, and is made once."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.dataset import plain
from headrace.errors import CorruptShard, InputError
from laws import examples
from tables import fresh, write_rows


def write(directory: Path, sizes: list[list[int]]) -> Path:
    """A Parquet file for each list, a row group for each size."""
    for number, groups in enumerate(sizes):
        with pq.ParquetWriter(
            directory / f"part-{number:04d}.parquet", pa.schema([("n", pa.int64())])
        ) as writer:
            for rows in groups:
                writer.write_table(pa.table({"n": np.arange(rows)}))
    return directory


@settings(max_examples=examples(40))
@given(sizes=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=12))
def test_blocks_are_the_row_groups_that_hold_rows(tmp_path_factory, sizes: list[list[int]]) -> None:
    where = fresh(tmp_path_factory.getbasetemp())
    dataset = headrace.open(write(where, sizes), cache_dir=where / "cache")
    expected = [(f"part-{f:04d}.parquet", g, rows) for f, groups in enumerate(sizes) for g, rows in enumerate(groups) if rows]  # fmt: skip
    index = dataset.split_index()

    assert expected == [(index.shards[s], b, r) for s, b, r in zip(index.shard_of_block, index.block.tolist(), index.rows.tolist(), strict=True)]  # fmt: skip
    assert {"all": sum(map(sum, sizes))} == dataset.split_rows
    assert ("parquet",) * len(index.shards) == index.formats
    assert list(index.shards) == sorted({name for name, _, _ in expected})
    assert [
        sum(index.rows[:block].tolist()) for block in range(len(expected))
    ] == index.first_row.tolist()


@pytest.mark.slow
def test_files_of_all_kinds_are_indexed_together(tmp_path: Path) -> None:
    for number in range(150):
        kind = ("parquet", "arrow", "csv", "jsonl")[number % 4]
        path = tmp_path / f"part-{number:03d}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"n": [number] * 2}), path)
        elif kind == "arrow":
            table = pa.table({"n": [number] * 2})
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)
        else:
            path.write_text(
                f"n\n{number}\n{number}\n" if kind == "csv" else f'{{"n": {number}}}\n' * 2
            )
    calls: list[tuple[int, int]] = []
    dataset = headrace.open(
        tmp_path, cache_dir=tmp_path / "cache", on_progress=lambda *call: calls.append(call)
    )
    rows = [n for b in dataset.stream(batch_size=50, batch_format="arrow", remainder="exact") for n in b["n"].to_pylist()]  # fmt: skip

    assert [number for number in range(150) for _ in range(2)] == rows
    assert (150, 150) in calls
    assert ("parquet", "arrow", "csv", "jsonl") == dataset.split_index().formats[:4]


def test_an_index_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [[3], [4], [5]])
    first = headrace.open(tmp_path, cache_dir=tmp_path / "cache").split_index()
    monkeypatch.setattr(plain, "build", lambda *_: pytest.fail("the index is made again"))
    again = headrace.open(tmp_path, cache_dir=tmp_path / "cache").split_index()

    assert first.identity == again.identity


@pytest.mark.slow
def test_the_index_is_the_same_for_any_number_of_threads(tmp_path: Path) -> None:
    write(tmp_path, [[n % 5 + 1] for n in range(300)])
    indexes = [
        plain.open_plain(tmp_path, workers=n, cache_dir=tmp_path / f"c{n}") for n in (1, 2, 7)
    ]

    assert 1 == len({each.contents for each in indexes})
    assert all(indexes[0].index.data.equals(each.index.data) for each in indexes)


@pytest.mark.parametrize("odd", [0, 130, 199])
def test_a_file_that_differs_or_is_damaged_is_named_among_many(odd: int, tmp_path: Path) -> None:
    write(tmp_path, [[2]] * 200)
    path = tmp_path / f"part-{odd:04d}.parquet"
    pq.write_table(pa.table({"n": ["text"]}), path)

    with pytest.raises(InputError, match="column '?n'? is "):
        headrace.open(tmp_path, cache_dir=tmp_path / "cache")
    path.write_bytes(b"PAR1\x00\x15 cut short")
    with pytest.raises(InputError, match=rf"part-{odd:04d}\.parquet: cannot be read"):
        headrace.open(tmp_path, cache_dir=tmp_path / "cache")
    path.write_bytes(b"n\n1\n")
    with pytest.raises(InputError, match="the name says parquet, the content is text"):
        headrace.open(tmp_path, cache_dir=tmp_path / "cache")


def test_nulls_in_one_file_of_many_make_the_column_nullable(tmp_path: Path) -> None:
    required = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    for number in range(200):
        pq.write_table(pa.table({"n": [2]}, required), tmp_path / f"part-{number:04d}.parquet")
    assert not headrace.open(tmp_path, cache_dir=tmp_path / "cache").schema.field("n").nullable
    pq.write_table(pa.table({"n": pa.array([1, None])}), tmp_path / "part-0150.parquet")

    assert headrace.open(tmp_path, cache_dir=tmp_path / "cache").schema.field("n").nullable


def test_a_shard_that_changes_after_it_was_indexed_is_not_read_by_the_old_index(
    tmp_path: Path,
) -> None:
    for extension in ("csv", "parquet", "jsonl"):
        path = write_rows(
            tmp_path / extension / f"a.{extension}", ("x",), [(str(n),) for n in range(100)]
        )
        dataset = headrace.open(path, cache_dir=tmp_path / "cache")
        write_rows(path, ("x",), [(str(n),) for n in range(1000, 1100)])

        with pytest.raises(CorruptShard, match=rf"a\.{extension}: changed after it was indexed"):
            list(dataset.stream(batch_size=10))
        assert 1000 == int(
            next(
                iter(
                    headrace.open(path, cache_dir=tmp_path / "cache").stream(
                        batch_size=100, shuffle=False
                    )
                )
            )["x"][0]
        )


def test_a_shard_rewritten_with_its_size_and_time_is_indexed_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "1\n" * 50)
    first = headrace.open(path, cache_dir=tmp_path / "cache")
    stat = path.stat()
    path.write_text("x\n" + "11\n" * 32 + "111\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    second = headrace.open(path, cache_dir=tmp_path / "cache")

    assert stat.st_size == path.stat().st_size
    assert (50, 33) == (first.split_rows["all"], second.split_rows["all"])
