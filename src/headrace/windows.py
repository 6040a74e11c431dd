"""Windows of prepared series: which, in which order, for which rank; as torch tensors or numpy
arrays.

import headrace.windows

train = headrace.windows.open("out", "train", input_length=365, output_length=7)
for batch in train.stream(batch_size=256, seed=0):
    batch["X"], batch["y"], batch["static"], batch["future"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.series.forecasting import ForecastWindows, forecast
from headrace.series.windows.forecasts import write_forecasts
from headrace.series.windows.windows import WindowCounts, WindowOptions, Windows, open_windows

if TYPE_CHECKING:
    from headrace.series.windows.torch import WindowDataset, arrays_of
    from headrace.series.windows.torch import (
        open_dataset as open,  # noqa: A004 - the name of what it does, as headrace.open
    )

_IN_TORCH = {"WindowDataset": "WindowDataset", "arrays_of": "arrays_of", "open": "open_dataset"}

__all__ = [
    "ForecastWindows",
    "WindowCounts",
    "WindowDataset",
    "WindowOptions",
    "Windows",
    "arrays_of",
    "forecast",
    "open",
    "open_windows",
    "write_forecasts",
]


def __getattr__(name: str) -> Any:
    if name not in _IN_TORCH:
        raise AttributeError(f"module 'headrace.windows' has no attribute {name!r}")
    from headrace.series.windows import torch

    return getattr(torch, _IN_TORCH[name])
