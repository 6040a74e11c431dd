"""A training loop that is killed, told to stop and begun again, as docs/trainers/ddp.md shows it.

As a script it is what torchrun starts: `restart_cases.py FOLDER WORKERS [ATTEMPT:RANK:STEP ...]`, each a rank that is
killed there; the functions are imported by name, so that a child finds them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from rank_processes import process_group
from stream_cases import Numbers, index_of

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset

ROWS = (40,) * 6
SAVE_EVERY = 5  # no whole number of rounds of two workers
OPTIONS = StreamOptions(batch_size=5, shuffle=True, lanes=4)


def begin(workers: int):
    """A stream or a dataset of two workers, and what gives its batches and its state after so many."""
    if not workers:
        stream = StreamLoader(index_of(ROWS), Numbers(ROWS), OPTIONS)
        return stream, stream, lambda _: stream.state_dict()
    dataset = StreamingDataset(index_of(ROWS), Numbers(ROWS), OPTIONS, num_workers=workers)
    return dataset, dataset.data_loader(method="fork"), dataset.state_after


def train(
    folder: Path, name: str, workers: int, told: list[int], happens: Callable[[int], None]
) -> None:
    """One life of a rank: from the newest state to the end of the epoch, or to the step at which any rank was told."""
    stream, batches, state_after = begin(workers)
    newest, rank = folder / "newest.json", dist.get_rank()
    done = 0
    if newest.exists():
        saved = json.loads(newest.read_text())
        stream.load_state_dict(saved["stream"])
        done = saved["step"]
    with (folder / f"{name}-{rank}.rows").open("w") as log:
        for received, batch in enumerate(batches, start=1):
            step = done + received
            print(json.dumps([step, batch["row"][batch["valid"]].tolist()]), file=log, flush=True)
            happens(step)
            stop = torch.tensor(len(told))
            dist.all_reduce(stop)
            if step % SAVE_EVERY == 0 or stop:
                state = state_after(received)
                if rank == 0:
                    (folder / "newest.new").write_text(json.dumps({"stream": state, "step": step}))
                    os.replace(folder / "newest.new", newest)
            if stop:
                break
    dist.barrier()


def workers_of(process: int) -> list[int]:
    """The processes that this one began."""
    return [
        int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def preempted(rank: int, world_size: int, folder: str, workers: int, whom: str, life: int) -> None:
    """SIGTERM in the midst of the first life, to whom it comes: "rank" 1 alone, or "all" ranks and their workers."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    os.setsid()  # a group of its own, of which its workers are

    def happens(step: int) -> None:
        if life == 0 and step == 6:
            Path(folder, f"workers-{rank}.json").write_text(json.dumps(workers_of(os.getpid())))
            if whom == "all":
                os.killpg(0, signal.SIGTERM)
            elif rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    with process_group(rank, world_size, folder, f"life-{life}"):
        train(Path(folder), f"life-{life}", workers, told, happens)


def unprepared(rank: int, world_size: int, folder: str, workers: int) -> None:
    """SIGTERM as Python takes it where nobody has said otherwise: the process ends at once."""
    os.setsid()

    def happens(step: int) -> None:
        if step == 6:
            Path(folder, f"workers-{rank}.json").write_text(json.dumps(workers_of(os.getpid())))
            dist.barrier()
            os.kill(os.getpid(), signal.SIGTERM)

    with process_group(rank, world_size, folder):
        train(Path(folder), "life-0", workers, [], happens)


def main() -> None:
    """A rank of torchrun's."""
    attempt, folder, workers = (
        int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        Path(sys.argv[1]),
        int(sys.argv[2]),
    )
    dist.init_process_group("gloo")

    def happens(step: int) -> None:
        if f"{attempt}:{dist.get_rank()}:{step}" in sys.argv[3:]:
            os.kill(os.getpid(), signal.SIGKILL)

    train(folder, f"life-{attempt}", workers, [], happens)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
