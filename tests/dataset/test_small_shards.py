"""Blocks of small shards that are read together hold the rows that each of them holds alone."""

import json
import os
import pickle

import pyarrow as pa
import pytest

import headrace
from headrace.dataset.indexed import BlockReader
from headrace.errors import CorruptShard, InputError
from raised import raised


def write_shards(directory, ending, count=300):
    directory.mkdir()
    for number in range(count):
        rows = [{"id": number, "name": f'n"{number}', "x": number / 4}] * (1 + number % 3)
        if ending == "csv":
            lines = [f'{row["id"]},"n""{row["id"]}",{row["x"]}' for row in rows]
            text = "\n".join(["id,name,x", *lines])
        else:
            text = "\n".join(map(json.dumps, rows))
        (directory / f"part-{number:04d}.{ending}").write_text(text + "\n" * (number % 2))
    return directory


def opened(directory, **settings):
    return headrace.open(directory, cache_dir=directory.parent / "cache", **settings)


def readers_of(directory, **settings):
    """A reader that reads blocks together, and one that reads each alone."""
    dataset = opened(directory, **settings)
    together = dataset.block_reader()
    alone = BlockReader(dataset.root, dataset.split_index(), dataset.dialect)
    alone._small = None
    return dataset.split_index(), together, alone


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("columns", [None, ["x"], ["x", "name"], []])
def test_blocks_read_together_and_alone_are_equal(tmp_path, ending, columns):
    index, together, alone = readers_of(
        write_shards(tmp_path / "raw", ending), schema_drift="widen"
    )
    assert together._small.holds(0)
    for block in [5, 4, *range(len(index.rows)), 7]:
        assert alone(block, columns).equals(together(block, columns))


def test_shards_that_differ_are_read_by_their_own_columns(tmp_path):
    directory = write_shards(tmp_path / "raw", "csv", count=40)
    for number in range(10, 20):
        (directory / f"part-{number:04d}.csv").write_text("name,extra\na,1\nb,2\n")
    index, together, alone = readers_of(directory, schema_drift="widen")
    for block in range(len(index.rows)):
        assert alone(block, None).equals(together(block, None))


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_changed_or_missing_shard_is_named_and_its_neighbours_are_read(tmp_path, ending):
    directory = write_shards(tmp_path / "raw", ending, count=20)
    index, together, alone = readers_of(directory, types=None, schema_drift="widen")
    changed, missing = directory / f"part-0003.{ending}", directory / f"part-0005.{ending}"
    expected = [alone(block, None) for block in range(len(index.rows))]
    size = changed.stat().st_size
    changed.write_bytes(changed.read_bytes().replace(b"3", b"4"))
    assert size == changed.stat().st_size
    missing.unlink()
    for block in range(len(index.rows)):
        if block in (3, 5):
            with raised(CorruptShard, path=(changed if block == 3 else missing)):
                together(block, None)
        else:
            assert expected[block].equals(together(block, None))


def test_a_shard_that_changes_after_it_was_read_with_others_is_refused(tmp_path):
    directory = write_shards(tmp_path / "raw", "csv", count=20)
    _, together, _ = readers_of(directory)
    together(0, None)
    os.utime(directory / "part-0003.csv", ns=(1, 1))
    with raised(CorruptShard, path=directory / "part-0003.csv"):
        together(3, None)


def test_a_value_that_does_not_fit_is_named_in_its_own_shard(tmp_path):
    directory = write_shards(tmp_path / "raw", "csv", count=20)
    path = directory / "part-0007.csv"
    path.write_text("id,name,x\n1,a,odd\n")
    index, together, alone = readers_of(directory, types={"x": "float64"})
    for block in range(len(index.rows)):
        if index.shards[index.shard_of_block[block]] == path.name:
            with raised(InputError, path=path, column="x", value="odd"):
                together(block, None)
        else:
            assert alone(block, None).equals(together(block, None))


def test_readers_of_small_shards_are_sent_to_other_processes(tmp_path):
    _, together, alone = readers_of(write_shards(tmp_path / "raw", "csv", count=20))
    together(0, None)
    again = pickle.loads(pickle.dumps(together))
    assert alone(2, None).equals(again(2, None))


@pytest.mark.parametrize("shuffle", [False, True])
def test_many_small_shards_are_streamed_once(tmp_path, shuffle):
    directory = write_shards(tmp_path / "raw", "csv")
    loader = opened(directory).stream(batch_size=64, batch_format="arrow", shuffle=shuffle)
    for _ in range(2):
        ids = pa.concat_tables(pa.table(batch) for batch in loader)["id"].to_pylist()
        expected = [number for number in range(300) for _ in range(1 + number % 3)]
        assert expected == (sorted(ids) if shuffle else ids)
        loader.set_epoch(1)
