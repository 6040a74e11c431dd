"""A Lightning data module over prepared series: windows of chunks of entities, and a pool to validate on.

    module = SeriesDataModule("out", input_length=365, output_length=7, batch_size=256, chunk_size=100)
    Trainer(strategy="ddp", devices=2, max_epochs=30).fit(model, datamodule=module)
    Trainer(strategy="ddp", devices=4, max_epochs=30).fit(model, datamodule=module, ckpt_path="last.ckpt")

An epoch is a chunk: which one, says its number alone, when the first batch is asked for. So loaders that Lightning
makes and throws away, sanity checks and restarts move nothing. Everything is found on disk by the run's id, on every
rank. A loader here is no `DataLoader`, hence Lightning puts no sampler into it.

    validation   the pool trains     validation windows are in
    "time"       yes, as all do      val: later times of entities that are known
    "entity"     no                  train: the same times of entities that are not
    "both"       no                  val: later times of entities that are not known
    "none"       there is no pool    none
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, Bools
from headrace.checks import check_integer, check_word
from headrace.dataset.local_shards import DISK_BYTES, LocalFiles
from headrace.digest import derive_key, hash_texts
from headrace.errors import SettingsError
from headrace.recipe import Recipe
from headrace.run.identity import fingerprint, run_id
from headrace.run.prepare import prepare
from headrace.series.arrays.chunks import choose_entities
from headrace.series.windows.found import WindowCounts, check_some, count_windows
from headrace.series.windows.inverse import target_scale
from headrace.series.windows.loader import WindowLoader
from headrace.series.windows.options import WindowArguments, WindowOptions
from headrace.series.windows.order import Shuffle
from headrace.series.windows.store import SeriesStore, open_store
from headrace.series.windows.torch import SLOWER_WORKERS, WindowDataset
from headrace.series.windows.windows import Windows, windows_of
from headrace.settings import load_yaml
from headrace.stream.loader.resumed import (
    CountedLoader,
    ResumedModule,
)
from headrace.stream.order.remaining import Remainder

Validation = Literal["time", "entity", "both", "none"]
VALIDATIONS: tuple[Validation, ...] = get_args(Validation)

_SHARE = 10  # one in so many entities validates


class EpochLoader(CountedLoader[WindowLoader]):
    """One pass per iteration over a stream of windows."""

    def __iter__(self) -> Iterator[Any]:
        if self._trainer is not None:
            is_over = self._loaded_ended and not self._begun and self._trainer.current_epoch == self._loaded_epoch
            epoch = self.begin()
            if is_over:  # saved in its last step, so Lightning takes the epoch up once more before it counts it
                self.stream.set_epoch(self._loaded_epoch)
                return
            self.stream.set_epoch(epoch)
        yield from self.stream

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint kept; see `CountedLoader.resumed`."""
        self.stream.load_state_dict(saved["stream"])
        self.resumed(saved)

    def follow(self) -> None:
        """Make the epoch of the next pass that of the stream, unless it is, so that its length is known."""
        epoch = self.stream.epoch if self._trainer is None else self.next_epoch()
        if epoch != self.stream.epoch:
            self.stream.set_epoch(epoch)
            if self._begun:  # the pass before is over: what begins next is this epoch, not the one behind it
                self._first = epoch

    @property
    def went_on(self) -> bool:
        """Whether the stream is in an epoch behind the loaded one."""
        return 0 <= self._loaded_epoch < self.stream.epoch


class SeriesDataModule(ResumedModule[EpochLoader]):
    """Train, validate, test and predict on windows of prepared series, every window once a pass over all ranks.

    source: a dataset directory with a run of series; or the settings of one (`headrace.Series`, or a YAML file of
    them), which rank 0 then prepares into `out`, or finds prepared. run: a run_id, to choose another of the directory.
    chunk_size or memory_limit_mib: an epoch is a chunk of entities in memory (see `WindowLoader`); without, an epoch
    is all windows, straight from the mapped store. validation: see above; validation_chunk_size: entities that
    validate, whose rows are in memory throughout. remainder: of the last step in training; outside training windows
    come in order and are always padded; batches say which of theirs are "valid". cache_dir, disk_bytes: of copies of a
    run in an object store, see `open_windows`. How many windows each part has, and who has none, `setup` prints and
    `window_counts` says.
    options: see `WindowOptions`; those of predicting differ: windows need no target and are kept where inputs miss.
    Raises `SettingsError` for what cannot work; `setup` raises `InputError` without series, and where a part has no
    window: training, validating unless validation="none", testing, predicting.
    """

    def __init__(
        self,
        source: str | Path | Recipe,
        *,
        input_length: int,
        output_length: int,
        batch_size: int,
        val_batch_size: int | None = None,
        out: str | Path | None = None,
        run: str | None = None,
        chunk_size: int | None = None,
        memory_limit_mib: int | None = None,
        validation: Validation = "both",
        validation_chunk_size: int | None = None,
        is_autoregressive: bool = False,
        shuffle: Shuffle = "everywhere",
        seed: int = 0,
        remainder: Remainder | None = None,
        num_workers: int = 0,
        cache_dir: str | Path | None = None,
        disk_bytes: int = DISK_BYTES,
        options: WindowArguments | None = None,
    ) -> None:
        super().__init__()
        check_word("windows: validation", validation, VALIDATIONS)
        for name, value in (("validation_chunk_size", validation_chunk_size), ("val_batch_size", val_batch_size)):
            if value is not None:
                check_integer(f"windows: {name}", value, least=1)
        if chunk_size is not None and memory_limit_mib is not None:
            raise SettingsError(
                f"windows: chunk_size is {chunk_size} and memory_limit_mib is {memory_limit_mib}; give one of them"
            )
        if num_workers:
            warnings.warn(f"num_workers={num_workers} is not followed: {SLOWER_WORKERS}", UserWarning, stacklevel=2)
        given: WindowArguments = {**(options or {}), "is_autoregressive": is_autoregressive}
        self.options = WindowOptions(input_length=input_length, output_length=output_length, **given)
        self._recipe, self._out = _recipe_of(source, out)
        self._run, self._files = run, LocalFiles(cache_dir=cache_dir, disk_bytes=disk_bytes)
        self.batch_size = batch_size
        self.val_batch_size = batch_size if val_batch_size is None else val_batch_size
        self.validation, self.validation_chunk_size = validation, validation_chunk_size
        self._chunk_size, self._memory_limit_mib = chunk_size, memory_limit_mib
        self._shuffle, self._seed, self._remainder = shuffle, seed, remainder
        self._store: SeriesStore | None = None
        self._windows: dict[str, Windows] = {}
        self._counts: dict[str, WindowCounts] = {}
        self._told: set[str] = set()

    def prepare_data(self) -> None:
        """Prepare the run, if settings were given and it is not there yet. Lightning calls this on one rank alone."""
        if self._recipe is not None:
            prepare(self._recipe, self._out)

    def setup(self, stage: str | None = None) -> None:
        """Find everything on disk, on every rank: store, who trains, who validates, and read the validation pool.

        Prints the windows of every part that the stage needs, on rank 0. Raises `InputError` where one has none.
        """
        from lightning.pytorch.utilities import rank_zero_info  # here: without the extra, `stream.resumed` says so

        self._find()
        word = getattr(stage, "value", stage)  # Lightning gives a member of an enum
        parts = ["train", "pool"] if word in (None, "fit", "validate") else [word]
        for part in parts:
            if part == "pool" and self.validation == "none":
                continue
            self.windows(part)
            if part not in self._told:
                self._told.add(part)
                rank_zero_info(self._line(part))

    @property
    def window_counts(self) -> dict[str, WindowCounts]:
        """How many windows those that train, the pool (unless there is none) and those of "test" have."""
        for part in ("train", "test"):
            self._find_part(part)
        return {part: self._counts[part] for part in ("train", "pool", "test") if part in self._counts}

    @property
    def store(self) -> SeriesStore:
        """The run's store: columns, entities, static features."""
        self._find()
        assert self._store is not None
        return self._store

    def windows(self, part: str) -> Windows:
        """Windows of a part: those that "train", those of the "pool", of "test", or to "predict" on.

        Raises `SettingsError` for another word, `InputError` where there are none (but for a pool that is not wanted).
        """
        check_word("windows: part", part, ("train", "pool", "test", "predict"))
        found = self._find_part(part)
        if part != "pool":
            check_some(found)
        return found

    def inference(self, split: str = "test") -> Windows:
        """Windows of a split without targets: all of them, `complete` false where inputs are missing."""
        chosen = {name: getattr(self.options, name) for name in self.options.__slots__}
        return windows_of(
            self.store, split, WindowOptions(**{**chosen, "targets": "none", "horizons": None, "incomplete": "keep"})
        )

    def inference_dataset(self, split: str = "test") -> WindowDataset:
        """The same for torch."""
        return WindowDataset(self.inference(split))

    def inverse_transform(self, scaled: Any, entity: Any) -> npt.NDArray[np.float64]:
        """Predictions [B, …] of batches' entities [B] in the target's unit: float64, same shape."""
        detached = [each.detach().cpu().numpy() if hasattr(each, "detach") else each for each in (scaled, entity)]
        return target_scale(self.store).invert(*detached)

    def train_dataloader(self) -> EpochLoader:
        """The training stream, the same object whenever it is asked for: asking moves nothing."""
        if self._train is None:
            stream = WindowLoader(
                self.windows("train"),
                batch_size=self.batch_size,
                shuffle=self._shuffle,
                seed=self._seed,
                chunk_size=self._chunk_size,
                memory_limit_mib=self._memory_limit_mib,
                remainder=self._remainder,
                topology=self._topology(),
            )
            self._train = EpochLoader(stream, self.trainer)
        if self._loaded is not None:
            self._train.resume(self._loaded)
            self._loaded = None
        self._train.follow()
        self._tell_of_lengths(self._train)
        return self._train

    def val_dataloader(self) -> EpochLoader | list[EpochLoader]:
        """The windows of the pool in order, from memory; nothing with validation="none"."""
        return [] if self.validation == "none" else self._evaluation("pool")

    def test_dataloader(self) -> EpochLoader:
        """The test windows of all entities in order."""
        return self._evaluation("test")

    def predict_dataloader(self) -> EpochLoader:
        """The test windows without targets, incomplete ones as well; see `inference`."""
        return self._evaluation("predict")

    def _find(self) -> None:
        if self._store is not None:
            return
        run = self._run
        if self._recipe is not None:
            source = fingerprint(self._recipe.source_files())
            run = run_id(self._recipe.recipe_name, self._recipe.identity_settings(), source)
        self._store = open_store(self._out, run=run, files=self._files)

    def _find_part(self, part: str) -> Windows:
        """The windows of a part, counted; those to test or predict on may be none."""
        if part not in self._windows:
            if part in ("train", "pool"):
                self._divide()
            else:
                found = windows_of(self.store, "test", self.options) if part == "test" else self.inference("test")
                self._windows[part], self._counts[part] = found, count_windows(found)
        return self._windows[part]

    def _divide(self) -> None:
        """Find the windows that train, and those of the pool, in memory."""
        train = windows_of(self.store, "train", self.options)
        check_some(train)
        split = split_of(self.validation)
        val = train if split == "train" or self.validation == "none" else windows_of(self.store, split, self.options)
        check_some(val, remedy='pass validation="entity", which validates on other entities\' train rows, or "none"')
        trains, pool = choose_pool(
            self.store.entities.names,
            train.per_entity,
            val.per_entity,
            validation=self.validation,
            size=self.validation_chunk_size,
            seed=self._seed,
        )
        self._windows |= {"train": train.of_entities(trains), "pool": val.in_memory(np.flatnonzero(pool))}
        self._counts["train"] = count_windows(train, self._windows["train"])
        if self.validation != "none":
            self._counts["pool"] = count_windows(val, self._windows["pool"])

    def _line(self, part: str) -> str:
        """What is printed of a part."""
        counts = self._counts[part]
        told = f"{part}{str(counts).removeprefix(counts.split)}"
        asked = self.validation_chunk_size
        if part == "pool" and asked is not None and counts.entities < asked:
            told += f"; validation_chunk_size asks for {asked:,} entities"
        return told

    def _evaluation(self, part: str) -> EpochLoader:
        loader = WindowLoader(
            self.windows(part),
            batch_size=self.val_batch_size,
            shuffle="none",
            seed=self._seed,
            remainder="pad",
            topology=self._topology(),
        )
        return EpochLoader(loader, None)

    def _tell_of_lengths(self, loader: EpochLoader) -> None:
        whole = loader.stream.passes.whole(loader.stream.present).steps
        self._ask_lengths_again(differ=loader.stream.epochs is not None or len(loader) != whole)
        trainer = self.trainer
        if trainer is not None and loader.went_on and trainer.fit_loop.epoch_loop.restarting:
            # A checkpoint of an epoch's last step: Lightning has gone on to the next epoch, and would still count the
            # batches of the old one in it if it is longer.
            trainer.fit_loop.epoch_loop.restarting = False


def split_of(validation: Validation) -> str:
    """The split that validation windows are in."""
    return "train" if validation == "entity" else "val"


def choose_pool(
    names: pa.Array, train: I64, val: I64, *, validation: Validation, size: int | None, seed: int
) -> tuple[Bools, Bools]:
    """(entities that train, entities that validate), bool [E].

    train, val: windows of each entity, [E]; only entities with windows to validate on are drawn for the pool, by keyed
    hash, so that more entities change little. size: of the pool; None: with "time" all, else a tenth, at least one.
    Raises `SettingsError` where nobody would be left to train.
    """
    able = np.flatnonzero(val) if validation != "none" else np.empty(0, np.int64)
    if size is None:
        size = len(able) if validation == "time" else max(1, len(able) // _SHARE)
    pool = np.zeros(len(names), bool)
    if len(able):
        high, low = hash_texts(derive_key(seed, "validation entities"), names.take(pa.array(able)))
        pool[able] = choose_entities(high, low, size)
    trains = train > 0
    if validation != "time":
        trains &= ~pool
    if not trains.any():
        raise SettingsError(
            f"{int((train > 0).sum())} entities have windows to train on, and validation={validation!r} with"
            f" validation_chunk_size={size} leaves none of them; choose a smaller validation_chunk_size, or"
            ' validation="time"'
        )
    return trains, pool


def _recipe_of(source: str | Path | Recipe, out: str | Path | None) -> tuple[Recipe | None, Path]:
    """The settings that were given, directly or in a file, and the dataset directory."""
    if isinstance(source, str | PurePath):
        path = Path(source)
        if path.suffix not in (".yaml", ".yml"):
            return None, path if out is None else Path(out)
        import yaml

        import headrace  # the settings of a file are those of the package's public name

        try:
            record = dict(load_yaml(path.read_text("utf-8")))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, ValueError) as error:
            raise SettingsError(f"{path}: cannot be read as settings of series ({error}); correct it") from error
        for name in ("recipe", "workers"):
            record.pop(name, None)
        written = record.pop("out", None)
        source, out = headrace.Series(**record), written if out is None else out
    if out is None:
        raise SettingsError("out is missing; say where the prepared series go, with out=DIRECTORY")
    return source, Path(out)
