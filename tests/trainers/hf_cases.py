"""What the ranks of the Hugging Face tests run; imported by name, so that a child finds it."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rank_processes import leave_group
from script_processes import tell_rank
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import headrace
from headrace.trainers.hf import HeadraceTrainerMixin

WIDTH = 6
BATCH = 4


class StreamTrainer(HeadraceTrainerMixin, Trainer):
    pass


class StopAt(TrainerCallback):
    """Ends a run after a step, as if it had been killed behind the checkpoint of that step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **given):  # noqa: ARG002 - the hook's signature
        control.should_training_stop = state.global_step == self.step


class NotingForCausalLM(LlamaForCausalLM):
    """A tiny Llama that notes the rows of each batch, in training and outside."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.rows: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def forward(
        self, row=None, input_ids=None, labels=None, attention_mask=None, position_ids=None, **more
    ):
        if row is not None:
            (self.rows if self.training else self.evaluated).append(row.tolist())
        return super().forward(
            input_ids=input_ids,
            labels=labels,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **more,
        )


class Score(torch.nn.Module):
    """A model whose loss is a mean over rows, and that takes no number of items."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def forward(self, row, labels):
        (self.rows if self.training else self.evaluated).append(row.tolist())
        scores = self.layer(row[:, None] / 50)[:, 0]
        return {"loss": (scores - labels).square().mean(), "logits": scores}


def language_model(**settings: Any) -> NotingForCausalLM:
    torch.manual_seed(0)
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = {
        "vocab_size": 64,
        "num_key_value_heads": 2,
        "attention_dropout": 0.1,
        "max_position_embeddings": 64,
    }
    return NotingForCausalLM(LlamaConfig(**{**config, **shape, **settings}))


def score_model() -> Score:
    torch.manual_seed(0)
    return Score()


def write_rows(folder: Path, rows: int) -> Path:
    """Shards of 10 rows each: a number, tokens, as many of them trained as the number says, and a target."""
    folder.mkdir(parents=True)
    for start in range(0, rows, 10):
        numbers = list(range(start, min(rows, start + 10)))
        tokens = [[(7 * number + 3 * place) % 64 for place in range(WIDTH)] for number in numbers]
        labels = [
            [token if place <= 1 + number % 5 else -100 for place, token in enumerate(line)]
            for number, line in zip(numbers, tokens, strict=True)
        ]
        fixed = pa.list_(pa.int64(), WIDTH)
        table = {
            "row": numbers,
            "input_ids": pa.array(tokens, fixed),
            "labels": pa.array(labels, fixed),
        }
        target = pa.array([(number % 7) / 7 for number in numbers], pa.float32())
        pq.write_table(pa.table({**table, "target": target}), folder / f"part-{start:03d}.parquet")
    return folder


def stream_of(data: Path | str, kind: str, *, workers: int = 0, **options: Any) -> Any:
    """A stream for a model."""
    columns = ["row", "input_ids", "labels"] if kind == "language" else ["row", "target"]
    transform = None if kind == "language" else _scored
    opened = headrace.open(data)
    settings = {"batch_size": BATCH, "columns": columns, "transform": transform, **options}
    return (
        opened.torch_dataset(num_workers=workers, **settings)
        if workers
        else opened.stream(**settings)
    )


def _scored(batch):
    return {"row": batch["row"], "labels": batch["target"], "valid": batch["valid"]}


def arguments_of(folder: str, **settings: Any) -> TrainingArguments:
    usual = {
        "save_strategy": "no",
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
    }
    return TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        disable_tqdm=True,
        **{**usual, **settings},
    )


def fit(
    data: str,
    folder: str,
    *,
    kind: str = "language",
    workers: int = 0,
    stop: int | None = None,
    resume: str | None = None,
    model: dict[str, Any] | None = None,
    stream: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """One training run of this rank: rows by batch, losses by step, and what the Trainer's state says."""
    arguments = arguments_of(folder, **settings)
    trainer = StreamTrainer(
        language_model(**(model or {})) if kind == "language" else score_model(),
        arguments,
        train_dataset=stream_of(
            data, kind, workers=workers, shuffle=True, seed=5, **(stream or {})
        ),
        callbacks=[] if stop is None else [StopAt(stop)],
    )
    trainer.train(resume_from_checkpoint=resume)
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "rows": trainer.model.rows,
        "losses": [entry["loss"] for entry in history],
        "epochs": [entry["epoch"] for entry in history],
        "rates": [entry["learning_rate"] for entry in history],
        "weights": [float(each.detach().double().sum()) for each in trainer.model.parameters()],
        "step": trainer.state.global_step,
        "max_steps": trainer.state.max_steps,
    }


def replayed(
    folder: str, kind: str, windows: list[list[int]], data: str, **settings: Any
) -> dict[str, Any]:
    """The weights after an optimizer step on the mean loss of each window of rows, by hand in one process."""
    model = language_model(attention_dropout=0.0) if kind == "language" else score_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["learning_rate"])
    for rows in windows:
        optimizer.zero_grad()
        exact_loss(model, data, rows).backward()
        optimizer.step()
    return {"weights": [float(each.detach().double().sum()) for each in model.parameters()]}


def exact_loss(model: torch.nn.Module, data: str, rows: list[int] | None = None) -> torch.Tensor:
    """The mean over the trained labels, or the targets, of these rows, in one batch; None: all."""
    table = pq.read_table(data)
    table = table if rows is None else table.take(rows)
    if isinstance(model, Score):
        row, target = (torch.tensor(table[name].to_pylist()) for name in ("row", "target"))
        return (model.layer(row[:, None] / 50)[:, 0] - target).square().mean()
    tokens, labels = (torch.tensor(table[name].to_pylist()) for name in ("input_ids", "labels"))
    return model(input_ids=tokens, labels=labels).loss


def evaluate(data: str, folder: str, *, kind: str) -> dict[str, Any]:
    """The loss of an evaluation, beside the exact one; and of a prediction the numbers of real rows."""
    model = language_model() if kind == "language" else score_model()
    trainer = StreamTrainer(
        model,
        arguments_of(folder),
        eval_dataset=stream_of(data, kind),
        compute_metrics=lambda found: {
            "rows": len(found.label_ids),
            "labels": float(found.label_ids.sum()),
        },
    )
    loss_alone = StreamTrainer(model, arguments_of(folder)).evaluate(stream_of(data, kind))[
        "eval_loss"
    ]
    found = trainer.evaluate()
    predicted = trainer.predict(stream_of(data, kind))
    with torch.no_grad():
        exact = float(exact_loss(model.eval(), data))
    rows = [row for batch in model.evaluated for row in batch]
    return {
        "loss": found["eval_loss"],
        "loss_alone": loss_alone,
        "test_loss": predicted.metrics["test_loss"],
        "exact": exact,
        "rows": rows,
        "metrics": [found["eval_rows"], found["eval_labels"]],
        "predictions": len(predicted.predictions),
    }


def run_on_rank(
    rank: int, world_size: int, port: int, folder: str, runs: list[dict[str, Any]]
) -> None:
    """Run this rank's part of each run, one after the other, and write down what came of them."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if world_size > 1:
        tell_rank(rank, world_size, port)
    out = [globals()[run.pop("call", "fit")](**run) for run in map(dict, runs)]
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    if world_size > 1:
        leave_group()


def trl_arguments(kind: type, folder: str, **settings: Any) -> Any:
    usual = {
        "save_strategy": "no",
        "num_train_epochs": 1,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
    }
    usual |= {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
    return kind(
        folder, use_cpu=True, bf16=False, gradient_checkpointing=False, **{**usual, **settings}
    )


class NotingCollator:
    """Notes the prompts of each batch, on the way to TRL's own collator."""

    def __init__(self, collate: Any, column: str) -> None:
        self.collate, self.column = collate, column
        self.seen: list[list[Any]] = []

    def __call__(self, rows):
        self.seen.append([row[self.column] for row in rows])
        return self.collate(rows)


def preference(
    data: str, folder: str, *, kind: str, resume: str | None = None, **settings: Any
) -> dict[str, Any]:
    """DPO, or a model of rewards, on pairs of texts, tokenised by TRL."""
    import trl
    from trl.trainer import dpo_trainer, reward_trainer

    models = [language_model(attention_dropout=0.0)]
    if kind == "DPO":
        collate: Any = dpo_trainer.DataCollatorForPreference(pad_token_id=0)
        collator = NotingCollator(collate, "prompt_ids")
        models.append(language_model(attention_dropout=0.0))  # the reference
    else:
        collate = reward_trainer.DataCollatorForPreference(pad_token_id=0)
        collator = NotingCollator(collate, "chosen_ids")  # the prompt before the answer
        models[0].config.num_labels = 1
        models = [LlamaForSequenceClassification(models[0].config)]
    pairs = headrace.open(data)
    trainer = type("Pairs", (HeadraceTrainerMixin, getattr(trl, f"{kind}Trainer")), {})(
        *models,
        args=trl_arguments(getattr(trl, f"{kind}Config"), folder, **settings),
        data_collator=collator,
        train_dataset=pairs.stream(batch_size=2, batch_format="rows", shuffle=True, seed=3),
        eval_dataset=pairs.stream(batch_size=2, batch_format="rows"),
        processing_class=word_tokenizer(),
    )
    trainer.train(resume_from_checkpoint=resume)
    trained, collator.seen = collator.seen, []
    loss = trainer.evaluate()["eval_loss"]
    return {
        "rows": trained,
        "evaluated": collator.seen,
        "loss": loss,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "step": trainer.state.global_step,
        "max_steps": trainer.state.max_steps,
        "weights": [float(each.detach().double().sum()) for each in trainer.model.parameters()],
    }


def generation(
    data: str,
    folder: str,
    *,
    kind: str = "GRPO",
    batch_size: int,
    stream: dict[str, Any],
    resume: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train on completions of prompts: the numbers of the prompts that the reward is told of, by generation."""
    import trl

    told: list[list[int]] = []

    def reward(prompts, completions, chosen, **_):
        assert [" yes"] * len(prompts) == chosen
        told.append([int(prompt.split()[0]) for prompt in prompts])
        return [float(sum(map(ord, text)) % 7) for text in completions]

    base, config = getattr(trl, f"{kind}Trainer"), getattr(trl, f"{kind}Config")
    trainer = type("OnPrompts", (HeadraceTrainerMixin, base), {})(
        language_model(attention_dropout=0.0),
        reward,
        trl_arguments(
            config,
            folder,
            max_completion_length=4,
            learning_rate=0.01,
            per_device_train_batch_size=batch_size,
            **settings,
        ),
        train_dataset=headrace.open(data).stream(
            batch_size=batch_size, batch_format="rows", **stream
        ),
        processing_class=word_tokenizer(),
    )
    trainer.train(resume_from_checkpoint=resume)
    return {
        "told": told,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "step": trainer.state.global_step,
        "max_steps": trainer.state.max_steps,
        "weights": [float(each.detach().double().sum()) for each in trainer.model.parameters()],
    }


def word_tokenizer() -> Any:
    """A tokenizer of 64 words: numbers, and three more."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "yes": 3, "no": 4, "maybe": 5}
    model = Tokenizer(
        WordLevel({**words, **{str(n): len(words) + n for n in range(58)}}, unk_token="<unk>")
    )
    model.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


class Counting(torch.utils.data.IterableDataset):
    """Rows of a directory in file order, as a loop of one's own would yield them, each reading noted in a file."""

    def __init__(self, data: str, notes: str) -> None:
        self.data, self.notes = data, notes

    def __iter__(self):
        for row in pq.read_table(self.data, columns=["row", "input_ids", "labels"]).to_pylist():
            with Path(self.notes).open("a") as notes:
                notes.write(f"{row['row']}\n")
            yield row


def own_path(
    data: str, folder: str, *, dataset: str, resume: bool = False, workers: int = 2
) -> dict[str, Any]:
    """An epoch of the Trainer's own loaders, without headrace; and the rows that a resumed run reads in the whole."""
    import datasets

    notes = f"{folder}-notes-{torch.distributed.get_rank() if torch.distributed.is_initialized() else 0}"

    def made():
        if dataset == "map-style":
            return datasets.Dataset.from_parquet(
                f"{data}/*.parquet", cache_dir=f"{folder}-cache-{workers}"
            )
        if dataset == "streaming":
            return datasets.load_dataset(
                "parquet", data_files=f"{data}/*.parquet", split="train", streaming=True
            )
        return Counting(data, notes)

    settings = {
        "num_train_epochs": 1,
        "save_strategy": "steps",
        "save_steps": 3,
        "dataloader_num_workers": workers,
    }
    settings |= {} if dataset == "map-style" else {"max_steps": 7}
    trainer = Trainer(language_model(), arguments_of(folder, **settings), train_dataset=made())
    trainer.train()
    rows = trainer.model.rows
    Path(notes).write_text("")
    resumed: list[list[int]] = []
    if resume:
        trainer = Trainer(language_model(), arguments_of(folder, **settings), train_dataset=made())
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-3")
        resumed = trainer.model.rows
    return {"rows": rows, "resumed": resumed, "read": len(Path(notes).read_text().split())}


def packed_apart(
    data: str, folder: str, *, form: str, kind: str, attention: str, packing: str
) -> dict[str, Any]:
    """How far logits and loss of packed sequences are from those of each sequence alone; and the sequences."""
    from transformers import GPT2Config, GPT2LMHeadModel

    if attention == "lengths":
        register_attention_by_lengths()
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=64,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=64,
            attn_implementation=attention,
        )
        model: Any = GPT2LMHeadModel(config)
    else:
        model = language_model(attn_implementation=attention)
    with torch.no_grad():
        for weight in model.parameters():  # far from the uniform attention of a fresh model
            weight.copy_(torch.randn(weight.shape) / 3)
    form_of = headrace.PackedBatches(form=form)
    pack = {"pack": 16, "packed": form_of} if packing == "streamed" else {"packed": form_of}
    stream = headrace.open(data, cache_dir=f"{folder}-cache").stream(
        batch_size=BATCH, shuffle=True, **pack
    )
    trainer = StreamTrainer(model, arguments_of(folder), train_dataset=stream)
    model.eval()
    worst, loss, count, sequences = 0.0, 0.0, 0, []
    for inputs in trainer.get_train_dataloader():
        with torch.no_grad():
            found = model(**inputs)
        tokens, labels = inputs["input_ids"].reshape(-1), inputs["labels"].reshape(-1)
        ends = inputs["cu_seq_lens_q"].tolist()
        alone_loss, alone_count = 0.0, 0
        for start, end in itertools.pairwise(ends):
            with torch.no_grad():
                alone = alone_model(model)(input_ids=tokens[None, start:end]).logits[0]
            worst = max(worst, float((alone - found.logits.reshape(-1, 64)[start:end]).abs().max()))
            assert labels[start] == -100  # nothing before it may be trained to say it
            trained = labels[start + 1 : end]
            alone_loss += (
                float(torch.nn.functional.cross_entropy(alone[:-1], trained, reduction="sum"))
                if len(trained)
                else 0
            )
            alone_count += int((trained != -100).sum())
            if (trained != -100).any():
                sequences.append(tokens[start:end].tolist())
        if alone_count:
            worst = max(worst, abs(float(found.loss) - alone_loss / alone_count))
        assert inputs.weight == alone_count
        loss, count = loss + alone_loss, count + alone_count
    return {"worst": worst, "sequences": sequences, "trained": count}


def alone_model(model: Any) -> Any:
    """The same weights with torch's own attention, for a sequence by itself."""
    if model.config._attn_implementation != "lengths":
        return model
    model.alone = getattr(model, "alone", None) or type(model)(language_model().config).eval()
    model.alone.load_state_dict(
        {name: value for name, value in model.state_dict().items() if "alone" not in name}
    )
    return model.alone


def register_attention_by_lengths() -> None:
    """Register attention that knows sequences by cumulated lengths alone, as FlashAttention's variable length form."""
    from transformers import AttentionInterface

    def attention(
        module,
        query,
        key,
        value,
        attention_mask,
        *,
        cu_seq_lens_q,
        cu_seq_lens_k,
        max_length_q,
        **more,
    ):
        assert attention_mask is None
        assert torch.equal(cu_seq_lens_q, cu_seq_lens_k)
        assert int(cu_seq_lens_q.diff().max()) == max_length_q
        shape = query.shape
        flat = [
            each.transpose(1, 2).reshape(-1, shape[1], shape[3]).transpose(0, 1)
            for each in (query, key, value)
        ]
        ends = cu_seq_lens_q.tolist()
        parts = [
            torch.nn.functional.scaled_dot_product_attention(
                *(each[:, a:b] for each in flat), is_causal=True
            )
            for a, b in itertools.pairwise(ends)
        ]
        return torch.cat(parts, dim=1).transpose(0, 1).reshape(
            shape[0], shape[2], shape[1], shape[3]
        ), None

    AttentionInterface.register("lengths", attention)


def tokenised(data: str, folder: str, *, kind: str, tokenizer: str) -> dict[str, Any]:
    """An epoch of TRL's trainer on rows that are tokens already: its batches, and what it made of the rows."""
    import trl
    from transformers import PreTrainedTokenizerFast

    base, settings = getattr(trl, f"{kind}Trainer"), getattr(trl, f"{kind}Config")

    class OnRows(HeadraceTrainerMixin, base):  # type: ignore[misc,valid-type]
        def compute_loss(self, model, inputs, *arguments, **more):
            batches.append(
                {name: value.tolist() for name, value in inputs.items() if torch.is_tensor(value)}
            )
            return super().compute_loss(model, inputs, *arguments, **more)

    batches: list[dict[str, Any]] = []
    rows = headrace.open(data)
    trainer = OnRows(
        language_model(vocab_size=512, max_position_embeddings=512),
        language_model(vocab_size=512, max_position_embeddings=512),
        trl_arguments(settings, folder),
        train_dataset=rows.stream("train", batch_size=2, batch_format="rows", shuffle=True, seed=3),
        eval_dataset=rows.stream("val", batch_size=2, batch_format="rows"),
        processing_class=PreTrainedTokenizerFast.from_pretrained(tokenizer),
    )
    trainer.train()
    trained, steps = list(batches), trainer.state.global_step
    return {"batches": trained, "steps": steps, "loss": trainer.evaluate()["eval_loss"]}


def generated(data: str, folder: str, *, tokenizer: str) -> dict[str, Any]:
    """Steps of GRPO on prompts of chats: what the reward function is told."""
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    told: list[list[Any]] = []

    def reward(prompts, completions, reward_model, **_):
        told.append([prompts, [each["ground_truth"] for each in reward_model]])
        return [float(len(each[0]["content"])) for each in completions]

    class OnPrompts(HeadraceTrainerMixin, GRPOTrainer):
        pass

    trainer = OnPrompts(
        language_model(vocab_size=512, max_position_embeddings=512),
        reward,
        trl_arguments(GRPOConfig, folder, num_generations=2, max_completion_length=4, max_steps=2),
        train_dataset=headrace.open(data).stream("train", batch_size=2, batch_format="rows"),
        processing_class=PreTrainedTokenizerFast.from_pretrained(tokenizer, padding_side="left"),
    )
    trainer.train()
    return {"told": told, "steps": trainer.state.global_step}


def prepared_by_trl(data: str, folder: str, *, tokenizer: str) -> list[Any]:
    """The rows that DPOTrainer makes of pairs by itself, and the tokens of a line break."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    own = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    rows = [json.loads(line) for line in Path(data).read_text().splitlines()]
    for row in rows:
        row |= {
            name: [{"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")
        }
    trainer = DPOTrainer(
        language_model(vocab_size=512, max_position_embeddings=512),
        language_model(vocab_size=512, max_position_embeddings=512),
        args=trl_arguments(DPOConfig, folder),
        train_dataset=Dataset.from_list(rows),
        processing_class=own,
    )
    kept = ("prompt_ids", "chosen_ids", "rejected_ids")
    made = [{name: row[name] for name in kept} for row in trainer.train_dataset]
    return [made, own("\n", add_special_tokens=False)["input_ids"]]
