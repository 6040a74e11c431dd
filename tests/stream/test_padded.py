"""Padded batches hold each list where it belongs and filling elsewhere; ragged columns keep the laws of Arrow's take."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_cases import write_split

from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.columns import cut, from_table, gather, join
from headrace.stream.read.ragged import padded_batches
from raised import raised

LISTS = st.lists(st.one_of(st.none(), st.lists(st.integers(-5, 5), max_size=9)), max_size=12)


def ragged_of(lists):
    return from_table(
        pa.table({"x": pa.array(lists, pa.list_(pa.int32()))}), arrow=False, where="here"
    )


def plain(columns):
    return [None if row is None else row.tolist() for row in columns["x"]]


@given(st.lists(LISTS, min_size=1, max_size=3), st.data())
def test_gathered_lists_are_those_of_arrow(pieces, data):
    together = [row for piece in pieces for row in piece]
    rows = st.lists(st.integers(0, len(together) - 1), max_size=20) if together else st.just([])
    index = data.draw(rows)

    got = gather([ragged_of(piece) for piece in pieces], np.array(index, np.int64))
    assert plain(got) == [together[row] for row in index]
    assert plain(gather([ragged_of(piece) for piece in pieces], None)) == together

    at = data.draw(st.integers(0, len(index)))
    halves = [cut(got, 0, at), cut(got, at, len(index))]
    assert plain(join(halves)) == plain(got)


@given(LISTS, st.integers(1, 5), st.integers(1, 4), st.sampled_from([0, -1, 7]), st.randoms())
def test_padded_rows_hold_the_list_and_then_filling(lists, batch_size, multiple, fill, random):
    order = list(range(len(lists)))
    random.shuffle(order)
    column = gather([ragged_of(lists)], np.array(order, np.int64))["x"]

    batches = list(padded_batches(column, batch_size, fill=fill, multiple=multiple))

    assert [len(batch) for batch in batches] == [
        min(batch_size, len(lists) - start) for start in range(0, len(lists), batch_size)
    ]
    for start, batch in zip(range(0, len(lists), batch_size), batches, strict=True):
        rows = [lists[row] or [] for row in order[start : start + batch_size]]
        longest = max(map(len, rows))
        assert batch.shape[1] == -(-longest // multiple) * multiple
        assert batch.tolist() == [row + [fill] * (batch.shape[1] - len(row)) for row in rows]
        assert batch.flags.writeable


@pytest.mark.parametrize("batch_format", ["torch", "numpy"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_stream_of_padded_lists(tmp_path, batch_format, shuffle):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 40, 3000)
    rows = [
        None if row % 97 == 0 else np.arange(row, row + lengths[row]).tolist()
        for row in range(3000)
    ]
    table = pa.table(
        {"row": np.arange(3000), "ids": pa.array(rows, pa.list_(pa.int32())), "p": pa.array(rows)}
    )
    index, read_block = write_split(tmp_path, table, shard_rows=900, group_rows=250)
    options = StreamOptions(
        batch_size=64,
        shuffle=shuffle,
        batch_format=batch_format,
        lists="padded",
        pad_values={"ids": -1},
        pad_to_multiple_of=8,
    )
    seen = []
    for batch in StreamLoader(index, read_block, options, topology=Topology(rank=0, world_size=1)):
        assert list(batch) == ["row", "ids", "ids_lengths", "p", "p_lengths", "valid"]
        ids, lengths_now = np.asarray(batch["ids"]), np.asarray(batch["ids_lengths"])
        assert ids.dtype == np.int32
        assert np.asarray(batch["p"]).dtype == np.int64
        assert ids.shape[1] % 8 == 0
        for place, row in enumerate(np.asarray(batch["row"]).tolist()):
            expected = rows[row] or []
            assert lengths_now[place] == len(expected)
            assert ids[place].tolist() == expected + [-1] * (ids.shape[1] - len(expected))
            assert np.asarray(batch["p"])[place, len(expected) :].tolist() == [0] * (
                ids.shape[1] - len(expected)
            )
            seen.append(row)
    assert sorted(seen) == list(range(3000))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lists": "square"}, "lists is 'square'"),
        ({"lists": "padded", "batch_format": "arrow"}, "leave one of them out"),
        ({"pad_values": {"ids": 1}}, "are for lists"),
        ({"lists": "padded", "pad_values": {"ids": "x"}}, "give a number"),
        ({"lists": "padded", "pad_to_multiple_of": 0}, "pad_to_multiple_of is 0"),
    ],
)
def test_settings_that_do_not_fit_say_so(settings, said):
    with pytest.raises(SettingsError, match=said):
        StreamOptions(batch_size=1, **settings)


def test_names_in_the_way_of_lengths_are_refused():
    options = StreamOptions(batch_size=1, lists="padded", pad_values={"other": 1})
    with raised(SettingsError, setting="lists", remedy="leave them out with columns="):
        options.check_columns(pa.schema({"ids": pa.list_(pa.int64()), "ids_lengths": pa.int64()}))
