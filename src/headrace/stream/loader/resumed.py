"""Count a training loader for Lightning's data modules, and keep its position in checkpoints.

Lightning puts a data module's `state_dict` into its checkpoints, and loads it before it asks for loaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from headrace.errors import MissingExtra, StreamError

try:  # before what needs torch: this extra brings both
    from lightning.pytorch import LightningDataModule, Trainer
except ImportError as error:
    raise MissingExtra("lightning", "lightning") from error

from headrace.sealed import MOST_POSITIONS, seal, shown, unseal
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology

_KIND, FORMAT_VERSION = "data module", 2  # of this record; the state inside it has a version of its own


Stream = TypeVar("Stream", bound=StreamLoader)

_SAVED: Mapping[str, type] = {"batches": int, "ended": bool, "stream": dict}
_KINDS = {int: "a number of 0 or more", bool: "true or false", dict: "the state of a stream"}


class CountedLoader(Generic[Stream]):
    """One pass per iteration over a stream; counts what the trainer has done of the present one.

    Batches of the loaded epoch that were done before the stop count in `len` and in `batches`, as in Lightning's own
    progress. The stream is not called `dataset` here: Lightning would warn of its `len`.

    The first pass reads the trainer's epoch, or what a loaded state left of its own. Each later pass reads the next
    epoch. Lightning's number of the epoch may run ahead: it counts an epoch as finished when a fit is stopped inside
    it, and skips a number when it resumes from a checkpoint of an epoch's end.
    """

    def __init__(self, stream: Stream, trainer: Trainer | None) -> None:
        self.stream = stream
        self._trainer: Any = trainer  # its type does not know what it counts, nor overfit_batches
        self._before = 0
        self._loaded_epoch = -1
        self._first: int | None = None  # the epoch of the first pass; None: the trainer's
        self._loaded_ended = self._begun = False
        self._pass_epoch = 0  # the trainer's number of the present pass

    def __len__(self) -> int:
        """Batches of the present epoch on this rank, those before a stop included; the same on every rank."""
        return self._earlier + len(self.stream)

    @property
    def batches(self) -> int:
        """Batches of the present epoch that are done, those before a stop included."""
        return self._earlier + self.done

    @property
    def received(self) -> int:
        """Batches received since the present pass began."""
        return self.stream.received

    @property
    def done(self) -> int:
        """Batches of the present pass that the trainer is done with.

        One that it has received and still works on is not: Lightning does it again after a resume.
        """
        if self._trainer is None or self._trainer.current_epoch != self._pass_epoch:
            return self.received
        processed: int = self._trainer.fit_loop.epoch_loop.batch_progress.current.processed - self._earlier
        return processed if processed == self.received - 1 else self.received

    @property
    def ended(self) -> bool:
        """True if the present pass is over for Lightning, be it that a limit left some of its epoch."""
        if self._trainer is None or not self._begun:
            return self._loaded_ended
        over: bool = self._trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        return over and self.done == self.received

    def next_epoch(self) -> int:
        """The epoch that the next pass reads."""
        assert self._trainer is not None
        if self._first is not None:
            return self._first
        if not self._begun:
            return int(self._trainer.current_epoch)
        is_next = self._trainer.current_epoch != self._pass_epoch and not self._trainer.overfit_batches
        return self.stream.epoch + is_next

    def begin(self) -> int:
        """A pass begins: the epoch that it reads."""
        assert self._trainer is not None
        epoch = self.next_epoch()
        self._first, self._begun, self._pass_epoch = None, True, self._trainer.current_epoch
        return epoch

    def count_anew(self) -> None:
        """Have Lightning count the batches of its next epoch from 0 if the loaded one was finished.

        It would go on counting from the last batch of that one. Where validation does not run at epoch ends, it would
        then end the next epoch after a single batch.
        """
        if self._trainer is None or not self._loaded_ended:
            return
        progress = self._trainer.fit_loop.epoch_progress.current
        is_between = progress.started == progress.processed and self._trainer.check_val_every_n_epoch is None
        if is_between or progress.ready == progress.processed == progress.completed:
            self._trainer.fit_loop.epoch_loop.restarting = False

    def begin_after(self, earlier: CountedLoader[Any]) -> None:
        """The first pass here follows the last one of another loader, where the same trainer counts their epochs."""
        if earlier._trainer is self._trainer:
            self._first = earlier.next_epoch()

    def position(self) -> dict[str, Any]:
        """Return where the stream is after the batches that are done: JSON, the same on every rank."""
        return self.stream.state_after(self.done)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the data module keeps the position. Having it tells Lightning that the loader can be resumed."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to load; see `state_dict`."""

    def resumed(self, saved: Mapping[str, Any]) -> None:
        """The stream is where `saved` says; Lightning counts the batches before that as well."""
        self._loaded_epoch, self._before = self.stream.epoch, saved["batches"]
        self._loaded_ended = saved["ended"]
        self._first = self._loaded_epoch + self._loaded_ended

    @property
    def _earlier(self) -> int:
        return self._before if self.stream.epoch == self._loaded_epoch else 0


Loader = TypeVar("Loader", bound=CountedLoader[Any])


class ResumedModule(LightningDataModule, Generic[Loader]):
    """A data module whose training goes on from a checkpoint where it stopped, on any number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self._train: Loader | None = None
        self._loaded: dict[str, Any] | None = None
        self._users_reload: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """Goes into Lightning's checkpoint: the position, and how many batches of the epoch were received."""
        if self._train is None:
            return {} if self._loaded is None else self._loaded
        train = self._train
        saved = {"stream": train.position(), "batches": train.batches, "ended": train.ended}
        return seal(_KIND, FORMAT_VERSION, saved)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Comes out of Lightning's checkpoint, before the loaders are made. Raises `StreamError` if it is not ours."""
        if isinstance(state_dict, Mapping) and not state_dict:  # of a module that had nothing to save
            return
        values = unseal(state_dict, kind=_KIND, version=FORMAT_VERSION)
        remedy = f"resume from a checkpoint that was written with {type(self).__name__}"
        if set(values) != set(_SAVED):
            raise StreamError(
                f"data module state: keys {shown(sorted(values))}, expected {', '.join(_SAVED)}; {remedy}"
            )
        for name, kind in _SAVED.items():
            value = values[name]
            if type(value) is not kind or (type(value) is int and not 0 <= value <= MOST_POSITIONS):
                raise StreamError(f"data module state: {name} is {shown(value)}, expected {_KINDS[kind]}; {remedy}")
        self._loaded = dict(state_dict)

    def _topology(self) -> Topology | None:
        """The data-parallel place of this process: with tensor parallelism that is not its rank."""
        place = getattr(getattr(self.trainer, "strategy", None), "distributed_sampler_kwargs", None)
        return Topology(rank=place["rank"], world_size=place["num_replicas"]) if place else None

    def _ask_lengths_again(self, *, differ: bool) -> None:
        """Have Lightning ask for the training loader before the next epoch if lengths differ, else when the user said.

        It asks a loader's length once. What an epoch reads does not hang on being asked again, only where it is cut.
        """
        trainer: Any = self.trainer  # its type does not know the flag
        if trainer is None:
            return
        if self._users_reload is not None:
            trainer.reload_dataloaders_every_n_epochs, self._users_reload = self._users_reload, None
        if differ:
            self._users_reload = trainer.reload_dataloaders_every_n_epochs
            trainer.reload_dataloaders_every_n_epochs = 1
