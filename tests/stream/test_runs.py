"""Adjacent row groups are decoded together in file order: the same rows, and errors that name the block."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import HeadraceError
from headrace.formats import parquet
from headrace.stream.read.ahead import Fetcher

ROWS, GROUP_ROWS = 4_000, 100


@pytest.fixture
def shards(tmp_path):
    """Three files of 40 row groups, of columns that numpy holds and others."""
    random = np.random.default_rng(5)
    for shard in range(3):
        lengths = random.integers(0, 5, ROWS)
        table = pa.table(
            {
                "row": np.arange(ROWS) + shard * ROWS,
                "half": random.random(ROWS, np.float32),
                "word": [f"word {number}" for number in random.integers(0, 50, ROWS)],
                "ids": pa.ListArray.from_arrays(
                    pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32()),
                    pa.array(random.integers(0, 9, lengths.sum())),
                ),
            }
        )
        pq.write_table(table, tmp_path / f"part-{shard}.parquet", row_group_size=GROUP_ROWS)
    return tmp_path


@pytest.fixture
def calls(monkeypatch):
    """How many row groups each call reads."""
    counts = []
    read = parquet.read_groups

    def counted(block, columns):
        counts.append(block.count)
        return read(block, columns)

    monkeypatch.setattr(parquet, "read_groups", counted)
    return counts


def rows_of(stream):
    return np.concatenate([batch["row"] for batch in stream])


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_rows_of_each_rank_are_those_of_the_files(shards, calls, ranks):
    dataset = headrace.open(shards)
    table = pa.concat_tables(pq.read_table(path) for path in sorted(shards.glob("*.parquet")))
    rows = []
    for rank in range(ranks):
        topology = headrace.Topology(rank=rank, world_size=ranks)
        stream = dataset.stream(
            batch_size=64, batch_format="arrow", topology=topology, remainder="pad"
        )
        batches = [batch.filter(batch["valid"]).drop_columns("valid") for batch in stream]
        rows.append(pa.concat_tables(batches))
    received = pa.concat_tables(rows).sort_by("row")

    assert received.select(table.column_names).equals(table)
    assert 3 * ROWS // GROUP_ROWS <= sum(calls) <= 3 * ROWS // GROUP_ROWS + 2 * ranks
    assert max(calls) > 8


def test_a_split_that_is_kept_is_read_in_runs(shards, calls):
    stream = headrace.open(shards).stream(batch_size=64, shuffle=True, batch_format="numpy")

    assert np.array_equal(np.sort(rows_of(stream)), np.arange(3 * ROWS))
    assert max(calls) > 8


def test_a_damaged_block_of_a_run_is_the_one_that_is_named(shards, calls):
    path = sorted(shards.glob("*.parquet"))[1]
    chunk = pq.ParquetFile(path).metadata.row_group(17).column(0)
    content = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin : begin + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(content)
    stream = headrace.open(shards).stream(batch_size=GROUP_ROWS, batch_format="numpy")
    received = 0
    with pytest.raises(HeadraceError) as error:
        for _ in stream:
            received += 1

    assert f"{path.name}" in str(error.value.path)
    assert "block 17" in f"{error.value.path} {error.value.row}"
    assert max(calls) > 8


def test_a_damaged_block_costs_its_own_rows_alone(shards):
    path = sorted(shards.glob("*.parquet"))[0]
    chunk = pq.ParquetFile(path).metadata.row_group(3).column(0)
    content = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin : begin + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(content)
    stream = headrace.open(shards).stream(
        batch_size=GROUP_ROWS, batch_format="numpy", on_bad_block="quarantine"
    )
    received = np.concatenate([batch["row"][batch["valid"]] for batch in stream])

    missing = np.setdiff1d(np.arange(3 * ROWS), received)
    assert np.array_equal(missing, np.arange(3 * GROUP_ROWS, 4 * GROUP_ROWS))


def test_no_block_waits_for_others_that_nobody_announces():
    """A run may grow, but what is asked for is decoded."""
    decoded = []

    def decode(blocks):
        decoded.append(blocks)
        return [{"x": np.full(100, block)} for block in blocks]

    continues = np.array([False] + 30 * [True])
    with Fetcher(
        decode,
        lambda _: 100,
        continues,
        threads=2,
        ahead_bytes=1 << 20,
        ahead_blocks=9,
        keep="views",
    ) as blocks:
        for block in range(20):
            blocks.announce([(block, 0, 100)])
        for block in range(20):
            (columns,) = blocks.get([(block, 0, 100)])
            assert [block] * 100 == columns["x"].tolist()
            blocks.release([(block, 0, 100)])

    assert list(range(20)) == [block for run in decoded for block in run]
    assert len(decoded) < 10


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("rows", [1, 300, 20_000])
def test_what_a_loop_writes_is_in_no_later_delivery_of_the_row(tmp_path, rows, shuffle):
    """A row comes several times in an epoch, whether its source is small, kept or decoded again."""
    lengths = np.arange(rows) % 4 + 1
    values = np.repeat(np.arange(rows), lengths)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    table = pa.table(
        {"row": np.arange(rows), "ids": pa.ListArray.from_arrays(offsets, pa.array(values))}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4_000)
    stream = headrace.open(tmp_path).stream(
        batch_size=64,
        shuffle=shuffle,
        batch_format="torch",
        samples_per_epoch=max(1_000, 2 * rows + 100),
        memory_bytes=1 << 20,
    )
    seen = 0
    for batch in stream:
        numbers = batch["row"].tolist()
        for number, ids in zip(numbers, batch["ids"], strict=True):
            assert ids.tolist() == [number] * (number % 4 + 1)
        seen += len(numbers)
        batch["row"] += 1_000_000
        for ids in batch["ids"]:
            ids += 1_000_000
    assert seen >= 2 * rows
    numbers_alone = headrace.open(tmp_path).stream(
        batch_size=64,
        columns=["row"],
        shuffle=shuffle,
        batch_format="numpy",
        samples_per_epoch=2 * rows + 100,
    )
    for batch in numbers_alone:
        assert batch["row"].max(initial=0) < rows
        batch["row"] += 1_000_000
