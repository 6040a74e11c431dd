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
delivered: list[int] = []  # stands for the model: the rows that it was given
if CHECKPOINT.exists():
    saved = json.loads(CHECKPOINT.read_text())
    stream.load_state_dict(saved["stream"])
    delivered = saved["delivered"]
if rank == 0:
    print(
        f"{ranks} ranks, {len(delivered):,} rows delivered before, {stream.remaining} steps to go",
        flush=True,
    )

for step, batch in enumerate(stream, start=1):
    rows = batch["id"][batch["valid"]].tolist()
    each: list[list[int]] = [[]] * ranks
    dist.all_gather_object(each, rows)
    delivered += [row for own in each for row in own]
    time.sleep(0.02)  # stands for the forward and backward pass
    if step % 10 == 0:
        if rank == 0:
            partial = CHECKPOINT.with_suffix(".partial")
            partial.write_text(json.dumps({"stream": stream.state_dict(), "delivered": delivered}))
            partial.rename(CHECKPOINT)
            print(f"step {step}: {len(delivered):,} rows", flush=True)
        dist.barrier()
if rank == 0:
    twice, never = len(delivered) - len(set(delivered)), len(set(range(100_000)) - set(delivered))
    print(
        f"end of epoch: {len(delivered):,} rows delivered, {twice} twice, {never} never", flush=True
    )
dist.destroy_process_group()
