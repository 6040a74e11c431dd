"""From raw files to a trained model in `init`, `run` and one loop: energy by local clocks, shops, gauges by dates."""

from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import headrace
import headrace.windows
from commands import headrace as command

pd = pytest.importorskip("pandas", reason="needs pandas")
torch = pytest.importorskip("torch", reason="needs torch")

CARAVAN = Path(__file__).parents[4] / "shared/data/job4-caravan"


def first_run(
    tmp_path: Path, source: Path, target: str, *flags: object, **settings: object
) -> Path:
    """Run what `init` writes; return the output directory."""
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    asked = command(
        "init", "series", source, "--target", target, "--out", out, "--config", config, *flags
    )
    assert asked.returncode == 0, asked.stderr
    done = command(
        "run",
        config,
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    )
    assert done.returncode == 0, done.stderr
    assert headrace.verify(out).problems == []
    return out


def trained(out: Path, **shape: object) -> tuple[float, float]:
    """Train an LSTM for an epoch; return the loss of the first and of the last batches."""
    torch.manual_seed(0)
    windows = headrace.windows.open(out, "train", **shape)
    lstm = torch.nn.LSTM(len(windows.windows.input_names), 8, batch_first=True)
    head = torch.nn.Linear(
        8 + len(windows.windows.future_names) * shape["output_length"], shape["output_length"]
    )
    optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=0.02)
    losses = []
    for batch in windows.stream(batch_size=32, seed=0):
        states, _ = lstm(batch["X"])
        said = head(torch.cat([states[:, -1], batch["future"].flatten(1)], dim=1))
        loss = (said - batch["y"])[batch["valid"]].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses[:5])), float(np.mean(losses[-5:]))


@pytest.mark.slow
def test_energy_by_the_clocks_of_a_zone(tmp_path: Path) -> None:
    times = pd.date_range("2021-09-01", "2022-04-30 23:00", freq="h", tz="Europe/Berlin")
    draw, raw = np.random.default_rng(0), {}
    (tmp_path / "meters").mkdir()
    for name in ("home", "shop"):
        load = 5 + 2 * np.sin(times.hour * np.pi / 12) + draw.normal(0, 0.2, len(times))
        raw[name] = pd.DataFrame(
            {
                "time": times.strftime("%Y-%m-%d %H:%M"),
                "load": load,
                "warmth": draw.random(len(times)),
            }
        )
        raw[name].to_csv(tmp_path / f"meters/{name}.csv", index=False)
    out = first_run(tmp_path, tmp_path / "meters", "load", "--time-zone", "Europe/Berlin")
    before, after = trained(out, input_length=48, output_length=24, is_autoregressive=True)
    windows = headrace.windows.open_windows(
        out, "test", input_length=48, output_length=24, is_autoregressive=True
    )
    batch = windows.batch(range(len(windows)))
    worst = 0.0
    for name, table in raw.items():
        own = table.set_index(
            pd.DatetimeIndex(table["time"]).tz_localize("Europe/Berlin", ambiguous="infer")
        )
        own = own[["load", "warmth"]].tz_convert("UTC").tz_localize(None)
        train = own.iloc[: int(0.6 * len(own))]
        scaled = (own - train.mean()) / train.std(ddof=0)
        for at in np.flatnonzero(np.array(windows.entity_names(batch["entity"])) == name)[::50]:
            end = pd.Timestamp(batch["input_end_date"][at])
            inputs = scaled.loc[end - pd.Timedelta("47h") : end].to_numpy()
            worst = max(worst, float(np.abs(inputs - batch["X"][at]).max()))

    assert after < before
    assert worst < 1e-6
    assert {2} == set(
        table["time"].value_counts()[lambda counts: counts > 1]
    )  # the clocks did change


def test_shops_with_promotions_that_are_known(tmp_path: Path) -> None:
    draw, rows = np.random.default_rng(0), []
    for item in ("cup", "lamp", "bag"):
        for day in range(400 + 14):
            promotion = int(day % 9 == 0)
            known = (int(draw.poisson(5 + 4 * promotion)), 2.5) if day < 400 else (None, None)
            rows.append((item, date(2023, 1, 1).toordinal() + day, *known, promotion))
    table = pl.DataFrame(rows, ["item", "day", "sold", "price", "promotion"], orient="row")
    days = table["day"] - date(1970, 1, 1).toordinal()
    table.with_columns(
        date=days.cast(pl.Int32).cast(pl.Date), price=pl.col("price") + draw.random(len(table))
    ).drop("day").write_csv(tmp_path / "sales.csv")
    out = first_run(tmp_path, tmp_path / "sales.csv", "sold")
    before, after = trained(out, input_length=28, output_length=14)
    ahead = headrace.windows.open_windows(
        out, "test", input_length=28, output_length=14, targets="none", history="preceding"
    )
    batch = ahead.batch(range(len(ahead)))
    last = batch["input_end_date"] == batch["input_end_date"].max()
    expected = [int(day % 9 == 0) for day in range(400, 414)]

    assert ahead.future_names == ("promotion",)
    assert after < before
    assert np.datetime64("2024-02-04") == batch["input_end_date"].max()
    for future in batch["future"][last, :, 0]:
        assert expected == (future > 0).astype(int).tolist()


@pytest.mark.skipif(not CARAVAN.is_dir(), reason="needs shared/data")
def test_gauges_with_common_dates(tmp_path: Path) -> None:
    dates = {"train_end": "2015-10-01", "val_end": "2017-10-01"}
    out = first_run(tmp_path, CARAVAN / "timeseries", "streamflow", **dates, min_train_years=1)
    before, after = trained(out, input_length=90, output_length=3)
    check = next(each for each in headrace.verify(out).checks if each.name == "calendar time")

    assert "no two splits share any, whatever the entity" == check.detail
    assert after < before
