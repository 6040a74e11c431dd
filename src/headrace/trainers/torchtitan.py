"""Feed torchtitan with packed rows: every row once an epoch over all data-parallel ranks, the same
steps on each.

    from headrace.trainers.torchtitan import HeadraceDataLoader

    config.dataloader = HeadraceDataLoader.Config(dataset_path="out", infinite=False)
    config.validator.dataloader = HeadraceDataLoader.Config(
        dataset_path="out", dataset="valid", shuffle=False
    )

torchtitan 0.3 builds loaders from such configs. After 0.3 it counts tokens in place of rows, and a
batch is a microbatch object over flat tokens: the config and the rows are the same.

torchtitan draws `global_batch_size / (local_batch_size * ranks)` batches for each optimizer step,
and cancels a step for which data run out. So the rows of one step are one batch of the stream, cut
into the batches that torchtitan draws, and the last step is filled up with rows that train nothing.
What a checkpoint holds is the same on every rank and under one key for all of them, so any number
of ranks can load it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Annotated, Any, Literal, get_args

import torch

from headrace.checks import check_word
from headrace.errors import SettingsError, StreamError, setting
from headrace.packing.read.batches import PackedBatches, packed_setting
from headrace.stream.loader.dataset import open_dataset
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology, initialized_distributed

try:
    import tyro

    try:  # after 0.3
        _types: Any = import_module("torchtitan.components.data.types")
        from torchtitan.components.data.loader import BaseDataLoader
    except ModuleNotFoundError:
        from torchtitan.components.dataloader import BaseDataLoader

        _types = None
except ImportError as error:
    raise SettingsError(
        f"torchtitan cannot be imported: {error}", remedy="install it, or what it lacks, with pip"
    ) from error

__all__ = ["HeadraceDataLoader"]

Rows = Literal["bins", "sequences"]
Positions = Literal["sequence", "none"]

IGNORE_INDEX = -100  # as torchtitan.components.loss has it, which also imports kernels
_STATE = "headrace"

_BaseDataLoader: Any = BaseDataLoader
_BaseConfig: Any = _BaseDataLoader.Config


class HeadraceDataLoader(_BaseDataLoader):  # type: ignore[misc]  # torchtitan need not be there to check types
    """Batches of one data-parallel rank: ({"input": [B, T], "positions": [B, T]}, labels [B, T]),
    all int64.

    B is training.local_batch_size, T training.seq_len. Labels are the next token of the same
    sequence, and -100 where nothing is trained: at the end of a sequence, where the loss mask is 0,
    and in rows that only fill the last step up. Positions begin at 0 in each sequence: torchtitan's
    flex and varlen attention keep sequences apart by them. After 0.3 a batch is a
    `TokenizedTrainingMicrobatch` of the same rows end to end, [B * T].
    stream: the stream whose batches are the rows of a step, for `len`, `plan` and `stats`.
    Raises `SettingsError` when built with settings that cannot work, and what `headrace.open`
    raises.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_BaseConfig):  # type: ignore[misc]
        """Settings of the loader: what a config of torchtitan holds, and its command line sets.

        dataset: the split; "" where there is only one. dataset_path: what `headrace.open` opens.
        rows: "bins", each row is packed already; "sequences", each is one sequence of tokens, and
            rows are packed into bins of seq_len tokens while they are streamed.
        shuffle, seed: a new order in each epoch, the same on every machine.
        infinite: False, one epoch; its last step is whole. repeat: what torchtitan calls it after
        0.3; None: infinite. global_batch_size: training.global_batch_size, in rows; -1: one batch
        of each rank.
        positions: "none" for models that take no positions.
        options: further ones of the stream, see `StreamOptions`.
        """

        dataset: str = "train"
        dataset_path: str | None = None
        rows: Rows = "bins"
        shuffle: bool = True
        seed: int = 0
        infinite: bool = True
        repeat: bool | None = None
        global_batch_size: int = -1
        positions: Positions = "sequence"
        options: Annotated[Mapping[str, Any], tyro.conf.Suppress] = field(default_factory=dict)

    def __init__(  # noqa: PLR0913 - all are settings
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int | None = None,
        local_batch_size: int | None = None,
        max_context_length: int | None = None,
        num_tokens_per_microbatch: int | None = None,
        optimizer_step_layout: Any = None,
        **_other: Any,  # the tokenizer, and how often torchtitan's own loader takes a snapshot
    ) -> None:
        check_word("rows", config.rows, get_args(Rows))
        check_word("positions", config.positions, get_args(Positions))
        if config.dataset_path is None:
            raise SettingsError(
                "it is not set",
                setting="dataset_path",
                remedy="give the directory that headrace.open opens",
            )
        if seq_len is None or local_batch_size is None:  # after 0.3 torchtitan counts tokens
            seq_len = max_context_length
            tokens = num_tokens_per_microbatch
            if seq_len is None or tokens is None or tokens % seq_len:
                raise SettingsError(
                    f"rows have {seq_len}",
                    setting="num_tokens_per_microbatch",
                    value=tokens,
                    remedy=(
                        "set training.num_tokens_per_microbatch_per_dp_rank to a multiple of"
                        " training.max_context_length"
                    ),
                )
            local_batch_size = tokens // seq_len
        self.config = config
        # the trainer asks for it after 0.3
        self.max_num_documents = getattr(config, "max_num_documents", None)
        self._batch_rows = local_batch_size
        self._step_batches = 1  # that a rank draws for one step
        if optimizer_step_layout is not None:
            layout = optimizer_step_layout
            self._step_batches = layout.num_accumulation_steps * layout.num_pp_microbatches
        elif config.global_batch_size != -1:
            drawn = local_batch_size * dp_world_size
            if config.global_batch_size < 1 or config.global_batch_size % drawn:
                raise SettingsError(
                    f"{dp_world_size} ranks with local_batch_size {local_batch_size} share a"
                    f" multiple of {drawn}",
                    setting="global_batch_size",
                    value=config.global_batch_size,
                    remedy="set that, as in training, or -1",
                )
            self._step_batches = config.global_batch_size // drawn
        options = {"shuffle": config.shuffle, "seed": config.seed, **config.options}
        packed = packed_setting(options.get("packed", PackedBatches()))
        options["packed"] = replace(
            packed, form="padded", pad_to=seq_len, ignore_index=IGNORE_INDEX
        )
        if config.rows == "sequences":
            options.setdefault("pack", seq_len)
        self.stream: StreamLoader = open_dataset(config.dataset_path).stream(
            config.dataset or None,
            batch_size=local_batch_size * self._step_batches,
            topology=Topology(
                rank=dp_rank, world_size=dp_world_size, partners=_partners(dp_world_size)
            ),
            **options,
        )
        self._inside_step = False

    def __iter__(self) -> Iterator[Any]:
        """Yield batches of an epoch, or of one after another; after a resume, what is left of the
        epoch comes first.

        Raises what the stream raises, and `StreamError` if epochs without end have no batch.
        """
        if self.config.repeat is None:
            infinite = self.config.infinite
        else:
            infinite = self.config.repeat
        while True:
            for step in self.stream:
                yield from self._batches(step)
            if not infinite:
                return
            if not self.stream.delivered_count and not self.stream.partial_epoch:
                rows = (
                    f"{self.stream.index.total_rows} rows, and a rank takes"
                    f" {self.stream.options.batch_size} a step"
                )
                raise StreamError(
                    f"an epoch of {self.config.dataset!r} has no batch: {rows}",
                    path=self.config.dataset_path,
                    remedy=(
                        f"choose another split, smaller batches, or another {setting('remainder')}"
                    ),
                )

    def _batches(self, step: Any) -> Iterator[Any]:
        """Yield the batches of one step, filled up with copies of a row that train nothing."""
        tokens, labels, positions = (step[name] for name in ("input_ids", "labels", "position_ids"))
        missing = self._batch_rows * self._step_batches - len(tokens)
        if missing:
            tokens = torch.cat([tokens, tokens[:1].expand(missing, -1)])
            labels = torch.cat(
                [labels, torch.full_like(labels[:1].expand(missing, -1), IGNORE_INDEX)]
            )
            positions = torch.cat([positions, positions[:1].expand(missing, -1)])
        for first in range(0, len(tokens), self._batch_rows):
            part = slice(first, first + self._batch_rows)
            self._inside_step = first + self._batch_rows < len(tokens)
            yield self._batch(tokens[part], labels[part], positions[part])

    def _batch(self, tokens: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor) -> Any:
        """Return a batch as this torchtitan takes it."""
        if _types is not None:
            return _types.TokenizedTrainingMicrobatch(
                input=tokens.flatten(),
                labels=labels.flatten(),
                positions=positions.flatten(),
                # what fills up is a sequence like others
                padding_mask=torch.zeros(labels.numel(), dtype=torch.bool),
                num_valid_tokens=int((labels != IGNORE_INDEX).sum()),
            )
        return {
            "input": tokens,
            **({"positions": positions} if self.config.positions == "sequence" else {}),
        }, labels

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is after the steps handed out whole: the same on every rank,
        under the same key.
        """
        state = self.stream.state_after(self.stream.delivered_count - self._inside_step)
        # torch's distributed checkpoints take dictionaries apart
        return {_STATE: json.dumps(state)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state, of any number of ranks and any batch size.

        Raises `StreamError` for the state of another loader, or of other data.
        """
        if _STATE not in state_dict:
            raise StreamError(
                f"torchtitan: the checkpoint's dataloader has {sorted(state_dict)}, and not"
                f" {_STATE!r}: another loader wrote it",
                remedy="begin an epoch with checkpoint.exclude_from_loading = ['dataloader']",
            )
        self.stream.load_state_dict(json.loads(state_dict[_STATE]))
        self._inside_step = False


def _partners(ranks: int) -> int:
    """Return how many processes of the job read as each of so many data-parallel ranks."""
    distributed = initialized_distributed()
    if distributed is None:
        return 1
    return max(1, int(distributed.get_world_size()) // ranks)
