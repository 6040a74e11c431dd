"""Contexts through Grain: one to one, the same however they are read, stopped and shared out."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from prepared_histories import prepared

grain = pytest.importorskip("grain")

import headrace.grain as headrace_grain  # noqa: E402 - only where grain is
from headrace.contexts import open_contexts  # noqa: E402
from headrace.errors import SettingsError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("grain"), small=150, large=3)


def same(first, second):
    return first.keys() == second.keys() and all(
        (first[name] == second[name]).all() for name in first
    )


@pytest.mark.slow
def test_element_i_is_context_i_and_repeat_brings_new_epochs(out):
    contexts = open_contexts(out, seed=4)
    dataset = headrace_grain.contexts(out, seed=4)
    count = len(dataset)

    assert count == len(contexts)
    assert all(same(dataset[place], contexts[place]) for place in range(0, count, 7))
    repeated = dataset.repeat(3)
    assert len(repeated) == 3 * count
    assert all(same(repeated[place], contexts[place]) for place in range(count, 3 * count, 11))
    assert not same(repeated[0], repeated[count])


def test_hosts_share_an_epoch_without_overlap(out):
    dataset = headrace_grain.contexts(out)
    hosts = [list(dataset[host::3]) for host in range(3)]

    assert len(dataset) == sum(map(len, hosts))
    for host, elements in enumerate(hosts):
        assert all(same(each, dataset[host + 3 * place]) for place, each in enumerate(elements))


def test_batches_are_the_contexts_in_order_over_the_ends_of_epochs(out):
    contexts = open_contexts(out)
    dataset = headrace_grain.contexts(out, "train", np.int64(8))
    batches = [dataset[place] for place in range(2 * len(dataset))]
    together = {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}

    assert same(together, contexts.batch(range(len(together["inputs"]))))
    assert all(each.shape == (8, 1024) and each.dtype == np.int32 for each in batches[0].values())
    by_grain = list(headrace_grain.contexts(out).batch(8, drop_remainder=True))
    assert len(by_grain) == len(dataset)
    assert all(same(each, batches[place]) for place, each in enumerate(by_grain))


@pytest.mark.slow
def test_a_state_resumes_exactly_at_fifty_random_points(out):
    dataset = headrace_grain.contexts(out, "train", 2).repeat(4)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    random = np.random.default_rng(0)
    iterator = iter(dataset.to_iter_dataset(options))
    states, elements = [], []
    for _ in range(60):
        states.append(iterator.get_state())
        elements.append(next(iterator))

    for point in random.integers(0, 58, 50).tolist():
        fresh = iter(dataset.to_iter_dataset(options))
        fresh.set_state(states[point])
        assert same(next(fresh), elements[point])
        assert same(next(fresh), elements[point + 1])


def test_the_elastic_iterator_takes_it(out):
    dataset = headrace_grain.contexts(out)
    shards = grain.sharding.ShardOptions(shard_index=0, shard_count=1)
    iterator = grain.experimental.ElasticIterator(dataset, 4, shards)

    assert same(next(iterator), headrace_grain.contexts(out, "train", 4)[0])


def together(iterators, steps):
    """What all hosts see, in the order of the contexts: element i of a host is one of every `hosts`."""
    rows = []
    for _ in range(steps):
        batches = [next(each) for each in iterators]
        for place in range(len(batches[0]["inputs"])):
            rows += [{name: array[place] for name, array in each.items()} for each in batches]
    return rows


@pytest.mark.slow
@pytest.mark.smoke("2-3-12")
@pytest.mark.parametrize(
    ("before", "after", "batch_after"), [(1, 1, 12), (2, 3, 12), (4, 1, 12), (3, 2, 8)]
)
def test_a_state_of_any_host_resumes_on_any_number_of_hosts(out, before, after, batch_after):
    dataset = headrace_grain.contexts(out, context_tokens=128)
    hosts = [headrace_grain.elastic(dataset, 12, host=host, hosts=before) for host in range(before)]
    seen = together(hosts, 3)
    states = [each.get_state() for each in hosts]
    others = [
        headrace_grain.elastic(dataset, batch_after, host=host, hosts=after)
        for host in range(after)
    ]
    for each in others:
        each.set_state(states[-1])
    seen += together(others, 2)

    assert all(state == states[0] for state in states)
    assert 36 + 2 * batch_after == len(seen)
    expected = open_contexts(out, context_tokens=128).batch(range(len(seen)))
    assert same(expected, {name: np.stack([each[name] for each in seen]) for name in expected})


def test_hosts_go_on_into_the_next_epoch_and_end_with_less_than_a_batch_left(out):
    dataset = headrace_grain.contexts(out)
    hosts = [headrace_grain.elastic(dataset, 6, host=host, hosts=2, epochs=2) for host in range(2)]
    seen = together(hosts, 2 * len(dataset) // 6)

    assert all(next(each, None) is None for each in hosts)
    expected = open_contexts(out).batch(range(len(seen)))
    assert same(expected, {name: np.stack([each[name] for each in seen]) for name in expected})


def test_what_is_read_ahead_is_bounded_in_bytes_of_batches(out):
    dataset = headrace_grain.contexts(out)
    iterator = headrace_grain.elastic(
        dataset, 64, hosts=2, buffer_bytes=32 * 6 * dataset.element_bytes
    )

    assert 6 == iterator._read_options.prefetch_buffer_size


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"hosts": 3},
            "global_batch_size is 8: 3 hosts cannot share it alike; give a multiple of 3",
        ),
        ({"host": 2, "hosts": 2}, "host is 2: there are 2 hosts; count them from 0"),
        ({"hosts": 0}, "hosts is 0; expected an integer of 1 or more"),
        ({"host": -1}, "host is -1; expected an integer of 0 or more"),
        ({"global_batch_size": 0}, "global_batch_size is 0; expected"),
        ({"batch_size": 4}, "batch_size is 4: the dataset has batches already"),
    ],
)
def test_elastic_says_what_cannot_be_shared_out(out, settings, message):
    dataset = headrace_grain.contexts(out, "train", settings.get("batch_size"))
    arguments = {
        "global_batch_size": 8,
        **{name: value for name, value in settings.items() if name != "batch_size"},
    }

    with pytest.raises(SettingsError, match=message):
        headrace_grain.elastic(dataset, **arguments)


@pytest.mark.slow
def test_worker_processes_of_a_plain_script_bring_the_same(out, tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        textwrap.dedent(f"""
        import grain, headrace.grain, hashlib
        if __name__ == "__main__":
            dataset = headrace.grain.contexts({str(out)!r}, "train", 4)
            plain = dataset.to_iter_dataset(headrace.grain.read_options(dataset))
            workers = plain.mp_prefetch(grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=1))
            digest = lambda batches: [hashlib.md5(b"".join(v.tobytes() for v in b.values())).hexdigest() for b in batches]
            assert len(digest(plain)) > 5
            assert digest(plain) == digest(workers)
            print("same")
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=250
    )

    assert "same" in done.stdout, done.stderr


def test_read_options_are_sized_in_bytes(out):
    one, many = headrace_grain.contexts(out), headrace_grain.contexts(out, "train", 16)

    assert one.element_bytes == sum(array.nbytes for array in one[0].values())
    assert many.element_bytes == 16 * one.element_bytes
    assert (
        headrace_grain.read_options(many, buffer_bytes=8 * many.element_bytes).prefetch_buffer_size
        == 8
    )
    assert headrace_grain.read_options(one).prefetch_buffer_size == 500
    assert (
        headrace_grain.read_options(many, buffer_bytes=1, num_threads=3).prefetch_buffer_size == 3
    )


def test_a_batch_larger_than_an_epoch_is_refused(out):
    with pytest.raises(SettingsError, match="an epoch has"):
        headrace_grain.contexts(out, "train", 1_000_000)
    with pytest.raises(SettingsError, match="batch_size"):
        headrace_grain.contexts(out, "train", 0)


@pytest.mark.slow
def test_without_grain_the_extra_is_named():
    code = "import sys; sys.modules['grain'] = None\nimport headrace.errors\ntry:\n import headrace.grain\nexcept headrace.errors.MissingExtra as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "pip install 'headrace[grain]'" in done.stdout


def test_importing_headrace_does_not_import_grain_or_numba():
    code = "import sys, headrace; print([each for each in ('grain', 'numba', 'torch') if each in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path.cwd()
    )

    assert done.stdout.strip() == "[]"
