"""What child processes of the torch tests run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from types import TracebackType

from rank_processes import process_group
from stream_cases import Numbers, index_of
from torch.utils.data import DataLoader

from headrace.stream.audit.rows import audit
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.torch_dataset import StreamingDataset

ROWS = (40, 0, 13, 1, 90, 17)


def dataset_of(num_workers, *, rows=ROWS, topology=None, **settings):
    settings = StreamOptions(
        **{"batch_size": 5, "shuffle": True, "shuffle_rows": 32, "lanes": 8, **settings}
    )
    return StreamingDataset(
        index_of(rows), Numbers(rows), settings, num_workers=num_workers, topology=topology
    )


def loader_of(dataset, *, method="fork", persistent=False):
    workers = dataset.num_workers
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        persistent_workers=persistent,
    )


def let_go(error: TracebackType) -> None:
    """End the loop that an error's frames keep: if they wait for the collector, torch waits 5 s for each worker."""
    traceback.clear_frames(error)


def real_rows(batch):
    return (batch["row"][batch["valid"]] if "valid" in batch else batch["row"]).tolist()


def audit_on_rank(rank: int, world_size: int, folder: str, faults: list[str]) -> None:
    """One rank of a real process group whose delivery is audited, with each of the faults on the last rank."""
    verdicts = {}
    with process_group(rank, world_size, folder):
        for fault in faults:
            batches = list(loader_of(dataset_of(0)))
            if rank == world_size - 1 and fault == "twice":
                batches[0] = batches[1]
            if rank == world_size - 1 and fault == "steps":
                del batches[-1]
            watched = audit(batches, key="row", expected=sum(ROWS))
            for _ in watched:
                pass
            report = watched.report()
            verdicts[fault] = {
                "ok": report.ok,
                "duplicates": report.duplicates,
                "batches": report.batches_per_rank,
            }
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(verdicts))
