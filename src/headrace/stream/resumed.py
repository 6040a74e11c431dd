"""What Lightning's data modules have in common: a counted training loader, and what a checkpoint keeps of it.

Lightning puts a data module's `state_dict` into its checkpoints, and loads it before it asks for loaders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from headrace.errors import MissingExtra, StreamError

try:  # before what needs torch: this extra brings both
    from lightning.pytorch import LightningDataModule, Trainer
except ImportError as error:
    raise MissingExtra("lightning", "lightning") from error

from headrace.sealed import MOST_POSITIONS, seal, shown, unseal
from headrace.stream.state import FORMAT_VERSION
from headrace.stream.topology import Topology

_KIND = "data module"


class _Stream(Protocol):
    def __len__(self) -> int: ...
    @property
    def epoch(self) -> int: ...


Stream = TypeVar("Stream", bound=_Stream)


class CountedLoader(ABC, Generic[Stream]):
    """One pass per iteration over a stream, of the trainer's epoch; counts what was received of the present one.

    Batches of the loaded epoch that were received before the stop count in `len` and in `batches`, as they do in
    Lightning's own progress. The stream is not called `dataset` here: Lightning would warn of its `len`.
    """

    def __init__(self, stream: Stream, trainer: Trainer | None) -> None:
        self.stream = stream
        self._trainer = trainer
        self._before = 0
        self._loaded_epoch = -1

    def __len__(self) -> int:
        """Batches of the present epoch on this rank, those before a stop included; the same on every rank."""
        return self._earlier + len(self.stream)

    @property
    def batches(self) -> int:
        """Batches of the present epoch received so far, those before a stop included."""
        return self._earlier + self.received

    @property
    @abstractmethod
    def received(self) -> int:
        """Batches received since the present pass began."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """Where the stream is after the batches received: JSON, the same on every rank."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the data module keeps the position. Having it tells Lightning that the loader can be resumed."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to load; see `state_dict`."""

    def _resumed(self, before: int) -> None:
        """The stream is in a loaded epoch, of which so many batches were received before."""
        self._loaded_epoch, self._before = self.stream.epoch, before

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
        return seal(_KIND, FORMAT_VERSION, {"stream": self._train.position(), "batches": self._train.batches})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Comes out of Lightning's checkpoint, before the loaders are made. Raises `StreamError` if it is not ours."""
        if isinstance(state_dict, Mapping) and not state_dict:  # of a module that had nothing to save
            return
        values = unseal(state_dict, kind=_KIND, version=FORMAT_VERSION)
        batches = values.get("batches")
        if set(values) != {"stream", "batches"} or type(batches) is not int or not 0 <= batches <= MOST_POSITIONS:
            raise StreamError(
                f"data module state: {shown(values)}, expected batches and stream; resume from a checkpoint"
                f" that was written with {type(self).__name__}"
            )
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
