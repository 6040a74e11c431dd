"""A DataLoader that would put batches together to batches of batches."""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch.utils.data import default_collate

from headrace.errors import SettingsError


def refuse_batches_of_batches(caller: FrameType | None, batch_size: int, name: str) -> None:
    """Raise `SettingsError` where a DataLoader with a batch_size of its own begins to read a dataset of batches.

    caller: the frame that asks the dataset for an iterator, which is a method of the DataLoader's fetcher, here or in a
    worker; nothing else tells a dataset how it is read. A collate_fn other than torch's own knows what it is given.
    """
    fetcher: Any = None if caller is None else caller.f_locals.get("self")
    if getattr(fetcher, "auto_collation", False) is True and getattr(fetcher, "collate_fn", None) is default_collate:
        raise SettingsError(
            f"DataLoader: has a batch_size of its own, and {name} gives whole batches of {batch_size} rows, which it"
            f" would stack to batches of batches; pass DataLoader(dataset, batch_size=None, …)"
        )
