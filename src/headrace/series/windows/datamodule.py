"""Provide a Lightning data module over prepared series: windows of chunks of entities, and a
validation pool.

    module = SeriesDataModule(
        "out", input_length=365, output_length=7, batch_size=256, chunk_size=100
    )
    Trainer(strategy="ddp", devices=2, max_epochs=30).fit(model, datamodule=module)
    trainer = Trainer(strategy="ddp", devices=4, max_epochs=30)
    trainer.fit(model, datamodule=module, ckpt_path="last.ckpt")

An epoch is a chunk. The epoch number alone decides which one, when the first batch is requested. So
loaders that Lightning creates and discards, sanity checks and restarts do not advance anything.
Every rank finds everything on disk by the run's id. A loader here is not a `DataLoader`, so
Lightning does not inject a sampler.

    validation   the pool trains     validation windows are in
    "time"       yes, as all do      val: later times of known entities
    "entity"     no                  train: the same times of unknown entities
    "both"       no                  val: later times of unknown entities
    "none"       there is no pool    none
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from headrace.arrays import F64, I64, Bools
from headrace.checks import check_integer, check_word
from headrace.dataset.local_shards import DISK_BYTES, LocalFiles
from headrace.digest import derive_key
from headrace.errors import SettingsError, setting, setting_name
from headrace.keyed_hash import hash_texts
from headrace.recipe import JobSettings
from headrace.run.identity import fingerprint, run_id
from headrace.run.prepare import prepare
from headrace.series.pipelines.save import Pipelines
from headrace.series.pipelines.save import load as load_pipelines
from headrace.series.windows.forecasts import as_array, in_units
from headrace.series.windows.loader import Shuffle, WindowLoader, check_chunk_size
from headrace.series.windows.store import SeriesStore, open_store
from headrace.series.windows.torch import SLOWER_WORKERS, WindowDataset
from headrace.series.windows.windows import (
    WindowCounts,
    WindowOptions,
    Windows,
    check_some,
    count_windows,
    windows_of,
)
from headrace.settings import load_yaml
from headrace.stream.loader.resumed import CountedLoader, ResumedModule
from headrace.stream.order.remaining import Remainder

Validation = Literal["time", "entity", "both", "none"]

_SHARE = 10  # by default one entity in ten validates


class EpochLoader(CountedLoader[WindowLoader]):
    """A loader that makes one pass over a stream of windows per iteration."""

    def __iter__(self) -> Iterator[Any]:
        if self._trainer is not None:
            is_over = (
                self._loaded_ended
                and not self._begun
                and self._trainer.current_epoch == self._loaded_epoch
            )
            epoch = self.begin()
            # saved in its last step: Lightning re-enters the epoch once before counting it
            if is_over:
                self.stream.set_epoch(self._loaded_epoch)
                return
            self.stream.set_epoch(epoch)
        yield from self.stream

    def follow(self) -> None:
        """Set the stream to the epoch of the next pass, unless it is there already, so that its
        length is known.
        """
        if self._trainer is None:
            epoch = self.stream.epoch
        else:
            epoch = self.next_epoch()
        if epoch != self.stream.epoch:
            self.stream.set_epoch(epoch)
            # the previous pass is over, so this epoch begins next, not the one after it
            if self._begun:
                self._first = epoch

    @property
    def went_on(self) -> bool:
        """Return whether the stream is in an epoch after the loaded one."""
        return 0 <= self._loaded_epoch < self.stream.epoch


class SeriesDataModule(ResumedModule[EpochLoader]):
    """Train, validate, test and predict on windows of prepared series, with every window once per
    pass over all ranks.

    source: a dataset directory with a run of series, or settings (`headrace.Series`, or a YAML
    file) that rank 0 prepares into `out`, unless they are prepared already.
    run: a run_id, to choose another run of the directory.
    chunk_size: entities of a chunk in memory; an epoch is then a chunk (see `WindowLoader`). None:
    an epoch is all windows, read from the mapped store.
    validation: "time" validates on the val split of entities also in train, "entity" on the train
    split of entities not in train, "both" on the val split of entities not in train;
    "none" does not validate. validation_chunk_size: number of entities in val. Their rows
    stay in memory throughout. remainder: treatment of the last step in training. Other parts read
    their windows in order and always pad; the batch array "valid" marks the real windows.
    cache_dir, disk_bytes: for copies of a run in an object store, see `open_windows`.
    options: see `WindowOptions`. For prediction they are changed: windows need no target, and
    windows with missing inputs are kept.

    `setup` prints how many windows each part has and which entities have none; `window_counts`
    returns it.

    Raises `SettingsError` for settings that cannot work. `setup` raises `InputError` if there are
    no series, or if a part that the stage needs has no window: train, validate (unless
    validation="none"), test or predict.
    """

    def __init__(  # noqa: PLR0913 - all are settings
        self,
        source: str | Path | JobSettings,
        *,
        input_length: int,
        output_length: int,
        batch_size: int,
        val_batch_size: int | None = None,
        out: str | Path | None = None,
        run: str | None = None,
        chunk_size: int | None = None,
        validation: Validation = "both",
        validation_chunk_size: int | None = None,
        is_autoregressive: bool | None = None,
        shuffle: Shuffle = "everywhere",
        seed: int = 0,
        remainder: Remainder | None = None,
        num_workers: int = 0,
        cache_dir: str | Path | None = None,
        disk_bytes: int = DISK_BYTES,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_word("windows: validation", validation, get_args(Validation))
        for name, value in (
            ("validation_chunk_size", validation_chunk_size),
            ("val_batch_size", val_batch_size),
        ):
            if value is not None:
                check_integer(f"windows: {name}", value, least=1)
        check_chunk_size(chunk_size)
        if num_workers:
            warnings.warn(
                f"num_workers={num_workers} is ignored: {SLOWER_WORKERS}", UserWarning, stacklevel=2
            )
        shape_options = {**(options or {}), "is_autoregressive": is_autoregressive}
        self.options = WindowOptions(
            input_length=input_length, output_length=output_length, **shape_options
        )
        self._source = _Source.of(source, out, run)
        self._files = LocalFiles(cache_dir=cache_dir, disk_bytes=disk_bytes)
        self.batch_size = batch_size
        if val_batch_size is None:
            self.val_batch_size = batch_size
        else:
            self.val_batch_size = val_batch_size
        self.validation = validation
        self.validation_chunk_size = validation_chunk_size
        self._training = {"shuffle": shuffle, "chunk_size": chunk_size, "remainder": remainder}
        self._seed = seed
        self._parts: dict[str, tuple[Windows, WindowCounts]] = {}
        self._warned: set[str] = set()

    def prepare_data(self) -> None:
        """Prepare the run whose settings were given, unless it exists.

        Lightning calls this on one rank only.
        """
        if self._source.recipe is not None:
            prepare(self._source.recipe, self._source.out)

    def setup(self, stage: str | None = None) -> None:
        """Open the store on every rank, choose the entities of train and val, and read the
        validation pool.

        Prints the windows of every part that the stage needs, on rank 0. Raises `InputError` if one
        of them has none.
        """
        # Imported late: without the extra, `stream.resumed` raises the clear error.
        from lightning.pytorch.utilities import rank_zero_info

        word = getattr(stage, "value", stage)  # Lightning passes an enum member
        for part in ["train", "pool"] if word in (None, "fit", "validate") else [word]:
            if part == "pool" and self.validation == "none":
                continue
            self.windows(part)
            if part in self._warned:
                continue
            self._warned.add(part)
            counts = self._part(part)[1]
            requested = self.validation_chunk_size
            line = f"{part}{str(counts).removeprefix(counts.split)}"
            if part == "pool" and requested is not None and counts.entities < requested:
                line += f"; validation_chunk_size asks for {requested:,} entities"
            rank_zero_info(line)

    @property
    def window_counts(self) -> dict[str, WindowCounts]:
        """The window counts of "train", "pool" (unless there is none) and "test"."""
        parts = ["train", "test"]
        if self.validation != "none":
            parts.insert(1, "pool")
        return {part: self._part(part)[1] for part in parts}

    @cached_property
    def store(self) -> SeriesStore:
        """The run's store: columns, entities, static features."""
        return self._source.open(self._files)

    @cached_property
    def pipelines(self) -> Pipelines:
        """The run's fitted pipelines, loaded from their safe numeric form."""
        return load_pipelines(self.store.root, self.store.pipeline_digests)

    def windows(self, part: str) -> Windows:
        """Return the windows of a part: "train", "pool", "test" or "predict".

        Raises `SettingsError` for another word, `InputError` if there are none (except for a pool
        that is not wanted).
        """
        check_word("windows: part", part, ("train", "pool", "test", "predict"))
        windows, _ = self._part(part)
        if part != "pool":
            check_some(windows)
        return windows

    def inference(self, split: str = "test") -> Windows:
        """Return all windows of a split without targets, filled as in training; `complete` is false
        if inputs were missing.
        """
        return self._windows_of(split, {"targets": "none", "horizons": None}, keep=True)

    def inference_dataset(self, split: str = "test") -> WindowDataset:
        """Return the windows of `inference` as a torch dataset."""
        return WindowDataset(self.inference(split))

    def inverse_transform(self, scaled: Any, entity: Any) -> F64:
        """Return predictions [B, …] for the batch's entities [B] in the target's unit: float64,
        same shape.

        With several targets the last axis is the target. Of windows that `scale` scales, give
        predictions · scale + centre.
        """
        targets = self.store.columns.targets
        values = as_array(scaled)
        numbers = as_array(entity)
        if self.options.scalers != "first_fold":
            scaling = self._part("train")[0].fold_scaling
            if scaling is not None:
                values = scaling.undo(values, numbers, len(targets))
        names = self.store.entities.names.take(pa.array(numbers)).to_pylist()
        return in_units(self.pipelines, values, names, targets)

    def train_dataloader(self) -> EpochLoader:
        """Return the training stream, the same object on every call; calling it does not advance
        the stream.
        """
        if self._train is None:
            self._train = EpochLoader(
                self._stream("train", self.batch_size, **self._training), self.trainer
            )
        if self._loaded is not None:
            self._train.stream.load_state_dict(self._loaded["stream"])
            self._train.resumed(self._loaded)
            self._loaded = None
        loader = self._train
        loader.follow()
        steps = loader.stream.passes.full(loader.stream.current).steps
        self._ask_lengths_again(differ=loader.stream.epochs is not None or len(loader) != steps)
        if (
            self.trainer is not None
            and loader.went_on
            and self.trainer.fit_loop.epoch_loop.restarting
        ):
            # After a checkpoint of an epoch's last step Lightning is in the next epoch, but would
            # still count the batches of the old one in it if it is longer.
            self.trainer.fit_loop.epoch_loop.restarting = False
        return loader

    def val_dataloader(self) -> EpochLoader | list[EpochLoader]:
        """Return the pool's windows in order, from memory; an empty list with validation="none"."""
        if self.validation == "none":
            return []
        return self._evaluation("pool")

    def test_dataloader(self) -> EpochLoader:
        """Return the test windows of all entities in order."""
        return self._evaluation("test")

    def predict_dataloader(self) -> EpochLoader:
        """Return the test windows without targets, including incomplete ones; see `inference`."""
        return self._evaluation("predict")

    def _part(self, part: str) -> tuple[Windows, WindowCounts]:
        """Return the windows of a part and their counts; "test" and "predict" may be empty."""
        if part in self._parts:
            return self._parts[part]
        if part in ("test", "predict"):
            if part == "test":
                windows = self._windows_of("test")
            else:
                windows = self.inference("test")
            self._parts[part] = windows, count_windows(windows)
            return self._parts[part]
        train = self._windows_of("train")
        check_some(train)
        if self.validation in ("entity", "none"):
            val = train
        else:
            val = self._windows_of("val")
        check_some(
            val,
            remedy=(
                f"pass {setting('validation', 'entity')}, which validates on other entities' train"
                ' rows, or "none"'
            ),
        )
        trains, validates = choose_pool(
            self.store.entities.names,
            train.per_entity,
            val.per_entity,
            validation=self.validation,
            size=self.validation_chunk_size,
            seed=self._seed,
        )
        # the pool in memory
        trained = train.of_entities(trains)
        pool = val.in_memory(np.flatnonzero(validates))
        self._parts |= {
            "train": (trained, count_windows(train, trained)),
            "pool": (pool, count_windows(val, pool)),
        }
        return self._parts[part]

    def _windows_of(
        self, split: str, changed: Mapping[str, Any] | None = None, *, keep: bool = False
    ) -> Windows:
        """Return the windows of a split.

        changed: options that differ. keep: incomplete windows too.
        """
        options = self.options.model_copy(update=changed)
        if keep and options.incomplete == "skip":
            options = options.model_copy(update={"incomplete": "keep"})
        return windows_of(self.store, split, options)

    def _stream(self, part: str, batch_size: int, **options: Any) -> WindowLoader:
        topology = self._topology()
        return WindowLoader(
            self.windows(part), batch_size=batch_size, seed=self._seed, topology=topology, **options
        )

    def _evaluation(self, part: str) -> EpochLoader:
        return EpochLoader(
            self._stream(part, self.val_batch_size, shuffle="none", remainder="pad"), None
        )


def choose_pool(
    names: pa.Array, train: I64, val: I64, *, validation: Validation, size: int | None, seed: int
) -> tuple[Bools, Bools]:
    """Return (entities in train, entities in val), bool [E].

    train, val: number of windows of each entity, [E]. Only entities with windows to validate on are
    drawn for the pool. A keyed hash draws them, so adding entities changes the pool little.
    size: entities in the pool; None: with "time" all, otherwise a tenth, at least one.
    Raises `SettingsError` if no entity would be left to train.
    """
    if validation != "none":
        able = np.flatnonzero(val)
    else:
        able = np.empty(0, np.int64)
    if size is None:
        if validation == "time":
            size = len(able)
        else:
            size = max(1, len(able) // _SHARE)
    pool = np.zeros(len(names), bool)
    if len(able):
        high, low = hash_texts(derive_key(seed, "validation entities"), names.take(pa.array(able)))
        pool[able[np.lexsort((low, high))[:size]]] = True
    trains = train > 0
    if validation != "time":
        trains &= ~pool
    if not trains.any():
        raise SettingsError(
            f"{int((train > 0).sum())} entities have windows to train on, and"
            f" {setting('validation', validation)} leaves none of them",
            setting="validation_chunk_size",
            value=size,
            remedy=f"choose a smaller one, or {setting('validation', 'time')}",
        )
    return trains, pool


@dataclass(frozen=True)
class _Source:
    """A run to open: its dataset directory, and its settings or its run_id if they were given."""

    recipe: JobSettings | None
    out: Path
    run: str | None

    @classmethod
    def of(
        cls, source: str | Path | JobSettings, out: str | Path | None, run: str | None
    ) -> _Source:
        """Read what the user named as source: a directory, settings, or a file of them.

        Raises `SettingsError`.
        """
        if isinstance(source, str | PurePath):
            path = Path(source)
            if path.suffix not in (".yaml", ".yml"):
                return cls(None, path if out is None else Path(out), run)
            import yaml

            import headrace  # a file has the settings of the public `headrace.Series`

            try:
                record = dict(load_yaml(path.read_text("utf-8")))
            except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, ValueError) as error:
                raise SettingsError(
                    f"cannot be read as settings of series ({error})",
                    path=path,
                    remedy="correct it",
                ) from error
            for name in ("recipe", "workers"):
                record.pop(name, None)
            written = record.pop("out", None)
            source = headrace.Series(**record)
            if out is None:
                out = written
        if out is None:
            raise SettingsError(
                f"{setting_name('out')} is missing", remedy="give the output directory"
            )
        return cls(source, Path(out), run)

    def open(self, files: LocalFiles) -> SeriesStore:
        """Open the run's store. Raises `InputError`."""
        run = self.run
        if self.recipe is not None:
            source = fingerprint(self.recipe.source_files())
            run = run_id(self.recipe.recipe_name, self.recipe.identity_settings(), source)
        return open_store(self.out, run=run, files=files)
