"""Epoch after epoch, each cut in two by a resume from the state: what a long training does to one process."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from pathlib import Path

import headrace


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def own_shared_memory() -> list[str]:
    return [name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name]


def child(out: str, epochs: int) -> None:
    """Stream so many epochs; print memory at every epoch, and what is left at the end."""
    dataset = headrace.open(out)
    memory: list[int] = []
    before = 0
    rows = sum(dataset.split_rows[each] for each in ("train",))
    for epoch in range(epochs):
        loader = dataset.stream(
            "train", batch_size=64, shuffle=True, seed=3, batch_format="numpy", read_threads=2
        )
        loader.set_epoch(epoch)
        steps = len(loader)
        seen = 0
        batches = iter(loader)
        for _ in range(steps // 2):
            seen += len(next(batches)["id"])
        state = json.loads(json.dumps(loader.state_dict()))
        del batches, loader
        resumed = dataset.stream(
            "train", batch_size=64, shuffle=True, seed=3, batch_format="numpy", read_threads=2
        )
        resumed.load_state_dict(state)
        seen += sum(len(batch["id"]) for batch in resumed)
        assert seen == rows, (seen, rows)
        del resumed
        gc.collect()
        memory.append(rss())
        if epoch == epochs // 4:
            before = open_files()
    until = time.monotonic() + 120
    while len(threading.enumerate()) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    told = {
        "settled": min(memory[epochs // 4 : epochs // 2]),
        "last": min(memory[-max(epochs // 4, 1) :]),
        "threads": [each.name for each in threading.enumerate()],
        "files": open_files() - before,
        "shared": own_shared_memory(),
    }
    print(json.dumps(told))
