"""What the arguments of Hugging Face's Trainer say about data, beside what a stream does.

The Trainer gives each of these to a sampler or a DataLoader. A stream has neither: it decides them
itself. An argument that the stream does not do is refused, so that none is ignored in silence.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from headrace.errors import SettingsError, setting
from headrace.stream.loader.stream_loader import StreamLoader

__all__ = ["check_arguments", "check_training_arguments"]


class _Default(NamedTuple):
    """An argument that must keep its default, `value`, why, and what to do instead."""

    argument: str
    value: Any
    reason: str
    remedy: str


_OF_WORKERS = "workers are the stream's own"
_ASK_THERE = "leave it out, and set the workers where the stream is made"
_DEFAULTS = (
    _Default(
        "auto_find_batch_size", False, "it cannot change the batches of a stream", "leave it out"
    ),
    _Default("dataloader_persistent_workers", False, _OF_WORKERS, _ASK_THERE),
    _Default("dataloader_prefetch_factor", None, _OF_WORKERS, _ASK_THERE),
    _Default("dataloader_multiprocessing_context", None, _OF_WORKERS, _ASK_THERE),
    _Default("dataloader_in_order", True, "a stream gives its batches in order", "leave it True"),
)
_DEFAULTS_OF_ACCELERATE = (
    _Default("split_batches", False, "every rank reads batches of its own", "leave it False"),
    _Default("dispatch_batches", False, "every rank reads its own rows", "leave it out"),
    _Default(
        "even_batches", True, "a stream gives all ranks equally many batches", "leave it True"
    ),
)
_DEFAULTS_OF_TRAINING = (
    _Default(
        "ignore_data_skip",
        False,
        "a resumed stream begins at its next batch, and there is nothing to skip",
        "leave it False",
    ),
    _Default(
        "packing",
        False,
        "TRL's packing changes the number of rows",
        f"pack in the stream: {setting('pack', 4096)}, or with headrace pack before",
    ),
)


def check_arguments(arguments: Any, stream: StreamLoader, batch_size: int, name: str) -> None:
    """Check the arguments of any pass over a stream.

    arguments: a `TrainingArguments`. batch_size: what the Trainer counts with, from the argument
    `name`. Raises `SettingsError` for the first argument that the stream does not do.
    """
    # where tokens bound a batch, no number of rows does
    if stream.options.batch_tokens is None and stream.options.batch_size != batch_size:
        raise SettingsError(
            f"the Trainer counts batches of {batch_size}, and the stream has batches of"
            f" {stream.options.batch_size}",
            setting=name,
            remedy="give both the same number",
        )
    workers = getattr(stream, "num_workers", 0)
    if arguments.dataloader_num_workers not in (0, workers):
        raise SettingsError(
            f"the stream has {workers} workers of its own",
            setting="dataloader_num_workers",
            value=arguments.dataloader_num_workers,
            remedy="leave it 0, and ask for workers where the stream is made",
        )
    if arguments.world_size > 1 and not getattr(arguments, "average_tokens_across_devices", True):
        raise SettingsError(
            "a rank whose last batch holds no row would divide by 0 labels",
            setting="average_tokens_across_devices",
            value=False,
            remedy="leave it True",
        )
    _check_defaults(arguments, _DEFAULTS)
    _check_defaults(arguments.accelerator_config, _DEFAULTS_OF_ACCELERATE)


def check_training_arguments(arguments: Any, stream: StreamLoader) -> None:
    """Check what arguments say about the order and the number of a stream's training rows.

    Raises `SettingsError` for the first argument that the stream does not do.
    """
    _check_defaults(arguments, _DEFAULTS_OF_TRAINING)
    if arguments.dataloader_drop_last and stream.passes.remainder != "drop":
        raise SettingsError(
            f"the stream has {setting('remainder', stream.passes.remainder)}",
            setting="dataloader_drop_last",
            value=True,
            remedy=f"make the stream with {setting('remainder', 'drop')}, or leave it False",
        )
    _check_strategy(arguments, stream)
    _check_shuffle(arguments, stream)
    _check_seed(arguments, stream)


def _check_strategy(arguments: Any, stream: StreamLoader) -> None:
    strategy = str(getattr(arguments, "train_sampling_strategy", "random"))
    # KTO's default: its own pairs of a batch stay together in any order of the stream
    is_default = strategy == getattr(type(arguments), "train_sampling_strategy", None)
    if strategy == "sequential" and stream.options.shuffle and not is_default:
        raise SettingsError(
            "the stream is shuffled",
            setting="train_sampling_strategy",
            value=strategy,
            remedy=f"make the stream with {setting('shuffle', False)}",
        )
    if strategy not in ("random", "sequential"):
        raise SettingsError(
            "the order is the stream's",
            setting="train_sampling_strategy",
            value=strategy,
            remedy=f"leave it out, and make the stream with {setting('batch_tokens', 16384)}",
        )


def _check_shuffle(arguments: Any, stream: StreamLoader) -> None:
    """Refuse a word on TRL's shuffling that is neither its default nor the stream's."""
    shuffles = getattr(arguments, "shuffle_dataset", None)
    if shuffles in (None, stream.options.shuffle, _default(arguments, "shuffle_dataset")):
        return
    raise SettingsError(
        f"the stream has {setting('shuffle', stream.options.shuffle)}",
        setting="shuffle_dataset",
        value=shuffles,
        remedy=f"leave it out, or make the stream with {setting('shuffle', shuffles)}",
    )


def _check_seed(arguments: Any, stream: StreamLoader) -> None:
    """Refuse a seed that was given for the order and is not that of the order.

    The Trainer draws its order by `data_seed`, or by `seed` where there is none.
    """
    name, seed = "data_seed", arguments.data_seed
    if seed is None and arguments.seed != _default(arguments, "seed"):
        name, seed = "seed", arguments.seed
    if seed is None or not stream.options.shuffle or seed == stream.options.seed:
        return
    raise SettingsError(
        f"the order of the stream has {setting('seed', stream.options.seed)}",
        setting=name,
        value=seed,
        remedy=(
            f"make the stream with {setting('seed', seed)}, or give data_seed={stream.options.seed}"
        ),
    )


def _check_defaults(arguments: Any, defaults: tuple[_Default, ...]) -> None:
    for one in defaults:
        value = getattr(arguments, one.argument, one.value)
        if value is None or value == one.value:
            continue
        raise SettingsError(one.reason, setting=one.argument, value=str(value), remedy=one.remedy)


def _default(arguments: Any, name: str) -> Any:
    for field in fields(arguments):
        if field.name == name and field.default is not MISSING:
            return field.default
    return None
