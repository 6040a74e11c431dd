"""pytorch-forecasting's TimeSeriesDataSet over unbroken runs of rows, as it refuses missing values, and its DataLoader.

Its own scaling is switched off. It repeats the attributes at every step of a window.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from given import Given
from pytorch_forecasting import TimeSeriesDataSet
from serve import Loader

TARGET = "streamflow"


def loader(given: Given) -> Loader:
    """A group a run."""
    frames = []
    for number, run in enumerate(given.runs()):
        frame = pd.DataFrame(given.rows[run.begin : run.end], columns=[TARGET, *given.features])
        frame[given.attributes] = given.static[run.entity]
        frames.append(frame.assign(run=number, step=np.arange(len(frame))))
    dataset = TimeSeriesDataSet(
        pd.concat(frames, ignore_index=True),
        time_idx="step",
        target=TARGET,
        group_ids=["run"],
        min_encoder_length=given.input,
        max_encoder_length=given.input,
        min_prediction_length=given.horizon,
        max_prediction_length=given.horizon,
        time_varying_known_reals=given.features,
        static_reals=given.attributes,
        target_normalizer=None,
        scalers=dict.fromkeys([*given.features, *given.attributes]),
    )
    batches = dataset.to_dataloader(train=True, batch_size=given.batch, num_workers=0)
    places = [dataset.reals.index(name) for name in given.features]

    def seen(batch: Any) -> Any:
        x = batch[0]
        target = np.concatenate([x["encoder_target"].numpy(), x["decoder_target"].numpy()], axis=1)
        forcing = np.concatenate([x["encoder_cont"].numpy(), x["decoder_cont"].numpy()], axis=1)[
            :, :, places
        ]
        return np.concatenate([target[:, :, None], forcing], axis=2)

    return Loader(
        version("pytorch-forecasting"),
        lambda: iter(batches),
        lambda batch: len(batch[0]["decoder_target"]),
        seen,
        len(dataset),
        "whole",
    )
