"""Fine-tune with TRL on packed chats: torchrun --standalone --nproc-per-node 2 examples/trainers/trl_sft.py.

--data is a directory of GSM8K's train.jsonl.gz, --tokenizer one of tokenizer.json (or tokenizer.json.gz) and
tokenizer_config.json. The questions and answers are packed into bins once; both are trained on by a small Llama, the
attention of a bin causal inside each chat. With --stop-after the run ends inside the epoch; run again it goes on.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from pathlib import Path
from typing import Any

import rows
import torch
import torch.distributed as dist
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

import headrace
from headrace.trainers.hf import HeadraceTrainerMixin

BINS = 2  # in a batch of a rank


class StreamTrainer(HeadraceTrainerMixin, SFTTrainer):
    """Counts the trained tokens that come, to be compared with those of the split."""

    tokens = 0

    def training_step(
        self, model: torch.nn.Module, inputs: Any, *arguments: Any, **settings: Any
    ) -> torch.Tensor:
        self.tokens += inputs.weight
        return super().training_step(model, inputs, *arguments, **settings)


class StopAfter(TrainerCallback):
    """Saves after this step and ends the run."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002 - the hook's signature
        control.should_save = control.should_training_stop = state.global_step == self.step


def prepared(options: argparse.Namespace) -> Path:
    """Pack the first --limit chats, in one process; the others wait for its result."""
    tokenizer, out = options.out / "tokenizer", options.out / "packed"
    if int(os.environ.get("RANK", 0)) == 0 and not (options.out / "done").exists():
        tokenizer.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            source = options.tokenizer / name
            packed = source.with_name(name + ".gz")
            whole = source.read_bytes() if source.exists() else gzip.decompress(packed.read_bytes())
            (tokenizer / name).write_bytes(whole)
        lines = (
            gzip.decompress((options.data / "train.jsonl.gz").read_bytes()).decode().splitlines()
        )
        chats = options.out / "chats.jsonl"
        chats.write_text("\n".join(lines[: options.limit]) + "\n")
        headrace.prepare(
            headrace.PackedSequences(
                blend=str(chats),
                tokenizer=str(tokenizer),
                pack_size=options.pack_size,
                too_long="drop",
            ),
            out,
        )
        (options.out / "done").touch()
    return out


def main() -> None:
    """Train an epoch, or what a checkpoint left of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="where GSM8K's train.jsonl.gz is")
    parser.add_argument("--tokenizer", type=Path, required=True, help="where tokenizer.json is")
    parser.add_argument(
        "--out", type=Path, default=Path("out/trl_sft"), help="for bins and checkpoints"
    )
    parser.add_argument("--limit", type=int, default=40, help="chats to take")
    parser.add_argument("--pack-size", type=int, default=512, help="tokens of a bin")
    parser.add_argument("--stop-after", type=int, metavar="STEP", help="stop after so many steps")
    options = parser.parse_args()

    config = SFTConfig(  # makes the process group, so the stream comes after it
        str(options.out / "checkpoints"),
        per_device_train_batch_size=BINS,
        per_device_eval_batch_size=BINS,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=5e-3,
        save_strategy="no",
        logging_steps=10,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        gradient_checkpointing=False,
        report_to=[],
        disable_tqdm=True,
    )
    with config.main_process_first():
        bins = headrace.open(prepared(options))
    tokenizer = AutoTokenizer.from_pretrained(options.out / "tokenizer")
    torch.manual_seed(0)
    small = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, **small))
    trainer = StreamTrainer(
        model,
        config,
        train_dataset=bins.stream("train", batch_size=BINS, shuffle=True),
        eval_dataset=bins.stream("val", batch_size=BINS),
        processing_class=tokenizer,
        callbacks=[StopAfter(options.stop_after)],
    )
    checkpoints = Path(config.output_dir)
    last = get_last_checkpoint(checkpoints) if checkpoints.exists() else None
    before = int((Path(last) / "tokens").read_text()) if last else 0
    trainer.train(resume_from_checkpoint=last)

    seen = torch.tensor(trainer.tokens)
    if dist.is_initialized():
        seen = seen.to(config.device)
        dist.all_reduce(seen)
    loss = trainer.evaluate()["eval_loss"]
    tokens, split = before + int(seen), trained_tokens(bins)
    if trainer.is_world_process_zero():
        print(
            f"{config.world_size} ranks, step {trainer.state.global_step} of {trainer.state.max_steps}",
            end=": ",
        )
        print(f"trained tokens {tokens:,} of the split's {split:,}, evaluation loss {loss:.4f}")
        if options.stop_after is not None:
            (Path(get_last_checkpoint(checkpoints)) / "tokens").write_text(str(tokens))
    if tokens != split and options.stop_after is None:
        sys.exit("tokens were trained twice, or not at all")


def trained_tokens(bins: headrace.Dataset) -> int:
    """Count the labels of the training split in one pass, in the order of the files."""
    alone = headrace.Topology(rank=0, world_size=1)
    return sum(
        int((batch["labels"] != -100).sum())
        for batch in bins.stream("train", batch_size=8, topology=alone)
    )


if __name__ == "__main__":
    main()
    rows.leave_group()  # instead of trainer.end(), which would need a trainer that still lives
