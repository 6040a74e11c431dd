"""A list of items for a torch DataLoader that is arrays of all: an item is made only for who asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class ItemBatch(Sequence[dict[str, Any]]):
    """Items of one batch: `arrays`, tensors whose first axis is B; or single items, as default_collate reads them.

    what: an item is called so in messages.
    """

    def __init__(self, arrays: dict[str, torch.Tensor], count: int, *, what: str) -> None:
        self.arrays = arrays
        self._count = count
        self._what = what

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        """One item, as tensors without the first axis."""
        if not -self._count <= place < self._count:
            raise IndexError(f"{self._what} {place} of a batch of {self._count}")
        return {name: array[place] for name, array in self.arrays.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(self._count))


def arrays_of(batch: ItemBatch) -> dict[str, torch.Tensor]:
    """A batch as tensors, for DataLoader(collate_fn=arrays_of): nothing is taken apart and stacked."""
    return batch.arrays
