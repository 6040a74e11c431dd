"""Lightning's side of a stream: `HeadraceDataModule` and `EpochCallback`. Needs the extra `lightning`."""

from __future__ import annotations

from headrace.stream.lightning import EpochCallback, HeadraceDataModule

__all__ = ["EpochCallback", "HeadraceDataModule"]
