"""Train with Lightning: data modules over a dataset directory, and a callback for your own loaders.

    module = HeadraceDataModule("out", batch_size=256, num_workers=2)
    Trainer(strategy="ddp", devices=2).fit(model, datamodule=module)
    # the rest of that epoch, then on
    Trainer(strategy="ddp", devices=4).fit(model, datamodule=module, ckpt_path="last.ckpt")

The epoch is read with the first batch of a pass, because Lightning makes iterators before it sets
the epoch. The position counts the batches that the training loop received, so prefetching workers
do not move it. On the same topology, a resumed run gets the batches of the uninterrupted run. After
a stop in the middle of a round of worker processes, it gets the same remaining rows in other
batches. The loaders are not `DataLoader`s, so Lightning adds no sampler: the stream alone decides
what a rank reads. `SeriesDataModule` serves windows of series. Needs the extra `lightning`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import MissingExtra

try:  # before what needs torch: this extra brings both
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingExtra("lightning", "lightning") from error

from headrace.series.windows.datamodule import SeriesDataModule
from headrace.stream.loader.dataset import Dataset, open_dataset
from headrace.stream.loader.options import StreamArguments
from headrace.stream.loader.resumed import CountedLoader, ResumedModule
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.loader.watched_loader import WatchedLoader
from headrace.stream.read.batch import Batch
from headrace.stream.workers.parcel import whole_batch

__all__ = ["EpochCallback", "HeadraceDataModule", "SeriesDataModule"]


class PassLoader(CountedLoader[StreamingDataset]):
    """A loader that makes one pass over a dataset per iteration."""

    def __iter__(self) -> Iterator[Batch]:
        if self._trainer is not None:
            # the same batches again and again
            if self._trainer.overfit_batches and (self._begun or self.ended):
                self.stream.load_state_dict(self.stream.epoch_start())
                self.begin()
            else:
                self.stream.set_epoch(self.begin())
        workers = self.stream.num_workers
        yield from WatchedLoader(
            self.stream, batch_size=None, num_workers=workers, collate_fn=whole_batch
        )

    def follow(self) -> None:
        """Set the dataset to the epoch of the next pass, so that its length is known."""
        if self._trainer is not None:
            self.stream.set_epoch(self.next_epoch())


class HeadraceDataModule(ResumedModule[PassLoader]):
    """Train, validate and test on the splits of a dataset directory, every row once per epoch over
    all ranks.

    path: as for `headrace.open`. batch_size: rows in a batch of one rank; val_batch_size: the same
    outside training, default batch_size. Validation and testing are unshuffled and padded, with
    batch["valid"] false on padding rows. num_workers: worker processes of each loader; 0 for
    threads of the training process. columns: None for all. options: others of the training stream,
    see `StreamOptions`. The first loader that is made raises `SettingsError` and `InputError`.
    """

    def __init__(  # noqa: PLR0913 - all are settings
        self,
        path: str | Path,
        *,
        batch_size: int,
        num_workers: int = 0,
        val_batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        columns: Sequence[str] | None = None,
        run: str | None = None,
        options: StreamArguments | None = None,
    ) -> None:
        super().__init__()
        self.path = Path(path)
        self.batch_size = batch_size
        if val_batch_size is None:
            self.val_batch_size = batch_size
        else:
            self.val_batch_size = val_batch_size
        self.num_workers = num_workers
        self._train_options: StreamArguments = {
            **(options or {}),
            "shuffle": shuffle,
            "seed": seed,
            "columns": columns,
        }
        self._run = run
        self._opened: Dataset | None = None

    @property
    def dataset(self) -> Dataset:
        """The opened dataset directory."""
        if self._opened is None:
            self._opened = open_dataset(self.path, run=self._run)
        return self._opened

    def train_dataloader(self) -> PassLoader:
        """Return the training stream, from a loaded position if there is one, else from the start
        of the epoch.
        """
        dataset = self._stream("train", self.batch_size, self._train_options)
        earlier = self._train
        if self._loaded is not None:
            dataset.load_state_dict(self._loaded["stream"])
            self._train = PassLoader(dataset, self.trainer)
            # its length stays that of the loaded epoch, as Lightning's counters do
            self._train.resumed(self._loaded)
            self._train.count_anew()
            self._loaded = None
        else:
            self._train = PassLoader(dataset, self.trainer)
            if earlier is not None:  # the order stays that of the first loader
                dataset.load_state_dict(earlier.stream.epoch_start())
                self._train.begin_after(earlier)
            self._train.follow()
        differ = self._train_options.get("pack") is not None  # every epoch has bins of its own
        if dataset.partial_epoch and not differ:
            differ = len(self._stream("train", self.batch_size, self._train_options)) != len(
                self._train
            )
        self._ask_lengths_again(differ=differ)
        return self._train

    def val_dataloader(self) -> PassLoader | list[PassLoader]:
        """Return the validation split in order, or [] if there is none."""
        return self._evaluation("val")

    def test_dataloader(self) -> PassLoader | list[PassLoader]:
        """Return the test split in order, or [] if there is none."""
        return self._evaluation("test")

    predict_dataloader = test_dataloader

    def _evaluation(self, split: str) -> PassLoader | list[PassLoader]:
        if self.dataset.split_named(split) is None:
            return []
        options: StreamArguments = {"columns": self._train_options["columns"], "remainder": "pad"}
        if "drop_columns" in self._train_options:
            options["drop_columns"] = self._train_options["drop_columns"]
        if "packed" in self._train_options:
            options["packed"] = self._train_options["packed"]
        if "pack" in self._train_options:
            options["pack"] = self._train_options["pack"]
        return PassLoader(self._stream(split, self.val_batch_size, options), None)

    def _stream(self, split: str, batch_size: int, options: StreamArguments) -> StreamingDataset:
        return self.dataset.torch_dataset(
            split,
            batch_size=batch_size,
            num_workers=self.num_workers,
            topology=self._topology(),
            **options,
        )


class EpochCallback(Callback):
    """Tells datasets the epoch before each pass begins, for a trainer that has loaders of its own
    over them.

    datasets: whatever has `set_epoch`: one, or several.
    """

    def __init__(self, datasets: Any) -> None:
        super().__init__()
        if isinstance(datasets, list | tuple):
            self._datasets = list(datasets)
        else:
            self._datasets = [datasets]

    def setup(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002 - the hook's signature
        stage: str,
    ) -> None:
        """Set the epoch before the first iterator."""
        if stage == "fit":
            self._set_stream_epoch(trainer.current_epoch)

    def on_load_checkpoint(
        self,
        trainer: Trainer,  # noqa: ARG002 - the hook's signature
        pl_module: LightningModule,  # noqa: ARG002 - the hook's signature
        checkpoint: dict[str, Any],
    ) -> None:
        """Set the epoch before the first iterator of a resumed fit.

        checkpoint["epoch"] is one behind if it was saved at the end of an epoch.
        """
        self._set_stream_epoch(
            checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
        )

    def on_train_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002 - the hook's signature
    ) -> None:
        """Set the epoch before the next iterator, which Lightning makes before it announces the
        epoch.
        """
        self._set_stream_epoch(trainer.current_epoch + 1)

    def _set_stream_epoch(self, epoch: int) -> None:
        for dataset in self._datasets:
            dataset.set_epoch(epoch)
