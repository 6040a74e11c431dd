"""Provide windows for torch as a map-style dataset and as a stream. Needs the extra `torch`.

    train = headrace.windows.open("out", "train", input_length=365, output_length=7)
    for batch in train.stream(batch_size=256, seed=0): ...  # every window once over all ranks
    loader = DataLoader(train, batch_size=256, shuffle=True, collate_fn=arrays_of)  # or so

A batch is one gather in this process. Worker processes are slower, because their batches are copied
once more to get here.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex, Unpack

from headrace.errors import MissingExtra
from headrace.item_batch import ItemBatch
from headrace.item_batch import arrays_of as arrays_of
from headrace.series.windows.loader import WindowLoader, WindowStreamArguments, as_tensors
from headrace.series.windows.windows import WindowCounts, Windows, check_some, open_windows

try:
    import torch
    from torch.utils.data import Dataset as TorchDataset
    from torch.utils.data import get_worker_info
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

SLOWER_WORKERS = (
    "windows are gathered at the speed of memory; worker processes copy them once more and are"
    " several times slower: leave num_workers at 0"
)


class WindowDataset(TorchDataset[dict[str, Any]]):
    """The windows of a split by number, as tensors; use `stream` for ordering, ranks, chunks and
    resuming.

    One window has X [L, F], y [horizons] and the other arrays of `Windows.gather`, without the
    first axis; dates are int64 microseconds. Picklable: worker processes map the same store.
    """

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._warned = False

    def __len__(self) -> int:
        """Number of all windows."""
        return len(self.windows)

    @property
    def counts(self) -> WindowCounts:
        """Count the windows, and name the entities of the run that have none."""
        return self.windows.counts

    def __getitem__(self, number: SupportsIndex) -> dict[str, Any]:
        """Return one window. Raises `IndexError` outside 0..len-1."""
        window: dict[str, Any] = self.__getitems__([number])[0]
        return window

    def __getitems__(self, numbers: Sequence[SupportsIndex]) -> ItemBatch:
        """Return the windows with these numbers, in this order; a DataLoader calls it once per
        batch.
        """
        if not self._warned and get_worker_info() is not None:
            self._warned = True
            warnings.warn(SLOWER_WORKERS, UserWarning, stacklevel=2)
        return ItemBatch(
            as_tensors(self.windows.batch(numbers), torch), len(numbers), what="window"
        )

    def stream(self, *, batch_size: int, **options: Unpack[WindowStreamArguments]) -> WindowLoader:
        """Stream batches for this rank, each with the arrays of `Windows.gather`; options: see
        `WindowLoader`.

        Raises `SettingsError` for settings that cannot work, and `InputError`, with the reason, if
        there are no windows.
        """
        check_some(self.windows)
        return WindowLoader(self.windows, batch_size=batch_size, **options)


def open_dataset(path: str | Path, split: str = "train", **options: Any) -> WindowDataset:
    """Open the windows of a split of prepared series for torch; the options are those of
    `open_windows`.
    """
    return WindowDataset(open_windows(path, split, **options))
