"""Loops over DataLoader workers that are killed, each in a child process of its own; what they deliver is compared with
a loop that nothing happened to. A child says on its last line what it saw, as JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import logging
import multiprocessing
import os
import random
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace
from headrace.errors import CorruptShard, EngineError
from headrace.stream.ranks.topology import Topology

SHARDS, BLOCKS, ROWS, WORKERS = 4, 3, 20, 2
_SEEN: list[tuple[float, str]] = []  # when a death was told, and how


class _Said(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if (
            "started again" in record.getMessage()
        ):  # and no word of who waits, which a busy machine makes them say
            _SEEN.append((time.monotonic(), record.getMessage()))


def shards(directory: Path, text: int = 1) -> Path:
    """Small Parquet shards. text: characters in a cell of text."""
    logging.getLogger("headrace").handlers[:] = [_Said()]
    place = directory / "shards"
    place.mkdir(parents=True)
    for number in range(SHARDS):
        rows = np.arange(number * BLOCKS * ROWS, (number + 1) * BLOCKS * ROWS)
        table = pa.table({"row": rows, "text": [str(row % 10) * text for row in rows]})
        pq.write_table(table, place / f"part-{number}.parquet", row_group_size=ROWS)
    return place


@dataclass(frozen=True)
class Deadly:
    """A transform that kills its own process at some rows, so often over all processes."""

    directory: Path
    rows: tuple[int, ...]
    times: int

    def __call__(self, batch: Any) -> Any:
        for row in sorted({*self.rows} & {*batch["row"].tolist()}):
            for number in range(self.times):
                try:
                    os.close(
                        os.open(self.directory / f"killed {row} {number}", os.O_CREAT | os.O_EXCL)
                    )
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
        return batch


def deadly(
    directory: Path, times: int, rows: Iterable[int] = (SHARDS * BLOCKS * ROWS // 2,)
) -> Any:
    """A dataset over shards, of which some rows kill the worker that transforms them."""
    return headrace.open(shards(directory)).torch_dataset(
        batch_size=4,
        shuffle=True,
        seed=3,
        num_workers=WORKERS,
        transform=Deadly(directory, tuple(rows), times),
    )


def rows_of(batches: Any) -> list[list[int]]:
    return [[int(row) for row in batch["row"]] for batch in batches]


def workers_of(loader: Any) -> tuple[Any, list[Any]]:
    """The batches of a loader that has begun, and its processes."""
    made = []
    get = type(loader)._get_iterator

    def kept(self: Any) -> Any:
        made.append(get(self))
        return made[-1]

    type(loader)._get_iterator = kept
    try:
        batches = iter(loader)
    finally:
        type(loader)._get_iterator = get
    return batches, made


def kill(process: Any) -> float:
    """SIGKILL, and the moment of it; the process has ended when this returns, and this loop goes on undisturbed."""
    moment = time.monotonic()
    process.kill()
    with contextlib.suppress(ChildProcessError):  # a fork server's child is none of ours
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    connection.wait([process.sentinel])
    return moment


def say(**told: Any) -> None:
    print(json.dumps({**told, "said": [text for _, text in _SEEN]}), flush=True)


# --- what a child does ---


def at_random(directory: str, first: int, trials: int, method: str) -> None:
    """Kill a worker after a random number of batches and some more moments, and finish the pass."""
    place = shards(Path(directory))
    dataset = headrace.open(place).torch_dataset(
        batch_size=4,
        shuffle=True,
        seed=1,
        num_workers=WORKERS,
        remainder="pad",
        topology=Topology(rank=1, world_size=2),
    )
    whole = rows_of(dataset.data_loader(method=method))
    for trial in range(first, first + trials):
        random_ = random.Random(f"worker {trial}")
        dataset.set_epoch(0)
        batches, (made,) = workers_of(dataset.data_loader(method=method))
        count = random_.randrange(len(whole) - 2 * 2 * WORKERS)  # so many are sent ahead
        got = rows_of(itertools.islice(batches, count))
        time.sleep(random_.random() * 0.02)
        _SEEN.clear()
        moment = kill(made._workers[trial % WORKERS])
        got += rows_of(batches)
        assert got == whole, (trial, count, len(got), len(whole))
        (noticed, told), *more = _SEEN
        assert not more, more
        assert "was killed by SIGKILL" in told, told
        assert f"worker {trial % WORKERS}:" in told, told
        print(json.dumps({"trial": trial, "after_s": noticed - moment}), flush=True)


def at_a_row(directory: str, times: int, method: str) -> None:
    """A row that kills whoever transforms it."""
    alone = headrace.open(shards(Path(directory) / "same")).stream(
        batch_size=4, shuffle=True, seed=3
    )
    dataset = deadly(Path(directory), times)
    try:
        got = rows_of(dataset.data_loader(method=method))
    except EngineError as error:
        say(error=str(error))
        return
    assert got == rows_of(alone)
    say(error="")


def at_every_row(directory: str) -> None:
    """Every row kills whoever transforms it, once: no batch ever comes between two deaths."""
    dataset = deadly(Path(directory), 1, range(SHARDS * BLOCKS * ROWS))
    try:
        rows_of(dataset.data_loader(method="fork"))
    except EngineError as error:
        say(error=str(error))


def at_the_end(directory: str) -> None:
    """A worker is killed when the loop has every batch, and has not asked whether there are more."""
    dataset = headrace.open(shards(Path(directory))).torch_dataset(
        batch_size=4, num_workers=WORKERS
    )
    whole = rows_of(dataset.data_loader(method="fork"))
    batches, (made,) = workers_of(dataset.data_loader(method="fork"))
    assert rows_of(itertools.islice(batches, len(whole))) == whole
    kill(made._workers[0])
    assert rows_of(batches) == []
    say()


def as_it_is(batch: Any) -> Any:
    return batch


def in_a_message(directory: str) -> None:
    """A worker is killed in the middle of a batch that it sends; other processes hold the pipe open."""
    place = shards(Path(directory), text=9000)
    # With a transform batches travel; without any they never leave this process.
    dataset = headrace.open(place).torch_dataset(
        batch_size=20, num_workers=1, shuffle=True, transform=as_it_is
    )
    whole = rows_of(dataset.data_loader(method="fork"))
    dataset.set_epoch(0)
    batches, (made,) = workers_of(dataset.data_loader(method="fork"))
    got = rows_of(itertools.islice(batches, 1))
    other = iter(
        headrace.open(place).torch_dataset(batch_size=20, num_workers=1).data_loader(method="fork")
    )
    next(other)
    pipe = made._worker_result_queue._reader.fileno()
    # A batch has 180,000 bytes, a pipe 65,536: whatever is in it is a part of a batch.
    wait_until(lambda: struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"    "))[0] > 10_000)
    kill(made._workers[0])
    got += rows_of(batches)
    assert got == whole
    say()


@dataclass(frozen=True)
class Damaged:
    """A `read_block` of which some blocks cannot be read."""

    read_block: Any
    bad: tuple[int, ...]

    def __call__(self, block: int, columns: Any) -> pa.Table:
        if block in self.bad:
            raise CorruptShard("its bytes are others")
        return self.read_block(block, columns)


def in_quarantine(directory: str) -> None:
    """A worker is killed in a pass with bad blocks; rows given up are counted once, and are just within the limit."""
    from headrace.stream.loader.torch_dataset import StreamingDataset

    place, bad = shards(Path(directory)), (1, 4, 5, 10)
    whole = headrace.open(place).torch_dataset(
        batch_size=4, shuffle=True, seed=5, on_bad_block="quarantine"
    )

    def begun(limit: float) -> tuple[Any, Any]:
        options = dataclasses.replace(whole.options, quarantine_limit=limit)
        read_block = Damaged(whole.passes.read_block, bad)
        dataset = StreamingDataset(whole.index, read_block, options, num_workers=WORKERS)
        return dataset, (batch["valid"].tolist() for batch in dataset.data_loader(method="fork"))

    dataset, batches = begun(1.0)
    expected = list(batches)
    assert dataset.quarantined_rows == len(bad) * ROWS == sum(4 - sum(valid) for valid in expected)
    dataset, batches = begun(len(bad) * ROWS / (SHARDS * BLOCKS * ROWS))
    got = list(itertools.islice(batches, 35))
    kill(multiprocessing.active_children()[0])
    got += batches
    assert got == expected
    assert dataset.quarantined_rows == len(bad) * ROWS, dataset.quarantined_rows
    say()


def between_passes(directory: str) -> None:
    """Workers that live on: one is killed in a pass, and one between two passes."""
    from headrace.stream.loader.watched_loader import WatchedLoader

    place = shards(Path(directory))

    def begun() -> Any:
        dataset = headrace.open(place).torch_dataset(
            batch_size=4, shuffle=True, num_workers=WORKERS
        )
        context = {"multiprocessing_context": "fork", "persistent_workers": True}
        return dataset, WatchedLoader(dataset, batch_size=None, num_workers=WORKERS, **context)

    dataset, loader = begun()
    whole = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        whole.append(rows_of(loader))
    dataset, loader = begun()
    dataset.set_epoch(0)
    batches = iter(loader)
    got = rows_of(itertools.islice(batches, 5))
    kill(loader._iterator._workers[1])
    assert got + rows_of(batches) == whole[0]
    alive = [process.pid for process in loader._iterator._workers]
    dataset.set_epoch(1)
    assert rows_of(loader) == whole[1]
    assert [process.pid for process in loader._iterator._workers] == alive
    kill(loader._iterator._workers[0])
    dataset.set_epoch(2)
    assert rows_of(loader) == whole[2]
    say()


def other_datasets(directory: str) -> None:
    """Packed while streaming, and the tabular interface; the loop's own random numbers do not move."""
    import torch

    from headrace.tabular.dataset import PipelineIterableDataset

    place = Path(directory) / "tokens"
    place.mkdir(parents=True)
    random_ = random.Random(2)
    for number in range(3):
        ids = [list(range(random_.randrange(1, 30))) for _ in range(60)]
        pq.write_table(
            pa.table({"input_ids": pa.array(ids, pa.list_(pa.int32()))}),
            place / f"{number}.parquet",
        )
    packing = headrace.open(place).torch_dataset(
        batch_size=2, shuffle=True, pack=64, num_workers=WORKERS
    )
    fields = {"full_field_list": ["row", "text"], "tab_field_list": ["row"], "text_name": "text"}
    tabular = PipelineIterableDataset(
        fields,
        shards(Path(directory)),
        shard_pattern="*.parquet",
        shuffle_shards=True,
        batch_size=4,
        num_workers=WORKERS,
    )
    for dataset in (packing, tabular):
        undisturbed = [texts(batch) for batch in dataset.data_loader(method="fork")]
        dataset.set_epoch(0)
        torch.manual_seed(1)
        batches = iter(dataset.data_loader(method="fork"))
        expected = [next(batches), torch.rand(3)][1].tolist()
        del batches
        dataset.set_epoch(0)
        torch.manual_seed(1)
        batches, (made,) = workers_of(dataset.data_loader(method="fork"))
        got = [texts(batch) for batch in itertools.islice(batches, 3)]
        kill(made._workers[1])
        got += [texts(batch) for batch in batches]
        assert got == undisturbed
        assert torch.rand(3).tolist() == expected
    say()


def of_another_loader(directory: str) -> None:
    """A plain DataLoader over our dataset, and torchdata's: the error says what to do."""
    from torch.utils.data import DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader

    for number, kind in enumerate((DataLoader, StatefulDataLoader)):
        dataset = deadly(Path(directory) / str(number), 1)
        loader = kind(dataset, batch_size=None, num_workers=WORKERS, multiprocessing_context="fork")
        try:
            rows_of(dataset.watched(loader, workers=WORKERS))
        except EngineError as error:
            assert "use data_loader(), which restarts workers" in str(error), error  # noqa: PT017 - a child has no pytest
            print(json.dumps({"named": kind.__name__}), flush=True)


def texts(batch: Any) -> str:
    return repr(
        {
            name: value.tolist() if hasattr(value, "tolist") else value
            for name, value in batch.items()
        }
    )


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not true():
        assert time.monotonic() < until
        time.sleep(0.005)
