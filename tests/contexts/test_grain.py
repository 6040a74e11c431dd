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
    return first.keys() == second.keys() and all((first[name] == second[name]).all() for name in first)


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
    dataset = headrace_grain.contexts(out, "train", 8)
    batches = [dataset[place] for place in range(2 * len(dataset))]
    together = {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}

    assert same(together, contexts.batch(range(len(together["inputs"]))))
    assert all(each.shape == (8, 1024) and each.dtype == np.int32 for each in batches[0].values())
    by_grain = list(headrace_grain.contexts(out).batch(8, drop_remainder=True))
    assert len(by_grain) == len(dataset)
    assert all(same(each, batches[place]) for place, each in enumerate(by_grain))


def test_a_state_resumes_exactly_at_fifty_random_points(out):
    dataset = headrace_grain.contexts(out, "train", 2, kernel="numpy").repeat(4)
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


def test_worker_processes_of_a_plain_script_bring_the_same(out, tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        textwrap.dedent(f"""
        import grain, headrace.grain, hashlib
        if __name__ == "__main__":
            dataset = headrace.grain.contexts({str(out)!r}, "train", 4, kernel="numpy")
            plain = dataset.to_iter_dataset(headrace.grain.read_options(dataset))
            workers = plain.mp_prefetch(grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=1))
            digest = lambda batches: [hashlib.md5(b"".join(v.tobytes() for v in b.values())).hexdigest() for b in batches]
            assert len(digest(plain)) > 5
            assert digest(plain) == digest(workers)
            print("same")
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=250)

    assert "same" in done.stdout, done.stderr


def test_read_options_are_sized_in_bytes(out):
    one, many = headrace_grain.contexts(out), headrace_grain.contexts(out, "train", 16)

    assert one.element_bytes == sum(array.nbytes for array in one[0].values())
    assert many.element_bytes == 16 * one.element_bytes
    assert headrace_grain.read_options(many, buffer_bytes=8 * many.element_bytes).prefetch_buffer_size == 8
    assert headrace_grain.read_options(one).prefetch_buffer_size == 500
    assert headrace_grain.read_options(many, buffer_bytes=1, num_threads=3).prefetch_buffer_size == 3


def test_a_batch_larger_than_an_epoch_is_refused(out):
    with pytest.raises(SettingsError, match="an epoch has"):
        headrace_grain.contexts(out, "train", 1_000_000)
    with pytest.raises(SettingsError, match="batch_size"):
        headrace_grain.contexts(out, "train", 0)


def test_without_grain_the_extra_is_named():
    code = "import sys; sys.modules['grain'] = None\nimport headrace.errors\ntry:\n import headrace.grain\nexcept headrace.errors.MissingExtra as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "pip install 'headrace[grain]'" in done.stdout


def test_importing_headrace_does_not_import_grain_or_numba():
    code = "import sys, headrace; print([each for each in ('grain', 'numba', 'torch') if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path.cwd())

    assert done.stdout.strip() == "[]"
