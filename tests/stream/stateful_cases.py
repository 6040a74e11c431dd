"""What the ranks of the StatefulDataLoader's tests run, in a real gloo group; imported by name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from rank_processes import process_group
from torch_cases import dataset_of, real_rows
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace.stream.loader.stateful import stream_state

STOP = 3  # of two workers, one is a batch ahead there


def loader_of(num_workers: int, **settings: object) -> StatefulDataLoader:
    dataset = dataset_of(num_workers, **settings)
    return StatefulDataLoader(dataset, batch_size=None, num_workers=num_workers)


def stop_and_resume(num_workers: int, saved: Path, rank: int) -> dict:
    """A whole epoch; the same one stopped, and the rest of it from the loader's own state."""
    loader = loader_of(num_workers)
    batches = iter(loader)
    before = [real_rows(next(batches)) for _ in range(STOP)]
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_of(num_workers)
    resumed.load_state_dict(state)
    if rank == 0:
        saved.write_text(json.dumps(stream_state(state)))
    return {
        "whole": [real_rows(batch) for batch in loader_of(num_workers)],
        "before": before,
        "rest": [real_rows(batch) for batch in resumed],
    }


def deliver_on_rank(rank: int, folder: str, num_workers: int) -> None:
    """One process: two ranks stop and resume, then three take what was left. Its record goes to a file."""
    warnings.simplefilter("ignore")
    saved, record = Path(folder, "state.json"), {}
    if rank < 2:
        with process_group(rank, 2, folder, "two"):
            record[2] = stop_and_resume(num_workers, saved, rank)
    with process_group(rank, 3, folder, "three"):
        dataset = dataset_of(1, batch_size=4)
        dataset.load_state_dict(json.loads(saved.read_text()))
        loader = StatefulDataLoader(dataset, batch_size=None, num_workers=1)
        record[3] = {"of two": [real_rows(batch) for batch in loader]}
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(record))
