"""However a loop ends, its threads, processes, files and memory end with it, and the process says how it ended.

Real processes, and real signals to one of them or to all of a terminal's. Waits are bounded from above only: a bound
that is reached is a hang.
"""

import contextlib
import dataclasses
import gc
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stream_cases import Numbers, index_of, ranks

import headrace
from headrace.dataset.indexed import BlockReader
from headrace.digest import checksum_file
from headrace.errors import CorruptShard, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset

HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(HERE), str(HERE.parent)])
BOUND_S = 200
SPARE_BYTES = 16 << 20  # what differs from moment to moment in a worker, which is never at rest
ROWS = (25_000,) * 12  # more than a pool


class Child:
    """A process of endings_cases in a group of its own, as a terminal starts one."""

    def __init__(self, *arguments, **environment):
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore::UserWarning",
                str(HERE / "endings_cases.py"),
                *map(str, arguments),
            ],
            env={**os.environ, "PYTHONPATH": PATHS, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def line(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def interrupt(self, whom):
        if whom == "terminal":
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGINT)

    def end(self, within=BOUND_S):
        """(exit code, remaining lines, what it said on stderr)"""
        out, err = self.process.communicate(timeout=within)
        return (
            self.process.returncode,
            [json.loads(line) for line in out.splitlines() if line.startswith("{")],
            err,
        )


def living(pids):
    """Those of the processes that still run; a zombie does not."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found


def gone(pids):
    """Whether all the processes end within the bound."""
    until = time.monotonic() + BOUND_S
    while living(pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not living(pids)


def shared_names(pids):
    """Names in shared memory that these processes made."""
    return [name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in pids)]


def stream(read=None, **settings):
    settings = {"batch_size": 100, "batch_format": "numpy", **settings}
    return StreamLoader(
        index_of(ROWS), read or Numbers(ROWS), StreamOptions(**settings), topology=ranks(1)[0]
    )


def leave_by_break():
    for _ in stream():
        break


def leave_by_exception():
    with pytest.raises(KeyError):
        for batch in stream():
            batch["no such column"]


def leave_by_closing():
    batches = iter(stream())
    next(batches)
    batches.close()


def leave_by_dropping():
    batches = iter(stream())
    next(batches)
    del batches


def leave_inside_a_cycle():
    batches = iter(stream())
    next(batches)
    ring = [batches]
    ring.append(ring)
    del batches, ring
    gc.collect()


def leave_after_damage():
    def read(block, columns):
        if block == 7:
            raise OSError("gone")
        return Numbers(ROWS)(block, columns)

    with pytest.raises(StreamError, match="gone"):
        list(stream(read))


def leave_before_the_first_batch():
    iter(stream()).close()


LEAVINGS = [
    leave_by_break,
    leave_by_exception,
    leave_by_closing,
    leave_by_dropping,
    leave_inside_a_cycle,
    leave_after_damage,
    leave_before_the_first_batch,
]


@pytest.mark.parametrize("leave", LEAVINGS)
def test_no_thread_outlives_the_loop(leave, own_threads):
    leave()
    assert own_threads.left() == []


@pytest.mark.parametrize("threads", [1, 4])
def test_a_collection_in_a_reading_thread_does_not_wait_for_itself(threads, own_threads):
    """A dropped cycle is collected by whichever thread allocates; the pool is waiting for that very thread's block."""
    reading, go = threading.Event(), threading.Event()

    def read(block, columns):
        if block >= 2:
            reading.set()
            go.wait(BOUND_S)
            gc.collect()
        return Numbers(ROWS)(block, columns)

    gc.disable()
    try:
        batches = iter(stream(read, read_threads=threads, lanes=1))
        next(batches)
        ring = [batches]
        ring.append(ring)
        assert reading.wait(BOUND_S)
        ours = own_threads.now()
        del batches, ring
        go.set()
        until = time.monotonic() + BOUND_S
        while (left := own_threads.now()) and time.monotonic() < until:  # more may begin meanwhile
            left[0].join(1)
    finally:
        gc.enable()

    assert len(ours) >= 2
    assert own_threads.left() == []


@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded"
)  # from Python 3.12 on; it is the subject
def test_a_worker_forked_while_a_shard_is_checked_reads_on(tmp_path):
    """A checked shard is a pipe that gives nothing for now, so the fork happens in the middle of the check."""
    table = pa.table({"n": [1, 2, 3]})
    os.mkfifo(tmp_path / "part-00000.parquet")
    pq.write_table(table, tmp_path / "part-00001.parquet")
    digest = checksum_file(tmp_path / "part-00001.parquet")
    index = dataclasses.replace(index_of([3, 3], schema=table.schema), checksums=(digest, digest))
    read = BlockReader(tmp_path, index, ())
    refused = []

    def check():
        with pytest.raises(CorruptShard) as caught:
            read(0, None)
        refused.append(caught.value)

    thread = threading.Thread(target=check)
    thread.start()
    with (tmp_path / "part-00000.parquet").open(
        "wb"
    ):  # opens once the thread has opened it to read
        child = multiprocessing.get_context("fork").Process(target=read, args=(1, None))
        child.start()
        child.join(BOUND_S)
        code = child.exitcode
        child.kill()
    thread.join(BOUND_S)

    assert code == 0
    assert len(refused) == 1


@pytest.mark.smoke("terminal-workers1")
@pytest.mark.parametrize("workers", [(0, "-"), (2, "fork"), (2, "spawn")])
@pytest.mark.parametrize("whom", ["process", "terminal"])
def test_ctrl_c_ends_a_loop_and_all_it_started(workers, whom):
    with Child("interrupted", *workers) as child:
        pids = child.line()["workers"]
        child.interrupt(whom)
        code, lines, err = child.end()

        assert (code, lines) == (7, [{"threads": [], "children": 0}]), err
        assert len(pids) == workers[0]
        assert gone([child.process.pid, *pids])
        assert shared_names([child.process.pid, *pids]) == []


@pytest.mark.slow
@pytest.mark.parametrize("function", ["__enter__", "notify"])
def test_ctrl_c_waits_until_a_put_into_a_workers_queue_is_done(function):
    with Child("interrupted_in", function, "fork") as child:
        code, lines, err = child.end()

        assert code == 0, err
        assert "put" not in lines[0]["met"]
        assert lines[0]["children"] == 0


@pytest.mark.smoke("fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ctrl_c_is_the_loops_to_hear_not_the_workers(method):
    """From their first instant: the signals are sent before a spawned worker has imported anything."""
    dataset = StreamingDataset(
        index_of((300,) * 4),
        Numbers((300,) * 4),
        StreamOptions(batch_size=100, batch_format="numpy"),
        num_workers=2,
        topology=ranks(1)[0],
    )
    others = set(multiprocessing.active_children())
    batches = iter(dataset.data_loader(method=method))
    for child in set(multiprocessing.active_children()) - others:
        os.kill(child.pid, signal.SIGINT)

    assert sorted(np.concatenate([batch["row"] for batch in batches])) == list(range(1200))
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(0, "-"), (1, "fork")])
def test_a_loop_that_knows_nothing_of_ctrl_c_ends_as_python_does(workers):
    with Child("uncaught", *workers) as child:
        pids = child.line()["workers"]
        child.interrupt("terminal")
        code, _, err = child.end()

        assert code == -signal.SIGINT, err
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert "Exception ignored" not in err
        assert gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(0, "-"), (1, "fork")])
def test_an_exception_in_the_loop_ends_the_process(workers):
    with Child("failed", *workers) as child:
        code, _, err = child.end()

        assert code == 1
        assert err.rstrip().endswith("ZeroDivisionError: in the loop")
        assert "Exception ignored" not in err


@pytest.mark.slow
def test_a_process_ends_with_an_iterator_left_in_the_middle():
    with Child("left_open") as child:
        code, lines, err = child.end()

        assert (code, err) == (0, "")
        assert lines[0]["threads"] >= 2


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Plain shards with more rows than anyone streams one by one within a test."""
    root = tmp_path_factory.mktemp("shards")
    for part in range(4):
        (root / f"part-{part}.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(250_000)))
    headrace.open(root, cache_dir=root.parent / "cache")
    return root


def interrupted_command(shards, dice, arguments, whom):
    with Child(
        "command_line", "--data", shards, "--batch-size", 1, *arguments, HOME=str(shards.parent)
    ) as child:
        child.line()
        time.sleep(dice.random() * 3)
        child.interrupt(whom)
        code, _, err = child.end()

        assert code == 130, err
        assert "Exception ignored" not in err


COMMANDS = {"threads": (), "workers": ("--workers", 1)}


@pytest.mark.slow
@pytest.mark.smoke("threads")
@pytest.mark.parametrize("arguments", COMMANDS)
def test_ctrl_c_in_the_command_line_is_130(shards, arguments):
    interrupted_command(shards, random.Random(arguments), COMMANDS[arguments], "terminal")


def check_epochs(count, workers, rows, *formats, spare=SPARE_BYTES // 2):
    """Nothing grows between the 20th pass and the last, by more than the spare bytes."""
    with Child("epochs", count, workers, rows, *formats) as child:
        code, lines, err = child.end(within=BOUND_S + count)
        early, late = lines
        pids = late["pids"]

        assert code == 0, err
        assert late["epoch"] == count
        assert late["files"] <= early["files"]
        # Workers that live on are served by a thread each, and one waits for more of them.
        assert (
            late["threads"]
            == early["threads"]
            == ["headrace-serve"] * (len(formats) * (workers + 1) if workers else 0)
        )
        assert late["memory"] <= early["memory"] + spare
        for before, after in zip(
            sorted(early["workers_memory"]), sorted(late["workers_memory"]), strict=True
        ):
            # A worker lives for one pass, and how much it touched differs from pass to pass: 20 MB were seen.
            assert after <= before + 4 * SPARE_BYTES
        assert len(pids) == 1 + len(formats) * workers
        assert gone(pids)
        assert shared_names(pids) == []


@pytest.mark.slow
def test_nothing_grows_over_120_epochs():
    check_epochs(120, 0, 1, "numpy", "arrow")


@pytest.mark.slow
def test_nothing_grows_over_epochs_of_persistent_workers():
    check_epochs(40, 1, 1, "torch")


@pytest.mark.slow
def test_batches_in_shared_memory_leave_no_names_and_no_open_files():
    # Its least memory wanders by 10 MB: 215 MB after 20 passes, 215 to 221 MB after 50 to 300, 217 MB
    # after 300. One batch of 400 KB that stayed in every fourth pass would be 18 MB.
    check_epochs(200, 1, 40, "torch", spare=SPARE_BYTES)


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("count", "workers", "rows"), [(2000, 0, 1), (1000, 2, 1), (200, 1, 40)])
def test_nothing_grows_over_many_epochs(count, workers, rows):
    check_epochs(count, workers, rows, "numpy", "torch", "arrow")


@pytest.mark.faults
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("arguments", COMMANDS)
def test_ctrl_c_at_many_instants_of_the_command_line(shards, arguments, number):
    interrupted_command(
        shards, random.Random(f"{arguments}{number}"), COMMANDS[arguments], "terminal"
    )


@pytest.mark.faults
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_end_when_the_loop_is_killed(method):
    with Child("uncaught", 2, method) as child:
        pids = child.line()["workers"]
        child.process.kill()

        assert gone(pids)  # they look for their parent every few seconds
        assert shared_names([child.process.pid, *pids]) == []
