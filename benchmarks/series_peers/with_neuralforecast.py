"""neuralforecast: whole series are a batch, and the training step of a model unfolds and samples windows of them.

Asked are its own data module and the two methods that its training step calls: one series a step here, so that windows
stay a view, and `with_neuralforecast_batches` has its default of 32. `available_mask` and the threshold keep
windows out that miss a value.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import torch
from given import Given
from neuralforecast.models import NHITS
from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset
from serve import Loader


def loader(given: Given, series: int = 1, windows: int | None = None) -> Loader:
    """series: of a step; windows: drawn from them, by default as many as our batch has."""
    logging.disable(logging.WARNING)
    dataset = _dataset(given)
    model = NHITS(
        h=given.horizon,
        input_size=given.input,
        futr_exog_list=given.features,
        stat_exog_list=given.attributes,
        max_steps=1,
        scaler_type="identity",
        batch_size=series,
        windows_batch_size=windows or given.batch,
        training_data_availability_threshold=1.0,
    )
    model.val_size = model.test_size = 0
    module = TimeSeriesDataModule(dataset, batch_size=series, shuffle_train=True)

    def batches() -> Iterator[dict[str, Any]]:
        for batch in module.train_dataloader():
            temporal, static, static_names, there, weights, names = model._create_windows(
                batch, step="train"
            )
            picked = torch.randperm(len(there))[: model.windows_batch_size]
            yield model._sample_windows(
                temporal, static, static_names, names, picked, there, weights
            )

    def seen(batch: dict[str, Any]) -> Any:
        return batch["temporal"][:, :, : 1 + len(given.features), 0].numpy()

    whole = sum(
        _windows(model, batch)
        for batch in TimeSeriesDataModule(dataset, batch_size=1).train_dataloader()
    )
    return Loader(
        version("neuralforecast"),
        batches,
        lambda batch: len(batch["temporal"]),
        seen,
        whole,
        "whole",
    )


def _windows(model: Any, batch: Any) -> int:
    return len(model._create_windows(batch, step="train")[3])


def _dataset(given: Given) -> Any:
    counts = given.ends - given.begins
    values = pd.DataFrame(np.nan_to_num(given.rows), columns=["y", *given.features])
    values.insert(0, "unique_id", np.repeat(np.arange(len(counts)), counts))
    values.insert(1, "ds", np.concatenate([np.arange(count) for count in counts]))
    values["available_mask"] = (~np.isnan(given.rows).any(axis=1)).astype(np.float32)
    static = pd.DataFrame(given.static, columns=given.attributes)
    static.insert(0, "unique_id", np.arange(len(counts)))
    return TimeSeriesDataset.from_df(values, static_df=static)[0]
