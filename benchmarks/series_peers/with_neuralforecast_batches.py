"""neuralforecast with the batches it has by default: 32 series, 1,024 windows of them."""

from __future__ import annotations

from given import Given
from serve import Loader
from with_neuralforecast import loader as of_series


def loader(given: Given) -> Loader:
    """Windows of 32 series are copied before 1,024 of them are drawn."""
    return of_series(given, 32, 1024)
