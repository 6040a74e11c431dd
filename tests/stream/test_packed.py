"""Packed batches say the same as plain Python over the same sequences, whatever the files are like; streams keep laws."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed_stream_cases import as_lists, expected, make_bins, table_of, write_shards

import headrace
from headrace.errors import InputError, SettingsError, StreamError
from headrace.packing.read.batches import PackedBatches, packed_batches
from headrace.packing.read.packed_rows import normal_rows
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.columns import from_table
from raised import raised

SEQUENCE = st.lists(st.tuples(st.integers(1, 99), st.integers(0, 1)), min_size=1, max_size=5)
BINS = st.lists(st.lists(SEQUENCE, min_size=1, max_size=4), min_size=1, max_size=6)
SETTINGS = st.builds(
    PackedBatches,
    form=st.sampled_from(["varlen", "padded"]),
    ignore_index=st.sampled_from([-100, None]),
    last_token=st.sampled_from(["keep", "drop"]),
    pad_id=st.sampled_from([0, 7]),
    pad_to=st.sampled_from([None, 120]),
    pad_to_multiple_of=st.sampled_from([1, 4, 12]),
    attention_mask=st.sampled_from(["none", "none", "bool"]),
)
ALIGNMENTS = ["shift_left", "unshifted", "legacy_roll_right"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Indexes of plain shards are kept below the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def columns_of(bins, alignment="shift_left", **types):
    table = normal_rows(table_of(bins, alignment=alignment, **types), alignment)
    columns = from_table(table, arrow=False, where="here")
    return columns["input_ids"], columns["loss_mask"], columns["seq_start_id"]


def seen_by_legacy(bins):
    """The bins as a mask rolled over the whole bin can still tell them: the last token's is lost."""
    return [
        [*sequences[:-1], [*sequences[-1][:-1], (sequences[-1][-1][0], 0)]] for sequences in bins
    ]


@pytest.mark.slow
@given(BINS, SETTINGS, st.sampled_from(["next", "same"]), st.data())
def test_batches_are_what_plain_python_makes_of_the_sequences(bins, settings, labels, data):
    if labels == "same" and settings.last_token == "keep":
        settings = PackedBatches(
            **{name: getattr(settings, name) for name in settings.__slots__ if name != "labels"},
            labels="same",
        )
    alignment = data.draw(st.sampled_from(ALIGNMENTS))
    valid = np.array(data.draw(st.lists(st.booleans(), min_size=len(bins), max_size=len(bins))))
    size = data.draw(st.integers(1, 6))
    columns = columns_of(bins, alignment)

    got = list(packed_batches(*columns, valid=valid, batch_size=size, settings=settings))

    told = seen_by_legacy(bins) if alignment == "legacy_roll_right" else bins
    assert [
        expected(told[start : start + size], settings, valid[start : start + size])
        for start in range(0, len(bins), size)
    ] == [as_lists(batch) for batch in got]
    for batch in got:
        assert (
            batch["input_ids"].dtype
            == batch["labels"].dtype
            == batch["position_ids"].dtype
            == np.int64
        )
        assert batch["cu_seqlens"].dtype == np.int32
        assert batch["loss_mask"].dtype == np.uint8
        assert batch["cu_seqlens"][-1] == batch["input_ids"].size


@given(BINS, st.data())
def test_bins_in_any_order_are_the_same_bins(bins, data):
    order = data.draw(st.permutations(range(len(bins))))
    ids, mask, starts = columns_of(bins)
    picked = [column[np.array(order, np.int64)] for column in (ids, mask, starts)]
    settings = PackedBatches(form="padded")

    (got,) = packed_batches(*picked, valid=None, batch_size=len(bins), settings=settings)

    assert expected([bins[place] for place in order], settings) == as_lists(got)


@given(BINS, st.sampled_from(["varlen", "padded"]))
def test_labels_that_a_trainer_shifts_in_whole_rows_are_those_of_the_next_token(bins, form):
    """So transformers and Accelerate make shift_labels, before rows are cut for context parallelism."""
    (own,), (following,) = (
        packed_batches(
            *columns_of(bins),
            valid=None,
            batch_size=len(bins),
            settings=PackedBatches(form=form, labels=labels, pad_to_multiple_of=4),
        )
        for labels in ("same", "next")
    )
    shifted = np.pad(own["labels"], ((0, 0), (0, 1)), constant_values=-100)[:, 1:]

    assert np.array_equal(shifted, following["labels"])


def test_an_additive_mask_is_zero_where_a_token_may_attend_and_no_row_is_empty():
    columns = columns_of(make_bins(3))
    (allowed,) = packed_batches(
        *columns,
        valid=None,
        batch_size=3,
        settings=PackedBatches(form="padded", attention_mask="bool", pad_to=80),
    )
    (additive,) = packed_batches(
        *columns,
        valid=None,
        batch_size=3,
        settings=PackedBatches(form="padded", attention_mask="additive", pad_to=80),
    )

    assert (3, 1, 80, 80) == additive["attention_mask"].shape
    assert additive["attention_mask"].dtype == np.float32
    assert np.array_equal(allowed["attention_mask"], additive["attention_mask"] == 0)
    assert np.isneginf(additive["attention_mask"][~allowed["attention_mask"]]).all()
    assert allowed["attention_mask"].any(axis=-1).all()


@pytest.mark.parametrize("ids", [pa.int32(), pa.int64(), pa.uint16()])
@pytest.mark.parametrize("mask", [pa.uint8(), pa.int8(), pa.bool_(), pa.int64()])
def test_types_that_writers_use_are_read_the_same(tmp_path, ids, mask):
    bins = make_bins(20)
    table = table_of(bins, ids=pa.list_(ids), mask=pa.list_(mask), starts=pa.list_(pa.int64()))
    write_shards(tmp_path / "d", table)

    batches = list(headrace.open(tmp_path / "d").stream(batch_size=4, batch_format="numpy"))

    settings = PackedBatches()
    made = [
        {**expected(bins[start : start + 4], settings), "valid": [True] * 4}
        for start in range(0, 20, 4)
    ]
    assert made == list(map(as_lists, batches))


@pytest.mark.slow
@pytest.mark.parametrize(("group_rows", "batch_format"), [(32, "torch"), (1000, "numpy")])
def test_a_shuffled_epoch_has_every_bin_once_and_decodes_each_row_group_once(
    tmp_path, group_rows, batch_format
):
    bins = make_bins(2500, most_tokens=5, least_tokens=2)
    root = write_shards(tmp_path / "d", table_of(bins), shard_rows=1300, group_rows=group_rows)
    dataset = headrace.open(root)
    reads = []
    stream = dataset.stream(batch_size=16, shuffle=True, seed=3, batch_format=batch_format)
    inner = stream.passes.read_block
    stream.passes.read_block = lambda number, columns: (
        reads.append(number) or inner(number, columns)
    )

    batches = list(stream)

    ids = np.concatenate([np.asarray(batch["input_ids"])[0] for batch in batches])
    assert list(range(1, sum(len(s) for b in bins for s in b) + 1)) == sorted(ids.tolist())
    assert ids.tolist() != sorted(ids.tolist())
    assert len(reads) <= len(dataset.split_index().rows) + 16  # a lane's border may cut a block
    assert all(
        isinstance(batch["labels"], torch.Tensor if batch_format == "torch" else np.ndarray)
        for batch in batches
    )


def test_packed_batches_of_several_ranks_are_padded_with_bins_that_train_nothing(tmp_path):
    bins = make_bins(13, least_tokens=2)
    dataset = headrace.open(write_shards(tmp_path / "d", table_of(bins)))
    trained = {a for sequences in bins for s in sequences for _, (a, t) in pairwise(s) if t}
    labels, steps = [], []
    for rank in range(3):
        stream = dataset.stream(
            batch_size=2, shuffle=True, topology=Topology(rank=rank, world_size=3)
        )
        batches = list(stream)
        steps.append(len(batches))
        for batch in batches:
            assert (2,) == tuple(batch["valid"].shape)
            labels += batch["labels"][batch["labels"] != -100].tolist()
            assert torch.equal(batch["labels"] != -100, batch["loss_mask"] == 1)

    assert [3, 3, 3] == steps
    assert sorted(trained) == sorted(labels)


@pytest.mark.parametrize("stop", [0, 1, 7, 12])
def test_a_resumed_stream_goes_on_as_the_uninterrupted_one(tmp_path, stop):
    dataset = headrace.open(write_shards(tmp_path / "d", table_of(make_bins(100)), shard_rows=40))
    options = {"batch_size": 8, "shuffle": True, "packed": "padded", "batch_format": "numpy"}
    whole = [as_lists(batch) for batch in dataset.stream(**options)]
    stream = dataset.stream(**options)
    batches = iter(stream)
    before = [as_lists(next(batches)) for _ in range(stop)]
    state = json.loads(json.dumps(stream.state_dict()))

    later = dataset.stream(**options)
    later.load_state_dict(state)

    assert whole == before + [as_lists(batch) for batch in later]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["varlen", "padded"])
def test_workers_give_what_one_process_gives(tmp_path, form):
    dataset = headrace.open(write_shards(tmp_path / "d", table_of(make_bins(60)), shard_rows=25))
    options = {"batch_size": 5, "shuffle": True, "packed": form}
    alone = [
        t for batch in dataset.stream(**options) for t in batch["input_ids"].flatten().tolist() if t
    ]

    streamed = dataset.torch_dataset(num_workers=2, remainder="drop", **options)
    batches = list(streamed.data_loader(method="fork"))

    assert len(streamed) == len(batches) == 12
    assert sorted(alone) == sorted(
        t for batch in batches for t in batch["input_ids"].flatten().tolist() if t
    )
    for batch in batches:
        assert isinstance(batch["max_seqlen"], int)
        assert batch["cu_seqlens"].dtype == torch.int32
        assert batch["cu_seqlens"][-1] == batch["input_ids"].numel()


def test_bad_blocks_in_quarantine_are_bins_of_nothing(tmp_path):
    table = table_of(make_bins(20), mask=pa.list_(pa.bool_()))
    broken = pa.table(
        {**{name: table[name] for name in ("input_ids", "loss_mask")}, "seq_start_id": [[1]] * 20}
    ).cast(table.schema)
    write_shards(tmp_path / "d", table)
    write_shards(tmp_path / "d" / "x", broken)
    (tmp_path / "d" / "x" / "shard_000000.parquet").rename(tmp_path / "d" / "shard_000001.parquet")
    dataset = headrace.open(tmp_path / "d")

    batches = list(dataset.stream(batch_size=5, on_bad_block="quarantine", quarantine_limit=0.5))

    assert [5, 5, 5, 5, 0, 0, 0, 0] == [int(batch["valid"].sum()) for batch in batches]
    assert [0] * 4 == [batch["input_ids"].numel() for batch in batches[4:]]
    with pytest.raises(InputError, match=r"shard_000001.parquet: row 1: seq_start_id is \[1\]"):
        list(dataset.stream(batch_size=5))


def test_a_blend_of_packed_sets_is_packed(tmp_path):
    one = headrace.open(write_shards(tmp_path / "a", table_of(make_bins(30))))
    two = headrace.open(
        write_shards(tmp_path / "b", table_of(make_bins(30, seed=1), mask=pa.list_(pa.bool_())))
    )

    batches = list(headrace.blend([one, two]).stream(batch_size=6))

    assert 10 == len(batches)
    assert all(batch["cu_seqlens"][-1] == batch["input_ids"].numel() for batch in batches)


def test_other_columns_come_beside_a_value_a_bin(tmp_path):
    table = table_of(
        make_bins(6),
        extra={"source": [f"s{number}" for number in range(6)], "number": list(range(6))},
    )
    dataset = headrace.open(write_shards(tmp_path / "d", table))

    first = next(iter(dataset.stream(batch_size=4)))

    assert ["s0", "s1", "s2", "s3"] == first["source"]
    assert [0, 1, 2, 3] == first["number"].tolist()
    assert "seq_start_id" not in first


def test_auto_packs_only_what_says_that_it_is_packed(tmp_path):
    bins = make_bins(4)
    silent = headrace.open(write_shards(tmp_path / "silent", table_of(bins, metadata={})))
    saying = headrace.open(write_shards(tmp_path / "saying", table_of(bins)))

    def names(dataset, **options):
        return list(next(iter(dataset.stream(batch_size=4, **options))))

    plain = ["input_ids", "loss_mask", "seq_start_id", "valid"]
    assert plain == names(silent)
    assert "cu_seqlens" in names(saying)
    others = table_of(bins, metadata={"loss_mask_alignment": "shift_left"})
    assert "cu_seqlens" in names(headrace.open(write_shards(tmp_path / "others", others)))
    assert plain == names(saying, packed="off")
    assert ["input_ids", "valid"] == names(saying, columns=["input_ids"])
    assert list(next(iter(saying.stream(batch_size=4, batch_format="rows")))[0]) == plain
    assert "input_ids_lengths" in names(saying, lists="padded")
    with raised(SettingsError, setting="loss_mask_alignment", remedy="say where its masks stand"):
        names(silent, packed="varlen")
    asked = PackedBatches(loss_mask_alignment="shift_left")
    assert as_lists(next(iter(silent.stream(batch_size=4, packed=asked)))) == {
        **expected(bins, asked),
        "valid": [True] * 4,
    }
    with raised(SettingsError, setting="loss_mask_alignment", value="unshifted"):
        names(saying, packed=PackedBatches(loss_mask_alignment="unshifted"))


def test_shards_of_one_directory_may_differ_in_where_their_masks_stand(tmp_path):
    bins = make_bins(9)
    for number, alignment in enumerate(("shift_left", "unshifted")):
        root = write_shards(tmp_path / alignment, table_of(bins, alignment=alignment))
        (root / "shard_000000.parquet").rename(tmp_path / f"shard_{number}.parquet")

    batches = [
        as_lists(batch) for batch in headrace.open(tmp_path / "*.parquet").stream(batch_size=9)
    ]

    assert batches[0] == batches[1] == {**expected(bins, PackedBatches()), "valid": [True] * 9}


@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (([[1, 2, 3]], [[1, 1]], [[0]]), {"row": 1}),
        (([[1], [1, 2]], [[1], [1, 1]], [[0], [0, 1, 2]]), {"row": 2}),
        (([[1], [1, 2]], [[1], [1, 1]], [[0], [0, 0]]), {"row": 2}),
        (([[1], [1, 2]], [[1], [1, 1]], [[0], []]), {"row": 2}),
        (([[1], []], [[1], []], [[0], [0]]), {"row": 2}),
        (([[1], [2]], [[1], [1]], [[0], [-1]]), {"row": 2}),
        (([[1], None], [[1], [1]], [[0], [0]]), {"row": None, "column": "input_ids"}),
        (([[1]], [[-1]], [[0]]), {"column": "loss_mask", "value": "-1..-1"}),
    ],
)
def test_rows_that_are_not_packed_are_refused_by_their_number(rows, fields):
    ids, mask, starts = (pa.array(each, pa.list_(pa.int64())) for each in rows)
    with raised(InputError, remedy="write the file anew", **fields):
        normal_rows(
            pa.table({"input_ids": ids, "loss_mask": mask, "seq_start_id": starts}), "shift_left"
        )


def test_rows_without_tokens_are_bins_of_nothing():
    table = pa.table(
        {
            name: pa.array([[], [], []], pa.list_(pa.int32()))
            for name in ("input_ids", "loss_mask", "seq_start_id")
        }
    )
    columns = from_table(normal_rows(table, "unshifted"), arrow=False, where="here")
    (batch,) = packed_batches(
        columns["input_ids"],
        columns["loss_mask"],
        columns["seq_start_id"],
        valid=None,
        batch_size=3,
        settings=PackedBatches(),
    )

    assert [0] == batch["cu_seqlens"].tolist()
    assert (1, 0) == batch["input_ids"].shape


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"form": "square"}, "form is 'square'"),
        ({"labels": "same", "last_token": "drop"}, 'labels="same" needs'),
        ({"pad_to": 10, "pad_to_multiple_of": 4}, "not a multiple"),
        ({"pad_to": 0}, "pad_to is 0; expected an integer of 1 or more"),
        ({"pad_id": True}, "pad_id is True"),
        ({"most_sequences": 0}, "most_sequences is 0"),
        ({"loss_mask_alignment": "left"}, "loss_mask_alignment is 'left'"),
    ],
)
def test_settings_that_do_not_fit_say_so(settings, said):
    with pytest.raises(SettingsError, match=said):
        PackedBatches(**settings)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (
            {"packed": "yes"},
            {"setting": "packed", "value": "yes", "remedy": "one of auto, varlen, padded, off"},
        ),
        ({"packed": "varlen", "batch_format": "arrow"}, {"remedy": "leave lists= out"}),
        ({"packed": "padded", "lists": "padded"}, {"remedy": "leave lists= out"}),
    ],
)
def test_options_that_do_not_fit_say_so(options, fields):
    with raised(SettingsError, **fields):
        StreamOptions(batch_size=1, **options)


def test_columns_that_are_missing_in_the_way_or_of_other_types_are_named(tmp_path):
    bins = make_bins(3)
    good = headrace.open(
        write_shards(tmp_path / "good", table_of(bins, extra={"labels": [1, 2, 3]}))
    )
    with raised(SettingsError, setting="columns", value=["loss_mask", "seq_start_id"]):
        good.stream(batch_size=1, packed="varlen", columns=["input_ids"])
    with raised(SettingsError, setting="columns", value=["labels"], remedy="choose without them"):
        good.stream(batch_size=1)
    text = headrace.open(
        write_shards(tmp_path / "text", table_of(bins, mask=pa.list_(pa.float32())))
    )
    with raised(SettingsError, column="loss_mask", remedy='use packed="off"'):
        text.stream(batch_size=1, packed="varlen")


def test_a_row_wider_than_pad_to_is_an_error_that_says_how_wide(tmp_path):
    dataset = headrace.open(
        write_shards(tmp_path / "d", table_of([[[(1, 1)] * 5], [[(1, 1)] * 9]]))
    )
    with raised(StreamError, setting="pad_to", value=8):
        list(dataset.stream(batch_size=2, packed=PackedBatches(form="padded", pad_to=8)))
    dropped = PackedBatches(form="padded", pad_to=8, last_token="drop")
    assert [2, 8] == list(
        next(iter(dataset.stream(batch_size=2, packed=dropped)))["input_ids"].shape
    )


@pytest.mark.parametrize("form", ["varlen", "padded"])
def test_borders_of_a_fixed_number_repeat_the_last(tmp_path, form):
    dataset = headrace.open(write_shards(tmp_path / "d", table_of(make_bins(20))))
    width = 200 if form == "varlen" else 80
    free, fixed = (
        PackedBatches(form=form, pad_to=width, most_sequences=most) for most in (None, 30)
    )

    for as_it_is, padded in zip(
        dataset.stream(batch_size=3, packed=free),
        dataset.stream(batch_size=3, packed=fixed),
        strict=True,
    ):
        borders = as_it_is["cu_seqlens"].tolist()
        assert (
            borders + [padded["input_ids"].numel()] * (31 - len(borders))
            == padded["cu_seqlens"].tolist()
        )
        assert torch.int32 == padded["cu_seqlens"].dtype
        assert torch.equal(as_it_is["labels"], padded["labels"])
    with raised(StreamError, setting="most_sequences", value=2):
        list(dataset.stream(batch_size=3, packed=PackedBatches(form=form, most_sequences=2)))


def test_a_loader_of_its_own_streams_rows_as_they_are(tmp_path):
    dataset = headrace.open(write_shards(tmp_path / "d", table_of(make_bins(3))))
    loader = StreamLoader(
        dataset.split_index(), dataset.block_reader(), StreamOptions(batch_size=3)
    )

    assert "seq_start_id" in next(iter(loader))


def test_a_set_without_bins_makes_no_batch(tmp_path):
    root = tmp_path / "d"
    root.mkdir()
    pq.ParquetWriter(root / "shard_000000.parquet", table_of([]).schema).close()

    assert [] == list(headrace.open(root, cache_dir=tmp_path / "c").stream(batch_size=2))
