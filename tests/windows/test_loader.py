"""The laws of a stream of windows: once each over all ranks, equal steps, one order, resume = uninterrupted."""

import gc
import json
import threading
import time

import numpy as np
import pytest
from damaged_states import resealed
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rank_processes import run_ranks
from series_cases import expected_windows, window_ids, write_run
from window_rank_cases import train_on_rank

import headrace.windows
from headrace.errors import SettingsError, StreamError
from headrace.sealed import seal
from headrace.series.windows.loader import Chunked
from headrace.stream.order.state import FORMAT_VERSION
from headrace.stream.ranks.topology import Topology
from laws import examples
from raised import raised

RULE = {"input_length": 5, "output_length": 2}
LENGTHS = (60, 45, 80, 30, 52, 70, 66)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    out = tmp_path_factory.mktemp("series")
    values = write_run(out, LENGTHS)
    return headrace.windows.open(out, "train", **RULE), expected_windows(values, "train", **RULE)


def streams(dataset, world, **options):
    return [
        dataset.stream(
            topology=Topology(rank=rank, world_size=world), **{"batch_format": "numpy", **options}
        )
        for rank in range(world)
    ]


def received(stream, steps=None):
    """The windows of each batch of a pass, up to so many."""
    batches = []
    for batch in stream:
        ids = window_ids(batch)
        real = batch["valid"] if "valid" in batch else np.ones(len(ids), bool)
        batches.append([each for each, valid in zip(ids, real, strict=True) if valid])
        if len(batches) == steps:
            break
    return batches


def in_order(ranks):
    """The windows of all ranks by position: step by step, the ranks' windows in turn."""
    found = []
    for step in zip(*ranks, strict=True):
        longest = max(map(len, step))
        found += [batch[place] for place in range(longest) for batch in step if place < len(batch)]
    return found


ORDERS = st.one_of(
    st.fixed_dictionaries({"shuffle": st.sampled_from(["everywhere", "none"])}),
    st.fixed_dictionaries(
        {
            "shuffle": st.just("nearby"),
            "lanes": st.integers(1, 7),
            "lane_windows": st.integers(1, 30),
        }
    ),
)
CHUNKS = st.sampled_from([{}, {"chunk_size": 3}])


@settings(max_examples=examples(60))
@given(
    ORDERS,
    CHUNKS,
    st.integers(1, 4),
    st.integers(1, 50),
    st.sampled_from(["pad", "drop"]),
    st.integers(0, 3),
)
def test_every_window_comes_once_over_all_ranks_in_equal_steps(
    dataset, order, chunks, world, size, remainder, seed
):
    data, expected = dataset
    options = {**order, **chunks, "batch_size": size, "remainder": remainder, "seed": seed}
    windows_of_first_epoch = len(streams(data, 1, **{**options, "batch_size": 1})[0])
    assume(remainder == "pad" or world * size <= windows_of_first_epoch)  # else "drop" refuses
    ranks = streams(data, world, **options)
    alone = streams(data, 1, **{**options, "batch_size": 11, "remainder": "exact"})[0]
    epochs = -(-7 // 3) if "chunk_size" in chunks else 1
    seen = []

    for _ in range(epochs):
        steps = {len(each) for each in ranks}
        batches = [received(each) for each in ranks]
        order_alone = in_order([received(alone)])

        assert 1 == len(steps)
        assert {len(each) for each in batches} == steps
        together = in_order(batches)
        if remainder == "pad":
            assert order_alone == together  # the same order for any number of ranks and batch size
        else:
            assert order_alone[: len(together)] == together
            assert len(order_alone) - len(together) < world * size
        seen += order_alone
    assert expected == sorted(seen)


@settings(max_examples=examples(40))
@given(
    ORDERS,
    CHUNKS,
    st.tuples(*[st.integers(1, 3)] * 3),
    st.tuples(*[st.integers(1, 20)] * 3),
    st.data(),
)
def test_a_stream_resumes_on_any_ranks_as_if_it_had_not_stopped(
    dataset, order, chunks, worlds, sizes, data
):
    opened, _ = dataset
    options = {**order, **chunks, "remainder": "pad", "seed": 5}
    whole = in_order([received(streams(opened, 1, **{**options, "batch_size": 16})[0])])
    state, found = None, []

    for world, size in zip(worlds, sizes, strict=True):
        ranks = streams(opened, world, **{**options, "batch_size": size})
        for each in ranks:
            if state:
                each.load_state_dict(state)
        steps = data.draw(st.integers(0, len(ranks[0])))
        batches = [received(each, steps) if steps else [] for each in ranks]
        found += in_order(batches)
        states = [json.loads(json.dumps(each.state_dict())) for each in ranks]
        assert all(each == states[0] for each in states)
        state = states[0]
    last = streams(opened, 1, **{**options, "batch_size": 10})[0]
    last.load_state_dict(state)
    left = last.remaining
    rest = received(last)

    assert left == len(rest)
    assert whole == found + in_order([rest])
    assert in_order([received(last)])  # and on with the next epoch
    assert 1 == last.epoch


def test_a_state_says_where_the_pass_is_as_that_of_every_loader(dataset, caplog):
    data, _ = dataset
    stream, other = streams(data, 1, batch_size=20)[0], streams(data, 1, batch_size=20)[0]
    fresh, state = stream.state_dict(), stream.state_after(3)
    received(stream, 3)

    assert state == stream.state_dict()
    assert fresh == stream.epoch_start()
    other.load_state_dict(state)
    assert (False, True) == (stream.partial_epoch, other.partial_epoch)
    assert fresh == other.epoch_start()
    with raised(StreamError, setting="batches", value=100):
        other.state_after(100)
    received(stream)
    assert "epoch 0: was left after 3 batches and starts again" in caplog.text


def test_another_epoch_or_seed_has_another_order(dataset):
    data, _ = dataset
    stream, other = streams(data, 1, batch_size=20)[0], streams(data, 1, batch_size=20, seed=1)[0]
    first, second = received(stream), received(stream)
    stream.set_epoch(0)

    assert sorted(sum(first, [])) == sorted(sum(second, []))
    assert first != second
    assert first == received(stream)
    assert first != received(other)


def test_looking_at_one_batch_moves_nothing(dataset):
    data, _ = dataset
    stream, other = streams(data, 1, batch_size=20), streams(data, 1, batch_size=20)
    received(stream[0], 1)

    assert received(other[0]) == received(stream[0])


def test_a_nearby_order_reads_in_few_places_and_an_order_everywhere_in_many(dataset):
    data, _ = dataset
    spread = {}
    for shuffle in ("nearby", "everywhere"):
        stream = streams(data, 1, batch_size=40, shuffle=shuffle, lanes=1, lane_windows=40)[0]
        batches = received(stream)
        spread[shuffle] = np.mean([len({entity for entity, _ in batch}) for batch in batches])

    assert spread["nearby"] < 3
    assert spread["everywhere"] > 5


def test_a_state_of_the_middle_of_a_chunk_says_pass_chunk_and_position(dataset):
    """T8: the place among chunks is in the state, and nothing else is needed to go on there."""
    data, expected = dataset
    stream = streams(data, 1, batch_size=8, chunk_size=3)[0]
    for _ in range(4):  # a whole pass of three chunks, and one more
        received(stream)
    iterator = iter(stream)
    before = [window_ids(next(iterator)) for _ in range(2)]
    state = stream.state_dict()
    rest = [window_ids(batch) for batch in iterator]

    assert (1, 1, 16) == (state["pass_number"], state["chunk"], state["position"])
    again = streams(data, 1, batch_size=8, chunk_size=3)[0]
    again.load_state_dict(state)
    assert rest == received(again)
    again.set_epoch(state["epoch"])  # as Lightning says it once more
    assert 4 == again.epoch
    chunk = {entity for batch in before + rest for entity, _ in batch}
    assert sorted(sum(before + rest, [])) == [each for each in expected if each[0] in chunk]


def test_chunks_are_the_same_on_all_ranks_and_differ_from_pass_to_pass(dataset):
    """T7, T9"""
    data, _ = dataset
    passes = []
    for rank in streams(data, 2, batch_size=8, chunk_size=2):
        chunks = [rank.epochs.windows(epoch).per_entity.nonzero()[0].tolist() for epoch in range(8)]
        assert [rank.epochs.entities(epoch).tolist() for epoch in range(8)] == chunks
        passes.append(chunks)
        rank.epochs.close()

    assert passes[0] == passes[1]
    assert sorted(sum(passes[0][:4], [])) == list(range(7))
    assert sorted(sum(passes[0][4:], [])) == list(range(7))
    assert passes[0][:4] != passes[0][4:]


def test_asking_again_for_an_epoch_reads_nothing_and_the_next_chunk_is_read_meanwhile(
    dataset, monkeypatch
):
    data, _ = dataset
    epochs = Chunked(data.windows, seed=0, chunk_size=2)
    loaded = []
    load = epochs._load
    monkeypatch.setattr(
        epochs,
        "_load",
        lambda epoch: loaded.append((epoch, threading.current_thread().name)) or load(epoch),
    )

    first = epochs.windows(0)
    again = epochs.windows(0)
    second = epochs.windows(1)
    epochs.close()

    assert first is again
    assert [0, 1, 2] == [epoch for epoch, _ in loaded]
    assert all("headrace-chunk" in name for _, name in loaded[1:])
    assert second.per_entity.sum() == epochs.count(1)


def test_what_reading_ahead_raises_comes_when_its_chunk_is_asked_for(dataset, monkeypatch):
    data, _ = dataset
    epochs = Chunked(data.windows, seed=0, chunk_size=2)
    load = epochs._load

    def lost(epoch):
        if epoch == 1:
            raise OSError("the disk went away")
        return load(epoch)

    monkeypatch.setattr(epochs, "_load", lost)
    epochs.windows(0)

    with pytest.raises(OSError, match="the disk went away"):
        epochs.windows(1)
    epochs.close()


def test_no_thread_outlives_a_stream_of_chunks(dataset):
    data, _ = dataset
    before = set(threading.enumerate())

    def own():
        return [
            each for each in set(threading.enumerate()) - before if each.name.startswith("headrace")
        ]

    stream = streams(data, 1, batch_size=8, chunk_size=2)[0]
    received(stream)
    seen, load = threading.Event(), stream.epochs._load

    def held(epoch):
        assert epoch == 1 or seen.wait(120)
        return load(epoch)

    stream.epochs.close()
    stream.epochs._load = held
    batches = iter(stream)
    next(batches)
    begun = own()
    seen.set()
    del batches, stream
    gc.collect()

    end = time.monotonic() + 120
    while (left := own()) and time.monotonic() < end:
        left[0].join(1)
    assert begun
    assert not own()


def test_torch_batches_hold_the_same_numbers_without_copies(dataset):
    import torch

    data, _ = dataset
    arrays = next(iter(streams(data, 1, batch_size=30)[0]))
    tensors = next(iter(data.stream(batch_size=30, topology=Topology(rank=0, world_size=1))))

    assert arrays.keys() == tensors.keys()
    for name, values in arrays.items():
        assert isinstance(tensors[name], torch.Tensor)
        np.testing.assert_array_equal(
            values.view(np.int64) if name == "input_end_date" else values, tensors[name]
        )
    assert torch.float32 == tensors["X"].dtype
    assert tensors["X"].untyped_storage().data_ptr() == tensors["y"].untyped_storage().data_ptr() or not tensors["X"].is_contiguous()  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 9}, "format_version is 9"),
        ({"kind": "window"}, "it is a state of kind 'window'"),
        ({"lanes": 1 << 30}, "lanes is 1073741824"),
        ({"position": 10**6}, "position is 1000000: expected 0..121"),
        ({"position": -1}, "position is -1"),
        ({"shuffle": "some"}, "shuffle is 'some'"),
        ({"shuffle": False}, "saved with shuffle=False, this stream has shuffle=True"),
        ({"seed": 4}, "saved with seed=4"),
        ({"index": "x"}, "with index 'x', this stream reads 'train'"),
        ({"split": "val"}, "it is of split 'val'"),
        ({"epoch": "1"}, "epoch is '1'"),
        ({"lanes": 0}, "lanes is 0"),
        ({"rows": 10**6}, "with 1,000,000 rows when saved"),
        ({"chunk": 1, "pass_number": 0}, "chunk 1 of pass 0, here chunk None of pass None"),
        ({"chunk": True}, "chunk is True: expected an integer"),
    ],
)
def test_states_that_do_not_fit_are_refused(dataset, change, message):
    data, _ = dataset
    stream = streams(data, 1, batch_size=8)[0]

    with pytest.raises(StreamError, match=message):
        stream.load_state_dict(resealed(stream.state_dict(), **change))
    with pytest.raises(StreamError, match="its digest is|" + message):
        stream.load_state_dict({**stream.state_dict(), **change})
    with pytest.raises(StreamError, match="keys missing"):
        stream.load_state_dict(seal("stream", FORMAT_VERSION, {}))


def test_a_state_of_other_chunks_is_refused(dataset):
    data, _ = dataset
    state = streams(data, 1, batch_size=8, chunk_size=2)[0].state_dict()

    with pytest.raises(StreamError, match="or the chunks are others than when it was saved"):
        streams(data, 1, batch_size=8, chunk_size=3)[0].load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"shuffle": True}, "shuffle is True; expected one of everywhere, nearby, none"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"chunk_size": 1.5}, "chunk_size is 1.5"),
        ({"remainder": "repeat"}, "remainder is 'repeat'"),
        ({"batch_format": "jax"}, "expected one of torch, numpy"),
        ({"lanes": 0}, "lanes is 0"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_options_that_cannot_work_are_said(dataset, options, message):
    with pytest.raises(SettingsError, match=message):
        streams(dataset[0], 1, **{"batch_size": 8, **options})


def test_two_passes_at_a_time_are_an_error(dataset):
    stream = streams(dataset[0], 1, batch_size=8)[0]
    one, other = iter(stream), iter(stream)
    next(one)
    next(other)

    with raised(StreamError, remedy="finish one before the next, or make a second"):
        next(one)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_remainder_of_one_window_has_equal_steps_and_valid_everywhere(dataset, world):
    data, expected = dataset
    size = next(each for each in range(2, len(expected)) if len(expected) % (each * world) == 1)
    ranks = [list(stream) for stream in streams(data, world, batch_size=size, remainder="pad")]

    assert 1 == len({len(batches) for batches in ranks})
    for step in zip(*ranks, strict=True):
        assert all(size == len(batch["valid"]) for batch in step)
        assert any(batch["valid"].any() for batch in step)
        assert all(
            np.isfinite(batch["X"]).all() for batch in step
        )  # filling windows are real ones repeated
    assert 1 == sum(int(batch["valid"].sum()) for batch in (batches[-1] for batches in ranks))
    assert len(expected) == sum(int(batch["valid"].sum()) for batches in ranks for batch in batches)


@pytest.mark.slow
def test_a_loop_on_two_ranks_survives_a_remainder_of_one_window(tmp_path):
    write_run(tmp_path / "out", LENGTHS, missing=0)
    count = len(headrace.windows.open(tmp_path / "out", "train", **RULE))
    size = next(each for each in range(2, count) if count % (2 * each) == 1)
    run_ranks(train_on_rank, 2, 2, str(tmp_path / "out"), str(tmp_path), size)

    one, two = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert len(one["steps"]) == len(two["steps"])
    assert ([1, 1], [0, 1]) == (one["steps"][-1][:2], two["steps"][-1][:2])
    assert count == sum(own for each in (one, two) for own, _, _ in each["steps"])
    assert np.isfinite([loss for each in (one, two) for _, _, loss in each["steps"]]).all()
    assert one["weights"] == two["weights"]
    assert np.isfinite(one["weights"]).all()


def test_waits_are_counted_and_rows_are_windows_without_filling_ones(dataset):
    opened, expected = dataset
    windows = 0
    for stream in streams(opened, 3, batch_size=7):
        own = sum(int(batch["valid"].sum()) for batch in stream)
        stats = stream.stats()
        assert (len(list(stream)), own) == (stats.steps, stats.rows)
        assert stats.waited_s >= stats.max_wait_s >= stats.p50_wait_s >= 0
        windows += own

    assert len(expected) == windows
