"""torchtitan's own training program and debug model on CPUs, fed by headrace, with a record of what it trains.

    torchrun --nproc-per-node 3 debug_model.py --module debug_model --config packed --dump_folder OUT ...

`packed` is a config as torchtitan's registry holds them; `--module` finds it. The two `HeadraceDataLoader.Config` in it
are all that a job of yours needs of this file. torchtitan is written for accelerators, and what `on_cpus` replaces, it
replaces only because there is none here. `own` is the same model over torchtitan's own loader.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import _utils
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention

_utils._get_available_device_type = lambda: (
    "cpu"
)  # before torchtitan is imported, which else assumes CUDA

from torchtitan.components import metrics  # noqa: E402
from torchtitan.components.loss import IGNORE_INDEX  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.components.validate import Validator  # noqa: E402
from torchtitan.config import TrainingConfig  # noqa: E402
from torchtitan.distributed import utils as distributed  # noqa: E402
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.train import main  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from headrace.trainers.torchtitan import HeadraceDataLoader  # noqa: E402

SEQ_LEN, LAYERS = 128, 2
STEP_ROWS = 12  # of all ranks together
BEGIN, END = 256, 257  # the tokens below are bytes


def packed() -> Trainer.Config:
    """The debug model with fewer layers, one epoch of bins, and a validation pass over all of them."""
    config = llama3_debugmodel()
    del config.model_spec.model.layers[LAYERS:]
    config.tokenizer = Bytes.Config()
    config.training = TrainingConfig(
        seq_len=SEQ_LEN,
        local_batch_size=2,
        global_batch_size=STEP_ROWS,
        mixed_precision_param="float32",
        disable_cuda_graphs=True,
    )
    config.dataloader = HeadraceDataLoader.Config(
        infinite=False, global_batch_size=STEP_ROWS, seed=1
    )
    config.validator = Validator.Config(
        steps=-1, dataloader=HeadraceDataLoader.Config(dataset="valid", shuffle=False)
    )
    config.parallelism.spmd_backend = "partial_dtensor"  # the others need a newer torch
    config.debug.seed = 1
    return config


def own() -> Trainer.Config:
    """The same over torchtitan's loader of text."""
    config = packed()
    config.dataloader = HuggingFaceTextDataLoader.Config(dataset="c4_test")
    return config


class Bytes(BaseTokenizer):
    """A token for each byte."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """No settings."""

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:  # noqa: ARG002 - as torchtitan calls it
        super().__init__()
        self.bos_id, self.eos_id = BEGIN, END

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """Return the bytes between the two other tokens."""
        return [BEGIN, *text.encode(), END]

    def decode(self, tokens: list[int], *_: Any, **__: Any) -> str:
        """Return the text of the bytes."""
        return bytes(token for token in tokens if token < BEGIN).decode(errors="replace")

    def get_vocab_size(self) -> int:
        """Return the number of tokens."""
        return END + 1


def on_cpus() -> None:
    """Replace what asks for an accelerator."""
    none = metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)
    monitor = SimpleNamespace(
        device_name="CPU", get_peak_stats=lambda: none, reset_peak_stats=lambda: None
    )
    metrics.build_device_memory_monitor = lambda: monitor
    distributed.set_pg_timeouts = lambda **_: (
        None
    )  # names a device to the barrier, which gloo refuses

    def attention(
        q: Any, k: Any, v: Any, *, block_mask: Any, scale: Any, enable_gqa: bool, **_: Any
    ) -> Any:
        allowed = create_mask(block_mask.mask_mod, len(q), None, q.shape[2], k.shape[2], q.device)
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, scale=scale, enable_gqa=enable_gqa
        )
        return out, SimpleNamespace(lse=None)

    FlexAttention._compiled_flex_attn = staticmethod(
        attention
    )  # the compiled one has no backward pass on CPUs
    torch._dynamo.config.disable = True
    divide = FSDPModule.set_gradient_divide_factor

    def sum_then_divide(self: FSDPModule, factor: float) -> None:
        self.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it sums
        divide(self, factor)

    FSDPModule.set_gradient_divide_factor = sum_then_divide


def record(path: Path) -> None:
    """Write a JSON line of this process, of the rows that it draws, and of each loss."""
    path.mkdir(parents=True, exist_ok=True)
    lines = (path / f"rank-{os.environ['RANK']}.jsonl").open("a", buffering=1)

    def write(**values: Any) -> None:
        lines.write(json.dumps(values) + "\n")

    def log(_: Any, step: int, loss: float, *__: Any, **___: Any) -> None:
        write(step=step, loss=loss)

    def log_validation(_: Any, loss: float, step: int, **__: Any) -> None:
        write(step=step, validation=loss)

    batches = HeadraceDataLoader.__iter__

    def drawn(self: HeadraceDataLoader) -> Iterator[Any]:
        for inputs, labels in batches(self):
            rows = inputs["input"][(labels != IGNORE_INDEX).any(1)]
            write(
                split=self.config.dataset,
                rows=[hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in rows],
            )
            yield inputs, labels

    write(pid=os.getpid())
    metrics.MetricsProcessor.log, metrics.MetricsProcessor.log_validation = log, log_validation
    HeadraceDataLoader.__iter__ = drawn


if __name__ == "__main__":
    on_cpus()
    record(Path(sys.argv[sys.argv.index("--dump_folder") + 1]) / "record")
    main()
