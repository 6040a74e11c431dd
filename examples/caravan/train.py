"""Rainfall to streamflow: an LSTM on several basins, trained by Lightning on two ranks.

    python examples/caravan/train.py [--data DIR] [--ranks 2] [--epochs 8] [--out out/caravan] [--small]

Three catchments of a package, with 30, 9 and 4 years of days; or, with --data, five basins of Caravan, whose files
differ in columns and period and whose streamflow is missing at both ends and inside. `headrace.Series` cleans, splits
by time and scales them by what trains alone; the data module then gives windows of a year and the week behind it. The
test period's predictions are brought back to millimetres a day and judged by the Nash–Sutcliffe efficiency of each
basin: 1 is perfect, 0 is no better than the basin's mean.
"""

from __future__ import annotations

import argparse
import gc
import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sources import series_of
from torch import nn

from headrace.errors import MissingExtra
from headrace.lightning import SeriesDataModule
from headrace.report.write import write_report

Flows = tuple[np.ndarray, np.ndarray, np.ndarray]  # days, observed, predicted; [N]


class Rainfall(LightningModule):
    """An LSTM over the forcing of the past and of the days to come, with the basin's attributes at every step."""

    def __init__(self, inputs: int, attributes: int, width: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(inputs + attributes, width, batch_first=True)
        self.out = nn.Linear(width, 1)
        self.tested: list[tuple[torch.Tensor, ...]] = []
        self.rows: dict[str, np.ndarray] = {}

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        forcing_BTF = torch.cat([batch["X"], batch["future"]], dim=1)
        static_BTS = batch["static"][:, None].expand(-1, forcing_BTF.shape[1], -1)
        hidden, _ = self.cells(torch.cat([forcing_BTF, static_BTS], dim=2))
        return self.out(hidden[:, -batch["future"].shape[1] :])[..., 0]

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The mean over real windows: a rank may have none in the last step, and 0 of 0 would be no number."""
        loss_BH = nn.functional.mse_loss(self(batch), batch["y"], reduction="none")
        return (loss_BH.mean(dim=1) * batch["valid"]).sum() / batch["valid"].sum().clamp(min=1)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.log("val_loss", self.loss(batch), batch_size=int(batch["valid"].sum()), sync_dist=True)

    def test_step(self, batch: dict[str, torch.Tensor]) -> None:
        given = (batch[name] for name in ("entity", "input_end_date", "valid", "y"))
        self.tested.append((*given, self(batch)))

    def on_test_epoch_end(self) -> None:
        """Every rank's windows on every rank: batches are padded, so all have the same number."""
        names = ("entity", "input_end_date", "valid", "observed", "predicted")
        for name, parts in zip(names, zip(*self.tested, strict=True), strict=True):
            part = torch.cat(parts)
            self.rows[name] = self.all_gather(part).reshape(-1, *part.shape[1:]).cpu().numpy()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def efficiency(observed: np.ndarray, predicted: np.ndarray) -> float:
    """The Nash–Sutcliffe efficiency: 1 minus the squared error's share of the observations' variance."""
    return float(
        1 - np.square(observed - predicted).sum() / np.square(observed - observed.mean()).sum()
    )


def judge(
    module: SeriesDataModule, rows: dict[str, np.ndarray]
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Per basin the day, observed and predicted flow in mm/d, one step ahead, in order of time."""
    real = rows["valid"]
    entity, end = rows["entity"][real], rows["input_end_date"][real]
    flows = [
        module.inverse_transform(rows[name][real], entity)[:, 0]
        for name in ("observed", "predicted")
    ]
    found = {}
    for number in np.unique(entity):
        mine = np.flatnonzero(entity == number)
        mine = mine[np.argsort(end[mine])]
        days = end[mine].view("datetime64[us]").astype("datetime64[D]") + np.timedelta64(1, "D")
        (name,) = module.windows("test").entity_names([number])
        found[name] = (days, *(each[mine] for each in flows))
    return found


def draw(basins: dict[str, Flows], path: Path) -> None:
    """The hydrograph of the last two years of every basin's test period."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: it needs matplotlib, which is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(basins), 1, figsize=(10, 2.2 * len(basins)), layout="constrained"
    )
    for axis, (name, (days, observed, predicted)) in zip(
        np.atleast_1d(axes), sorted(basins.items()), strict=True
    ):
        last = days > days[-1] - 730
        axis.plot(days[last], observed[last], color="black", linewidth=0.8, label="observed")
        axis.plot(days[last], predicted[last], color="tab:blue", linewidth=0.9, label="predicted")
        axis.set_title(f"{name}: NSE {efficiency(observed, predicted):.2f}", fontsize=9, loc="left")
        axis.set_ylabel("mm/d", fontsize=8)
    np.atleast_1d(axes)[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    print(f"hydrographs: {path}")


def main() -> None:
    """Prepare, train, test, judge, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data",
        type=Path,
        help="a directory of Caravan's basins, instead of the package's catchments",
    )
    parser.add_argument("--out", type=Path, default=Path("out/caravan"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--small", action="store_true", help="short windows, few of them: a minute becomes seconds"
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)

    out = arguments.out / ("catchments" if arguments.data is None else "basins")
    series = series_of(arguments.data, arguments.out / "raw")
    module = SeriesDataModule(
        series,
        out=out,
        input_length=60 if arguments.small else 365,
        output_length=3 if arguments.small else 7,
        batch_size=128,
        validation="time",
        chunk_size=3,
        options={"stride": 16 if arguments.small else 4, "history": "preceding"},
    )
    model = Rainfall(
        len(series.feature_names), len(series.static_features), 16 if arguments.small else 48
    )
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
    train = module.windows("train")
    print(
        f"{len(train):,} training windows of {int((train.per_entity > 0).sum())} basins, 3 basins an epoch"
    )
    print(f"{arguments.epochs} epochs on {arguments.ranks} rank(s), validation loss {loss:.3f}")
    basins = judge(module, model.rows)
    for name, (days, observed, predicted) in sorted(basins.items()):
        print(
            f"{name:<16}{days[0]} .. {days[-1]}{len(days):>7,} windows   NSE {efficiency(observed, predicted):6.3f}"
        )
    draw(basins, out / "hydrographs.png")
    try:
        print(f"report: {write_report(out)}")
    except MissingExtra as error:
        print(f"no report: {error}")


if __name__ == "__main__":
    main()
