"""Workers of a stream stay from pass to pass, its batches are those of a stream without, and it leaves nothing."""

import contextlib
import gc
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
import time

import pytest
import staying_cases
from staying_cases import (
    ROWS,
    DeadlyOnce,
    drawn,
    failing,
    gates,
    held,
    held_before,
    number_worker,
    refuse_to_begin,
    rows_of,
    slow,
    stream_of,
    unsendable,
    with_process,
    write_shards,
)
from worker_cases import alike

from headrace.errors import EngineError, SettingsError, StreamError
from raised import raised

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

METHODS = [
    pytest.param(method, marks=() if method == "fork" else pytest.mark.slow)
    for method in ("fork", "spawn", "forkserver")
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("staying"))


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


# --- the batches


@pytest.mark.parametrize("method", METHODS)
def test_all_passes_are_those_without_workers_by_the_same_processes(shards, method):
    alone = stream_of(shards, 0, transform=drawn)
    stream = stream_of(shards, 2, transform=drawn, multiprocessing_context=method)
    assert [] == stream.worker_processes
    whole = alike(alone)
    assert whole == alike(stream)
    first = stream.worker_processes
    assert len(set(first)) == 2

    for each in (alone, stream):  # left after some batches
        each.set_epoch(4)
        begun = alike(itertools.islice(each, 5))
    assert alike(alone) == alike(stream)
    assert begun == alike(itertools.islice(stream_of_epoch(shards, 4), 5))

    batches = iter(stream)  # in the midst of an epoch
    begun = alike(itertools.islice(batches, 3))
    state = json.loads(json.dumps(stream.state_dict()))
    del batches
    for each in (alone, stream):
        each.load_state_dict(state)
    assert alike(alone) == alike(stream)
    assert first == stream.worker_processes
    assert all(map(is_alive, first))


def stream_of_epoch(shards, epoch):
    stream = stream_of(shards, 0, transform=drawn)
    stream.set_epoch(epoch)
    return stream


@pytest.mark.parametrize("batch_format", ["torch", "numpy", "arrow", "rows"])
def test_batches_of_every_form_arrive_as_without_workers(shards, batch_format):
    settings = {"batch_format": batch_format, "columns": ["row", "half", "text"]}
    assert alike(stream_of(shards, 0, **settings)) == alike(stream_of(shards, 3, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"prefetch_factor": 1},
        {"prefetch_factor": 7},
        {"prefetch_bytes": 0},
        {"device": "cpu"},
        {"distribution": "dynamic"},
        {"transform": None},
    ],
    ids=str,
)
def test_no_setting_changes_batches_or_states(shards, settings):
    alone_settings = {name: settings[name] for name in settings if name != "prefetch_factor"}
    alone, stream = stream_of(shards, 0, **alone_settings), stream_of(shards, 2, **settings)
    for one, other in zip(alone, stream, strict=True):
        assert alike([one]) == alike([other])
        if settings.keys() != {"distribution"}:  # its states name the stream
            assert alone.state_dict() == stream.state_dict()
    assert rows_of(alone) == rows_of(stream)


def test_large_batches_do_not_hold_each_other_up(shards):
    """More than a pipe holds, in both directions at once."""
    settings = {"batch_size": 265, "transform": staying_cases.grown, "shuffle": False}
    stream = stream_of(shards, 1, prefetch_factor=8, **settings)
    for _ in range(2):
        assert [265, 265] == [len(batch["large"]) // 1000 for batch in stream]


def test_a_worker_begins_with_its_number_once(shards):
    stream = stream_of(
        shards, 2, transform=with_process, worker_init_fn=number_worker, prefetch_factor=1
    )
    for _ in range(2):
        batches = list(stream)
        assert [0, 1] * (len(batches) // 2) == [
            batch["number"] for batch in batches[: len(batches) // 2 * 2]
        ]
        assert set(stream.worker_processes) == {batch["process"] for batch in batches}


# --- errors and ends


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"transform": failing},
            r"worker \d: batch \d+ .*failing raised ZeroDivisionError: row 50",
        ),
        ({"transform": unsendable}, "what the transform returned cannot be sent"),
        ({"worker_init_fn": refuse_to_begin}, "worker_init_fn raised ZeroDivisionError"),
    ],
)
def test_after_a_caught_failure_all_is_clean(shards, settings, words):
    stream = stream_of(shards, 2, **settings)
    for _ in range(2):
        with pytest.raises(StreamError, match=words):
            list(stream)
        assert [] == stream.worker_processes
    assert alike(stream_of(shards, 0)) == alike(stream_of(shards, 2))
    assert alike(stream_of(shards, 0)) == alike(stream_of(shards, 0))


def test_a_failure_shows_the_traceback_of_the_worker(shards):
    with pytest.raises(StreamError) as caught:
        list(stream_of(shards, 1, transform=failing))
    assert "in failing" in str(caught.value.__cause__)


def test_batches_before_a_failure_come_first_and_a_state_goes_on_behind_them(shards):
    stream, received = stream_of(shards, 2, transform=failing), []
    with pytest.raises(StreamError, match="row 50"):
        received.extend(batch["row"].tolist() for batch in stream)
    rest = stream_of(shards, 2)
    rest.load_state_dict(stream.state_dict())
    assert rows_of(stream_of(shards, 0)) == received + rows_of(rest)


def test_workers_end_with_the_stream(shards):
    stream = stream_of(shards, 2)
    next(batches := iter(stream))
    processes = stream.worker_processes
    del stream, batches
    gc.collect()
    assert not any(map(is_alive, processes))


def test_a_closed_stream_can_be_read_again(shards):
    stream = stream_of(shards, 2)
    expected = alike(itertools.islice(stream, 4))
    processes = stream.worker_processes
    stream.close()
    assert not any(map(is_alive, processes))
    stream.close()
    assert expected == alike(itertools.islice(stream, 4))
    assert not set(processes) & set(stream.worker_processes)


def test_a_slow_transform_does_not_hold_up_a_break(shards):
    stream = stream_of(shards, 2, transform=slow)
    for _ in stream:
        began = time.monotonic()
        break
    assert time.monotonic() - began < 120
    assert rows_of(itertools.islice(stream, 2)) == rows_of(
        itertools.islice(stream_of(shards, 0), 2)
    )


def test_an_older_pass_takes_no_batch_of_a_newer_one(shards):
    stream, expected = stream_of(shards, 2), alike(stream_of(shards, 0))
    old = iter(stream)
    next(old)
    new = iter(stream)
    begun = [next(new)]
    with pytest.raises(StreamError, match="newer pass"):
        next(old)
    assert expected == alike([*begun, *new])


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_dies_is_started_again_alone(shards, tmp_path, times, caplog):
    stream = stream_of(shards, 2, transform=DeadlyOnce(tmp_path, 300, times))
    assert rows_of(stream_of(shards, 0)) == rows_of(stream)
    said = [record.message for record in caplog.records if "is started again" in record.message]
    assert times == len(said)
    assert "was killed by SIGKILL, as when memory ends" in said[0]
    processes = stream.worker_processes
    assert sum(map(len, rows_of(stream))) == ROWS
    assert processes == stream.worker_processes


def test_a_row_over_which_workers_die_each_time_is_an_error(shards, tmp_path):
    stream = stream_of(shards, 1, transform=DeadlyOnce(tmp_path, 300, 99))
    with raised(EngineError, remedy="run the transform without workers") as caught:
        list(stream)
    assert "workers died 3 times" in str(caught.value)
    assert [] == stream.worker_processes


@contextlib.contextmanager
def held_until_named(stream, **names):
    """Hold what waits at each gate until the loop's wait for it has this name."""
    ends = threading.Event()

    def look():
        while not ends.wait(0.02):
            moment = stream.progress.snapshot()
            for gate, name in names.items():
                if moment.phase == "transform" and moment.reading.startswith(name):
                    gates[gate].touch()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
    assert [] == [name for gate, name in names.items() if not gates[gate].exists()]


@pytest.fixture
def closed_gates(tmp_path, monkeypatch):
    for gate in ("start", "transform"):
        monkeypatch.setitem(gates, gate, tmp_path / gate)


@pytest.mark.usefixtures("closed_gates")
def test_what_the_loop_waits_for_is_named(shards):
    stream = stream_of(shards, 1, transform=held, worker_init_fn=held_before)
    batches = iter(stream)
    transform = "worker 0: transform staying_cases.held of batch"
    with held_until_named(stream, start="worker 0: its start", transform=transform):
        next(batches)
        next(batches)


@pytest.mark.usefixtures("closed_gates")
def test_a_transform_in_a_thread_is_named_too(shards):
    stream = stream_of(shards, 0, transform=held)
    batches = iter(stream)
    with held_until_named(stream, transform="transform staying_cases.held of batch 0"):
        next(batches)


def test_a_stream_with_workers_pickles_without_them(shards):
    stream = stream_of(shards, 2)
    expected = alike(stream)
    copy = pickle.loads(pickle.dumps(stream))
    copy.set_epoch(0)
    assert [] == copy.worker_processes
    assert expected == alike(copy)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_end_workers_of_its_parent(shards):
    stream = stream_of(shards, 2)
    batches = iter(stream)
    begun = [next(batches)]
    child = os.fork()
    if not child:
        stream.close()
        del stream, batches
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert alike(stream_of(shards, 0)) == alike([*begun, *batches])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stream", "data_loader", "own"])
def test_an_interpreter_that_leaves_a_loop_ends_silently(shards, how):
    for _ in range(2):
        done = run_script(staying_cases.LEFT, str(shards), how)
        assert (0, "end\n", "") == (done.returncode, done.stdout, done.stderr)


def run_script(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


# --- settings


@pytest.mark.parametrize(
    ("settings", "at_fault"),
    [
        ({"workers": -1}, "workers"),
        ({"workers": 1, "multiprocessing_context": "thread"}, "multiprocessing_context"),
        ({"workers": 1, "prefetch_factor": 0}, "prefetch_factor"),
        ({"workers": 1, "worker_init_fn": 3}, "worker_init_fn"),
        ({"workers": 0, "prefetch_factor": 4}, "prefetch_factor"),
        ({"workers": 0, "worker_init_fn": number_worker}, "worker_init_fn"),
        ({"workers": 0, "multiprocessing_context": "fork"}, "multiprocessing_context"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_settings_that_cannot_work_are_refused_when_the_stream_is_made(shards, settings, at_fault):
    import headrace

    opened = headrace.open(shards, cache_dir=shards.parent / "cache")
    with raised(SettingsError, setting=at_fault):
        opened.stream(batch_size=4, **settings)
    if settings["workers"] != 1:
        return
    with raised(SettingsError, setting=at_fault):
        headrace.blend([opened]).stream(batch_size=4, **settings)


def test_a_torch_dataset_leaves_settings_of_workers_to_its_loader(shards):
    import headrace

    opened = headrace.open(shards, cache_dir=shards.parent / "cache")
    with raised(SettingsError, setting="prefetch_factor", remedy="argument of the DataLoader"):
        opened.torch_dataset(batch_size=4, prefetch_factor=4)


def test_what_cannot_be_sent_to_a_worker_is_named_by_its_setting(shards):
    for name in ("transform", "worker_init_fn"):
        stream = stream_of(
            shards, 1, multiprocessing_context="spawn", **{name: lambda batch: batch}
        )
        with raised(SettingsError, setting=name):
            next(iter(stream))
