"""What ranks run in the tests of failures; imported by name, so that spawn finds it."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist

import headrace
from waits import wait_until

GROUPS, GROUP_ROWS, BAD_GROUP = 12, 2000, 7


def write_shards(folder: Path, shards: int) -> None:
    """Parquet shards of 12 row groups, with a checksum on every page; column row counts the rows of all."""
    folder.mkdir()
    rows = GROUPS * GROUP_ROWS
    for shard in range(shards):
        table = pa.table({"row": range(shard * rows, (shard + 1) * rows)})
        path = folder / f"part-{shard:05d}.parquet"
        pq.write_table(
            table, path, row_group_size=GROUP_ROWS, write_page_checksum=True, use_dictionary=False
        )


def damage(path: Path, how: str, group: int = BAD_GROUP) -> bytes:
    """Flip a byte of a row group, cut the file off inside it, or take the file away; returns what was there.

    A flip keeps the time of the file, as a disk that fails does: the bytes alone can tell.
    """
    before, whole = path.stat(), path.read_bytes()
    column = pq.ParquetFile(path).metadata.row_group(group).column(0)
    place = column.data_page_offset + column.total_compressed_size // 2
    if how == "flipped":
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        keep_time(path, before)
    elif how == "truncated":
        path.write_bytes(whole[:place])
    else:
        path.unlink()
    return whole


def keep_time(path: Path, before: os.stat_result) -> None:
    """Give a file its earlier time, by which an opened dataset knows it."""
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Said(logging.Handler):
    """Makes a file when a message holds these words."""

    def __init__(self, words: str, path: Path) -> None:
        super().__init__()
        self.words, self.path = words, path

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage():
            self.path.touch()


def join_group(rank: int, world_size: int, folder: str) -> Lines:
    """Become a rank of a gloo group whose store is a TCP server on rank 0, and keep the log."""
    torch.set_num_threads(1)
    lines = Lines()
    logger = logging.getLogger("headrace")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    port = Path(folder, "port")
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)
        port.with_suffix(".new").write_text(str(store.port))
        port.with_suffix(".new").rename(port)
    else:
        while not port.exists():
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(port.read_text()), world_size, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return lines


def fail_on_rank(rank: int, world_size: int, folder: str, how: str, failing: int) -> None:
    """Epoch 3 meets a damaged row group on one rank: with threads, with workers, and in a loop of collectives."""
    log = join_group(rank, world_size, folder)
    bad = Path(folder, "shards", f"part-{failing:05d}.parquet")
    opened = headrace.open(Path(folder, "shards"), cache_dir=Path(folder, f"cache-{rank}"))
    before = bad.stat()
    stream = opened.stream(batch_size=100)
    dataset = opened.torch_dataset(
        batch_size=100, num_workers=2, lanes=world_size
    )  # a rank reads one shard
    for _ in range(3):
        assert sum(len(batch["row"]) for batch in stream) == GROUPS * GROUP_ROWS
    heard = [Path(folder, f"heard-{each}") for each in range(world_size)]
    out = {"epoch": 0}
    for name in ("threads", "workers", "lockstep"):
        dist.barrier()
        whole = damage(bad, how) if rank == failing else b""
        dist.barrier()
        stream.set_epoch(3)
        dataset.set_epoch(3)
        log.lines.clear()
        if name == "lockstep":
            logging.getLogger("headrace").addHandler(Said("stopped the stream", heard[rank]))
        batches = 0
        try:
            for _ in dataset.data_loader(method="fork") if name == "workers" else stream:
                batches += 1
                if name == "lockstep":
                    dist.all_reduce(torch.ones(1))
                elif batches < 200:
                    time.sleep(0.02)
                elif (
                    rank != failing
                ):  # so far ahead that the pass would end before it hears of the failure
                    wait_until(lambda: any("stopped the stream" in line for line in log.lines))
        except (headrace.HeadraceError, RuntimeError) as error:  # gloo raises the latter
            out[name] = {
                "kind": type(error).__name__,
                "message": str(error),
                "time": time.monotonic(),
            }
        out[name] |= {"batches": batches, "log": list(log.lines), "epoch": stream.epoch}
        if name != "lockstep":
            dist.barrier()
            if rank == failing:
                bad.write_bytes(whole)
                keep_time(bad, before)
        elif (
            rank == failing
        ):  # its end ends the collective that the others wait in, and rank 0's the store
            wait_until(lambda: all(path.exists() for path in heard))
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
