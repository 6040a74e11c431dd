"""Train with Hugging Face's `Trainer`, and TRL's trainers, on headrace streams.

    class StreamTrainer(HeadraceTrainerMixin, Trainer):
        pass

    arguments = TrainingArguments("checkpoints", per_device_train_batch_size=8, num_train_epochs=2)
    stream = headrace.open("out").stream("train", batch_size=8, shuffle=True)
    StreamTrainer(model, arguments, train_dataset=stream).train(resume_from_checkpoint=True)

The Trainer shares out rows, counts steps and skips batches for datasets that cannot do it
themselves. A stream does all three: every rank reads its own share, all ranks have the same number
of batches, and a checkpoint holds the position. So the mixin gives the Trainer the stream's own
batches and replaces the arithmetic of steps, epochs and resuming.

The last batches of ranks may hold padding rows. The model never sees them. A rank without a real
row in a step runs one padding row with zero loss weight, because all ranks must run the same
collectives.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.errors import MissingExtra, SettingsError, StreamError, setting_name
from headrace.stream.loader.stream_loader import StreamLoader

try:
    import torch
    from accelerate.utils import recursively_apply
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    from headrace.trainers.generation import PromptBatches
    from headrace.trainers.hf_arguments import check_arguments, check_training_arguments
    from headrace.trainers.model_inputs import Inputs, ModelInputs, RowFeed, first_rows
except ImportError as error:
    raise MissingExtra("transformers", "transformers") from error

if TYPE_CHECKING:
    from headrace.stream.loader.passes import Pass

    _Trainer: Any
else:
    _Trainer = object  # the Trainer that the mixin is put before

log = logging.getLogger("headrace")

__all__ = ["HeadraceCallback", "HeadraceTrainerMixin"]

# the Trainer's own; its step and our position are written together
_STATE_FILE = "trainer_state.json"


class SplitLoader:
    """A loader that passes over a stream and yields each batch as the arguments of a model.

    repeats: how often it yields each batch in turn. finished: batches of the stream in this pass
    that it has yielded as often.
    """

    def __init__(
        self, stream: StreamLoader, inputs_of: Callable[[Any], Any], *, repeats: int = 1
    ) -> None:
        self.stream = stream
        self.repeats = repeats
        self.finished = 0
        self._inputs_of = inputs_of

    def __len__(self) -> int:
        """Return the batches of a pass: the mixin has the Trainer count from where it begins."""
        return (self.stream.current.steps or 0) * self.repeats

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass this epoch, or what a loaded state left of it."""
        self.stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        data_loader = getattr(self.stream, "data_loader", None)
        # A DataLoader draws a seed for its workers. A resumed run must not draw more numbers than
        # the first one.
        with torch.random.fork_rng(devices=[]):
            batches = iter(self.stream if data_loader is None else data_loader())
        self.finished = 0
        for batch in batches:
            for turn in range(self.repeats):
                inputs = self._inputs_of(batch)
                self.finished += turn + 1 == self.repeats
                yield inputs


class HeadraceCallback(TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers has no types here
    """Keeps the position of the stream in `trainer_state.json` of every checkpoint; the mixin adds
    it.

    The position is that after the last optimizer step, the same on every rank. A generation batch
    that is not finished begins again, as its completions are not saved.
    """

    def __init__(self) -> None:
        self._loader: SplitLoader | None = None
        self._stepped = 0
        self._is_inside = False  # a batch that is to be yielded again

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_others: Any) -> None:  # noqa: ARG002 - the hook's signature
        """Set the loader whose position is saved."""
        loader = _others.get("train_dataloader")
        self._loader = loader if isinstance(loader, SplitLoader) else None
        self._stepped = 0
        self._is_inside = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_others: Any) -> None:  # noqa: ARG002 - the hook's signature
        """Count the batches that the optimizer has stepped with."""
        if self._loader is None:
            return
        stream = self._loader.stream
        self._stepped = self._loader.finished
        self._is_inside = self._stepped < stream.delivered_count
        if stream.partial_epoch:  # the Trainer counts from where this run began
            epoch_steps = stream.passes.full(stream.current).steps or 1
            left = (stream.current.steps or 0) - self._stepped
            state.epoch = stream.epoch + 1 - left / epoch_steps

    def state(self) -> dict[str, Any]:
        """Return what the Trainer writes into the checkpoint."""
        if self._loader is None:
            return {"args": {}, "attributes": {"saved": None}}
        if self._is_inside:
            log.warning(
                "the checkpoint is inside a generation batch: a run that resumes from it generates"
                " for the prompts of that batch again"
            )
        saved = self._loader.stream.state_after(self._stepped)
        return {"args": {}, "attributes": {"saved": saved}}


class HeadraceTrainerMixin(_Trainer):  # type: ignore[misc]
    """Put it before a Trainer class; `train_dataset` and `eval_dataset` may then be streams of
    `headrace.open`.

    Either is what `stream(...)` or `torch_dataset(...)` gives, with the batch size of the training
    arguments. Batches of tensors go to the model by the names of their columns. With
    batch_format="rows" the Trainer's data collator makes the batch; TRL's trainers then prepare
    each row as they prepare a dataset's. Other datasets go on as they are. Raises `SettingsError`
    for arguments that a stream decides otherwise, `StreamError` for a checkpoint without a
    position.
    """

    def __init__(
        self, *arguments: Any, train_dataset: Any = None, eval_dataset: Any = None, **settings: Any
    ) -> None:
        self.train_dataset: Any = train_dataset
        self._prompts: PromptBatches | None = None
        self._datasets = {"train_dataset": train_dataset, "eval_dataset": eval_dataset}
        self._feed: RowFeed | None = None
        self._resumed: dict[str, Any] | None = None
        self._loss_fraction: float | None = None
        self._items: Any = None
        # rows of the model's batch, real ones of all ranks'
        self._gathered: tuple[int, torch.Tensor] | None = None
        self._sums = torch.zeros(2, dtype=torch.float64)
        train_stream = train_dataset
        generates = _replaces_loader(type(self))
        if generates and _is_streams(eval_dataset):
            raise SettingsError(
                "the trainer generates for rows by their numbers when it evaluates",
                setting="eval_dataset",
                remedy="give it a dataset that `datasets` loads, such as Dataset.from_parquet(…)",
            )
        # TRL's, of its own kinds
        if isinstance(train_dataset, StreamLoader) and (
            generates or hasattr(super(), "_prepare_dataset")
        ):
            self._feed = RowFeed(first_rows(train_dataset))
            train_dataset = self._feed.dataset()
            if _is_streams(eval_dataset):
                eval_dataset = None
        super().__init__(
            *arguments, train_dataset=train_dataset, eval_dataset=eval_dataset, **settings
        )
        if any(_is_streams(dataset) for dataset in self._datasets.values()):
            self.add_callback(HeadraceCallback())
        if isinstance(train_stream, StreamLoader):
            self._check_training(train_stream)
            if generates:
                self._prompts = PromptBatches.of(self.args)
                self.train_dataset = self._prompts.stream_of(train_stream)

    def _prepare_dataset(self, dataset: Any, *arguments: Any, **settings: Any) -> Any:
        """Leave rows of prompts and answers that are tokens already as they are."""
        if self._feed is not None and self._feed.tokenised:
            return dataset
        return super()._prepare_dataset(dataset, *arguments, **settings)

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Refuse `precompute_ref_log_probs` for a stream: TRL adds a column to a table."""
        if isinstance(dataset, StreamLoader) or self._feed is not None:
            raise SettingsError(
                "it adds a column to the rows before training, and a stream is read in training",
                setting="precompute_ref_log_probs",
                value=True,
                remedy="leave it False, or give the trainer a dataset that `datasets` loaded",
            )
        return super()._precompute_ref_logps(dataset, name, batch_size)

    def _validate_args(self) -> None:
        """Put the streams back in place of what TRL was given, before the Trainer looks for
        lengths.
        """
        if self._feed is not None:
            self._feed.prepared = self.train_dataset
            self.train_dataset = self._datasets["train_dataset"]
            if _is_streams(self._datasets["eval_dataset"]):
                self.eval_dataset = self._datasets["eval_dataset"]
        super()._validate_args()

    # Loaders

    def get_train_dataloader(self) -> Any:
        """Return the training stream's loader, at the position that a checkpoint left."""
        stream = self.train_dataset
        if not isinstance(stream, StreamLoader):
            return super().get_train_dataloader()
        self._check_training(stream)
        if self._resumed is not None:
            stream.load_state_dict(self._resumed["stream"])
            if not stream.remaining:
                stream.set_epoch(stream.epoch + 1)
        if self._prompts is None:
            return self._loader(stream)
        self._prompts.check_pass(stream)
        # TRL generates where its own count says so, which no argument sets; a run that begins or
        # resumes is where a generation batch begins
        self._step = 0
        self._buffered_inputs = None
        return SplitLoader(stream, self._prompts.of_rank, repeats=self._prompts.repeats)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of an evaluation stream, given or by name."""
        if eval_dataset is None:
            stream = self.eval_dataset
        else:
            stream = eval_dataset
        if isinstance(stream, str):
            stream = self.eval_dataset[stream]
        return self._outside_training(stream) or super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of a stream to predict on."""
        return self._outside_training(test_dataset) or super().get_test_dataloader(test_dataset)

    def _outside_training(self, stream: Any) -> SplitLoader | None:
        if not isinstance(stream, StreamLoader):
            return None
        self._check(stream)
        return self._loader(stream)

    def num_examples(self, dataloader: Any) -> int:
        """Return the rows of a pass over all ranks."""
        if not isinstance(dataloader, SplitLoader):
            return int(super().num_examples(dataloader))
        stream = dataloader.stream
        return stream.options.samples_per_epoch or stream.index.total_rows

    def _check(self, stream: StreamLoader) -> None:
        """Check what the arguments say about a stream that is not trained on."""
        if stream.options.grouped_column is not None:
            raise SettingsError(
                "batches by length have other numbers of rows on each rank, and the Trainer gathers"
                " as many predictions from all",
                path=str(stream),
                remedy=f"evaluate on a stream with {setting_name('batch_size')} alone",
            )
        check_arguments(self.args, stream, self.args.eval_batch_size, "per_device_eval_batch_size")

    def _check_training(self, stream: StreamLoader) -> None:
        if self._prompts is None:
            size = self._train_batch_size
        else:
            size = self._prompts.prompts
        check_arguments(self.args, stream, size, "per_device_train_batch_size")
        check_training_arguments(self.args, stream)

    def _loader(self, stream: StreamLoader) -> SplitLoader:
        if hasattr(self.model, "get_base_model"):
            model = self.model.get_base_model()
        else:
            model = self.model
        collate = self._get_collator_with_removed_columns(self.data_collator)
        feed = self._feed
        inputs = ModelInputs(
            stream,
            parameters=inspect.signature(type(model).forward).parameters,
            all_columns=not self.args.remove_unused_columns,
            collate=(
                collate
                if feed is None
                else lambda rows: collate(
                    feed.prepare(rows, mismatched=getattr(self, "calculate_KL", False))
                )
            ),
            label_names=self.label_names,
            shifts_labels=getattr(self, "_loss_shifts_labels", False),
            counts_labels=bool(
                self.model_accepts_loss_kwargs or self.compute_loss_func is not None
            ),
        )
        return SplitLoader(stream, inputs)

    # Training

    def _inner_training_loop(self, *arguments: Any, **settings: Any) -> Any:
        checkpoint = settings.get("resume_from_checkpoint")
        if checkpoint is not None and isinstance(self.train_dataset, StreamLoader):
            path = Path(checkpoint, _STATE_FILE)
            values = json.loads(path.read_text())
            saved_callback = values.get("stateful_callbacks", {}).get(HeadraceCallback.__name__)
            saved = None
            if isinstance(saved_callback, dict):
                saved = saved_callback.get("attributes", {}).get("saved")
            if saved is None:
                raise StreamError(
                    "holds no position of a stream",
                    path=path,
                    remedy=(
                        "resume from a checkpoint that a trainer with HeadraceTrainerMixin wrote,"
                        " or load only the weights and start again"
                    ),
                )
            self._resumed = {"stream": saved, "global_step": int(values["global_step"])}
        try:
            return super()._inner_training_loop(*arguments, **settings)
        finally:
            self._resumed = None

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Count epochs and steps: those that are done, what is left of the epoch, and the whole
        epochs after it.
        """
        if not isinstance(dataloader, SplitLoader):
            return super().set_initial_training_values(args, dataloader)
        stream = dataloader.stream
        resumed = self._resumed
        if resumed is None:
            stream.set_epoch(0)
        _, _, examples, samples, batch_rows, _, _ = super().set_initial_training_values(
            args, dataloader
        )
        epochs, steps = _schedule(
            dataloader,
            done=0 if resumed is None else resumed["global_step"],
            accumulated=args.gradient_accumulation_steps,
            epochs=args.num_train_epochs,
            most=args.max_steps,
        )
        batches = len(dataloader)
        updates = _updates(batches, args.gradient_accumulation_steps)
        return epochs, updates, examples, samples, batch_rows, batches, steps

    def _init_training_state(self, *arguments: Any, **settings: Any) -> tuple[int, int]:
        begun: tuple[int, int] = super()._init_training_state(*arguments, **settings)
        if self._resumed is None:
            return begun
        return self.train_dataset.epoch, 0  # nothing to skip: the stream goes on where it was

    def _run_epoch(self, *, epoch: int, train_dataloader: Any, **settings: Any) -> None:
        if isinstance(train_dataloader, SplitLoader):
            # epochs of bins, and the rest of an epoch, have lengths of their own
            train_dataloader.set_epoch(epoch)
            batches = len(train_dataloader)
            settings["steps_in_epoch"] = batches
            settings["num_update_steps_per_epoch"] = _updates(
                batches, self.args.gradient_accumulation_steps
            )
        super()._run_epoch(epoch=epoch, train_dataloader=train_dataloader, **settings)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Return the batches of an optimizer step, each knowing its share of the step's loss."""
        samples, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not samples or not isinstance(samples[0], Inputs):
            return samples, items
        if items is not None:
            # a step in which nothing is trained
            return samples, torch.as_tensor(items).clamp(min=1)
        counts = torch.tensor(
            [[sum(sample.weight for sample in samples), *(sample.rows for sample in samples)]],
            device=device,
        )
        of_ranks = self.accelerator.gather(counts)
        total = int(of_ranks[:, 0].sum().clamp(min=1))
        # The Trainer takes the mean over ranks, and over batches unless told that the loss is
        # scaled already.
        means = self.accelerator.num_processes * (
            1 if getattr(self, "loss_is_scaled_for_ga", None) else len(samples)
        )
        for sample, rows in zip(samples, of_ranks[:, 1:].T, strict=True):
            sample.fraction, sample.differs = (
                sample.weight * means / total,
                bool((rows != rows[0]).any()),
            )
        return samples, items

    def training_step(self, model: Any, inputs: Any, *arguments: Any, **settings: Any) -> Any:
        """Train on a batch; its loss counts for the rows or labels that it holds."""
        differs = False
        if isinstance(inputs, Inputs):
            self._loss_fraction = inputs.fraction
            differs = inputs.differs
        try:
            with self._gathering(differs=differs):
                return super().training_step(model, inputs, *arguments, **settings)
        finally:
            self._loss_fraction = None

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **settings: Any,
    ) -> Any:
        """Return the loss of a batch, times its share of the optimizer step."""
        self._items = num_items_in_batch
        result = super().compute_loss(
            model,
            inputs,
            return_outputs=return_outputs,
            num_items_in_batch=num_items_in_batch,
            **settings,
        )
        if self._loss_fraction is None or self._loss_fraction == 1:
            return result
        if return_outputs:
            return (result[0] * self._loss_fraction, result[1])
        return result * self._loss_fraction

    @contextmanager
    def _gathering(self, *, differs: bool) -> Iterator[None]:
        """Let TRL gather values of each row, for its metrics, where ranks have unequal numbers of
        rows.
        """
        accelerator = self.accelerator
        gather = accelerator.gather

        def unequal(values: Any) -> Any:
            return recursively_apply(one, values)

        def one(value: torch.Tensor) -> torch.Tensor:
            if not value.ndim:
                return cast(torch.Tensor, gather(value))
            sizes = gather(torch.tensor([len(value)], device=value.device)).tolist()
            parts = gather(accelerator.pad_across_processes(value)).chunk(len(sizes))
            return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

        if differs:
            accelerator.gather = unequal
        try:
            yield
        finally:
            if differs:
                del accelerator.gather  # the method of the class again

    # Evaluation

    def evaluate(self, eval_dataset: Any = None, *arguments: Any, **settings: Any) -> Any:
        """Evaluate.

        A stream is used as it is; TRL would otherwise prepare it as one of its own datasets.
        """
        if not isinstance(eval_dataset, StreamLoader):
            return super().evaluate(eval_dataset, *arguments, **settings)
        before = self.eval_dataset
        self.eval_dataset = eval_dataset
        try:
            return super().evaluate(None, *arguments, **settings)
        finally:
            self.eval_dataset = before

    def evaluation_loop(
        self, dataloader: Any, description: str, *arguments: Any, **settings: Any
    ) -> Any:
        """Evaluate over exactly the rows of the split: the mean loss of all, and predictions of
        real rows only.
        """
        if not isinstance(dataloader, SplitLoader):
            return super().evaluation_loop(dataloader, description, *arguments, **settings)
        self._sums = torch.zeros(2, dtype=torch.float64)
        self.gather_function = self._gather_real_rows
        output = super().evaluation_loop(dataloader, description, *arguments, **settings)
        total, count = self.accelerator.reduce(self._sums.to(self.args.device), "sum").tolist()
        prefix = settings.get("metric_key_prefix", "eval")
        if f"{prefix}_loss" in output.metrics and count:
            output.metrics[f"{prefix}_loss"] = total / count
        return output

    def prediction_step(self, model: Any, inputs: Any, *arguments: Any, **settings: Any) -> Any:
        """Evaluate a batch, and add its loss to the sum over the split."""
        if not isinstance(inputs, Inputs):
            return super().prediction_step(model, inputs, *arguments, **settings)
        self._items = self._gathered = None
        if inputs.valid is not None:
            real = self.accelerator.gather(inputs.valid.to(self.args.device))
            self._gathered = inputs.rows, real
            inputs.differs = (
                len(set(real.view(-1, len(inputs.valid)).sum(1).clamp(min=1).tolist())) > 1
            )
        with self._gathering(differs=inputs.differs):
            loss, logits, labels = super().prediction_step(model, inputs, *arguments, **settings)
        if loss is None:
            return loss, logits, labels
        # The Trainer divides by the labels of all ranks, where it counts them, and multiplies by
        # the ranks.
        if self._items is None:
            weight = inputs.weight
        else:
            weight = float(self._items) / self.accelerator.num_processes
        if weight:
            self._sums += torch.tensor([float(loss) * weight, weight], dtype=torch.float64)
        else:
            loss = torch.zeros_like(loss)  # of no row
        return loss, logits, labels

    def _gather_real_rows(self, values: Any) -> Any:
        """Gather the real rows of a batch from all ranks."""
        if self._gathered is None:
            return self.accelerator.gather_for_metrics(values)
        rows, real = self._gathered
        batch = len(real) // self.accelerator.num_processes

        def filled(value: torch.Tensor) -> torch.Tensor:
            # the loss, for each row of a whole batch
            if value.ndim == 1 and len(value) == self.args.eval_batch_size:
                return value[:batch]
            if len(value) == batch:
                return value
            if len(value) != rows:
                raise StreamError(
                    f"predictions: {len(value)} for {rows} rows, and ranks may have unequal numbers"
                    " of rows in a step",
                    remedy="evaluate without compute_metrics",
                )
            return torch.cat([value, value[:1].expand(batch - rows, *value.shape[1:])])

        gathered = self.accelerator.gather(recursively_apply(filled, values))
        return recursively_apply(lambda value: value[real], gathered)


def _replaces_loader(trainer: type) -> bool:
    """Return whether a trainer is one of TRL's that reads rows through a loader of its own, to
    generate completions of each.
    """
    for base in trainer.__mro__:
        if "get_train_dataloader" in vars(base) and base.__module__.startswith("trl."):
            return True
    return False


def _is_streams(dataset: Any) -> bool:
    if isinstance(dataset, dict):
        return any(isinstance(stream, StreamLoader) for stream in dataset.values())
    return isinstance(dataset, StreamLoader)


def _updates(batches: int, accumulated: int) -> int:
    return max(1, math.ceil(batches / accumulated))


def _schedule(
    loader: SplitLoader, *, done: int, accumulated: int, epochs: float, most: int
) -> tuple[int, int]:
    """Return the epoch to end before, and the steps of the optimizer by then, those that are `done`
    among them.

    epochs: as many as are trained unless `most` steps are asked for.
    """
    stream = loader.stream
    current: Pass = stream.current

    def updates_of(one: Pass) -> int:
        return _updates((one.steps or 0) * loader.repeats, accumulated)

    epoch_updates = updates_of(stream.passes.full(current))
    steps = done
    epoch = current.epoch
    # Bins, and shares of whole shards, differ from epoch to epoch. Of rows every epoch has as many.
    differ = stream.options.needs_lengths or stream.options.distribution != "balanced"
    left = updates_of(current)
    while steps < most if most > 0 else epoch < epochs:
        part = epochs - epoch
        if most <= 0 and part < 1:
            left = max(0, math.ceil(part * epoch_updates) - (epoch_updates - left))
        steps = steps + left
        epoch = epoch + 1
        if differ:
            current = stream.passes.begin(epoch, current)
            epoch_updates = updates_of(current)
        left = epoch_updates
    return epoch, most if most > 0 else steps
