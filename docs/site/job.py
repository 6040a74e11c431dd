"""The job of the recording: an epoch over `shards`, with a checkpoint every ten steps for any number of ranks."""

import json
import time
from pathlib import Path

import torch.distributed as dist

import headrace

CHECKPOINT = Path("checkpoint.json")

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
stream = headrace.open("shards").stream(batch_size=1200 // ranks, shuffle=True, seed=0)
trained: list[int] = []  # stands for the model: rows that it has learned from
if CHECKPOINT.exists():
    saved = json.loads(CHECKPOINT.read_text())
    stream.load_state_dict(saved["stream"])
    trained = saved["trained"]
if rank == 0:
    print(
        f"{ranks} ranks, {len(trained):,} rows trained before, {stream.remaining} steps to go",
        flush=True,
    )

for step, batch in enumerate(stream, start=1):
    rows = batch["id"][batch["valid"]].tolist()
    each: list[list[int]] = [[]] * ranks
    dist.all_gather_object(each, rows)
    trained += [row for own in each for row in own]
    time.sleep(0.02)  # stands for the forward and backward pass
    if step % 10 == 0:
        if rank == 0:
            partial = CHECKPOINT.with_suffix(".partial")
            partial.write_text(json.dumps({"stream": stream.state_dict(), "trained": trained}))
            partial.rename(CHECKPOINT)
            print(f"step {step}: {len(trained):,} rows", flush=True)
        dist.barrier()
if rank == 0:
    twice, never = len(trained) - len(set(trained)), len(set(range(100_000)) - set(trained))
    print(f"end of epoch: {len(trained):,} rows trained, {twice} twice, {never} never", flush=True)
dist.destroy_process_group()
