"""Rank processes that start at once: forks of a server that has imported the libraries, one server per test process.

What a child runs is imported by name, so it lives in a module beside the tests. A child has the environment of the
moment when the server started: pass what differs.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from waits import until_at_rest

TIMEOUT = timedelta(
    seconds=240
)  # what would hang fails instead, before the test itself runs out of time

PRELOADED = [
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "pyarrow.csv",
    "pyarrow.parquet",
    "headrace.stream.loader.dataset",
    "headrace.stream.loader.torch_dataset",
    "accelerate",
    "torchdata.stateful_dataloader",
    "lightning.pytorch",
]
multiprocessing.set_forkserver_preload(PRELOADED)


def run_ranks(function: Callable[..., None], processes: int, *arguments: object) -> None:
    """Call function(rank, *arguments) in so many processes; raises what one of them raised."""
    torch.multiprocessing.start_processes(
        _run, (function, arguments), nprocs=processes, start_method="forkserver"
    )


def end_ranks(
    function: Callable[..., None], processes: int, *arguments: object
) -> list[int | None]:
    """The same, but each process lives until it ends by itself; how they ended: exit status, or minus the signal."""
    context = multiprocessing.get_context("forkserver")
    started = [
        context.Process(target=_run, args=(rank, function, arguments)) for rank in range(processes)
    ]
    for each in started:
        each.start()
    for each in started:
        each.join(TIMEOUT.total_seconds())
    codes = [each.exitcode for each in started]
    for each in started:
        each.kill()
        each.join()
    return codes


def _run(rank: int, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    multiprocessing.set_start_method(
        None, force=True
    )  # workers start as they would elsewhere, not as we did
    faulthandler.dump_traceback_later(
        TIMEOUT.total_seconds() + 30
    )  # says where it hangs, before the test is ended
    function(rank, *arguments)


@contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Ports of the loopback that nobody else is given until the end: a server that sets SO_REUSEADDR may listen there."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in sockets]


@contextmanager
def process_group(
    rank: int, world_size: int, folder: str | Path, name: str = "group"
) -> Iterator[None]:
    """A gloo group of these processes. A process may be in one after another, of different sizes and names."""
    torch.set_num_threads(1)
    store = f"file://{folder}/{name}.store"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=world_size, timeout=TIMEOUT
    )
    yield
    leave_group()


def leave_group() -> None:
    """Free the process group. Call it where no trainer or DDP model is referred to any more.

    A DDP model that outlives the group frees it with the interpreter lock held and waits for gloo's threads, one of
    which may be waiting for that lock to drop a gathered tensor.
    """
    gc.collect()
    dist.barrier()  # gloo's threads sometimes abort a process that leaves the group while others still talk to it
    until_at_rest(0.04)  # they have dropped what was gathered before the barrier
    dist.destroy_process_group()
