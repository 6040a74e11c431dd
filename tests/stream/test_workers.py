"""Batches never depend on workers: whatever their number, how they start, and who loops over them."""

import contextlib
import gc
import itertools
import json
import logging
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import connection as sockets
from pathlib import Path

import pytest
import torch
from option_cases import ROWS, real_rows
from stream_cases import ranks
from worker_cases import (
    KINDS_OF_DATA,
    LOOPS,
    Deadly,
    alike,
    chance,
    counted,
    doubled,
    failing,
    kinds,
    written,
)

import headrace
from headrace.errors import SettingsError, StreamError
from headrace.stream.loader.stateful import stream_state
from headrace.stream.workers.serving import Beginning, Client, Opened, Server
from raised import raised

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create"
    ),  # the number of workers is the subject
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),  # from Python 3.12 on
    pytest.mark.filterwarnings(
        "ignore:'set_vital' is deprecated"
    ),  # torchdata 0.11 calls it in newer torch
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),  # where there is no CUDA
]

BOUND_S = 120.0
TOTAL = sum(ROWS)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return written(tmp_path_factory.mktemp("workers"))


def needs(loop):
    if loop == "stateful":
        pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")


# --- the batches ---


@pytest.mark.slow
@pytest.mark.smoke(*(f"{kind}-2" for kind in KINDS_OF_DATA))
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS_OF_DATA)
def test_batches_of_every_kind_are_the_same_with_any_number_of_workers(root, kind, workers):
    make = KINDS_OF_DATA[kind]
    expected = alike(make(root, 0))

    assert expected == alike(make(root, workers).data_loader(method="fork"))


@pytest.mark.slow
@pytest.mark.smoke(
    *(f"as they are-torch-{loop}" for loop in LOOPS),
    *(f"transform-{kind}-data_loader" for kind in ("numpy", "arrow", "rows")),
)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["torch", "numpy", "arrow", "rows"])
@pytest.mark.parametrize("transform", [None, counted], ids=["as they are", "transform"])
def test_every_loop_gets_the_batches_of_that_loop_without_workers(root, kind, loop, transform):
    if loop == "collate" and transform:
        pytest.skip("it knows batches, not what a transform makes of them")
    needs(loop)
    # Torch makes tensors of arrays where nobody says otherwise, and has none of dates.
    settings = {"transform": transform, "columns": ["row", "half", "text"]}
    expected = alike(LOOPS[loop](KINDS_OF_DATA[kind](root, 0, **settings), 0))

    assert expected == alike(LOOPS[loop](KINDS_OF_DATA[kind](root, 2, **settings), 2))


@pytest.mark.smoke("spawn-data_loader")
@pytest.mark.parametrize(("method", "loop"), [("forkserver", "own"), ("spawn", "data_loader")])
def test_workers_that_are_no_forks_give_the_same(root, method, loop):
    dataset = kinds(root, 2, transform=doubled, columns=["row", "half"])

    assert alike(kinds(root, 0, transform=doubled, columns=["row", "half"])) == alike(
        LOOPS[loop](dataset, 2, method=method)
    )


@pytest.mark.slow
@pytest.mark.parametrize("transform", [None, doubled], ids=["as they are", "transform"])
def test_pinning_changes_nothing_where_there_is_nothing_to_pin_for(root, transform):
    settings = {"transform": transform, "columns": ["row", "half", "ids"]}
    expected = alike(kinds(root, 0, **settings))

    assert expected == alike(LOOPS["own"](kinds(root, 2, **settings), 2, pin_memory=True))
    assert expected == alike(kinds(root, 2, **settings).data_loader(method="fork", memory="pinned"))


@pytest.mark.slow
@pytest.mark.smoke("2-pad", "3-drop")
@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_on_every_rank_each_step_has_a_valid_row_and_the_epoch_has_each_row_once(
    root, world_size, remainder
):
    seen, dropped = [], 0
    for topology in ranks(world_size):
        settings = {
            "topology": topology,
            "remainder": remainder,
            "batch_size": 7,
            "columns": ["row", "half"],
        }
        dataset = kinds(root, 3, **settings)
        dropped = dataset.dropped_rows
        batches = list(dataset.data_loader(method="fork"))

        assert alike(kinds(root, 0, **settings)) == alike(batches)
        assert len(batches) == len(dataset)
        assert all(real_rows(batch) for batch in batches)
        seen += [row for batch in batches for row in real_rows(batch)]
    assert len(set(seen)) == len(seen) == TOTAL - dropped


# --- epochs, states and loops ---


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["data_loader", "own", "persistent"])
def test_epochs_follow_each_other_as_without_workers(root, loop):
    alone, dataset = kinds(root, 0), kinds(root, 2)
    loader = LOOPS[loop](dataset, 2)
    for epoch in (0, 1, 5):
        for each in (alone, dataset):
            each.set_epoch(epoch)

        assert alike(alone) == alike(loader)


@pytest.mark.smoke("torch-1", "packing-4", "blend-2")
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("kind", ["torch", "packing", "blend"])
def test_a_stop_at_any_step_resumes_onto_another_number_of_workers(root, kind, number):
    make, dice = KINDS_OF_DATA[kind], chance((kind, number))
    whole = alike(make(root, 0))
    stop, before, after = dice.randrange(len(whole)), dice.randrange(4), dice.randrange(4)
    first, second = make(root, before), make(root, after)
    batches = iter(first.data_loader(method="fork"))
    begun = alike(next(batches) for _ in range(stop))
    state = first.state_dict()
    del batches
    second.load_state_dict(json.loads(json.dumps(state)))

    assert whole == begun + alike(second.data_loader(method="fork"))


@pytest.mark.slow
@pytest.mark.smoke("1")
@pytest.mark.parametrize("number", range(4))
def test_a_stateful_loader_resumes_exactly_on_its_own_workers_and_on_others(root, number):
    needs("stateful")
    dice = chance(number)
    whole, workers, others = alike(kinds(root, 0)), dice.randrange(1, 4), dice.randrange(4)
    stop = dice.randrange(len(whole))
    batches = iter(loader := LOOPS["stateful"](kinds(root, workers), workers))
    begun = alike(next(batches) for _ in range(stop))
    saved = json.loads(json.dumps(loader.state_dict()))
    same = LOOPS["stateful"](kinds(root, workers), workers)
    same.load_state_dict(saved)
    dataset = kinds(root, others)
    dataset.load_state_dict(stream_state(saved))

    assert whole == begun + alike(same)
    assert whole == begun + alike(LOOPS["own"](dataset, others))


@pytest.mark.slow
def test_two_loaders_over_one_dataset_at_once_give_each_all_of_it(root):
    dataset = kinds(root, 2)
    expected = alike(kinds(root, 0))
    one, other = LOOPS["own"](dataset, 2), LOOPS["own"](dataset, 1)
    pairs = list(zip(one, other, one, strict=True))  # and two loops over one of them

    assert [expected] * 3 == [alike(batches) for batches in zip(*pairs, strict=True)]


@pytest.mark.slow
def test_loaders_that_drew_the_same_seed_are_told_apart(root):
    dataset, expected, loops = kinds(root, 2), alike(kinds(root, 0)), []
    for _ in range(3):
        torch.manual_seed(5)
        loops.append(iter(LOOPS["own"](dataset, 2)))
        assert expected[:1] == alike([next(loops[-1])])
    assert [expected[1:]] * 3 == [alike(batches) for batches in loops]


@pytest.mark.slow
def test_a_second_loop_over_a_data_loader_ends_the_first_with_an_error(root):
    dataset = kinds(root, 2)
    loader = dataset.data_loader(method="fork")
    first, second = iter(loader), iter(loader)
    next(first)
    assert alike(kinds(root, 0)) == alike(second)
    with pytest.raises(StreamError):
        list(first)


def test_a_stream_with_workers_is_the_stream_without_any(root):
    def stream(**settings):
        parts = {
            name: headrace.open(root / name, cache_dir=root / "cache") for name in ("books", "code")
        }
        return headrace.blend(parts).stream(
            batch_size=16, shuffle=True, columns=["row"], transform=doubled, **settings
        )

    alone, stream_of_workers = stream(), stream(workers=1)
    whole, batches = alike(alone), iter(stream_of_workers)
    begun = alike(next(batches) for _ in range(3))
    state = stream_of_workers.state_dict()
    more = alike(batches)
    resumed = stream(workers=1)
    resumed.load_state_dict(state)

    assert whole == begun + more
    assert len(alone) == len(stream_of_workers)
    assert whole[3:] == alike(resumed)
    assert alone.state_dict() == resumed.state_dict()
    with pytest.raises(SettingsError, match="workers is -1"):
        stream(workers=-1)


def test_an_iterator_that_was_never_used_leaves_the_dataset_as_it_was(root):
    dataset = kinds(root, 1)
    unused = iter(dataset.data_loader(method="fork"))
    del unused
    batches = iter(LOOPS["own"](dataset, 1))
    next(batches)
    with raised(StreamError, remedy="call state_after"):
        dataset.state_dict()


# --- errors and deaths ---


@pytest.mark.slow
@pytest.mark.smoke("2")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_in_its_transform_costs_no_batch(root, tmp_path, workers, caplog):
    expected = alike(kinds(root, 0, columns=["row", "half"]))
    dataset = kinds(root, workers, transform=Deadly(tmp_path, (3, 40, 77)), columns=["row", "half"])
    with caplog.at_level(logging.WARNING, "headrace"):
        assert expected == alike(dataset.data_loader(method="fork"))
    assert "was killed by SIGKILL" in caplog.text


@pytest.mark.slow
def test_an_error_of_a_transform_comes_in_its_place_and_the_state_before_it_resumes(root):
    expected = alike(kinds(root, 0, columns=["row", "half"]))
    dataset = kinds(root, 2, transform=failing, columns=["row", "half"])
    got = []
    with pytest.raises(StreamError, match="row 50 is not liked"):
        got.extend(alike([batch])[0] for batch in dataset.data_loader(method="fork"))
    rest = kinds(root, 1, columns=["row", "half"])
    rest.load_state_dict(dataset.state_dict())

    assert expected == got + alike(rest.data_loader(method="fork"))


# --- what is left ---


def descriptors():
    """What each open file of this process is, by its number."""
    links = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            links[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    return links


def sockets_of(process):
    """Files of sockets that this process listens at."""
    directory = Path(
        multiprocessing.process.current_process()._config.get("tempdir") or "/nonexistent"
    )
    return sorted(directory.glob("listener-*")) if directory.exists() else []


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name}


def until_nothing_is_left(own_threads, before):
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        gc.collect()
        multiprocessing.active_children()  # closes what belongs to workers that torch ended without waiting for them
        here = (descriptors(), sockets_of(os.getpid()), shared_memory())
        if not own_threads.now() and len(here[0]) <= len(before[0]) and here[1:] == before[1:]:
            return
        time.sleep(0.05)
    assert [] == own_threads.left()
    assert before == here


@pytest.mark.slow
@pytest.mark.smoke("transform-data_loader")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("loop", ["own", "data_loader", "persistent", "stateful"])
@pytest.mark.parametrize("transform", [None, doubled], ids=["as they are", "transform"])
def test_loops_that_were_left_leave_nothing(root, loop, transform, own_threads):
    needs(loop)
    make = KINDS_OF_DATA["large"]
    list(LOOPS[loop](make(root, 1, transform=transform), 1))  # what is made once in a process
    gc.collect()
    before = descriptors(), sockets_of(os.getpid()), shared_memory()
    for number in range(6):
        dataset = make(root, 2, transform=transform, batch_size=6500 if number % 2 else 300)
        batches = iter(LOOPS[loop](dataset, 2))
        for _ in range(number % 3):
            next(batches)
        del batches
        if number % 2:  # the others share out their dataset's last threads to the collector
            del dataset
    dataset = None

    until_nothing_is_left(own_threads, before)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_workers_that_torch_ends_for_being_slow_leave_nothing(root, own_threads, monkeypatch):
    monkeypatch.setattr(
        "torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0
    )  # 5 s, which a busy machine may exceed
    list(LOOPS["own"](kinds(root, 1, transform=doubled), 1))
    gc.collect()
    before = descriptors(), sockets_of(os.getpid()), shared_memory()
    for _ in range(3):
        next(iter(LOOPS["own"](kinds(root, 2, transform=doubled, batch_size=300), 2)))

    until_nothing_is_left(own_threads, before)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_thousand_loaders_that_were_left_leave_nothing(root, own_threads):
    list(LOOPS["own"](kinds(root, 1), 1))
    gc.collect()
    before = descriptors(), sockets_of(os.getpid()), shared_memory()
    for number in range(1000):
        workers = 1 if number % 50 == 0 else 0
        dataset = kinds(root, workers, columns=["row", "half"])
        next(iter(LOOPS["data_loader" if number % 2 else "own"](dataset, workers)))
    del dataset

    until_nothing_is_left(own_threads, before)


# --- who is served ---


@pytest.fixture
def server():
    """A server of passes of eight steps, for workers that are threads here."""
    opened = []

    def open_pass(worker, workers, progress):
        def read(first, _in_place):
            yield from ({"step": torch.tensor(step)} for step in range(first, 8))

        opened.append(workers)
        return Opened(Beginning({}, len(opened) - 1, 0), read)

    served = Server(open_pass)
    served.opened = opened
    yield served
    served.close()


def worker_of(server, worker=0, workers=1, pool="pool"):
    client = Client(server.address, pool=pool, worker=worker, workers=workers)
    return client, client.batches(client.begin(None), in_place=False)


def steps(batches):
    return [int(batch["step"]) for batch in batches]


def test_a_worker_that_begins_when_the_others_have_all_theirs_gets_its_own_steps(server):
    client, batches = worker_of(server, 1, 2)
    assert [1, 3, 5, 7] == steps(itertools.islice(batches, 4))
    late, rest = worker_of(server, 0, 2)

    assert [0, 2, 4, 6] == steps(rest)
    assert [] == steps(batches)
    assert 1 == len(server.opened)
    client.close()
    late.close()


def test_a_stranger_gets_nothing_and_disturbs_nobody(server):
    silent = sockets.Client(server.address)  # says nothing at all, and stays
    with pytest.raises(multiprocessing.AuthenticationError):
        sockets.Client(server.address, authkey=b"guessed")
    heard, unknown = [], sockets.Client(server.address)
    unknown.send(("begin", "pool", 0, 1, None))
    with pytest.raises(EOFError):
        while True:
            heard.append(unknown.recv_bytes())
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(server.address)
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
    client, batches = worker_of(server)

    assert list(range(8)) == steps(batches)
    assert heard[0].startswith(b"#CHALLENGE#")
    assert [b"#FAILURE#"] == heard[1:]
    client.close()
    silent.close()


def test_a_server_that_is_closed_ends_its_workers_and_its_threads(own_threads, server):
    client, batches = worker_of(server)
    idle, _ = worker_of(server, 0, 2, pool="other")  # of which one never comes
    silent = sockets.Client(server.address)
    next(batches)
    server.close()
    server.close()

    with pytest.raises(
        StreamError, match="worker 0: .*(the dataset that it reads for has gone|has ended or left)"
    ):
        list(batches)
    with raised(StreamError, remedy="keep the dataset alive"):
        worker_of(server)
    assert [] == own_threads.left()
    for each in (client, idle, silent):
        each.close()


@pytest.mark.slow
def test_a_pool_that_is_left_by_all_is_read_no_more(own_threads, server):
    for number in range(20):
        client, batches = worker_of(server, number % 2, 2, pool=number)
        next(batches)
        client.close()
    until = time.monotonic() + BOUND_S
    while (
        any(thread.name == "headrace-serve-read" for thread in own_threads.now())
        and time.monotonic() < until
    ):
        time.sleep(0.01)

    assert ["headrace-serve"] == sorted({thread.name for thread in own_threads.now()})
    assert len(server._runs) <= 5


def test_a_ticket_of_a_pass_that_was_left_is_an_error_only_where_it_is_used(server):
    client = Client(server.address, pool="pool", worker=0, workers=1)
    first = client.batches(client.begin(None), in_place=True)
    ticket, spent = pickle.dumps(next(first)), pickle.dumps(next(first))
    assert 1 == pickle.loads(spent)["step"]
    client.begin(None)

    for data in (ticket, spent):
        with pytest.raises(StreamError, match="its pass was left"):
            pickle.loads(data).reraise()
    client.close()


def test_a_fork_of_a_worker_cannot_read_for_it(server):
    client, batches = worker_of(server)
    next(batches)
    child = os.fork()
    if not child:
        try:
            next(batches)
        except StreamError as error:
            os._exit(7 if "is a fork of the worker" in str(error) else 8)
        os._exit(9)

    assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert list(range(1, 8)) == steps(batches)
    client.close()


@pytest.mark.slow
def test_a_long_temporary_directory_is_no_hindrance(tmp_path):
    place = tmp_path / ("long" * 30)
    place.mkdir()
    code = (
        "from option_cases import kinds_dataset, real_rows\n"
        "loader = kinds_dataset(1, columns=['row']).data_loader(method='fork')\n"
        "print(sum(len(real_rows(batch)) for batch in loader))"
    )
    environment = {
        **os.environ,
        "TMPDIR": str(place),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )

    assert f"{TOTAL}\n" == done.stdout, done.stderr


def test_threads_that_wait_do_not_hold_up_the_one_that_closes(server):
    """Closing happens in whatever thread the collector runs, be it one that serves."""
    clients = [worker_of(server, number, 3)[0] for number in range(2)]  # the third never comes
    closing = threading.Thread(target=server.close)
    with server.lock:
        server.close()  # inside of what holds the lock
    closing.start()
    closing.join(BOUND_S)

    assert not closing.is_alive()
    for client in clients:
        client.close()
