"""Lightning's side: `HeadraceDataModule`, `SeriesDataModule` and `EpochCallback`. Needs the extra `lightning`."""

from __future__ import annotations

from headrace.series.windows.datamodule import SeriesDataModule
from headrace.stream.loader.lightning import EpochCallback, HeadraceDataModule

__all__ = ["EpochCallback", "HeadraceDataModule", "SeriesDataModule"]
