"""Read contexts by position in torch: a map-style dataset for custom samplers.

Needs the extra `torch`.

    dataset = ContextDataset(open_contexts("out", "train"), epochs=3)
    loader = DataLoader(
        dataset, batch_size=32, sampler=range(position, len(dataset)), collate_fn=arrays_of
    )

`Contexts.stream` and `Contexts.torch_dataset` divide an epoch among ranks and resume it; here the
sampler does that. A batch is made at once, and opens each row once. The contexts at given positions
are the same as in Grain and the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from headrace.checks import check_integer
from headrace.errors import MissingExtra
from headrace.histories.contexts.contexts import Contexts
from headrace.item_batch import ItemBatch
from headrace.item_batch import arrays_of as arrays_of

try:
    import torch
    from torch.utils.data import Dataset as TorchDataset
except ImportError as error:
    raise MissingExtra("torch", "torch") from error


class ContextDataset(TorchDataset[dict[str, Any]]):
    """The contexts of `epochs` epochs by position, as int32 tensors [L]: epochs × N contexts, epoch
    0 first.
    """

    def __init__(self, contexts: Contexts, *, epochs: int = 1) -> None:
        check_integer("contexts: epochs", epochs, least=1)
        self.contexts = contexts
        self.epochs = epochs

    def __len__(self) -> int:
        return self.epochs * len(self.contexts)

    def __getitem__(self, position: SupportsIndex) -> dict[str, Any]:
        """Return the context at a position. Raises `IndexError` outside 0..len-1."""
        context: dict[str, Any] = self.__getitems__([position])[0]
        return context

    def __getitems__(self, positions: Sequence[SupportsIndex]) -> ItemBatch:
        """Return the contexts at some positions, in this order; a DataLoader calls it once per
        batch.
        """
        outside = []
        for position in positions:
            if not 0 <= int(position) < len(self):
                outside.append(int(position))
        if outside:
            raise IndexError(f"context {outside[0]} of {len(self)}, counted from 0")
        arrays = {
            name: torch.from_numpy(array) for name, array in self.contexts.batch(positions).items()
        }
        return ItemBatch(arrays, len(positions), what="context")
