"""Tells Accelerate where a pass ends, as the loaders that it prepares do.

`accelerator.accumulate` steps the optimizer every few batches, and after the last batch of a loader. It asks the loader
that is being read whether this is the last one. Nothing happens here where Accelerate is not loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

Given = TypeVar("Given")


def told_to_accelerate(batches: Iterator[Given], *, steps: int | None) -> Iterator[Given]:
    """The same batches; while number `steps` is used, `GradientState().end_of_dataloader` is true. None: not known."""
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
