"""60 jobs over trainers, ranks, workers and stops, each counted by rows; prints a table.

    python tests/trainers/counted_jobs.py [--only Lightning]

Each job stops inside an epoch, or loses a rank by kill -9 behind its checkpoint, and goes on with other ranks and
workers. Its rows, and those of each global batch, are compared with an epoch that one process reads alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests), str(tests / "stream")]

from counted_cases import ORDER, SAVED, STEP_ROWS, TRAINERS, live, write_data
from rank_processes import PRELOADED, end_ranks
from script_processes import held_store

import headrace

CHANGES = ((1, 2), (2, 3), (3, 1), (2, 1))  # of ranks
NEEDS = {
    "StatefulDataLoader": "torchdata",
    "Lightning": "lightning",
    "Accelerate": "accelerate",
    "Trainer": "transformers",
    "SFTTrainer": "trl",
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """ranks, workers: before and after the stop. ends: how the first life does, "stop" or "kill"."""

    trainer: str
    ranks: tuple[int, int]
    workers: tuple[int, int]
    ends: str

    def __str__(self) -> str:
        (before, after), (workers, others) = self.ranks, self.workers
        return f"{self.trainer}-{before}to{after}-{workers}to{others}-{self.ends}"

    @property
    def is_possible(self) -> bool:
        """Whether its trainer is installed."""
        return importlib.util.find_spec(NEEDS.get(self.trainer, "torch")) is not None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a job trained, of the rows and global batches of an epoch. said: what went wrong, if it did not run."""

    lost: int
    repeated: int
    equal: int
    steps: int
    said: str = ""

    @property
    def is_exact(self) -> bool:
        """Every row once, in the batches of one process."""
        return not self.said and not self.lost and not self.repeated and self.equal == self.steps


def every_job() -> list[Job]:
    """The jobs, trainer by trainer. torchtitan's loader has no workers."""
    jobs = []
    for trainer in TRAINERS:
        for number, ranks in enumerate(CHANGES):
            for workers in ((0, 0),) if trainer == "torchtitan" else ((0, 2), (2, 0)):
                ends = "kill" if (number + workers[0] // 2) % 2 else "stop"
                jobs.append(Job(trainer=trainer, ranks=ranks, workers=workers, ends=ends))
    return jobs


def run(job: Job, folder: Path) -> Outcome:
    """Both lives of a job, and what they trained."""
    write_data(folder)
    expected = alone(folder / ("bins" if job.trainer == "torchtitan" else "rows"))
    said = []
    for ranks, workers, ends in zip(job.ranks, job.workers, (job.ends, "epoch"), strict=True):
        store = held_store()
        codes = end_ranks(live, ranks, ranks, store.port, job.trainer, str(folder), workers, ends)
        if codes[-1] != (-9 if ends == "kill" else 0) or (ends != "kill" and any(codes)):
            said.append(f"{ends}: the ranks ended with {codes}")
    steps = trained_steps(folder)
    counts = Counter(row for rows in steps.values() for row in rows)
    every = [row for step in expected for row in step]
    return Outcome(
        lost=len(set(every) - set(counts)),
        repeated=counts.total() - len(counts),
        equal=sum(sorted(rows) == steps[number] for number, rows in enumerate(expected, start=1)),
        steps=len(expected),
        said="; ".join(said),
    )


def trained_steps(folder: Path) -> dict[int, list[int]]:
    """The rows of each step over all ranks, ascending: of the first life up to its checkpoint, then of the second."""
    steps: dict[int, list[int]] = {}
    for path in sorted(folder.glob("*-[0-9].jsonl")):
        for line in path.read_text().splitlines():
            step, rows = json.loads(line)
            if path.name.startswith("first") and step > SAVED:
                continue
            steps.setdefault(step, []).extend(rows)
    return {step: sorted(rows) for step, rows in steps.items()}


def alone(data: Path) -> list[list[int]]:
    """The global batches of an epoch as one process reads it, without a trainer."""
    opened = headrace.open(data, cache_dir=data.parent / "cache")
    ranks = headrace.Topology(rank=0, world_size=1)
    stream = opened.stream("train", batch_size=STEP_ROWS, topology=ranks, packed="off", **ORDER)
    if data.name == "rows":
        return [batch["row"].tolist() for batch in stream]
    return [[int(tokens[0]) for tokens in batch["input_ids"]] for batch in stream]


def main() -> int:
    """Run the jobs, print a line for each; how many were not exact."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=TRAINERS, help="jobs of one trainer")
    asked = parser.parse_args()
    multiprocessing.set_forkserver_preload(
        [*PRELOADED, "transformers.trainer", "trl.trainer.sft_trainer"]
    )
    heads = ("trainer", "ranks", "workers", "first life", "rows lost", "rows repeated")
    print(f"| {' | '.join((*heads, 'equal global batches', 'seconds'))} |")
    print("|---" * (len(heads) + 2) + "|")
    wrong = 0
    for job in every_job():
        if asked.only not in (None, job.trainer):
            continue
        begun = time.monotonic()
        cells = [f"{before} → {after}" for before, after in (job.ranks, job.workers)]
        cells = [job.trainer, *cells, {"stop": "stopped", "kill": "kill -9"}[job.ends]]
        if not job.is_possible:
            cells.append("not installed")
        else:
            with tempfile.TemporaryDirectory() as folder:
                found = run(job, Path(folder))
            wrong += not found.is_exact
            cells += [f"{found.lost}", f"{found.repeated}", f"{found.equal} of {found.steps}"]
            cells += [f"{time.monotonic() - begun:.0f}", *filter(None, [found.said])]
        print(f"| {' | '.join(cells)} |", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
