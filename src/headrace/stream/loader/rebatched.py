"""Refuse loaders that would batch batches again, or share out again what is one rank's share; tell Accelerate the end.

    DataLoader(dataset, batch_size=8)                       stacks whole batches to batches of batches
    accelerator.prepare(DataLoader(dataset, …))             reads on the main process alone, or keeps a part on each
    IterableDatasetShard(dataset), split_dataset_by_node    keep a part of what this rank was given

The last two train a part of the rows, and nothing else would tell. A dataset is not told who reads it: Accelerate says
which loader is being read, and of the others the calling frames are all there is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any, TypeVar

from headrace.errors import SettingsError

Given = TypeVar("Given")

_REMEDY = (
    "give the loop dataset.data_loader(), or headrace.open(...).stream(...), as it is: every rank reads its own share"
    " there. With Accelerate leave it out of prepare(); for Hugging Face's Trainer override get_train_dataloader() to"
    " return it"
)


def refuse_batches_of_batches(caller: FrameType | None, batch_size: int, name: str) -> None:
    """Raise `SettingsError` where a DataLoader with a batch_size of its own begins to read a dataset of batches.

    caller: the frame that asks the dataset for an iterator, which is a method of the DataLoader's fetcher, here or in a
    worker. A collate_fn that is not torch's own, or of transformers, knows what it is given.
    """
    from torch.utils.data import default_collate

    fetcher: Any = None if caller is None else caller.f_locals.get("self")
    collate: Any = getattr(fetcher, "collate_fn", None)
    module = getattr(collate, "__module__", None) or type(collate).__module__
    unaware = collate is default_collate or module.partition(".")[0] == "transformers"
    if getattr(fetcher, "auto_collation", False) is True and unaware:
        raise SettingsError(
            f"DataLoader: has a batch_size of its own, and {name} gives whole batches of {batch_size} rows, which it"
            f" would stack to batches of batches; pass DataLoader(dataset, batch_size=None, …), or for Hugging Face's"
            " Trainer override get_train_dataloader() to return dataset.data_loader()"
        )


def refuse_sharing_again(dataset: Any, *, world_size: int, caller: FrameType | None = None) -> None:
    """Raise `SettingsError` where something shares out again what of this dataset is one rank's share already.

    caller: the frame that asks for an iterator; None: only what Accelerate says is asked.
    """
    if world_size == 1:
        return
    name = _dispatcher(dataset)
    frame = caller
    while name is None and frame is not None:
        name = _sharer(frame.f_locals.get("self"))
        frame = frame.f_back
    if name is not None:
        raise SettingsError(
            f"{name}: shares out what it reads among the ranks, and this dataset gives each of the {world_size} ranks"
            f" its own share already, so that rows would be lost; {_REMEDY}"
        )


def _dispatcher(dataset: Any) -> str | None:
    """The loader of Accelerate that is being read on the main process for all ranks, if it reads this dataset.

    A forked worker finds the same as its parent.
    """
    states, loaders = sys.modules.get("accelerate.state"), sys.modules.get("accelerate.data_loader")
    if states is None or loaders is None:
        return None
    active = states.GradientState().active_dataloader
    if not isinstance(active, loaders.DataLoaderDispatcher):
        return None
    read = active.dataset
    while read is not None and read is not dataset:
        read = getattr(read, "dataset", None)
    return None if read is None else "Accelerate's DataLoaderDispatcher (dispatch_batches)"


def _sharer(caller: Any) -> str | None:
    """What a frame's `self` is called, if it keeps a part of what it reads."""
    kind = type(caller)
    library = kind.__module__.partition(".")[0]
    if library in ("accelerate", "transformers") and kind.__name__ == "IterableDatasetShard":
        return f"{library}'s IterableDatasetShard"
    # The split of a datasets.IterableDataset is kept in a field of its own, which no public name tells.
    if library == "datasets" and getattr(caller, "_distributed", None) is not None:
        return "split_dataset_by_node of datasets"
    return None


def told_to_accelerate(batches: Iterator[Given], *, steps: int | None) -> Iterator[Given]:
    """The same batches; Accelerate, where it is loaded, hears that number `steps` is the last. None: not known.

    `accelerator.accumulate` steps the optimizer every few batches, and after the last batch of a loader, while
    `GradientState().end_of_dataloader` is true.
    """
    return _told(batches, steps) if "accelerate.data_loader" in sys.modules else batches


def _told(batches: Iterator[Given], steps: int | None) -> Generator[Given, None, None]:
    reading = _kind()()
    reading.begin()
    try:
        for number, batch in enumerate(batches, start=1):
            reading.end_of_dataloader = number == steps
            yield batch
    finally:
        reading.end()
        if isinstance(batches, Generator):
            batches.close()


@functools.cache
def _kind() -> Any:
    """What stands for a pass in Accelerate's list of loaders that are being read."""
    loaders: Any = sys.modules["accelerate.data_loader"]

    class Reading(loaders.DataLoaderStateMixin):  # type: ignore[misc]  # Accelerate has no types
        def __init__(self) -> None:
            self.gradient_state = loaders.GradientState()

    return Reading
