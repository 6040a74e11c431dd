"""What ranks run of which one is killed, suspended or ends; imported by name, so that a child finds it.

As a script it is one rank that a launcher starts: `gone_rank_cases.py FOLDER WHO WHEN WORKERS`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from fault_cases import Lines
from lost_process_cases import write_pid
from restart_cases import workers_of
from stream_cases import Numbers, index_of

import headrace
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.ranks.group import default_group
from headrace.stream.ranks.start import RanksDiffer
from headrace.stream.ranks.watch import Watch
from waits import wait_until

ROWS = (40,) * 60
STEPS = sum(ROWS) // (3 * 5)  # of each of 3 ranks
OPTIONS = StreamOptions(batch_size=5, shuffle_rows=15, lanes=3, prefetch_blocks=1)
WHENS = ("before", "barrier", "first", "middle", "blocked", "last", "between")


class Slow:
    """Numbers of which each block takes a minute from when this file exists."""

    def __init__(self, when: Path) -> None:
        self.when = when

    def __call__(self, block, columns):
        if self.when.exists():
            time.sleep(60)
        return Numbers(ROWS)(block, columns)


class Rank:
    """One rank, and what comes of it."""

    def __init__(self, rank: int, world_size: int, folder: str) -> None:
        self.rank, self.world_size, self.folder = rank, world_size, Path(folder)
        self.log = Lines()
        logger = logging.getLogger("headrace")
        logger.addHandler(self.log)
        logger.setLevel(logging.INFO)
        self.told = {"batches": 0, "error": "", "kind": "", "pid": os.getpid(), "gone": None}

    def stream(self, workers: int):
        read_block = Slow(self.folder / f"slow-{self.rank}")
        if workers:
            dataset = StreamingDataset(index_of(ROWS), read_block, OPTIONS, num_workers=workers)
            return dataset.data_loader(method="fork")
        return StreamLoader(index_of(ROWS), read_block, OPTIONS)

    def meet(self, name: str) -> None:
        """Wait for all ranks, without a collective, which would end in an error of gloo."""
        Path(self.folder, f"{name}-{self.rank}").touch()
        names = [Path(self.folder, f"{name}-{rank}") for rank in range(self.world_size)]
        wait_until(lambda: all(path.exists() for path in names))

    def killed(self) -> None:
        Path(self.folder, "killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    def hold(self) -> None:
        """Do something else, as a loop does, until the log says that a rank has gone."""
        wait_until(lambda: self.says("has gone"))

    def says(self, words: str) -> bool:
        return any(words in line for line in self.log.lines)

    def keep(self, read: Callable[[], None]) -> None:
        """Write down what comes of it."""
        try:
            read()
        except (headrace.HeadraceError, RuntimeError) as error:
            self.told |= {
                "raised": time.time(),
                "error": str(error),
                "kind": type(error).__name__,
                "gone": [getattr(error, name, None) for name in ("rank", "process", "pid")],
                "differences": getattr(error, "differences", None),
            }
        local = default_group().local
        self.told |= {"time": time.time(), "log": self.log.lines, "socket": local.address}
        path = Path(self.folder, f"rank-{self.rank}.json")
        path.with_suffix(".new").write_text(json.dumps(self.told))
        path.with_suffix(".new").rename(path)


def join(rank: int, world_size: int, port: int) -> None:
    """Join a group as a rank does that nobody but this function tells of the others."""
    torch.set_num_threads(1)
    for name, value in {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        os.environ[name] = str(value)
    dist.init_process_group("gloo")


def lose(
    rank: int, world_size: int, port: int, folder: str, who: int, when: str, workers: int
) -> None:
    """Kill one rank at a moment of its first two epochs."""
    join(rank, world_size, port)
    lose_one(Rank(rank, world_size, folder), who, when, workers)


def lose_one(rank: Rank, who: int, when: str, workers: int) -> None:
    stream = rank.stream(workers)
    rank.meet("made")
    dies = rank.rank == who
    if dies and when == "before":
        rank.killed()
    if when == "barrier":
        if dies:
            threading.Timer(1.0, rank.killed).start()
        elif rank.rank == max(set(range(rank.world_size)) - {who}):
            wait_until(Path(rank.folder, "killed").exists)

    def read() -> None:
        at = {"first": 1, "middle": STEPS // 2, "last": STEPS}.get(when)
        for epoch in range(2):
            for number, _ in enumerate(stream, start=1):
                rank.told["batches"] += 1
                if number == 1:
                    children = workers_of(os.getpid())
                    Path(rank.folder, f"workers-{rank.rank}").write_text(json.dumps(children))
                if number == at:
                    rank.meet("there")
                    if dies:
                        rank.killed()
                    rank.hold()
                if when == "blocked" and epoch and dies:
                    time.sleep(1)  # the others wait for their first batch
                    rank.killed()
            if when == "between":
                rank.meet("between")
                if dies:
                    rank.killed()
            if when == "blocked" and not dies:
                (rank.folder / f"slow-{rank.rank}").touch()

    rank.keep(read)
    os._exit(0)  # what still reads for a minute is not waited for


def leave_early(rank: int, world_size: int, port: int, folder: str, who: int, how: str) -> None:
    """One rank ends in order after two batches, or before the second epoch; the others read on."""
    join(rank, world_size, port)
    me = Rank(rank, world_size, folder)
    stream = me.stream(0)

    def read() -> None:
        for number, _ in enumerate(stream, start=1):
            me.told["batches"] += 1
            if number == 2:
                me.meet("there")
                if rank == who and how == "in a pass":
                    break
                if rank != who and how == "in a pass":
                    wait_until(Path(folder, f"rank-{who}.json").exists)
                    time.sleep(1.5)
        if how != "in a pass" and rank != who:
            for _ in stream:
                me.told["batches"] += 1

    me.keep(read)
    if how == "destroys":
        dist.destroy_process_group()
        wait_until(lambda: all(Path(folder, f"rank-{n}.json").exists() for n in range(world_size)))


def fail_and_leave(rank: int, world_size: int, port: int, folder: str, who: int) -> None:
    """One rank fails and leaves at once, where the threads of the others have no time to hear."""
    join(rank, world_size, port)
    me = Rank(rank, world_size, folder)
    stream = me.stream(0)
    if rank != who:
        Watch._look = lambda watch: None
    me.meet("made")

    def read() -> None:
        if rank == who:
            here = default_group()
            here.post(here.failure(ValueError("the cause")))
            here.leave()
            return
        for _ in stream:
            me.told["batches"] += 1

    me.keep(read)
    me.meet("end")  # rank 0 keeps the store


def suspend(rank: int, world_size: int, port: int, folder: str, who: int) -> None:
    """One rank is stopped for a while; another lets it go on."""
    join(rank, world_size, port)
    me = Rank(rank, world_size, folder)
    stream = me.stream(0)
    pids = Path(folder, "pid")
    if rank == who:
        write_pid(pids)

    def read() -> None:
        for number, _ in enumerate(stream, start=1):
            me.told["batches"] += 1
            if number == 2:
                me.meet("there")
                if rank == (who + 1) % world_size:
                    os.kill(int(pids.read_text()), signal.SIGSTOP)
                    time.sleep(4)
                    os.kill(int(pids.read_text()), signal.SIGCONT)
                elif rank != who:
                    time.sleep(3)

    me.keep(read)
    me.meet("end")


def differ(rank: int, world_size: int, port: int, folder: str, number: int, who: int) -> None:
    """One rank has other settings or data; each ends as soon as its loop has."""
    join(rank, world_size, port)
    me = Rank(rank, world_size, folder)
    changes = [
        {"seed": 4},
        {"batch_size": 6},
        {"columns": ["row"]},
        {"shuffle": False},
        {"remainder": "drop"},
        {"rows": ROWS[1:]},
        {"rows": (*ROWS[1:], 39)},
        {"epoch": 1},
    ]
    change = changes[number] if rank == who else {}
    rows = change.pop("rows", ROWS)
    epoch = change.pop("epoch", 0)
    options = StreamOptions(**{"batch_size": 5, "shuffle": True, "seed": 3, "lanes": 3} | change)
    stream = StreamLoader(index_of(rows), Numbers(rows), options)
    stream.set_epoch(epoch)

    def read() -> None:
        for _ in stream:
            me.told["batches"] += 1

    me.keep(read)
    if me.told["kind"] == RanksDiffer.__name__:
        os._exit(3)  # at once, and the store with rank 0


def begin_again(
    rank: int, world_size: int, port: int, folder: str, who: int, workers: int, first: bool
) -> None:
    """One rank leaves epoch 0 before its end and begins it again; the others begin epoch 1.

    first: it does so before the others have begun theirs.
    """
    join(rank, world_size, port)
    me = Rank(rank, world_size, folder)
    stream = me.stream(workers)

    def read() -> None:
        if rank == who:
            for _ in islice(stream, STEPS - 3):
                pass
            if not first:
                time.sleep(2)
        else:
            for _ in stream:
                pass
            if first:
                time.sleep(2)
        for _ in stream:
            me.told["batches"] += 1
            time.sleep(0.5)

    me.keep(read)
    me.meet("end")


def main() -> None:
    """Be a rank that a launcher started."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    folder, who, when, workers = sys.argv[1:]
    rank = Rank(dist.get_rank(), dist.get_world_size(), folder)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's: the others shall know by themselves
    lose_one(rank, int(who), when, int(workers))


if __name__ == "__main__":
    main()
