"""What the child processes of test_endings do: `python endings_cases.py CASE [ARGUMENTS]`; each prints JSON lines."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from stream_cases import Numbers, index_of

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology

ALONE = Topology(rank=0, world_size=1)
ROWS = (3000,) * 4000  # a pass that is not at its end before a busy parent has sent its signal
UNHEARD_S = 3600.0  # of a wait that is logged: none, however busy the machine
SMALL = (700, 0, 1, 900, 400, 1500)


@dataclass(frozen=True)
class SlowNumbers:
    """A storage that takes a while for each block, so that a signal finds threads at work."""

    numbers: Numbers

    def __call__(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        time.sleep(0.05)
        return self.numbers(block, columns)


@dataclass(frozen=True)
class Lists:
    """Numbers with a column of lists and one of floats."""

    numbers: Numbers

    def __call__(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        table = self.numbers(block, None)
        row = table["row"].to_numpy()
        ends = np.concatenate([[0], np.cumsum(row % 7)]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(np.repeat(row, row % 7)))
        return (
            table.append_column("list", lists)
            .append_column("half", pa.array(row / 2))
            .select(columns)
        )


def tell(**record):
    print(json.dumps(record), flush=True)


def headrace_threads():
    return sorted(
        thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")
    )


def lasting_threads(but=()):
    """Threads that do not end within a bound, but for those of these names; of workers that have ended some may yet."""
    until = time.monotonic() + 120
    while (left := headrace_threads()) and set(left) - set(but) and time.monotonic() < until:
        time.sleep(0.01)
    return left


def slow_batches(workers: int, method: str):
    """Batches of a long pass, from this process or from workers."""
    read = SlowNumbers(Numbers(ROWS))
    settings = StreamOptions(batch_size=64, shuffle=True, lanes=4, stall_seconds=UNHEARD_S)
    if not workers:
        return StreamLoader(index_of(ROWS), read, settings, topology=ALONE)
    from headrace.stream.loader.torch_dataset import StreamingDataset

    dataset = StreamingDataset(index_of(ROWS), read, settings, num_workers=workers, topology=ALONE)
    return dataset.data_loader(method=method)


def read_on(workers: int, method: str) -> None:
    for number, _ in enumerate(slow_batches(workers, method)):
        if number == 3:
            tell(ready=True, workers=[child.pid for child in multiprocessing.active_children()])


def interrupted(workers: str, method: str) -> None:
    """A training loop that notices Ctrl-C: what is left of the stream once the loop was left."""
    with contextlib.suppress(KeyboardInterrupt):
        read_on(int(workers), method)
    for child in (
        multiprocessing.active_children()
    ):  # torch waits 5 s for each, then ends it and waits no longer
        child.join(120)
    tell(threads=lasting_threads(), children=len(multiprocessing.active_children()))
    sys.exit(7)


def interrupted_in(function: str, method: str) -> None:
    """Ctrl-C inside a call of a function of `threading` that puts into a worker's queue: what the interrupt met."""

    def interrupt(frame, event, _):
        if frame.f_code.co_name == "put" and event == "call":
            return interrupt
        if (
            frame.f_code.co_name == function
            and event == "return"
            and frame.f_back.f_code.co_name == "put"
        ):
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return interrupt

    met = None
    try:
        for number, _ in enumerate(slow_batches(2, method)):
            if number == 3:
                sys.settrace(interrupt)
    except KeyboardInterrupt as error:
        met = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    tell(met=met, children=len(multiprocessing.active_children()))


def uncaught(workers: str, method: str) -> None:
    """A training loop that knows nothing of Ctrl-C."""
    read_on(int(workers), method)


def left_open() -> None:
    """A script whose last line leaves an iterator in the middle, in a global name."""
    global kept
    kept = iter(slow_batches(0, ""))
    next(kept)
    tell(threads=len(headrace_threads()))


def failed(workers: str, method: str) -> None:
    """A training loop that raises."""
    for _ in slow_batches(int(workers), method):
        raise ZeroDivisionError("in the loop")


MEASURED = 10  # passes; to collect garbage after each of thousands would take most of the time


def epochs(count: str, workers: str, rows: str, *formats: str) -> None:
    """Pass after pass, half of them left early: memory, open files and threads after the 20th and the last.

    Memory is the least after each of ten passes: what is read ahead differs from moment to moment, what leaks stays.
    """
    read = Lists(Numbers(tuple(size * int(rows) for size in SMALL)))
    index = index_of(
        read.numbers.rows,
        schema=pa.schema(
            [
                ("row", pa.int64()),
                ("text", pa.string()),
                ("list", pa.list_(pa.int64())),
                ("half", "double"),
            ]
        ),
    )
    loaders = []
    for batch_format in formats:
        shape = (
            {"batch_size": 128}
            if int(rows) == 1
            else {"batch_size": 25_600, "columns": ["row", "half"]}
        )
        settings = StreamOptions(**shape, shuffle=True, batch_format=batch_format)
        if int(workers):
            import torch

            from headrace.stream.loader.torch_dataset import StreamingDataset

            dataset = StreamingDataset(
                index, read, settings, num_workers=int(workers), topology=ALONE
            )
            loader = torch.utils.data.DataLoader(
                dataset, batch_size=None, num_workers=int(workers), persistent_workers=True
            )
            loaders.append((dataset, loader))
        else:
            stream = StreamLoader(index, read, settings, topology=ALONE)
            loaders.append((stream, stream))
    sizes: deque[dict[int, int]] = deque(maxlen=MEASURED)
    for epoch in range(int(count)):
        for stream, loader in loaders:
            stream.set_epoch(epoch)
            for number, _ in enumerate(loader):
                if epoch % 2 and number == 5 and not int(workers):
                    break
        if not any(last - MEASURED <= epoch < last for last in (20, int(count))):
            continue
        gc.collect()
        pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
        sizes.append({pid: memory_of(pid) for pid in pids})
        if epoch + 1 in (20, int(count)):
            least = [min(each[pid] for each in sizes) for pid in pids]
            tell(
                epoch=epoch + 1,
                pids=pids,
                memory=least[0],
                workers_memory=least[1:],
                files=len(os.listdir("/proc/self/fd")),
                threads=lasting_threads(but=["headrace-serve"] if int(workers) else []),
            )


def memory_of(pid: int) -> int:
    """Memory of its own and shared memory; pages of files come and go with what else the machine does."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return sum(int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem")) * 1024


def command_line(*arguments: str) -> None:
    """A command, ready to be interrupted once it has begun to work; an interrupt before is Python's."""
    from headrace.cli.outermost import run_guarded
    from headrace.validate_sharding import main

    def work() -> None:
        tell(ready=True)
        sys.exit(main(arguments))

    run_guarded(work, arguments)


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell has what it runs in the background ignore it
    with contextlib.suppress(BrokenPipeError):
        globals()[sys.argv[1]](*sys.argv[2:])
