"""Anneal on three sources of tokens, and print the loss of each, after any stop on any ranks.

torchrun --standalone --nproc-per-node 3 examples/trainers/anneal.py --checkpoint newest.pt
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import rows
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import headrace

SOURCES = {"web": (600, 1), "code": (300, 3), "math": (100, 5)}  # rows, and a law of the next token
SYMBOLS, LONGEST, GLOBAL_BATCH, EPOCHS = 32, 24, 24, 2


def flags() -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/anneal"), help="for the sources")
    parser.add_argument("--checkpoint", type=Path, required=True, help="read first if it is there")
    parser.add_argument("--save-every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--die-at", type=int, help="kill the last rank at this step")
    return parser.parse_args()


def write_sources(out: Path) -> None:
    """Write sequences of 8 to 24 tokens, each source in symbols of its own. All ranks may do this at once."""
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, (count, law)) in enumerate(SOURCES.items()):
        random = np.random.default_rng(number)
        sequences = []
        for length in random.integers(8, LONGEST + 1, count).tolist():
            places = random.integers(SYMBOLS) + law * np.arange(length)
            sequences.append(places % SYMBOLS + SYMBOLS * number)
        whole = out / f"{name}-{os.getpid()}.tmp"
        pq.write_table(pa.table({"input_ids": sequences}), whole)
        os.replace(whole, out / f"{name}.parquet")


def open_stream(out: Path) -> Any:
    """Stream the web first, and the others in the last steps; weights are of tokens."""
    blend = headrace.blend(
        {name: headrace.open(out / f"{name}.parquet", cache_dir=out) for name in SOURCES},
        schedule=[
            (0, {"web": 8, "code": 1, "math": 1}),
            ("60 steps", {"web": 1, "code": 3, "math": 4}),
        ],
        unit="tokens",
    )
    return blend.stream(global_batch_size=GLOBAL_BATCH, shuffle=True, seed=1, lists="padded")


def losses_of(model: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of each next token, and which of them are real: both [rows, width - 1]."""
    ids = batch["input_ids"]
    predicted = model(ids[:, :-1]).transpose(1, 2)
    losses = torch.nn.functional.cross_entropy(predicted, ids[:, 1:], reduction="none")
    real = torch.arange(1, ids.shape[1]) < batch["input_ids_lengths"][:, None]
    return losses, real & batch["valid"][:, None]


def main() -> None:
    """Train from the newest checkpoint to the end, with a line of losses for each step."""
    asked = flags()
    dist.init_process_group("gloo")  # "nccl" on GPUs
    write_sources(asked.out)
    dist.barrier()
    stream = open_stream(asked.out)
    torch.manual_seed(0)
    symbols = SYMBOLS * len(SOURCES)
    layers = torch.nn.Embedding(symbols, 32), torch.nn.Linear(32, symbols)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = 0
    if asked.checkpoint.exists():
        saved = torch.load(asked.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        stream.load_state_dict(saved["stream"])  # of any number of ranks
        step = saved["step"]
    for epoch in range(stream.epoch, EPOCHS):
        stream.set_epoch(epoch)
        for batch in stream:
            step += 1
            losses, real = losses_of(model, batch)
            tokens = real.sum()
            dist.all_reduce(tokens)
            optimizer.zero_grad()
            ((losses * real).sum() * dist.get_world_size() / tokens.clamp(min=1)).backward()
            optimizer.step()
            by_source = stream.loss_by_source(losses, batch, mask=real)  # over all ranks
            if dist.get_rank() == 0:
                print(json.dumps({"step": step, **by_source}), flush=True)
                if step % asked.save_every == 0:
                    saved = {"model": model.module.state_dict(), "step": step}
                    saved |= {"optimizer": optimizer.state_dict(), "stream": stream.state_dict()}
                    torch.save(saved, f"{asked.checkpoint}.tmp")
                    os.replace(f"{asked.checkpoint}.tmp", asked.checkpoint)
            if step == asked.die_at and dist.get_rank() == dist.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
    rows.leave_group()
