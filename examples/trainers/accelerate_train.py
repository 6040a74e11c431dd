"""Train with Accelerate: torchrun --standalone --nproc-per-node 2 examples/trainers/accelerate_train.py."""

from __future__ import annotations

import rows
import torch
from accelerate import Accelerator


def main() -> None:
    """Train an epoch, or what a checkpoint left of it."""
    asked = rows.asked(rows.flags(__doc__))
    accelerator = Accelerator(cpu=True)  # makes the process group, so the stream comes after it
    stream, seen, model = rows.stream_of(asked), rows.Seen(), rows.model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    accelerator.register_for_checkpointing(stream, seen)
    if asked.checkpoint and asked.checkpoint.exists():
        accelerator.load_state(asked.checkpoint)

    for step, batch in enumerate(stream, start=1):
        real = accelerator.reduce(batch["valid"].sum(), "sum")  # of all ranks
        optimizer.zero_grad()
        loss = rows.loss_of(model(batch["features"]), batch, real, accelerator.num_processes)
        accelerator.backward(loss)
        optimizer.step()
        seen.add(batch)
        if step == asked.stop_after:
            break

    if asked.checkpoint:
        accelerator.save_state(asked.checkpoint)
    accelerator.print(seen.report(asked))


if __name__ == "__main__":
    main()
    rows.leave_group()
