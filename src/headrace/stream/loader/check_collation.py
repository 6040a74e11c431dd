"""Refuse loaders that would stack whole batches or shard a rank's share again; report the last
batch to Accelerate.

    DataLoader(dataset, batch_size=8)               stacks whole batches to batches of batches
    accelerator.prepare(DataLoader(dataset, …))     reads on the main process alone, or keeps a part
                                                    on each
    IterableDatasetShard(dataset),
    split_dataset_by_node                           keep a part of this rank's rows

The last two would silently train on a part of the rows. Torch does not tell a dataset what reads
it. Accelerate names the loader that is being read; for the others, only the calling frames show it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any, TypeVar

from headrace.errors import SettingsError, setting_name

Given = TypeVar("Given")

_REMEDY = (
    "give the loop dataset.data_loader(), or headrace.open(...).stream(...), as it is: every rank"
    " reads its own share there. With Accelerate leave it out of prepare(); for Hugging Face's"
    " Trainer override get_train_dataloader() to return it"
)


def refuse_batches_of_batches(caller: FrameType | None, batch_size: int, name: str) -> None:
    """Raise `SettingsError` if a DataLoader with its own batch_size begins to read a dataset of
    batches.

    caller: the frame that requests the iterator, a method of the DataLoader's fetcher, here or in a
    worker. Only the default collate_fn of torch and those of transformers are refused; any other is
    assumed to expect whole batches.
    """
    from torch.utils.data import default_collate

    if caller is None:
        fetcher: Any = None
    else:
        fetcher = caller.f_locals.get("self")
    collate: Any = getattr(fetcher, "collate_fn", None)
    module = getattr(collate, "__module__", None) or type(collate).__module__
    unaware = collate is default_collate or module.partition(".")[0] == "transformers"
    if getattr(fetcher, "auto_collation", False) is True and unaware:
        raise SettingsError(
            f"the DataLoader has a {setting_name('batch_size')} of its own, and {name} gives whole"
            f" batches of {batch_size} rows, which it would stack to batches of batches",
            remedy=(
                "pass DataLoader(dataset, batch_size=None, …), or for Hugging Face's Trainer"
                " override get_train_dataloader() to return dataset.data_loader()"
            ),
        )


def refuse_sharing_again(dataset: Any, *, world_size: int, caller: FrameType | None = None) -> None:
    """Raise `SettingsError` if a loader shards this dataset again, which already gives each rank
    its own share.

    caller: the frame that requests an iterator; None: check only Accelerate's own record.
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
            f"{name} shares out what it reads among the ranks, and this dataset gives each of the"
            f" {world_size} ranks its own share already, so rows would be lost",
            remedy=_REMEDY,
        )


def _dispatcher(dataset: Any) -> str | None:
    """Name Accelerate's loader that reads this dataset on the main process for all ranks; None if
    there is none.

    A forked worker gets the same answer as its parent.
    """
    states = sys.modules.get("accelerate.state")
    loaders = sys.modules.get("accelerate.data_loader")
    if states is None or loaders is None:
        return None
    active = states.GradientState().active_dataloader
    if not isinstance(active, loaders.DataLoaderDispatcher):
        return None
    read = active.dataset
    while read is not None and read is not dataset:
        read = getattr(read, "dataset", None)
    if read is None:
        return None
    return "Accelerate's DataLoaderDispatcher (dispatch_batches)"


def _sharer(caller: Any) -> str | None:
    """Name the class of a frame's `self` if it keeps only a part of what it reads."""
    caller_type = type(caller)
    library = caller_type.__module__.partition(".")[0]
    if library in ("accelerate", "transformers") and caller_type.__name__ == "IterableDatasetShard":
        return f"{library}'s IterableDatasetShard"
    # A datasets.IterableDataset keeps its split in a private field, and no public name shows it.
    if library == "datasets" and getattr(caller, "_distributed", None) is not None:
        return "split_dataset_by_node of datasets"
    return None


def told_to_accelerate(batches: Iterator[Given], *, steps: int | None) -> Iterator[Given]:
    """Return the same batches and, if Accelerate is loaded, report number `steps` to it as the
    last. None: not known.

    `accelerator.accumulate` steps the optimizer every few batches, and after the last batch of a
    loader, while `GradientState().end_of_dataloader` is true.
    """
    if "accelerate.data_loader" in sys.modules:
        return _told(batches, steps)
    return batches


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
    """Create the class that represents a pass in Accelerate's list of active loaders."""
    loaders: Any = sys.modules["accelerate.data_loader"]

    class AcceleratePass(loaders.DataLoaderStateMixin):  # type: ignore[misc]  # Accelerate has no types
        def __init__(self) -> None:
            self.gradient_state = loaders.GradientState()

    return AcceleratePass
