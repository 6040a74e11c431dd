"""gluonts' InstanceSplitter over unbroken runs of rows, which come around without end; stacked to torch tensors.

It draws windows, so it promises no number of them. `min_past` and `min_future` keep it from padding.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import torch
from given import Given
from gluonts.dataset.loader import as_stacked_batches
from gluonts.itertools import Cyclic
from gluonts.transform import (
    AddObservedValuesIndicator,
    Chain,
    ExpectedNumInstanceSampler,
    InstanceSplitter,
    SelectFields,
)
from serve import Loader

DRAWN = 8.0  # windows of a series before the next one comes


def loader(given: Given) -> Loader:
    """A series a run; past and future of target and forcing, which of them were observed, and the attributes."""
    series = [
        {
            "item_id": str(number),
            "start": pd.Period("1985-01-01", "D"),
            "target": given.rows[run.begin : run.end, 0].copy(),
            "feat_dynamic_real": given.rows[run.begin : run.end, 1:].T.copy(),
            "feat_static_real": given.static[run.entity],
        }
        for number, run in enumerate(given.runs())
    ]
    cut = InstanceSplitter(
        "target",
        "is_pad",
        "start",
        "forecast_start",
        ExpectedNumInstanceSampler(
            num_instances=DRAWN, min_past=given.input, min_future=given.horizon
        ),
        given.input,
        given.horizon,
        time_series_fields=["feat_dynamic_real", "observed"],
    )
    sides = [
        f"{side}_{name}"
        for side in ("past", "future")
        for name in ("target", "feat_dynamic_real", "observed")
    ]
    names = [*sides, "feat_static_real"]
    steps = Chain([AddObservedValuesIndicator("target", "observed"), cut, SelectFields(names)])
    batches = as_stacked_batches(
        steps.apply(Cyclic(series), is_train=True),
        batch_size=given.batch,
        output_type=torch.tensor,
        field_names=names,
    )

    def seen(batch: dict[str, torch.Tensor]) -> Any:
        target, forcing = (
            np.concatenate([batch[f"{side}_{name}"].numpy() for side in ("past", "future")], axis=1)
            for name in ("target", "feat_dynamic_real")
        )
        return np.concatenate([target[:, :, None], forcing], axis=2)

    return Loader(
        version("gluonts"),
        lambda: iter(batches),
        lambda batch: len(batch["past_target"]),
        seen,
        None,
        "whole",
    )
