"""A bad block costs its own rows and nothing else: no step on any rank, no other row, and it is counted and bounded."""

import logging
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
import torch
from fault_cases import damage
from hypothesis import given
from hypothesis import strategies as st
from stream_cases import Numbers, index_of, ranks
from torch.utils.data import DataLoader

import headrace
from headrace.errors import CorruptShard, SettingsError, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.read.quarantine import filling_rows
from raised import raised

ROWS = (30, 0, 7, 1, 64, 19)
FIRST = (0, 30, 30, 37, 38, 102)
TOTAL = sum(ROWS)


class Damaged:
    """Numbers of which some blocks cannot be read."""

    def __init__(self, rows, bad, error=CorruptShard):
        self.numbers, self.bad, self.error = Numbers(tuple(rows)), bad, error

    def __call__(self, block, columns):
        if block in self.bad:
            raise self.error(f"block {block} is damaged; restore it")
        return self.numbers(block, columns)


def options(**settings):
    return StreamOptions(
        **{
            "batch_size": 8,
            "shuffle": True,
            "shuffle_rows": 32,
            "batch_format": "numpy",
            "on_bad_block": "quarantine",
            "quarantine_limit": 1.0,
            **settings,
        }
    )


def real_rows(batch):
    return np.asarray(batch["row"])[np.asarray(batch["valid"])].tolist()


def of_blocks(blocks):
    return set(
        chain.from_iterable(range(FIRST[block], FIRST[block] + ROWS[block]) for block in blocks)
    )


@pytest.mark.slow
@given(
    st.sets(st.integers(0, 5)),
    st.integers(1, 4),
    st.sampled_from(["pad", "drop", None]),
    st.integers(0, 8),
)
def test_exactly_the_rows_of_bad_blocks_are_missing_and_steps_are_equal(
    bad, world_size, remainder, stop
):
    settings = options(remainder=remainder)
    group = [
        StreamLoader(index_of(ROWS), Damaged(ROWS, bad), settings, topology=each)
        for each in ranks(world_size)
    ]
    whole = [
        StreamLoader(index_of(ROWS), Numbers(ROWS), settings, topology=each)
        for each in ranks(world_size)
    ]
    got = [list(loader) for loader in group]
    expected = [list(loader) for loader in whole]

    for batches, sound in zip(got, expected, strict=True):  # the same positions, less the bad rows
        assert [
            [row for row in real_rows(batch) if row not in of_blocks(bad)] for batch in sound
        ] == [real_rows(batch) for batch in batches]
        assert [len(batch["row"]) for batch in sound] == [len(batch["row"]) for batch in batches]
    assert len({len(batches) for batches in got}) == 1
    lost = len(list(chain.from_iterable(map(real_rows, chain(*expected))))) - sum(
        len(real_rows(batch)) for batch in chain(*got)
    )
    assert sum(loader.quarantined.rows for loader in group) == lost

    stop = min(stop, len(group[0]))
    prefix = []
    for loader in group:
        loader.set_epoch(1)
        batches = iter(loader)
        prefix += [row for _ in range(stop) for row in real_rows(next(batches))]
        batches.close()
    state = group[0].state_dict()
    rest = StreamLoader(
        index_of(ROWS), Damaged(ROWS, bad), options(batch_size=5), topology=ranks(1)[0]
    )
    rest.load_state_dict(state)
    resumed = [row for batch in rest for row in real_rows(batch)]

    if remainder != "drop":
        assert sorted(prefix + resumed) == sorted(set(range(TOTAL)) - of_blocks(bad))


@pytest.mark.parametrize("batch_format", ["torch", "numpy", "arrow"])
def test_filling_rows_hold_nothing_in_every_form(batch_format, caplog):
    settings = options(batch_format=batch_format, shuffle=False, batch_size=64)
    loader = StreamLoader(index_of(ROWS), Damaged(ROWS, {4}), settings, topology=ranks(1)[0])
    with caplog.at_level(logging.WARNING, "headrace"):
        batches = list(loader)
        list(loader)
    for batch in batches:
        filling = ~np.asarray(batch["valid"])
        assert set(np.asarray(batch["row"])[filling].tolist()) <= {0}
        texts = batch["text"].to_pylist() if batch_format == "arrow" else list(batch["text"])
        assert {text for text, fills in zip(texts, filling, strict=True) if fills} <= {""}

    assert loader.quarantined.rows == 64
    (bad,) = loader.quarantined.blocks.values()
    assert (bad.shard, bad.block, bad.rows) == ("part-00004.parquet", 0, 64)
    assert (
        "rank 0 of 1: 64 rows are in quarantine: part-00004.parquet block 0: CorruptShard: block 4"
        in caplog.text
    )
    assert caplog.text.count("in quarantine") == 2  # once a pass


def test_every_type_has_a_filling_row():
    kinds = [
        *(
            pa.int8(),
            pa.uint64(),
            pa.float16(),
            pa.float64(),
            pa.bool_(),
            pa.date32(),
            pa.timestamp("us", "UTC"),
        ),
        *(
            pa.duration("ms"),
            pa.time64("us"),
            pa.decimal128(10, 2),
            pa.list_(pa.int32()),
            pa.list_(pa.float32(), 3),
        ),
        *(
            pa.struct([("a", pa.list_(pa.int8()))]),
            pa.map_(pa.string(), pa.int8()),
            pa.string_view(),
            pa.binary(4),
        ),
        *(
            pa.large_string(),
            pa.binary(),
            pa.dictionary(pa.int32(), pa.string()),
            pa.null(),
            pa.list_view(pa.int8()),
        ),
    ]
    schema = pa.schema([pa.field(f"c{place}", kind) for place, kind in enumerate(kinds)])
    table = filling_rows(schema, schema.names, 3)
    table.validate(full=True)

    assert table.schema == schema
    assert table.num_rows == 3
    assert [column.null_count for column in table.columns if column.type != pa.null()] == [0] * (
        len(kinds) - 1
    )


def test_more_than_the_limit_raises():
    def loader(limit):
        settings = options(quarantine_limit=limit)
        return StreamLoader(index_of(ROWS), Damaged(ROWS, {5}), settings, topology=ranks(1)[0])

    assert len(list(loader(0.16))) == 16
    with raised(CorruptShard, setting="quarantine_limit", remedy="restore the shards"):
        list(loader(0.15))


def test_a_bug_is_no_bad_block():
    loader = StreamLoader(
        index_of(ROWS), Damaged(ROWS, {2}, ZeroDivisionError), options(), topology=ranks(1)[0]
    )

    with pytest.raises(StreamError, match="ZeroDivisionError"):
        list(loader)


@pytest.mark.slow
def test_workers_count_where_their_parent_sees_it():
    settings = options(batch_format="torch")
    dataset = StreamingDataset(
        index_of(ROWS), Damaged(ROWS, {0, 5}), settings, num_workers=2, topology=ranks(1)[0]
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        batches = list(loader)

        assert sorted(chain.from_iterable(map(real_rows, batches))) == sorted(
            set(range(TOTAL)) - of_blocks({0, 5})
        )
        assert dataset.quarantined_rows == 30 + 19
    assert all(isinstance(batch["valid"], torch.Tensor) for batch in batches)


def test_a_flipped_bit_in_a_real_file_costs_one_row_group(tmp_path):
    from fault_cases import GROUP_ROWS, GROUPS, write_shards

    write_shards(tmp_path / "shards", 1)
    whole = headrace.open(tmp_path / "shards", cache_dir=tmp_path / "cache")
    damage(tmp_path / "shards" / "part-00000.parquet", "flipped")
    stream = whole.stream(
        batch_size=512, shuffle=True, on_bad_block="quarantine", quarantine_limit=0.1
    )
    rows = sorted(chain.from_iterable(map(real_rows, stream)))

    assert rows == [row for row in range(GROUPS * GROUP_ROWS) if row // GROUP_ROWS != 7]


def test_settings_are_checked():
    with pytest.raises(
        SettingsError, match="on_bad_block is 'skip'; expected one of raise, quarantine"
    ):
        options(on_bad_block="skip")
    with raised(SettingsError, setting="quarantine_limit", value=1.5):
        options(quarantine_limit=1.5)
    with raised(SettingsError, setting="quarantine_limit", value=True):
        options(quarantine_limit=True)
    with raised(SettingsError, column="valid", remedy="rename it when preparing"):
        options().check_columns(pa.schema({"a": pa.int64(), "valid": pa.bool_()}))
