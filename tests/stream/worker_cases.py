"""Datasets, loops and transforms of the workers' tests; imported by name, so that a spawned worker finds them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from option_cases import kinds_dataset
from packing_stream_cases import some_lengths, write_rows
from torch.utils.data import DataLoader

import headrace
from headrace.stream.workers.parcel import whole_batch

NUMBERS = ["row", "half"]
TRANSFORMABLE = {"columns": NUMBERS, "shuffle": True}


def plain(value: Any) -> Any:
    """Python values and the kinds of what holds them, so that two batches are alike where these are equal."""
    if hasattr(value, "detach"):
        return "tensor", str(value.dtype), value.tolist() if value.numel() else list(value.shape)
    if isinstance(value, np.ndarray):
        return (
            "array",
            str(value.dtype),
            [plain(each) for each in value] if value.dtype == object else value.tolist(),
        )
    if isinstance(value, pa.Table):
        return "table", str(value.schema), value.to_pylist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(each) for each in value]
    return value


def alike(batches: Any) -> list[str]:
    """Text of each batch; NaN is equal to NaN there."""
    return [repr(plain(batch)) for batch in batches]


# --- what is read ---


def written(root: Path) -> Path:
    """Small Parquet shards of rows of tokens, and two datasets to blend."""
    write_rows(root / "tokens", some_lengths(120), shard_rows=40, group_rows=20)
    for name, first, rows in (("books", 0, 90), ("code", 1000, 41)):
        (root / name).mkdir()
        table = pa.table(
            {"row": range(first, first + rows), "half": [row / 2 for row in range(rows)]}
        )
        pq.write_table(table, root / name / "0.parquet", row_group_size=20)
    return root


def packing(root: Path, workers: int, **settings: Any) -> Any:
    rows = headrace.open(root / "tokens", cache_dir=root / "cache")
    return rows.torch_dataset(
        **{"batch_size": 2, "shuffle": True, "pack": 64, "num_workers": workers, **settings}
    )


def blended(root: Path, workers: int, **settings: Any) -> Any:
    parts = {
        name: headrace.open(root / name, cache_dir=root / "cache") for name in ("books", "code")
    }
    return headrace.blend(parts, weights={"books": 2, "code": 1}).torch_dataset(
        **{"batch_size": 4, "shuffle": True, "num_workers": workers, **settings}
    )


def kinds(_root: Path, workers: int, **settings: Any) -> Any:
    return kinds_dataset(workers, **settings)


KINDS_OF_DATA: dict[str, Callable[..., Any]] = {
    "torch": kinds,
    "numpy": lambda root, workers, **more: kinds(root, workers, batch_format="numpy", **more),
    "arrow": lambda root, workers, **more: kinds(root, workers, batch_format="arrow", **more),
    "rows": lambda root, workers, **more: kinds(root, workers, batch_format="rows", **more),
    "padded": lambda root, workers, **more: kinds(
        root, workers, columns=["row", "ids"], lists="padded", **more
    ),
    "large": lambda root, workers, **more: kinds(
        root, workers, rows=(9000,) * 3, columns=NUMBERS, **{"batch_size": 6500, **more}
    ),
    "packing": packing,
    "blend": blended,
}


# --- how it is read ---


def own_loader(dataset: Any, workers: int, **settings: Any) -> Any:
    method = settings.pop("method", "fork")
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        **settings,
    )


def stateful_loader(dataset: Any, workers: int, **settings: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    method = settings.pop("method", "fork")
    return StatefulDataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        **settings,
    )


def rows_only(batch: Any) -> Any:
    """A collate function of a user's own."""
    return (
        [row["row"] for row in batch]
        if isinstance(batch, list)
        else {"row": np.asarray(batch["row"])}
    )


LOOPS: dict[str, Callable[..., Any]] = {
    "own": own_loader,
    "whole": lambda dataset, workers, **more: own_loader(
        dataset, workers, collate_fn=whole_batch, **more
    ),
    "collate": lambda dataset, workers, **more: own_loader(
        dataset, workers, collate_fn=rows_only, **more
    ),
    "persistent": lambda dataset, workers, **more: own_loader(
        dataset, workers, persistent_workers=workers > 0, **more
    ),
    "stateful": stateful_loader,
    "data_loader": lambda dataset, workers, method="fork": dataset.data_loader(method=method),
}


# --- transforms ---


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "twice": batch["row"] * 2, "text": [str(row) for row in batch["row"].tolist()]}


def counted(batch: Any) -> Any:
    """A transform for batches of any form."""
    return {"batch": batch, "rows": len(batch) if isinstance(batch, list) else len(batch["row"])}


def failing(batch: Any) -> Any:
    if 50 in batch["row"].tolist():
        raise ZeroDivisionError("row 50 is not liked")
    return batch


class Deadly:
    """A transform that kills its own process at some rows, so often over all processes."""

    def __init__(self, directory: Path, rows: tuple[int, ...], times: int = 1) -> None:
        self.directory, self.rows, self.times = directory, rows, times

    def __call__(self, batch: Any) -> Any:
        for row in set(self.rows).intersection(batch["row"].tolist()):
            for number in range(self.times):
                with contextlib.suppress(FileExistsError):
                    os.close(
                        os.open(self.directory / f"killed {row} {number}", os.O_CREAT | os.O_EXCL)
                    )
                    os.kill(os.getpid(), signal.SIGKILL)
        return batch


def chance(name: object) -> random.Random:
    return random.Random(repr(name))
