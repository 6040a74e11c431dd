"""The reader gives the rows of the order, decodes an open block once, and never hides an error or a thread."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import SlowOrder, deliver
from stream_cases import Numbers, index_of, ranks, write_split

from headrace.errors import CorruptShard, InputError, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology
from raised import raised


def options(**settings):
    return StreamOptions(**{"batch_size": 10, "shuffle": True, "batch_format": "numpy", **settings})


class Recorder:
    """Numbers that counts which blocks were decoded, and fails at one of them if told to."""

    def __init__(self, rows, *, fail_at=None, error=None):
        self.read, self.rows = Numbers(tuple(rows)), rows
        self.fail_at, self.error = fail_at, error
        self.decoded: Counter[int] = Counter()

    def __call__(self, block, columns):
        self.decoded[block] += 1
        if block == self.fail_at:
            raise self.error
        return self.read(block, columns)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=20),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 6, 16]),
    st.sampled_from([1, 5, 64]),
    st.integers(1, 17),
    st.sampled_from(["pad", "drop"]),
    st.booleans(),
)
def test_batches_equal_the_slow_reference(
    rows, world_size, lanes, shuffle_rows, batch_size, remainder, shuffle
):
    settings = options(
        batch_size=batch_size,
        lanes=lanes,
        shuffle_rows=shuffle_rows,
        remainder=remainder,
        shuffle=shuffle,
        seed=3,
    )
    for topology in ranks(world_size):
        loader = StreamLoader(index_of(rows), Numbers(tuple(rows)), settings, topology=topology)
        order = loader.plan().order
        slow = SlowOrder(
            rows,
            order.blocks.tolist(),
            seed=3,
            epoch=0,
            lanes=lanes,
            window=order.window_rows,
            groups=order.groups,
            shuffle=shuffle,
        )
        share = {"rank": topology.rank, "ranks": world_size}
        expected = list(deliver(slow.epoch(), **share, batch_size=batch_size, remainder=remainder))
        batches = list(loader)

        real = [
            batch["row"][batch["valid"]] if remainder == "pad" else batch["row"]
            for batch in batches
        ]
        assert [rows.tolist() for rows in real] == expected
        assert {len(batch["row"]) for batch in batches} <= {batch_size}
        assert all(
            batch["text"].tolist() == [str(row) for row in batch["row"]] for batch in batches
        )


@pytest.mark.parametrize("batch_format", ["torch", "numpy", "arrow"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_parquet_rows_arrive_as_written(tmp_path, shuffle, batch_format):
    rows = np.arange(5000)
    table = pa.table(
        {
            "row": rows,
            "text": pa.array([None if row % 7 == 0 else f"t{row}" for row in rows]),
            "half": pa.array([None if row % 5 == 0 else row / 2 for row in rows]),
            "ids": pa.array([[row] * (row % 3) for row in rows], pa.list_(pa.int32())),
        }
    )
    index, read_block = write_split(tmp_path, table, shard_rows=900, group_rows=250)
    settings = options(batch_size=64, shuffle=shuffle, shuffle_rows=700, batch_format=batch_format)
    seen = []
    for batch in StreamLoader(index, read_block, settings, topology=Topology(rank=0, world_size=1)):
        if batch_format == "arrow":
            order = batch["row"].to_numpy()
            assert batch.drop_columns("valid").equals(table.take(pa.array(order)))
        else:
            order = np.asarray(batch["row"])
            expected = table.take(pa.array(order))
            assert list(batch["text"]) == expected["text"].to_pylist()
            assert np.array_equal(
                np.asarray(batch["half"]), expected["half"].to_numpy(), equal_nan=True
            )
            assert [ids.tolist() for ids in batch["ids"]] == expected["ids"].to_pylist()
        seen.append(order)

    order = np.concatenate(seen)
    assert sorted(order) == list(range(5000))
    assert (order.tolist() == list(range(5000))) is not shuffle
    assert [len(part) for part in seen] == [64] * 78 + [8]


@pytest.mark.parametrize(
    "prefetch", [{}, {"prefetch_bytes": 0}, {"prefetch_blocks": 0}, {"prefetch_bytes": 3000}]
)
def test_a_block_is_decoded_once_however_little_is_read_ahead(prefetch):
    rows = [3000] * 40
    reader = Recorder(rows)
    settings = options(batch_size=500, lanes=1, shuffle_rows=4096, read_threads=3, **prefetch)
    got = [
        batch["row"]
        for batch in StreamLoader(index_of(rows), reader, settings, topology=ranks(1)[0])
    ]

    assert sorted(np.concatenate(got)) == list(range(120_000))
    assert set(reader.decoded.values()) == {1}


def test_reading_ahead_stays_within_its_bound():
    rows = [40_000] * 12  # a pool is less
    reader = Recorder(rows)
    settings = options(lanes=1, shuffle_rows=4096, prefetch_blocks=3, columns=["row"])
    batches = iter(StreamLoader(index_of(rows), reader, settings, topology=ranks(1)[0]))
    next(batches)
    batches.close()

    assert sum(reader.decoded.values()) <= 7  # the first two pools' blocks, and three ahead


def test_only_the_columns_asked_for_are_read():
    asked = []

    def read_block(block, columns):
        asked.append(columns)
        return Numbers((5,))(block, columns)

    settings = options(columns=["text"])
    batches = list(StreamLoader(index_of([5]), read_block, settings, topology=ranks(1)[0]))

    assert [list(batch) for batch in batches] == [["text", "valid"]]
    assert [list(columns) for columns in asked] == [["text"]]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("disk gone"), StreamError),
        (InputError("page 3 is damaged"), InputError),
        (ZeroDivisionError("bug"), StreamError),
    ],
)
def test_an_error_in_a_thread_reaches_the_loop_with_its_place(error, kind, own_threads):
    rows = [50] * 30
    reader = Recorder(rows, fail_at=17, error=error)
    loader = StreamLoader(
        index_of(rows), reader, options(shuffle=False), topology=Topology(rank=1, world_size=2)
    )
    with raised(kind, path="rank 1 of 2: part-00017.parquet block 0") as caught:
        list(loader)

    assert str(error) in str(caught.value)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error
    assert own_threads.left() == []


def test_batches_before_the_damage_are_delivered():
    rows = [40_000] * 6
    reader = Recorder(rows, fail_at=5, error=OSError("gone"))
    loader = StreamLoader(
        index_of(rows), reader, options(batch_size=100, shuffle=False), topology=ranks(1)[0]
    )
    got = []
    with pytest.raises(StreamError, match="gone"):
        got.extend(batch["row"] for batch in loader)

    assert np.concatenate(got).tolist() == list(range(len(got) * 100))
    assert loader.state_dict()["position"] == len(got) * 100 >= 15_000


def test_a_block_of_another_length_than_indexed_is_never_delivered():
    loader = StreamLoader(index_of([10, 10]), Numbers((10, 11)), options(), topology=ranks(1)[0])

    with raised(
        CorruptShard,
        path="rank 0 of 1: part-00001.parquet block 0",
        remedy="index the dataset again",
    ):
        list(loader)


def test_a_null_integer_names_its_shard():
    schema = pa.schema([("n", pa.int64())])
    loader = StreamLoader(
        index_of([2], schema=schema),
        lambda block, columns: pa.table({"n": [1, None]}, schema=schema),
        options(),
        topology=ranks(1)[0],
    )

    with raised(InputError, path="rank 0 of 1: part-00000.parquet block 0", column="n"):
        list(loader)


def test_no_thread_is_left_after_an_early_exit(own_threads):
    rows = [50] * 30
    loader = StreamLoader(index_of(rows), Numbers(tuple(rows)), options(), topology=ranks(1)[0])
    for _ in loader:
        break
    assert own_threads.left() == []

    batches = iter(loader)
    next(batches)
    assert own_threads.now() != []
    batches.close()
    assert own_threads.left() == []

    batches = iter(loader)
    next(batches)
    del batches
    assert own_threads.left() == []

    def fail_in_the_loop():
        for batch in loader:
            batch["no such column"]

    with pytest.raises(KeyError):
        fail_in_the_loop()
    assert own_threads.left() == []


def test_no_thread_is_left_after_a_whole_pass(own_threads):
    loader = StreamLoader(index_of([50] * 3), Numbers((50,) * 3), options(), topology=ranks(1)[0])

    assert len(list(loader)) == 15
    assert own_threads.left() == []
