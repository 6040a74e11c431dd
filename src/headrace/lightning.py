"""Lightning's side: `HeadraceDataModule`, `SeriesDataModule` and `EpochCallback`. Needs the extra `lightning`."""

from __future__ import annotations

from headrace.stream.loader.lightning import EpochCallback, HeadraceDataModule
from headrace.windows.datamodule import SeriesDataModule

__all__ = ["EpochCallback", "HeadraceDataModule", "SeriesDataModule"]
