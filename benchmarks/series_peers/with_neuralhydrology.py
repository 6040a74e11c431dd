"""neuralhydrology's GenericDataset over netCDF files of the same rows, its own collate function, torch's DataLoader.

It takes a window if some target of the horizon is there, not all. It scales by itself; what is compared is scaled back.
"""

from __future__ import annotations

import pickle
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from given import Given
from neuralhydrology.datasetzoo.genericdataset import GenericDataset
from neuralhydrology.utils.config import Config
from serve import Loader
from torch.utils.data import DataLoader

TARGET = "streamflow"


def loader(given: Given) -> Loader:
    """One sample is seq_length days, of which the model is asked for the last ones."""
    root = given.folder / "neuralhydrology"
    _write(given, root)
    settings = {
        "experiment_name": "series",
        "dataset": "generic",
        "data_dir": str(root),
        **{
            f"{each}_basin_file": str(root / "basins.txt")
            for each in ("train", "validation", "test")
        },
        "per_basin_train_periods_file": str(root / "periods.p"),
        "run_dir": str(root / "run"),
        "train_dir": str(root / "run" / "train_data"),
        "dynamic_inputs": given.features,
        "target_variables": [TARGET],
        "static_attributes": given.attributes,
        "seq_length": given.window,
        "predict_last_n": given.horizon,
        "loss": "MSE",
        "model": "cudalstm",
        "head": "regression",
        "device": "cpu",
        "verbose": 0,
    }
    dataset = GenericDataset(cfg=Config(settings), is_train=True, period="train")
    batches = DataLoader(
        dataset, batch_size=given.batch, shuffle=True, collate_fn=dataset.collate_fn
    )

    def seen(batch: dict[str, Any]) -> Any:
        names = [TARGET, *given.features]
        own = [batch["y"][..., 0], *(batch["x_d"][name][..., 0] for name in given.features)]
        scale, center = (
            np.array([float(dataset.scaler[f"xarray_feature_{what}"][name]) for name in names])
            for what in ("scale", "center")
        )
        return np.stack([each.numpy() for each in own], axis=-1) * scale + center

    return Loader(
        version("neuralhydrology"),
        lambda: iter(batches),
        lambda batch: len(batch["y"]),
        seen,
        len(dataset),
        "any",
    )


def _write(given: Given, root: Path) -> None:
    """Files as that data set expects them; the first window of a basin begins at its first row."""
    for name in ("time_series", "attributes", "run/train_data"):
        (root / name).mkdir(parents=True, exist_ok=True)
    periods = {}
    for name, begin, end in zip(
        given.names, given.begins.tolist(), given.ends.tolist(), strict=True
    ):
        days = pd.date_range("1985-01-01", periods=end - begin, freq="D", name="date")
        frame = pd.DataFrame(given.rows[begin:end], index=days, columns=[TARGET, *given.features])
        frame.to_xarray().to_netcdf(root / "time_series" / f"{name}.nc")
        periods[name] = {
            "start_dates": [days[min(given.input, len(days) - 1)]],
            "end_dates": [days[-1]],
        }
    static = pd.DataFrame(
        given.static, index=pd.Index(given.names, name="gauge_id"), columns=given.attributes
    )
    static.to_csv(root / "attributes" / "attributes.csv")
    (root / "basins.txt").write_text("".join(f"{name}\n" for name in given.names))
    (root / "periods.p").write_bytes(pickle.dumps(periods))
