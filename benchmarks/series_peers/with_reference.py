"""The fastest gather we know: all rows in one matrix, one `index_select` on an overlapping view a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from given import Given
from serve import Loader


def loader(given: Given) -> Loader:
    """X, y, future as views of one block, and the attributes."""
    matrix = torch.from_numpy(given.rows)
    width = matrix.shape[1]
    view = matrix.as_strided((len(matrix) - given.window + 1, given.window * width), (width, 1))
    starts, ends = torch.from_numpy(given.starts_all), torch.from_numpy(given.ends)
    static = torch.from_numpy(given.static)

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        for chosen in torch.randperm(len(starts)).split(given.batch):
            first = starts[chosen]
            block = view.index_select(0, first).view(-1, given.window, width)
            entity = torch.searchsorted(ends, first, right=True)
            yield {
                "X": block[:, : given.input, 1:],
                "y": block[:, given.input :, 0],
                "future": block[:, given.input :, 1:],
                "static": static[entity],
            }

    return Loader(
        f"torch {torch.__version__}", batches, lambda batch: len(batch["y"]), whole, len(starts)
    )


def whole(batch: dict[str, torch.Tensor]) -> Any:
    """X, y and future as rows of all columns; the target's past is not delivered."""
    forcing = torch.cat([batch["X"], batch["future"]], dim=1)
    target = torch.full((*forcing.shape[:2], 1), float("nan"))
    target[:, -batch["y"].shape[1] :, 0] = batch["y"]
    return torch.cat([target, forcing], dim=2).numpy()
