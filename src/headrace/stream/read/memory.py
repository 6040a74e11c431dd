"""Batches in pinned (page-locked) memory, from which a GPU copies while the training loop goes on.

    for batch in ds.stream("train", batch_size=1024, memory="pinned"):
        x = batch["x"].to("cuda", non_blocking=True)

Pinned memory belongs to one process, so the rank's own process pins; batches of DataLoader workers are pinned by their
DataLoader, with pin_memory=True. Lists of tensors are pinned as one piece. Without CUDA batches stay as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from functools import cache
from typing import Any

from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.read.batch import import_torch

Pin = Callable[[Any], Any]


def pinned_batches(batches: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """The batches with their tensors in pinned memory; where CUDA is not there, the same batches and a warning."""
    torch = import_torch()
    if not torch.cuda.is_available():
        _warn_once()
        return batches
    return _pinned(batches, torch.Tensor.pin_memory)


def pinned(batch: Any, pin: Pin) -> Any:
    """The batch with `pin` of each CPU tensor, inside dicts, lists and tuples too; a new container, the rest as it is.

    What has a `pin_memory` of its own is asked for it.
    """
    from headrace.stream.workers.parcel import apart, is_plain, together

    if is_plain(batch):
        return pin(batch)
    if isinstance(batch, import_torch().Tensor):
        return batch  # on a device already, or of a layout that cannot be pinned
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if type(batch) is dict:
        return {name: pinned(value, pin) for name, value in batch.items()}
    if type(batch) is list:
        ragged = together(batch)
        if ragged is not None:
            flat, lengths = ragged
            return list(apart(pin(flat), lengths))
        return [pinned(value, pin) for value in batch]
    if isinstance(batch, tuple):
        values = [pinned(value, pin) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    return batch


def check_memory(options: StreamOptions, num_workers: int) -> None:
    """Raise `SettingsError` if workers are to give pinned memory, which they cannot."""
    if options.memory == "pinned" and num_workers:
        raise SettingsError(
            f'memory="pinned" with num_workers={num_workers}: memory pinned in a worker is not pinned in the process'
            " that receives it; leave memory= out and let the DataLoader pin, with DataLoader(..., pin_memory=True) or"
            ' data_loader(memory="pinned")'
        )


def _pinned(batches: Generator[Any, None, None], pin: Pin) -> Generator[Any, None, None]:
    with closing(batches):
        for batch in batches:
            yield pinned(batch, pin)


@cache
def _warn_once() -> None:
    warnings.warn(
        'memory="pinned": CUDA is not available here, so batches stay in pageable memory', UserWarning, stacklevel=2
    )
