"""A stream that is given to Lightning as it is resumes inside an epoch, and the epoch keeps its length."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="needs lightning")

import torch
from lightning.pytorch import LightningModule, Trainer
from torch_cases import ROWS, dataset_of, real_rows
from wrapper_cases import stream_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
]


class Seen(LightningModule):
    """Records the number and rows of each batch, and saves a checkpoint after some batches of the first epoch."""

    def __init__(self, path: Path, stop: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows: list[tuple[int, list[int]]] = []
        self._path = path
        self._stop = stop

    def training_step(self, batch: Any, number: int) -> Any:
        self.rows.append((number, real_rows(batch)))
        return self.layer(batch["row"][:, None].float()).mean() * 0

    def on_train_batch_end(self, *_results: Any) -> None:
        if len(self.rows) == self._stop:
            self.trainer.save_checkpoint(self._path)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def loader_of() -> Any:
    """The loader of a dataset, whose batches are those of the stream."""
    return dataset_of(0, shuffle_rows=None).data_loader()


def fit(
    path: Path,
    *,
    stop: int,
    resumed: bool = False,
    accumulated: int = 1,
    made: Callable[[], Any] = stream_of,
) -> Seen:
    model = Seen(path, stop)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=accumulated,
    )
    trainer.fit(model, train_dataloaders=made(), ckpt_path=path if resumed else None)
    return model


@pytest.mark.parametrize(
    ("stop", "accumulated"),
    [(5, 1), (5, 2), (33, 1), *(pytest.param(n, 1, marks=pytest.mark.slow) for n in (1, 16, 32))],
)
def test_the_rest_of_an_epoch_is_read_to_its_end(
    tmp_path: Path, stop: int, accumulated: int
) -> None:
    path = tmp_path / "middle.ckpt"
    whole = fit(path, stop=stop, accumulated=accumulated).rows
    after = fit(path, stop=-1, resumed=True, accumulated=accumulated).rows
    assert whole[stop:] == after
    assert stop < 33 or whole[32][0] == 32  # the last batch of the first epoch
    assert sorted(row for _, rows in whole for row in rows) == sorted(2 * list(range(sum(ROWS))))


@pytest.mark.parametrize("stop", [5, 33])
def test_the_loader_of_a_dataset_goes_on_too(tmp_path: Path, stop: int) -> None:
    path = tmp_path / "middle.ckpt"
    whole = fit(path, stop=stop, made=loader_of).rows
    after = fit(path, stop=-1, resumed=True, made=loader_of).rows
    assert whole[stop:] == after
