"""Forecasts of windows as a Parquet file: a row for each window and horizon, in the unit of the target."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import headrace
from headrace.errors import InputError, SettingsError
from headrace.windows import open_windows, write_forecasts
from raised import raised

DAYS = 120
NAMES = ("g0", "g1", "g2")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("forecasts")
    (folder / "raw").mkdir()
    rng, flows = np.random.default_rng(0), {}
    for number, name in enumerate(NAMES):
        flows[name] = 10.0**number * (1 + rng.gamma(2.0, 1.0, DAYS))
        days = np.datetime64("2020-01-01") + np.arange(DAYS)
        frame = pl.DataFrame({"date": days, "flow": flows[name], "rain": rng.gamma(1.0, 2.0, DAYS)})
        frame.write_csv(folder / "raw" / f"{name}.csv")
    asked = headrace.Series(
        source=folder / "raw", target="flow", future_features=["rain"], min_train_years=0.1
    )
    headrace.prepare(asked, folder / "out")
    return folder / "out", flows


@pytest.mark.parametrize("horizons", [None, (1, 4)])
def test_targets_that_are_said_again_come_back_as_they_were(
    prepared, tmp_path: Path, horizons
) -> None:
    out, flows = prepared
    windows = open_windows(out, "test", input_length=5, output_length=4, horizons=horizons)
    batches = [
        windows.batch(range(start, min(start + 7, len(windows))))
        for start in range(0, len(windows), 7)
    ]
    count = write_forecasts(
        tmp_path / "said.parquet", windows, ((batch, batch["y"]) for batch in batches)
    )

    found = pl.read_parquet(tmp_path / "said.parquet")
    steps = [1, 2, 3, 4] if horizons is None else list(horizons)
    assert count == len(found) == len(windows) * len(steps)
    assert ["entity", "issue_time", "horizon", "time", "value"] == found.columns
    assert steps == sorted(found["horizon"].unique())
    assert found.select("entity", "issue_time", "horizon").is_unique().all()
    issued = found["issue_time"].to_numpy().astype("datetime64[D]") - np.datetime64("2020-01-01")
    place = issued.astype(int) + found["horizon"].to_numpy()
    expected = [flows[name][at] for name, at in zip(found["entity"], place.tolist(), strict=True)]
    np.testing.assert_allclose(expected, found["value"], rtol=1e-6)


def test_a_stream_of_tensors_leaves_out_what_only_fills_a_step(prepared, tmp_path: Path) -> None:
    windows = headrace.windows.open(prepared[0], "test", input_length=5, output_length=2)
    stream = windows.stream(batch_size=16, shuffle="none", remainder="pad")
    count = write_forecasts(
        tmp_path / "said.parquet", windows, ((batch, batch["y"]) for batch in stream)
    )

    found = pl.read_parquet(tmp_path / "said.parquet")
    assert (
        len(windows) * 2
        == count
        == len(found)
        == found.select("entity", "issue_time", "horizon").n_unique()
    )


def test_a_forecast_that_is_nan_is_null(prepared, tmp_path: Path) -> None:
    windows = open_windows(prepared[0], "test", input_length=5, output_length=2)
    batch = windows.batch([0, 1])
    write_forecasts(
        tmp_path / "said.parquet", windows, [(batch, np.array([[0.0, np.nan], [0.0, 0.0]]))]
    )

    assert [False, True, False, False] == pl.read_parquet(tmp_path / "said.parquet")[
        "value"
    ].is_null().to_list()


def test_what_cannot_be_written_leaves_no_file(prepared, tmp_path: Path) -> None:
    windows = open_windows(prepared[0], "test", input_length=5, output_length=2)
    path = tmp_path / "said.parquet"
    with raised(SettingsError, setting="forecasts", remedy="give (2, 2)"):
        write_forecasts(path, windows, [(windows.batch([0, 1]), np.zeros((2, 3)))])
    with raised(InputError, remedy="give batches of windows"):
        write_forecasts(path, windows, [])
    assert [] == list(tmp_path.iterdir())
    write_forecasts(path, windows, [(windows.batch([0]), np.zeros((1, 2)))])
    with raised(SettingsError, setting="path", remedy="give another path, or remove it"):
        write_forecasts(path, windows, [(windows.batch([0]), np.zeros((1, 2)))])
