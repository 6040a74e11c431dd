"""Refuse loaders that would stack whole batches, shard a rank's share again, or read it in each
worker; report the last batch to Accelerate.

    DataLoader(dataset, batch_size=8)               stacks whole batches to batches of batches
    DataLoader(wrapper of a stream, num_workers=2)  reads the whole share in every worker
    accelerator.prepare(DataLoader(dataset, …))     reads on the main process alone, or keeps a part
                                                    on each
    IterableDatasetShard(dataset),
    split_dataset_by_node                           keep a part of this rank's rows
    IterableWrapper(dataset).sharding_filter()      keeps a part in each rank and worker

All but the first would silently train on other rows. Torch tells a process that it is a worker, and
Accelerate tells which of its loaders is being read, so a wrapper hides neither. Only calling frames
show the classes of the last lines, where they are used without Accelerate.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Generator, Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any, TypeVar

from headrace.errors import SettingsError, setting_name

Given = TypeVar("Given")

_REMEDY = (
    "give the loop dataset.data_loader(), or headrace.open(...).stream(...), as it is: every rank"
    " reads its own share there. With Accelerate leave it out of prepare(); for Hugging Face's"
    " Trainer override get_train_dataloader() to return it"
)
_SHARING = frozenset({"accelerate", "datasets", "torch", "transformers"})  # libraries
_MOST_SEARCHED = 100_000  # values of a wrapper; tenths of a second
READ_BY_INDEX = (
    "loop over it, or read headrace.open(...).torch_dataset(...) in a DataLoader, by its"
    " data_loader() or with batch_size=None. For Hugging Face's Trainer and TRL's trainers write"
    " class StreamTrainer(HeadraceTrainerMixin, Trainer); for Fabric's setup_dataloaders give"
    " torch_dataset(...).data_loader()"
)


def torch_worker() -> Any:
    """Return what torch tells about the DataLoader worker that this process is; None elsewhere."""
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return None
    return data.get_worker_info()


def refuse_worker() -> None:
    """Raise `SettingsError` in a worker of a DataLoader, each of which would read the same rows."""
    info = torch_worker()
    if info is None:
        return
    raise SettingsError(
        f"each of the {info.num_workers} workers of a DataLoader would read all rows of this"
        f" stream (worker {info.id}, which reads {type(info.dataset).__name__})",
        remedy=(
            "read headrace.open(...).torch_dataset(...) there, also inside a dataset of your own:"
            " each worker then gets its part"
        ),
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
    name = None
    if world_size > 1:
        name = _sharer_of_accelerate(dataset)
    frame = caller
    while name is None and frame is not None:
        # asked for its locals, a frame of the loop would keep the stream that the loop has dropped
        if frame.f_globals.get("__name__", "").partition(".")[0] in _SHARING:
            name = _sharer(frame.f_locals.get("self"), world_size)
        frame = frame.f_back
    if name is not None:
        raise SettingsError(
            f"{name} shares out what it reads, and this dataset gives each of the {world_size}"
            " ranks its own share already, and each of its workers a part of that, so rows would be"
            " lost",
            remedy=_REMEDY,
        )


def _sharer_of_accelerate(dataset: Any) -> str | None:
    """Name Accelerate's loader that reads this dataset for all ranks, or keeps a part; None if
    there is none.

    Wrappers of the dataset change nothing here, and a forked worker gets the same answer as its
    parent. A loader that is named does not stay Accelerate's active one: its loop ends here.
    """
    states = sys.modules.get("accelerate.state")
    loaders = sys.modules.get("accelerate.data_loader")
    if states is None or loaders is None:
        return None
    active = states.GradientState().active_dataloader
    if isinstance(active, loaders.DataLoaderDispatcher):
        name = "Accelerate's DataLoaderDispatcher (dispatch_batches)"
    elif isinstance(getattr(active, "dataset", None), loaders.IterableDatasetShard):
        name = "accelerate's IterableDatasetShard"
    else:
        return None
    # a loop that was left stays active there, also one over other data
    if not _leads_to(active.dataset, dataset):
        return None
    active.end()
    return name


def _leads_to(wrapper: Any, dataset: Any) -> bool:
    """Tell whether a dataset is somewhere in a wrapper: in its values, or named by its code."""
    seen = {id(wrapper)}
    reachable = [wrapper]
    for value in reachable:
        if value is dataset:
            return True
        if isinstance(value, FunctionType):
            inside = _named_in(value)
        else:
            inside = gc.get_referents(value)
            inside += [_named_in(getattr(type(value), "__iter__", None))]
        for other in inside:
            if id(other) not in seen and not isinstance(other, ModuleType | type):
                seen.add(id(other))
                reachable.append(other)
        if len(reachable) > _MOST_SEARCHED:
            return False
    return False


def _named_in(function: Any) -> list[Any]:
    """Return the values that a function takes from outside: closures, defaults and globals."""
    if not isinstance(function, FunctionType):
        return []
    known = function.__globals__
    named = [known[name] for name in function.__code__.co_names if name in known]
    return [*named, function.__closure__, function.__defaults__, function.__kwdefaults__]


def _sharer(caller: Any, world_size: int) -> str | None:
    """Name the class of a frame's `self` if it keeps only a part of what it reads."""
    caller_type = type(caller)
    library = caller_type.__module__.partition(".")[0]
    # torch tells it the number of ranks, times that of workers
    if library == "torch" and caller_type.__name__ == "ShardingFilterIterDataPipe":
        return "torch's sharding_filter" if caller.num_of_instances > 1 else None
    if world_size == 1:
        return None
    if library in ("accelerate", "transformers") and caller_type.__name__ == "IterableDatasetShard":
        return f"{library}'s IterableDatasetShard"
    # A datasets.IterableDataset keeps its split in a private field, and no public name shows it.
    if library == "datasets" and getattr(caller, "_distributed", None) is not None:
        return "split_dataset_by_node of datasets"
    return None


def report_to_accelerate(batches: Iterator[Given], *, steps: int | None) -> Iterator[Given]:
    """Return the same batches and, if Accelerate is loaded, report number `steps` to it as the
    last. None: not known.

    `accelerator.accumulate` steps the optimizer every few batches, and after the last batch of a
    loader, while `GradientState().end_of_dataloader` is true.
    """
    if "accelerate.data_loader" in sys.modules:
        return _reporting(batches, steps)
    return batches


def _reporting(batches: Iterator[Given], steps: int | None) -> Generator[Given, None, None]:
    reading = _reading_class()()
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
def _reading_class() -> Any:
    """Create the class that represents a pass in Accelerate's list of active loaders."""
    loaders: Any = sys.modules["accelerate.data_loader"]

    class AcceleratePass(loaders.DataLoaderStateMixin):  # type: ignore[misc]  # Accelerate has no types
        def __init__(self) -> None:
            self.gradient_state = loaders.GradientState()

    return AcceleratePass
