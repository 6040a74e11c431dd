"""Batches of like lengths: every row once, no batch over its bound, equal steps, a resume like no stop."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from by_length_cases import train
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_processes import run_ranks

import headrace
from headrace.bins.by_length import BatchBound
from headrace.errors import CorruptShard, InputError, SettingsError, StreamError
from headrace.stream.ranks.topology import Topology
from laws import examples
from raised import raised

ROWS = 3000


def write_lengths(path, lengths, *, row_group_size=200):
    """Row r has the values r, r, … and its number, its length and a text."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    table = pa.table(
        {
            "input_ids": pa.ListArray.from_arrays(offsets, values),
            "row": np.arange(len(lengths)),
            "tokens": np.array(lengths, np.int64),
            "text": [f"row {row}" for row in range(len(lengths))],
        }
    )
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    lengths = np.random.default_rng(0).integers(3, 60, ROWS)
    return write_lengths(tmp_path_factory.mktemp("lengths") / "rows.parquet", lengths)


def stream_of(path, *, rank=0, world_size=1, **options):
    options = {"shuffle": True, "lists": "padded", "batch_format": "numpy", **options}
    if "group_by_length" not in options:
        options.setdefault("batch_tokens", 256)
    return headrace.open(path, cache_dir=path.parent / "cache").stream(
        topology=Topology(rank=rank, world_size=world_size), **options
    )


def rows_of(batch):
    return batch["row"][batch["valid"]].tolist()


WIDTHS = st.lists(st.integers(0, 40), max_size=60)


@settings(max_examples=examples(100))
@given(
    WIDTHS,
    st.integers(1, 9),
    st.sampled_from([None, 40, 48, 200]),
    st.sampled_from([1, 8]),
    st.integers(0, 5),
)
def test_a_cut_has_every_row_once_and_no_batch_over_its_bound(
    lengths, rows, tokens, multiple, more
):
    lengths = np.array(lengths, np.int64)
    bound = BatchBound(rows=rows, tokens=tokens, multiple=multiple)
    fewest = bound.fewest(lengths)
    bins = bound.cut(lengths, fewest + more)

    assert fewest + more == len(bins)
    assert list(range(len(lengths))) == sorted(bins.sequences.tolist())
    assert min(len(lengths), fewest + more) == np.count_nonzero(bins.counts)
    for number in range(len(bins)):
        members = bins.bin(number)
        assert len(members) <= rows
        if len(members) and tokens is not None:
            assert len(members) * int(bound.widths(lengths[members]).max()) <= tokens


@settings(max_examples=examples(10))
@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(1, 400),
    st.sampled_from([{"shuffle": False}, {}, {"lanes": 4}, {"lanes": 6, "shuffle_rows": 300}]),
)
def test_every_row_once_equal_steps_and_a_resume_anywhere(
    path, before, after, epoch, tokens, order
):
    options = {"batch_tokens": 200 + tokens, **order}
    first = [stream_of(path, rank=rank, world_size=before, **options) for rank in range(before)]
    for stream in first:
        stream.set_epoch(epoch)
    stop = len(first[0]) * tokens // 400
    got = []
    for stream in first:
        batches = iter(stream)
        for _ in range(stop):
            batch = next(batches)
            assert batch["input_ids"].size <= 200 + tokens
            got += rows_of(batch)
    states = [json.dumps(stream.state_dict()) for stream in first]
    assert 1 == len(set(states))

    steps = set()
    for rank in range(after):
        stream = stream_of(path, rank=rank, world_size=after, **options)
        stream.load_state_dict(json.loads(states[0]))
        later = [rows_of(batch) for batch in stream]
        steps.add((len(later), stream.remaining))
        got += [row for rows in later for row in rows]

    assert list(range(ROWS)) == sorted(got)
    assert 1 == len(steps)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world_size", [1, 3])
def test_prefix_and_resumed_suffix_are_the_uninterrupted_pass(path, world_size, shuffle):
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "shuffle": shuffle}
        whole = [rows_of(batch) for batch in stream_of(path, **options)]
        for stop in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
            stream = stream_of(path, **options)
            batches = iter(stream)
            prefix = [rows_of(next(batches)) for _ in range(stop)]
            later = stream_of(path, **options)
            later.load_state_dict(stream.state_dict())
            assert whole == prefix + [rows_of(batch) for batch in later]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize(
    "options", [{"batch_tokens": 512}, {"batch_size": 12, "group_by_length": "input_ids"}]
)
def test_nearly_all_delivered_values_are_real(tmp_path, world_size, options):
    lengths = np.random.default_rng(1).integers(3, 60, 5000 * world_size)
    path = write_lengths(tmp_path / "many.parquet", lengths, row_group_size=2000)
    streams = [
        stream_of(path, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]
    delivered = [list(stream) for stream in streams]
    real = sum(int(batch["input_ids_lengths"].sum()) for got in delivered for batch in got)
    padded = sum(batch["input_ids"].size for got in delivered for batch in got)

    report = streams[0].report()
    assert (len(lengths), real, padded) == (report.rows, report.tokens, report.padded_tokens)
    assert report.real > 0.97
    assert report.imbalance < 1.03
    loads = np.array([[batch["input_ids"].size for batch in got] for got in delivered])
    slowest = loads.max(axis=0).sum() / loads.mean(axis=0).sum()
    assert math.isclose(slowest, report.imbalance, abs_tol=1e-3)


def test_batches_of_a_number_of_rows_have_that_many(path):
    stream = stream_of(path, batch_size=16, group_by_length="tokens", columns=["row", "tokens"])
    batches = list(stream)

    sizes = np.array([len(batch["row"]) for batch in batches])
    assert (16, -(-ROWS // 16)) == (sizes.max(), len(batches))
    assert sum(np.ptp(batch["tokens"]) for batch in batches) / len(batches) < 3


def test_both_bounds_hold_and_widths_are_multiples(path):
    stream = stream_of(path, batch_tokens=320, batch_size=7, pad_to_multiple_of=8)
    assert "batches of at most 320 tokens" in repr(stream)
    for batch in stream:
        assert len(batch["row"]) <= 7
        assert batch["input_ids"].size <= 320
        assert batch["input_ids"].shape[1] % 8 == 0


def test_steps_have_like_lengths_on_all_ranks_and_epochs_an_order_of_their_own(path):
    ranks = [stream_of(path, rank=rank, world_size=2) for rank in range(2)]
    first = [[batch["input_ids"].shape[1] for batch in stream] for stream in ranks]
    second = [rows_of(batch) for batch in ranks[0]]
    ranks[0].set_epoch(0)

    assert np.abs(np.subtract(*first)).max() <= 4
    assert second != [rows_of(batch) for batch in ranks[0]]


def test_ranks_without_a_row_get_filling_batches(tmp_path):
    path = write_lengths(tmp_path / "few.parquet", [5, 0, 9])
    delivered = [
        list(stream_of(path, rank=rank, world_size=5, batch_tokens=9)) for rank in range(5)
    ]

    assert {1} == {len(batches) for batches in delivered}
    assert [0, 1, 2] == sorted(row for (batch,) in delivered for row in rows_of(batch))
    assert [1] * 5 == [len(batch["valid"]) for (batch,) in delivered]


def test_rows_of_uneven_ranks_end_on_the_same_step(tmp_path):
    """The last window of one rank may hold no row of another."""
    for rows in range(60, 70):
        path = write_lengths(tmp_path / f"{rows}.parquet", [4] * rows)
        delivered = [
            list(
                stream_of(
                    path,
                    rank=rank,
                    world_size=2,
                    batch_size=1,
                    group_by_length="input_ids",
                    lanes=1,
                )
            )
            for rank in range(2)
        ]
        assert 1 == len({len(batches) for batches in delivered})
        assert list(range(rows)) == sorted(
            row for batches in delivered for batch in batches for row in rows_of(batch)
        )


def test_transforms_know_the_places_of_rows(path):
    seen = {}

    def transform(batch, context):
        for row, position in zip(batch["row"].tolist(), context.positions.tolist(), strict=True):
            seen[row] = position
        return batch

    for rank in range(2):
        list(stream_of(path, rank=rank, world_size=2, transform=transform))
    assert list(range(ROWS)) == sorted(seen.values())


def test_a_blend_and_a_filter_are_grouped(path):
    dataset = headrace.open(path, cache_dir=path.parent / "cache")
    options = {"lists": "padded", "batch_format": "numpy", "shuffle": True, "batch_tokens": 256}
    both = headrace.blend([dataset, dataset]).stream(batch_size=256, **options)
    some = dataset.stream(filter=[("row", "<", 100)], **options)

    assert sorted([*range(ROWS)] * 2) == sorted(row for batch in both for row in rows_of(batch))
    assert list(range(100)) == sorted(row for batch in some for row in rows_of(batch))


def test_masked_entities_are_not_valid(path):
    stream = stream_of(path, mask_entities=["7"], entity_column="row")

    assert sorted({*range(ROWS)} - {7}) == sorted(row for b in stream for row in rows_of(b))


@pytest.mark.slow
def test_workers_deliver_the_same_batches_and_a_state_fits_another_number(path):
    alone = [rows_of(batch) for batch in stream_of(path)]
    dataset = headrace.open(path, cache_dir=path.parent / "cache").torch_dataset(
        batch_tokens=256, num_workers=2, shuffle=True, lists="padded", batch_format="numpy"
    )
    stream = stream_of(path, workers=2, transform=dict)

    assert alone == [rows_of(batch) for batch in dataset.data_loader(method="fork")]
    batches = iter(stream)
    prefix = [rows_of(next(batches)) for _ in range(5)]
    later = stream_of(path)
    later.load_state_dict(stream.state_dict())
    stream.close()
    assert alone == prefix + [rows_of(batch) for batch in later]


def test_a_sum_of_losses_over_tokens_gives_the_gradient_of_all_rows(path):
    """Gradients of a step that weights tokens alike are those of one batch of all its rows."""
    ranks = [stream_of(path, rank=rank, world_size=2, batch_format="torch") for rank in range(2)]
    weight = torch.zeros(1, requires_grad=True)
    for step, batches in enumerate(zip(*ranks, strict=True)):
        tokens = sum(batch["input_ids_lengths"].sum() for batch in batches)
        of_ranks = []
        for batch in batches:
            real = torch.arange(batch["input_ids"].shape[1]) < batch["input_ids_lengths"][:, None]
            errors = (batch["input_ids"] / ROWS - weight) ** 2
            loss = (errors * real).sum() * len(ranks) / tokens
            of_ranks.append(torch.autograd.grad(loss, weight)[0])
        values = torch.cat(
            [
                row[:length]
                for batch in batches
                for row, length in zip(batch["input_ids"], batch["input_ids_lengths"], strict=True)
            ]
        )
        together = torch.autograd.grad(((values / ROWS - weight) ** 2).mean(), weight)[0]
        torch.testing.assert_close(together, torch.stack(of_ranks).mean(dim=0))
        with torch.no_grad():
            weight -= 0.1 * together
        if step == 20:
            break
    assert 0.3 < weight.item() < 0.7


def test_a_row_wider_than_a_batch_is_an_error_before_anything_is_read(path):
    with raised(InputError, column="input_ids", remedy="batch_tokens=59") as caught:
        stream_of(path, batch_tokens=40)
    assert caught.value.row >= 1


def test_a_state_of_other_batches_is_refused(path):
    state = stream_of(path).state_dict()
    for options in ({"batch_tokens": 512}, {"batch_tokens": 256, "batch_size": 2}):
        with raised(StreamError, remedy="pass the saved ones, or start the epoch again"):
            stream_of(path, **options).load_state_dict(state)


def test_rows_that_changed_their_lengths_are_found_out(tmp_path):
    path = write_lengths(tmp_path / "d.parquet", [3, 4, 5])
    stream = stream_of(path, shuffle=False)
    stream.passes.lengths[:] = [4, 4, 4]
    with raised(CorruptShard, column="input_ids", remedy="open the dataset again"):
        list(stream)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"batch_tokens": 0}, {"setting": "batch_tokens", "value": 0}),
        ({"group_by_length": ""}, {"setting": "group_by_length", "value": ""}),
        ({"group_by_length": "text"}, {"column": "text"}),
        ({"group_by_length": "nothing"}, {"column": "nothing"}),
        ({"remainder": "drop"}, {"setting": "remainder", "value": "drop"}),
        ({"balance": "flops"}, {"setting": "balance", "value": "flops"}),
        ({"pack": 100}, {"remedy": "leave one of them out"}),
        ({"distribution": "by_size"}, {"setting": "distribution", "value": "by_size"}),
        ({"batch_tokens": None, "lists": "ragged"}, {"setting": "batch_size"}),
    ],
)
def test_settings_that_do_not_fit_say_so(path, options, fields):
    with raised(SettingsError, **fields):
        stream_of(path, **{"batch_tokens": 256, **options})


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch with gloo")
def test_two_ranks_train_in_step_and_resume_to_the_same_weights(path, tmp_path):
    run_ranks(train, 2, str(tmp_path), str(path), 2)
    rows = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]

    assert len(rows[0]) == len(rows[1])
    assert list(range(ROWS)) == sorted(row for got in rows for batch in got for row in batch)
