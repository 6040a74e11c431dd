"""What ranks of the tests for torchtitan run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import os
import warnings
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from script_processes import tell_rank
from titan_modules import Configs, module_over

STEP_ROWS = 12


def train_on_rank(
    rank: int, ranks: int, port: int, folder: str, width: int, steps: int | None
) -> None:
    """Go on from the newest checkpoint for so many steps, and save one, as torchtitan does it.

    Write the trained tokens of each step. steps: None: to the end of the epoch.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    root = Path(folder)
    os.environ["HOME"] = str(root / "home")
    tell_rank(rank, ranks, port)
    dist.init_process_group("gloo")
    with pytest.MonkeyPatch.context() as patch:
        titan = module_over(Configs, patch)
        config = titan.HeadraceDataLoader.Config(
            dataset_path=str(root / "bins"), infinite=False, global_batch_size=STEP_ROWS
        )
        loader = config.build(
            dp_world_size=ranks, dp_rank=rank, tokenizer=None, seq_len=width, local_batch_size=2
        )
        if (root / "checkpoint").exists():
            dcp.load({"dataloader": loader}, checkpoint_id=root / "checkpoint")
        drawn, batches = STEP_ROWS // ranks // 2, iter(loader)
        trained = []
        while steps is None or len(trained) < steps:
            step = list(islice(batches, drawn))
            if not step:
                break
            trained.append(
                [
                    token
                    for inputs, labels in step
                    for token in inputs["input"][labels != -100].tolist()
                ]
            )
        dcp.save({"dataloader": loader}, checkpoint_id=root / "checkpoint")
    (root / f"{rank}-of-{ranks}.json").write_text(json.dumps(trained))
    dist.destroy_process_group()
