"""Count a training loader for Lightning's data modules, and keep its position in checkpoints.

Lightning puts a data module's `state_dict` into its checkpoints, and loads it before it requests
loaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from headrace.errors import MissingExtra, StreamError

try:  # before any import that needs torch, as this extra installs both
    from lightning.pytorch import LightningDataModule, Trainer
except ImportError as error:
    raise MissingExtra("lightning", "lightning") from error

from headrace.sealed import MOST_POSITIONS, seal, short_repr, unseal
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology

# of this record; the state inside has its own version
_KIND = "data module"
FORMAT_VERSION = 2


Stream = TypeVar("Stream", bound=StreamLoader)

_SAVED: Mapping[str, type] = {"batches": int, "ended": bool, "stream": dict}
_KINDS = {int: "a number of 0 or more", bool: "true or false", dict: "the state of a stream"}


class CountedLoader(Generic[Stream]):
    """A stream with one pass per iteration, which counts what the trainer has done of the current
    one.

    Batches of the loaded epoch that were done before the stop count in `len` and in `batches`, as
    in Lightning's own progress. The stream is not called `dataset` here, because Lightning would
    then warn about its `len`.

    The first pass reads the trainer's epoch, or what a loaded state left of its own. Each later
    pass reads the next epoch. Lightning's epoch number may run ahead: it counts an epoch as
    finished when a fit is stopped inside it, and skips a number when it resumes from a checkpoint
    of an epoch's end.
    """

    def __init__(self, stream: Stream, trainer: Trainer | None) -> None:
        self.stream = stream
        self._trainer: Any = trainer  # Any: its type lacks the batch counters and overfit_batches
        self._loaded_epoch = -1
        self._first: int | None = None  # the epoch of the first pass; None: the trainer's
        self._loaded_ended = self._begun = False
        self._pass_epoch = 0  # the trainer's epoch number of the current pass

    def __len__(self) -> int:
        """Return the number of batches of the current epoch, including those before a stop; the
        same on every rank.
        """
        return len(self.stream)

    @property
    def batches(self) -> int:
        """Batches of the current epoch that are done, including those before a stop."""
        return self._earlier + self.done

    @property
    def done(self) -> int:
        """Batches of the current pass that the trainer has finished.

        A batch that the trainer has received and still works on does not count: Lightning repeats
        it after a resume.
        """
        if self._trainer is None or self._trainer.current_epoch != self._pass_epoch:
            return self.stream.delivered_count
        processed: int = (
            self._trainer.fit_loop.epoch_loop.batch_progress.current.processed - self._earlier
        )
        if processed == self.stream.delivered_count - 1:
            return processed
        return self.stream.delivered_count

    @property
    def ended(self) -> bool:
        """True if the current pass is over for Lightning, even if a limit left some of its epoch
        unread.
        """
        if self._trainer is None or not self._begun:
            return self._loaded_ended
        over: bool = self._trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        return over and self.done == self.stream.delivered_count

    def next_epoch(self) -> int:
        """Return the epoch that the next pass reads."""
        assert self._trainer is not None
        if self._first is not None:
            return self._first
        if not self._begun:
            return int(self._trainer.current_epoch)
        is_next = (
            self._trainer.current_epoch != self._pass_epoch and not self._trainer.overfit_batches
        )
        return self.stream.epoch + is_next

    def begin(self) -> int:
        """Begin a pass and return the epoch that it reads."""
        assert self._trainer is not None
        epoch = self.next_epoch()
        self._first = None
        self._begun = True
        self._pass_epoch = self._trainer.current_epoch
        return epoch

    def count_anew(self) -> None:
        """Make Lightning count the batches of its next epoch from 0 if the loaded epoch was
        finished.

        Otherwise it would continue to count from the last batch of that epoch. If validation does
        not run at epoch ends, it would then end the next epoch after a single batch.
        """
        if self._trainer is None or not self._loaded_ended:
            return
        progress = self._trainer.fit_loop.epoch_progress.current
        is_between = (
            progress.started == progress.processed and self._trainer.check_val_every_n_epoch is None
        )
        if is_between or progress.ready == progress.processed == progress.completed:
            self._trainer.fit_loop.epoch_loop.restarting = False

    def begin_after(self, earlier: CountedLoader[Any]) -> None:
        """Let the first pass follow the last pass of another loader, if the same trainer counts the
        epochs of both.
        """
        if earlier._trainer is self._trainer:
            self._first = earlier.next_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state, because the data module keeps the position.

        Its presence tells Lightning that the loader can be resumed.
        """
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing; see `state_dict`."""

    def resumed(self, saved: Mapping[str, Any]) -> None:
        """Record that the stream is at the position `saved`; Lightning also counts the batches
        before it.
        """
        self._loaded_ended = saved["ended"]
        self._loaded_epoch = self.stream.epoch
        self._first = self._loaded_epoch + self._loaded_ended

    @property
    def _earlier(self) -> int:
        return self.stream.current.batches_done


Loader = TypeVar("Loader", bound=CountedLoader[Any])


class ResumedModule(LightningDataModule, Generic[Loader]):
    """A data module whose training resumes from a checkpoint where it stopped, on any number of
    ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._train: Loader | None = None
        self._loaded: dict[str, Any] | None = None
        self._users_reload: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and how many batches of the epoch were received, for Lightning's
        checkpoint.
        """
        if self._train is None:
            if self._loaded is None:
                return {}
            return self._loaded
        train = self._train
        saved = {
            "stream": train.stream.state_after(train.done),
            "batches": train.batches,
            "ended": train.ended,
        }
        return seal(_KIND, FORMAT_VERSION, saved)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state from Lightning's checkpoint, before the loaders are made.

        Raises `StreamError` if this class did not save it.
        """
        # of a module that had nothing to save
        if isinstance(state_dict, Mapping) and not state_dict:
            return
        values = unseal(state_dict, subject=_KIND, version=FORMAT_VERSION)
        remedy = f"resume from a checkpoint that was written with {type(self).__name__}"
        if set(values) != set(_SAVED):
            raise StreamError(
                f"data module state: keys {short_repr(sorted(values))}, expected"
                f" {', '.join(_SAVED)}",
                remedy=remedy,
            )
        for name, expected in _SAVED.items():
            value = values[name]
            if type(value) is not expected or (
                type(value) is int and not 0 <= value <= MOST_POSITIONS
            ):
                raise StreamError(
                    f"data module state: {name} is {short_repr(value)}, expected"
                    f" {_KINDS[expected]}",
                    remedy=remedy,
                )
        self._loaded = dict(state_dict)

    def _topology(self) -> Topology | None:
        """Return the data-parallel rank of this process, which is not its global rank under tensor
        parallelism.
        """
        sampler = getattr(
            getattr(self.trainer, "strategy", None), "distributed_sampler_kwargs", None
        )
        if sampler:
            return Topology(rank=sampler["rank"], world_size=sampler["num_replicas"])
        return None

    def _ask_lengths_again(self, *, differ: bool) -> None:
        """Make Lightning request the training loader before the next epoch if lengths differ, else
        as the user set it.

        Lightning reads a loader's length once. A new request changes only where an epoch is cut
        off, not what it reads.
        """
        trainer: Any = self.trainer  # Any: its type lacks the flag
        if trainer is None:
            return
        if self._users_reload is not None:
            trainer.reload_dataloaders_every_n_epochs = self._users_reload
            self._users_reload = None
        if differ:
            self._users_reload = trainer.reload_dataloaders_every_n_epochs
            trainer.reload_dataloaders_every_n_epochs = 1
