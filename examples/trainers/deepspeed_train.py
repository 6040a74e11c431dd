"""Train with DeepSpeed, ZeRO stage 1: torchrun --standalone --nproc-per-node 2 examples/trainers/deepspeed_train.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import deepspeed
import rows
import torch
import torch.distributed as dist


def make_universal(checkpoint: Path) -> None:
    """Convert what was saved: as it is, ZeRO's optimizer states are for the same number of ranks."""
    convert = [
        sys.executable,
        "-m",
        "deepspeed.checkpoint.ds_to_universal",
        "--inject_missing_state",
    ]
    tag = (checkpoint / "latest").read_text()
    folders = [
        "--input_folder",
        str(checkpoint / tag),
        "--output_folder",
        str(checkpoint / f"{tag}_universal"),
    ]
    subprocess.run([*convert, *folders], check=True, stdout=subprocess.DEVNULL)
    (checkpoint / "latest_universal").write_text(f"{tag}_universal")


def main() -> None:
    """Train an epoch, or what a checkpoint left of it."""
    asked = rows.asked(rows.flags(__doc__))
    resumes = bool(asked.checkpoint and asked.checkpoint.exists())
    deepspeed.init_distributed("gloo")  # "nccl" on GPUs; before the stream
    stream, seen, model = rows.stream_of(asked), rows.Seen(), rows.model()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        config={
            "train_micro_batch_size_per_gpu": asked.batch_size,
            "zero_optimization": {"stage": 1},
            "checkpoint": {"load_universal": resumes},
            "zero_allow_untested_optimizer": True,
        },
    )  # without training_data=, so DeepSpeed makes no loader
    if resumes:
        _, saved = engine.load_checkpoint(asked.checkpoint)
        stream.load_state_dict(saved["stream"])  # of any number of ranks
        seen.load_state_dict(saved["seen"])

    for step, batch in enumerate(stream, start=1):
        real = batch["valid"].sum()
        dist.all_reduce(real)  # of all ranks
        engine.backward(rows.loss_of(engine(batch["features"]), batch, real, dist.get_world_size()))
        engine.step()
        seen.add(batch)
        if step == asked.stop_after:
            break

    if asked.checkpoint:
        state = {"stream": stream.state_dict(), "seen": seen.state_dict()}
        engine.save_checkpoint(asked.checkpoint, client_state=state)
        dist.barrier()
        if dist.get_rank() == 0:
            make_universal(asked.checkpoint)
    line = seen.report(asked)
    if dist.get_rank() == 0:
        print(line)
    engine.destroy()


if __name__ == "__main__":
    main()
    rows.leave_group()
