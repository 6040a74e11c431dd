"""Keep a batch of items for a torch DataLoader as arrays; single items are made only on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ItemBatch(Sequence[dict[str, Any]]):
    """Items of one batch, as `arrays` (tensors whose first axis is B) or one by one, as
    default_collate reads them.

    what: the word for an item in messages.
    """

    def __init__(self, arrays: dict[str, torch.Tensor], count: int, *, what: str) -> None:
        self.arrays = arrays
        self._count = count
        self._what = what

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        """Return one item, as tensors without the first axis."""
        if not -self._count <= number < self._count:
            raise IndexError(f"{self._what} {number} of a batch of {self._count}")
        return {name: array[number] for name, array in self.arrays.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(self._count))


def arrays_of(batch: ItemBatch) -> dict[str, torch.Tensor]:
    """Return a batch as tensors, for DataLoader(collate_fn=arrays_of), without splitting and
    stacking items.
    """
    return batch.arrays
