"""Batches of prompts for TRL's trainers that generate: GRPO and RLOO.

A generation batch has `generation_batch_size` completions of all ranks, `num_generations` of each
prompt side by side, and rank r generates the r-th of equal parts. TRL gathers the rewards of all
parts and takes every `num_generations` of them for a group, so a group may lie on two ranks, and
both need its prompt:

    prompts of a batch      0           1           2            num_generations 4
    completions             0 0 0 0     1 1 1 1     2 2 2 2
    ranks                   0 0 0 0     0 0 1 1     1 1 1 1      generation_batch_size 12

Shares of positions r, r + R, … are no such parts. So each rank reads all prompts, which are few
beside what is generated, and takes its part; the stream of a job is that of one rank, and its state
is of any number of ranks. Each batch is trained `steps_per_generation * num_iterations` times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import SettingsError, setting, setting_name
from headrace.stream.loader.options import VALID
from headrace.stream.loader.stream_loader import StreamLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBatches:
    """The generation batches of one rank.

    prompts: rows of the stream in a batch of all ranks. completions: of each, side by side.
    first, stop: this rank's part of the batch, in completions. repeats: batches of the Trainer that
    one generation batch makes.
    """

    prompts: int
    completions: int
    first: int
    stop: int
    repeats: int

    @classmethod
    def of(cls, arguments: Any) -> PromptBatches:
        """Return those of a `GRPOConfig` or `RLOOConfig`.

        Raises `SettingsError` for the arguments of another trainer.
        """
        if not hasattr(arguments, "generation_batch_size"):
            raise SettingsError(
                f"the trainer of {type(arguments).__name__} reads rows by their numbers",
                setting="train_dataset",
                remedy=(
                    "give it a dataset that `datasets` loads from the run's files, such as"
                    ' Dataset.from_parquet("out/splits/train/*.parquet")'
                ),
            )
        rank_rows = arguments.generation_batch_size // arguments.world_size
        return cls(
            prompts=arguments.generation_batch_size // arguments.num_generations,
            completions=arguments.num_generations,
            first=arguments.process_index * rank_rows,
            stop=(arguments.process_index + 1) * rank_rows,
            repeats=arguments.steps_per_generation * arguments.num_iterations,
        )

    def stream_of(self, stream: StreamLoader) -> StreamLoader:
        """Return the stream of which every rank receives whole generation batches.

        Raises `SettingsError` unless it delivers rows, all of them valid, and those in whole
        batches.
        """
        options = stream.options
        for name, usual in (("mask_entities", ()), ("on_bad_block", "raise")):
            value = getattr(options, name)
            if value != usual:
                raise SettingsError(
                    "completions are generated for all rows of a batch, valid or not",
                    path=str(stream),
                    setting=name,
                    value=value,
                    remedy="leave it out, and train on a dataset without these rows",
                )
        if options.batch_format != "rows" or options.needs_lengths:
            raise SettingsError(
                "completions are generated for rows of a prompt and what rewards need",
                path=str(stream),
                setting="batch_format",
                value=options.batch_format,
                remedy=f"open it with {setting('batch_format', 'rows')}",
            )
        for_all = stream.for_every_rank(self.prompts)
        self.check_pass(for_all)
        return for_all

    def check_pass(self, stream: StreamLoader) -> None:
        """Raise `SettingsError` if the last batch of the current pass would lack prompts."""
        steps = stream.current.steps or 0
        rows = stream.current.rows_after(steps)
        if rows == steps * self.prompts and steps:
            return
        epoch_rows = max(1, -(-rows // self.prompts)) * self.prompts
        raise SettingsError(
            f"{rows} prompts do not fill generation batches of {self.prompts}",
            path=str(stream),
            setting="remainder",
            value=stream.remainder,
            remedy=(
                f"leave the last ones of an epoch out with {setting('remainder', 'drop')}, or begin"
                f" the next round of them with {setting('samples_per_epoch', epoch_rows)};"
                f" {setting_name('generation_batch_size')} and {setting_name('num_generations')}"
                " make the batches"
            ),
        )

    def of_rank(self, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return this rank's part of a batch, a row for each completion."""
        part = []
        for number in range(self.first, self.stop):
            row = dict(batch[number // self.completions])
            del row[VALID]
            part.append(row)
        return part
