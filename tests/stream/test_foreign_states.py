"""A state belongs to its rows: those of equal shards with other contents, another filter or seed are refused."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.stream.ranks.topology import Topology
from raised import raised
from tables import small_source, split

ALONE = Topology(rank=0, world_size=1)


def write(root, rows, shift=0, name="a.parquet"):
    root.mkdir(exist_ok=True)
    table = pa.table(
        {
            "row": np.arange(shift, shift + rows),
            "text": [str(row * 7**shift) for row in range(rows)],
        }
    )
    pq.write_table(table, root / name, row_group_size=20)
    return root


def stream(root, **settings):
    settings = {
        "batch_size": 8,
        "shuffle": True,
        "batch_format": "numpy",
        "topology": ALONE,
        **settings,
    }
    return headrace.open(root, cache_dir=root.parent / "cache").stream(**settings)


def after(batches, given):
    iterator = iter(given)
    rows = [next(iterator)["row"].tolist() for _ in range(batches)]
    return rows, json.loads(json.dumps(given.state_dict()))


def test_a_state_of_equal_row_counts_and_other_contents_is_refused(tmp_path):
    _, state = after(2, stream(write(tmp_path / "one", 60)))

    with raised(headrace.errors.StreamError, remedy="added, removed or rewritten"):
        stream(write(tmp_path / "two", 60, shift=3)).load_state_dict(state)


def test_a_state_goes_on_in_a_copy_of_its_shards(tmp_path):
    first = stream(write(tmp_path / "one", 60))
    _, state = after(2, first)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a.parquet").write_bytes((tmp_path / "one" / "a.parquet").read_bytes())
    copy = stream(tmp_path / "copy")
    copy.load_state_dict(state)

    first.load_state_dict(state)
    assert [batch["row"].tolist() for batch in first] == [batch["row"].tolist() for batch in copy]


def test_a_state_of_another_prepared_run_with_equal_shapes_is_refused(tmp_path):
    split(small_source(tmp_path / "raw"), tmp_path / "out")
    index = headrace.open(tmp_path / "out").split_index("train")

    assert any(index.checksums)
    other = tuple("0" * 32 for _ in index.checksums)
    assert index.identity != replace(index, checksums=other).identity


def test_states_of_another_filter_seed_or_set_of_shards_are_refused(tmp_path):
    root = write(tmp_path / "one", 60)
    _, state = after(1, stream(root, filter=[("row", "<", 30)], seed=4))

    with raised(headrace.errors.StreamError, remedy="another filter"):
        stream(root, filter=[("row", "<=", 29)], seed=4).load_state_dict(state)
    with raised(headrace.errors.StreamError, setting="seed", remedy="pass the saved setting"):
        stream(root, filter=[("row", "<", 30)], seed=5).load_state_dict(state)
    write(root, 10, name="b.parquet")
    with raised(headrace.errors.StreamError, remedy="added, removed or rewritten"):
        stream(root, filter=[("row", "<", 30)], seed=4).load_state_dict(state)


def test_a_shard_that_is_damaged_after_the_state_was_taken_is_an_error_of_the_rest(tmp_path):
    split(small_source(tmp_path / "raw"), tmp_path / "out")

    def opened():
        return headrace.open(tmp_path / "out").stream(
            "train", batch_size=8, shuffle=True, batch_format="numpy", topology=ALONE
        )

    before = opened()
    _, state = after(1, before)
    (run,) = (tmp_path / "out" / "runs").iterdir()
    for shard in {run / name for name in before.index.shards}:
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.chmod(0o644)
        shard.write_bytes(bytes(data))
    rest = opened()
    rest.load_state_dict(state)

    with pytest.raises(headrace.errors.CorruptShard):
        list(rest)
