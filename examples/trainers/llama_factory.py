"""Fine-tune with LLaMA-Factory on what headrace prepared: torchrun examples/trainers/llama_factory.py CONFIG.yaml.

The config is LLaMA-Factory's own, of stage sft; its `tokenized_path` is a directory that `headrace pack` wrote. Splits
`train` and `val` are streamed. LLaMA-Factory has no place for a dataset of another kind, hence two names are replaced.
"""

from __future__ import annotations

from typing import Any

from llamafactory.train.sft import workflow
from llamafactory.train.tuner import run_exp

import headrace
from headrace.trainers.hf import HeadraceTrainerMixin


class StreamTrainer(HeadraceTrainerMixin, workflow.CustomSeq2SeqTrainer):
    """LLaMA-Factory's trainer on streams."""


def streams(  # with the signature of `get_dataset`
    template: Any,  # noqa: ARG001
    model_args: Any,  # noqa: ARG001
    data_args: Any,
    training_args: Any,
    **more: Any,  # noqa: ARG001
) -> dict[str, Any]:
    """Open both splits with the batch sizes of the config, in place of `get_dataset`."""
    bins = headrace.open(data_args.tokenized_path)
    train = bins.stream(
        "train", batch_size=training_args.train_batch_size, shuffle=True, seed=training_args.seed
    )
    made = {"train_dataset": train}
    if training_args.eval_strategy != "no" or training_args.do_eval:
        made["eval_dataset"] = bins.stream("val", batch_size=training_args.eval_batch_size)
    return made


if __name__ == "__main__":
    workflow.get_dataset, workflow.CustomSeq2SeqTrainer = streams, StreamTrainer
    run_exp()
