"""darts' sequential training data set over unbroken runs of rows, with its own collate function and torch's DataLoader.

It does not look for missing values itself. Its epoch goes as often through every run as the longest has windows, so
windows of short runs repeat; told are the different ones.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from darts import TimeSeries
from darts.utils.data import SequentialTorchTrainingDataset
from darts.utils.data.torch_datasets.utils import _batch_collate_fn_train
from given import Given
from serve import Loader
from torch.utils.data import DataLoader


def loader(given: Given) -> Loader:
    """A series a run; the forcing as future covariates, attributes as static ones."""
    targets, forcing, windows = [], [], 0
    for run in given.runs():
        rows, days = given.rows[run.begin : run.end], pd.RangeIndex(run.end - run.begin)
        attributes = pd.Series(given.static[run.entity], index=given.attributes)
        targets.append(
            TimeSeries.from_times_and_values(days, rows[:, :1], static_covariates=attributes)
        )
        forcing.append(TimeSeries.from_times_and_values(days, rows[:, 1:]))
        windows += len(rows) - given.window + 1
    dataset = SequentialTorchTrainingDataset(
        targets,
        future_covariates=forcing,
        input_chunk_length=given.input,
        output_chunk_length=given.horizon,
    )
    batches = DataLoader(
        dataset, batch_size=given.batch, shuffle=True, collate_fn=_batch_collate_fn_train
    )

    def seen(batch: Any) -> Any:
        target = np.concatenate([batch.past_target.numpy(), batch.future_target.numpy()], axis=1)
        forced = np.concatenate(
            [batch.historic_future_covariates.numpy(), batch.future_covariates.numpy()], axis=1
        )
        return np.concatenate([target, forced], axis=2)

    return Loader(
        version("darts"),
        lambda: iter(batches),
        lambda batch: len(batch.past_target),
        seen,
        windows,
        "whole",
    )
