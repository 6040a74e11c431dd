"""Other loaders at 70 % of 10^9 shuffled rows: each goes on as it says it can, and gives its first batch.

    python benchmarks/billion_peers.py NAME DIRECTORY make     its data, as small as its format allows
    python benchmarks/billion_peers.py NAME DIRECTORY BEGAN    goes on; BEGAN: when the process was started

What is printed is JSON: seconds from BEGAN to the first batch, the peak of memory, and what it says to other ranks.
Positions are those of 16 ranks; each loader reads as rank 0 of them, because none of these takes up a state on 15.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS, SHARDS, RANKS, BATCH, DONE = 1_000_000_000, 2_000, 16, 256, 0.7
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class Numbers:
    """A data set of 10^9 rows that costs nothing: row i is i."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: Any) -> int:
        return int(row)


def distributed_sampler(_directory: Path) -> Any:
    """torch: the whole permutation as a list, then a part of it skipped."""
    from torch.utils.data import DataLoader, DistributedSampler

    sampler = DistributedSampler(Numbers(), num_replicas=RANKS, rank=0, shuffle=True, seed=0)
    indices = list(sampler)[int(len(sampler) * DONE) :]
    return next(iter(DataLoader(Numbers(), batch_size=BATCH, sampler=indices)))


def make_mosaic(directory: Path) -> None:
    """One MDS shard, linked 2,000 times."""
    from streaming import MDSWriter

    with MDSWriter(out=str(directory), columns={"x": "int32"}, size_limit=None) as writer:
        for row in range(ROWS // SHARDS):
            writer.write({"x": row})
    index = json.loads((directory / "index.json").read_text())
    (shard,) = index["shards"]
    name = shard["raw_data"]["basename"]
    shards = []
    for number in range(SHARDS):
        linked = f"linked.{number:05d}.mds"
        os.link(directory / name, directory / linked)
        shards.append({**shard, "raw_data": {**shard["raw_data"], "basename": linked}})
    (directory / "index.json").write_text(json.dumps({**index, "shards": shards}))


def mosaic(directory: Path) -> Any:
    """Its state is the number of samples of the epoch, and the nodes that it began on."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    from streaming import StreamingDataset

    data = StreamingDataset(local=str(directory), shuffle=True, batch_size=BATCH, num_canonical_nodes=RANKS)
    state = {"epoch": 0, "sample_in_epoch": int(ROWS * DONE), "num_canonical_nodes": RANKS, "shuffle_seed": 9176}
    data.load_state_dict({**state, "initial_physical_nodes": RANKS})
    return next(iter(data))


def grain(_directory: Path) -> Any:
    """Its sampler is a function of the position; the state names the next one of this process."""
    from grain import python as pygrain

    shard = pygrain.ShardOptions(shard_index=0, shard_count=RANKS)
    sampler = pygrain.IndexSampler(num_records=ROWS, shard_options=shard, shuffle=True, num_epochs=1, seed=0)
    loader = pygrain.DataLoader(
        data_source=Numbers(), sampler=sampler, operations=[pygrain.Batch(BATCH)], worker_count=0
    )
    batches = iter(loader)
    state = json.loads(batches.get_state())
    state["last_seen_indices"] = {"0": int(ROWS / RANKS * DONE) * RANKS}
    batches.set_state(json.dumps(state).encode())
    return next(batches)


def make_datasets(directory: Path) -> None:
    """A Parquet file of 500,000 rows, linked 2,000 times."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = directory / "part-00000.parquet"
    pq.write_table(pa.table({"x": np.arange(ROWS // SHARDS)}), first, row_group_size=62_500)
    for shard in range(1, SHARDS):
        os.link(first, directory / f"part-{shard:05d}.parquet")


def datasets(directory: Path) -> Any:
    """Hugging Face: the state names a shard of this rank and a row in it; its buffer of shuffled rows is made anew."""
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    files = sorted(map(str, directory.glob("*.parquet")))
    rows = load_dataset("parquet", data_files=files, split="train", streaming=True).shuffle(seed=0, buffer_size=10_000)
    rows = split_dataset_by_node(rows, rank=0, world_size=RANKS)
    next(iter(rows))
    state = rows.state_dict()
    _at(state, shard=int(SHARDS / RANKS * DONE))
    rows.load_state_dict(state)
    return next(iter(rows.batch(BATCH)))


def _at(state: Any, *, shard: int) -> None:
    """Every place of a nested state at the beginning of this shard."""
    if isinstance(state, dict):
        if "shard_idx" in state:
            state.update(shard_idx=shard, shard_example_idx=0)
        for value in state.values():
            _at(value, shard=shard)


PEERS: dict[str, tuple[str, Callable[[Path], None] | None, Callable[[Path], Any], str]] = {
    "torch DistributedSampler": ("torch", None, distributed_sampler, "no state: the loop skips, and shards out anew"),
    "Mosaic streaming": ("streaming", make_mosaic, mosaic, "yes, where the new ranks divide its canonical nodes"),
    "Grain": ("grain", None, grain, "no: a state is of one process, for its shard of the records"),
    "Hugging Face datasets": ("datasets", make_datasets, datasets, "no: a state is of one rank, for its files"),
}


def main() -> None:
    """Make the data of one loader, or go on with it."""
    name, directory, began = sys.argv[1:]
    _, make, go_on, other_ranks = PEERS[name]
    if began == "make":
        if make is not None:
            make(Path(directory))
        return
    assert go_on(Path(directory)) is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT / 1e6
    print(json.dumps({"first_s": time.time() - float(began), "mb": peak, "other_ranks": other_ranks}), flush=True)
    os._exit(0)  # what a library began in the background does not matter here


if __name__ == "__main__":
    main()
