"""One saved state of every kind, with what loads it and saves it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from series_cases import write_run
from stream_cases import Numbers, index_of

import headrace
import headrace.windows
from headrace.sealed import seal
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stateful import WorkerProgress, stream_state
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology

ROWS = (40,) * 6
ALONE = Topology(rank=0, world_size=1)
_CUT = {"lanes": 2, "shuffle_rows": 60}  # four rounds, in lanes that three ranks do not divide
Kind = tuple[dict[str, Any], Callable[[Any], Any]]


def of_streams() -> dict[str, Kind]:
    """States of streams over numbers, after some batches."""
    three = Topology(rank=0, world_size=3)
    stopped = _loader()
    _read(stopped, 7)
    moved = _loader(topology=three, **_CUT)
    before = _loader(**_CUT)
    _read(before, 7)
    moved.load_state_dict(before.state_dict())
    _read(moved, 2)
    late = _loader(topology=three, **_CUT)
    late.load_state_dict(moved.state_dict())
    _read(late, 8)
    return {
        "stream": _of_loader(stopped),
        "stream in the rest of a round": _of_loader(moved, topology=three, **_CUT),
        "stream cut again": _of_loader(late, topology=three, **_CUT),
        "stream of whole shards": _of_loader(
            _loader(distribution="by_size"), distribution="by_size"
        ),
        "stream of a part of the rows": _of_loader(
            _loader(samples_per_epoch=70), samples_per_epoch=70
        ),
    }


def of_claims() -> dict[str, Kind]:
    """The state of ranks that claim blocks as they are ready for them."""
    loader = _dynamic()
    _read(loader, 3)
    return {"dynamic stream": (loader.state_dict(), lambda state: _again(_dynamic(), state))}


def of_workers() -> dict[str, Kind]:
    """What workers save of themselves, and a StatefulDataLoader of its workers."""
    start = _loader().state_dict()
    parts = [
        WorkerProgress(
            start=start,
            epoch=0,
            worker=worker,
            batches=3 - worker,
            world_size=1,
            workers=2,
            batch_size=5,
            remainder="pad",
        )
        for worker in range(2)
    ]
    snapshots = {f"worker_{part.worker}": {"dataset_state": part.to_dict()} for part in parts}
    whole = {
        "_snapshot": {"_worker_snapshots": snapshots, "_last_yielded_worker_id": 0},
        "_num_yielded": 5,
    }
    return {
        "worker": (parts[0].to_dict(), lambda state: WorkerProgress.from_dict(state).to_dict()),
        "StatefulDataLoader": (whole, stream_state),
    }


def of_others(folder: Path) -> dict[str, Kind]:
    """Blends, rows packed while they stream, windows and packers."""
    for name, rows in (("one", 60), ("two", 25)):
        (folder / name).mkdir()
        table = {
            "row": np.arange(rows),
            "input_ids": pa.array([[1] * (row % 7 + 1) for row in range(rows)]),
        }
        pq.write_table(pa.table(table), folder / name / "a.parquet", row_group_size=20)
    opened = [headrace.open(folder / name, cache_dir=folder / "cache") for name in ("one", "two")]

    def blend():
        return headrace.blend(opened, weights=[2, 1]).stream(
            batch_size=4, columns=["row"], topology=ALONE
        )

    def packing():
        return opened[0].stream(batch_size=2, pack=16, topology=ALONE)

    write_run(folder / "series", (40, 25, 30))

    def windows():
        train = headrace.windows.open(folder / "series", "train", input_length=5, output_length=2)
        nearby = {"shuffle": "nearby", "lanes": 3, "lane_windows": 7}
        return train.stream(
            batch_size=4, chunk_size=2, batch_format="numpy", topology=ALONE, **nearby
        )

    kinds = {}
    for name, make in (("blend", blend), ("packing", packing), ("window", windows)):
        loader = make()
        _read(loader, 2)
        kinds[name] = loader.state_dict(), lambda state, make=make: _again(make(), state)
    return kinds


def of_lightning() -> dict[str, Kind]:
    """What a data module leaves in a checkpoint."""
    from headrace.lightning import HeadraceDataModule

    saved = seal("data module", 2, {"stream": _loader().state_dict(), "batches": 4, "ended": False})

    def load(state: Any) -> Any:
        """An empty state is of a module that had nothing to save."""
        return saved if state == {} else _again(HeadraceDataModule("nowhere", batch_size=8), state)

    return {"data module": (saved, load)}


def _options(**settings: Any) -> StreamOptions:
    return StreamOptions(**{"batch_size": 5, "shuffle": True, "batch_format": "numpy", **settings})


def _loader(topology: Topology = ALONE, **settings: Any) -> StreamLoader:
    return StreamLoader(index_of(ROWS), Numbers(ROWS), _options(**settings), topology=topology)


def _dynamic() -> StreamLoader:
    return StreamLoader(
        index_of(ROWS), Numbers(ROWS), _options(distribution="dynamic"), topology=ALONE
    )


def _of_loader(saved: StreamLoader, **settings: Any) -> Kind:
    return saved.state_dict(), lambda state: _again(_loader(**settings), state)


def _again(loader: Any, state: Any) -> Any:
    loader.load_state_dict(state)
    return loader.state_dict()


def _read(loader: Any, batches: int) -> None:
    given = iter(loader)
    for _ in range(batches):
        next(given)
