"""headrace's own stream from the mapped store."""

from __future__ import annotations

from given import Given
from serve import Loader
from with_reference import whole

import headrace
import headrace.windows


def loader(given: Given) -> Loader:
    """As `headrace.windows.open` gives them."""
    train = headrace.windows.open(
        given.run, "train", input_length=given.input, output_length=given.horizon, verify="never"
    )
    stream = train.stream(batch_size=given.batch)
    return Loader(
        headrace.__version__,
        lambda: iter(stream),
        lambda batch: len(batch["y"]),
        whole,
        len(train.windows),
    )
