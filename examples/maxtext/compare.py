"""Whether MaxText makes of a batch what the batch says: its loss by hand, and every segment alone.

    python compare.py config.yml run_name=NAME metrics_file=NAME.jsonl

`train.py` runs it. It builds the model as MaxText's training does, takes MaxText's first batch, and computes the loss
of step 0 from the model's logits in numpy, in float64. Then contexts of several segments: the loss of every token must
be what it is where its segment is alone in its context, positions from 0.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import headrace_input
import jax
import numpy as np
from by_hand import Batch, alone, losses
from flax import nnx
from flax.core.spmd import logical_axis_rules
from maxtext.input_pipeline import input_pipeline_interface
from maxtext.trainers.pre_train.train import initialize
from maxtext.utils.train_utils import setup_train_loop

from headrace.contexts import open_contexts

SAME = 1e-4  # float32, and other orders of additions; without the segments' mask it is more than that by far


class Program:
    """MaxText's program before its first step: model, mesh, input."""

    def __init__(self, arguments: list[str]) -> None:
        input_pipeline_interface.make_grain_train_iterator = headrace_input.train_iterator
        with contextlib.redirect_stdout(io.StringIO()):
            self.config, recorder = initialize(["", *arguments, "enable_checkpointing=false"])
            _, _, _, self.model, self.mesh, _, self.input, *_ = setup_train_loop(
                self.config, recorder
            )

    def logits(self, batch: Batch) -> np.ndarray:
        """[B, L, V] of this batch, as MaxText's loss calls its model."""

        @nnx.jit
        def forward(model: Any, batch: Any) -> Any:
            return model(
                decoder_input_tokens=batch["inputs"],
                decoder_positions=batch["inputs_position"],
                decoder_segment_ids=batch["inputs_segmentation"],
                enable_dropout=False,
            )

        with jax.set_mesh(self.mesh), logical_axis_rules(self.config.logical_axis_rules):
            return np.asarray(
                forward(self.model, {name: jax.numpy.asarray(each) for name, each in batch.items()})
            )


def main() -> None:
    """Compare; ends with an error where something differs."""
    program = Program(sys.argv[1:])
    config, size = program.config, program.config.global_batch_size_to_load
    options = headrace_input.options_of(config)
    contexts = open_contexts(config.grain_train_files, config.train_split, **options)

    taken = {name: np.asarray(array) for name, array in next(program.input).items()}
    batch = contexts.batch(range(size))
    assert taken.keys() == batch.keys()
    assert all(
        (taken[name] == batch[name]).all() and taken[name].dtype == np.int32 for name in batch
    )
    weights_BL = batch["targets_segmentation"] > 0
    by_hand = losses(program.logits(batch), batch["targets"])[weights_BL].sum() / weights_BL.sum()
    logged = json.loads(Path(config.metrics_file).read_text().splitlines()[0])
    print(
        f"step 0: loss {logged['learning/loss']:.6f} by MaxText, {by_hand:.6f} by hand of its logits"
    )
    assert logged["learning/total_weights"] == weights_BL.sum()
    assert abs(logged["learning/loss"] - by_hand) < SAME

    ordered = open_contexts(
        config.grain_train_files, config.train_split, **{**options, "shuffle": "none"}
    )
    batch = ordered.batch(range(size))  # the contexts of short histories come first
    single, context, place = alone(batch)
    weights_BL = batch["targets_segmentation"] > 0
    unmasked = {**batch, "inputs_segmentation": np.ones_like(batch["inputs_segmentation"])}
    apart = losses(program.logits(single), single["targets"])[single["inputs_segmentation"] > 0]
    packed, leaking = (
        losses(program.logits(each), batch["targets"])[context, place] for each in (batch, unmasked)
    )
    counted = weights_BL[context, place]
    differs, would_differ = (
        float(np.abs(each - apart)[counted].max()) for each in (packed, leaking)
    )
    segments = len(single["inputs"])
    print(
        f"{counted.sum():,} tokens of {segments} segments in {size} contexts: largest difference of a token's loss"
        f" packed and alone {differs:.0e} (without segments {would_differ:.0e})"
    )
    assert segments > size
    assert differs < SAME < would_differ


if __name__ == "__main__":
    main()
