"""Real ranks, real workers, real files: every row once, equal steps, and the batches that the pure order says.

The same four processes form one group after another: starting processes and importing torch is what costs.
"""

import json
from itertools import product

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from gloo_cases import deliver_on_rank, open_split
from rank_processes import run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch with gloo",
)

SHARDS = {
    "uneven": (40, 0, 13, 1, 90, 17, 28),
    "one": (137,),  # fewer shards than ranks
    "huge": (400, *[1] * 9, 0, 2),
    "few": (1, 1, 0),  # fewer rows than ranks
}


def write_shards(root, name, extension):
    """The rows 0..N-1 in shards of these sizes; the glob that opens them."""
    folder = root / f"{name}-{extension}"
    folder.mkdir()
    first = 0
    for shard, rows in enumerate(SHARDS[name]):
        table = pa.table(
            {"row": pa.array(range(first, first + rows), pa.int64()), "text": ["a"] * rows}
        )
        path = folder / f"part-{shard:05d}.{extension}"
        if extension == "parquet":
            pq.write_table(table, path, row_group_size=32)
        else:
            pyarrow.csv.write_csv(table, path)
        first += rows
    return f"{folder}/*.{extension}"


def check_case(case, ranks):
    total = sum(SHARDS[case["shards"]])
    for epoch in range(2):
        parts = [rank["epochs"][epoch] for rank in ranks]
        for rank, part in zip(ranks, parts, strict=True):
            assert part["expected"] == part["batches"], case
            assert rank["source"] == "torch.distributed"
            assert len(part["batches"]) == rank["len"] == ranks[0]["len"], case
            assert part["ok"], case
            assert part["steps"] == parts[0]["steps"]
        rows = sorted(row for part in parts for batch in part["batches"] for row in batch)
        assert len(set(rows)) == len(rows) == total - ranks[0]["dropped"] == parts[0]["rows"], case
        assert ranks[0]["dropped"] < case["batch_size"] * len(ranks) * max(1, case["workers"]), case
        assert case["remainder"] == "drop" or not ranks[0]["dropped"]
        assert set(rows) <= set(range(total))
    if case["shards"] != "few":  # living workers saw set_epoch; of two rows there are two orders
        same = [rank["epochs"][0]["batches"] == rank["epochs"][1]["batches"] for rank in ranks]
        assert all(same) != case["shuffle"], case


def deliver_groups(folder, groups):
    paths = {}
    for _, cases in groups:
        for case in cases:
            key = (case["shards"], case["extension"])
            if key not in paths:
                paths[key] = write_shards(folder, *key)
                open_split(paths[key], str(folder)).split_index()  # one index for all ranks
            case["path"] = paths[key]
    processes = max(world_size for world_size, _ in groups)
    run_ranks(deliver_on_rank, processes, str(folder), groups)
    records = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(processes)]
    for world_size, cases in groups:
        for number, case in enumerate(cases):
            check_case(case, [record[str(world_size)][number] for record in records[:world_size]])


def case_of(
    shards, extension, workers, method="fork", *, shuffle=True, remainder="pad", batch_size=5
):
    return {
        "shards": shards,
        "extension": extension,
        "workers": workers,
        "method": method,
        "shuffle": shuffle,
        "remainder": remainder,
        "batch_size": batch_size,
    }


FEW_CASES = {
    2: [
        case_of("uneven", "parquet", 0),
        case_of("uneven", "csv", 2, remainder="drop"),
        case_of("uneven", "parquet", 1, "spawn"),
        case_of("huge", "csv", 1, "forkserver", shuffle=False, batch_size=16),
        case_of("few", "parquet", 2),
    ],
    3: [
        case_of("uneven", "csv", 0, shuffle=False),
        case_of("huge", "parquet", 1, batch_size=16),
        case_of("one", "csv", 2, remainder="drop", batch_size=2),
        case_of("few", "csv", 0, remainder="drop"),
    ],
    4: [
        case_of("uneven", "parquet", 2, batch_size=3),
        case_of("uneven", "csv", 1, remainder="drop"),
        case_of("one", "parquet", 0),
        case_of("few", "parquet", 1),
        case_of("huge", "csv", 0, batch_size=16, remainder="drop"),
    ],
}


@pytest.mark.smoke("three")
@pytest.mark.parametrize("world_sizes", [(3,), (2, 4)], ids=["three", "others"])
def test_ranks_and_workers_deliver_what_the_pure_order_says(tmp_path, world_sizes):
    deliver_groups(tmp_path, [(world_size, FEW_CASES[world_size]) for world_size in world_sizes])


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_whole_grid_delivers_what_the_pure_order_says(tmp_path, method):
    few = method != "fork"  # each worker of these imports torch anew
    groups = []
    for world_size in (2, 3, 4):
        grid = product(
            SHARDS, ("parquet", "csv"), (1, 2) if few else (0, 1, 2), (True, False), ("pad", "drop")
        )
        cases = [
            case_of(shards, extension, workers, method, shuffle=shuffle, remainder=remainder)
            for shards, extension, workers, shuffle, remainder in grid
        ]
        groups.append((world_size, cases[world_size :: 8 if few else 1]))
    deliver_groups(tmp_path, groups)
