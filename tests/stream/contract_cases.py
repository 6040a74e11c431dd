"""What ranks run that are about to read different things; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fault_cases import Lines
from rank_processes import process_group

import headrace
import headrace.windows
from headrace.stream.ranks.group import default_store
from waits import wait_until

LONG = "x" * 5000 + "\x1b[31m"


def write_data(folder: Path) -> None:
    """Three datasets: the second has fewer rows, the third as many in other shards."""
    for name, sizes in (("data", (90, 90)), ("short", (90, 30)), ("other", (100, 80))):
        (folder / name).mkdir(parents=True)
        for number, rows in enumerate(sizes):
            lists = pa.array([[1] * (row % 5 + 1) for row in range(rows)])
            table = pa.table(
                {
                    "row": np.arange(rows),
                    "more": np.arange(rows),
                    LONG: np.arange(rows),
                    "ids": lists,
                }
            )
            pq.write_table(table, folder / name / f"{number}.parquet", row_group_size=15)


def plus_one(batch):
    return batch


def plus_two(batch):
    return batch


def cases(folder: Path, series: str | None, state: dict):
    """By name: what rank 0 reads, what the last rank reads instead, and what the error must say of both."""
    usual = {"batch_size": 5, "shuffle": True, "seed": 3, "columns": ["row"]}

    def opened(name="data", *, epoch=0, load=False, **settings):
        stream = headrace.open(folder / name, cache_dir=folder / "cache").stream(
            **{**usual, **settings}
        )
        if load:
            stream.load_state_dict(state)
        if epoch:
            stream.set_epoch(epoch)
        return stream

    def loader(name="data", *, epoch=0, **settings):
        data = headrace.open(folder / name, cache_dir=folder / "cache")
        dataset = data.torch_dataset(**{**usual, "num_workers": 1, **settings})
        if epoch:
            dataset.set_epoch(epoch)
        return dataset.data_loader(method="fork")

    def packing(**settings):
        return opened(
            columns=None,
            **{"pack": headrace.PackRows(capacity=16, tokens="ids"), "batch_size": 2, **settings},
        )

    def windows(**settings):
        train = headrace.windows.open(series, "train", input_length=5, output_length=2)
        return train.stream(**{"batch_size": 8, "seed": 1, "batch_format": "numpy", **settings})

    def tabular(**settings):
        asked = {
            "file_dir": str(folder / "data"),
            "batch_size": 5,
            "columns": ["row"],
            "cache_dir": folder / "cache",
        }
        return headrace.PipelineIterableDataset({}, **{**asked, **settings})

    dynamic = {"distribution": "dynamic"}
    found = {
        "another dataset": (
            opened,
            lambda: opened("short"),
            "rows is 180 on rank 0 and 120 on rank 2",
        ),
        "other shards": (opened, lambda: opened("other"), "index is "),
        "batch size": (
            opened,
            lambda: opened(batch_size=15),
            "batch_size is 5 on rank 0 and 15 on rank 2",
        ),
        "seed": (opened, lambda: opened(seed=4), "seed is 3 on rank 0 and 4 on rank 2"),
        "a forgotten set_epoch": (
            lambda: opened(epoch=2),
            opened,
            "epoch is 2 on rank 0 and 0 on rank 2",
        ),
        "a state on one rank": (
            opened,
            lambda: opened(load=True),
            "position is 0 on rank 0 and 60 on rank 2",
        ),
        "columns": (
            opened,
            lambda: opened(columns=["row", "more"]),
            "columns is ['row'] on rank 0 and ['row', 'more']",
        ),
        "a long name": (
            opened,
            lambda: opened(columns=["row", LONG]),
            "columns is ['row'] on rank 0 and ['row', 'xxx",
        ),
        "transform": (
            lambda: opened(transform=plus_one),
            lambda: opened(transform=plus_two),
            "transform is 'contract_cases.plus_one' on rank 0 and 'contract_cases.plus_two' on rank 2",
        ),
        "filter": (
            lambda: opened(filter=[("row", "<", 50)]),
            lambda: opened(filter=[("row", "<=", 49)]),
            "filter is '",
        ),
        "shuffle": (
            opened,
            lambda: opened(shuffle=False),
            "shuffle is True on rank 0 and False on rank 2",
        ),
        "lanes": (opened, lambda: opened(lanes=9), "lanes is "),
        "remainder": (
            opened,
            lambda: opened(remainder="drop"),
            "remainder is 'pad' on rank 0 and 'drop' on rank 2",
        ),
        "distribution": (
            opened,
            lambda: opened(distribution="by_size"),
            "distribution is 'balanced' on rank 0",
        ),
        "kind of stream": (
            opened,
            lambda: opened(**dynamic),
            "source is 'RowPass' on rank 0 and 'DynamicPass'",
        ),
        "dynamic": (
            lambda: opened(**dynamic),
            lambda: opened("short", **dynamic),
            "rows is 180 on rank 0 and 120",
        ),
        "packing": (
            packing,
            lambda: packing(batch_size=3),
            "batch_size is 2 on rank 0 and 3 on rank 2",
        ),
        "workers": (
            loader,
            lambda: loader(num_workers=2),
            "num_workers is 1 on rank 0 and 2 on rank 2",
        ),
        "batch size of workers": (
            loader,
            lambda: loader(batch_size=15),
            "batch_size is 5 on rank 0 and 15 on rank 2",
        ),
        "dataset of workers": (
            loader,
            lambda: loader("short"),
            "rows is 180 on rank 0 and 120 on rank 2",
        ),
        "epoch of workers": (
            lambda: loader(epoch=1),
            loader,
            "epoch is 1 on rank 0 and 0 on rank 2",
        ),
        "tabular": (
            tabular,
            lambda: tabular(batch_size=6),
            "batch_size is 5 on rank 0 and 6 on rank 2",
        ),
    }
    if series is not None:
        found["windows"] = (
            windows,
            lambda: windows(batch_size=9),
            "batch_size is 8 on rank 0 and 9 on rank 2",
        )
        found["seed of windows"] = (
            windows,
            lambda: windows(seed=2),
            "seed is 1 on rank 0 and 2 on rank 2",
        )
    return found


def differ_on_rank(rank: int, world_size: int, folder: str, series: str | None) -> None:
    """Each case, then a stream that all read alike; what each rank was told, and how many batches it got before."""
    root, told = Path(folder), {}
    logging.getLogger("headrace").addHandler(Lines())
    with process_group(rank, world_size, folder):
        state = json.loads((root / "state.json").read_text())
        for name, (usual, other, _) in cases(root, series, state).items():
            batches, error = 0, ""
            try:
                for _ in (other if rank == world_size - 1 else usual)():
                    batches += 1
            except headrace.HeadraceError as raised:
                error = f"{type(raised).__name__}: {raised}"
            told[name] = {"batches": batches, "error": error}
        alike = headrace.open(root / "data", cache_dir=root / "cache").stream(batch_size=7)
        told["alike"] = {"rows": sum(int(batch["valid"].sum()) for batch in alike)}
        (root / f"rank-{rank}.json").write_text(json.dumps(told))


def absent_on_rank(rank: int, world_size: int, folder: str) -> None:
    """The last rank validates alone, and does not come to the stream of all until the others have given up."""
    root, lines = Path(folder), Lines()
    logging.getLogger("headrace").addHandler(lines)
    told = {}
    with process_group(rank, world_size, folder):
        data = headrace.open(root / "data", cache_dir=root / "cache")
        store = default_store()
        if rank == world_size - 1:
            alone = data.stream(batch_size=5, topology=headrace.Topology(rank=0, world_size=1))
            told["alone"] = sum(len(batch["row"]) for batch in alone)
            (root / "read-alone").touch()
            for each in range(world_size - 1):
                assert wait_until((root / f"gave-up-{each}").exists)
        else:
            assert wait_until((root / "read-alone").exists)
            store.set_timeout(timedelta(seconds=1))
        batches, error = 0, ""
        try:
            for _ in data.stream(batch_size=5):
                batches += 1
        except headrace.errors.StreamError as raised:
            error = str(raised)
        (root / f"gave-up-{rank}").touch()
        store.set_timeout(timedelta(seconds=240))
        told |= {"batches": batches, "error": error}
        (root / f"rank-{rank}.json").write_text(json.dumps(told))
