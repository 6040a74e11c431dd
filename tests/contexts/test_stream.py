"""Streams of contexts: the contexts of every position, in tensors too; foreign states and damage are refused."""

import gc
import json
import pickle
import threading

import numpy as np
import pytest
from damaged_states import resealed
from prepared_histories import prepared
from stream_cases import ranks

from headrace.contexts import open_contexts
from headrace.errors import CorruptShard, SettingsError, StreamError

ALONE = ranks(1)[0]
OPTIONS = {"context_tokens": 128, "seed": 5, "rows": "measurements"}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("stream"), small=60, large=2, large_n=900)


@pytest.fixture(scope="module")
def contexts(out):
    return open_contexts(out, **OPTIONS)


def stream(contexts, **options):
    return contexts.stream(
        **{"batch_size": 16, "topology": ALONE, "batch_format": "numpy", **options}
    )


def test_an_epoch_has_the_contexts_of_its_positions_in_their_order(contexts):
    loader, count = stream(contexts), len(contexts)
    for epoch in range(2):
        together = {}
        for batch in loader:
            for name, array in batch.items():
                together.setdefault(name, []).append(array)
        expected = contexts.batch(range(epoch * count, (epoch + 1) * count))

        assert {*expected, "valid"} == set(together)
        assert np.concatenate(together["valid"]).all()
        for name, array in expected.items():
            np.testing.assert_array_equal(array, np.concatenate(together[name]))


def test_a_state_of_a_later_epoch_goes_on_there(contexts):
    loader = stream(contexts)
    loader.set_epoch(3)
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [batch["inputs"] for batch in batches]
    again = stream(pickle.loads(pickle.dumps(contexts)), batch_size=16, read_threads=1)
    again.load_state_dict(state)

    assert (3, 16) == (state["epoch"], state["position"])
    for expected, batch in zip(rest, again, strict=True):
        np.testing.assert_array_equal(expected, batch["inputs"])
    np.testing.assert_array_equal(rest[0], contexts.batch(range(3 * len(contexts) + 16, 3 * len(contexts) + 32))["inputs"])  # fmt: skip


def test_batches_are_tensors_unless_arrays_are_asked_for(contexts):
    torch = pytest.importorskip("torch")
    arrays = next(iter(stream(contexts)))
    tensors = next(iter(stream(contexts, batch_format="torch")))

    assert arrays.keys() == tensors.keys()
    for name, array in arrays.items():
        assert torch.equal(torch.from_numpy(array), tensors[name])


def test_a_transform_is_told_the_positions(contexts):
    seen = []

    def noted(batch, context):
        seen.append(context.positions.tolist())
        return batch

    for loader in [
        stream(contexts, topology=each, transform=noted, remainder="drop") for each in ranks(2)
    ]:
        list(loader)

    assert list(range(len(contexts) // 32 * 32)) == sorted(sum(seen, []))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"rows": "uniform"}, "the options of windows or contexts"),
        ({"shuffle": "rows"}, "the options of windows or contexts, shuffle="),
        ({"shuffle": "none"}, "the options of windows or contexts, shuffle="),
        ({"context_tokens": 256}, "the options of windows or contexts"),
        ({"max_segments": 2}, "the options of windows or contexts"),
        ({"seed": 6}, "saved with seed=5"),
    ],
)
def test_states_of_other_contexts_are_refused(out, contexts, others, message):
    state = stream(contexts).state_dict()

    with pytest.raises(StreamError, match=message):
        stream(open_contexts(out, **{**OPTIONS, **others})).load_state_dict(state)


def test_states_of_another_split_and_changed_states_are_refused(out, contexts):
    loader = stream(contexts)
    state = loader.state_dict()

    with pytest.raises(StreamError, match="it is of split 'train'"):
        stream(open_contexts(out, "test", **OPTIONS)).load_state_dict(state)
    for change, message in (
        ({"rows": 10**6}, "with 1,000,000 rows when saved"),
        ({"chunk": 0, "pass_number": 0}, "chunk 0 of pass 0, here chunk None"),
        ({"changes": [{"position": 0, "ranks": 3}]}, "is not one that this stream gives"),
        ({"position": len(contexts) + 1}, "position is"),
    ):
        with pytest.raises(StreamError, match=message):
            loader.load_state_dict(resealed(state, **change))


def test_keys_and_cache_change_no_place_in_an_epoch(out, contexts):
    state = stream(contexts).state_dict()
    other = stream(open_contexts(out, **{**OPTIONS, "keys": "four", "cache_bytes": 0}))
    other.load_state_dict(state)

    assert state == other.state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_format": "arrow"}, "batch_format is 'arrow'; expected one of torch, numpy"),
        ({"remainder": "exact", "topology": ranks(2)[0]}, 'remainder="exact" gives a last batch'),
        ({"workers": -1}, "workers is -1"),
    ],
)
def test_options_that_cannot_work_are_refused(contexts, options, message):
    with pytest.raises(SettingsError, match=message):
        stream(contexts, **options)


def test_no_thread_outlives_a_stream_that_was_left(contexts):
    before = set(threading.enumerate())
    batches = iter(stream(contexts, read_threads=3))
    next(batches)
    begun = [
        each
        for each in set(threading.enumerate()) - before
        if each.name.startswith("headrace-contexts")
    ]
    batches.close()
    gc.collect()

    assert begun
    for each in begun:
        each.join(120)
    assert not [each for each in begun if each.is_alive()]


def test_a_damaged_shard_ends_the_stream(tmp_path):
    out = prepared(tmp_path, small=60, large=2, large_n=900)
    contexts = open_contexts(out, **OPTIONS)
    count = len(stream(contexts))  # lists rows, and opens the shards of small ones
    for name in contexts.rows._shards:
        shard = contexts.rows.root / name
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.chmod(0o644)
        shard.write_bytes(bytes(data))

    assert count
    with pytest.raises(CorruptShard):
        list(stream(open_contexts(out, **OPTIONS)))
