"""Lightning's side: `HeadraceDataModule`, `SeriesDataModule` and `EpochCallback`. Needs the extra `lightning`."""

from __future__ import annotations

from headrace.errors import MissingExtra

try:  # before what needs torch: this extra brings both
    import lightning.pytorch  # noqa: F401 - what follows imports what it needs of it
except ImportError as error:
    raise MissingExtra("lightning", "lightning") from error

from headrace.series.windows.datamodule import SeriesDataModule
from headrace.stream.loader.lightning import EpochCallback, HeadraceDataModule

__all__ = ["EpochCallback", "HeadraceDataModule", "SeriesDataModule"]
